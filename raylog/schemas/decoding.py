"""Bytes in, JSON out: what the console and ``raylog consume`` use of this room.

A payload of more than ``DECODED_BYTES_MAX`` is not decoded. Of Avro's types that JSON lacks, bytes
become a text of as many characters (as in Avro's own JSON), decimals, times and UUIDs texts for
people; of Protobuf's, what Protobuf's own JSON has.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from datetime import time as time_of_day
from typing import Any, Final

from raylog.extras import need
from raylog.schemas.avro import AvroSchema
from raylog.schemas.protobuf import ProtobufSchema
from raylog.schemas.registry import RegisteredSchema, RegistrySettings, SchemaRegistry, shortened
from raylog.schemas.schema_cache import WAIT_S, ReaderPatience, ReadySchema, SchemaCache
from raylog.schemas.wire_format import HEADER_BYTES, NotDecodedError, schema_id_of

DECODED_BYTES_MAX: Final = 256 * 1024
REFERENCES_MAX: Final = 100
REFERENCES_S: Final = 20.0
"""How long a schema and those that it refers to may take in all."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """``kind``: "Avro shop.Order"; "Protobuf shop.Order"; "JSON Schema"."""

    schema_id: int
    kind: str
    value: Any

    def text(self, indent: int | None = None) -> str:
        """As JSON."""
        return as_json(self.value, indent)


@dataclass(frozen=True, slots=True)
class NotDecoded:
    """``reason``: a clause for a reader."""

    schema_id: int
    reason: str


class SchemaDecoder:
    """Of one registry; usable from any thread. MissingExtraError without ``raylog[schemas]``."""

    def __init__(self, settings: RegistrySettings) -> None:
        for package in ("fastavro", "google.protobuf"):
            need(package, "--schema-registry")
        self._registry = SchemaRegistry(settings)
        self._cache = SchemaCache(self._ready)

    def reading(self, wait_s: float = WAIT_S, decoding_s: float = math.inf) -> Reading:
        """For one page, or what one poll of a consumer brought: it waits for the registry, and decodes,
        for so many seconds in all.
        """
        return Reading(self._cache, ReaderPatience(wait_s), decoding_s)

    def _ready(self, schema_id: int) -> ReadySchema:
        """Ask the registry. Raises NotDecodedError."""
        schema = self._registry.schema(schema_id)
        match schema.kind:
            case "AVRO":
                return AvroSchema(schema.text, [each.text for _, each in self._referenced(schema)])
            case "PROTOBUF":
                files = {name: each.text for name, each in self._referenced(schema)}
                return ProtobufSchema(schema.text, files)
            case "JSON":
                return JsonSchema(len(schema.text))
            case kind:
                raise NotDecodedError(f"raylog knows no schemas of type {shortened(kind)}")

    def _referenced(self, schema: RegisteredSchema) -> list[tuple[str, RegisteredSchema]]:
        """By the names that refer to them, each before those that need it."""
        seen: set[tuple[str, str, int]] = set()
        until = time.monotonic() + REFERENCES_S

        def below(one: RegisteredSchema) -> Iterator[tuple[str, RegisteredSchema]]:
            for reference in one.references:
                key = (reference.name, reference.subject, reference.version)
                if key in seen:
                    continue
                seen.add(key)
                if len(seen) > REFERENCES_MAX:
                    raise NotDecodedError(f"its schema refers to more than {REFERENCES_MAX} others")
                if time.monotonic() > until:
                    raise NotDecodedError(f"the schemas that its schema refers to took more than {REFERENCES_S:.0f} s")
                found = self._registry.referenced(reference)
                if found.kind != schema.kind:
                    raise NotDecodedError("its schema refers to one of another type")
                yield from below(found)
                yield reference.name, found

        return list(below(schema))


class Reading:
    """Decodes for one reader; of one thread."""

    def __init__(self, cache: SchemaCache, patience: ReaderPatience, decoding_s: float) -> None:
        self._cache = cache
        self._patience = patience
        self._decoding_s = decoding_s
        self._decoded_s = 0.0

    def decoded(self, data: bytes) -> Decoded | NotDecoded | None:
        """None: the bytes name no schema."""
        schema_id = schema_id_of(data)
        if schema_id is None:
            return None
        try:
            if len(data) - HEADER_BYTES > DECODED_BYTES_MAX:
                raise NotDecodedError(f"it has more than {DECODED_BYTES_MAX // 1024} KiB")
            if self._decoded_s > self._decoding_s:
                raise NotDecodedError(f"this page has decoded for {self._decoding_s:.0f} seconds")
            schema = self._cache.schema(schema_id, self._patience)
            begun_s = time.monotonic()
            kind, value = schema.decode(data[HEADER_BYTES:])
            self._decoded_s += time.monotonic() - begun_s
        except NotDecodedError as error:
            return NotDecoded(schema_id, str(error))
        except Exception as error:  # a library's, of bytes that anybody may have written
            return NotDecoded(
                schema_id, f"it does not fit its schema ({shortened(str(error)) or type(error).__name__})"
            )
        return Decoded(schema_id, kind, value)


class JsonSchema:
    """Only says that the payload is JSON: to be seen, it need not be valid."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def decode(self, payload: bytes) -> tuple[str, Any]:
        """As ``ReadySchema``."""
        try:
            return "JSON Schema", json.loads(payload)
        except (ValueError, RecursionError):
            raise NotDecodedError("it is no JSON") from None


def as_json(value: Any, indent: int | None = None) -> str:
    """Text that can be encoded, whatever the value's texts have in them."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, default=_plain, allow_nan=False)
    except ValueError:  # NaN, or an infinity
        text = json.dumps(_finite(value), ensure_ascii=False, indent=indent, default=_plain)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, as "\\ud800" is in JSON
        return json.dumps(_finite(value), indent=indent, default=_plain)
    return text


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return value.decode("latin-1")
    if isinstance(value, datetime | date | time_of_day):
        return value.isoformat()
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
