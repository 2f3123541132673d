"""Parses the beginning and the end of a read, written as for Spark's kafka source.

``"earliest"``, ``"latest"``, one moment for all partitions, or something per partition: ``{"topic":
{0: 23, 1: "earliest"}}``, also as Spark's JSON text ``'{"topic":{"0":23,"1":-2}}'`` (−2 earliest,
−1 latest), also with ``TopicPartition`` keys. A moment is a datetime with a time zone or
milliseconds since 1970, and stands for the first offset at or after it. Places per partition must
cover every partition that is read: a missing one is an error, as in Spark, and has no default.

Pure. ``snapshot`` resolves places to offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from raylog.errors import ConfigError
from raylog.types import TopicPartition

EARLIEST = -2
LATEST = -1
_MOMENT_MS_MAX = (1 << 63) - 1
_NAMED = {"earliest": EARLIEST, "latest": LATEST}

Strategy = Literal["error", "latest"]
Moment = datetime | int
Offsets = Any
"""``"earliest"``, ``"latest"``, JSON text, or a mapping by topic and partition (or by
``TopicPartition``).
"""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first offset at or after a moment, in ms since 1970."""

    timestamp_ms: int


Place = int | AtTime
"""An offset, ``EARLIEST``, ``LATEST`` or a moment."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A beginning or an end: one place for all partitions, or one for each. ``name``: the user's
    option.
    """

    name: str
    everywhere: Place | None
    each: Mapping[TopicPartition, Place]

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
        """Return the place in each of these partitions; ConfigError for a missing or an extra
        partition.
        """
        wanted = list(partitions)
        if self.everywhere is not None:
            return dict.fromkeys(wanted, self.everywhere)
        missing = [key for key in wanted if key not in self.each]
        foreign = [key for key in self.each if key not in set(wanted)]
        if missing or foreign:
            listed = ", ".join(f"{topic}-{number}" for topic, number in (missing or foreign)[:5])
            raise ConfigError(
                f"{self.name} leaves out {listed}: name every partition that is read, or give one place for all"
                if missing
                else f"{self.name} names {listed}, which {'is' if len(foreign) == 1 else 'are'} not read"
            )
        return {key: self.each[key] for key in wanted}


def bound(
    kind: Literal["starting", "ending"],
    *,
    offsets: Offsets | None = None,
    timestamp: Moment | None = None,
    offsets_by_timestamp: Any | None = None,
    of_stream: bool = False,
) -> Bound:
    """Return the beginning (default earliest) or end (default latest) of a read. As in Spark, a
    time overrides offsets.

    Only a stream may begin at the end.
    """
    names = (f"{kind}_timestamp", f"{kind}_offsets_by_timestamp", f"{kind}_offsets")
    if timestamp is not None:
        return Bound(names[0], AtTime(milliseconds(names[0], timestamp)), {})
    if offsets_by_timestamp is not None:
        times = _by_partition(names[1], offsets_by_timestamp)
        return Bound(
            names[1], None, {key: AtTime(milliseconds(_of(names[1], key), time)) for key, time in times.items()}
        )
    forbidden = "latest" if kind == "starting" else "earliest"
    if offsets is None:
        offsets = "earliest" if kind == "starting" else "latest"
    if isinstance(offsets, str) and offsets.strip().lower() in _NAMED:
        named = offsets.strip().lower()
        if named == forbidden and not of_stream:
            raise ConfigError(
                f"{names[2]}={named!r}: a read that {'starts' if kind == 'starting' else 'ends'} there is empty"
            )
        return Bound(names[2], _NAMED[named], {})
    places = {key: _place(names[2], key, place) for key, place in _by_partition(names[2], offsets).items()}
    wrong = [key for key, place in places.items() if place == _NAMED[forbidden]]
    if wrong and not of_stream:
        raise ConfigError(
            f"{names[2]} of {wrong[0].topic}-{wrong[0].partition} is {forbidden}: nothing would be read; leave the partition out"
        )
    return Bound(names[2], None, places)


def milliseconds(name: str, moment: Any) -> int:
    """A moment in ms since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ConfigError(f"{name}={moment!r} has no time zone: give it one, such as tzinfo=datetime.UTC")
        return round(moment.timestamp() * 1000)
    if isinstance(moment, str) and moment.strip().isdecimal():
        moment = int(moment)
    if isinstance(moment, bool) or not isinstance(moment, int) or not 0 <= moment <= _MOMENT_MS_MAX:
        raise ConfigError(f"{name}={moment!r}: give a datetime, or milliseconds since 1970")
    return moment


def _place(name: str, key: TopicPartition, place: Any) -> Place:
    if isinstance(place, str) and place.lower() in _NAMED:
        return _NAMED[place.lower()]
    if isinstance(place, datetime):
        return AtTime(milliseconds(_of(name, key), place))
    if isinstance(place, bool) or not isinstance(place, int) or place < EARLIEST:
        raise ConfigError(
            f"{_of(name, key)} is {place!r}: give an offset, 'earliest' (-2), 'latest' (-1) or a datetime"
        )
    return place


def _by_partition(name: str, given: Any) -> dict[TopicPartition, Any]:
    """Return the places of all partitions as one flat mapping."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise _no_places(name, given) from None
    if not isinstance(given, Mapping):
        raise _no_places(name, given)
    flat: dict[TopicPartition, Any] = {}
    for topic, of_topic in given.items():
        if isinstance(topic, tuple):
            flat[_key(name, *topic) if len(topic) == 2 else _key(name, topic, None)] = of_topic
        elif isinstance(of_topic, Mapping):
            flat |= {_key(name, topic, number): place for number, place in of_topic.items()}
        else:
            raise ConfigError(
                f"{name} of topic {topic!r} is {of_topic!r}: give a place for each partition, such as {{0: 23}}"
            )
    return flat


def _no_places(name: str, given: Any) -> ConfigError:
    if name.endswith("_by_timestamp"):
        return ConfigError(
            f'{name}={given!r}: give a moment for each partition, such as {{"topic": {{0: 1700000000000}}}}'
        )
    of_all = f"; {name.partition('_')[0]}_timestamp is a moment for all" if isinstance(given, datetime) else ""
    return ConfigError(
        f"{name}={given!r}: give 'earliest', 'latest', or per partition, such as {{\"topic\": {{0: 23}}}}{of_all}"
    )


def _of(name: str, key: TopicPartition) -> str:
    return f"{name} of {key.topic}-{key.partition}"


def _key(name: str, topic: Any, number: Any) -> TopicPartition:
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if not isinstance(topic, str) or not isinstance(number, int) or isinstance(number, bool):
        raise ConfigError(f"{name}: {topic!r}, {number!r} is not a topic and partition, such as 'topic', 0")
    return TopicPartition(topic, number)
