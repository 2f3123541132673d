"""Arrow columns become record batches: the rows of one chunk, written by the C kernel without a
Python object per record.

::

    rows = ArrowRows(compiled, keys=keys, values=values, now_ms=now)
    rows.check(record_bytes_max)
    starts, order = rows.grouped(rows.partitions(partition_count, choices, choice_bytes), partition_count)
    batch = rows.encode(order, starts[0], starts[1], bytes_max=1 << 20)        # the first one of partition 0

Keys and values are binary or string arrays (large ones too), headers lists of structs (key, value)
or maps, timestamps any Arrow timestamp or milliseconds as integers. The bytes are those that
``raylog.records.codec.encode`` makes of the same records. Choosing partitions where there is no
key, cutting into requests and sending are the producer's (``raylog.client.producer.arrow_input``).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_char
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from raylog.errors import ConfigError
from raylog.records import kernel
from raylog.records.batch import HEADER_SIZE, header_of, write_crc
from raylog.records.compression import Compression, compress
from raylog.records.kernel import BatchPlan, Binary, Kernel, Rows, RowSizes, byref

Order: TypeAlias = "array[int]"
"""Row numbers."""


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The record batch of the next ``row_count`` rows."""

    data: bytearray
    row_count: int


class RecordTooLarge(Exception):
    """A row that makes a record of more bytes than allowed."""

    def __init__(self, row: int, size_bytes: int) -> None:
        super().__init__(f"row {row} makes a record of {size_bytes} bytes")
        self.row = row
        self.size_bytes = size_bytes


