"""What there is to say of configs without a cluster: their table, for people and tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylog.configs import broker_configs, topic_configs
from raylog.configs.refused_broker_configs import reason_for
from raylog.configs.topic_configs import TopicConfig
from raylog.errors import ConfigError


def explain_topics(names: Sequence[str]) -> list[dict[str, Any]]:
    """Those configs of topics, or all. ConfigError for a name that is none."""
    configs = [topic_configs.config_named(name) for name in names] or topic_configs.TOPIC_CONFIGS.values()
    return [{**_plain(config), "set": "a topic", "read_by": "logs and the controller"} for config in configs]


def explain_brokers(names: Sequence[str]) -> list[dict[str, Any]]:
    """Those configs of brokers, or all that can be set. Of one of Kafka's that is refused it has the
    name and the reason. ConfigError for a name that is none.
    """
    return [_of_broker(name) for name in names or broker_configs.BROKER_CONFIGS]


def _of_broker(name: str) -> dict[str, Any]:
    config = broker_configs.BROKER_CONFIGS.get(name)
    if config is None and name in broker_configs.FIXED_CONFIGS:
        config = broker_configs.FIXED_CONFIGS[name]
        return {**_plain(config), "set": "a broker by its start", "read_by": config.read_by.value}
    if config is None:
        reason = reason_for(name)
        if reason is None:
            raise ConfigError(broker_configs.why_not(name))
        return {"name": name, "refused": reason}
    scope = "all brokers" if config.is_cluster_wide else "one broker, or all"
    return {**_plain(config), "set": scope, "read_by": config.read_by.value}


def _plain(config: TopicConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "type": config.type.name.lower(),
        "default": config.default,
        "values": config.values,
        "meaning": config.meaning,
        "refused": config.refused,
    }


def in_words(explained: dict[str, Any]) -> list[str]:
    """Lines for a terminal."""
    if "type" not in explained:
        return [explained["name"], f"  refused: {explained['refused']}"]
    default = explained["default"] or "(empty)"
    refused = [f"  refused, unless it is the default: {explained['refused']}"] if explained["refused"] else []
    return [
        f"{explained['name']}={default}",
        f"  {explained['meaning']}",
        f"  {explained['type']}, {explained['values']}; set for {explained['set']}; read by {explained['read_by']}",
        *refused,
    ]
