"""How bytes of a record are shown: JSON, text, or hex, cut where they are long.

A value in the wire format of a schema registry begins with the byte 0 and the schema's id in four
bytes (big-endian). The id is shown, and what follows as JSON if it is JSON (as of JSON Schema), else
as hex: Avro and Protobuf need the schema itself, which is not fetched.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from typing import Final

SHOWN_BYTES: Final = 2_000
"""Of a key, value or header in a list."""
SHOWN_BYTES_ALONE: Final = 256 * 1024
"""Of a record on a page of its own."""
SCHEMA_ID_MAX: Final = 10_000_000
"""Larger "ids" are taken for a number that happens to begin with a zero byte."""
HEX_BYTES: Final = 16
HEX_SHOWN_MAX: Final = 4_096
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r")


@dataclass(frozen=True, slots=True)
class ShownBytes:
    """``text`` shows the first ``shown_bytes`` of ``size_bytes``. ``kind``: null, JSON, text, hex, or
    "schema 7, JSON".
    """

    kind: str
    text: str
    size_bytes: int
    shown_bytes: int

    @property
    def is_cut(self) -> bool:
        return self.shown_bytes < self.size_bytes


def shown(data: bytes | None, most: int = SHOWN_BYTES) -> ShownBytes:
    """At most ``most`` of the bytes, as what they seem to be."""
    if data is None:
        return ShownBytes("null", "", 0, 0)
    schema_id = schema_id_of(data)
    if schema_id is not None:
        payload = _shown(data[5 : most + 6], len(data) - 5, most)
        if payload.kind == "text":  # an Avro string looks like text, with its length as a letter
            payload = _hex(data[5 : most + 6], len(data) - 5, most)
        return ShownBytes(f"schema {schema_id}, {payload.kind}", payload.text, len(data), payload.shown_bytes + 5)
    return _shown(data[: most + 1], len(data), most)


def schema_id_of(data: bytes) -> int | None:
    """The id of the schema in a schema registry; None for other bytes."""
    if len(data) < 6 or data[0] != 0:
        return None
    found = int.from_bytes(data[1:5], "big")
    return found if 1 <= found <= SCHEMA_ID_MAX else None


def _shown(head: bytes, size_bytes: int, most: int) -> ShownBytes:
    """``head``: one byte more than may be shown, if there are so many."""
    text = _text_of(head[:most], is_whole=size_bytes <= most)
    if text is None:
        return _hex(head, size_bytes, most)
    shown_bytes = len(text.encode())
    if size_bytes <= most and text.lstrip()[:1] in ("{", "["):
        try:
            return ShownBytes(
                "JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False), size_bytes, size_bytes
            )
        except (ValueError, RecursionError):
            pass
    return ShownBytes("text", text, size_bytes, shown_bytes)


def _text_of(data: bytes, *, is_whole: bool) -> str | None:
    """UTF-8 without control characters; what is cut may end within a character."""
    if _CONTROLS.intersection(data):
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return None


def _hex(head: bytes, size_bytes: int, most: int) -> ShownBytes:
    data = head[: min(most, HEX_SHOWN_MAX)]
    lines = []
    for start in range(0, len(data), HEX_BYTES):
        part = data[start : start + HEX_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<{3 * HEX_BYTES - 1}}  {letters}")
    return ShownBytes("hex", "\n".join(lines), size_bytes, len(data))
