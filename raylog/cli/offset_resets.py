"""Where a group shall go on: what ``kafka-consumer-groups --reset-offsets`` can ask for, as
functions without a cluster.

A *rule* says the new offset of each partition; whatever it says is brought into the log's range
(first offset to end). Dates without a zone are UTC, as in Kafka's tool. Files are CSV without a
header: ``topic,partition,offset``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from raylog.errors import ConfigError
from raylog.types import TopicPartition

_DURATION = re.compile(
    r"P(?:(?P<days>[+-]?\d+)D)?(?:T(?:(?P<hours>[+-]?\d+)H)?(?:(?P<minutes>[+-]?\d+)M)?(?:(?P<seconds>[+-]?\d+(?:\.\d+)?)S)?)?"
)


@dataclass(frozen=True, slots=True)
class CommittedPlace:
    """What is known of a partition. ``committed`` None: nothing; ``at_time`` None: no record is
    that late, or no time was asked for.
    """

    earliest: int
    latest: int
    committed: int | None = None
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """``kind``: earliest, latest, current, offset, shift, time or file. ``value``: the offset, the
    shift, or ms since 1970.
    """

    kind: str
    value: int = 0
    file: Mapping[TopicPartition, int] | None = None


def new_offset(rule: Rule, key: TopicPartition, place: CommittedPlace) -> int:
    """Raises ConfigError where the rule has nothing to go by."""
    match rule.kind:
        case "earliest":
            wanted = place.earliest
        case "latest":
            wanted = place.latest
        case "current":
            wanted = place.latest if place.committed is None else place.committed
        case "offset":
            wanted = rule.value
        case "shift":
            if place.committed is None:
                raise ConfigError(
                    f"cannot shift the offset of {key.topic}-{key.partition}: the group has committed none there"
                )
            wanted = place.committed + rule.value
        case "time":
            wanted = place.latest if place.at_time is None else place.at_time
        case "file":
            assert rule.file is not None, "a rule from a file without its content"
            wanted = rule.file[key]
        case _:
            raise AssertionError(rule.kind)
    return min(max(wanted, place.earliest), place.latest)


def parse_scope(texts: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    """``topic`` or ``topic:0,1``, by topic; None: all of its partitions."""
    scope: dict[str, tuple[int, ...] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not topic or (colon and not re.fullmatch(r"\d+(,\d+)*", numbers)):
            raise ConfigError(f"--topic {text!r}: give TOPIC or TOPIC:0,1,2")
        scope[topic] = tuple(sorted({int(number) for number in numbers.split(",")})) if colon else None
    return scope


def parse_moment(text: str) -> int:
    """A date as ``YYYY-MM-DDTHH:mm:SS.sss``, with or without a zone, in ms since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or "T" not in text:
        raise ConfigError(
            f"{text!r} is no date: give YYYY-MM-DDTHH:mm:SS.sss, with a zone such as +02:00 if it is not UTC"
        )
    return round((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_duration(text: str) -> timedelta:
    """``PnDTnHnMnS``."""
    found = _DURATION.fullmatch(text)
    parts = {name: float(value) for name, value in found.groupdict().items() if value} if found else {}
    if not parts or text.endswith("T"):
        raise ConfigError(f"{text!r} is no duration: give PnDTnHnMnS, for instance P1DT2H or PT30M")
    return timedelta(**parts)


def parse_file(text: str) -> dict[TopicPartition, int]:
    """The lines of a file that ``--export`` wrote, or somebody by hand."""
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        try:
            topic, partition, offset = row
            found[TopicPartition(topic.strip(), int(partition))] = int(offset)
        except ValueError:
            raise ConfigError(f"line {number} of the file is {','.join(row)!r}: give topic,partition,offset") from None
    if not found:
        raise ConfigError("the file has no line")
    return found


def export(offsets: Mapping[TopicPartition, int]) -> list[str]:
    """The same as lines."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((*key, offset) for key, offset in sorted(offsets.items()))
    return text.getvalue().splitlines()
