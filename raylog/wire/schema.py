"""What kio's entity classes say about their bytes, as plain lists of fields.

kio describes a message by a frozen dataclass whose fields carry Kafka's type in their metadata.
``bounds`` and ``encoding`` compile these descriptions; nothing else in raylog looks inside kio's
classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

EntityClass = Any
"""A class of kio's. (mypy holds ``type[Any]`` to be unhashable.)"""

FIXED_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
"""Bytes of the types whose size does not depend on the value."""

VARIABLE_TYPES: Final = frozenset({"string", "bytes", "records"})


@dataclass(frozen=True, slots=True)
class WireField:
    """One field.

    ``kafka_type`` is None for a nested entity, whose class is ``entity``; ``default`` matters for
    tagged fields only. ``nullable``: kio reads null; ``null_is_valid``: the schema allows it, too.
    """

    name: str
    kafka_type: str | None
    entity: EntityClass | None
    is_array: bool
    nullable: bool
    null_is_valid: bool
    tag: int | None
    default: Any


@cache
def fields_of(entity: EntityClass) -> tuple[WireField, ...]:
    """The fields in wire order: untagged ones as declared, then tagged ones by tag."""
    plain: list[WireField] = []
    tagged: list[WireField] = []
    for field in dataclasses.fields(entity):
        tag = get_field_tag(field)
        kind = classify_field(field)
        nested = isinstance(kind, EntityField | EntityTupleField)
        described = WireField(
            name=field.name,
            kafka_type=None if nested else get_schema_field_type(field),
            entity=kind.type_ if nested else None,
            is_array=kind.is_array,
            nullable=_is_nullable(field, kind.is_array, tag is not None),
            null_is_valid=is_optional(field),
            tag=None if tag is None else int(tag),
            default=None if tag is None else get_tagged_field_default(field),
        )
        (plain if tag is None else tagged).append(described)
    return (*plain, *sorted(tagged, key=lambda field: field.tag or 0))


def _is_nullable(field: dataclasses.Field[Any], is_array: bool, is_tagged: bool) -> bool:
    """Whether the bytes can say null.

    Arrays always can (kio reads null arrays everywhere); a tagged field says null by absence.
    """
    return is_array or (not is_tagged and is_optional(field))


@cache
def size_min(entity: EntityClass) -> int:
    """The fewest bytes that an instance takes: what bounds how many of them a frame can hold."""
    flexible = entity.__flexible__
    total = 1 if flexible else 0  # the number of tagged fields
    for field in fields_of(entity):
        if field.tag is not None:
            continue
        if field.is_array:
            total += 1 if flexible else 4
        elif field.entity is not None:
            total += 1 if field.nullable else size_min(field.entity)
        elif field.kafka_type in FIXED_SIZES:
            total += FIXED_SIZES[field.kafka_type]
        else:
            total += 1 if flexible else (2 if field.kafka_type == "string" else 4)
    return total


@cache
def _leads_to_records(entity: EntityClass) -> bool:
    return any(
        field.kafka_type == "records" or (field.entity is not None and _leads_to_records(field.entity))
        for field in fields_of(entity)
    )


def record_fields(entity: Any) -> Iterator[tuple[Any, str]]:
    """Every field of records in an instance: who holds it, and its name; in wire order."""
    kind: EntityClass = type(entity)
    for field in fields_of(kind):
        if field.kafka_type == "records":
            yield entity, field.name
        elif field.entity is not None and _leads_to_records(field.entity):
            value = getattr(entity, field.name)
            for each in (value or ()) if field.is_array else (value,):
                if each is not None:
                    yield from record_fields(each)
