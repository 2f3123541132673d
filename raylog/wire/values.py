"""Frozen dataclasses to plain msgpack values and back, driven by their type hints.

A dataclass is a map of field names to values; tuples are arrays, UUIDs 16 bytes, enums their value,
None nil. A reader ignores names that it does not know and takes a field's default where a name is
missing, so that a field with a default may be added at any time. Reading checks every type: what
comes back is what the hints promise, or ProtocolError.

Hints understood: ``int``, ``str``, ``bytes``, ``bool``, ``float``, ``uuid.UUID``, enums, dataclasses, ``tuple[X,
...]``, ``tuple[X, Y]``, ``dict[K, V]``, ``X | None`` and ``Any`` (passed through). Converters are made once per hint.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgpack

from raylog.errors import ProtocolError

Convert = Callable[[Any], Any]
_PLAIN: Final = (int, str, bytes, bool, float)


def pack(value: Any) -> bytes:
    """A dataclass as msgpack."""
    packed: bytes = msgpack.packb(to_plain(value))
    return packed


def to_plain(value: Any) -> dict[str, Any]:
    """A dataclass as a map of plain values."""
    plain: dict[str, Any] = _writer(_as_hint(type(value)))(value)
    return plain


def unpack_map(data: memoryview | bytes) -> dict[str, Any]:
    """The map that the bytes hold. Lengths beyond the data are refused without reserving memory."""
    try:
        plain = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except Exception as error:  # ValueError, msgpack's own kinds, what hostile keys raise
        raise ProtocolError(f"no msgpack: {error}") from None
    if not isinstance(plain, dict):
        raise ProtocolError(f"msgpack of a {type(plain).__name__}, not of a map")
    return plain


def from_plain(cls: type[Any], plain: dict[Any, Any]) -> Any:
    """The dataclass that a map stands for."""
    return _reader(_as_hint(cls))(plain)


def _as_hint(cls: Any) -> Any:
    """The class as mypy lets it be a cache's key."""
    return cls


# ------------------------------------------------------------------ writing


@cache
def _writer(hint: Any) -> Convert:
    if hint is Any or hint in _PLAIN:
        return _unchanged
    if hint is uuid.UUID:
        return _uuid_to_bytes
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_to_value
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = [(field.name, _writer(hints[field.name])) for field in dataclasses.fields(hint)]
        return lambda value: {name: convert(getattr(value, name)) for name, convert in fields}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            item = _writer(arguments[0])
            return lambda value: [item(element) for element in value]
        items = [_writer(argument) for argument in arguments]
        return lambda value: [convert(element) for convert, element in zip(items, value, strict=True)]
    if origin is dict:
        key, item = _writer(arguments[0]), _writer(arguments[1])
        return lambda value: {key(name): item(element) for name, element in value.items()}
    if origin in (types.UnionType, typing.Union):
        inner = _writer(_optional(hint, arguments))
        return lambda value: None if value is None else inner(value)
    raise TypeError(f"no plain form for {hint}")


def _unchanged(value: Any) -> Any:
    return value


def _uuid_to_bytes(value: uuid.UUID) -> bytes:
    return value.bytes


def _enum_to_value(value: enum.Enum) -> Any:
    return value.value


def _optional(hint: Any, arguments: tuple[Any, ...]) -> Any:
    inner = [argument for argument in arguments if argument is not types.NoneType]
    if len(inner) != 1 or len(arguments) != 2:
        raise TypeError(f"no plain form for {hint}: only unions with None")
    return inner[0]


# ------------------------------------------------------------------ reading


@cache
def _reader(hint: Any) -> Convert:
    if hint is Any:
        return _unchanged
    if hint in _PLAIN:
        return _plain_reader(hint)
    if hint is uuid.UUID:
        return _read_uuid
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_reader(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass_reader(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is dict:
        return _dict_reader(_reader(arguments[0]), _reader(arguments[1]))
    if origin in (types.UnionType, typing.Union):
        inner = _reader(_optional(hint, arguments))
        return lambda value: None if value is None else inner(value)
    raise TypeError(f"no plain form for {hint}")


def _plain_reader(expected: type[Any]) -> Convert:
    def read(value: Any) -> Any:
        if type(value) is expected:
            return value
        if expected is float and type(value) is int:
            return float(value)
        raise ProtocolError(f"a {type(value).__name__} where {expected.__name__} belongs")

    return read


def _read_uuid(value: Any) -> uuid.UUID:
    if type(value) is not bytes or len(value) != 16:
        raise ProtocolError("a UUID that is not 16 bytes")
    return uuid.UUID(bytes=value)


def _enum_reader(cls: type[enum.Enum]) -> Convert:
    def read(value: Any) -> enum.Enum:
        try:
            return cls(value)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    return read


def _tuple_reader(arguments: tuple[Any, ...]) -> Convert:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _reader(arguments[0])

        def read_many(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, tuple | list):
                raise ProtocolError(f"a {type(value).__name__} where an array belongs")
            return tuple([item(element) for element in value])

        return read_many
    items = [_reader(argument) for argument in arguments]

    def read_exactly(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) != len(items):
            raise ProtocolError(f"an array of {len(items)} values is expected")
        return tuple([convert(element) for convert, element in zip(items, value, strict=True)])

    return read_exactly


def _dict_reader(key: Convert, item: Convert) -> Convert:
    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise ProtocolError(f"a {type(value).__name__} where a map belongs")
        return {key(name): item(element) for name, element in value.items()}

    return read


def _dataclass_reader(cls: type[Any]) -> Convert:
    hints = typing.get_type_hints(cls)
    fields = [(field.name, _reader(hints[field.name])) for field in dataclasses.fields(cls)]
    required = [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def read(plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise ProtocolError(f"a {type(plain).__name__} where the map of {cls.__name__} belongs")
        known = {}
        for name, convert in fields:
            if name in plain:
                try:
                    known[name] = convert(plain[name])
                except ProtocolError as error:
                    raise ProtocolError(f"{cls.__name__}.{name}: {error}") from None
        for name in required:
            if name not in known:
                raise ProtocolError(f"{cls.__name__}.{name} is missing")
        return cls(**known)

    return read
