"""DataFrames as records of topics, with the column names of Spark's kafka sink.

Each task sends its Arrow batches with a producer of raylog's own (``raylog.ranges.sending``). At least once: a task that fails after it
has sent something is run again by Spark and sends it again. ``WriteSummary.reruns`` says how often that happened. In a topic that is
read as a table, keyed rows that were sent twice make no difference, if no key is twice in one write.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from raylog.errors import ConfigError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S
from raylog.ranges.addresses import address_of
from raylog.ranges.sending import checked_columns, checked_config, checked_target
from raylog.spark.installed import require_frame
from raylog.spark.write_tasks import RESULT, WriteTasks

logger = logging.getLogger("raylog.spark")


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """``records`` of the tasks that counted; ``reruns``: how many attempts came before those, whose records may be there besides."""

    records: int
    tasks: int
    reruns: int


def write(
    df: Any,
    topic: str | None = None,
    *,
    cluster: Any = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **producer_config: Any,
) -> WriteSummary:
    """Write the rows of a DataFrame, at least once, and wait until they are acknowledged.

    Columns: ``value``; and, if there are such, ``key``, ``headers``, ``partition``, ``timestamp``, and ``topic`` where none is named.
    ``cluster`` and ``timeout_s`` as in ``read``. ``producer_config``: Kafka's options of a producer (``compression_type="lz4"``).
    ConfigError for columns that do not fit, UnknownTopicOrPartitionError for a topic that is not there, both before anything is
    written.
    """
    require_frame(df, "write")
    if df.isStreaming:
        raise ConfigError("write takes a DataFrame of a batch: raylog.spark.write_stream writes this one")
    checked_config(producer_config, "cluster", "timeout_s")
    check_schema(df, topic)
    address = address_of(cluster, timeout_s)
    checked_target(address, topic)
    return written(df, WriteTasks(address, topic, producer_config))


def check_schema(df: Any, topic: str | None) -> None:
    """ConfigError for a DataFrame whose rows can't be records."""
    from pyspark.sql.pandas.types import to_arrow_schema

    checked_columns(to_arrow_schema(df.schema), topic)


def written(df: Any, tasks: WriteTasks) -> WriteSummary:
    """Run the tasks of a write on a DataFrame of one batch, and say what they did."""
    rows = df.mapInArrow(tasks, RESULT).collect()
    summary = WriteSummary(sum(row.records for row in rows), len(rows), sum(row.attempt for row in rows))
    if summary.reruns:
        logger.warning(
            "%d tasks of the write to %s were run again: records that they had sent are there twice",
            summary.reruns, tasks.topic or "several topics",
        )  # fmt: skip
    return summary
