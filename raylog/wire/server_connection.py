"""One peer of a server: its requests in, its answers out, and what it may hold meanwhile
(``raylog.wire.server``).

Order. ``ordered=False`` (inside links): replies leave as they come, matched by correlation id.
``ordered=True`` (outside clients): replies leave in the order of the requests, whatever the
handlers do.

Back-pressure. Requests that are not replied to count their bytes, per connection and per server. A
connection above its share, or with too many requests, is not read until it has sunk below. When the
server is above its share, those connections wait that hold more than ``SMALL_HOLDER_BYTES``: a
follower's parked fetch is small, so the replication that frees parked produce requests always gets
through. A peer that does not read its replies is not read either. An outside client that is told to
wait (``throttle_time``) is not read for so long. ``request.release()`` gives the bytes back early,
once the body is of no more use.

Leaving. A connection may ``leave``: when all that was asked is answered and sent, its socket and
what was read and not parsed go to whoever continues with it (``raylog.wire.moved_connections``).
``Server.adopt`` is the other end.

Bad input. Whatever is no frame, no known request or no proof is logged in one line with the peer's
address, and the connection is closed; a handler that raises a RaylogError for a private API refuses
by that error, anything else that escapes a handler closes the connection with a traceback in the
log, for there is no way to know what the peer was told. Frames that stop in their middle for
``frame_timeout_ms`` end their connection.

Invariants: ``in_flight_bytes`` and ``in_flight_requests`` are sums over unreplied requests; both
are 0 on a lost connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from ssl import SSLObject
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from raylog.errors import ProtocolError, RaylogError
from raylog.kafka import chain, table
from raylog.kafka.context import (
    ANONYMOUS,
    CLIENT_ID_CHARACTERS_MAX,
    FIELD_BYTES_MAX,
    MARK,
    RequestContext,
    decoded,
    principal_of_process,
)
from raylog.kafka.traces import in_trace
from raylog.types import BROKER_SLOT, slot_of
from raylog.wire import api_versions, private
from raylog.wire.frames import (
    API_VERSIONS,
    SMALL_FRAME_BYTES,
    Entity,
    RequestHeader,
    UnsupportedVersionError,
    decode_request_body,
    decode_request_header,
    encode_response,
)
from raylog.wire.framing import LARGE_FRAME_BYTES, Buffer, FramedProtocol
from raylog.wire.handshake import HANDSHAKE_BYTES_MAX, HandshakeError, Peer, ServerHandshake
from raylog.wire.request import GONE, OPEN, REPLIED, Handler, Request
from raylog.wire.server_counts import VERSION_BITS

if TYPE_CHECKING:
    from raylog.wire.server import Server

logger = logging.getLogger("raylog.wire")

FETCH: Final = table.FETCH.key
SMALL_HOLDER_BYTES: Final = 64 * 1024
BROKER_REQUESTS_MAX: Final = 65_536
OWN_CONTEXTS_MAX: Final = 16  # kept per connection of a client
PASSED_CONTEXTS_MAX: Final = 4_096  # kept per connection of a server process, which passes on for many clients
KEPT_CHARACTERS_MAX: Final = 1_024  # of a client id whose context is kept
UNSENT_POLL_S: Final = 0.005  # how often a connection that leaves looks whether its peer has read

HandOver = Callable[[socket.socket, bytes], bool]
"""Takes a connection's socket and the bytes that were read from it and not parsed; False: it can't,
and has closed the socket.
"""


class ServerConnection(FramedProtocol):
    """One peer of a server. ``peer`` says who it is once the handshake is done. ``proves_later``: it
    has not proved that yet when it is open.
    """

    proves_later: ClassVar[bool] = False

    def __init__(self, server: Server) -> None:
        super().__init__(
            frame_bytes_max=HANDSHAKE_BYTES_MAX if server.secret is not None else server.limits.request_bytes_max
        )
        self.server = server
        self.peer = Peer()
        self.in_flight_bytes = 0
        self.in_flight_requests = 0
        self.in_flight_fetches = 0
        self.watchers: dict[Request, Callable[[Request], None]] = {}
        self.replaced_replies: dict[Request, Callable[[], None]] = {}
        self.listener = server.listener  # where its client came in
        self.principal = ANONYMOUS  # once there is a handshake, when that is done
        self.principal_of: Callable[[SSLObject], str] | None = None  # by what TLS knows of the peer
        self.turn: asyncio.Future[None] | None = None  # of the last request that a stage delays (``chain``)
        self._contexts: dict[str | None, RequestContext] = {}  # by what stands in the header for the client id
        self._on_lost: list[Callable[[], None]] = []
        self.accepted_at = 0.0  # before TLS, if it has that
        self.opened_at = 0.0
        self.must_prove = False  # it counts as one that has not authenticated (``acceptor``)
        self._handshake: ServerHandshake | None = None
        self._open_requests: set[Request] = set()
        self._order: deque[Request] | None = deque() if server.ordered else None
        self._waiting = False  # reading is held for back-pressure
        self._muted_until = 0.0
        self._stream: Callable[[memoryview], None] | None = None  # takes the frames after a switch to a session
        self._stream_closed: Callable[[Exception | None], None] | None = None
        self._progress_mark = -1
        self._idle_mark = -1
        self._idle_since = 0.0
        self._leaving: tuple[HandOver, bytes] | None = None
        self.requests = 0  # ever dispatched
        self.counted = server.counts.requests  # with the requests of whom this one's are counted
        self.is_adopted = False  # another server has begun it
        self.route: Any = None  # the handlers' own note of where this connection's requests go
        self.client_software = ("", "")  # name and version, as its client has said in ApiVersions
        self.came_back = 0  # how often it has left and returned

    def __repr__(self) -> str:
        return f"<connection of {self.peername}, node {self.peer.node_id}>"

    # -------------------------------------------------------------- reading

    def opened(self) -> None:
        server = self.server
        self.opened_at = server.loop.time()
        if not self.accepted_at:
            self.accepted_at = self.opened_at
        if server.is_over:  # it was accepted just before
            self.abort()
            return
        if self.principal_of is not None:
            try:
                self.principal = self.principal_of(cast(asyncio.Transport, self.transport).get_extra_info("ssl_object"))
            except ProtocolError as error:
                self.refused(error)
                return
        if server.secret is not None:
            identity = Peer(server.identity.node_id, server.identity.incarnation) if server.identity else Peer()
            self._handshake = ServerHandshake(server.secret, server.cluster_id, identity=identity)
        server.connections.add(self)
        if not server.acceptor.arrived(self):
            server.connections_of_host[self.host] += 1
        if not self.proves_later:
            server.acceptor.proved(self)
        if not self.is_adopted:
            server.counts.created[self.listener] += 1

    @property
    def host(self) -> str:
        """The peer's address, without a port."""
        return self.peername.rpartition(":")[0]

    def frame_received(self, frame: memoryview) -> None:
        if self._stream is not None:
            self._stream(frame)
            return
        size = len(frame)
        data: memoryview | bytes = bytes(frame) if size <= SMALL_FRAME_BYTES else frame
        header, position = decode_request_header(data)
        if self._handshake is not None:
            self._shake_hands(header, data, position)
            return
        try:
            handler = self.server.handler_of(header)
            self.counted[header.api_key << VERSION_BITS | header.version] += 1
            if header.api_key in self.server.undecoded:
                kept = frame if size > LARGE_FRAME_BYTES else data if isinstance(data, bytes) else bytes(frame)
                self._dispatch(handler, header, None, size, kept, position)
                return
            body = decode_request_body(
                data,
                header,
                position,
                borrow=self.server.borrows_records,
                ignore_rest=self.server.ignores_trailing_bytes,
            )
        except UnsupportedVersionError as error:
            if header.api_key != API_VERSIONS:
                raise
            logger.debug("%s: %s; answered with the versions spoken here", self.peername, error)
            self._dispatch(api_versions.answer_unsupported, header, None, size)
            return
        self._dispatch(handler, header, body, size)

    def _dispatch(
        self,
        handler: Handler,
        header: RequestHeader,
        body: Entity,
        size: int,
        frame: memoryview | bytes | None = None,
        position: int = 0,
    ) -> None:
        context = self._contexts.get(header.client_id) or self._context_of(header.client_id)
        request = Request(self, header, context, body, size, frame, position)
        self._open_requests.add(request)
        self.requests += 1
        self.in_flight_requests += 1
        if header.api_key == FETCH:
            self.in_flight_fetches += 1
        self.in_flight_bytes += size
        self.server.in_flight_bytes += size
        if self._order is not None:
            self._order.append(request)
        began_ns = request.arrived_ns = perf_counter_ns()
        try:
            stages = self.server.stages
            awaitable = chain.carry_out(stages, request, handler) if stages or context.trace_id else handler(request)
        except Exception as error:
            if request.frame is not None and isinstance(error, ProtocolError):
                raise  # it was the handler that found out what the request is like
            self.handler_failed(request, error)
            return
        if self.peer.node_id < 0 or self.server.slow is not None:
            self._note_time(request, began_ns, is_handled=awaitable is None)
        if awaitable is not None:
            self.server.spawn(self._answer(request, awaitable))
        if self._over_limits():
            self._wait()

    def _note_time(self, request: Request, began_ns: int, *, is_handled: bool) -> None:
        """The handler of a request has returned. Its work is done if it is no coroutine. Only clients'
        requests are counted.
        """
        counts, length_ns = self.server.counts, perf_counter_ns() - began_ns
        if request.state is OPEN:
            request.local_ns = length_ns if is_handled else 0
        if self.peer.node_id >= 0:
            return
        if request.state is OPEN:
            request.began_ns = began_ns
            if is_handled:
                counts.until_handled[request.api_key].add(length_ns)
        elif request.state is REPLIED:
            counts.at_once[request.api_key].add(length_ns)

    def _context_of(self, client_id: str | None) -> RequestContext:
        """Who sends requests with that client id. Only a process of this cluster can say that it
        asks for somebody else.
        """
        if client_id is not None and self.peer.node_id >= 0 and client_id.startswith(MARK):
            context = decoded(client_id)
        else:
            host = self.host
            shown = client_id if client_id is None else client_id[:CLIENT_ID_CHARACTERS_MAX]
            context = RequestContext(self.principal, self.listener, host, shown)
        if (
            context.deadline is None
            and context.trace_id is None
            and (client_id is None or len(client_id) <= KEPT_CHARACTERS_MAX)
        ):
            if len(self._contexts) >= (PASSED_CONTEXTS_MAX if self.peer.node_id >= 0 else OWN_CONTEXTS_MAX):
                self._contexts.clear()
            self._contexts[client_id] = context
        return context

    async def _answer(self, request: Request, awaitable: Awaitable[Any]) -> None:
        try:
            reply = await awaitable
            if reply is not None:
                request.reply(reply)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.handler_failed(request, error)

    def handler_failed(self, request: Request, error: Exception) -> None:
        """Nobody knows what the peer was told: the connection ends, unless a private API can be
        refused.
        """
        if isinstance(error, RaylogError) and request.is_open and request.api_key >= private.FIRST_API_KEY:
            request.refuse(error)
            return
        logger.exception(
            "closing %s: the handler of API %d failed",
            self.peername,
            request.api_key,
            exc_info=error,
            extra=in_trace(request.context),
        )
        self.close(error)

    def _shake_hands(self, header: RequestHeader, frame: memoryview | bytes, position: int) -> None:
        assert self._handshake is not None
        if header.api_key != private.HANDSHAKE:
            raise HandshakeError(f"API {header.api_key} before the handshake")
        message = decode_request_body(frame, header, position)
        try:
            reply = self._handshake.receive(message)
        except HandshakeError as error:
            self.server.counts.failed_authentications[self.listener] += 1
            self.write_frame(encode_response(private.Refusal.of(error), header.correlation_id))
            raise
        self.write_frame(encode_response(reply, header.correlation_id))
        if self._handshake.peer is not None:
            self.peer = self._handshake.peer
            self._handshake = None
            self.server.counts.successful_authentications[self.listener] += 1
            self.principal = principal_of_process(self.peer.node_id)
            if self.peer.node_id >= 0:
                self.counted = self.server.counts.internal_requests
            longer = FIELD_BYTES_MAX if self.peer.node_id >= 0 else 0  # than when a client sent it
            self.frame_bytes_max = self.server.limits.request_bytes_max + longer

    def refused(self, error: ProtocolError) -> None:
        logger.warning("closing the connection of %s: %s", self.peername, error)
        self.server.refused_connections += 1
        self.close(error)

    # -------------------------------------------------------------- replying

    def send_reply(self, request: Request, frame: Sequence[Buffer], *, now: bool = False) -> None:
        """Takes the encoded answer of an open request; an empty one only ends it. ``now``: written
        at once where order allows. So is one that no other request of its connection waits behind.
        """
        now = now or self.in_flight_requests == 1
        request.state = REPLIED
        if request.began_ns:
            self.server.counts.until_answered[request.api_key].add(perf_counter_ns() - request.began_ns)
        if self.server.slow is not None:
            self.server.slow.ended(request, frame)
        instead = self.replaced_replies.pop(request, None) if self.replaced_replies else None
        if instead is not None:
            frame = ()
        if self._order is None:
            if frame:
                (self.write_frame_now if now else self.write_frame)(frame)
        elif self._order and self._order[0] is request:
            self._order.popleft()
            if frame:
                (self.write_frame_now if now else self.write_frame)(frame)
            while self._order and self._order[0].encoded is not None:
                following = self._order.popleft()
                if following.encoded:
                    self.write_frame(following.encoded)
                following.encoded = None
        else:
            request.encoded = list(frame)
            self.server.unread.add(self)
        self._open_requests.discard(request)
        if self.watchers:
            self.watchers.pop(request, None)
        self.in_flight_requests -= 1
        if request.api_key == FETCH:
            self.in_flight_fetches -= 1
        self.give_back(request.held_bytes)
        request.held_bytes = 0
        if instead is not None:
            instead()
        if self._leaving is not None and not self.in_flight_requests:
            self.loop.call_soon(self._maybe_leave)  # behind the write of this answer

    def give_back(self, count: int) -> None:
        """The peer holds ``count`` bytes less."""
        self.in_flight_bytes -= count
        server = self.server
        server.in_flight_bytes -= count
        if self._waiting and not self._over_limits():
            self._go_on()
        if server.waiting and server.in_flight_bytes < server.limits.server_bytes_max:
            server.wake_waiting()

    def cancel(self, correlation_id: int) -> None:
        """Ends a parked request as if its connection were lost, without a reply. One that nobody
        parked goes on.
        """
        for request, callback in self.watchers.items():
            if request.correlation_id == correlation_id:
                request.done()
                callback(request)
                return

    # -------------------------------------------------------------- back-pressure

    def mute(self, seconds: float) -> None:
        """Reads nothing more for so long: the peer was told to wait, and perhaps it does not
        (KIP-219).
        """
        self._muted_until = max(self._muted_until, self.loop.time() + seconds)
        self.loop.call_later(seconds, self._maybe_unmute)
        self._wait()

    def _maybe_unmute(self) -> None:
        left_s = self._muted_until - self.loop.time()
        if left_s > 0:  # a timer may be a moment early
            self.loop.call_later(left_s + 0.001, self._maybe_unmute)
        else:
            self._muted_until = 0.0
            self.maybe_go_on()

    def _over_limits(self) -> bool:
        if self._muted_until:
            return True
        limits = self.server.limits
        is_broker = self.peer.node_id >= 0 and slot_of(self.peer.node_id) == BROKER_SLOT
        requests_max = BROKER_REQUESTS_MAX if is_broker else limits.connection_requests_max
        if self.in_flight_bytes > limits.connection_bytes_max or self.in_flight_requests >= requests_max:
            return True
        if limits.connection_fetches_max is not None and self.in_flight_fetches >= limits.connection_fetches_max:
            return True
        return self.server.in_flight_bytes > limits.server_bytes_max and self.in_flight_bytes > SMALL_HOLDER_BYTES

    def _wait(self) -> None:
        if not self._waiting and not self.lost:
            self._waiting = True
            self.server.waiting.add(self)
            self.hold_reading()

    def _go_on(self) -> None:
        self._waiting = False
        self.server.waiting.discard(self)
        if not self.write_paused:
            self.release_reading()

    def maybe_go_on(self) -> None:
        if self._waiting and not self._over_limits():
            self._go_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.server.unread.add(self)
        self.hold_reading()

    def write_resumed(self) -> None:
        if not self._waiting:
            self.release_reading()
        self.server.on_read()

    @property
    def unread_bytes(self) -> int:
        """Of answers that the peer has not taken, or whose turn has not come."""
        held = [request.encoded for request in self._order or () if request.encoded]
        return self.unsent_bytes + sum(sum(map(len, reply)) for reply in held)

    # -------------------------------------------------------------- leaving

    @property
    def may_leave(self) -> bool:
        """Whether another process could go on with the connection. With TLS it can't: the keys of
        the connection are in this one.
        """
        return self._plain_socket is not None

    @property
    def is_leaving(self) -> bool:
        return self._leaving is not None

    def leave(self, hand_over: HandOver, *, pending: bytes = b"") -> None:
        """Reads no further, and gives the connection to ``hand_over`` once everything is answered
        and sent.

        ``pending``: bytes that were delivered already and are for the other end. Where it can't be
        given away it goes on here, if nothing is pending, and else ends.
        """
        assert self._leaving is None, "a connection leaves once"
        self._leaving = (hand_over, pending)
        self.hold_reading()
        self.loop.call_soon(self._maybe_leave)

    def release_reading(self) -> None:
        if self._leaving is None:
            super().release_reading()

    def _maybe_leave(self) -> None:
        if self._leaving is None or self.lost or self.shut or self.in_flight_requests:
            return
        if self.unsent_bytes or self._muted_until:
            self.loop.call_later(UNSENT_POLL_S, self._maybe_leave)
            return
        hand_over, pending = self._leaving
        duplicate = self.duplicate_socket()
        if duplicate is not None:
            sock, rest = duplicate
            if hand_over(sock, pending + rest):
                self.forget()
                return
        self._leaving = None
        self.came_back += 1  # perhaps another time
        self.route = None
        if pending:
            self.close(ProtocolError("a request that is served elsewhere, and nobody there"))
        elif not self._waiting and not self.write_paused:
            self.release_reading()

    # -------------------------------------------------------------- ending

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls back when the connection has ended, whatever is in flight on it then."""
        self._on_lost.append(callback)

    def switch_to_stream(
        self,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[Exception | None], None],
        *,
        frame_bytes_max: int,
    ) -> None:
        """From the next frame on, everything goes to ``on_frame``.

        The request that asked for it must be answered by now.
        """
        assert self._stream is None, "a connection switches once"
        self._stream = on_frame
        self._stream_closed = on_close
        self.frame_bytes_max = frame_bytes_max

    def never_came(self) -> None:
        """An adopted connection ended before it was there."""
        for lost in self._on_lost:
            lost()

    def closed(self, reason: Exception | None) -> None:
        server = self.server
        if self in server.connections:
            server.connections.discard(self)
            server.leave_host(self.host)
            server.acceptor.proved(self)
        server.waiting.discard(self)
        server.unread.discard(self)
        server.in_flight_bytes -= self.in_flight_bytes
        self.in_flight_bytes = self.in_flight_requests = self.in_flight_fetches = 0
        self._waiting = False
        if self._order is not None:
            self._order.clear()
        for request in self._open_requests:
            if server.slow is not None:
                server.slow.ended(request, None)
            request.state = GONE
            request.held_bytes = 0
        self._open_requests.clear()
        self.replaced_replies.clear()
        watchers, self.watchers = self.watchers, {}
        for request, callback in watchers.items():
            try:
                callback(request)
            except Exception:
                logger.exception("the close callback of a request of %s failed", self.peername)
        for lost in self._on_lost:
            try:
                lost()
            except Exception:
                logger.exception("a close callback of %s failed", self.peername)
        if self._stream_closed is not None:
            self._stream_closed(reason)
        server.wake_waiting()
        server.on_read()

    def sweep(self, now: float) -> None:
        """Closes a connection whose handshake or frame does not come to its end, or that nobody
        uses.
        """
        limits = self.server.limits
        if limits.idle_timeout_ms is not None:
            if self.in_flight_requests or self._idle_mark != self.bytes_received:
                self._idle_mark, self._idle_since = self.bytes_received, now
            elif now - self._idle_since > limits.idle_timeout_ms / 1000:
                logger.debug("closing the connection of %s: idle for %d ms", self.peername, limits.idle_timeout_ms)
                self.close()
                return
        if self._handshake is not None and now - self.accepted_at > limits.handshake_timeout_ms / 1000:
            self.refused(HandshakeError(f"no handshake within {limits.handshake_timeout_ms} ms"))
            return
        if not self.mid_frame or self._reading_held:
            self._progress_mark = -1
        elif self._progress_mark != self.bytes_received:
            self._progress_mark = self.bytes_received
            self._progress_at = now
        elif now - self._progress_at <= limits.frame_timeout_ms / 1000:
            self.take_what_comes()
        else:
            self.refused(ProtocolError(f"the rest of a frame did not come within {limits.frame_timeout_ms} ms"))
