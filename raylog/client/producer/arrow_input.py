"""What ``send_arrow`` takes, turned into encoded batches per partition by the C kernel.

A table is combined into one chunk (a large one is taken chunk by chunk), every row is judged before
anything is sent, and then the batches are encoded one by one as they are asked for: in turn one for
each partition that still has rows, so that all leaders get to work. A batch has at most
``bytes_max`` bytes before compression; the order of the rows is kept within each partition.

Partitions are those that the caller names for all rows or by a column, else those of the keys. Rows
without keys stay together, a batch's worth on each partition that the sticky partitioner chooses.
Who has a partitioner of his own, or no kernel, goes by ``batch_input``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raylog.client.columns import binary_values, column_of, header_lists, timestamps_ms
from raylog.client.links.metadata import TopicPartitions, TopicView, unknown_partition
from raylog.client.partitioners import DefaultPartitioner
from raylog.client.producer.batch_input import BatchInput, ColumnNames, EncodedPart, refuse_large_record
from raylog.errors import ConfigError
from raylog.records.arrow_writing import ArrowRows, Order, RecordTooLarge
from raylog.records.batch import HEADER_SIZE
from raylog.records.kernel import Kernel
from raylog.types import TopicPartition

COMBINED_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows that go to one partition, in this order: order[first] up to order[end], or the rows
    first to end themselves.
    """

    partition: int | None  # None: each batch to one that the sticky partitioner chooses
    order: Order | None
    first: int
    end: int


def columns_of_table(table: Any, names: ColumnNames, view: TopicView) -> BatchInput:
    """The columns of a pyarrow Table or RecordBatch as Python objects, for who does without
    ``arrow_parts``.
    """
    values = column_of(table, names.value)
    if values is None:
        raise ConfigError(
            f"the table has no column {names.value!r}: it has {', '.join(table.schema.names)}; choose one with value_column="
        )
    keys, times = column_of(table, names.key), column_of(table, names.timestamp)
    headers, partitions = column_of(table, names.headers), column_of(table, names.partition)
    columns = BatchInput(
        binary_values(values, names.value),
        None if keys is None or keys.null_count == len(keys) else binary_values(keys, names.key),
        None if times is None else timestamps_ms(times),
        None if headers is None else header_lists(headers),
        None if partitions is None else partitions.to_pylist(),
    )
    for partition in sorted(set(columns.partitions or ())):
        if partition is None or not 0 <= partition < len(view.partitions):
            raise unknown_partition(
                TopicPartition(view.name, -1 if partition is None else partition), len(view.partitions)
            )
    return columns


def arrow_parts(
    compiled: Kernel,
    table: Any,
    names: ColumnNames,
    cluster: TopicPartitions,
    partitioner: DefaultPartitioner,
    *,
    partition: int | None,
    now_ms: int,
    bytes_max: int,
    request_bytes_max: int,
    compression: int,
    will_be_stamped: bool,
) -> Iterator[EncodedPart]:
    """The batches of a pyarrow Table or RecordBatch. Raises at the first one asked for what is
    wrong with any row.
    """
    slices: list[_Slice] = []
    for chunk in _chunks(table):
        first_row = slices[-1].first_row + slices[-1].rows.count if slices else 0
        slices.append(_Slice(compiled, chunk, names, first_row, now_ms, request_bytes_max))
    for each in slices:
        each.choose(names.partition, cluster, partitioner, partition, bytes_max)
    is_scattered = any(run.order is not None for each in slices for run in each.runs)
    for each in slices:
        runs = each.runs
        while runs:
            left: list[_Run] = []
            for run in runs:
                batch = each.rows.encode(
                    run.order,
                    run.first,
                    run.end,
                    bytes_max=bytes_max,
                    compression=compression,
                    with_crc=not will_be_stamped,
                )
                behind = run.first + batch.row_count
                target = partitioner.sticky(cluster, len(batch.data)) if run.partition is None else run.partition
                numbers = each.numbers(run.order, run.first, behind) if is_scattered else None
                yield EncodedPart(target, batch.data, batch.row_count, numbers)
                if behind < run.end:
                    left.append(replace(run, first=behind))
            runs = left


