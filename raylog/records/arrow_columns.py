"""Record batches become Arrow columns: a ``RecordColumns`` collects batches and then makes one
Arrow record batch of them.

::

    columns = RecordColumns(("offset", "value"))
    for view in batches(fetched):
        columns.add(view, start_offset=position, topic="events", partition=3)
    table, broken = columns.take()

Any of the columns of ``RECORD_SCHEMA``, in the order asked for, and only those cost anything. The C
kernel makes them if it is there (``raylog.records.kernel``), without a Python object per record and
without the GIL; else ``raylog.records.arrow_fallback`` does: the same columns and errors.

Batches are collected as *runs*: neighbours in one buffer that are not compressed are one run, read
where they lie; a compressed one is inflated when it is added and is a run of its own. Control
batches give no records and CRCs are not looked at: both are the caller's to judge, batch by batch,
before adding (``raylog.records.arrow_reading`` does). A broken batch ends what ``take`` gives: the
records before it are there, ``broken`` says where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from raylog.errors import ConfigError, RaylogError
from raylog.records import arrow_fallback, kernel
from raylog.records.batch import BatchView, Buffer
from raylog.records.codec import inflated_header
from raylog.records.compression import INFLATED_BYTES_MAX, Compression, decompress
from raylog.records.corrupt import CorruptBatch
from raylog.records.kernel import Columns, Kernel, Run, Sizes, byref

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("timestamp_type", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)
"""The columns of Spark's kafka source; ``timestamp`` in milliseconds, ``timestamp_type`` 0
CreateTime, 1 LogAppendTime.
"""

ALL_COLUMNS: tuple[str, ...] = tuple(RECORD_SCHEMA.names)
RUN_BYTES_MAX = 1 << 30
"""When to ``take`` at the latest: Arrow's binary columns hold less than 2 GiB each."""
NO_OFFSET_END = (1 << 63) - 1


def schema_of(columns: Sequence[str] | None) -> Any:
    """The schema with these columns, in this order; all if None. Raises ConfigError for one that
    there is not.
    """
    if columns is None:
        return RECORD_SCHEMA
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ConfigError(f"columns={columns!r}: give a list of {', '.join(ALL_COLUMNS)}")
    if unknown := [name for name in columns if name not in ALL_COLUMNS]:
        raise ConfigError(f"records have no column {unknown[0]!r}: choose from {', '.join(ALL_COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise ConfigError(f"a column twice: {', '.join(columns)}")
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])


def chosen_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns of a read, all if None. Raises ConfigError as ``schema_of``, and for none at all."""
    names = tuple(schema_of(columns).names)
    if not names:
        raise ConfigError(f"columns={columns!r}: at least one of {', '.join(ALL_COLUMNS)}")
    return names


@dataclass(slots=True, eq=False)
class BatchRun:
    """Whole uncompressed batches, from ``position`` up to ``end`` of a buffer, of one partition,
    and which of their records are wanted.
    """

    buffer: Buffer
    position: int
    end: int
    start_offset: int
    offset_end: int
    topic: str
    partition: int
    first_view: BatchView  # as it was added, perhaps compressed
    records: int = 0  # known after measuring


@dataclass(frozen=True, slots=True)
class BrokenBatch:
    """Where the records end that could be read: a batch that breaks the format."""

    error: CorruptBatch
    base_offset: int
    next_offset: int  # of the batch after it, if its header is right
    topic: str
    partition: int


class RecordColumns:
    """Collects batches for the columns named (None: all). ``compiled`` None: without the C kernel."""

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        *,
        max_inflated_bytes: int = INFLATED_BYTES_MAX,
        compiled: Kernel | Callable[[], Kernel | None] | None = kernel.loaded,
    ) -> None:
        self.schema = schema_of(columns)
        self.size_bytes = 0  # of the records collected, inflated
        self._max_inflated_bytes = max_inflated_bytes
        self._kernel: Kernel | None = compiled() if callable(compiled) else compiled
        self._runs: list[BatchRun] = []

    def add(
        self,
        view: BatchView,
        *,
        start_offset: int = 0,
        offset_end: int = NO_OFFSET_END,
        topic: str = "",
        partition: int = -1,
    ) -> None:
        """Collect the records of a batch from ``start_offset`` up to ``offset_end``. The buffer has
        to stay as it is until ``take``.

        Raises CorruptBatch where the batch cannot be inflated, or into more than
        ``max_inflated_bytes``.
        """
        if view.compression == Compression.NONE:
            self.size_bytes += view.size
            last = self._runs[-1] if self._runs else None
            if (
                last is not None
                and last.buffer is view.buffer
                and last.end == view.position
                and last.offset_end == offset_end
                and (last.start_offset == start_offset or last.start_offset <= start_offset <= view.base_offset)
                and last.partition == partition
                and last.topic == topic
            ):
                last.end = view.end
                return
            buffer, position, end = view.buffer, view.position, view.end
        else:
            buffer = _inflated(view, self._max_inflated_bytes)
            position, end = 0, len(buffer)
            self.size_bytes += end
        self._runs.append(BatchRun(buffer, position, end, start_offset, offset_end, topic, partition, view))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def take(self) -> tuple[Any, BrokenBatch | None]:
        """One Arrow record batch of what was collected, and what broke it off, if something did.
        Collecting begins anew.
        """
        runs, self._runs, self.size_bytes = self._runs, [], 0
        if self._kernel is None:
            arrays, broken = arrow_fallback.arrays_of(runs, self.schema)
        else:
            arrays, broken = _arrays_of(self._kernel, runs, self.schema)
        place = None if broken is None else _broken(*broken)
        count = sum(run.records for run in runs)
        for name, value in (("topic", lambda run: run.topic), ("partition", lambda run: run.partition)):
            if name in self.schema.names:
                arrays[name] = _constants(runs, value, self.schema.field(name).type)
        if not self.schema.names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([]))), place
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema), place


def _inflated(view: BatchView, max_inflated_bytes: int) -> bytes:
    """The batch as it would be without compression (its CRC is that of the compressed one)."""
    try:
        records = decompress(view.compression, view.records, max_bytes=max_inflated_bytes)
    except CorruptBatch as error:
        raise CorruptBatch(error.reason, view.position) from None
    except RaylogError as error:  # a codec that nobody knows
        raise CorruptBatch(str(error), view.position) from None
    return b"".join((inflated_header(view, len(records)), records))


def _broken(run: BatchRun, position: int, reason: str) -> BrokenBatch:
    """``position`` is that in the run's buffer."""
    was_inflated = run.buffer is not run.first_view.buffer
    view = run.first_view if was_inflated else BatchView(run.buffer, position)
    return BrokenBatch(
        CorruptBatch(reason, view.position), view.base_offset, view.next_offset, run.topic, run.partition
    )


