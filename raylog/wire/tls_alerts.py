"""TLS handshakes that fail: a line in the log, and the alert that tells the peer why.

When a handshake fails, OpenSSL writes an alert for the peer, such as ``unknown_ca`` or
``certificate_required``, and the event loop drops its connection without sending it. So the object
that shakes hands sends it by itself, before it reports the failure.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger("raylog.wire")

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
            logger.warning("listener %s: a TLS handshake failed: %s", self.listener, why)
            self._send_alert()
            raise
        self.accepted = None

    def _send_alert(self) -> None:
        if self.accepted is not None and self.outgoing is not None and self.outgoing.pending:
            with contextlib.suppress(OSError):  # the peer is gone, or reads nothing
                self.accepted.send(self.outgoing.read())


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
