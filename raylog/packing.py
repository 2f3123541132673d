"""Dataclasses to plain msgpack values and back, by their annotations. The metadata records and the
session frames share it.

A value of a class that has a name on the wire is a map ``{"t": <class name>, "v": <version>,
<field>: <value>, ...}``; a dataclass inside it is an array of its fields in order. UUIDs are 16
bytes, enums their values, tuples arrays, ``None`` nil.

A map of a newer version, of an unknown name, with an unknown field or without a field that has no
default is refused with ``ProtocolError`` that names it: whoever skipped a field that it does not
know would fold another state than its peers. A trailing field of an inner array may be absent if it
has a default; the last one of a class is, as long as it has its default and is declared ``LEFT_OUT``.

Annotations understood: int, str, bytes, bool, float, UUID, enums, ``X | None``, ``tuple[X, ...]``,
``tuple[X, Y]``, dataclasses.
"""

from __future__ import annotations

import dataclasses
import types
import uuid
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack

from raylog.errors import ProtocolError

Convert = Callable[[Any], Any]
LEFT_OUT = {"left out": True}
"""The metadata of a dataclass's last field that takes no byte while it has its default."""
_PLAIN = (int, str, bytes, bool, float)


class Packing:
    """The codec of one family of classes, all of one version each. ``versions`` maps a class to its
    version (1 if absent).
    """

    def __init__(self, family: str, classes: tuple[type, ...], versions: Mapping[type, int] | None = None) -> None:
        self._family = family
        self._versions = {each: (versions or {}).get(each, 1) for each in classes}
        self._by_name = {each.__name__: each for each in classes}
        self._pack: dict[type, list[tuple[str, Convert]]] = {}
        self._unpack: dict[type, dict[str, Convert]] = {}

    def to_map(self, value: Any) -> dict[str, Any]:
        fields = self._pack.get(type(value))
        if fields is None:
            assert type(value) in self._versions, f"{type(value).__name__} is no {self._family}"
            fields = self._pack[type(value)] = [(name, _packer(hint)) for name, hint in _fields(type(value))]
        plain: dict[str, Any] = {"t": type(value).__name__, "v": self._versions[type(value)]}
        for name, pack in fields:
            plain[name] = pack(getattr(value, name))
        return plain

    def from_map(self, plain: Any) -> Any:
        if not isinstance(plain, dict) or not isinstance(plain.get("t"), str) or not isinstance(plain.get("v"), int):
            raise ProtocolError(f"not a {self._family}: no name or no version")
        name, version = plain.pop("t"), plain.pop("v")
        cls = self._by_name.get(name)
        if cls is None:
            raise ProtocolError(
                f"the {self._family} {name!r} (version {version}) is unknown here: written by a newer raylog"
            )
        if version > self._versions[cls]:
            raise ProtocolError(
                f"the {self._family} {name} has version {version}; this raylog reads up to {self._versions[cls]}: upgrade it"
            )
        converts = self._unpack.get(cls)
        if converts is None:
            converts = self._unpack[cls] = {field: _unpacker(hint) for field, hint in _fields(cls)}
        try:
            return cls(**{field: converts[field](value) for field, value in plain.items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"the {self._family} {name} (version {version}) cannot be read: {error!r}") from error

    def encode(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(self.to_map(value))
        return packed

    def decode(self, data: bytes | memoryview) -> Any:
        return self.from_map(unpack_plain(data, self._family))


def unpack_plain(data: bytes | memoryview, what: str) -> Any:
    """The plain value of msgpack bytes; ProtocolError for anything else."""
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (
        ValueError,
        TypeError,
        msgpack.UnpackException,
        RecursionError,
    ) as error:  # TypeError: a map whose key is a map
        raise ProtocolError(f"not a {what}: {error!r}") from error


def _fields(cls: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(cls)]


def _same(value: Any) -> Any:
    return value


def _packer(hint: Any) -> Convert:
    if hint in _PLAIN:
        return _same
    if hint is uuid.UUID:
        return lambda value: value.bytes
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = _packer(_without_none(args))
        return lambda value: None if value is None else inner(value)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        each = _packer(args[0])
        return list if each is _same else lambda value: [each(item) for item in value]
    if origin is tuple:
        packers = [_packer(arg) for arg in args]
        return lambda value: [pack(item) for pack, item in zip(packers, value, strict=True)]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: value.value
    assert dataclasses.is_dataclass(hint), f"no packing for {hint!r}"
    fields = [(name, _packer(each)) for name, each in _fields(hint)]  # type: ignore[arg-type]
    *_, last = dataclasses.fields(hint)
    if last.metadata != LEFT_OUT:
        return lambda value: [pack(getattr(value, name)) for name, pack in fields]
    default = last.default

    def pack_dataclass(value: Any) -> list[Any]:
        present = fields[:-1] if getattr(value, last.name) == default else fields
        return [pack(getattr(value, name)) for name, pack in present]

    return pack_dataclass


def _unpacker(hint: Any) -> Convert:
    if hint in _PLAIN:
        return _checked(hint)
    if hint is uuid.UUID:
        return lambda value: uuid.UUID(bytes=value)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = _unpacker(_without_none(args))
        return lambda value: None if value is None else inner(value)
    if hint == tuple[tuple[str, str], ...]:
        return _PairsUnpacker()
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        each = _unpacker(args[0])
        return lambda value: tuple(each(item) for item in _array(value))
    if origin is tuple:
        unpackers = [_unpacker(arg) for arg in args]
        return lambda value: tuple(unpack(item) for unpack, item in zip(unpackers, _array(value), strict=True))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    assert dataclasses.is_dataclass(hint), f"no packing for {hint!r}"
    cls, converts = hint, [_unpacker(each) for _, each in _fields(hint)]  # type: ignore[arg-type]

    def unpack_dataclass(value: Any) -> Any:
        items = _array(value)
        if len(items) > len(converts):
            raise ValueError(f"{len(items)} fields for a {cls} of {len(converts)}")
        return cls(*(convert(item) for convert, item in zip(converts, items, strict=False)))  # type: ignore[operator]

    return unpack_dataclass


class _PairsUnpacker:
    """Pairs of strings: configs, mostly the same ones again and again. What equals the last value
    is that value, and is kept once.
    """

    __slots__ = ("_last", "_plain")

    def __init__(self) -> None:
        self._plain: list[Any] = []
        self._last: tuple[tuple[str, str], ...] = ()

    def __call__(self, value: Any) -> tuple[tuple[str, str], ...]:
        if value != self._plain or not isinstance(value, list):
            found = []
            for item in _array(value):
                name, setting = _array(item)
                if type(name) is not str or type(setting) is not str:
                    raise TypeError(f"{item!r} is no pair of strings")
                found.append((name, setting))
            self._last, self._plain = tuple(found), value
        return self._last


def _checked(kind: type) -> Convert:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    return check


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no array")
    return value


def _without_none(args: tuple[Any, ...]) -> Any:
    inner = [arg for arg in args if arg is not type(None)]
    assert len(inner) == 1 and len(args) == 2, f"only X | None is packed, not a union of {args}"
    return inner[0]
