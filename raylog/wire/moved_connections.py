"""Open connections that move from one process of this machine to another: the channel between the
two.

A Broker accepts a client's connection, and a host of the same broker serves it better. So the
socket itself moves: its descriptor goes over a Unix socket (SCM_RIGHTS) with what was read from it
and not parsed. The client notices nothing. When it asks for what the host doesn't have, the
connection comes back the same way.

::

    message = one datagram of SOCK_SEQPACKET: "M", "E" or "R", a msgpack map of ``Moved``, ``Ended`` or ``Revoked``;
              with the descriptor of a ``Moved``

    the Broker → the host    Moved: go on with it
                             Revoked: what was granted to those that have moved is not granted any more
    the host → the Broker    Moved: it asks for something else, its request is in ``pending``
                             Ended: its client has closed it

The host listens at a random name of Linux's abstract namespace, where everybody on the machine may
connect. The Broker gets name and token over its authenticated link (``OpenDoor``), and opens the
channel with the token. A stranger gets nothing: another user's process is turned away by the
kernel's word (SO_PEERCRED), one of the same user by the token, and few may be on their way to say
it. A channel never blocks: a message that doesn't fit into the socket's buffer is not sent, and its
connection stays where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from raylog.errors import ProtocolError
from raylog.wire import values

logger = logging.getLogger("raylog.wire")

MESSAGE_BYTES_MAX: Final = 128 * 1024
PENDING_IN_MESSAGE: Final = 64 * 1024
"""What was read and not parsed goes into the message; if it is more than that, into a file in
memory, whose descriptor goes along.
"""
TOKEN_BYTES: Final = 32
BACKLOG: Final = 16
GREETING_MAX: Final = 16
"""How many may be connected that have not said the token yet; the first of them makes way for one
more.
"""
_credentials = struct.Struct("iII")  # process, user, group


Grant = tuple[int, bytes, str]
"""What an authorizer has allowed: an API's key, a topic as the client's requests write it, and a
transactional id, empty for none.
"""


@dataclass(frozen=True, slots=True)
class MovedQuota:
    """A quota that a connection takes along: its key, what it allows per second, and the most that
    may be used at once. ``is_of_user`` and ``is_of_client_id``: who shares it, all of the connection's
    user, of its client id, or of both.
    """

    key: str
    limit: float
    burst: float
    is_of_user: bool
    is_of_client_id: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """A connection that changes hands. ``number`` names it on its channel; ``came_back`` counts how
    often it has come back.

    ``principal`` and ``listener``: who its client has proved to be, and where it came in.
    ``client_id``: of its requests; one with another is for the Broker. ``grants``: all that the client
    may ask for; None where nobody has to allow it anything. ``quotas``: what it is counted for.
    ``exceeded``: the key of the quota because of which it comes back; empty for none.
    """

    number: int
    pending: bytes
    principal: str
    listener: str
    came_back: int = 0
    grants: tuple[Grant, ...] | None = None
    client_software: tuple[str, str] = ("", "")
    client_id: str | None = None
    quotas: tuple[MovedQuota, ...] = ()
    exceeded: str = ""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The authorizer may decide otherwise from now on, or quotas are others: whatever a connection
    asks for, its Broker has to be asked first.
    """


@dataclass(frozen=True, slots=True)
class Ended:
    """A connection that had moved has ended."""

    number: int


Message = Moved | Ended | Revoked
_TAGS: Final[dict[type[Message], bytes]] = {Moved: b"M", Ended: b"E", Revoked: b"R"}
OnMessage = Callable[[Message, socket.socket | None], None]


