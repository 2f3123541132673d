"""The options of batch and streaming reads, by raylog's names and those of Spark's kafka source.

``read(..., starting_offsets=…)`` and ``read(..., **{"startingOffsets": …})`` are the same. Every
option is honoured or refused. An option of the kafka source without a meaning here is refused with
the reason, and an unknown name with the closest known one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from raylog.errors import ConfigError
from raylog.ranges.given_values import COUNT_MAX, OFFSET_MAX, count, flag, unknown

BATCH_OPTIONS = (
    "columns",
    "ending_offsets",
    "ending_offsets_by_timestamp",
    "ending_timestamp",
    "fail_on_data_loss",
    "include_headers",
    "isolation_level",
    "max_records_per_partition",
    "min_partitions",
    "starting_offsets",
    "starting_offsets_by_timestamp",
    "starting_offsets_by_timestamp_strategy",
    "starting_timestamp",
)
STREAM_OPTIONS = (
    "available_now",
    "columns",
    "fail_on_data_loss",
    "group_id",
    "include_headers",
    "isolation_level",
    "max_offsets_per_trigger",
    "max_records_per_partition",
    "min_partitions",
    "starting_offsets",
    "starting_offsets_by_timestamp",
    "starting_offsets_by_timestamp_strategy",
    "starting_timestamp",
)
_FLAGS = ("available_now", "fail_on_data_loss", "include_headers")
_NUMBERS = ("max_offsets_per_trigger", "max_records_per_partition", "min_partitions")
_TOPICS = "the second argument names the topics: a name, a list, a compiled pattern, or {topic: [partitions]}"
_KAFKA_OTHERS = {
    "kafka.isolation.level": "isolation_level",
    "assign": _TOPICS,
    "subscribe": _TOPICS,
    "subscribepattern": _TOPICS,
    "kafka.bootstrap.servers": "use cluster= for the cluster's address",
}
_BATCH_OTHERS = _KAFKA_OTHERS | {
    "availablenow": "that is for streams",
    "checkpoint": "that is for streams",
    "groupid": "a batch reads without a group",
    "kafka.group.id": "a batch reads without a group",
    "groupidprefix": "a batch reads without a group",
    "maxoffsetspertrigger": "that is for streams",
    "minoffsetspertrigger": "that is for streams",
    "maxtriggerdelay": "that is for streams",
}
_ARGUMENTS = ("checkpoint", "cluster", "name")
"""The functions' own parameters, which a misspelt name may also mean."""

_STREAM_OTHERS = _KAFKA_OTHERS | {
    "checkpointlocation": "checkpoint= names the query's checkpoint",
    "kafka.group.id": "group_id",
    "groupidprefix": "group_id= only names the group for commits; the stream is not a member of it",
    "minoffsetspertrigger": "the query's trigger says how long records are gathered",
    "maxtriggerdelay": "the query's trigger says how long records are gathered",
    "endingoffsets": "a stream has no end; available_now=True takes what is there",
    "endingtimestamp": "a stream has no end; available_now=True takes what is there",
    "endingoffsetsbytimestamp": "a stream has no end; available_now=True takes what is there",
}


def batch_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by raylog's names. Numbers and flags may be text, as in Spark; None means
    not given.
    """
    return _options(given, BATCH_OPTIONS, _BATCH_OTHERS)


def stream_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same for a stream."""
    return _options(given, STREAM_OPTIONS, _STREAM_OTHERS)


def _options(given: Mapping[str, Any], there_are: Sequence[str], others: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in given.items():
        known = _known(name, there_are, others)
        if known in options:
            raise ConfigError(f"{name!r} is given twice, also as {known!r}")
        if value is not None:
            options[known] = _value(known, value)
    return options


def _known(name: str, there_are: Sequence[str], others: Mapping[str, str]) -> str:
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if plain in there_are:
        return plain
    squeezed = {each.replace("_", ""): each for each in there_are}
    lowered = name.lower().replace("_", "") if "." not in name else name.lower()
    if lowered in squeezed:
        return squeezed[lowered]
    if (other := others.get(lowered)) is not None:
        if other in there_are:
            return other
        raise ConfigError(f"{name!r} is not an option here: {other}")
    if lowered.startswith("kafka."):
        raise ConfigError(f"{name!r} is not an option here: tasks read with raylog's own client")
    raise unknown(name, (*there_are, *(each for each in _ARGUMENTS if each not in others)))


def _value(name: str, value: Any) -> Any:
    if name in _FLAGS:
        return flag(name, value)
    if name in _NUMBERS:
        return count(name, value, COUNT_MAX if name == "min_partitions" else OFFSET_MAX)
    if name == "group_id" and not (isinstance(value, str) and value):
        raise ConfigError(f"{name}={value!r}: give the name of a group")
    if name == "isolation_level" and value not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"{name}={value!r}: give read_committed or read_uncommitted")
    if name == "starting_offsets_by_timestamp_strategy" and value not in ("error", "latest"):
        raise ConfigError(f"{name}={value!r}: give error or latest")
    return value
