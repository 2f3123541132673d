"""The control session's stream: a connection that stops speaking Kafka and carries session frames both ways.

The client shakes hands, sends ``OpenSession`` and, once ``SessionOpened`` came back, both ends send frames whenever they
like (``raylog.metadata.session_frames``, each behind its size, int32 big-endian). A session is bound to its connection:
when that ends, ``on_close`` is called once, at both ends, with the reason if one is known. Nothing is resent.

Callbacks run in the loop's thread, in the order of the frames. One that raises closes the session: a machine that
failed on an order has no defined state to go on from.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Final, Protocol

from raylog.errors import ProtocolError
from raylog.metadata.session import FromActor, FromController
from raylog.metadata.session_frames import from_frame, to_frame
from raylog.types import Endpoint
from raylog.wire.connection import OPEN_TIMEOUT_MS, Connection
from raylog.wire.framing import FramedProtocol
from raylog.wire.handshake import Peer, Secret
from raylog.wire.private import OpenSession, SessionOpened
from raylog.wire.server import Request

logger = logging.getLogger("raylog.wire")

Frame = FromActor | FromController

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
BACKLOG_BYTES_MAX: Final = 64 * 1024 * 1024
_SIZE: Final = struct.Struct(">i")

OnFrame = Callable[["Session", Frame], None]
OnClose = Callable[["Session", Exception | None], None]


class _Switchable(Protocol):
    def switch_to_stream(
        self,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[Exception | None], None],
        *,
        frame_bytes_max: int,
    ) -> None: ...


class Session:
    """One end of a session. ``peer`` is the actor at the other end, as the handshake proved it."""

    def __init__(self, connection: FramedProtocol, peer: Peer, on_frame: OnFrame, on_close: OnClose) -> None:
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

    def send(self, frame: Frame) -> None:
        """Queues a frame; dropped when the session is closed. A peer that leaves 64 MB unread loses the session."""
        connection = self._connection
        if connection.shut:
            return
        if connection.unsent_bytes > BACKLOG_BYTES_MAX:
            connection.abort(ProtocolError(f"the peer left {connection.unsent_bytes} bytes unread"))
            return
        body = to_frame(frame)
        connection.write_frame([_SIZE.pack(len(body)) + body])

    def close(self, reason: Exception | None = None) -> None:
        """Sends what is queued and ends the session; ``on_close`` follows."""
        self._connection.close(reason)

    def abort(self) -> None:
        """Ends the session at once."""
        self._connection.abort()

    def _bind(self, connection: _Switchable) -> None:
        connection.switch_to_stream(self._received, self._closed, frame_bytes_max=FRAME_BYTES_MAX)

    def _received(self, body: memoryview) -> None:
        frame = from_frame(body)
        try:
            self._on_frame(self, frame)
        except Exception as error:
            logger.exception(
                "closing the session with %s: %s could not be handled", self.peername, type(frame).__name__
            )
            self._connection.close(error)

    def _closed(self, reason: Exception | None) -> None:
        try:
            self._on_close(self, reason)
        except Exception:
            logger.exception("the close callback of the session with %s failed", self.peername)


def accept_session(request: Request, on_frame: OnFrame, on_close: OnClose) -> Session:
    """The server's end:

    answers an ``OpenSession`` request and takes the connection over. Frames may be sent at once.
    """
    assert isinstance(request.body, OpenSession), request.body
    connection = request.connection
    session = Session(connection, connection.peer, on_frame, on_close)
    request.reply(SessionOpened())
    session._bind(connection)
    return session


async def open_session(
    endpoint: Endpoint,
    *,
    secret: Secret | None,
    cluster_id: str,
    on_frame: OnFrame,
    on_close: OnClose,
    expect: Peer | tuple[int, int] | None = None,
    caller: Peer | None = None,
    timeout_ms: int = OPEN_TIMEOUT_MS,
) -> Session:
    """The client's end.

    Raises what ``Connection.open`` raises, and the server's refusal. Frames may arrive before this returns.
    """
    connection = await Connection.open(
        endpoint, secret=secret, cluster_id=cluster_id, expect=expect, caller=caller, timeout_ms=timeout_ms
    )
    session = Session(connection, connection.peer, on_frame, on_close)
    opened = connection.loop.create_future()

    def on_reply(reply: object, error: Exception | None) -> None:
        if error is None:
            session._bind(connection)  # now, for the next frame may already be in the buffer
        if opened.done():
            return
        if error is not None:
            opened.set_exception(error)
        else:
            opened.set_result(None)

    connection.call(OpenSession(), on_reply, timeout_ms=timeout_ms)
    try:
        await opened
    except BaseException:
        connection.abort()
        raise
    return session
