"""Takes one consistent snapshot of the offsets that a job reads, once, before any task runs.

``take`` looks up the topics' partitions, then their first offsets in one round and their ends in
another; a bound that is a time needs one more round. The ends are high watermarks, so every record
below them is committed, and each task stops at the snapshot's end even if more is written
meanwhile. ``resolve`` is the arithmetic, without a cluster.

Requested offsets that are not there (deleted by retention, or beyond the end) are lost data. With
``fail_on_data_loss`` this is an error that names them, otherwise a warning and an entry in
``TopicsSnapshot.losses``; a loss is never silent.

A range's hosts are those of the partition's in-sync replicas. Sizes are estimated as the bytes of
the leader's whole log divided by its offsets.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from kio.schema.errors import ErrorCode

from raylog.client.admin.inspection import log_dirs_of
from raylog.client.background import background
from raylog.client.config import AdminConfig
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import unknown_partition
from raylog.errors import ConfigError, RaylogError, error_for
from raylog.ranges.places import EARLIEST, LATEST, AtTime, Bound, Place, Strategy
from raylog.ranges.splitting import OffsetRange
from raylog.ranges.topics import Topics, checked, matching, names_of
from raylog.types import Endpoint, TopicPartition, broker_of

logger = logging.getLogger("raylog.ranges")

NONE_SO_LATE = -1


@dataclass(frozen=True, slots=True)
class TopicsSnapshot:
    """The offsets of a read.

    ``ranges``: one for each partition, including empty ones. ``losses``: a sentence for each
    requested range that is missing.
    """

    ranges: tuple[OffsetRange, ...]
    bytes_per_offset: Mapping[TopicPartition, float]
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEnds:
    """A partition's first offset, the one after its last, and the offsets of times
    (``NONE_SO_LATE``: beyond its end).

    ``hosts``: the hosts of its in-sync replicas, for its ranges.
    """

    earliest: int
    latest: int
    at_times: Mapping[int, int]
    hosts: tuple[str, ...] = ()


# ------------------------------------------------------------------ arithmetic


def resolve(
    logs: Mapping[TopicPartition, LogEnds],
    starting: Bound,
    ending: Bound,
    *,
    fail_on_data_loss: bool = True,
    strategy: Strategy = "error",
) -> tuple[dict[TopicPartition, tuple[int, int]], list[str]]:
    """Return the offsets (start, end) of each partition, and the losses. ``strategy``: the meaning
    of a start after the last record.

    OffsetOutOfRangeError for missing offsets, with ``fail_on_data_loss``; ConfigError for invalid
    bounds.
    """
    if strategy not in get_args(Strategy):
        raise ConfigError(f"starting_offsets_by_timestamp_strategy={strategy!r}: {' or '.join(get_args(Strategy))}")
    starts, ends = starting.of(logs), ending.of(logs)
    found: dict[TopicPartition, tuple[int, int]] = {}
    losses: list[str] = []
    for key, log in logs.items():
        start = _start(key, starts[key], log, starting.name, strategy)
        end = _end(ends[key], log)
        is_behind_all = starts[key] == EARLIEST or ends[key] == LATEST  # then the other bound is outside the log
        if start > end and not is_behind_all:
            raise ConfigError(
                f"{key.topic}-{key.partition} would be read from {start} to {end}: the start is after the end"
            )
        lost = _lost(key, start, end, log)
        losses += lost
        start = min(max(start, log.earliest), log.latest)
        found[key] = (start, max(start, min(end, log.latest)))
    if losses and fail_on_data_loss:
        raise error_for(
            ErrorCode.offset_out_of_range,
            f"{'; '.join(losses[:5])}{f'; and {len(losses) - 5} more' if len(losses) > 5 else ''}: "
            "ask for offsets that exist, or read the rest with fail_on_data_loss=False",
        )
    return found, losses


def _start(key: TopicPartition, place: Place, log: LogEnds, name: str, strategy: Strategy) -> int:
    if isinstance(place, AtTime):
        offset = log.at_times[place.timestamp_ms]
        if offset != NONE_SO_LATE:
            return offset
        if strategy == "error":
            raise ConfigError(
                f"{name}: {key.topic}-{key.partition} has no record at or after {place.timestamp_ms} ms; with "
                'starting_offsets_by_timestamp_strategy="latest" nothing is read of such a partition'
            )
        return log.latest
    return {EARLIEST: log.earliest, LATEST: log.latest}.get(place, place)


def _end(place: Place, log: LogEnds) -> int:
    if isinstance(place, AtTime):
        offset = log.at_times[place.timestamp_ms]
        return log.latest if offset == NONE_SO_LATE else offset
    return {EARLIEST: log.earliest, LATEST: log.latest}.get(place, place)


def _lost(key: TopicPartition, start: int, end: int, log: LogEnds) -> list[str]:
    who = f"{key.topic}-{key.partition}"
    lost = []
    if start < log.earliest and start < end:
        lost.append(
            f"the offsets {start} to {min(log.earliest, end) - 1} of {who} are deleted: its log starts at {log.earliest}"
        )
    if end < log.earliest <= start:
        lost.append(f"the offsets below {end} of {who} are deleted: its log starts at {log.earliest}")
    if end > log.latest or start > log.latest:
        lost.append(f"{who} ends at {log.latest}, before offset {max(start, end)}")
    return lost


# ------------------------------------------------------------------ asking the cluster


def take(
    address: ClusterAddress,
    topics: Topics,
    starting: Bound,
    ending: Bound,
    *,
    fail_on_data_loss: bool = True,
    strategy: Strategy = "error",
    read_committed: bool = False,
) -> TopicsSnapshot:
    """Return the snapshot of these topics. UnknownTopicOrPartitionError for a missing one;
    otherwise errors of ``checked`` and ``resolve``.

    With ``read_committed`` a partition ends before its first open transaction.
    """
    level = requests.READ_COMMITTED if read_committed else requests.READ_UNCOMMITTED
    work = _take(
        address, checked(topics), starting, ending, level, fail_on_data_loss=fail_on_data_loss, strategy=strategy
    )
    snapshot = background().run(work)
    for loss in snapshot.losses:
        logger.warning("%s", loss)
    return snapshot


async def _take(
    address: ClusterAddress,
    topics: Topics,
    starting: Bound,
    ending: Bound,
    isolation_level: int,
    *,
    fail_on_data_loss: bool,
    strategy: Strategy,
) -> TopicsSnapshot:
    config = AdminConfig.parse({"client.id": "raylog-snapshot"})
    link = ClusterLink(address, config)
    try:
        keys = await _partitions(link, topics)
        leaders = LeaderRequests(link)
        limit_ms = config.default_api_timeout_ms

        async def ask(asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            told = await leaders.list_offsets(asked, limit_ms, isolation_level=isolation_level)
            return {key: offset for key, (offset, _, _) in told.items()}

        at_times: dict[TopicPartition, dict[int, int]] = {key: {} for key in keys}
        for side in (starting.of(keys), ending.of(keys)):
            asked = {key: place.timestamp_ms for key, place in side.items() if isinstance(place, AtTime)}
            for key, offset in (await ask(asked) if asked else {}).items():
                at_times[key][asked[key]] = offset
        earliest, latest = await ask(dict.fromkeys(keys, EARLIEST)), await ask(dict.fromkeys(keys, LATEST))
        logs = {key: LogEnds(earliest[key], latest[key], at_times[key]) for key in keys}
        found, losses = resolve(logs, starting, ending, fail_on_data_loss=fail_on_data_loss, strategy=strategy)
        ranges = tuple(OffsetRange(*key, start, end, hosts_of(link, key)) for key, (start, end) in found.items())
        return TopicsSnapshot(ranges, await _densities(link, logs), tuple(losses))
    finally:
        await link.close()


async def _partitions(link: ClusterLink, topics: Topics) -> list[TopicPartition]:
    if isinstance(topics, re.Pattern):
        views = matching(topics, await link.metadata.refresh(None))
        if not views:
            raise error_for(ErrorCode.unknown_topic_or_partition, f"no topic matches {topics.pattern!r} as a whole")
    else:
        views = await link.metadata.refresh(names_of(topics))
    keys = []
    for view in sorted(views, key=lambda view: view.name):
        count = len(view.partitions)
        numbers = topics[view.name] if isinstance(topics, Mapping) else range(count)
        for number in numbers:
            if not 0 <= number < count:
                raise unknown_partition(TopicPartition(view.name, number), count)
            keys.append(TopicPartition(view.name, number))
    return keys


def hosts_of(link: ClusterLink, key: TopicPartition) -> tuple[str, ...]:
    """Return the hosts of in-sync replicas, the leader's first; a consumer there reads from the
    local one.
    """
    view = link.metadata.cached(key.topic)
    if view is None or key.partition >= len(view.partitions):
        return ()
    part = view.partitions[key.partition]
    nodes = [part.leader.node, *(node for node in part.isr if node not in part.offline)]
    endpoints = [link.metadata.nodes[node] for node in nodes if node in link.metadata.nodes]
    return tuple(dict.fromkeys(endpoint.host for endpoint in endpoints))


async def _densities(link: ClusterLink, logs: Mapping[TopicPartition, LogEnds]) -> dict[TopicPartition, float]:
    """Return bytes per offset, as far as leaders report it. It only affects the number of tasks."""
    asked: dict[Endpoint, int] = {}
    for key, log in logs.items():
        leader = link.metadata.leader(key)
        if log.latest > log.earliest and leader is not None and leader.endpoint is not None:
            asked[leader.endpoint] = broker_of(leader.node)

    async def ask(endpoint: Endpoint, broker: int) -> Any:
        try:
            connection = await link.connections.get(endpoint)
            return broker, await connection.request(
                requests.describe_log_dirs(), timeout_ms=link.config.request_timeout_ms
            )
        except RaylogError as error:
            logger.debug("%s does not report the sizes of its logs: %s", endpoint, error)
            return None

    replies = await asyncio.gather(*(ask(*each) for each in asked.items()))
    sizes: dict[TopicPartition, int] = {}
    for dirs in log_dirs_of(reply for reply in replies if reply is not None).values():
        for log_dir in dirs.values():
            sizes |= log_dir.replicas
    return {
        key: sizes[key] / (log.latest - log.earliest)
        for key, log in logs.items()
        if key in sizes and log.latest > log.earliest
    }
