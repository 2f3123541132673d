"""Topics as batch DataFrames, with the columns and the option names of Spark's kafka source.

The driver takes one snapshot of the offsets (``raylog.ranges.snapshot``) and splits it into tasks by
records and bytes; each task fetches its range with raylog's own client and hands Arrow batches to
the JVM (``mapInArrow``), so no record becomes a Python row or a pickle. A task prefers the hosts of
in-sync replicas and reads from the local one. The snapshot is taken when ``read`` is called, so
every action on the DataFrame reads the same offsets.

``mapInArrow`` is opaque to Spark's optimizer, so a later ``select`` does not avoid shipping values;
the option ``columns`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raylog.errors import ConfigError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S
from raylog.ranges.addresses import address_of
from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions
from raylog.ranges.snapshot import TopicsSnapshot, take
from raylog.ranges.splitting import split
from raylog.ranges.topics import Topics, checked
from raylog.spark.installed import require_session
from raylog.spark.loss_reports import accumulated, told_of
from raylog.spark.options import batch_options
from raylog.spark.range_tasks import ARROW_NAMES, RangeTasks, encoded
from raylog.spark.spark_private import tasks_frame

TASK_BYTES_MIN, TASK_BYTES_MAX = 32 << 20, 512 << 20
TASKS_PER_CORE = 2
"""As with Spark's files a read has some tasks for each core, within bounds. A task costs its JVM
and its Python worker some hundredths of a second, and what it holds does not grow with its range:
large ones are cheaper, small ones are only good to share the work.
"""

_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
_TRAVELS_AS = {"binary": "string"}
KAFKA_COLUMNS = tuple(name for name in _TYPES if name != "headers")


def read(
    spark: Any, topics: Topics, *, cluster: Any = None, timeout_s: float = CONNECT_TIMEOUT_S, **options: Any
) -> Any:
    """Return the records of topics as a DataFrame: ``key``, ``value``, ``topic``, ``partition``,
    ``offset``, ``timestamp``, ``timestampType``.

    ``topics``: a name, several, a compiled pattern or ``{topic: [partitions]}``. ``cluster``: what
    ``raylog.init()`` or ``connect()`` returned; None is ``raylog.connect()``, with ``timeout_s``
    seconds. Options, also by their names in Spark's kafka source (``startingOffsets``):

    - ``starting_offsets`` ("earliest"), ``ending_offsets`` ("latest"): these words, ``{topic:
      {partition: offset}}`` or Spark's JSON; ``starting_timestamp``, ``ending_timestamp``: a
      datetime or milliseconds for all partitions; ``starting_offsets_by_timestamp``,
      ``ending_offsets_by_timestamp``: one for each; ``starting_offsets_by_timestamp_strategy``:
      what happens for a start after the last record, "error" or "latest";
    - ``min_partitions``: the minimum number of tasks; ``max_records_per_partition``: the most
      offsets in a task; without either there are two tasks for each core, of 32 MB to 512 MB of the
      log;
    - ``columns``: only these, in this order; ``include_headers`` adds ``headers``;
    - ``fail_on_data_loss`` (true): whether deleted offsets, or offsets beyond the end, raise
      OffsetOutOfRangeError or are a warning in the driver and in ``raylog.spark.losses(df)``;
    - ``isolation_level``: "read_committed" leaves out records of aborted and open transactions.
    """
    require_session(spark)
    topics = checked(topics)
    given = batch_options(options)
    names = columns_of(given)
    committed = given.get("isolation_level") == "read_committed"
    lossless = given.get("fail_on_data_loss", True)
    address = address_of(cluster, timeout_s)
    snapshot = take(
        address,
        topics,
        *(
            bound(
                kind,
                offsets=given.get(f"{kind}_offsets"),
                timestamp=given.get(f"{kind}_timestamp"),
                offsets_by_timestamp=given.get(f"{kind}_offsets_by_timestamp"),
            )
            for kind in ("starting", "ending")
        ),
        fail_on_data_loss=lossless,
        strategy=given.get("starting_offsets_by_timestamp_strategy", "error"),
        read_committed=committed,
    )
    parts = split(
        snapshot.ranges,
        parts_min=given.get("min_partitions"),
        records_max=given.get("max_records_per_partition"),
        bytes_max=task_bytes(snapshot, spark.sparkContext.defaultParallelism),
        bytes_per_offset=snapshot.bytes_per_offset,
    )
    losses = None if lossless else accumulated(spark, snapshot.losses)
    read_options = ReadOptions(arrow_names(names), fail_on_data_loss=lossless, read_committed=committed)
    frame = tasks_frame(spark, [encoded(part) for part in parts], [part.hosts for part in parts])
    return told_of(records_frame(frame, RangeTasks(address, read_options, losses), names), losses)


def task_bytes(snapshot: TopicsSnapshot, cores: int) -> int:
    """Return the most bytes of the log that a task should read."""
    total = sum(len(each) * snapshot.bytes_per_offset.get(each.key, 0) for each in snapshot.ranges)
    return min(TASK_BYTES_MAX, max(TASK_BYTES_MIN, int(total / (TASKS_PER_CORE * cores)) + 1))


def arrow_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of these columns in ``raylog.records``."""
    return tuple(ARROW_NAMES.get(name, name) for name in names)


def records_frame(frame: Any, tasks: Any, names: Sequence[str]) -> Any:
    """Return these columns of the records that tasks read for the rows of ``frame``.

    Bytes arrive as strings (``range_tasks``); Spark's cast turns them back without changing a byte.
    """
    schema = ", ".join(f"{name} {_TRAVELS_AS.get(_TYPES[name], _TYPES[name])}" for name in names)
    records = frame.mapInArrow(tasks, schema)
    if _TRAVELS_AS.keys().isdisjoint(_TYPES[name] for name in names):
        return records
    return records.selectExpr(
        *(f"CAST({name} AS {_TYPES[name]}) AS {name}" if _TYPES[name] in _TRAVELS_AS else f"`{name}`" for name in names)
    )


def columns_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that the options select. ConfigError for an unknown one."""
    if (columns := given.get("columns")) is not None:
        chosen = _checked(columns)
        return (*chosen, "headers") if given.get("include_headers") and "headers" not in chosen else chosen
    return tuple(_TYPES) if given.get("include_headers") else KAFKA_COLUMNS


def _checked(columns: Any) -> tuple[str, ...]:
    if isinstance(columns, str) or not isinstance(columns, Iterable) or not (columns := list(columns)):
        raise ConfigError(f"columns={columns!r}: give a list of at least one of {', '.join(_TYPES)}")
    if wrong := [name for name in columns if name not in _TYPES]:
        raise ConfigError(f"unknown column {wrong[0]!r}: choose from {', '.join(_TYPES)}")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"columns={list(columns)!r} names one twice")
    return tuple(columns)
