"""Frames to values and back: request and response headers, kio's entities, and raylog's private
requests.

::

    request  = size int32 | api_key int16 | api_version int16 | correlation_id int32 | client_id nullable int16-string
               | tagged fields, if the request's header has version 2 | body
    response = size int32 | correlation_id int32 | tagged fields, if the response's header has version 1 | body

Which header version goes with an API and version is kio's knowledge (``__header_schema__``). The
reply to ApiVersions always has header 0, so that a client that knows nothing can read it. API keys
from 20,000 are raylog's own (``raylog.wire.private``): header version 1, a msgpack body.

Encoding gives a list of buffers that starts with the size; large byte fields stand in it uncopied.
Decoding takes a view and copies what it keeps, so the view may be reused; unless told to *borrow*:
then fields of at least ``BORROWED_BYTES_MIN`` of records are views of the frame, which keep its
memory from being used again (``framing``). (kio copies every field: it decodes a frame from which
these are left out.) Classes are imported when an API is first spoken: kio has hundreds of modules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader

from raylog.errors import ProtocolError
from raylog.kafka import table
from raylog.wire import private
from raylog.wire.bounds import Checker, Span, check, checker, read_varint
from raylog.wire.encoding import Buffer, Encoder, encoder
from raylog.wire.framing import JOIN_BYTES_MAX, LARGE_FRAME_BYTES
from raylog.wire.schema import EntityClass, record_fields
from raylog.wire.unknown_tags import without_unknown_tags

Entity = Any
"""A request or response entity of kio, or a dataclass of ``raylog.wire.private``."""

API_VERSIONS: Final = table.API_VERSIONS.key
PRODUCE: Final = table.PRODUCE.key
BORROWED_BYTES_MIN: Final = 64 * 1024
SMALL_FRAME_BYTES: Final = 4096  # up to here a copy is cheaper than working on a view

_REQUEST_START: Final = struct.Struct(">hhih")
_API: Final = struct.Struct(">hh")
_INT32: Final = struct.Struct(">i")
_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")
_SIZE_AND_HEADER: Final = struct.Struct(">ihhi")


class UnsupportedVersionError(ProtocolError):
    """An API key or version that this end does not speak.

    ``api_key``, ``version`` and ``correlation_id`` are as received.
    """

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        known = api_key_map.get(api_key) or private.name_of(api_key)
        named = f"version {version} of {known}" if known else f"API key {api_key}"
        super().__init__(f"{named} is not spoken here")
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


class DecodedRequest(NamedTuple):
    header: RequestHeader
    body: Entity


@dataclass(frozen=True, slots=True)
class _EntityReader:
    """How to read one kind of body. ``header_is_flexible``: tagged fields end the header."""

    entity: EntityClass
    header_is_flexible: bool
    check: Checker
    read: Callable[[bytes | memoryview, int], tuple[Entity, int]]


@cache
def _request_reader(api_key: int, version: int) -> _EntityReader | None:
    try:
        entity = load_request_schema(api_key, version)
    except KioIndexError:
        return None
    return _EntityReader(entity, entity.__header_schema__.__flexible__, checker(entity), entity_reader(entity))


@cache
def _response_reader(api_key: int, version: int) -> _EntityReader:
    entity = load_response_schema(api_key, version)
    return _EntityReader(entity, entity.__header_schema__.__flexible__, checker(entity), entity_reader(entity))


@cache
def known_versions(api_key: int) -> range:
    """The versions of a Kafka API that the codec has, empty for an unknown key."""
    name = api_key_map.get(api_key)
    if name is None:
        return range(0)
    versions = schema_name_map[name]
    return range(min(versions), max(versions) + 1)


# ------------------------------------------------------------------ decoding


def decode_request_header(frame: memoryview | bytes) -> tuple[RequestHeader, int]:
    """The header's fields up to the client id, and the position behind it (before tagged fields)."""
    if len(frame) < 10:
        raise ProtocolError(f"a frame of {len(frame)} bytes holds no request header ({bytes(frame).hex(' ')})")
    api_key, version, correlation_id, client_id_size = _REQUEST_START.unpack_from(frame)
    if client_id_size < 0:
        if client_id_size != -1:
            raise ProtocolError(f"a client id of {client_id_size} bytes")
        return RequestHeader(api_key, version, correlation_id, None), 10
    position = 10 + client_id_size
    if position > len(frame):
        raise ProtocolError(f"a client id of {client_id_size} bytes in a frame of {len(frame)}")
    try:
        client_id = str(frame[10:position], "utf-8")
    except UnicodeDecodeError:
        raise ProtocolError("the client id is not UTF-8") from None
    return RequestHeader(api_key, version, correlation_id, client_id), position


