"""The link between two controllers: messages of the quorum both ways, opened by ``OpenQuorum``.

::

    frame = more: u8 | piece of a message (raylog.raft.frames)

A message longer than ``PIECE_BYTES`` (a snapshot) goes in several frames, all but the last with
``more`` 1. Messages may be lost: Raft sends again what matters, so a message to a peer that left
too much unread is dropped. What holds for every stream is in ``raylog.wire.stream``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Final

from raylog.errors import ProtocolError
from raylog.raft.frames import from_frame, to_frame
from raylog.raft.messages import Message
from raylog.types import Endpoint
from raylog.wire.framing import FramedProtocol
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.private import OpenQuorum, QuorumOpened
from raylog.wire.request import Request
from raylog.wire.stream import BACKLOG_BYTES_MAX, Stream, accept_stream, open_stream

logger = logging.getLogger("raylog.wire")

PIECE_BYTES: Final = 1024 * 1024
MESSAGE_BYTES_MAX: Final = 1024 * 1024 * 1024

OnMessage = Callable[["QuorumStream", Message], None]
OnClose = Callable[["QuorumStream", Exception | None], None]


class QuorumStream(Stream[Message]):
    """One end of a link. ``directory_id`` names the voter, or observer, at the other end."""

    frame_bytes_max = PIECE_BYTES + 1

    def __init__(
        self,
        connection: FramedProtocol,
        peer: Peer,
        directory_id: bytes,
        on_message: OnMessage,
        on_close: OnClose,
    ) -> None:
        super().__init__(connection, peer, on_message, on_close)
        if len(directory_id) != 16:
            raise ProtocolError(f"a directory id of {len(directory_id)} bytes")
        self.directory_id = uuid.UUID(bytes=directory_id)
        self._pieces = bytearray()

    def send(self, frame: Message) -> None:
        """Queues a message; dropped when the link is closed, or while the peer has left 64 MB
        unread.
        """
        connection = self._connection
        if connection.shut or connection.unsent_bytes > BACKLOG_BYTES_MAX:
            return
        body = to_frame(frame)
        if len(body) > MESSAGE_BYTES_MAX:
            logger.error(
                "a %s of %d bytes is too large to be sent: metadata is limited to 1 GiB", type(frame), len(body)
            )
            return
        for start in range(0, len(body), PIECE_BYTES):
            more = start + PIECE_BYTES < len(body)
            self._write(bytes([more]) + body[start : start + PIECE_BYTES])

    def _decode(self, body: memoryview) -> Message | None:
        if not body or body[0] > 1:
            raise ProtocolError("a quorum frame that says neither that more follows nor that it is the last")
        if not body[0] and not self._pieces:
            return from_frame(body[1:])
        if len(self._pieces) + len(body) > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"a quorum message of more than {MESSAGE_BYTES_MAX} bytes")
        self._pieces += body[1:]
        if body[0]:
            return None
        whole, self._pieces = self._pieces, bytearray()
        return from_frame(memoryview(whole))


def accept_quorum(request: Request, directory_id: uuid.UUID, on_message: OnMessage, on_close: OnClose) -> QuorumStream:
    """The server's end. ProtocolError for a request without a proper directory id."""
    assert isinstance(request.body, OpenQuorum), request.body
    caller = request.body.directory_id
    return accept_stream(
        request,
        QuorumOpened(directory_id.bytes),
        lambda connection, peer: QuorumStream(connection, peer, caller, on_message, on_close),
    )


async def open_quorum(
    endpoint: Endpoint,
    directory_id: uuid.UUID,
    *,
    secret: Secret,
    cluster_id: str,
    caller: Peer,
    on_message: OnMessage,
    on_close: OnClose,
    timeout_ms: int,
) -> QuorumStream:
    """The client's end, of whichever controller listens there. Raises what ``Connection.open``
    raises, and a refusal.
    """
    return await open_stream(
        endpoint,
        OpenQuorum(directory_id.bytes),
        lambda connection, peer, reply: QuorumStream(connection, peer, reply.directory_id, on_message, on_close),
        secret=secret,
        cluster_id=cluster_id,
        expect=None,
        caller=caller,
        timeout_ms=timeout_ms,
    )
