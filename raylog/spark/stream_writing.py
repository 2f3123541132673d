"""Streaming DataFrames as records of topics: a query of Structured Streaming whose batches are written as ``raylog.spark.write`` does.

At least once, and in turn: Spark repeats a batch that it has not committed, after a failure or a restart of the driver, with the same
rows, and a fence (``write_fence``) keeps whatever still writes for an earlier batch from writing after a later one. So the last record of
a key is always of the last batch that has the key, and the topic read as a table is exact, under two conditions:

- a batch has no key twice, as the result of an aggregation has none, or ``order_by`` says which row of a key comes last: then all rows of
  a key go through one task, in that order;
- the rows of a repeated batch are the same, which is the query's part: no randomness, no clock.

Whose the checkpoint is stands in a file of its own below it, so that a query for another topic is refused.
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
from raylog.ranges.ledger import made_folder
from raylog.ranges.sending import checked_config, checked_target
from raylog.spark.checkpoint import has_begun
from raylog.spark.installed import require_frame
from raylog.spark.streaming import FOLDER
from raylog.spark.write_fence import WriteFence
from raylog.spark.write_tasks import WriteTasks
from raylog.spark.writing import check_schema, written

logger = logging.getLogger("raylog.spark")

TRIGGERS = ("processingTime", "once", "availableNow")
OUTPUT_MODES = ("append", "update", "complete")
CLAIM_FILE = ".write.json"
FENCE_FILE = ".write.fence"
_ARGUMENTS = ("checkpoint", "cluster", "order_by", "output_mode", "query_name", "timeout_s", "trigger")
_PATIENCE_S = 300.0
"""More than ``delivery.timeout.ms``: the longest that a task without a driver can go on trying."""


@dataclass(frozen=True, slots=True)
class StreamWriteSummary:
    """What a query has written since it was started. ``records``: of the batches that are done.

    ``reruns``: attempts of tasks that came before those that counted; ``repeated_batches``: batches that an earlier run had begun. The
    records of both may be there twice.
    """

    records: int = 0
    batches: int = 0
    reruns: int = 0
    repeated_batches: int = 0


_batches: dict[str, WriteBatch] = {}  # by the id of the query's run
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
    timeout_s: float = CONNECT_TIMEOUT_S,
    **producer_config: Any,
) -> Any:
    """Start a query that writes the rows of a streaming DataFrame, at least once; Spark's StreamingQuery.

    Columns, ``cluster``, ``timeout_s`` and ``producer_config`` as in ``raylog.spark.write``. ``checkpoint``: the query's, a directory of
    its own on a file system that driver and executors share; the one that ``read_stream`` was given, if rows come from it. ``trigger``:
    what Spark's own ``trigger`` takes, as ``{"processingTime": "1 second"}``. ``order_by``: columns by which the rows of a key are written
    within a batch; those that a record has no place for are not written. Without it rows are written as their tasks have them, and a key
    that is in several tasks of a batch has any of its rows last.

    ``write_stream_summary(query)`` tells how much was written, and how often anew. Before anything starts: ConfigError for columns that do
    not fit, options that there are not, and the checkpoint of a query for another topic or another sink; UnknownTopicOrPartitionError for a
    topic that is not there.
    """
    require_frame(df, "write_stream")
    if not df.isStreaming:
        raise ConfigError("write_stream takes a streaming DataFrame: raylog.spark.write writes this one")
    checked_config(producer_config, *_ARGUMENTS)
    writer = _writer(df, trigger, output_mode, query_name)
    order = _order_of(df, order_by)
    check_schema(_without(df, order), topic)
    address = address_of(cluster, timeout_s)
    checked_target(address, topic)
    home = made_folder("checkpoint", checkpoint)
    _claim(home, topic, address)
    batches = WriteBatch(WriteTasks(address, topic, producer_config), home / FOLDER / FENCE_FILE, order)
    with _told("Spark does not start this query"):
        query = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(batches).start()
    with _batches_lock:
        _batches[str(query.runId)] = batches
    return query


def write_stream_summary(query: Any) -> StreamWriteSummary:
    """What a query of ``write_stream`` has written so far, also after its end. ConfigError for another query."""
    with _batches_lock:
        batches = _batches.get(str(getattr(query, "runId", None)))
    if batches is None:
        named = getattr(query, "name", None) or getattr(query, "id", None) or repr(query)
        raise ConfigError(f"query {named} was not started by write_stream of this process")
    return batches.summary


class WriteBatch:
    """What ``foreachBatch`` calls in the driver, one call at a time."""

    def __init__(self, tasks: WriteTasks, fence: Path, order: Sequence[str]) -> None:
        self.summary = StreamWriteSummary()
        self._tasks = tasks
        self._topics = tasks.topic or "several topics"
        self._fence = WriteFence(fence, uuid.uuid4().hex, patience_s=_PATIENCE_S)
        self._order = tuple(order)

    def __call__(self, df: Any, number: int) -> None:
        turn, is_repeated = self._fence.begin(number)
        if is_repeated:
            self.summary = replace(self.summary, repeated_batches=self.summary.repeated_batches + 1)
            logger.warning(
                "batch %d of the stream to %s was begun before and is repeated: records that it had written are there twice",
                number, self._topics,
            )  # fmt: skip
        done = written(_ordered(df, self._order), replace(self._tasks, turn=turn))
        self.summary = replace(
            self.summary,
            records=self.summary.records + done.records,
            batches=self.summary.batches + 1,
            reruns=self.summary.reruns + done.reruns,
        )
        logger.info("batch %d of the stream to %s is written: %d records", number, self._topics, done.records)


def _ordered(df: Any, order: Sequence[str]) -> Any:
    """The rows with each key in one task, in this order; rows without a key are spread by their values."""
    if not order:
        return df
    from pyspark.sql.functions import when, xxhash64

    place = when(df["key"].isNotNull(), xxhash64("key")).otherwise(xxhash64("value"))
    tasks = df.sparkSession.sparkContext.defaultParallelism
    return _without(df.repartition(tasks, place).sortWithinPartitions(*order), order)


def _without(df: Any, order: Sequence[str]) -> Any:
    """Without the columns that only order the rows."""
    from raylog.ranges.sending import ROW_COLUMNS

    return df.drop(*(name for name in order if name not in ROW_COLUMNS))


# ---------------------------------------------------------------------- before it starts


def _writer(df: Any, trigger: Mapping[str, Any] | None, output_mode: str, query_name: str | None) -> Any:
    """Spark's writer of the stream, which has no sink yet. ConfigError for what can't be."""
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
            f"no trigger {name!r} for a stream that is written in batches: there are {', '.join(TRIGGERS)}"
        )
    if value is None:
        raise ConfigError(f'trigger={trigger!r}: give one of Spark\'s, as {{"processingTime": "1 second"}}')
    with _told(f"trigger={trigger!r}"):
        return writer.trigger(**trigger)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Spark's own refusals of a query that was not started yet are ConfigErrors that begin so."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"{what}: {lines[0].rstrip(';') if lines else type(error).__name__}") from error


def _order_of(df: Any, order_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that order the rows of a key. ConfigError for what is none."""
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
        raise ConfigError("order_by orders the rows of a key, and there is no column key")
    return order


def _claim(home: Path, topic: str | None, address: ClusterAddress) -> None:
    """Say in the checkpoint whose it is, or refuse it."""
    path = home / FOLDER / CLAIM_FILE
    wanted = {"topic": topic, "cluster_id": address.cluster_id}
    if has_begun(home):
        if not path.exists():
            raise ConfigError(
                f"{home} belongs to a query with another sink, which has had the rows so far: give this one a checkpoint of its own"
            )
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
