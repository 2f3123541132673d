"""The configs of brokers that can be changed while they run, under Kafka's names, each honoured or refused by name.

Two are a broker's own, or hold for all brokers that have none of their own; the others are the cluster's as a whole and are set for all
brokers only (A20: per broker > for all > default). Everything else about a broker is fixed at its start, and is refused here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from raylog.errors import ConfigError
from raylog.metadata.throttled_replicas import FOLLOWER_RATE, LEADER_RATE
from raylog.metadata.topic_configs import LONG_MAX, ConfigType, TopicConfig

BrokerConfigs = Mapping[int | None, Mapping[str, str]]
"""What was set, by broker id; None: for all brokers."""


@dataclass(frozen=True, slots=True)
class BrokerConfig(TopicConfig):
    is_cluster_wide: bool = False


_TABLE = (
    BrokerConfig("auto.leader.rebalance.enable", ConfigType.BOOLEAN, "true",
                 "whether leaders go back to the preferred replicas by themselves", is_cluster_wide=True),
    BrokerConfig(FOLLOWER_RATE, ConfigType.LONG, str(LONG_MAX),
                 "bytes per second that the broker's throttled replicas copy while they are not in sync", 0),
    BrokerConfig("leader.imbalance.check.interval.seconds", ConfigType.LONG, "300",
                 "how often the balance of leaders is looked at", 1, 1 << 40, is_cluster_wide=True),
    BrokerConfig("leader.imbalance.per.broker.percentage", ConfigType.INT, "10",
                 "how many of the partitions that prefer a broker may be led by others", 0, is_cluster_wide=True),
    BrokerConfig(LEADER_RATE, ConfigType.LONG, str(LONG_MAX),
                 "bytes per second that the broker's throttled leaders send to replicas that are not in sync", 0),
)  # fmt: skip

BROKER_CONFIGS: Mapping[str, BrokerConfig] = {config.name: config for config in _TABLE}


def config_named(name: str, broker_id: int | None) -> BrokerConfig:
    """The config of that name, which may be set for that broker. Raises ConfigError that says why not."""
    config = BROKER_CONFIGS.get(name)
    if config is None:
        near = difflib.get_close_matches(name, BROKER_CONFIGS, n=1, cutoff=0.6)
        raise ConfigError(
            f"{name!r} is no config of a broker that can be changed while it runs"
            + (f"; did you mean {near[0]!r}?" if near else f"; these can: {', '.join(BROKER_CONFIGS)}")
        )
    if config.is_cluster_wide and broker_id is not None:
        raise ConfigError(f"{name} is the cluster's as a whole: set it for all brokers, not for broker {broker_id}")
    return config


def validated(name: str, broker_id: int | None, text: str | None) -> str:
    """The value to store."""
    config = config_named(name, broker_id)
    if text is None:
        raise ConfigError(f"{name} needs a value")
    config.parse(text)
    return text.strip()


def found(configs: BrokerConfigs, broker_id: int | None, name: str) -> tuple[str, int | None] | None:
    """The value that was set and for whom (None: for all), the broker's own first; None if nobody has set it."""
    for named in (broker_id, None):
        value = configs.get(named, {}).get(name)
        if value is not None:
            return value, named
    return None


def number(configs: BrokerConfigs, broker_id: int | None, name: str, *, default: int) -> int:
    """The value as a number (or boolean), ``default`` if nobody has set it."""
    set_value = found(configs, broker_id, name)
    if set_value is None:
        return default
    value = BROKER_CONFIGS[name].parse(set_value[0])
    assert isinstance(value, int), f"{name} is no number"
    return value
