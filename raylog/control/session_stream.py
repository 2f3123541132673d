"""The control session's stream: session frames both ways (``raylog.control.session_frames``),
opened by ``OpenSession``.

What holds for every stream is in ``raylog.wire.stream``. A peer that leaves too much unread loses
the session.
"""

from __future__ import annotations

from collections.abc import Callable

from raylog.control.session import FromActor, FromController
from raylog.control.session_frames import from_frame, to_frame
from raylog.errors import ProtocolError
from raylog.types import Endpoint
from raylog.wire.connection import OPEN_TIMEOUT_MS
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.private import OpenSession, SessionOpened
from raylog.wire.request import Request
from raylog.wire.stream import BACKLOG_BYTES_MAX, Stream, accept_stream, open_stream

Frame = FromActor | FromController

OnFrame = Callable[["SessionStream", Frame], None]
OnClose = Callable[["SessionStream", Exception | None], None]


class SessionStream(Stream[Frame]):
    """One end of a session. ``peer`` is the actor at the other end, as the handshake proved it."""

    def send(self, frame: Frame) -> None:
        """Queues a frame; dropped when the session is closed. A peer that leaves 64 MB unread loses
        the session.
        """
        connection = self._connection
        if connection.shut:
            return
        if connection.unsent_bytes > BACKLOG_BYTES_MAX:
            connection.abort(ProtocolError(f"the peer left {connection.unsent_bytes} bytes unread"))
            return
        self._write(_encoded(frame))

    def _decode(self, body: memoryview) -> Frame:
        return from_frame(body)


_last_encoded: tuple[Frame | None, bytes] = (None, b"")


def _encoded(frame: Frame) -> bytes:
    """Its bytes. The controller sends many a frame to several actors, one after the other: it is
    encoded once.
    """
    global _last_encoded
    known, encoded = _last_encoded
    if known is not frame:
        encoded = to_frame(frame)
        _last_encoded = frame, encoded
    return encoded


def accept_session(request: Request, on_frame: OnFrame, on_close: OnClose) -> SessionStream:
    """The server's end: answers an ``OpenSession`` request and takes the connection over. Frames
    may be sent at once.
    """
    assert isinstance(request.body, OpenSession), request.body
    return accept_stream(
        request, SessionOpened(), lambda connection, peer: SessionStream(connection, peer, on_frame, on_close)
    )


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
) -> SessionStream:
    """The client's end.

    Raises what ``Connection.open`` raises, and the server's refusal. Frames may arrive before this
    returns.
    """
    return await open_stream(
        endpoint,
        OpenSession(),
        lambda connection, peer, reply: SessionStream(connection, peer, on_frame, on_close),
        secret=secret,
        cluster_id=cluster_id,
        expect=expect,
        caller=caller,
        timeout_ms=timeout_ms,
    )