def decode_request(frame: memoryview | bytes) -> DecodedRequest:
    """A whole request.

    Raises UnsupportedVersionError for an API unknown to the codec, ProtocolError for anything
    malformed.
    """
    if len(frame) <= SMALL_FRAME_BYTES:
        frame = bytes(frame)
    header, position = decode_request_header(frame)
    return DecodedRequest(header, decode_request_body(frame, header, position))


def decode_request_body(
    frame: memoryview | bytes,
    header: RequestHeader,
    position: int,
    *,
    borrow: bool = False,
    ignore_rest: bool = False,
) -> Entity:
    """The body that follows a header which ends at ``position``. ``ignore_rest``: bytes behind it
    are no mistake.
    """
    api_key, version, correlation_id, _ = header
    if api_key >= private.FIRST_API_KEY:
        if version != 0 or not private.is_known(api_key):
            raise UnsupportedVersionError(api_key, version, correlation_id)
        return private.decode_request(api_key, frame[position:])
    reader = _request_reader(api_key, version)
    if reader is None:
        raise UnsupportedVersionError(api_key, version, correlation_id)
    if reader.header_is_flexible:
        position = _skip_tagged_fields(frame, position)
    return _decode_body(
        reader, frame, position, lambda: f"{api_key_map[api_key]} request v{version}", borrow, ignore_rest
    )


def correlation_id_of(frame: memoryview | bytes) -> int:
    """The correlation id that starts a response."""
    if len(frame) < 4:
        raise ProtocolError(f"a frame of {len(frame)} bytes holds no response header")
    return int(_INT32.unpack_from(frame)[0])


def decode_response(api_key: int, version: int, frame: memoryview | bytes, *, borrow: bool = False) -> Entity:
    """The response to a request of that key and version."""
    if len(frame) <= SMALL_FRAME_BYTES:
        frame = bytes(frame)
    if api_key >= private.FIRST_API_KEY:
        return private.decode_reply(api_key, frame[4:])
    reader = _response_reader(api_key, version)
    position = _skip_tagged_fields(frame, 4) if reader.header_is_flexible else 4
    return _decode_body(reader, frame, position, lambda: f"{api_key_map[api_key]} response v{version}", borrow)


def _decode_body(
    reader: _EntityReader,
    frame: memoryview | bytes,
    position: int,
    name: Callable[[], str],
    borrow: bool,
    ignore_rest: bool = False,
) -> Entity:
    try:
        spans: list[Span] = []
        end = check(reader.check, frame, position, spans)
        if end != len(frame):
            if not ignore_rest:
                raise ProtocolError(f"{len(frame) - end} bytes behind its end")
            frame = frame[:end]
        try:
            if borrow and any(stop - start >= BORROWED_BYTES_MIN for _, start, stop in spans):
                return _decode_around(reader, frame, position, spans)
            entity, size = reader.read(frame, position)
        except KeyError:  # a tagged field that kio does not know
            known = without_unknown_tags(reader.entity, frame, position)
            return reader.read(known, 0)[0]
        assert size == end - position, (size, end, position)
        return entity
    except ProtocolError as error:
        raise ProtocolError(f"{name()}: {error}") from None
    except Exception as error:  # kio raises a dozen kinds; whatever it is, these bytes are not that message
        raise ProtocolError(f"{name()}: {error}") from error


def _decode_around(reader: _EntityReader, frame: memoryview | bytes, position: int, spans: list[Span]) -> Entity:
    """The entity, large fields of records being views of the frame: kio gets them as empty ones."""
    empty = b"\x01" if reader.entity.__flexible__ else b"\x00\x00\x00\x00"
    large = [stop - start >= BORROWED_BYTES_MIN for _, start, stop in spans]
    parts: list[Buffer] = []
    done = 0
    for (length_at, _, stop), is_large in zip(spans, large, strict=True):
        if is_large:
            parts += [frame[done:length_at], empty]
            done = stop
    parts.append(frame[done:])
    entity = reader.read(b"".join(parts), position)[0]
    view = memoryview(frame)
    for (holder, name), (_, start, stop), is_large in zip(record_fields(entity), spans, large, strict=True):
        if is_large:
            object.__setattr__(holder, name, view[start:stop])  # frozen, but nobody has seen it yet
    return entity


