"""What is told of a config: its value, where that comes from, what else stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ConfigSource(IntEnum):
    """Where a config's value comes from (Kafka's numbers)."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigType(IntEnum):
    """What a config's value is (Kafka's numbers)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value of a config under a name that it has in that place."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """``synonyms`` are all values, the one in force first: each holds where those before it are
    taken away.
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    documentation: str | None
    type: ConfigType = ConfigType.UNKNOWN
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


def entry_of(entry: Any) -> ConfigEntry:
    """One config of a DescribeConfigs answer."""
    return ConfigEntry(
        entry.name,
        entry.value,
        ConfigSource(int(entry.config_source)),
        entry.read_only,
        entry.is_sensitive,
        entry.documentation,
        ConfigType(int(entry.config_type)),
        tuple(ConfigSynonym(each.name, each.value, ConfigSource(int(each.source))) for each in entry.synonyms),
    )