class Channel:
    """One end. ``on_message`` gets the socket of a ``Moved`` and owns it; ``on_close`` is called
    once, unless ``close`` was.
    """

    def __init__(self, sock: socket.socket, on_message: OnMessage, on_close: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self.is_open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Message, moving: socket.socket | None = None) -> bool:
        """Whether it was sent. The caller keeps ``moving``, and closes its own descriptor."""
        if not self.is_open:
            return False
        descriptors = [] if moving is None else [moving.fileno()]
        beside = -1
        try:
            if isinstance(message, Moved) and len(message.pending) > PENDING_IN_MESSAGE:
                beside = _in_memory(message.pending)
                descriptors.append(beside)
                message = replace(message, pending=b"")
            data = _TAGS[type(message)] + values.pack(message)
            assert len(data) <= MESSAGE_BYTES_MAX, f"a message of {len(data)} bytes"
            socket.send_fds(self._sock, [data], descriptors)
        except BlockingIOError:
            return False
        except OSError as error:
            logger.info("a channel for moved connections broke: %s", error)
            self._broken()
            return False
        finally:
            if beside >= 0:
                os.close(beside)
        return True

    def close(self) -> None:
        """Idempotent; the other end notices."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _broken(self) -> None:
        if self.is_open:
            self.close()
            self._on_close()

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, MESSAGE_BYTES_MAX, 2, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._broken()
            return
        try:
            message = _decoded(data)
            if isinstance(message, Moved) != bool(descriptors):
                raise ProtocolError(f"{type(message).__name__} with {len(descriptors)} descriptors")
            if isinstance(message, Moved) and len(descriptors) == 2:
                message = replace(message, pending=_read_all(descriptors.pop()))
        except (ProtocolError, OSError) as error:
            logger.warning("closing a channel for moved connections: %s", error)
            for descriptor in descriptors:
                os.close(descriptor)
            self._broken()
            return
        self._on_message(message, socket.socket(fileno=descriptors[0]) if descriptors else None)


def _in_memory(data: bytes) -> int:
    """A descriptor of a file in memory that holds these bytes."""
    descriptor = os.memfd_create("raylog-pending", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor


def _read_all(descriptor: int) -> bytes:
    """All that is in the file; closes it."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _decoded(data: bytes) -> Message:
    kind = next((kind for kind, tag in _TAGS.items() if data[:1] == tag), None)
    if kind is None:
        raise ProtocolError(f"a message of kind {data[:1]!r}")
    message: Message = values.from_plain(kind, values.unpack_map(memoryview(data)[1:]))
    return message


class ChannelListener:
    """Where a host waits for its Broker. ``name`` and ``token`` are what the Broker has to know."""

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        self.name = f"raylog-{os.getpid()}-{secrets.token_hex(16)}"
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._accepted = accepted
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        self._sock.bind("\0" + self.name)
        self._sock.listen(BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock.fileno(), self._accept)
        self._greeting: dict[socket.socket, None] = {}  # the first one first

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            sock, _ = self._sock.accept()
            sock.setblocking(False)
            if _user_of(sock) != os.geteuid():
                logger.warning("another user's process came to the channel for moved connections")
                sock.close()
                return
            if len(self._greeting) >= GREETING_MAX:
                self._turn_away(next(iter(self._greeting)))
            self._greeting[sock] = None
            self._loop.add_reader(sock.fileno(), self._greeted, sock)

    def _greeted(self, sock: socket.socket) -> None:
        """The first message proves who it is."""
        try:
            said = sock.recv(TOKEN_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._loop.remove_reader(sock.fileno())
        del self._greeting[sock]
        if hmac.compare_digest(said, self.token):
            self._accepted(sock)
        else:
            if said:
                logger.warning("somebody opened the channel for moved connections without its token")
            sock.close()

    def close(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for sock in list(self._greeting):
            self._turn_away(sock)

    def _turn_away(self, sock: socket.socket) -> None:
        del self._greeting[sock]
        self._loop.remove_reader(sock.fileno())
        sock.close()


def _user_of(sock: socket.socket) -> int:
    """Who has connected, by the kernel's word."""
    said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _credentials.size)
    return int(_credentials.unpack(said)[1])


def connect(name: str, token: bytes) -> socket.socket:
    """The Broker's end of a channel. Raises OSError where nobody listens at that name; never waits."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        sock.connect("\0" + name)
        sock.send(token)
    except OSError:
        sock.close()
        raise
    return sock