class ArrowRows:
    """Columns of equal length, as ``pyarrow.Array``s; None where there is none. ``now_ms`` is the
    timestamp of rows without one.
    """

    def __init__(
        self,
        compiled: Kernel,
        *,
        values: Any,
        keys: Any | None = None,
        timestamps: Any | None = None,
        headers: Any | None = None,
        now_ms: int,
    ) -> None:
        self._kernel = compiled
        self._held: list[Any] = []  # what the addresses point into
        self.count = len(values)
        self._rows = Rows(count=self.count, now_ms=now_ms)
        self._rows.value = self._binary(values, "value")
        if keys is not None:
            self._rows.key = self._binary(keys, "key")
        if timestamps is not None and timestamps.null_count < len(timestamps):
            self._set_timestamps(timestamps)
        if headers is not None and headers.null_count < len(headers):
            self._set_headers(headers)

    # -------------------------------------------------------------- columns

    def _binary(self, column: Any, what: str) -> Binary:
        if column.null_count == len(column):
            return Binary(count=len(column))
        kind = column.type
        is_wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
        if not (is_wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
            raise ConfigError(
                f"the {what} column is {kind}: it has to be binary or string; cast it, or encode the rows to bytes first"
            )
        self._held.append(column)
        valid, ends, data = column.buffers()
        return Binary(
            valid=_address(valid),
            ends=_address(ends),
            data=_address(data),
            data_size=0 if data is None else data.size,
            first=column.offset,
            count=len(column),
            is_wide=is_wide,
        )

    def _set_timestamps(self, column: Any) -> None:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).view(pa.int64())
        if not pa.types.is_integer(column.type):
            raise ConfigError(
                f"the timestamp column is {column.type}: it has to be a timestamp or milliseconds as integers"
            )
        column = column.cast(pa.int64())
        self._held.append(column)
        valid, times = column.buffers()
        self._rows.timestamps = _address(times)
        self._rows.timestamp_valid = _address(valid)
        self._rows.timestamp_first = column.offset

    def _set_headers(self, column: Any) -> None:
        kind = column.type
        if pa.types.is_large_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        if pa.types.is_map(kind):
            names, contents = column.keys, column.items
        elif pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
            fields = column.type.value_type
            if fields.get_field_index("key") < 0 or fields.get_field_index("value") < 0:
                raise ConfigError(f"the headers column is {kind}: its structs need the fields key and value")
            parts = column.values.flatten()
            names, contents = parts[fields.get_field_index("key")], parts[fields.get_field_index("value")]
        else:
            raise ConfigError(f"the headers column is {kind}: it has to be lists of structs (key, value), or maps")
        self._held.append(column)
        valid, ends = column.buffers()[:2]
        self._rows.header_ends = _address(ends)
        self._rows.header_valid = _address(valid)
        self._rows.header_first = column.offset
        self._rows.header_key = self._binary(names, "headers' key")
        self._rows.header_value = self._binary(contents, "headers' value")

    # -------------------------------------------------------------- what the kernel does with them

    def check(self, record_bytes_max: int) -> RowSizes:
        """How many rows have no key, and about how many bytes. Raises RecordTooLarge, or
        ConfigError for a header without a key.
        """
        sizes = RowSizes()
        code = self._kernel.check_rows(byref(self._rows), record_bytes_max, byref(sizes))
        if code == kernel.TOO_LARGE:
            raise RecordTooLarge(sizes.bad_row, sizes.bad_size)
        if code:
            raise ConfigError(f"row {sizes.bad_row} cannot be written: {kernel.REASONS[code]}")
        return sizes

    def partitions(self, partition_count: int, choices: Sequence[int], choice_bytes: int) -> array[int]:
        """The partition of each row by its key, as every Kafka client's default partitioner has it;
        rows without one go to the choices, one after the other, ``choice_bytes`` to each.
        """
        chosen, found = array("i", choices), _room("i", self.count)
        self._demand(
            self._kernel.partition_keys(
                byref(self._rows), partition_count, _start(chosen), len(chosen), choice_bytes, _start(found)
            )
        )
        return found

    def grouped(self, partitions: Any, partition_count: int) -> tuple[array[int], Order]:
        """(starts, order): the rows of partition p are order[starts[p]:starts[p + 1]], ascending.
        ``partitions``: 32-bit integers.
        """
        assert len(partitions) == self.count, (len(partitions), self.count)
        starts, order = _room("q", partition_count + 1), _room("q", self.count)
        self._demand(
            self._kernel.group_rows(_start(partitions), self.count, partition_count, _start(starts), _start(order))
        )
        return starts, order

    def encode(
        self,
        order: Order | None,
        first: int,
        end: int,
        *,
        bytes_max: int,
        compression: int = Compression.NONE,
        with_crc: bool = True,
    ) -> WrittenBatch:
        """One batch of the rows order[first] up to order[end] (None: of the rows first to end), as
        many as ``bytes_max`` has room for before compression, and at least one. Without
        ``with_crc`` its CRC is 0.
        """
        assert 0 <= first < end <= self.count, (first, end, self.count)
        plan, places = BatchPlan(), None if order is None else _start(order)
        room = bytes_max - HEADER_SIZE
        self._demand(self._kernel.next_batch(byref(self._rows), places, first, end, room, byref(plan)))
        batch = _unwritten(HEADER_SIZE + plan.records_size)
        records = (c_char * plan.records_size).from_buffer(batch, HEADER_SIZE)
        self._demand(
            self._kernel.encode_records(byref(self._rows), places, first, byref(plan), records, plan.records_size)
        )
        del records  # the bytearray may change its size again
        attributes = 0
        if compression != Compression.NONE:
            with memoryview(batch) as view, view[HEADER_SIZE:] as plain:
                compressed = compress(compression, plain)
            if len(compressed) < plan.records_size:
                batch[HEADER_SIZE:] = compressed
                attributes = compression
        batch[:HEADER_SIZE] = header_of(
            len(batch) - HEADER_SIZE,
            record_count=plan.count,
            last_offset_delta=plan.count - 1,
            base_timestamp=plan.base_timestamp,
            max_timestamp=plan.max_timestamp,
            attributes=attributes,
        )
        if with_crc:
            write_crc(batch)
        return WrittenBatch(batch, plan.count)

    def _demand(self, code: int) -> None:
        if code:
            raise ConfigError(f"the columns cannot be written: {kernel.REASONS[code]}")


_bytearray_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def _unwritten(size: int) -> bytearray:
    """So many bytes with anything in them: ``bytearray(size)`` writes zeros first, a fifth of the
    time that encoding takes.
    """
    batch: bytearray = _bytearray_of(None, size)
    return batch


def _address(buffer: Any | None) -> int | None:
    return None if buffer is None else buffer.address


def _room(kind: str, count: int) -> array[int]:
    return array(kind, bytes(array(kind).itemsize * count))


def _start(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]
