"""How users' objects become bytes and back.

A serializer is a callable of one value, an object with ``serialize(topic, value)``, or one of the
built-in names below (Kafka's class names work too). ``None`` is never handed to it: a null key is
no key, a null value is a tombstone. Without a serializer, values are bytes. Whatever a serializer
raises reaches the caller as SerializationError with the original as its cause.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from typing import Any

from raylog.client.config import instance_of
from raylog.errors import ConfigError, SerializationError

ToBytes = Callable[[str, Any], bytes]
FromBytes = Callable[[str, bytes], Any]


def _packer(layout: str) -> Callable[[Any], bytes]:
    return struct.Struct(layout).pack


def _unpacker(layout: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(layout).unpack
    return lambda data: unpack(data)[0]


def _dump_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


_SERIALIZERS: dict[str, Callable[[Any], bytes]] = {
    "bytes": bytes,
    "string": lambda value: str(value).encode(),
    "json": _dump_json,
    "short": _packer(">h"),
    "integer": _packer(">i"),
    "long": _packer(">q"),
    "float": _packer(">f"),
    "double": _packer(">d"),
    "uuid": lambda value: str(uuid.UUID(str(value))).encode(),
}
_DESERIALIZERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "string": lambda data: bytes(data).decode(),
    "json": json.loads,
    "short": _unpacker(">h"),
    "integer": _unpacker(">i"),
    "long": _unpacker(">q"),
    "float": _unpacker(">f"),
    "double": _unpacker(">d"),
    "uuid": lambda data: uuid.UUID(bytes(data).decode()),
}
_KAFKA_NAMES = {"ByteArray": "bytes", "Bytes": "bytes", "ByteBuffer": "bytes", "UUID": "uuid"}


def _builtin(table: dict[str, Callable[[Any], Any]], suffix: str) -> dict[str, Callable[[], Callable[[Any], Any]]]:
    by_name = {name: (lambda call=call: call) for name, call in table.items()}
    kafka = {_KAFKA_NAMES.get(name, name) for name in table}
    classes = {name.capitalize() + suffix: by_name[name] for name in kafka if name in by_name}
    return by_name | classes | {name + suffix: by_name[ours] for name, ours in _KAFKA_NAMES.items()}


def serializer_of(option: Any, name: str) -> ToBytes | None:
    """The serializer that ``key.serializer`` or ``value.serializer`` (``name``) stands for; None
    where bytes pass as they are.
    """
    return _callable_of(option, name, _builtin(_SERIALIZERS, "Serializer"), "serialize")


def deserializer_of(option: Any, name: str) -> FromBytes | None:
    """The same for ``key.deserializer`` and ``value.deserializer``."""
    return _callable_of(option, name, _builtin(_DESERIALIZERS, "Deserializer"), "deserialize")


def _callable_of(
    option: Any, name: str, builtin: dict[str, Callable[[], Any]], method: str
) -> Callable[[str, Any], Any] | None:
    if option is None:
        return None
    if isinstance(option, str) and option not in builtin and "." not in option and ":" not in option:
        known = ", ".join(sorted(short for short in builtin if short.islower()))
        raise ConfigError(f"{name}={option!r} is unknown: give a callable or one of {known}")
    found = _resolved(option, builtin, name, method)
    bound = getattr(found, method, None)
    call: Callable[[str, Any], Any] = bound if bound is not None else (lambda topic, value: found(value))

    def convert(topic: str, value: Any) -> Any:
        try:
            return call(topic, value)
        except Exception as error:
            raise SerializationError(
                f"{name} failed on a record of topic {topic!r}: {type(error).__name__}: {error}"
            ) from error

    return convert


def _resolved(option: Any, builtin: dict[str, Callable[[], Any]], name: str, method: str) -> Any:
    if isinstance(option, type):
        return (
            option() if hasattr(option, method) else option
        )  # a type such as ``str`` or ``bytes`` is a plain callable
    found = instance_of(option, builtin, name) if isinstance(option, str) else option
    if not callable(found) and not hasattr(found, method):
        raise ConfigError(f"{name}={option!r} is not callable and has no method {method}(topic, value)")
    return found


def checked_bytes(value: Any, what: str) -> bytes | None:
    """A key or value that needs no serializer, as ``bytes``."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise SerializationError(
        f"a {what} of type {type(value).__name__} needs a serializer: give bytes, or set {what}.serializer (for example 'string' or 'json')"
    )
