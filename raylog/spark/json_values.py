"""Decodes JSON values into columns with Spark's ``from_json``, without losing values in silence.

Spark's function returns a row of nulls for an empty value, as for a tombstone, and its error for an
invalid value does not name the row. Here an empty value is a broken value like any other, and the
error names topic, partition and offset if the rows have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raylog.errors import ConfigError
from raylog.ranges.decoded_columns import CORRUPT_COLUMN, kept_columns
from raylog.spark.installed import require_frame
from raylog.spark.spark_private import is_json_option, parsed_schema

_BROKEN = "_raylog_broken"
_DECODED = "_raylog_decoded"
_SHOWN_CHARACTERS = 100
_OURS = ("mode", "columnnameofcorruptrecord")


def from_json(
    df: Any,
    schema: Any,
    *,
    column: str = "value",
    columns: Sequence[str] | None = None,
    mode: str = "permissive",
    corrupt_column: str = CORRUPT_COLUMN,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Replace ``column``, whose values are JSON objects, with one column for each field of
    ``schema``.

    ``df``: batch or stream, as of ``read``, ``read_stream`` and ``table``. ``schema``: a
    ``StructType``, or as in ``"id bigint, at timestamp"``. ``columns``: the other columns that
    stay, all by default. ``options``: Spark's for JSON (``timestampFormat``). A field that an
    object does not have is null, one that the schema does not have is left out, a null value (a
    tombstone) is null in every field.

    A value that is no JSON object, or has a field of another type, is kept in ``corrupt_column`` as
    text, null for the rest; of the second kind the fields that fit are there. With
    ``mode="failfast"`` such a value fails the query when a field of it is used, and the error says
    where it was read. ConfigError for invalid columns.
    """
    require_frame(df, "from_json")
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    fields = _struct(schema)
    kept = kept_columns(
        df.columns, fields.names, column=column, columns=columns, mode=mode, corrupt_column=corrupt_column
    )
    if (kind := df.schema[column].dataType.simpleString()) not in ("binary", "string"):
        raise ConfigError(f"column {column} is {kind}: it has to be binary or string")
    _check_options(df.sparkSession, options)
    given = {**(options or {}), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    wide = StructType([*fields.fields, StructField(_BROKEN, StringType())])
    there, text = [_column(name) for name in df.columns], _column(column).cast("string")
    rows = df.select(
        *there, f.from_json(text, wide, {name: str(value) for name, value in given.items()}).alias(_DECODED)
    )
    decoded = f.col(_DECODED)
    broken = f.when(text.isNotNull() & decoded.isNull(), text).otherwise(decoded[_BROKEN])
    if mode == "permissive":
        return rows.select(*map(_column, kept), *_fields(fields), broken.alias(corrupt_column))
    what = f.concat(_where(df.columns), f.substring(broken, 1, _SHOWN_CHARACTERS))
    checked = f.when(broken.isNull(), decoded).otherwise(f.raise_error(what)).alias(_DECODED)
    return rows.select(*map(_column, kept), checked).select(*map(_column, kept), *_fields(fields))


def _check_options(spark: Any, options: Mapping[str, Any] | None) -> None:
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise ConfigError(f'options={options!r}: give Spark\'s for JSON, as {{"timestampFormat": "yyyy-MM-dd"}}')
    for name in options:
        if str(name).lower() in _OURS:
            raise ConfigError(f"options[{name!r}]: use mode= and corrupt_column= instead")
        if not isinstance(name, str) or not is_json_option(spark, name):
            raise ConfigError(
                f"options[{name!r}]: Spark has no such option for JSON, as timestampFormat, dateFormat or locale"
            )


def _struct(schema: Any) -> Any:
    from pyspark.sql.types import DataType, StructType

    if isinstance(schema, str):
        try:
            schema = parsed_schema(schema)
        except Exception as error:  # of pyspark's parser
            raise ConfigError(f"schema={schema!r} can't be parsed by Spark: {str(error).strip()}") from None
    if not isinstance(schema, StructType):
        kind = schema.simpleString() if isinstance(schema, DataType) else repr(schema)
        raise ConfigError(f'schema={kind}: give a StructType, or one as in "id bigint, at timestamp"')
    return schema


def _column(name: str) -> Any:
    from pyspark.sql.functions import col

    return col("`{}`".format(name.replace("`", "``")))


def _fields(fields: Any) -> list[Any]:
    from pyspark.sql.functions import col

    return [col(_DECODED)[name].alias(name) for name in fields.names]


def _where(columns: Sequence[str]) -> Any:
    """Return the beginning of the error about one row."""
    from pyspark.sql.functions import col, concat, lit

    end = lit(' does not decode as JSON of the schema (mode="permissive" accepts such values): ')
    if not {"topic", "partition", "offset"} <= set(columns):
        return concat(lit("a value"), end)
    return concat(
        lit("the value at offset "), col("offset"), lit(" of "), col("topic"), lit("-"), col("partition"), end
    )
