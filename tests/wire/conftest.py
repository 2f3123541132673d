"""What the tests of the wire share: random entities of kio, and coroutines run on both kinds of loop."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import random
import string
import types
import typing
import uuid
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from kio.schema.errors import ErrorCode

from raylog.wire.schema import WireField, fields_of

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXT = string.printable + "äß€😀"


@pytest.fixture
def random_entity() -> Callable[[random.Random, type[Any]], Any]:
    """Makes a random instance of a class, from the same description that the codec is compiled from."""
    return make_entity


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end, on uvloop (what a Ray actor has) and on the standard loop.

    When a test fails, its connections are still open while the loop is closed. uvloop warns of each, and where that warning is an
    error, it never closes the connection: the test would hang instead of failing. So the warnings are collected, and are an error of
    a test that has passed.
    """
    runner = uvloop.run if request.param == "uvloop" else asyncio.run

    def run_bounded(work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(180):
                return await work

        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always", ResourceWarning)
            result = runner(bounded())
        assert not left_open, [str(each.message) for each in left_open]
        return result

    return run_bounded


def make_entity(rng: random.Random, cls: type[Any]) -> Any:
    hints = {field.name: field.type for field in dataclasses.fields(cls)}
    return cls(**{field.name: _value(rng, field, hints[field.name]) for field in fields_of(cls)})


def _value(rng: random.Random, field: WireField, hint: Any) -> Any:
    if field.tag is not None and rng.random() < 0.5:
        return field.default
    if field.is_array:
        may_be_null = typing.get_origin(hint) in (types.UnionType, typing.Union)
        if field.tag is None and may_be_null and rng.random() < 0.3:
            return None
        count = rng.choice((0, 1, 2, 3)) if rng.random() < 0.97 else 130
        return tuple(_item(rng, field) for _ in range(count))
    if field.nullable and rng.random() < 0.3:
        return None
    return _item(rng, field)


def _item(rng: random.Random, field: WireField) -> Any:
    if field.entity is not None:
        return make_entity(rng, field.entity)
    match field.kafka_type:
        case "bool":
            return rng.random() < 0.5
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "float64":
            return rng.random()
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128) | 1)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=rng.randrange(2**31))
        case "datetime_i64":
            return datetime.datetime.fromtimestamp(rng.randrange(2**31), datetime.UTC)
        case "string":
            return "".join(rng.choices(_TEXT, k=rng.choice((0, 1, 5, 126, 127, 128, 300))))
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 100, 127, 20_000)))
        case "uint16":
            return rng.choice((0, 2**16 - 1, rng.getrandbits(16)))
        case kafka_type:
            half = 1 << _BITS[kafka_type or ""] - 1
            return rng.choice((-half, half - 1, 0, 1, rng.randrange(-half, half)))
