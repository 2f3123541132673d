"""The topic configs: Kafka 3.6's thirty-one and raylog's own, each honoured or refused by name.

Owns names, types, defaults, bounds and meanings. It knows nothing of topics; who honours a config
reads its effective value from the Assignment (the log, the replicas) or from the image (the
controller).

A *refused* config may be set to its default, because that asks for nothing; any other value is an
error that says why and, where there is one, what to do instead. An unknown name is an error that
suggests the nearest known one.

Values are strings, as on the wire. ``parse`` turns one into its typed value: bool, int, float, str,
or a tuple for lists.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from raylog.configs.replication_quotas import FOLLOWERS, LEADERS, is_list
from raylog.errors import ConfigError
from raylog.refusals import InvalidTopicName

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_MAX = 100_000
REQUEST_PARTITIONS_MAX = 10_000
"""That one request makes (Kafka's MAX_PARTITIONS_PER_BATCH): they are one decision, for whose time the
controller does nothing else. A larger topic grows by further requests.
"""
PER_ACTOR = "replicas.per.actor"
PER_ACTOR_MAX = 10_000
AUTO = "auto"

Value = bool | int | float | str | tuple[str, ...]


class ConfigValueType(Enum):
    """The value's type; the number is the one of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One config. ``refused`` says why any other value than the default is an error; None: it is
    honoured.
    """

    name: str
    type: ConfigValueType
    default: str
    meaning: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    refused: str | None = None

    def parse(self, text: str) -> Value:
        """The typed value. Raises ConfigError for a value of the wrong type or out of bounds (not
        for a refused one).
        """
        value = self._typed(text.strip())
        for each in value if isinstance(value, tuple) else (value,):
            if self.choices and each not in self.choices:
                raise ConfigError(f"{self.name}={text!r}: choose from {', '.join(self.choices)}")
        if self.name in (LEADERS, FOLLOWERS) and not (isinstance(value, tuple) and is_list(value)):
            raise ConfigError(f"{self.name}={text!r}: not {self.values}")
        if self.name == PER_ACTOR and text.strip() != AUTO and not _is_replica_count(text.strip()):
            raise ConfigError(f"{self.name}={text!r}: not {self.values}")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not self._is_within(value):
            raise ConfigError(f"{self.name}={text}: must be {self.values}")
        return value

    def stored(self, text: str) -> Value:
        """The typed value of a text that was stored, perhaps by a raylog that allowed more: of a
        number out of bounds the bound.
        """
        value = self._typed(text.strip())
        if not isinstance(value, (int, float)) or isinstance(value, bool) or self._is_within(value):
            return self.parse(text)
        return self.maximum if self.maximum is not None and value > self.maximum else self.minimum  # type: ignore[return-value]

    @property
    def values(self) -> str:
        """What it may be, as words that follow "must be"."""
        if self.name in (LEADERS, FOLLOWERS):
            return "* or a list of partition:broker,partition:broker,…"
        if self.name == PER_ACTOR:
            return f"{AUTO} or a number from 1 to {PER_ACTOR_MAX:,}"
        if self.choices:
            return f"{'some' if self.type is ConfigValueType.LIST else 'one'} of {', '.join(self.choices)}"
        match self.type:
            case ConfigValueType.BOOLEAN:
                return "true or false"
            case ConfigValueType.STRING | ConfigValueType.PASSWORD:
                return "text"
            case ConfigValueType.LIST:
                return "a list"
            case ConfigValueType.INT | ConfigValueType.LONG | ConfigValueType.DOUBLE:
                if self.maximum in (None, INT_MAX, LONG_MAX):
                    return "any number" if self.minimum is None else f"at least {_number(self.minimum)}"
                assert self.minimum is not None and self.maximum is not None, f"{self.name} has an upper bound alone"
                return f"from {_number(self.minimum)} to {_number(self.maximum)}"

    @property
    def documentation(self) -> str:
        """What DescribeConfigs says."""
        refused = "" if self.refused is None else f" (fixed: {self.refused})"
        return f"{self.meaning[:1].upper()}{self.meaning[1:]}{refused}. Must be {self.values}."

    def _is_within(self, value: float) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def _typed(self, text: str) -> Value:
        try:
            match self.type:
                case ConfigValueType.BOOLEAN:
                    return {"true": True, "false": False}[text.lower()]
                case ConfigValueType.INT | ConfigValueType.LONG:
                    number, limit = int(text), INT_MAX if self.type is ConfigValueType.INT else LONG_MAX
                    if not -limit - 1 <= number <= limit:
                        raise ValueError
                    return number
                case ConfigValueType.DOUBLE:
                    if math.isnan(float(text)):
                        raise ValueError
                    return float(text)
                case ConfigValueType.LIST:
                    return tuple(each.strip() for each in text.split(",") if each.strip())
                case ConfigValueType.STRING | ConfigValueType.PASSWORD:
                    return text
        except (ValueError, KeyError):
            raise ConfigError(f"{self.name}={text!r} is no {self.type.name.lower()}: must be {self.values}") from None


def _number(value: float) -> str:
    """Without a point where it is whole."""
    return str(int(value)) if value == int(value) else str(value)


_NO_TIERS = "there is no remote storage: every segment stays on its disk until retention deletes it"

_B, _S, _I, _L, _D, _LIST = (
    ConfigValueType.BOOLEAN,
    ConfigValueType.STRING,
    ConfigValueType.INT,
    ConfigValueType.LONG,
    ConfigValueType.DOUBLE,
    ConfigValueType.LIST,
)

_TABLE = (
    TopicConfig("cleanup.policy", _LIST, "delete", "what happens to old segments: delete, compact or both",
                choices=("delete", "compact")),
    TopicConfig("compression.type", _S, "producer", "the codec that batches are stored in; producer keeps the producer's",
                choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    TopicConfig("delete.retention.ms", _L, "86400000", "how long a compacted topic keeps tombstones", 0),
    TopicConfig("file.delete.delay.ms", _L, "60000", "wait before a deleted segment's files are unlinked", 0),
    TopicConfig("flush.messages", _L, str(LONG_MAX), "fsync after this many records; 1 survives a power cut", 1),
    TopicConfig("flush.ms", _L, str(LONG_MAX), "fsync when a record has been unflushed this long", 0),
    TopicConfig(FOLLOWERS, _LIST, "", "followers that copy at the broker's throttled rate, as partition:broker,… or *"),
    TopicConfig("index.interval.bytes", _I, "4096", "bytes of log between two index entries", 0),
    TopicConfig(LEADERS, _LIST, "", "leaders that are copied from at the broker's throttled rate, as partition:broker,… or *"),
    TopicConfig("local.retention.bytes", _L, "-2", "bytes kept locally of a tiered topic; -2 is retention.bytes", -2,
                refused=_NO_TIERS),
    TopicConfig("local.retention.ms", _L, "-2", "time kept locally of a tiered topic; -2 is retention.ms", -2,
                refused=_NO_TIERS),
    TopicConfig("max.compaction.lag.ms", _L, str(LONG_MAX), "how long a record may stay uncompacted at most", 1),
    TopicConfig("max.message.bytes", _I, "1048588", "largest batch, after compression", 0),
    TopicConfig("message.downconversion.enable", _B, "true",
                "has no effect: no Fetch version that needs conversion is offered"),
    TopicConfig("message.format.version", _S, "3.0-IV1", "deprecated; batches are of format v2",
                refused="the only record format is v2 (3.0-IV1 and later)"),
    TopicConfig("message.timestamp.after.max.ms", _L, str(LONG_MAX), "how far a CreateTime may be in the future", 0),
    TopicConfig("message.timestamp.before.max.ms", _L, str(LONG_MAX), "how far a CreateTime may be in the past", 0),
    TopicConfig("message.timestamp.difference.max.ms", _L, str(LONG_MAX), "deprecated: sets both of the above", 0),
    TopicConfig("message.timestamp.type", _S, "CreateTime", "whose clock stamps the records: producer's or leader's",
                choices=("CreateTime", "LogAppendTime")),
    TopicConfig("min.cleanable.dirty.ratio", _D, "0.5", "share of uncompacted bytes that starts compaction", 0, 1),
    TopicConfig("min.compaction.lag.ms", _L, "0", "how long a record stays uncompacted at least", 0),
    TopicConfig("min.insync.replicas", _I, "1", "in-sync replicas that acks=all and the high watermark need", 1),
    TopicConfig("preallocate", _B, "false", "reserve a segment's bytes on the disk when it is created"),
    TopicConfig("remote.storage.enable", _B, "false", "tiered storage", refused=_NO_TIERS),
    TopicConfig("retention.bytes", _L, "-1", "maximum bytes of one partition; -1 is no limit", -1),
    TopicConfig("retention.ms", _L, "604800000", "how long records are kept; -1 is forever", -1),
    TopicConfig("segment.bytes", _I, "1073741824", "a segment that reaches this size is closed", 14),
    TopicConfig("segment.index.bytes", _I, "10485760", "size of an active segment's index files", 4),
    TopicConfig("segment.jitter.ms", _L, "0", "random shortening of segment.ms", 0),
    TopicConfig("segment.ms", _L, "604800000", "a segment that reaches this age is closed", 1),
    TopicConfig("unclean.leader.election.enable", _B, "false",
                "let a replica outside the ISR lead, and lose records, when nobody else can"),
)  # fmt: skip

OWN = (
    TopicConfig("replicas.per.actor", _S, AUTO,
                "raylog's: auto puts new replicas on the warm hosts of their disk; a number lets so many replicas of this topic "
                "on one disk share an actor of their own, 1 gives each an actor; counts at creation"),
)  # fmt: skip

KAFKA_CONFIGS: Mapping[str, TopicConfig] = {config.name: config for config in _TABLE}
TOPIC_CONFIGS: Mapping[str, TopicConfig] = {config.name: config for config in _TABLE + OWN}

BROKER_NAMES: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.downconversion.enable": "log.message.downconversion.enable",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""What a broker calls a topic's config: set there, it holds for the topics that do not set their
own.
"""
_OF_BROKER_NAME = {broker_name: name for name, broker_name in BROKER_NAMES.items()}


def config_named(name: str) -> TopicConfig:
    """The config of that name. Raises ConfigError that suggests the nearest one."""
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        same = _OF_BROKER_NAME.get(name)
        near = [same] if same else difflib.get_close_matches(name, TOPIC_CONFIGS, n=1, cutoff=0.6)
        raise ConfigError(f"unknown topic config {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return config


def validated(name: str, text: str | None) -> str:
    """The value to store. Raises ConfigError for an unknown name, a bad value, or one that is
    refused.
    """
    config = config_named(name)
    if text is None:
        raise ConfigError(f"{name} needs a value")
    value = config.parse(text)
    if config.refused is not None and value != config.parse(config.default):
        raise ConfigError(f"{name}={text} is refused: {config.refused}")
    return text.strip()


def effective(configs: Mapping[str, str]) -> dict[str, str]:
    """Every config with its value: what was set, else the default.

    The deprecated bound on timestamps stands in for those of its two successors that are not set.
    """
    values = {name: configs.get(name, config.default) for name, config in TOPIC_CONFIGS.items()}
    if "message.timestamp.difference.max.ms" in configs:
        for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
            values[name] = configs.get(name, configs["message.timestamp.difference.max.ms"])
    return values


def integer(configs: Mapping[str, str], name: str) -> int:
    value = TOPIC_CONFIGS[name].parse(configs.get(name, TOPIC_CONFIGS[name].default))
    assert isinstance(value, int), f"{name} is no number"
    return value


def replicas_per_actor(configs: Mapping[str, str]) -> int | None:
    """How many replicas of the topic may share an actor; None for ``auto``."""
    text = configs.get(PER_ACTOR, AUTO)
    return None if text == AUTO else int(text)


def _is_replica_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= PER_ACTOR_MAX


def boolean(configs: Mapping[str, str], name: str) -> bool:
    value = TOPIC_CONFIGS[name].parse(configs.get(name, TOPIC_CONFIGS[name].default))
    assert isinstance(value, bool), f"{name} is no boolean"
    return value


_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Kafka's rules (L15): raises InvalidTopicError. A name plus ``-99999`` has to fit a directory
    entry of 255 bytes.
    """
    if not name:
        raise InvalidTopicName("a topic needs a name")
    if name in (".", ".."):
        raise InvalidTopicName(f"{name!r} cannot name a topic")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopicName(
            f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, not {len(name)}: {name[:40]}…"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        raise InvalidTopicName(f"{name!r}: a topic name is made of ASCII letters, digits, '.', '_' and '-'")


def folded_name(name: str) -> str:
    """Two topics cannot have names that are folded to the same: they differ only in '.' against '_',
    and would share a metric.
    """
    return name.replace(".", "_")
