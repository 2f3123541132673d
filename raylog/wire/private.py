"""The requests that Kafka's protocol has no API for, as dataclasses. API keys from 20,000; bodies are msgpack.

A body is a map of field names to plain values (numbers, text, bytes, lists, maps, nil; UUIDs go as 16 bytes). A reader
ignores names that it does not know and takes a field's default where a name is missing, so a field with a default may
be added at any time. A reply is either such a map or ``{"error": <Kafka's error code>, "message": <text>}``, which the
client's end raises.

To add one: a request class and a reply class, both decorated with ``@api(key, ...)``, the next free key, a name in
capitals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import msgpack

from raylog.errors import ProtocolError, RaylogError, code_of, error_for

FIRST_API_KEY: Final = 20_000
HANDSHAKE: Final = 20_000
SESSION: Final = 20_001
AWAIT_LEADER: Final = 20_002
CLUSTER_STATUS: Final = 20_003
REGISTER_DISKS: Final = 20_004
SHUTDOWN: Final = 20_005

_T = TypeVar("_T")
_requests: dict[int, type[Any]] = {}
_replies: dict[int, type[Any]] = {}


def _register(table: dict[int, type[Any]], api_key: int) -> Callable[[type[_T]], type[_T]]:
    def register(cls: type[_T]) -> type[_T]:
        assert api_key >= FIRST_API_KEY and api_key not in table, f"API key {api_key} is taken"
        cls.API_KEY = api_key  # type: ignore[attr-defined]
        table[api_key] = cls
        return cls

    return register


def request_of(api_key: int) -> Callable[[type[_T]], type[_T]]:
    """Declares a slotted frozen dataclass to be the request of a private API."""
    return _register(_requests, api_key)


def reply_to(api_key: int) -> Callable[[type[_T]], type[_T]]:
    """Declares a slotted frozen dataclass to be the reply of a private API."""
    return _register(_replies, api_key)


@request_of(HANDSHAKE)
@dataclass(frozen=True, slots=True)
class Handshake:
    """One message of the handshake; which step it is shows in what is there.

    ``node_id`` and ``incarnation`` say who calls, −1 and 0: a client.
    """

    API_KEY: ClassVar[int]
    cluster_id: str = ""
    scram: str = ""
    node_id: int = -1
    incarnation: int = 0


@reply_to(HANDSHAKE)
@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """``node_id`` and ``incarnation`` say who answers; only after the caller's proof."""

    API_KEY: ClassVar[int]
    scram: str = ""
    node_id: int = -1
    incarnation: int = 0


@request_of(SESSION)
@dataclass(frozen=True, slots=True)
class OpenSession:
    """Turns the connection into a two-way stream of session frames (``raylog.wire.session``)."""

    API_KEY: ClassVar[int]


@reply_to(SESSION)
@dataclass(frozen=True, slots=True)
class SessionOpened:
    """From the byte after this reply both ends send session frames only."""

    API_KEY: ClassVar[int]


@request_of(AWAIT_LEADER)
@dataclass(frozen=True, slots=True)
class AwaitLeader:
    """Asks for a leader whose epoch is above ``newer_than_epoch``; the answer waits up to ``timeout_ms`` for one."""

    API_KEY: ClassVar[int]
    topic: str
    partition: int
    newer_than_epoch: int
    timeout_ms: int


@reply_to(AWAIT_LEADER)
@dataclass(frozen=True, slots=True)
class LeaderFound:
    """``leader_node`` −1: nobody leads with a newer epoch yet; ``leader_epoch`` is the current one."""

    API_KEY: ClassVar[int]
    leader_node: int
    leader_epoch: int
    host: str = ""
    port: int = -1


@request_of(CLUSTER_STATUS)
@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Asks the controller what it knows."""

    API_KEY: ClassVar[int]


@reply_to(CLUSTER_STATUS)
@dataclass(frozen=True, slots=True)
class ClusterStatusReply:
    """A map of plain values; its shape is the controller's."""

    API_KEY: ClassVar[int]
    status: dict[str, Any]


@request_of(REGISTER_DISKS)
@dataclass(frozen=True, slots=True)
class RegisterDisks:
    """Tells the controller of formatted disks: maps with ``directory_id`` (16 bytes), ``broker_id``, ``path``, ``host``, ``rack``. Idempotent."""

    API_KEY: ClassVar[int]
    disks: tuple[dict[str, Any], ...]


@reply_to(REGISTER_DISKS)
@dataclass(frozen=True, slots=True)
class DisksRegistered:
    """The disks are in the committed metadata."""

    API_KEY: ClassVar[int]


@request_of(SHUTDOWN)
@dataclass(frozen=True, slots=True)
class Shutdown:
    """Asks the controller to end every server cleanly, itself last. Data stays on the disks."""

    API_KEY: ClassVar[int]


@reply_to(SHUTDOWN)
@dataclass(frozen=True, slots=True)
class ShutdownDone:
    """Every other server has closed its session; the controller ends right after this reply."""

    API_KEY: ClassVar[int]
    stopped: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reply of any private API that failed; the server makes it out of an exception."""

    API_KEY: ClassVar[int] = 0
    error: int = -1
    message: str = ""

    @classmethod
    def of(cls, error: RaylogError) -> Refusal:
        return cls(int(code_of(error)), str(error))


# ------------------------------------------------------------------ codec


def is_known(api_key: int) -> bool:
    return api_key in _requests


def is_private(entity_type: type[Any]) -> bool:
    return hasattr(entity_type, "API_KEY")


def name_of(api_key: int) -> str | None:
    cls = _requests.get(api_key)
    return None if cls is None else cls.__name__


def encode(message: Any) -> bytes:
    """The body of a request or reply."""
    body = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    packed: bytes = msgpack.packb(body)
    return packed


def decode_request(api_key: int, body: memoryview | bytes) -> Any:
    return _build(_requests[api_key], _unpack(body))


def decode_reply(api_key: int, body: memoryview | bytes) -> Any:
    """The reply; raises what a refusal says."""
    fields = _unpack(body)
    if "error" in fields:
        raise error_for(int(fields["error"]), str(fields.get("message", "")))
    return _build(_replies[api_key], fields)


def _unpack(body: memoryview | bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(body, use_list=False, strict_map_key=False)
    except Exception as error:  # msgpack raises ValueError, its own kinds and RecursionError-likes
        raise ProtocolError(f"a private body that is no msgpack: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"a private body is a {type(fields).__name__}, not a map")
    return fields


def _build(cls: type[Any], fields: dict[str, Any]) -> Any:
    known = {}
    for field in dataclasses.fields(cls):
        if field.name in fields:
            known[field.name] = _checked(cls, field.name, str(field.type), fields[field.name])
    try:
        return cls(**known)
    except TypeError as error:
        raise ProtocolError(f"{cls.__name__}: {error}") from None


_PLAIN_TYPES: Final = {"str": str, "int": int, "bytes": bytes, "bool": bool, "dict[str, Any]": dict}


def _checked(cls: type[Any], name: str, annotation: str, value: Any) -> Any:
    expected = _PLAIN_TYPES.get(annotation)
    if expected is not None and (not isinstance(value, expected) or (expected is int and isinstance(value, bool))):
        raise ProtocolError(f"{cls.__name__}.{name} is a {type(value).__name__}, not {annotation}")
    return value
