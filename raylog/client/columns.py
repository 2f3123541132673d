"""Arrow tables to records and back, column by column.

A table of records has the columns of Spark's kafka source: ``key``, ``value`` (binary, nullable),
``topic``, ``partition``, ``offset``, ``timestamp`` (UTC milliseconds), ``timestamp_type``,
``headers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from raylog.errors import ConfigError
from raylog.records.arrow_columns import HEADERS_TYPE, RECORD_SCHEMA
from raylog.records.arrow_fallback import header_array
from raylog.records.record import Header


def column_of(table: Any, name: str | None) -> Any | None:
    """A table's column by name, None if the table has none of that name."""
    if name is None or name not in table.schema.names:
        return None
    return table.column(name)


def binary_values(column: Any, what: str) -> list[bytes | None]:
    """A binary or string column as a list of bytes."""
    if column.null_count == len(column):
        return [None] * len(column)
    kind = column.type
    if not (_is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ConfigError(
            f"the {what} column is {kind}: it has to be binary or string; cast it, or encode the rows to bytes first"
        )
    values: list[bytes | None] = (column if pa.types.is_binary(kind) else column.cast(pa.large_binary())).to_pylist()
    return values


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def timestamps_ms(column: Any) -> list[int | None]:
    """A column of Arrow timestamps or of integers (milliseconds)."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    if not pa.types.is_integer(column.type):
        raise ConfigError(
            f"the timestamp column is {column.type}: it has to be a timestamp or milliseconds as integers"
        )
    values: list[int | None] = column.to_pylist()
    return values


def header_lists(column: Any) -> list[Sequence[Header]]:
    """A column of lists of (key, value) structs or of maps, as record headers."""
    result: list[Sequence[Header]] = []
    for row in column.to_pylist():
        pairs: Iterable[Any] = row or ()
        result.append(
            [(pair["key"], pair["value"]) if isinstance(pair, dict) else (pair[0], pair[1]) for pair in pairs]
        )
    return result


def header_column(headers: Sequence[Sequence[Header]]) -> Any:
    """Record headers as Arrow; the usual case, none at all, costs nothing."""
    return header_array(headers, HEADERS_TYPE)


__all__ = [
    "HEADERS_TYPE",
    "RECORD_SCHEMA",
    "binary_values",
    "column_of",
    "header_column",
    "header_lists",
    "timestamps_ms",
]
