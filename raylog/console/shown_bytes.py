"""How bytes of a record are shown: JSON, text, or hex, cut where they are long.

Of bytes in the wire format of a schema registry (``raylog.schemas.wire_format``) the schema's id is
shown. With a registry (``--schema-registry``) they are decoded to JSON, or shown as hex with the reason
why not. Without one, what follows is shown as JSON if it is JSON (as of JSON Schema), else as hex.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from typing import Final

from raylog.schemas.decoding import Decoded, NotDecoded, Reading, as_json
from raylog.schemas.wire_format import HEADER_BYTES, schema_id_of

SHOWN_BYTES: Final = 2_000
"""Of a key, value or header in a list."""
SHOWN_BYTES_ALONE: Final = 256 * 1024
"""Of a record on a page of its own."""
HEX_BYTES: Final = 16
HEX_SHOWN_MAX: Final = 4_096
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r")


@dataclass(frozen=True, slots=True)
class ShownBytes:
    """``text`` shows the first ``shown_bytes`` of ``whole_bytes``: of the data, or of the JSON that it
    was decoded to. ``kind``: null, JSON, text, hex, or such as "schema 7, Avro shop.Order". ``reason``:
    why the data was not decoded; empty where it needn't be.
    """

    kind: str
    text: str
    size_bytes: int
    shown_bytes: int
    whole_bytes: int
    reason: str = ""

    @property
    def is_cut(self) -> bool:
        return self.shown_bytes < self.whole_bytes


def shown(data: bytes | None, most: int = SHOWN_BYTES, reading: Reading | None = None) -> ShownBytes:
    """At most ``most`` of the bytes, as what they seem to be, or as JSON where they are decoded."""
    if data is None:
        return ShownBytes("null", "", 0, 0, 0)
    schema_id = schema_id_of(data)
    if schema_id is None:
        return _shown(data[: most + 1], len(data), most)
    match None if reading is None else reading.decoded(data):
        case Decoded() as found:
            return _decoded(found, len(data), most)
        case NotDecoded(reason=reason):
            pass
        case None:
            reason = ""
    head, size_bytes = data[HEADER_BYTES : HEADER_BYTES + most + 1], len(data) - HEADER_BYTES
    payload = _shown(head, size_bytes, most)
    if payload.kind == "text":  # an Avro string looks like text, with its length as a letter
        payload = _hex(head, size_bytes, most)
    kind, shown_bytes = f"schema {schema_id}, {payload.kind}", payload.shown_bytes + HEADER_BYTES
    return ShownBytes(kind, payload.text, len(data), shown_bytes, len(data), reason)


def _decoded(found: Decoded, size_bytes: int, most: int) -> ShownBytes:
    whole = found.text(indent=2).encode()
    text = _text_of(whole[:most], is_whole=len(whole) <= most)
    assert text is not None, "JSON is text without control characters"
    kind = f"schema {found.schema_id}, {found.kind}"
    return ShownBytes(kind, text, size_bytes, len(text.encode()), len(whole))


def _shown(head: bytes, size_bytes: int, most: int) -> ShownBytes:
    """``head``: one byte more than may be shown, if there are so many."""
    text = _text_of(head[:most], is_whole=size_bytes <= most)
    if text is None:
        return _hex(head, size_bytes, most)
    shown_bytes = len(text.encode())
    if size_bytes <= most and text.lstrip()[:1] in ("{", "["):
        try:
            return ShownBytes("JSON", as_json(json.loads(text), indent=2), size_bytes, size_bytes, size_bytes)
        except (ValueError, RecursionError):
            pass
    return ShownBytes("text", text, size_bytes, shown_bytes, size_bytes)


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
    return ShownBytes("hex", "\n".join(lines), size_bytes, len(data), size_bytes)
