"""Writes DataFrames as records of topics, with the column names of Spark's kafka sink.

Each task sends its Arrow batches with a producer of raylog's own (``raylog.ranges.sending``). At
least once: a task that fails after it has sent something is run again by Spark and sends it again.
``WriteSummary.reruns`` counts this. In a topic that is read as a table, duplicated rows with keys
make no difference if one write has no key twice.
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
    """``records`` of the successful attempts; ``reruns``: how many earlier attempts there were,
    whose records may be duplicates.
    """

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

    Columns: ``value``; and optionally ``key``, ``headers``, ``partition``, ``timestamp``, and
    ``topic`` if none is named. ``cluster`` and ``timeout_s`` as in ``read``. ``producer_config``:
    Kafka's options of a producer (``compression_type="lz4"``). ConfigError for unsuitable columns,
    UnknownTopicOrPartitionError for a missing topic, both before anything is written.
    """
    require_frame(df, "write")
    if df.isStreaming:
        raise ConfigError("write takes a DataFrame of a batch: use raylog.spark.write_stream for this one")
    checked_config(producer_config, "cluster", "timeout_s")
    check_schema(df, topic)
    address = address_of(cluster, timeout_s)
    checked_target(address, topic)
    return written(df, WriteTasks(address, topic, producer_config))


def check_schema(df: Any, topic: str | None) -> None:
    """Raise ConfigError for a DataFrame whose rows can't be records."""
    from pyspark.sql.pandas.types import to_arrow_schema

    checked_columns(to_arrow_schema(df.schema), topic)


def written(df: Any, tasks: WriteTasks) -> WriteSummary:
    """Run the tasks of a write on a DataFrame of one batch, and return a summary."""
    rows = df.mapInArrow(tasks, RESULT).collect()
    summary = WriteSummary(sum(row.records for row in rows), len(rows), sum(row.attempt for row in rows))
    if summary.reruns:
        logger.warning(
            "%d tasks of the write to %s were run again: the records that they had sent are duplicated",
            summary.reruns, tasks.topic or "several topics",
        )  # fmt: skip
    return summary
