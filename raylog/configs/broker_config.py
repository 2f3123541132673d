"""One config of brokers, as an entry of their table (``broker_configs``)."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.configs.topic_configs import TopicConfig


@dataclass(frozen=True, slots=True)
class BrokerConfig(TopicConfig):
    """``of_topic`` names the topic config that this one stands in for. The rest says who goes by
    it: group coordinators, compaction, every log, or the processes that hold replicas as a whole.
    Other ones are the controller's or a Broker's.
    """

    is_cluster_wide: bool = False
    of_topic: str | None = None
    is_of_groups: bool = False
    is_of_cleaner: bool = False
    is_of_logs: bool = False
    is_of_hosts: bool = False
