"""What is asked of the controller about configs, and what it answers: plain values, as in
``raylog.metadata.requests``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raylog.metadata.records import StaticSource


class ConfigOperation(Enum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ResourceType(Enum):
    """What has configs in Kafka; here groups have none, and brokers' loggers are no business of the
    controller's. Another number is carried, and refused for that resource.
    """

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: ConfigOperation
    value: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceChanges:
    """All changes of one resource are made, or none. ``replaces``: what is set and not named here
    returns to its default.
    """

    type: ResourceType | int
    name: str
    changes: tuple[ConfigChange, ...]
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """→ ConfigsAltered. Each resource succeeds or fails by itself. ``checked_by``: the broker that has
    passed the request on, and has looked at what is to change of its own certificates.
    """

    resources: tuple[ResourceChanges, ...]
    validate_only: bool = False
    checked_by: int | None = None


@dataclass(frozen=True, slots=True)
class SetStaticConfigs:
    """→ ConfigsAltered, of all brokers. ``replaces``: what that source has said before and does not
    say again is void.
    """

    source: StaticSource
    configs: tuple[tuple[str, str], ...]
    replaces: bool = True


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    type: ResourceType | int
    name: str
    error: int = 0
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigsAltered:
    resources: tuple[ResourceOutcome, ...]


@dataclass(frozen=True, slots=True)
class ConfigQuery:
    """``keys`` None or empty: all of them."""

    type: ResourceType | int
    name: str
    keys: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class DescribeConfigs:
    """→ ConfigsDescribed."""

    resources: tuple[ConfigQuery, ...]


@dataclass(frozen=True, slots=True)
class DescribedSynonym:
    """A value that holds, or would if those before it were not set; ``source`` is Kafka's number of
    where it comes from.
    """

    name: str
    value: str
    source: int


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """``type`` is Kafka's number of the config's type; ``synonyms`` are all values, the one in
    force first.
    """

    name: str
    synonyms: tuple[DescribedSynonym, ...]
    type: int
    meaning: str
    read_only: bool = False

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> int:
        return self.synonyms[0].source


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    type: ResourceType | int
    name: str
    error: int = 0
    message: str | None = None
    entries: tuple[DescribedConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigsDescribed:
    resources: tuple[ConfigDescription, ...]
