"""Checks that a frame's lengths fit its bytes, before kio decodes it.

kio's decoder is native: it reserves memory for an array's announced length before it has seen an
element, and where the allocator declines, the process aborts. So a frame of a hundred bytes that
announces two billion elements would kill a server. The check walks the structure once, touches
lengths only and costs about as much as kio's decoding; it is compiled from kio's classes, one
function per class, because a generic walk would cost ten times that.

Promise: if ``checker(entity)(frame, position, end)`` returns a position, then every length in the
frame lies within the frame, every array holds at most ``ARRAY_LENGTH_MAX`` elements and at most as
many as the remaining bytes could encode, and none is null whose field the schema does not allow
that, which kio's decoder takes and handlers do not expect. It says nothing about values (text that is not UTF-8,
error codes nobody knows): those kio refuses with an exception.

On its way it notes where the records are, so that large ones need not be copied by the decoder
(``frames``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from raylog.errors import ProtocolError
from raylog.wire.schema import FIXED_SIZES, EntityClass, WireField, fields_of, size_min

ARRAY_LENGTH_MAX: Final = 1_000_000

Span = tuple[int, int, int]
"""Of a field of records: where its length stands, where its bytes start, and where they end."""
Checker = Callable[[bytes | memoryview, int, int, list[Span]], int]


def check(checker: Checker, frame: bytes | memoryview, position: int, spans: list[Span] | None = None) -> int:
    """Where the entity ends. Raises ProtocolError if it does not fit into the frame.

    ``spans`` takes the fields of records, in wire order.
    """
    end = len(frame)
    try:
        position = checker(frame, position, end, [] if spans is None else spans)
    except IndexError:
        raise ProtocolError(f"the frame of {end} bytes ends within a field") from None
    if position > end:
        raise ProtocolError(f"a field of the frame ends {position - end} bytes behind its {end} bytes")
    return position


@cache
def checker(entity: EntityClass) -> Checker:
    """The compiled check of one class:

    ``(frame, position, end, spans) -> position behind it``, IndexError behind the frame's end.
    """
    source = _CheckSource(entity)
    source.write_entity()
    namespace = source.names
    exec(compile(source.text(), f"<bounds of {entity.__module__}.{entity.__name__}>", "exec"), namespace)
    compiled: Checker = namespace["check_entity"]
    return compiled


def read_varint(frame: bytes | memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes, and the position behind it."""
    value = 0
    for shift in range(0, 35, 7):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtocolError("a varint of more than five bytes")


def refuse_array(count: int, position: int, end: int) -> None:
    raise ProtocolError(f"an array claims {count} elements with {end - position} bytes left in the frame")


def refuse_null(entity: str, field: str) -> None:
    raise ProtocolError(f"{entity}.{field} is null, which it cannot be")


def refuse_marker(marker: int) -> None:
    raise ProtocolError(f"a nullable structure that starts with {marker}, neither 1 nor −1")


