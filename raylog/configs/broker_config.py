"""One config of brokers, as an entry of their table (``broker_configs``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raylog.configs.topic_configs import TopicConfig


class ReadBy(Enum):
    """Who goes by a config, in the words of the docs."""

    LOGS = "logs"
    CLEANER = "compaction"
    GROUPS = "group coordinators"
    TRANSACTIONS = "transaction coordinators"
    HOSTS = "processes that hold replicas"
    CONTROLLER = "the controller"
    LISTENER = "listeners"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(TopicConfig):
    """``of_topic`` names the topic config that this one stands in for. ``is_cluster_wide``: it is
    set for all brokers only. ``is_static``: a start takes it, and nobody changes it meanwhile.
    """

    read_by: ReadBy
    is_cluster_wide: bool = False
    is_static: bool = False
    of_topic: str | None = None

    @property
    def scope(self) -> str:
        """What DescribeConfigs says after the documentation."""
        whole = "Is the cluster's as a whole." if self.is_cluster_wide else "One broker may have its own."
        static = " A start takes it; it can't be changed meanwhile." if self.is_static else ""
        return f"Read by {self.read_by.value}. {whole}{static}"