def _skip_tagged_fields(frame: memoryview | bytes, position: int) -> int:
    try:
        count, position = read_varint(frame, position)
        if count * 2 > len(frame) - position:
            raise ProtocolError(f"{count} tagged fields with {len(frame) - position} bytes left")
        for _ in range(count):
            _, position = read_varint(frame, position)
            size, position = read_varint(frame, position)
            position += size
    except IndexError:
        raise ProtocolError("the frame ends within its header") from None
    return position


# ------------------------------------------------------------------ encoding


class _Form(NamedTuple):
    """How instances of one class are written."""

    api_key: int
    version: int
    header_is_flexible: bool
    encode: Encoder | None  # None: private, in msgpack


_forms: dict[EntityClass, _Form] = {}


def _form_of(entity_type: EntityClass) -> _Form:
    form = _forms.get(entity_type)
    if form is None:
        if private.is_private(entity_type):
            form = _Form(entity_type.API_KEY, 0, False, None)
        else:
            form = _Form(
                int(entity_type.__api_key__),
                int(entity_type.__version__),
                entity_type.__header_schema__.__flexible__,
                encoder(entity_type),
            )
        _forms[entity_type] = form
    return form


def api_of(entity: Entity) -> tuple[int, int]:
    """API key and version of a request or response entity."""
    form = _form_of(type(entity))
    return form.api_key, form.version


def client_id_field(client_id: str | None) -> bytes:
    """A client id as the header holds it, encoded once per connection."""
    if client_id is None:
        return b"\xff\xff"
    encoded = client_id.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def encode_request(entity: Entity, correlation_id: int, client_id: bytes) -> list[Buffer]:
    """The frame of a request; ``client_id`` as ``client_id_field`` gives it."""
    form = _form_of(type(entity))
    parts: list[Buffer] = [b"", client_id + b"\x00" if form.header_is_flexible else client_id]
    if form.encode is None:
        parts.append(private.encode(entity))
    else:
        form.encode(entity, parts.append)
    size = sum(map(len, parts)) + 8
    parts[0] = _SIZE_AND_HEADER.pack(size, form.api_key, form.version, correlation_id)
    return joined(parts, size)


def passed_on_request(frame: Buffer, position: int, end: int, correlation_id: int, client_id: bytes) -> list[Buffer]:
    """The frame of a request that somebody else encoded, under another correlation id and client
    id.

    The header's fixed part ends at ``position``, the request at ``end``; ``client_id`` as
    ``client_id_field`` gives it.
    """
    api_key, version = _API.unpack_from(frame)
    size = 8 + len(client_id) + end - position
    head = _SIZE_AND_HEADER.pack(size, api_key, version, correlation_id) + client_id
    return _headed(head, memoryview(frame)[position:end])


def passed_on_response(frame: Buffer, correlation_id: int) -> list[Buffer]:
    """The frame of a response that somebody else encoded, under another correlation id."""
    return _headed(_SIZE_AND_CORRELATION.pack(len(frame), correlation_id), memoryview(frame)[4:])


def _headed(head: bytes, rest: memoryview) -> list[Buffer]:
    """Small frames are copied: nobody knows how long they stay as they are."""
    return [head, rest] if len(rest) > LARGE_FRAME_BYTES else [b"".join((head, rest))]


def encode_response(entity: Entity, correlation_id: int) -> list[Buffer]:
    """The frame of a response."""
    form = _form_of(type(entity))
    parts: list[Buffer] = [b"", b"\x00"] if form.header_is_flexible else [b""]
    if form.encode is None:
        parts.append(private.encode(entity))
    else:
        form.encode(entity, parts.append)
    size = sum(map(len, parts)) + 4
    parts[0] = _SIZE_AND_CORRELATION.pack(size, correlation_id)
    return joined(parts, size)


def joined(parts: list[Buffer], size: int) -> list[Buffer]:
    """The same bytes in few buffers, the large ones untouched."""
    if size <= JOIN_BYTES_MAX:
        return [b"".join(parts)]
    joined: list[Buffer] = []
    start = 0
    for index, part in enumerate(parts):
        if len(part) >= JOIN_BYTES_MAX:
            if start < index:
                joined.append(b"".join(parts[start:index]))
            joined.append(part)
            start = index + 1
    if start < len(parts):
        joined.append(b"".join(parts[start:]))
    return joined
