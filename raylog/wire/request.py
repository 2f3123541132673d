"""One request that a server has received, until it is answered.

Most are handed to their handler decoded. Those of ``Server.undecoded`` APIs keep the bytes that
they came in: ``frame``, and ``position``, where the header's fixed part ends. ``body`` decodes them
on first use, so a handler that only passes the bytes on decodes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from raylog.errors import RaylogError
from raylog.kafka.context import RequestContext
from raylog.kafka.traces import traced
from raylog.wire import private
from raylog.wire.frames import Entity, RequestHeader, decode_request_body, encode_response, passed_on_response
from raylog.wire.framing import Buffer
from raylog.wire.handshake import Peer

if TYPE_CHECKING:
    from raylog.wire.server_connection import ServerConnection


OPEN: Final = "open"
REPLIED: Final = "replied"
GONE: Final = "gone"
NS_PER_S: Final = 1_000_000_000


class Request:
    """One request. Answer it once, by ``reply``; or never, for a Produce with acks 0: then call
    ``done``.

    ``context`` says who asks. It is passed on with the request; a stage may replace it
    (``raylog.kafka.chain``).
    """

    __slots__ = (
        "_amend",
        "_body",
        "api_key",
        "arrived_ns",
        "began_ns",
        "connection",
        "context",
        "correlation_id",
        "encoded",
        "frame",
        "held_bytes",
        "local_ns",
        "position",
        "queue_ns",
        "state",
        "throttle_ms",
        "version",
    )

    def __init__(
        self,
        connection: ServerConnection,
        header: RequestHeader,
        context: RequestContext,
        body: Entity,
        size: int,
        frame: memoryview | bytes | None = None,
        position: int = 0,
    ) -> None:
        self.connection = connection
        self.api_key, self.version, self.correlation_id, _ = header
        self.context = context
        self.frame = frame
        self.position = position
        self._body = body
        self._amend: Callable[[Entity], Entity] | None = None
        self.held_bytes = size
        self.arrived_ns = 0  # when its stages and its handler began
        self.queue_ns = 0  # that it waited before its handler
        self.local_ns: int | None = None  # until its handler returned without an answer
        self.throttle_ms = 0  # that its client is told to wait
        self.began_ns = 0  # once its handler has returned without an answer, if its time counts
        self.state: str = OPEN
        self.encoded: list[Buffer] | None = None  # encoded, waiting for its turn (ordered connections)

    @property
    def body(self) -> Entity:
        """Raises ProtocolError if it has to be decoded for this, and cannot be."""
        if self._body is None and self.frame is not None:
            server = self.connection.server
            self._body = decode_request_body(
                self.frame,
                self.header,
                self.position,
                borrow=server.borrows_records,
                ignore_rest=server.ignores_trailing_bytes,
            )
        return self._body

    @body.setter
    def body(self, body: Entity) -> None:
        self._body = body

    def replace_body(self, body: Entity) -> None:
        """The request is this one from now on. The bytes that it came in are forgotten."""
        self._body, self.frame = body, None

    @property
    def header(self) -> RequestHeader:
        return RequestHeader(self.api_key, self.version, self.correlation_id, self.context.client_id)

    @property
    def peer(self) -> Peer:
        return self.connection.peer

    @property
    def is_open(self) -> bool:
        """Whether somebody still waits for the reply."""
        return self.state is OPEN

    def reply(self, entity: Entity) -> None:
        """Sends the answer.

        Nothing happens when the connection is gone; answering twice is a mistake of the caller's.
        """
        if self.state is GONE:
            return
        assert self.state is OPEN, f"request {self.header} was answered twice"
        if self._amend is not None:
            entity = self._amend(entity)
        delay = getattr(entity, "throttle_time", None)
        if delay:
            self.throttle_ms = round(delay.total_seconds() * 1_000)
        self.connection.send_reply(self, encode_response(entity, self.correlation_id))
        if delay:
            self._throttled(delay.total_seconds())

    def _throttled(self, seconds: float) -> None:
        server = self.connection.server
        if self.peer.node_id < 0:
            server.counts.throttles[self.api_key].add(round(seconds * NS_PER_S))
        if server.ordered:
            self.connection.mute(seconds)

    def send(self, frame: Sequence[Buffer], *, now: bool = False) -> None:
        """Sends an answer that is written already, size and correlation id included; one that
        doesn't have the client wait.

        ``now``: not with others at the end of this turn, since there will be none.
        """
        if self.state is GONE:
            return
        assert self.state is OPEN, f"request {self.header} was answered twice"
        self.connection.send_reply(self, frame, now=now)

    def pass_on(self, frame: Buffer) -> None:
        """Sends the answer that somebody else gave to the same request, as it came; none that has
        the client wait.

        ``frame`` is not used after this returns, but for the views of a large one (``framing``).
        """
        if self.state is GONE:
            return
        assert self.state is OPEN, f"request {self.header} was answered twice"
        self.connection.send_reply(self, passed_on_response(frame, self.correlation_id))

    def refuse(self, error: RaylogError) -> None:
        """Answers a private API by an error."""
        assert self.api_key >= private.FIRST_API_KEY, "Kafka's APIs carry errors in fields of their own"
        self.reply(private.refusal(self.api_key, error))

    def amend_reply(self, amend: Callable[[Entity], Entity]) -> None:
        """The answer to the client is what ``amend``, and whatever amended it before, makes of the
        one that is given. Nobody passes the bytes of such a request on: ``replace_body`` first.
        """
        assert self.frame is None, f"the bytes of {self.header} may be passed on, and their answer with them"
        before = self._amend
        self._amend = amend if before is None else lambda entity: before(amend(entity))

    @property
    def is_amended(self) -> bool:
        return self._amend is not None

    def replace_reply(self, callback: Callable[[], None]) -> None:
        """When the answer is there, it is dropped and ``callback`` called in its place."""
        if self.state is OPEN:
            self.connection.replaced_replies[self] = callback

    def done(self) -> None:
        """Ends a request that wants no answer."""
        if self.state is OPEN:
            self.connection.send_reply(self, [])

    def release(self) -> None:
        """The body is of no more use: forgets it and gives its bytes back to the peer's share."""
        self._body = self.frame = None
        held, self.held_bytes = self.held_bytes, 0
        self.connection.give_back(held)

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """The callback of something this request waits for: what escapes it ends the connection, as
        what escapes a handler does.
        """

        carry_on = traced(self.context, callback)

        def call(*arguments: Any) -> None:
            try:
                carry_on(*arguments)
            except Exception as error:
                self.connection.handler_failed(self, error)

        return call

    def on_close(self, callback: Callable[[Request], None]) -> None:
        """Calls back if the connection is lost before the reply. For parked requests; at once if it
        is lost already.
        """
        if self.state is OPEN:
            self.connection.watchers[self] = callback
        elif self.state is GONE:
            callback(self)


Handler = Callable[[Request], Awaitable[Any] | None]
"""Answers by ``request.reply``, now or later; a coroutine may also return the reply."""
