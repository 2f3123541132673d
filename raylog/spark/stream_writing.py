"""Writes streaming DataFrames as records of topics, batch by batch, as ``raylog.spark.write`` does.

Exactly once, and in order: each batch is one transaction, whatever is killed (``batch_commits``).

At least once, and in order (``exactly_once=False``): Spark repeats a batch that it has not committed,
after a failure or a restart of the driver, with the same rows, and a fence (``write_fence``) keeps
tasks of an earlier batch from writing after a later one.

Either way the last record of a key is from the last batch that has the key, and the topic read as a
table is exact, under one condition, and one more if it is written at least once:

- A batch has no key twice, like the result of an aggregation, or ``order_by`` decides which row of
  a key comes last: then all rows of a key go through one task, in that order.
- A repeated batch has the same rows. The query must ensure this: no randomness, no clock.

A file in the checkpoint names its query's topic, so a query for another topic is refused.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raylog.client.links.address import ClusterAddress
from raylog.errors import ConfigError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S
from raylog.ranges.addresses import address_of
from raylog.ranges.given_values import flag
from raylog.ranges.ledger import made_folder
from raylog.ranges.sending import checked_config, checked_target, checked_transactions
from raylog.spark.batch_commits import BatchCommits, run_without_writing
from raylog.spark.checkpoint import has_begun
from raylog.spark.installed import require_frame
from raylog.spark.streaming import FOLDER
from raylog.spark.write_fence import WriteFence, WriteTurn
from raylog.spark.write_tasks import WriteTasks
from raylog.spark.writing import WriteSummary, check_schema, written_at_least_once

logger = logging.getLogger("raylog.spark")

TRIGGERS = ("processingTime", "once", "availableNow")
OUTPUT_MODES = ("append", "update", "complete")
CLAIM_FILE = ".write.json"
FENCE_FILE = ".write.fence"
_ARGUMENTS = (
    "checkpoint", "cluster", "exactly_once", "order_by", "output_mode", "query_name", "timeout_s", "trigger",
)  # fmt: skip
_PATIENCE_S = 300.0
"""More than ``delivery.timeout.ms``: the longest that a task without a driver can go on trying."""


@dataclass(frozen=True, slots=True)
class StreamWriteSummary:
    """What a query has written since it was started. ``records``: of the batches that are done.

    ``reruns``: attempts of tasks before the successful ones. ``skipped_batches``: batches that an
    earlier run had committed when it ended, before Spark noted them; they are not written again.
    ``repeated_batches``: batches that an earlier run had begun with ``exactly_once=False``. The
    records of these may be duplicated, and with ``exactly_once=False`` those of reruns.
    """

    records: int = 0
    batches: int = 0
    reruns: int = 0
    repeated_batches: int = 0
    skipped_batches: int = 0


_batches: dict[str, tuple[Any, WriteBatch]] = {}  # the query too, by the id of its run
_batches_lock = threading.Lock()


def write_stream(
    df: Any,
    topic: str | None = None,
    *,
    cluster: Any = None,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    output_mode: str = "append",
    query_name: str | None = None,
    order_by: str | Sequence[str] | None = None,
    exactly_once: bool = True,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **producer_config: Any,
) -> Any:
    """Start a query that writes the rows of a streaming DataFrame, each batch in one transaction;
    Spark's StreamingQuery.

    Readers with ``isolation_level="read_committed"`` get every row once. With ``exactly_once=False``
    rows are written at least once, and readers get them at once.

    Columns, ``cluster``, ``timeout_s`` and ``producer_config`` as in ``raylog.spark.write``.
    ``checkpoint``: the query's, a directory of its own on a file system that driver and executors
    share; the one that ``read_stream`` was given, if rows come from it. ``trigger``: what Spark's
    own ``trigger`` takes, such as ``{"processingTime": "1 second"}``. ``order_by``: columns that
    order the rows of a key within a batch; columns that a record does not have are not written.
    Without it the last row of a key that is in several tasks of a batch may be any of them.

    ``write_stream_summary(query)`` returns how much was written, and repeated. Before anything
    starts: ConfigError for unsuitable columns, unknown options, and the checkpoint of a query for
    another topic or sink; UnknownTopicOrPartitionError for a missing topic.
    """
    require_frame(df, "write_stream")
    if not df.isStreaming:
        raise ConfigError("write_stream takes a streaming DataFrame: use raylog.spark.write for this one")
    checked_config(producer_config, *_ARGUMENTS)
    exactly_once = flag("exactly_once", exactly_once)
    checked_transactions(producer_config, exactly_once=exactly_once)
    writer = _writer(df, trigger, output_mode, query_name)
    order = _order_of(df, order_by)
    check_schema(_without(df, order), topic)
    address = address_of(cluster, timeout_s)
    checked_target(address, topic)
    home = made_folder("checkpoint", checkpoint)
    _claim(home, topic, address)
    _close_ended()
    batches = WriteBatch(WriteTasks(address, topic, producer_config), home, order, exactly_once=exactly_once)
    with _told("Spark did not start this query"):
        query = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(batches).start()
    with _batches_lock:
        _batches[str(query.runId)] = query, batches
    return query


def write_stream_summary(query: Any) -> StreamWriteSummary:
    """Return what a query of ``write_stream`` has written so far, also after its end. ConfigError
    for another query.
    """
    _close_ended()
    with _batches_lock:
        found = _batches.get(str(getattr(query, "runId", None)))
    if found is None:
        named = getattr(query, "name", None) or getattr(query, "id", None) or repr(query)
        raise ConfigError(f"query {named} was not started by write_stream in this process")
    return found[1].summary


def _close_ended() -> None:
    """Let go of the connections of queries that have ended. Those of others go when they are idle."""
    with _batches_lock:
        known = list(_batches.values())
    for query, batches in known:
        if batches.is_open and not _is_active(query):
            batches.close()


def _is_active(query: Any) -> bool:
    from py4j.protocol import Py4JError

    try:
        return bool(query.isActive)
    except (Py4JError, OSError):  # its JVM has ended
        return False


class WriteBatch:
    """What ``foreachBatch`` calls in the driver, one call at a time."""

    def __init__(self, tasks: WriteTasks, checkpoint: Path, order: Sequence[str], *, exactly_once: bool) -> None:
        self.summary = StreamWriteSummary()
        self._tasks = tasks
        self._fence_path = checkpoint / FOLDER / FENCE_FILE
        self._fence = WriteFence(self._fence_path, uuid.uuid4().hex, patience_s=_PATIENCE_S)
        self._commits = BatchCommits(checkpoint, tasks) if exactly_once else None
        self._order = tuple(order)

    def __call__(self, df: Any, number: int) -> None:
        if self._commits is None:
            turn = self._turn(number)
            done = written_at_least_once(_ordered(df, self._order), replace(self._tasks, turn=turn))
        elif self._commits.has(number):
            run_without_writing(df)
            self.summary = replace(self.summary, skipped_batches=self.summary.skipped_batches + 1)
            logger.info(
                "batch %d of the stream to %s was committed before: it is not written again",
                number, self._tasks.target,
            )  # fmt: skip
            return
        else:
            self._end_fence(number)
            done = self._commits.write(_ordered(df, self._order), number)
        self._count(done)
        logger.info("batch %d of the stream to %s is written: %d records", number, self._tasks.target, done.records)

    def close(self) -> None:
        """Let go of the connections, after the query's end."""
        if self._commits is not None:
            self._commits.close()

    @property
    def is_open(self) -> bool:
        """Whether there are connections to let go of."""
        return self._commits is not None and self._commits.is_open

    def _turn(self, number: int) -> WriteTurn:
        turn, is_repeated = self._fence.begin(number)
        if is_repeated:
            self.summary = replace(self.summary, repeated_batches=self.summary.repeated_batches + 1)
            logger.warning(
                "batch %d of the stream to %s had begun before and is repeated: its earlier records are duplicated",
                number, self._tasks.target,
            )  # fmt: skip
        return turn

    def _end_fence(self, number: int) -> None:
        """Shut out the tasks of a run before that wrote at least once."""
        if self._fence_path.exists():
            self._turn(number)
            self._fence_path.unlink()

    def _count(self, done: WriteSummary) -> None:
        self.summary = replace(
            self.summary,
            records=self.summary.records + done.records,
            batches=self.summary.batches + 1,
            reruns=self.summary.reruns + done.reruns,
        )


