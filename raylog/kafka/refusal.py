"""The answer to any Kafka request that says nothing but an error, made out of kio's description of the two messages.

An answer repeats what was asked and puts an error beside each item: ``answer_with`` builds it by walking the answer's fields next to the
request's. A list of things that carry errors takes one thing per thing of the request's list at the same place (of the same name, or the
only one there is); names, numbers and ids are copied; all else is empty. The error stands at the innermost items, and only
where there are none of them at the top, as Kafka's brokers do it. Knows no API by name, so that it serves those that come later, too.
"""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.wire.schema import EntityClass, WireField, fields_of

_NUMBERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_UNKNOWN = ("offset", "epoch", "leader_id", "producer_id", "coordinator", "node_id", "controller_id")


def answer_with(code: ErrorCode, answer: EntityClass, request: Any, message: str | None = None) -> Any:
    """An instance of the class ``answer`` for that request."""
    return _entity(answer, request, code, message)[0]


def _entity(kind: EntityClass, asked: Any, code: ErrorCode, message: str | None) -> tuple[Any, bool]:
    """The entity, and whether an error stands in it."""
    values: dict[str, Any] = {}
    has_error = False
    items = [field for field in fields_of(kind) if field.is_array and _carries_error(field.entity)]
    for field in items:
        found = _counterpart(field, asked)
        pairs = [_entity(field.entity, each, code, message) for each in found]
        values[field.name] = tuple(entity for entity, _ in pairs)
        has_error = has_error or any(is_told for _, is_told in pairs)
    has_default = {each.name for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}
    own = [field for field in fields_of(kind) if field.kafka_type == "error_code" and not field.is_array]
    tells = bool(own) and not has_error
    naming = None if dataclasses.is_dataclass(asked) else _naming(kind, asked)
    for field in fields_of(kind):
        if field.name in values:
            continue
        if field is naming:
            values[field.name] = asked
        elif field.kafka_type == "error_code" and not field.is_array:
            values[field.name] = code if tells else ErrorCode.none
        elif field.name == "error_message" and field.nullable:
            values[field.name] = message if tells else None
        elif field.entity is None and (copied := _copied(field, asked)) is not None:
            values[field.name] = copied
        elif field.name not in has_default:
            values[field.name] = _empty(field)
    return kind(**values), tells or has_error


@cache
def _carries_error(kind: EntityClass | None) -> bool:
    return kind is not None and any(
        field.kafka_type == "error_code" or _carries_error(field.entity) for field in fields_of(kind)
    )


def _counterpart(field: WireField, asked: Any) -> tuple[Any, ...]:
    """What the request holds at the place of that list of the answer."""
    lists = [(each, tuple(getattr(asked, each.name) or ())) for each in _fields_asked(asked) if each.is_array]
    for each, found in lists:
        if each.name == field.name:
            return found
    for takes_bare in (False, True):
        for each, found in lists:
            if found and (each.entity is not None or takes_bare):
                return found
    return ()


def _fields_asked(asked: Any) -> tuple[WireField, ...]:
    """The fields of a request or of a thing in it; none of a bare value."""
    return fields_of(_class_of(asked)) if dataclasses.is_dataclass(asked) else ()


def _class_of(thing: Any) -> EntityClass:
    return type(thing)


def _naming(kind: EntityClass, asked: Any) -> WireField | None:
    """The first field that a bare name, number or id fits into."""
    wanted = next((name for name, of in _BARE.items() if isinstance(asked, of)), None)
    return next((each for each in fields_of(kind) if each.kafka_type == wanted and not each.is_array), None)


_BARE = {"string": str, "int32": int, "uuid": uuid.UUID}


def _copied(field: WireField, asked: Any) -> Any:
    """The value of the request's that the answer repeats; None if there is none."""
    if field.is_array:
        return None
    for name in (field.name, *_OTHER_NAMES.get(field.name, ())):
        found = next((each for each in _fields_asked(asked) if each.name == name), None)
        if found is not None and found.kafka_type == field.kafka_type and not found.is_array:
            return getattr(asked, name)
    return None


_OTHER_NAMES = {
    "partition_index": ("index", "partition"),
    "partition_id": ("partition_index", "partition"),
    "name": ("topic",),
    "topic": ("name",),
}
"""What a request calls something that its answer calls otherwise."""


def _empty(field: WireField) -> Any:
    kind = field.kafka_type
    if field.is_array:
        return ()
    if field.entity is not None:
        return None if field.nullable else _entity(field.entity, None, ErrorCode.none, None)[0]
    if field.nullable:
        return None
    if kind in _NUMBERS:
        return -1 if field.name.endswith(_UNKNOWN) and not kind.startswith("u") else 0
    return _EMPTY[kind or ""]


_EMPTY: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
}