def _constants(runs: Sequence[BatchRun], value: Callable[[BatchRun], Any], kind: Any) -> Any:
    parts = [
        pa.repeat(pa.scalar(each, kind), sum(run.records for run in same)) for each, same in groupby(runs, key=value)
    ]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.array([], kind)


# ------------------------------------------------------------------ with the kernel

_Arrays = tuple[dict[str, Any], tuple[BatchRun, int, str] | None]


def _arrays_of(compiled: Kernel, runs: Sequence[BatchRun], schema: Any) -> _Arrays:
    buffers = [pa.py_buffer(run.buffer) for run in runs]
    native = (Run * len(runs))(
        *[
            Run(buffer.address + run.position, run.end - run.position, run.start_offset, run.offset_end, 0)
            for run, buffer in zip(runs, buffers, strict=True)
        ]
    )
    sizes = Sizes()
    count = len(runs)
    broken: tuple[BatchRun, int, str] | None = None
    if code := compiled.measure(native, count, byref(sizes)):
        run = runs[sizes.bad_run]
        broken = run, run.position + sizes.bad_position, kernel.REASONS[code]
        native[sizes.bad_run].size = sizes.bad_position
        count = sizes.bad_run + 1
    for run, each in zip(runs, native, strict=True):
        run.records = each.records
    room = _Room(schema, sizes)
    if code := compiled.fill(native, count, byref(room.columns)):
        raise CorruptBatch(kernel.REASONS[code])
    return room.arrays(), broken


class _Room:
    """Buffers for the columns of a schema, and the arrays over them once they are filled."""

    def __init__(self, schema: Any, sizes: Sizes) -> None:
        self._sizes = sizes
        self._made: dict[str, Callable[[], Any]] = {}
        self.columns = Columns(record_room=sizes.records, header_room=sizes.headers)
        count = sizes.records
        for name in schema.names:
            kind = schema.field(name).type
            match name:
                case "offset" | "timestamp" | "timestamp_type":
                    width = 4 if name == "timestamp_type" else 8
                    buffer = pa.allocate_buffer(width * count)
                    setattr(self.columns, f"{name}s", buffer.address)
                    self._made[name] = _fixed(kind, count, buffer)
                case "key":
                    self._made[name] = _binary(kind, count, sizes.null_keys, sizes.key_bytes, self.columns.key)
                case "value":
                    self._made[name] = _binary(kind, count, sizes.null_values, sizes.value_bytes, self.columns.value)
                case "headers":
                    self._made[name] = self._headers(kind)

    def _headers(self, kind: Any) -> Callable[[], Any]:
        sizes, columns = self._sizes, self.columns
        ends = pa.allocate_buffer(4 * (sizes.records + 1))
        columns.header_ends = ends.address
        keys = _binary(pa.string(), sizes.headers, 0, sizes.header_key_bytes, columns.header_key)
        values = _binary(
            pa.binary(), sizes.headers, sizes.null_header_values, sizes.header_value_bytes, columns.header_value
        )

        def make() -> Any:
            pairs = pa.StructArray.from_arrays([keys(), values()], fields=list(kind.value_type))
            return pa.Array.from_buffers(kind, sizes.records, [None, ends], 0, children=[pairs])

        return make

    def arrays(self) -> dict[str, Any]:
        return {name: make() for name, make in self._made.items()}


def _fixed(kind: Any, count: int, buffer: Any) -> Callable[[], Any]:
    return lambda: pa.Array.from_buffers(kind, count, [None, buffer], 0)


def _binary(kind: Any, count: int, null_count: int, size_bytes: int, column: Any) -> Callable[[], Any]:
    """Allocates a binary column and tells the kernel where it is."""
    ends, data = pa.allocate_buffer(4 * (count + 1)), pa.allocate_buffer(size_bytes)
    valid = pa.allocate_buffer((count + 7) // 8) if null_count else None
    column.ends, column.data, column.room = ends.address, data.address, size_bytes
    column.valid = None if valid is None else valid.address
    return lambda: pa.Array.from_buffers(kind, count, [valid, ends, data], null_count)
