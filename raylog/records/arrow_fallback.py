"""Record batches to Arrow columns by the packaged codec: what is done where the C kernel could not
be compiled.

The same columns and the same errors as ``raylog.records.arrow_columns`` makes with the kernel, with
a Python object per record: several times slower. Knows the columns by the names of
``RECORD_SCHEMA``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raylog.records.batch import batches
from raylog.records.codec import LightRecord, light_records
from raylog.records.corrupt import CorruptBatch
from raylog.records.record import Header

if TYPE_CHECKING:
    from raylog.records.arrow_columns import BatchRun


def arrays_of(runs: Sequence[BatchRun], schema: Any) -> tuple[dict[str, Any], tuple[BatchRun, int, str] | None]:
    """The arrays by name, without topic and partition, and the run, the position and the reason
    where it broke off.
    """
    found: list[LightRecord] = []
    broken: tuple[BatchRun, int, str] | None = None
    for run in runs:
        run.records = 0
    for run in runs:
        broken = _read(run, found)
        if broken is not None:
            break
    wanted = [name for name in schema.names if name not in ("topic", "partition")]
    return {name: _array(name, found, schema.field(name).type) for name in wanted}, broken


def _read(run: BatchRun, found: list[LightRecord]) -> tuple[BatchRun, int, str] | None:
    position = run.position
    try:
        for view in batches(memoryview(run.buffer)[: run.end], run.position):
            position = view.position
            wanted = [record for record in light_records(view) if run.start_offset <= record.offset < run.offset_end]
            found += wanted
            run.records += len(wanted)
    except CorruptBatch as error:
        return run, position, error.reason
    return None


def _array(name: str, records: Sequence[LightRecord], kind: Any) -> Any:
    match name:
        case "key":
            return pa.array([record.key for record in records], kind)
        case "value":
            return pa.array([record.value for record in records], kind)
        case "headers":
            return header_array([record.headers for record in records], kind)
        case "timestamp":
            return pa.array([record.timestamp for record in records], pa.int64()).cast(kind)
    return pa.array([getattr(record, name) for record in records], kind)


def header_array(headers: Sequence[Sequence[Header]], kind: Any) -> Any:
    """Record headers as Arrow; the usual case, none at all, costs nothing."""
    if not any(headers):
        ends = pa.Array.from_buffers(pa.int32(), len(headers) + 1, [None, pa.py_buffer(bytes(4 * (len(headers) + 1)))])
        return pa.ListArray.from_arrays(ends, pa.array([], kind.value_type), type=kind)
    return pa.array([[{"key": key, "value": value} for key, value in row] for row in headers], kind)