def _ordered(df: Any, order: Sequence[str]) -> Any:
    """Return the rows with each key in one task, in this order; rows without a key are spread by
    their values.
    """
    if not order:
        return df
    from pyspark.sql.functions import when, xxhash64

    place = when(df["key"].isNotNull(), xxhash64("key")).otherwise(xxhash64("value"))
    tasks = df.sparkSession.sparkContext.defaultParallelism
    return _without(df.repartition(tasks, place).sortWithinPartitions(*order), order)


def _without(df: Any, order: Sequence[str]) -> Any:
    """Drop the columns that only order the rows."""
    from raylog.ranges.sending import ROW_COLUMNS

    return df.drop(*(name for name in order if name not in ROW_COLUMNS))


# ---------------------------------------------------------------------- before it starts


def _writer(df: Any, trigger: Mapping[str, Any] | None, output_mode: str, query_name: str | None) -> Any:
    """Return Spark's writer of the stream, without a sink. ConfigError for invalid options."""
    if output_mode not in OUTPUT_MODES:
        raise ConfigError(f"output_mode={output_mode!r}: one of {', '.join(OUTPUT_MODES)}")
    writer = df.writeStream.outputMode(output_mode)
    if query_name is not None:
        if not isinstance(query_name, str) or not query_name.strip():
            raise ConfigError(f"query_name={query_name!r}: give the query a name, or leave it out")
        writer = writer.queryName(query_name)
    if trigger is None:
        return writer
    if not isinstance(trigger, Mapping) or len(trigger) != 1:
        raise ConfigError(f'trigger={trigger!r}: give one of Spark\'s, as {{"processingTime": "1 second"}}')
    ((name, value),) = trigger.items()
    if name not in TRIGGERS:
        raise ConfigError(
            f"trigger {name!r} does not work for a stream that is written in batches: choose from {', '.join(TRIGGERS)}"
        )
    if value is None:
        raise ConfigError(f'trigger={trigger!r}: give one of Spark\'s, as {{"processingTime": "1 second"}}')
    with _told(f"trigger={trigger!r}"):
        return writer.trigger(**trigger)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn Spark's refusals of a query before its start into ConfigErrors with this beginning."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"{what}: {lines[0].rstrip(';') if lines else type(error).__name__}") from error


