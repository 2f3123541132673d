"""The answer to any Kafka request that says nothing but an error, made out of kio's description of
the two messages.

An answer repeats what was asked and puts an error beside each item: ``refusal`` builds it by
walking the answer's fields next to the request's. A list of things that carry errors takes one
thing for each in the request's list at the same place (of the same name, or the only one there is).
Names and ids are copied, and numbers that the schema has no default for; everything else says that
it is not known. Where in the answer the error stands is the API's (``ErrorPlace``). A request for
everything, whose answer could say its error at items alone, gets one item that names nothing.

``refused_with`` is the way back: the error that an answer refuses its whole request with.

How a class is filled in is found out once for each pair of classes of request and answer.
"""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from raylog.kafka.spec import ApiSpec, ErrorPlace
from raylog.kafka.table import DESCRIBE_QUORUM
from raylog.wire.schema import EntityClass, WireField, fields_of

_NUMBERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_UNKNOWN = (
    "offset", "epoch", "leader_id", "producer_id", "coordinator", "node_id", "controller_id", "watermark", "timestamp"
)  # fmt: skip
"""What a number is called that is −1 where it is not known, and that no answer repeats."""


def refusal(spec: ApiSpec, version: int, body: Any, error: ErrorCode, message: str | None = None) -> Any:
    """The answer to that request which refuses all of it, in that API's own words; with no error,
    one that says nothing.
    """
    kind = load_response_schema(spec.key, version)
    answer, is_told = _entity(kind, body, error, message, spec.refused_at)
    if is_told or error is ErrorCode.none:
        return answer
    return _said_of_nothing(kind, answer, body, error, message)


def refused_item(kind: EntityClass, asked: Any, error: ErrorCode, message: str | None = None, **stated: Any) -> Any:
    """One item of an answer, refused: of that class, about that item of the request. ``stated``
    fields are as given.
    """
    values = _values(_plan(kind, _class_of(asked)), asked, error, message)
    return kind(**(values | stated))


def refused_with(reply: Any) -> ErrorCode:
    """The error that a reply refuses its whole request with: one at the top, else its first item's,
    which all have then.
    """
    return _first_error(reply) or ErrorCode.none


def is_not_controller(reply: Any) -> bool:
    """Whether a reply, of a Kafka API or a private one, is that of a controller that is not the
    active one.
    """
    key = getattr(type(reply), "__api_key__", None)
    if key is None:
        return False
    error = refused_with(reply)
    return error is ErrorCode.not_controller or (
        key == DESCRIBE_QUORUM.key and error is ErrorCode.not_leader_or_follower
    )


# ------------------------------------------------------------------ filling in


