"""Removes tagged fields that the schema does not have from an encoded entity.

Kafka's protocol grows by tagged fields, which a reader that does not know them has to ignore
(KIP-482); kio refuses them. So when it does, the entity is copied without them and decoded again.
This is slow and rare: it happens when a peer is newer than the codec. The lengths have been checked
before (``raylog.wire.bounds``).
"""

from __future__ import annotations

from raylog.wire.bounds import read_varint
from raylog.wire.encoding import varint
from raylog.wire.schema import FIXED_SIZES, EntityClass, WireField, fields_of

Frame = bytes | memoryview


def without_unknown_tags(entity: EntityClass, frame: Frame, position: int) -> bytes:
    """The entity's bytes, with every tagged field that this version of the schema lacks left out,
    at any depth.
    """
    parts: list[Frame] = []
    _copy_entity(entity, frame, position, parts)
    return b"".join(parts)


def _copy_entity(entity: EntityClass, frame: Frame, position: int, parts: list[Frame]) -> int:
    fields = fields_of(entity)
    for field in fields:
        if field.tag is None:
            position = _copy_field(field, entity.__flexible__, frame, position, parts)
    if not entity.__flexible__:
        return position
    known = {field.tag: field for field in fields if field.tag is not None}
    kept: list[bytes] = []
    count, position = read_varint(frame, position)
    for _ in range(count):
        tag, position = read_varint(frame, position)
        size, position = read_varint(frame, position)
        if tag in known:
            value: list[Frame] = []
            _copy_field(known[tag], True, frame, position, value)
            data = b"".join(value)
            kept.append(varint(tag) + varint(len(data)) + data)
        position += size
    parts.append(varint(len(kept)) + b"".join(kept))
    return position


def _copy_field(field: WireField, flexible: bool, frame: Frame, position: int, parts: list[Frame]) -> int:
    if not field.is_array:
        return _copy_item(field, flexible, field.nullable, frame, position, parts)
    count, end = _length(flexible, 4, frame, position)
    parts.append(frame[position:end])
    for _ in range(count):
        end = _copy_item(field, flexible, False, frame, end, parts)
    return end


def _copy_item(
    field: WireField, flexible: bool, nullable: bool, frame: Frame, position: int, parts: list[Frame]
) -> int:
    if field.entity is not None:
        if nullable:
            parts.append(frame[position : position + 1])
            position += 1
            if frame[position - 1] != 1:
                return position
        return _copy_entity(field.entity, frame, position, parts)
    if field.kafka_type in FIXED_SIZES:
        end = position + FIXED_SIZES[field.kafka_type]
    else:
        size, start = _length(flexible, 2 if field.kafka_type == "string" else 4, frame, position)
        end = start + max(0, size)
    parts.append(frame[position:end])
    return end


def _length(flexible: bool, width: int, frame: Frame, position: int) -> tuple[int, int]:
    """A length as stored, and the position behind it; below 0 for null."""
    if flexible:
        length, position = read_varint(frame, position)
        return length - 1, position
    return int.from_bytes(frame[position : position + width], "big", signed=True), position + width
