"""TLS handshakes that fail: a line in the log, and the alert that tells the peer why.

When a handshake fails, OpenSSL writes an alert for the peer, such as ``unknown_ca`` or
``certificate_required``, and the event loop drops its connection without sending it. So the object
that shakes hands sends it by itself, before it reports the failure.

For a peer that speaks no TLS at all OpenSSL writes nothing. On links inside the cluster such a peer is
a process without TLS, and gets an alert all the same, by which it knows what is at the other end
(``raylog.wire.connection``).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from contextvars import ContextVar
from typing import Any, Final

from raylog.kafka.context import INTERNAL

logger = logging.getLogger("raylog.wire")

NOT_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"))
"""OpenSSL's reasons, where what came was no TLS."""
UNLIKE_LINKS: Final = "give every process of the cluster the same security.inter.broker.protocol"
_WRONG_PROTOCOL: Final = b"\x15\x03\x03\x00\x02\x02\x46"  # a fatal alert: protocol_version

_accepted: ContextVar[socket.socket | None] = ContextVar("_accepted", default=None)


def alerts_go_to(sock: socket.socket) -> None:
    """The handshake that this task begins is on that socket."""
    _accepted.set(sock)


class HandshakeReports(ssl.SSLObject):
    """One end of TLS at a listener."""

    listener = ""
    outgoing: ssl.MemoryBIO | None = None
    accepted: socket.socket | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", None) or error.reason or "the peer is gone"
            if error.reason in NOT_TLS:
                why += ": the peer does not speak TLS" + (f": {UNLIKE_LINKS}" if self.listener == INTERNAL else "")
            logger.warning("listener %s: a TLS handshake failed: %s", self.listener, why)
            self._send_alert(_WRONG_PROTOCOL if self.listener == INTERNAL and error.reason in NOT_TLS else b"")
            raise
        self.accepted = None

    def _send_alert(self, otherwise: bytes) -> None:
        """What OpenSSL has written for the peer, or else this."""
        if self.accepted is None:
            return
        written = self.outgoing.read() if self.outgoing is not None else b""
        if written or otherwise:
            with contextlib.suppress(OSError):  # the peer is gone, or reads nothing
                self.accepted.send(written or otherwise)


class ListenerContext(ssl.SSLContext):
    """The context of one listener. Its handshakes report and send why they fail."""

    def __init__(self, *_: Any) -> None:
        self.sslobject_class = HandshakeReports
        self.listener = ""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        wrapped = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(wrapped, HandshakeReports), "the class of this context"
        wrapped.listener, wrapped.outgoing, wrapped.accepted = self.listener, outgoing, _accepted.get()
        return wrapped
