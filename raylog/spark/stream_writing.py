"""Writes streaming DataFrames as records of topics, batch by batch, as ``raylog.spark.write`` does.

At least once, and in order: Spark repeats a batch that it has not committed, after a failure or a
restart of the driver, with the same rows, and a fence (``write_fence``) keeps tasks of an earlier
batch from writing after a later one. So the last record of a key is always from the last batch that
has the key, and the topic read as a table is exact, under two conditions:

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

    ``reruns``: attempts of tasks before the successful ones; ``repeated_batches``: batches that an
    earlier run had begun. The records of both may be duplicated.
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
    """Start a query that writes the rows of a streaming DataFrame, at least once; Spark's
    StreamingQuery.

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
    writer = _writer(df, trigger, output_mode, query_name)
    order = _order_of(df, order_by)
    check_schema(_without(df, order), topic)
    address = address_of(cluster, timeout_s)
    checked_target(address, topic)
    home = made_folder("checkpoint", checkpoint)
    _claim(home, topic, address)
    batches = WriteBatch(WriteTasks(address, topic, producer_config), home / FOLDER / FENCE_FILE, order)
    with _told("Spark did not start this query"):
        query = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(batches).start()
    with _batches_lock:
        _batches[str(query.runId)] = batches
    return query


def write_stream_summary(query: Any) -> StreamWriteSummary:
    """Return what a query of ``write_stream`` has written so far, also after its end. ConfigError
    for another query.
    """
    with _batches_lock:
        batches = _batches.get(str(getattr(query, "runId", None)))
    if batches is None:
        named = getattr(query, "name", None) or getattr(query, "id", None) or repr(query)
        raise ConfigError(f"query {named} was not started by write_stream in this process")
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
                "batch %d of the stream to %s had begun before and is repeated: its earlier records are duplicated",
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
