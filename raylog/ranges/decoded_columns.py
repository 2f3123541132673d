"""The columns of a table whose values were decoded into columns, the same for Spark's and Arrow's
``from_json``.

First come the columns that stay, then one for each field of the schema, then, in permissive mode,
the one for broken values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raylog.errors import ConfigError

CORRUPT_COLUMN = "_corrupt_record"
"""Spark's name for it."""

MODES = ("permissive", "failfast")


def kept_columns(
    there: Sequence[str],
    fields: Sequence[str],
    *,
    column: str,
    columns: Sequence[str] | None,
    mode: str,
    corrupt_column: str,
) -> tuple[str, ...]:
    """Return the columns that stay: ``columns``, or all but the decoded one. ConfigError for
    unknown or repeated names.
    """
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r}: one of {', '.join(MODES)}")
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Iterable)):
        raise ConfigError(f"columns={columns!r}: give a list of the columns that stay")
    if not isinstance(corrupt_column, str) or not corrupt_column:
        raise ConfigError(f"corrupt_column={corrupt_column!r}: give the column of broken values a name")
    columns = None if columns is None else tuple(columns)
    if missing := [name for name in (column, *(columns or ())) if name not in there]:
        raise ConfigError(f"there is no column {missing[0]!r}, only {', '.join(there)}")
    if not fields:
        raise ConfigError("the schema has no fields: name at least one")
    kept = tuple(name for name in there if name != column) if columns is None else tuple(columns)
    names = [*kept, *fields, *((corrupt_column,) if mode == "permissive" else ())]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{twice[0]!r} would appear twice, as a column of the record and as a field of the schema: "
            "choose the columns that stay with columns=, and name the one for broken values with corrupt_column="
        )
    return kept