def _order_of(df: Any, order_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that order the rows of a key. ConfigError for unknown ones."""
    if order_by is None:
        return ()
    if not isinstance(order_by, str | Sequence):
        raise ConfigError(f"order_by={order_by!r}: give a column, or a list of columns")
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    if not order:
        return ()
    if missing := [name for name in order if name not in df.columns]:
        raise ConfigError(f"order_by: there is no column {missing[0]!r}, only {', '.join(df.columns)}")
    if "key" not in df.columns:
        raise ConfigError("order_by orders the rows of a key, and there is no column named key")
    return order


def _claim(home: Path, topic: str | None, address: ClusterAddress) -> None:
    """Mark the checkpoint as this query's, or refuse it."""
    path = home / FOLDER / CLAIM_FILE
    wanted = {"topic": topic, "cluster_id": address.cluster_id}
    if has_begun(home):
        if not path.exists():
            raise ConfigError(f"{home} belongs to a query with another sink: give this one a checkpoint of its own")
        found = json.loads(path.read_text())
        if found != wanted:
            what = ", ".join(f"{name}={found.get(name)!r}" for name in wanted if found.get(name) != wanted[name])
            raise ConfigError(f"{home} belongs to a query that writes to {what}: give this one a checkpoint of its own")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{CLAIM_FILE}.unfinished")
    with open(unfinished, "w") as file:
        json.dump(wanted, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)
