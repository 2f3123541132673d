"""``raylog get-offsets``: what Kafka's ``kafka-get-offsets`` does, with its options and its lines
``topic:partition:offset``.

A partition without an offset to print (no record is that young, nobody leads it) has no line. Exits
with 1 if one had no leader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.errors import ClusterError, ConfigError
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.client.admin.admin import OffsetSpec, TopicDescription

Filter = Callable[[TopicPartition], bool]

_SPECS: dict[str, OffsetSpec] = {
    "earliest": "earliest",
    "-2": "earliest",
    "latest": "latest",
    "-1": "latest",
    "max-timestamp": "max_timestamp",
    "-3": "max_timestamp",
}
_TIERED = ("earliest-local", "-4", "latest-tiered", "-5", "earliest-pending-upload", "-6")
_RANGE = re.compile(r"(?P<only>\d+)|(?P<first>\d+)?-(?P<end>\d+)?")


def get_offsets(
    topic: Annotated[
        str | None,
        typer.Option(help="A regular expression for topics, or several with commas between.", show_default=False),
    ] = None,
    partitions: Annotated[
        str | None, typer.Option(help="Numbers of partitions, with commas between.", show_default=False)
    ] = None,
    topic_partitions: Annotated[
        str | None,
        typer.Option(
            help="Patterns with commas between, as orders:0,clicks:2-5,:3-,metrics. 2-5 is 2, 3 and 4, as in Kafka.",
            show_default=False,
        ),
    ] = None,
    time: Annotated[
        str, typer.Option(help="earliest, latest, max-timestamp, or the first offset from a time on in ms since 1970.")
    ] = "latest",
    exclude_internal_topics: Annotated[
        bool, typer.Option("--exclude-internal-topics", help="Leave internal topics out.")
    ] = False,
    folder: Folder = None,
    address: Address = None,
    timeout: Timeout = CONNECT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Print offsets of partitions, by default the end of each, as topic:partition:offset.

    Exits with 1 if a partition has no leader; the others are printed.
    """
    if topic_partitions is not None and (topic is not None or partitions is not None):
        raise typer.BadParameter("--topic-partitions goes with neither --topic nor --partitions")
    spec = offset_spec(time)
    wanted = any_of(topic_partitions) if topic_partitions is not None else both(topic, partitions)
    with find_cluster(folder, address, timeout).admin() as admin:
        led, leaderless = _chosen(admin.describe_topics(), wanted, with_internal=not exclude_internal_topics)
        if not led and not leaderless:
            raise ClusterError("no partition matches: see `raylog topics list --internal`")
        found = admin.list_offsets(dict.fromkeys(led, spec))
    offsets = {key: found[key].offset for key in led if found[key].offset >= 0}
    if as_json:
        print_json([{"topic": key.topic, "partition": key.partition, "offset": offsets[key]} for key in offsets])
    else:
        print_text(*(f"{key.topic}:{key.partition}:{offset}" for key, offset in offsets.items()))
    for key in leaderless:
        notice(f"{key.topic}-{key.partition} has no leader: its offset is not known")
    if leaderless:
        raise typer.Exit(1)


def offset_spec(text: str) -> OffsetSpec:
    """What ``--time`` means; ConfigError for what is neither a word of Kafka's nor a time."""
    if text in _TIERED:
        raise ConfigError(f"--time {text} asks for tiered storage, which raylog does not have")
    if text in _SPECS:
        return _SPECS[text]
    if not text.isdecimal():
        raise ConfigError(f"--time {text!r}: give earliest, latest, max-timestamp or milliseconds since 1970")
    return int(text)


def both(topics: str | None, partitions: str | None) -> Filter:
    """Partitions of ``--topic`` that ``--partitions`` names. Raises ConfigError."""
    is_topic = _topic_filter(topics or "")
    try:
        numbers = None if partitions is None else {int(each) for each in partitions.split(",")}
    except ValueError:
        raise ConfigError(f"--partitions {partitions!r}: give numbers with commas between") from None
    return lambda key: is_topic(key.topic) and (numbers is None or key.partition in numbers)


def any_of(patterns: str) -> Filter:
    """Partitions that one of ``--topic-partitions`` means: ``TOPIC``, ``TOPIC:RANGE`` or
    ``:RANGE``. A range is ``3``, ``3-``, ``-5`` or ``3-5``, where 5 is the first that is left out.
    Raises ConfigError.
    """
    filters = [_pattern(each) for each in patterns.split(",")]
    return lambda key: any(each(key) for each in filters)


def _pattern(text: str) -> Filter:
    topic, colon, numbers = text.partition(":")
    parsed = _RANGE.fullmatch(numbers)
    if colon and parsed is None:
        raise ConfigError(f"--topic-partitions {text!r}: {numbers!r} is no range as 3, 3-, -5 or 3-5")
    is_topic = _topic_filter(topic)
    if parsed is None:
        return lambda key: is_topic(key.topic)
    only, first, end = (None if each is None else int(each) for each in parsed.group("only", "first", "end"))
    if only is not None:
        return lambda key: is_topic(key.topic) and key.partition == only
    return lambda key: is_topic(key.topic) and (first or 0) <= key.partition and (end is None or key.partition < end)


def _topic_filter(text: str) -> Callable[[str], bool]:
    """A list of regular expressions as Kafka reads one: commas are alternatives; empty, every topic."""
    if not text:
        return lambda topic: True
    try:
        pattern = re.compile(text.strip().strip("\"'").replace(" ", "").replace(",", "|"))
    except re.error as error:
        raise ConfigError(f"{text!r} is no regular expression for topics: {error}") from None
    return lambda topic: pattern.fullmatch(topic) is not None


def _chosen(
    topics: dict[str, TopicDescription], wanted: Filter, *, with_internal: bool
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Those with a leader and those without, in order."""
    led: list[TopicPartition] = []
    leaderless: list[TopicPartition] = []
    for name, topic in sorted(topics.items()):
        for part in topic.partitions:
            key = TopicPartition(name, part.partition)
            if wanted(key) and (with_internal or not topic.is_internal):
                (led if part.leader >= 0 else leaderless).append(key)
    return led, leaderless
