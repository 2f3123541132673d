"""Reads a topic as a table: the latest value of each key, without keys whose latest value is null.

This is a snapshot of what Kafka Streams calls a KTable, at one set of end offsets. Records without
a key are left out. The latest value is that of the highest offset in the partition. A key that is
in several partitions, as after partitions were added, has the value with the latest timestamp among
these.
"""

from __future__ import annotations

from typing import Any

from raylog.errors import ConfigError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S
from raylog.ranges.topics import checked_name
from raylog.spark.loss_reports import told_as
from raylog.spark.options import batch_options
from raylog.spark.reading import read

_COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_OURS = ("columns", "include_headers", "starting_offsets", "starting_offsets_by_timestamp", "starting_timestamp")


def table(spark: Any, topic: str, *, cluster: Any = None, timeout_s: float = CONNECT_TIMEOUT_S, **options: Any) -> Any:
    """Return the rows of a topic as a DataFrame: ``key``, ``value``, and the value's ``partition``,
    ``offset``, ``timestamp``.

    Options as for ``read``, except for the beginning, which is the log's, and the columns.
    """
    checked_name(topic)
    given = batch_options(options)
    if refused := [name for name in given if name in _OURS]:
        raise ConfigError(
            f"{refused[0]} is not an option of a table: a table is read from the beginning of the log, and its columns are fixed"
        )
    from pyspark.sql import functions as f

    source = read(spark, topic, cluster=cluster, timeout_s=timeout_s, columns=_COLUMNS, **given)
    in_partition = (
        source.where("key is not null")
        .groupBy("key", "partition")
        .agg(f.max(f.struct("offset", "timestamp", "value")).alias("last"))
    )
    latest = in_partition.groupBy("key").agg(f.max_by(f.struct("partition", "last"), "last.timestamp").alias("row"))
    rows = latest.where("row.last.value is not null").selectExpr(
        "key",
        "row.last.value as value",
        "row.partition as partition",
        "row.last.offset as offset",
        "row.last.timestamp as timestamp",
    )
    return told_as(rows, source)
