"""Topics as Ray Datasets: one snapshot of offsets on the driver, ranges as read tasks, Arrow blocks.

A task's row count is known before it runs where the topic is not compacted, so that Ray plans with
it and ``Dataset.count`` reads nothing; a compacted topic has fewer records than offsets, and there
nobody knows. Columns that a Dataset does not use are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import ray
import ray.data
from ray.data.datasource import Datasource, ReadTask

from raylog.client.links.address import ClusterAddress
from raylog.data import ray_versions
from raylog.data.loss_reports import LossListener, listener
from raylog.data.snapshots import options_of, snapshot_between
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S, check_default_ray
from raylog.ranges.addresses import address_of
from raylog.ranges.given_values import COUNT_MAX, OFFSET_MAX, count, seconds, unknown
from raylog.ranges.places import Moment, Offsets, Strategy
from raylog.ranges.reading import ReadOptions, read_range, report_loss
from raylog.ranges.snapshot import TopicsSnapshot
from raylog.ranges.splitting import OffsetRange, split
from raylog.ranges.topics import Topics, checked
from raylog.records.arrow_columns import schema_of

TASK_BYTES = 128 << 20
BLOCK_BYTES = 64 << 20
_TASKS_PER_CPU = 4
_CHEAPEST = "partition"


def read_topic(
    topics: Topics,
    *,
    cluster: Any = None,
    starting_offsets: Offsets | None = None,
    ending_offsets: Offsets | None = None,
    starting_timestamp: Moment | None = None,
    ending_timestamp: Moment | None = None,
    starting_offsets_by_timestamp: Any | None = None,
    ending_offsets_by_timestamp: Any | None = None,
    starting_offsets_by_timestamp_strategy: Strategy = "error",
    columns: Sequence[str] | None = None,
    min_tasks: int | None = None,
    max_records_per_task: int | None = None,
    fail_on_data_loss: bool = True,
    read_committed: bool = False,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **read_options: Any,
) -> Any:
    """The records of topics as a ``ray.data.Dataset``: ``key``, ``value``, ``topic``,
    ``partition``, ``offset``, ``timestamp`` (ms, UTC), ``timestamp_type``, ``headers``; or
    ``columns`` of these.

    Topics, beginning and end as for ``raylog.spark.read``, fixed when this is called.
    ``min_tasks``: at least so many tasks; ``max_records_per_task``: none with more offsets.
    ``fail_on_data_loss``: whether offsets that are deleted, or beyond the end, are an
    OffsetOutOfRangeError, or a warning on the driver. ``read_committed`` leaves out what
    transactions have aborted or not decided. ``read_options`` are those of
    ``ray.data.read_datasource``, such as ``num_cpus`` and ``concurrency``. ``timeout_s``: seconds
    in which the cluster (if None is given) and the Ray that Ray Data would connect to (if this
    process has none) have to answer.

    RayError for a Ray that doesn't answer; ConfigError and UnknownTopicOrPartitionError for what
    can't be, before anything is read.
    """
    topics = checked(topics)
    _check_names(read_options)
    timeout_s = seconds("timeout_s", timeout_s)
    min_tasks, max_records_per_task = (
        None if value is None else count(name, value, maximum)
        for name, value, maximum in (
            ("min_tasks", min_tasks, COUNT_MAX),
            ("max_records_per_task", max_records_per_task, OFFSET_MAX),
        )
    )
    options = options_of(columns, fail_on_data_loss, read_committed)
    address = address_of(cluster, timeout_s)
    check_default_ray(timeout_s)
    snapshot = snapshot_between(
        address,
        topics,
        starting=(starting_offsets, starting_timestamp, starting_offsets_by_timestamp),
        ending=(ending_offsets, ending_timestamp, ending_offsets_by_timestamp),
        strategy=starting_offsets_by_timestamp_strategy,
        options=options,
    )
    source = TopicSource(address, snapshot, options, tasks_min=min_tasks, records_max=max_records_per_task)
    if (blocks := source.blocks()) is not None:
        read_options.setdefault("override_num_blocks", blocks)
    return ray.data.read_datasource(source, **read_options)


def _check_names(read_options: Iterable[str]) -> None:
    """Ray Data passes options that it does not know on to whoever reads, and nobody would look at
    them.
    """
    own, rays = (
        [name for name, each in signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
        for function in (read_topic, ray.data.read_datasource)
    )
    for name in read_options:
        if name not in rays:
            raise unknown(name, (*own, *rays))


class TopicSource(Datasource):
    """The ``Datasource`` behind ``read_topic`` for a snapshot that was taken."""

    def __init__(
        self,
        address: ClusterAddress,
        snapshot: TopicsSnapshot,
        options: ReadOptions,
        *,
        tasks_min: int | None = None,
        records_max: int | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._projection_map: dict[str, str] | None = None  # Ray Data's: what it wants of the columns
        self._address = address
        self._snapshot = snapshot
        self._options = options
        self._tasks_min = tasks_min
        self._records_max = records_max

    def get_name(self) -> str:
        return "Raylog"

    def supports_projection_pushdown(self) -> bool:
        return ray_versions.says_columns()

    def estimate_inmemory_data_size(self) -> int | None:
        densities = self._snapshot.bytes_per_offset
        return round(sum(len(each) * densities.get(each.key, 0.0) for each in self._snapshot.ranges))

    def blocks(self) -> int | None:
        """How many tasks are right: some for every CPU, none of less than a megabyte or of more
        than ``BLOCK_BYTES``; None if nobody knows.

        Left to itself Ray Data makes 200, of which each costs more to begin than a few megabytes to
        read.
        """
        untyped: Any = ray
        size = self.estimate_inmemory_data_size()
        if not size or not ray.is_initialized():
            return None
        cpus = int(untyped.cluster_resources().get("CPU", 1))
        return max(1, self._tasks_min or 1, min(_TASKS_PER_CPU * cpus, size >> 20), -(-size // BLOCK_BYTES))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        chosen = ray_versions.wanted_columns(self)
        columns = tuple(name for name in self._options.columns if chosen is None or name in chosen)
        columns = columns or (_CHEAPEST,)  # a block without columns has no rows to count
        options = replace(self._options, columns=columns)
        parts = split(
            self._snapshot.ranges,
            parts_min=max(parallelism, self._tasks_min or 1),
            records_max=self._records_max,
            bytes_max=TASK_BYTES,
            bytes_per_offset=self._snapshot.bytes_per_offset,
        )
        return [self._task(part, options, per_task_row_limit) for part in parts]

    def _task(self, part: OffsetRange, options: ReadOptions, row_limit: int | None) -> ReadTask:
        """Nobody knows before how many rows it reads: markers of transactions have offsets, too, and
        compaction leaves records out.
        """
        address = self._address
        size = round(len(part) * self._snapshot.bytes_per_offset.get(part.key, 0.0)) or None
        program = None if options.fail_on_data_loss else listener()
        return ray_versions.read_task(
            lambda: _blocks(address, part, options, row_limit, program),
            size_bytes=size,
            schema=schema_of(options.columns),
            row_limit=row_limit,
        )


def _blocks(
    address: ClusterAddress,
    part: OffsetRange,
    options: ReadOptions,
    row_limit: int | None,
    program: LossListener | None,
) -> Iterator[Any]:
    import pyarrow as pa

    def on_loss(loss: str) -> None:
        report_loss(loss)
        if program is not None:
            program.tell(loss)

    left = row_limit
    for batch in read_range(address, part, options, on_loss=on_loss):
        block = pa.Table.from_batches([batch if left is None else batch.slice(0, left)])
        yield block
        if left is not None:
            left -= block.num_rows
            if left <= 0:
                return