class _Slice:
    """One chunk of the table: its rows, judged, and where they go."""

    def __init__(
        self,
        compiled: Kernel,
        chunk: Any,
        names: ColumnNames,
        first_row: int,
        now_ms: int,
        request_bytes_max: int,
    ) -> None:
        values, keys = column_of(chunk, names.value), column_of(chunk, names.key)
        if values is None:
            raise ConfigError(
                f"the table has no column {names.value!r}: it has {', '.join(chunk.schema.names)}; choose one with value_column="
            )
        self.first_row = first_row
        self.runs: list[_Run] = []
        self.rows = ArrowRows(
            compiled,
            values=values,
            keys=keys,
            timestamps=column_of(chunk, names.timestamp),
            headers=column_of(chunk, names.headers),
            now_ms=now_ms,
        )
        self._chunk = chunk
        try:
            self._sizes = self.rows.check(request_bytes_max - HEADER_SIZE)
        except RecordTooLarge as error:
            refuse_large_record(error.size_bytes, request_bytes_max)
            raise

    def choose(
        self,
        partition_column: str,
        cluster: TopicPartitions,
        partitioner: DefaultPartitioner,
        partition: int | None,
        bytes_max: int,
    ) -> None:
        """Decide where each row goes."""
        partitions = None if partition is not None else _partitions(self._chunk, partition_column, cluster)
        has_keys = self._sizes.keyless < self.rows.count
        if partitions is None and (partition is not None or not has_keys or not partitioner.uses_keys):
            self.runs = [_Run(partition, None, 0, self.rows.count)]
            return
        if partitions is None:
            choices: Sequence[int] = ()
            if self._sizes.keyless:
                count = self._sizes.keyless_bytes // bytes_max + 1
                choices = [partitioner.sticky(cluster, bytes_max) for _ in range(count)]
            partitions = self.rows.partitions(cluster.count, choices, bytes_max)
        starts, order = self.rows.grouped(partitions, cluster.count)
        self.runs = [
            _Run(target, order, starts[target], starts[target + 1])
            for target in range(cluster.count)
            if starts[target] < starts[target + 1]
        ]

    def numbers(self, order: Order | None, first: int, end: int) -> Sequence[int]:
        """The rows' numbers in the whole table."""
        if order is None:
            return range(self.first_row + first, self.first_row + end)
        mine = order[first:end]
        if not self.first_row:
            return mine
        moved = pc.add(pa.Array.from_buffers(pa.int64(), len(mine), [None, pa.py_buffer(mine)]), self.first_row)
        return array("q", memoryview(moved.buffers()[1])[: 8 * len(mine)].tobytes())


def _chunks(table: Any) -> list[Any]:
    if isinstance(table, pa.RecordBatch):
        return [table]
    if table.nbytes <= COMBINED_BYTES_MAX:
        table = table.combine_chunks()
    return [chunk for chunk in table.to_batches() if chunk.num_rows]


def _partitions(chunk: Any, name: str, cluster: TopicPartitions) -> array[int] | None:
    column = column_of(chunk, name)
    if column is None:
        return None
    if not pa.types.is_integer(column.type):
        raise ConfigError(f"the partition column is {column.type}: it must hold integers")
    bounds = pc.min_max(column).as_py()
    wrong = -1 if column.null_count else next((each for each in bounds.values() if not 0 <= each < cluster.count), None)
    if wrong is not None:
        raise unknown_partition(TopicPartition(cluster.topic, wrong), cluster.count)
    plain = column.cast(pa.int32())
    return array("i", memoryview(plain.buffers()[1])[4 * plain.offset : 4 * (plain.offset + len(plain))].tobytes())
