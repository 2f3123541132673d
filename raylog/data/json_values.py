"""JSON values into Arrow columns by pyarrow's own reader, whole batches at a time.

The values of a slice are joined by newlines and parsed at once. Where that fails, the slice is
halved until the values that don't decode are alone, so a broken one costs a few parses more, and
one whose every value is broken costs two for each.

pyarrow's reader takes a sequence of documents for what it is, wherever they end, and dies of some
(of a lone ``null``). So that exactly one row comes of each value, only those are handed to it that
begin and end with a brace and have nothing after a brace that could be a second document; where a
string may be what looks like one, the value is looked at alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json

from raylog.errors import ConfigError, SerializationError
from raylog.ranges.decoded_columns import CORRUPT_COLUMN, kept_columns

SLICE_BYTES = 32 << 20
_BEGINS = r"^[ \t\r\n]*\{"
_ENDS = r"\}[ \t\r\n]*$"
_MAY_GO_ON = r"\}[ \t\r\n]*[^ \t\r\n,\}\]]"
_SHOWN_BYTES = 100


def decode_json(
    rows: Any,
    schema: Any,
    *,
    column: str = "value",
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    corrupt_column: str = CORRUPT_COLUMN,
) -> Any:
    """The same rows with one column for each field of ``schema`` in the place of ``column``, whose
    values are JSON objects.

    ``rows``: a ``pyarrow.Table`` or ``RecordBatch``, as of ``poll_batch`` or of a batch of Ray
    Data; the result is of the same kind. ``schema``: a ``pyarrow.Schema``. ``columns``: the other
    columns that stay, all by default. A field that an object does not have is null, one that the
    schema does not have is left out, a null value (a tombstone) is null in every field.

    A value that is no JSON object, or has a field of another type, is all null and kept in
    ``corrupt_column`` as it is (binary), null for the rest; with ``mode="failfast"`` it is a
    SerializationError that says which. ConfigError for columns and types that can't be.
    """
    if not isinstance(schema, pa.Schema):
        raise ConfigError(f"schema={schema!r}: give a pyarrow.Schema")
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        raise ConfigError(f"decode_json takes a pyarrow.Table or RecordBatch, not {type(rows).__name__}")
    kept = kept_columns(
        rows.schema.names, schema.names, column=column, columns=columns, mode=mode, corrupt_column=corrupt_column
    )
    schema = pa.schema([(field.name, field.type) for field in schema])  # any field may be null
    found = rows.column(column)
    _check_types(column, found.type, schema)
    chunks = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    parts: list[Any] = []
    first = 0
    for chunk in chunks:
        for values in _slices(chunk):
            decoded, corrupt = _decoded(values, schema)
            if mode == "permissive":
                decoded = decoded.append_column(corrupt_column, corrupt)
            elif (index := pc.index(pc.is_valid(corrupt), True).as_py()) >= 0:
                raise _failed(rows, first + index, corrupt[index].as_py(), schema)
            parts.append(decoded)
            first += len(values)
    names = [*schema.names, *((corrupt_column,) if mode == "permissive" else ())]
    table = pa.concat_tables(parts) if parts else _nothing(schema, corrupt_column if mode == "permissive" else None)
    arrays = [*(rows.column(name) for name in kept), *(table.column(name) for name in names)]
    if isinstance(rows, pa.RecordBatch):
        plain = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in arrays]
        return pa.RecordBatch.from_arrays(plain, [*kept, *names])
    return pa.table(arrays, [*kept, *names])


def _check_types(column: str, kind: Any, schema: Any) -> None:
    of = pa.types
    if not any(each(kind) for each in (of.is_binary, of.is_large_binary, of.is_string, of.is_large_string, of.is_null)):
        raise ConfigError(f"column {column} is {kind}: it has to be binary or string")
    try:
        _parsed(pa.array([b"{}"]), schema)
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(f"pyarrow does not read JSON by this schema: {error}") from None


def _slices(chunk: Any) -> Iterator[Any]:
    """As binary arrays of about ``SLICE_BYTES``."""
    count = max(1, len(chunk) * SLICE_BYTES // max(chunk.nbytes, 1))
    for start in range(0, len(chunk), count):
        yield chunk.slice(start, count).cast(pa.binary())


def _decoded(values: Any, schema: Any) -> tuple[Any, Any]:
    """A table with a row for each value, and the values that did not decode, null for the rest."""
    fits = _is_one_object(values)
    candidates = values.filter(fits)
    tables: list[Any] = []
    broken: list[int] = []
    _parse(candidates, schema, 0, tables, broken)
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    if broken:
        places = pc.indices_nonzero(fits).take(pa.array(broken, pa.int64()))
        fits = pc.and_(fits, pc.invert(pc.is_in(pa.array(range(len(values)), pa.uint64()), places)))
    if len(table) == len(values):
        return table, pa.nulls(len(values), pa.binary())
    row = pc.subtract(pc.cumulative_sum(fits.cast(pa.int64())), 1)
    table = table.take(pc.if_else(fits, row, pa.scalar(None, pa.int64())))
    return table, pc.if_else(fits, pa.scalar(None, pa.binary()), values)


def _is_one_object(values: Any) -> Any:
    """Which values are an object and nothing after it, as far as braces tell; null and the rest are
    false.
    """
    begins, ends, may_go_on = (pc.match_substring_regex(values, pattern) for pattern in (_BEGINS, _ENDS, _MAY_GO_ON))
    fits = pc.fill_null(pc.and_(begins, ends), False)
    unclear = pc.indices_nonzero(pc.and_(fits, pc.fill_null(may_go_on, False)))
    wrong = [index for index in unclear.to_pylist() if not _is_json(values[index].as_py())]
    if not wrong:
        return fits
    return pc.and_(fits, pc.invert(pc.is_in(pa.array(range(len(values)), pa.int64()), pa.array(wrong, pa.int64()))))


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(values: Any, schema: Any, first: int, tables: list[Any], broken: list[int]) -> None:
    """Append the rows of what decodes to ``tables``, and to ``broken`` the places of what does not,
    counted from ``first``.
    """
    if not len(values):
        return
    try:
        tables.append(_parsed(values, schema))
    except pa.ArrowInvalid:
        if len(values) == 1:
            broken.append(first)
            return
        half = len(values) // 2
        _parse(values.slice(0, half), schema, first, tables, broken)
        _parse(values.slice(half), schema, first + half, tables, broken)


def _parsed(values: Any, schema: Any) -> Any:
    """The rows of values that are one object each. ArrowInvalid where one of them is none after
    all, or does not fit.
    """
    texts = values.cast(pa.string())  # which looks whether they are UTF-8
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    text = pc.binary_join(whole, "\n")[0].as_buffer()
    table = read_json(
        pa.BufferReader(text),
        read_options=ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    assert len(table) == len(values), f"{len(table)} rows of {len(values)} values"
    return table


def _failed(rows: Any, index: int, value: bytes, schema: Any) -> SerializationError:
    """The error of one row, with where it was read if the table tells."""
    where = f"row {index}"
    if {"topic", "partition", "offset"} <= set(rows.schema.names):
        topic, partition, offset = (rows.column(name)[index].as_py() for name in ("topic", "partition", "offset"))
        where = f"the value at offset {offset} of {topic}-{partition}"
    reason = "it is no JSON object"
    array = pa.array([value], pa.binary())
    if _is_one_object(array)[0].as_py():
        try:
            _parsed(array, schema)
        except pa.ArrowInvalid as error:
            reason = str(error).removesuffix(" in row 0")
    shown = value[:_SHOWN_BYTES]
    return SerializationError(
        f'{where} does not decode ({reason}): {shown!r}{"…" if len(shown) < len(value) else ""}; mode="permissive" accepts such values'
    )


def _nothing(schema: Any, corrupt_column: str | None) -> Any:
    table = schema.empty_table()
    return table if corrupt_column is None else table.append_column(corrupt_column, pa.nulls(0, pa.binary()))
