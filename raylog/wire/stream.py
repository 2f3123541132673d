"""A connection that stops speaking Kafka and carries frames of one kind both ways: what sessions
and quorum links share.

The client shakes hands and sends a request that asks for the change; once the reply came back, both
ends send frames whenever they like, each behind its size, int32 big-endian. A stream is bound to
its connection: when that ends, ``on_close`` is called once, at both ends, with the reason if one is
known. Nothing is resent.

Callbacks run in the loop's thread, in the order of the frames. One that raises closes the stream: a
machine that failed on an order has no defined state to go on from.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.framing import FramedProtocol
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.request import Request

logger = logging.getLogger("raylog.wire")

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
BACKLOG_BYTES_MAX: Final = 64 * 1024 * 1024
_SIZE: Final = struct.Struct(">i")

F = TypeVar("F")


class _Switchable(Protocol):
    def switch_to_stream(
        self,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[Exception | None], None],
        *,
        frame_bytes_max: int,
    ) -> None: ...


class Stream(Generic[F]):
    """One end. ``peer`` is the actor at the other end, as the handshake proved it.
    ``frame_bytes_max`` bounds what is received.
    """

    frame_bytes_max = FRAME_BYTES_MAX

    def __init__(
        self,
        connection: FramedProtocol,
        peer: Peer,
        on_frame: Callable[[Any, F], None],
        on_close: Callable[[Any, Exception | None], None],
    ) -> None:
        self.peer = peer
        self._connection = connection
        self._on_frame = on_frame
        self._on_close = on_close

    @property
    def is_open(self) -> bool:
        return not self._connection.shut

    @property
    def peername(self) -> str:
        return self._connection.peername

    def close(self, reason: Exception | None = None) -> None:
        """Sends what is queued and ends the stream; ``on_close`` follows."""
        self._connection.close(reason)

    def abort(self) -> None:
        """Ends the stream at once."""
        self._connection.abort()

    def send(self, frame: F) -> None:
        """Queues a frame, without waiting; dropped when the stream is closed."""
        raise NotImplementedError

    def _decode(self, body: memoryview) -> F | None:
        """The frame of these bytes; None if it needs more. Raises ProtocolError."""
        raise NotImplementedError

    def _write(self, body: bytes) -> None:
        self._connection.write_frame([_SIZE.pack(len(body)) + body])

    def bind(self, connection: _Switchable) -> None:
        """From now on this stream gets the connection's frames."""
        connection.switch_to_stream(self._received, self._closed, frame_bytes_max=self.frame_bytes_max)

    def _received(self, body: memoryview) -> None:
        frame = self._decode(body)
        if frame is None:
            return
        try:
            self._on_frame(self, frame)
        except Exception as error:
            logger.exception("closing the link with %s: %s could not be handled", self.peername, type(frame).__name__)
            self._connection.close(error)

    def _closed(self, reason: Exception | None) -> None:
        try:
            self._on_close(self, reason)
        except Exception:
            logger.exception("the close callback of the link with %s failed", self.peername)


S = TypeVar("S", bound="Stream[Any]")


def accept_stream(request: Request, agreement: object, make: Callable[[FramedProtocol, Peer], S]) -> S:
    """The server's end: agrees to the request and takes its connection over. Frames may be sent at
    once.
    """
    connection = request.connection
    stream = make(connection, connection.peer)
    request.reply(agreement)
    stream.bind(connection)
    return stream


async def open_stream(
    endpoint: Endpoint,
    request: object,
    make: Callable[[FramedProtocol, Peer, Any], S],
    *,
    secret: Secret | None,
    cluster_id: str,
    expect: Peer | tuple[int, int] | None,
    caller: Peer | None,
    timeout_ms: int,
) -> S:
    """The client's end; ``make`` is given the reply, too, and may raise.

    Raises what ``Connection.open`` raises, and the server's refusal. Frames may arrive before this
    returns.
    """
    connection = await Connection.open(
        endpoint, secret=secret, cluster_id=cluster_id, expect=expect, caller=caller, timeout_ms=timeout_ms
    )
    opened = connection.loop.create_future()

    def on_reply(reply: object, error: Exception | None) -> None:
        stream = None
        if error is None:
            try:
                stream = make(connection, connection.peer, reply)
                stream.bind(connection)  # now, for the next frame may already be in the buffer
            except Exception as failure:
                error = failure
        if opened.done():
            return
        if error is not None:
            opened.set_exception(error)
        else:
            opened.set_result(stream)

    connection.call(request, on_reply, timeout_ms=timeout_ms)
    try:
        stream: S = await opened
    except BaseException:
        connection.abort()
        raise
    return stream
