"""Reads topics as streaming DataFrames of Spark's Structured Streaming.

A stream is a ledger (``raylog.ranges.ledger``): a planner in the driver writes small immutable
files that name ranges of offsets, a source (``stream_source``) turns them into Spark's batches, and
a task (``mapInArrow``) reads each range, preferably on a host of its replicas, as in a batch read.
Spark's checkpoint records which entries belong to which batch, so a repeated batch reads the same
offsets, and watermarks, windows, joins, sinks and triggers are Spark's own.

The ledger is in the query's checkpoint directory, in a folder that Spark ignores, so both live
equally long.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from raylog.client.background import background
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import AdminClient
from raylog.errors import ConfigError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S
from raylog.ranges.addresses import address_of
from raylog.ranges.entries import StreamEntry, first
from raylog.ranges.ledger import STREAM_FILE, StreamLedger, made_folder
from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions
from raylog.ranges.snapshot import take
from raylog.ranges.splitting import OffsetRange, split
from raylog.ranges.topics import Topics, checked, names_of
from raylog.ranges.watch import TopicWatch, topic_ids
from raylog.spark.checkpoint import CheckpointProgress, has_begun
from raylog.spark.installed import require_session
from raylog.spark.loss_reports import accumulated, told_of
from raylog.spark.options import stream_options
from raylog.spark.reading import arrow_names, columns_of, records_frame
from raylog.spark.spark_private import is_stopped, streaming_frame
from raylog.spark.stream_planner import Ends, StreamPlanner
from raylog.spark.stream_source import LedgerSource
from raylog.spark.stream_tasks import StreamTasks

FOLDER = "raylog"
"""The folder in the checkpoint; Spark has none of that name."""

_TASK_OFFSETS = 250_000
"""The most offsets in one task: a batch should keep all cores busy."""

_planners: dict[Path, StreamPlanner] = {}
_planners_lock = threading.Lock()


def read_stream(
    spark: Any,
    topics: Topics,
    *,
    checkpoint: str,
    cluster: Any = None,
    name: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **options: Any,
) -> Any:
    """Return the records of topics as a streaming DataFrame with the columns of
    ``raylog.spark.read``.

    ``checkpoint``: the directory that the query's ``checkpointLocation`` names, too, on a file
    system that driver and executors share (any directory where there is one machine). ``topics``,
    ``cluster`` and ``timeout_s`` as in ``read``; new partitions, and new topics that match a
    pattern, are read from their first offset. ``name``: distinguishes the streams of one query; by
    default the topics' names. Options, also by their names in Spark's kafka source:

    - ``starting_offsets`` ("latest"), ``starting_timestamp``, ``starting_offsets_by_timestamp``
      (``starting_offsets_by_timestamp_strategy``): where a new stream begins; a restarted one
      continues from its checkpoint;
    - ``max_offsets_per_trigger``: the most offsets of a batch, shared in proportion to partitions'
      backlogs;
    - ``available_now`` (false): read only what the topics hold now, for
      ``trigger(availableNow=True)``;
    - ``group_id``: commit the offsets of finished batches to this consumer group, so that ``raylog
      groups`` shows the lag;
    - ``fail_on_data_loss`` (true): whether the query fails when offsets were deleted before they
      were read, a log was truncated, or a topic deleted; otherwise the driver logs a warning, and
      ``raylog.spark.losses`` has it;
    - ``columns``, ``include_headers``, ``isolation_level``, ``min_partitions``,
      ``max_records_per_partition`` as in ``read``.

    Raises ConfigError for a checkpoint of another stream, or of an earlier format. Only the query
    with that checkpoint can read it; another query needs a stream of its own.
    """
    require_session(spark)
    given = stream_options(options)
    topics = checked(topics)
    address = address_of(cluster, timeout_s)
    home = made_folder("checkpoint", checkpoint)
    folder = home / FOLDER / _folder_of(name, topics)
    committed = given.get("isolation_level") == "read_committed"
    with _planners_lock:
        _refuse_another_checkpoint(home, folder)
        if (before := _planners.pop(folder, None)) is not None:
            before.stop()
        try:
            ledger, planner = _opened(spark, home, folder, topics, given, address, committed)
        except BaseException as error:
            if before is not None:
                before.fail(error)
            raise
        planner.start(plans=not given.get("available_now", False))
        _planners[folder] = planner
    return _frame(spark, home, ledger, planner, given, address, committed)


def _opened(
    spark: Any,
    home: Path,
    folder: Path,
    topics: Topics,
    given: Mapping[str, Any],
    address: ClusterAddress,
    read_committed: bool,
) -> tuple[StreamLedger, StreamPlanner]:
    """Create or continue the ledger of a stream; return it with its planner."""
    ledger = StreamLedger(str(folder), _identity(address.cluster_id, topics))
    connections = ExitStack()
    try:
        progress = CheckpointProgress(home, ledger.name)
        _refuse_half_a_checkpoint(ledger, progress)
        if ledger.last is None:
            ledger.append(_beginning(address, topics, given, read_committed), [])
        watch = background().run(_watch(address, topics, read_committed))
        connections.callback(lambda: background().run(watch.close()))
        planner = StreamPlanner(
            ledger,
            progress,
            look=lambda: background().run(watch.look()),
            parts=_splitter(given),
            offsets_max=given.get("max_offsets_per_trigger"),
            commit=_committer(address, given.get("group_id"), connections),
            is_over=lambda: is_stopped(spark),
            on_end=connections.close,
        )
        if given.get("available_now", False):
            planner.plan_all()
    except BaseException:
        ledger.close()
        connections.close()
        raise
    return ledger, planner


def _folder_of(name: str | None, topics: Topics) -> str:
    """Return the folder name of a stream; ConfigError for an invalid name, or one that Spark or
    raylog would ignore.
    """
    if name is None:
        named = topics.pattern if isinstance(topics, re.Pattern) else "-".join(names_of(topics))
        return re.sub(r"[^A-Za-z0-9._-]", "_", named).lstrip("._-")[:100] or "stream"
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigError(
            f"name={name!r}: use letters, digits, '.', '_' and '-', at most 100, the first a letter or a digit"
        )
    return name


def _identity(cluster_id: str, topics: Topics) -> dict[str, Any]:
    """Return what must not change between two runs of a stream."""
    if isinstance(topics, re.Pattern):
        what: Any = {"pattern": topics.pattern}
    elif isinstance(topics, Mapping):
        what = topics
    else:
        what = names_of(topics)
    return {"topics": what, "cluster_id": cluster_id}


def _beginning(address: ClusterAddress, topics: Topics, given: Mapping[str, Any], read_committed: bool) -> StreamEntry:
    """Return entry 0: one snapshot of the current topics."""
    start = bound(
        "starting",
        offsets=given.get("starting_offsets", None if _names_a_moment(given) else "latest"),
        timestamp=given.get("starting_timestamp"),
        offsets_by_timestamp=given.get("starting_offsets_by_timestamp"),
        of_stream=True,
    )
    snapshot = take(
        address,
        topics,
        start,
        bound("ending", offsets="latest"),
        fail_on_data_loss=given.get("fail_on_data_loss", True),
        strategy=given.get("starting_offsets_by_timestamp_strategy", "error"),
        read_committed=read_committed,
    )
    ids = background().run(topic_ids(address, topics))
    return first(
        {each.topic: ids[each.topic] for each in snapshot.ranges}, {each.key: each.start for each in snapshot.ranges}
    )


def _names_a_moment(given: Mapping[str, Any]) -> bool:
    return "starting_timestamp" in given or "starting_offsets_by_timestamp" in given


async def _watch(address: ClusterAddress, topics: Topics, read_committed: bool) -> TopicWatch:
    return TopicWatch(address, topics, read_committed=read_committed)


def _refuse_another_checkpoint(home: Path, folder: Path) -> None:
    """Refuse a stream that a started query does not have: it belongs to another query."""
    if has_begun(home) and not folder.exists():
        there = sorted(path.parent.name for path in (home / FOLDER).glob(f"*/{STREAM_FILE}"))
        whose = f"reads {', '.join(there)}" if there else "has no stream of raylog's"
        raise ConfigError(f"{home} belongs to a query that {whose}: give {folder.name} a checkpoint of its own")


def _refuse_half_a_checkpoint(ledger: StreamLedger, progress: CheckpointProgress) -> None:
    """Refuse a ledger whose Spark checkpoint is gone: Spark would take the remaining files for the
    whole stream.
    """
    numbers = ledger.numbers()
    if numbers and numbers[0] > 0 and not progress.has_begun():
        raise ConfigError(
            f"{ledger.directory} starts at entry {numbers[0]}, but Spark's part of the checkpoint is gone: "
            "remove the whole checkpoint directory to start again"
        )


def _splitter(given: Mapping[str, Any]) -> Any:
    def parts(entry: StreamEntry) -> list[OffsetRange]:
        return split(
            entry.ranges,
            parts_min=given.get("min_partitions") if entry.ranges else None,
            records_max=given.get("max_records_per_partition", _TASK_OFFSETS),
        )

    return parts


def _committer(address: ClusterAddress, group_id: str | None, connections: ExitStack) -> Any:
    if group_id is None:
        return None
    admin = connections.enter_context(AdminClient(address))

    def commit(ends: Ends) -> None:
        admin.alter_group_offsets(group_id, ends)

    return commit


def _frame(
    spark: Any,
    home: Path,
    ledger: StreamLedger,
    planner: StreamPlanner,
    given: Mapping[str, Any],
    address: ClusterAddress,
    read_committed: bool,
) -> Any:
    names = columns_of(given)
    options = ReadOptions(
        arrow_names(names), fail_on_data_loss=given.get("fail_on_data_loss", True), read_committed=read_committed
    )
    losses = None if options.fail_on_data_loss else accumulated(spark)
    source = LedgerSource(
        spark,
        ledger,
        home,
        planner,
        records=lambda frame: records_frame(frame, StreamTasks(address, options, losses), names),
        tasks=given.get("min_partitions") or spark.sparkContext.defaultParallelism,
        task_offsets_max=given.get("max_records_per_partition"),
        offsets_max=given.get("max_offsets_per_trigger"),
    )
    return told_of(streaming_frame(spark, source, source.schema()), losses)
