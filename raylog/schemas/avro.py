"""Avro, decoded by fastavro, which is not let near bytes that nobody has walked through.

fastavro recurses in C as deep as the bytes say, so 5,000 of them can end the process; and an array of
items that take no bytes may have any number of them. ``Walk`` therefore follows the payload first, by
the schema, within bounds: it builds nothing. After it, fastavro's work is bounded, too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from raylog.schemas.wire_format import NotDecodedError, zigzag

DEPTH_MAX: Final = 200
"""Unions and the records in them are a level each."""
VALUES_MAX: Final = 200_000
SCHEMA_DEPTH_MAX: Final = 200
DECIMAL_BYTES_MAX: Final = 1_024
"""Of a number: to make a text of one takes the square of its length."""
_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}

Schema = Any
"""fastavro's: a dict, a list (a union), or a name."""


class AvroSchema:
    """One schema. ``referenced``: the texts of those that it needs, each before those that need it."""

    def __init__(self, text: str, referenced: Sequence[str] = ()) -> None:
        """Raises NotDecodedError, and whatever fastavro raises of a schema that is none."""
        from fastavro.schema import parse_schema

        self.size_bytes = len(text) + sum(map(len, referenced))
        self._names: dict[str, Any] = {}
        for each in referenced:
            parse_schema(_parsed(each), named_schemas=self._names)
        self._schema: Schema = parse_schema(_parsed(text), named_schemas=self._names)
        self._title = f"Avro {name_of(self._schema)}"

    def decode(self, payload: bytes) -> tuple[str, Any]:
        """As ``ReadySchema``."""
        from fastavro import schemaless_reader

        end = Walk(payload, self._names).through(self._schema, 0, 0)
        if end != len(payload):
            raise NotDecodedError(f"{len(payload) - end:,} bytes are left behind what the schema describes")
        value = schemaless_reader(io.BytesIO(payload), self._schema, None, handle_unicode_errors="replace")
        return self._title, value


class Walk:
    """Through one payload. ``names``: the named types."""

    def __init__(self, payload: bytes, names: Mapping[str, Schema]) -> None:
        self._payload = payload
        self._names = names
        self._values = 0

    def through(self, schema: Schema, at: int, depth: int) -> int:
        """Where the value ends that begins there. Raises NotDecodedError."""
        if depth > DEPTH_MAX:
            raise NotDecodedError(f"it is nested deeper than {DEPTH_MAX} levels")
        self._values += 1
        if self._values > VALUES_MAX:
            raise NotDecodedError(f"it has more than {VALUES_MAX:,} values")
        if isinstance(schema, str) and schema in self._names:
            schema = self._names[schema]
        if isinstance(schema, list):
            branch, at = zigzag(self._payload, at)
            if not 0 <= branch < len(schema):
                raise NotDecodedError(f"it names branch {branch} of a union of {len(schema)}")
            return self.through(schema[branch], at, depth + 1)
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "int" | "long" | "enum":
                return zigzag(self._payload, at)[1]
            case "bytes" | "string":
                return self._skipped(*zigzag(self._payload, at), schema)
            case "fixed":
                return self._skipped(schema["size"], at, schema)
            case "record" | "error":
                for each in schema["fields"]:
                    at = self.through(each["type"], at, depth + 1)
                return at
            case "array":
                return self._blocks(at, lambda start: self.through(schema["items"], start, depth + 1))
            case "map":
                return self._blocks(
                    at,
                    lambda start: self.through(
                        schema["values"], self._skipped(*zigzag(self._payload, start), "string"), depth + 1
                    ),
                )
            case str() if kind in _FIXED_BYTES:
                return self._skipped(_FIXED_BYTES[kind], at, schema)
            case _:  # {"type": {"type": …}}
                return self.through(kind, at, depth + 1)

    def _blocks(self, at: int, item: Callable[[int], int]) -> int:
        """Of an array or a map: a count and so many items, until a count of 0; a negative count has the
        block's size behind it.
        """
        while True:
            count, at = zigzag(self._payload, at)
            if count == 0:
                return at
            if count < 0:
                count, at = -count, zigzag(self._payload, at)[1]
            for _ in range(count):
                at = item(at)

    def _skipped(self, size: int, at: int, schema: Schema) -> int:
        is_decimal = isinstance(schema, dict) and schema.get("logicalType") == "decimal"
        if is_decimal and size > DECIMAL_BYTES_MAX:
            raise NotDecodedError(f"it has a number of more than {DECIMAL_BYTES_MAX:,} bytes")
        if not 0 <= size <= len(self._payload) - at:
            raise NotDecodedError("it ends within a value")
        return at + size


def name_of(schema: Schema) -> str:
    """For people."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        return str(schema.get("name") or name_of(schema["type"]))
    return str(schema)


def _parsed(text: str) -> Any:
    """The JSON of a schema. A bare name is one, too, of before JSON was asked for."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise NotDecodedError("its schema is no JSON") from None
    layer, depth = [found], 0
    while layer:
        depth += 1
        if depth > SCHEMA_DEPTH_MAX:
            raise NotDecodedError(f"its schema is nested deeper than {SCHEMA_DEPTH_MAX} levels")
        layer = [
            part
            for each in layer
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return found