@dataclass(frozen=True, slots=True)
class _Items:
    """A list of things that carry errors. ``lists`` of the request are tried in this order."""

    name: str
    kind: EntityClass
    lists: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How an entity of the answer is filled in from one of the request. ``bare``: the field that a
    request's bare value goes to. ``copied``: a field, the request's one that it repeats, and what it
    says where the request has null.
    """

    fixed: dict[str, Any]
    copied: tuple[tuple[str, str, Any], ...]
    bare: str | None
    error: str | None
    message: str | None
    items: tuple[_Items, ...]


def _entity(
    kind: EntityClass, asked: Any, error: ErrorCode, message: str | None, place: ErrorPlace
) -> tuple[Any, bool]:
    """The entity, and whether an error stands in it."""
    plan = _plan(kind, _class_of(asked))
    if place is ErrorPlace.OUTERMOST and plan.error is not None:
        return kind(**_values(plan, asked, error, message)), True
    is_told = False
    found: dict[str, tuple[Any, ...]] = {}
    for items in plan.items:
        pairs = [_entity(items.kind, each, error, message, place) for each in _asked_for(items, asked)]
        found[items.name] = tuple(entity for entity, _ in pairs)
        is_told = is_told or any(told for _, told in pairs)
    tells = plan.error is not None and (not is_told or place is ErrorPlace.EVERYWHERE)
    values = _values(plan, asked, error, message) if tells else _values(plan, asked, ErrorCode.none, None)
    return kind(**(values | found)), tells or is_told


def _said_of_nothing(kind: EntityClass, answer: Any, body: Any, error: ErrorCode, message: str | None) -> Any:
    """The answer to a request for everything, whose items alone have a place for errors: one item
    that names nothing.
    """
    plan = _plan(kind, _class_of(body))
    for items in plan.items:
        if any(getattr(body, name) is None for name in items.lists):
            item = _nothing(items.kind, error, message)
            return dataclasses.replace(answer, **{items.name: (item,)})
    return answer


def _nothing(kind: EntityClass, error: ErrorCode, message: str | None) -> Any:
    plan = _plan(kind, _class_of(None))
    values = _values(plan, None, error, message)
    if plan.error is None:
        values |= {items.name: (_nothing(items.kind, error, message),) for items in plan.items}
    return kind(**values)


def _values(plan: _Plan, asked: Any, error: ErrorCode, message: str | None) -> dict[str, Any]:
    values = dict(plan.fixed)
    for name, of, instead in plan.copied:
        told = getattr(asked, of)
        values[name] = instead if told is None else told
    if plan.bare is not None:
        values[plan.bare] = asked
    if plan.error is not None:
        values[plan.error] = error
    if plan.message is not None:
        values[plan.message] = message
    return values


def _asked_for(items: _Items, asked: Any) -> Iterable[Any]:
    """What the request holds at the place of that list of the answer."""
    return next((found for name in items.lists if (found := getattr(asked, name))), ())


# ------------------------------------------------------------------ how to fill in


def _class_of(thing: Any) -> EntityClass:
    return type(thing)


@cache
def _plan(kind: EntityClass, asked: EntityClass) -> _Plan:
    asked_fields = fields_of(asked) if hasattr(asked, "__dataclass_fields__") else ()
    has_default = {each.name for each in dataclasses.fields(kind) if each.default is not dataclasses.MISSING}
    bare = None if asked_fields else _naming(kind, asked)
    fixed: dict[str, Any] = {}
    copied: list[tuple[str, str, Any]] = []
    items: list[_Items] = []
    error = message = None
    for field in fields_of(kind):
        if field.is_array and _carries_error(field.entity):
            items.append(_Items(field.name, field.entity, _counterparts(field, asked_fields)))
            fixed[field.name] = ()
        elif field.name == bare:
            continue
        elif field.kafka_type == "error_code" and not field.is_array:
            error, fixed[field.name] = error or field.name, ErrorCode.none
        elif field.name == "error_message" and field.nullable:
            message = field.name
        elif (source := _source(field, asked_fields, field.name in has_default)) is not None:
            copied.append((field.name, source, _empty(field)))
        elif field.name not in has_default:
            fixed[field.name] = _empty(field)
    return _Plan(fixed, tuple(copied), bare, error, message, tuple(items))


@cache
def _carries_error(kind: EntityClass | None) -> bool:
    return kind is not None and any(
        field.kafka_type == "error_code" or _carries_error(field.entity) for field in fields_of(kind)
    )


def _counterparts(field: WireField, asked: Iterable[WireField]) -> tuple[str, ...]:
    """The request's lists that may be at the place of that list of the answer: of the same name,
    else of things, else of bare values.
    """
    lists = [each for each in asked if each.is_array]
    if any(each.name == field.name for each in lists):
        return (field.name,)
    return tuple(each.name for each in sorted(lists, key=lambda each: each.entity is None))


def _naming(kind: EntityClass, asked: EntityClass) -> str | None:
    """The first field that a bare name, number or id fits into."""
    wanted = next((name for name, of in _BARE.items() if issubclass(asked, of)), None)
    if wanted is None:
        return None
    return next((each.name for each in fields_of(kind) if each.kafka_type == wanted and not each.is_array), None)


_BARE = {"string": str, "int32": int, "uuid": uuid.UUID}


def _source(field: WireField, asked: Iterable[WireField], has_default: bool) -> str | None:
    """The request's field that the answer repeats in this one."""
    is_number = field.kafka_type not in ("string", "uuid")
    if field.is_array or field.entity is not None or (is_number and (has_default or field.name.endswith(_UNKNOWN))):
        return None
    for name in (field.name, *_OTHER_NAMES.get(field.name, ())):
        for each in asked:
            if each.name == name and each.kafka_type == field.kafka_type and not each.is_array:
                return name
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
        return None if field.nullable else _nothing(field.entity, ErrorCode.none, None)
    if field.nullable and kind != "records":
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

# ------------------------------------------------------------------ reading


def _first_error(entity: Any) -> ErrorCode | None:
    """The error of an entity, else that of its first thing that has a place for one; None if
    nothing has.
    """
    own, lists = _error_fields(_class_of(entity))
    error: ErrorCode | None = getattr(entity, own) if own is not None else None
    if error is not None and error is not ErrorCode.none:
        return error
    for name in lists:
        for each in getattr(entity, name) or ():
            found = _first_error(each)
            if found is not None:
                return found
    return error


@cache
def _error_fields(kind: EntityClass) -> tuple[str | None, tuple[str, ...]]:
    plan = _plan(kind, _class_of(None))
    return plan.error, tuple(items.name for items in plan.items)
