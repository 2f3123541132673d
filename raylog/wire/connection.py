"""One pipelining client connection: many requests in flight, replies matched by correlation id.

``call(entity, on_reply)`` is the cheap form: a callback and no future. ``send(entity)`` gives a
future, ``request`` awaits it. When the connection ends, for whatever reason, everything in flight
fails with DisconnectedError at once and in order; nothing is retried here. A request whose
``timeout_ms`` passes fails with ClientTimeoutError and its reply, should it still come, is dropped;
the connection lives on, since others' requests are on it.

A client's connection obeys (``obeys_throttle``): after a reply that says ``throttle_time`` nothing
leaves for so long [P15]. What is sent meanwhile leaves then, in order, and its time begins then.
Links between servers pass such a reply on and go on.

Callbacks run in the loop's thread; one that raises is logged and hurts nobody else. Writing never
blocks: a sender that can outrun the peer looks at ``write_paused`` or awaits ``drain()``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from raylog.errors import (
    ClientTimeoutError,
    ConfigError,
    DisconnectedError,
    ProtocolError,
    RaylogError,
    SslAuthenticationError,
)
from raylog.kafka.context import RequestContext
from raylog.types import Endpoint
from raylog.wire import private
from raylog.wire.client_security import (
    NO_TLS,
    ClientSecurity,
    SaslAuthenticationFailedError,
    SaslSession,
    tls_failure,
    unauthenticated_end,
)
from raylog.wire.frames import (
    PRODUCE,
    Entity,
    api_of,
    client_id_field,
    correlation_id_of,
    decode_response,
    encode_request,
    passed_on_request,
)
from raylog.wire.framing import TLS_ALERT, Buffer, FramedProtocol
from raylog.wire.handshake import HANDSHAKE_BYTES_MAX, ClientHandshake, HandshakeError, Peer
from raylog.wire.internal_tls import Secret, security_of_link
from raylog.wire.tls_alerts import UNLIKE_LINKS

logger = logging.getLogger("raylog.wire")

REPLY_BYTES_MAX: Final = 1 << 30
REQUEST_TIMEOUT_MS: Final = 30_000
OPEN_TIMEOUT_MS: Final = 10_000
UNDECODED: Final = -1

OnReply = Callable[[Entity | None, Exception | None], None]
"""Called with the reply, or with None and what went wrong."""


class _PendingCall(NamedTuple):
    on_reply: OnReply
    api_key: int  # UNDECODED: the caller wants the reply's frame
    version: int
    deadline: float  # the loop's time; infinite if there is none


class Connection(FramedProtocol):
    """Made by ``Connection.open``. ``peer`` is who answered the handshake."""

    def __init__(self, endpoint: Endpoint, client_id: str | None) -> None:
        super().__init__(frame_bytes_max=REPLY_BYTES_MAX)
        self.endpoint = endpoint
        self.peer = Peer()
        self._client_id = client_id_field(client_id)
        self._borrows_records = False
        self._pending: dict[int, _PendingCall] = {}
        self._next_correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._drained: asyncio.Future[None] | None = None
        self._obeys_throttle = False
        self._throttled_until = 0.0  # the loop's time
        self._hint = ""  # why a listener may have ended the connection before its first answer
        self._is_held = False  # until a session is begun anew
        self._held: list[list[Buffer]] = []  # frames that wait for either
        self._stream: Callable[[memoryview], None] | None = None
        self._stream_closed: Callable[[Exception | None], None] | None = None
        self._waiting_for_end: list[asyncio.Future[None]] = []

    @staticmethod
    async def open(
        endpoint: Endpoint,
        *,
        secret: Secret | None,
        cluster_id: str,
        expect: Peer | tuple[int, int] | None = None,
        caller: Peer | None = None,
        client_id: str | None = "raylog",
        timeout_ms: int = OPEN_TIMEOUT_MS,
        borrows_records: bool = False,
        obeys_throttle: bool = False,
        security: ClientSecurity | None = None,
    ) -> Connection:
        """Connects and shakes hands (``secret`` None: no handshake), inside TLS for a secret that
        says so.

        ``expect`` demands one actor and incarnation, ``caller`` says who we are.
        ``borrows_records``: large records in a reply are views of what was read, whose memory they
        hold. ``security`` is what a broker's listener asks for. Raises DisconnectedError if nobody
        answers or the peer closes, ClientTimeoutError after ``timeout_ms``, HandshakeError for a
        peer that is not who it should be; SslAuthenticationError and SaslAuthenticationFailedError.
        """
        connection = Connection(endpoint, client_id)
        connection._borrows_records = borrows_records
        connection._obeys_throttle = obeys_throttle
        connection._hint = unauthenticated_end(security) if secret is None else ""
        expected = Peer(*expect) if isinstance(expect, tuple) else expect
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await (connection.connect(security) if secret is None else connection.connect_inside(secret))
                if security is not None and security.mechanism is not None:
                    await SaslSession(connection, security).begin()
                if secret is not None:
                    await connection.shake_hands(ClientHandshake(secret, cluster_id, caller=caller, expect=expected))
        except TimeoutError:
            connection.abort()
            raise ClientTimeoutError(f"{endpoint} did not answer within {timeout_ms} ms") from None
        except BaseException:
            connection.abort()
            raise
        return connection

    async def connect(self, security: ClientSecurity | None = None, *, no_tls: str = NO_TLS) -> None:
        """The first half of ``open``, with TLS if ``security`` says so. ``no_tls``: what is said of a
        peer that may speak none. Raises DisconnectedError, caused by the OSError, and
        SslAuthenticationError.
        """
        loop = asyncio.get_running_loop()
        host, port = self.endpoint.host, self.endpoint.port
        context = security.context() if security is not None else None
        server_name = host if context is not None else None
        try:
            failure: OSError | None = None
            for address in [host] if _is_numeric(host) else await _addresses(host, port):
                try:
                    await loop.create_connection(lambda: self, address, port, ssl=context, server_hostname=server_name)
                    return
                except OSError as error:
                    failure = error
            raise failure or OSError(f"{host} has no address")
        except OSError as error:
            if context is not None and (told := tls_failure(self.endpoint, error, no_tls)) is not None:
                raise told from None
            if (
                context is not None
                and isinstance(error, ConnectionError | ssl.SSLError)
                and error.errno != errno.ECONNREFUSED
            ):
                raise DisconnectedError(f"{self.endpoint} ended the TLS handshake: {no_tls}") from error
            reason = (
                str(error) if error.errno is None or isinstance(error, socket.gaierror) else os.strerror(error.errno)
            )
            raise DisconnectedError(f"cannot connect to {self.endpoint}: {reason}") from error

    async def connect_inside(self, secret: Secret) -> None:
        """``connect`` to a process of the cluster whose secret that is. Raises DisconnectedError, and
        HandshakeError, caused by the SslAuthenticationError, for one that TLS does not accept, or by
        the ConfigError if this process has no certificates to go by.
        """
        try:
            await self.connect(security_of_link(secret), no_tls=f"if it does not speak TLS, {UNLIKE_LINKS}")
        except (SslAuthenticationError, ConfigError) as error:
            raise HandshakeError(str(error)) from error

    # -------------------------------------------------------------- sending

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def is_open(self) -> bool:
        return not self.shut

    def call(
        self,
        entity: Entity,
        on_reply: OnReply,
        *,
        timeout_ms: float | None = REQUEST_TIMEOUT_MS,
        context: RequestContext | None = None,
    ) -> int:
        """Sends a request and returns what ``cancel`` wants. ``on_reply`` is called exactly once,
        never before this returns.

        ``context``: of a request that is passed on for somebody else, to a process of this cluster.
        """
        frame = encode_request(entity, self._next_correlation_id, self._field(context))
        return self._begin(frame, on_reply, *api_of(entity), timeout_ms)

    def pass_on(
        self,
        frame: Buffer,
        position: int,
        end: int,
        on_reply: OnReply,
        *,
        context: RequestContext,
        timeout_ms: float | None,
    ) -> int:
        """Sends a request that somebody else encoded, like ``call``: only its correlation id and
        client id are other ones.

        In ``frame`` the header's fixed part ends at ``position``, the request at ``end``.
        ``on_reply`` gets the reply's frame instead of an entity; it dies when that returns, unless
        it is a large one (``framing``).
        """
        buffers = passed_on_request(frame, position, end, self._next_correlation_id, context.header_field())
        return self._begin(buffers, on_reply, UNDECODED, 0, timeout_ms)

    def call_written(
        self, write: Callable[[int, bytes], list[Buffer]], on_reply: OnReply, *, timeout_ms: float | None
    ) -> int:
        """Sends the frame that ``write`` makes, given the correlation id and the client id as the
        header holds it.

        ``on_reply`` gets the reply's frame, as ``pass_on``'s does.
        """
        frame = write(self._next_correlation_id, self._client_id)
        return self._begin(frame, on_reply, UNDECODED, 0, timeout_ms)

    def _field(self, context: RequestContext | None) -> bytes:
        return self._client_id if context is None else context.header_field()

    def _begin(
        self, frame: list[Buffer], on_reply: OnReply, api_key: int, version: int, timeout_ms: float | None
    ) -> int:
        """Sends the frame of a request that has the next correlation id."""
        if self.shut or self.lost:
            self.loop.call_soon(on_reply, None, self._disconnected())
            return -1
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if timeout_ms is None:
            deadline = float("inf")
        else:
            deadline = max(self.loop.time(), self._throttled_until) + timeout_ms / 1000
            if deadline < self._timer_at:
                self._set_timer(deadline)
        was_idle = not self._pending
        self._pending[correlation_id] = _PendingCall(on_reply, api_key, version, deadline)
        if self._throttled_until or self._is_held:
            self._held.append(frame)
        elif was_idle:
            self.write_frame_now(frame, amid_read=True)  # no further reply is in this read
        else:
            self.write_frame(frame)
        return correlation_id

    def cancel(self, correlation_id: int) -> None:
        """The reply to that call is of no use any more: ``on_reply`` is not called, and a server of
        ours forgets a parked request.
        """
        if self._pending.pop(correlation_id, None) is not None:
            self.call(private.Cancel(correlation_id), lambda reply, error: None)

    def send(
        self,
        entity: Entity,
        *,
        timeout_ms: float | None = REQUEST_TIMEOUT_MS,
        context: RequestContext | None = None,
    ) -> asyncio.Future[Entity]:
        """Sends a request; the future holds the reply."""
        future: asyncio.Future[Entity] = self.loop.create_future()

        def on_reply(reply: Entity | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(reply)

        self.call(entity, on_reply, timeout_ms=timeout_ms, context=context)
        return future

    async def request(
        self,
        entity: Entity,
        *,
        timeout_ms: float | None = REQUEST_TIMEOUT_MS,
        context: RequestContext | None = None,
    ) -> Entity:
        """Sends a request and waits for the reply."""
        return await self.send(entity, timeout_ms=timeout_ms, context=context)

    def send_unanswered(self, entity: Entity, *, context: RequestContext | None = None) -> None:
        """Sends a Produce with acks 0, to which no reply comes."""
        assert api_of(entity)[0] == PRODUCE and entity.acks == 0, "only Produce with acks 0 has no reply"
        if not self.shut:
            frame = encode_request(entity, 0, self._field(context))
            if self._throttled_until or self._is_held:
                self._held.append(frame)
            else:
                self.write_frame(frame)

    def send_first(self, entity: Entity) -> asyncio.Future[Entity]:
        """Sends a request past those that are held; the future holds the reply."""
        held, throttled = self._is_held, self._throttled_until
        self._is_held, self._throttled_until = False, 0.0
        try:
            return self.send(entity, timeout_ms=None)
        finally:
            self._is_held, self._throttled_until = held, throttled

    def hold_requests(self) -> None:
        """Whatever is sent from now on waits for ``release_requests``, in order."""
        self._is_held = True

    def release_requests(self) -> None:
        self._is_held = False
        self._send_held()

    async def drain(self) -> None:
        """Waits while the peer is slow to read. Returns at once on a closed connection."""
        if self.write_paused and not self.lost:
            if self._drained is None:
                self._drained = self.loop.create_future()
            await asyncio.shield(self._drained)

    async def wait_closed(self) -> None:
        """Waits until the connection is gone."""
        if not self.lost and self.transport is not None:
            future: asyncio.Future[None] = self.loop.create_future()
            self._waiting_for_end.append(future)
            await future

    # -------------------------------------------------------------- receiving

    def frame_received(self, frame: memoryview) -> None:
        if self._stream is not None:
            self._stream(frame)
            return
        pending = self._pending.pop(correlation_id_of(frame), None)
        if pending is None:
            return  # it timed out
        if pending.api_key == UNDECODED:
            self._call_back(pending, frame, None)
            return
        reply: Entity | None = None
        failure: Exception | None = None
        try:
            reply = decode_response(pending.api_key, pending.version, frame, borrow=self._borrows_records)
        except ProtocolError as error:
            self._call_back(pending, None, error)
            raise
        except RaylogError as error:  # a private API's refusal
            failure = error
        if self._obeys_throttle and (delay := getattr(reply, "throttle_time", None)):
            self._throttle(delay.total_seconds())
        self._call_back(pending, reply, failure)

    def _throttle(self, seconds: float) -> None:
        now = self.loop.time()
        if not self._throttled_until:
            self.loop.call_later(seconds, self._throttle_over)
        self._throttled_until = max(self._throttled_until, now + seconds)

    def _throttle_over(self) -> None:
        left_s = self._throttled_until - self.loop.time()
        if left_s > 0:
            self.loop.call_later(left_s, self._throttle_over)
            return
        self._throttled_until = 0.0
        self._send_held()

    def _send_held(self) -> None:
        if self._throttled_until or self._is_held:
            return
        held, self._held = self._held, []
        for frame in held:
            self.write_frame(frame)

    def _call_back(self, pending: _PendingCall, reply: Entity | None, error: Exception | None) -> None:
        try:
            pending.on_reply(reply, error)
        except Exception:
            logger.exception("the callback of a reply from %s failed", self.endpoint)

    def refused(self, error: ProtocolError) -> None:
        logger.warning("closing the connection to %s: %s", self.endpoint, error)
        self.close(error)

    def write_resumed(self) -> None:
        self._wake_drained()

    def _wake_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # -------------------------------------------------------------- ending

    def closed(self, reason: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_drained()
        pending, self._pending = self._pending, {}
        self._held.clear()
        error = self._disconnected(reason)
        for request in pending.values():
            self._call_back(request, None, error)
        if self._stream_closed is not None:
            self._stream_closed(reason)
        waiting, self._waiting_for_end = self._waiting_for_end, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _disconnected(self, reason: Exception | None = None) -> RaylogError:
        if (
            isinstance(reason, ssl.SSLError)
            and not self.bytes_received  # TLS 1.3 refuses a client after its handshake
            and (told := tls_failure(self.endpoint, reason)) is not None
        ):
            return told
        if isinstance(reason, SaslAuthenticationFailedError):
            return reason  # a session that could not be begun anew
        hint = "" if self.bytes_received or isinstance(reason, RaylogError) else self._hint
        why = "; ".join(filter(None, (str(reason or ""), hint)))
        return DisconnectedError(f"the connection to {self.endpoint} ended" + (f": {why}" if why else ""))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_at(at, self._expire)

    def _expire(self) -> None:
        now = self.loop.time()
        self._timer = None
        self._timer_at = float("inf")
        due = [(key, pending) for key, pending in self._pending.items() if pending.deadline <= now]
        for key, _ in due:
            del self._pending[key]
        for _, pending in due:
            self._call_back(pending, None, ClientTimeoutError(f"{self.endpoint} did not answer in time"))
        earliest = min((pending.deadline for pending in self._pending.values()), default=float("inf"))
        if earliest < self._timer_at:
            self._set_timer(earliest)

    # -------------------------------------------------------------- handshake and sessions

    async def shake_hands(self, handshake: ClientHandshake) -> None:
        """The second half of ``open``. Raises HandshakeError, or DisconnectedError if the peer
        closes: caused by an SslAuthenticationError behind TLS, where a peer that lives may do so.
        """
        refused = None
        if self.transport is not None and self.transport.get_extra_info("sslcontext") is not None:
            # TLS 1.3 refuses a client's certificate after the client's handshake, without a word.
            refused = SslAuthenticationError(f"{self.endpoint} may not accept this process's certificate")
        message: private.HandshakeMessage | None = handshake.start()
        longest, self.frame_bytes_max = self.frame_bytes_max, HANDSHAKE_BYTES_MAX
        while message is not None:
            try:
                reply = await self.request(message, timeout_ms=None)
            except (DisconnectedError, SslAuthenticationError):
                raise DisconnectedError(
                    f"{self.endpoint} closed the connection before the handshake was done{self._strange_answer()}"
                ) from refused
            except RaylogError as error:
                raise HandshakeError(f"{self.endpoint} refused: {error}") from None
            message = handshake.receive(reply)
        self.frame_bytes_max = longest
        assert handshake.peer is not None
        self.peer = handshake.peer

    def _strange_answer(self) -> str:
        """What is known of an answer that is none, to end a sentence with: that of a process with TLS is
        an alert, where this one has none.
        """
        if not isinstance(self._close_reason, ProtocolError):
            return ""
        remedy = f": {UNLIKE_LINKS}, and connect anew where it has changed"
        return f": {self._close_reason}{remedy if str(self._close_reason) == TLS_ALERT else ''}"

    def switch_to_stream(
        self,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[Exception | None], None],
        *,
        frame_bytes_max: int,
    ) -> None:
        """From the next frame on, everything goes to ``on_frame``:

        called in the callback of the reply that agreed to it.
        """
        assert self._stream is None and not self._pending, "a connection switches once, with nothing in flight"
        self._stream = on_frame
        self._stream_closed = on_close
        self.frame_bytes_max = frame_bytes_max


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


async def _addresses(host: str, port: int) -> list[str]:
    """A name's addresses, each once, in the resolver's order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