class _CheckSource:
    """The source text of one check, being written."""

    def __init__(self, entity: EntityClass) -> None:
        self.entity = entity
        self.flexible: bool = entity.__flexible__
        self.names: dict[str, Any] = {
            "varint": read_varint,
            "refuse_array": refuse_array,
            "refuse_marker": refuse_marker,
            "refuse_null": refuse_null,
        }
        self.lines: list[str] = []
        self.pending = 0  # fixed bytes not yet skipped

    def text(self) -> str:
        return "\n".join(self.lines)

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def skip(self, depth: int, count: int) -> None:
        if count:
            self.line(depth, f"p += {count}")

    def flush(self, depth: int) -> None:
        self.skip(depth, self.pending)
        self.pending = 0

    def write_entity(self) -> None:
        self.line(0, "def check_entity(b, p, end, spans):")
        for field in fields_of(self.entity):
            if field.tag is None:
                self.write_field(1, field)
        self.flush(1)
        if self.flexible:
            self.write_tagged([field for field in fields_of(self.entity) if field.tag is not None])
        self.line(1, "return p")

    def write_field(self, depth: int, field: WireField) -> None:
        if field.is_array:
            self.flush(depth)
            self.write_array(depth, field)
        elif field.entity is not None:
            self.flush(depth)
            name = self.nested(field.entity)
            if field.nullable:
                self.line(depth, "p += 1")
                self.line(depth, f"if b[p - 1] == 1: p = {name}(b, p, end, spans)")
                self.line(depth, "elif b[p - 1] != 255: refuse_marker(b[p - 1])")
            else:
                self.line(depth, f"p = {name}(b, p, end, spans)")
        elif field.kafka_type in FIXED_SIZES:
            self.pending += FIXED_SIZES[field.kafka_type]
        else:
            self.flush(depth)
            self.write_variable(depth, field.kafka_type or "")

    def write_length(self, depth: int, name: str, width: int) -> None:
        """Reads a length; flexible ones are stored plus one, legacy ones are signed with −1 for
        null.
        """
        if self.flexible:
            self.line(depth, f"{name} = b[p]; p += 1")
            self.line(depth, f"if {name} > 127: {name}, p = varint(b, p - 1)")
            self.line(depth, f"{name} -= 1")
        elif width == 2:
            self.line(depth, f"{name} = b[p] << 8 | b[p + 1]; p += 2")
            self.line(depth, f"if {name} > 32767: {name} -= 65536")
        else:
            self.line(depth, f"{name} = b[p] << 24 | b[p + 1] << 16 | b[p + 2] << 8 | b[p + 3]; p += 4")
            self.line(depth, f"if {name} > 2147483647: {name} -= 4294967296")

    def write_variable(self, depth: int, kafka_type: str) -> None:
        is_records = kafka_type == "records"
        if is_records:
            self.line(depth, "s = p")
        self.write_length(depth, "n", 2 if kafka_type == "string" else 4)
        self.line(depth, "if n > 0: p += n")
        if is_records:
            self.line(depth, "spans.append((s, p - max(n, 0), p))")

    def write_array(self, depth: int, field: WireField) -> None:
        self.write_length(depth, "c", 4)
        if not field.null_is_valid:
            self.line(depth, f"if c < 0: refuse_null({self.entity.__name__!r}, {field.name!r})")
        self.line(depth, "if c > 0:")
        inner = depth + 1
        if field.entity is not None:
            smallest = max(1, size_min(field.entity))
        elif field.kafka_type in FIXED_SIZES:
            smallest = FIXED_SIZES[field.kafka_type]
        else:
            smallest = 1 if self.flexible else 2
        self.line(inner, f"if c > {ARRAY_LENGTH_MAX} or c * {smallest} > end - p: refuse_array(c, p, end)")
        if field.entity is not None:
            self.line(inner, f"for _ in range(c): p = {self.nested(field.entity)}(b, p, end, spans)")
        elif field.kafka_type in FIXED_SIZES:
            self.line(inner, f"p += c * {smallest}")
        else:
            self.line(inner, "for _ in range(c):")
            self.write_variable(inner + 1, field.kafka_type or "")

    def write_tagged(self, known: list[WireField]) -> None:
        self.line(1, "t = b[p]; p += 1")
        self.line(1, "if t:")
        self.line(2, "if t > 127: t, p = varint(b, p - 1)")
        self.line(2, f"if t > {ARRAY_LENGTH_MAX} or t * 2 > end - p: refuse_array(t, p, end)")
        self.line(2, "for _ in range(t):")
        self.line(3, "g, p = varint(b, p)")
        self.line(3, "s, p = varint(b, p)")
        self.line(3, "q = p + s")
        for field in known:
            self.line(3, f"if g == {field.tag}:")
            self.write_field(4, field)
            self.flush(4)
            self.line(4, "continue")
        self.line(3, "p = q")

    def nested(self, entity: EntityClass) -> str:
        name = f"check_{entity.__name__}"
        self.names[name] = checker(entity)
        return name
