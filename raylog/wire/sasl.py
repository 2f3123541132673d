"""Connections whose clients authenticate by SASL first, as Apache Kafka has it (KIP-43, KIP-152,
KIP-368), and what all of one listener share.

::

    stage          takes                            then
    ------------   ------------------------------   -----------------------------------------------------------------
    HANDSHAKE      ApiVersions, SaslHandshake       EXCHANGE; without that mechanism: the list, and the connection ends
    EXCHANGE       SaslAuthenticate; raw tokens     CHECKING (PLAIN, OAUTHBEARER), AUTHENTICATED or FAILED; another request is
                   after SaslHandshake v0           answered ILLEGAL_SASL_STATE, and the connection ends
    CHECKING       nothing                          AUTHENTICATED, REJECTED or FAILED
    AUTHENTICATED  every request                    EXCHANGE by a SaslHandshake, where sessions have an end
    REJECTED       nothing                          the answer to a token of OAUTHBEARER, later, and EXCHANGE, where the
                                                    next message fails
    FAILED         nothing                          the answer, later, and the end

One address has ``unauthenticated_of_host_max`` connections that are not AUTHENTICATED at a time
(``acceptor``). What a stage does not take ends the connection. The stages that are not AUTHENTICATED
take ``handshake_timeout_ms`` at most, with TLS's handshake before them, and a token has at most
``TOKEN_BYTES_MAX`` bytes.

A failure has one answer, whatever the reason, ``failure_delay_ms`` after the token came: how long
the check took cannot be seen. A connection has one attempt. While ``FAILURES_OF_HOST_MAX`` failures
of one address wait for their answer, no further client of that address may begin; so it has as many
guesses per delay, with however many connections.

Sessions. With ``reauth_ms`` a session ends so long after it began, and one that a token opened, of OAUTHBEARER
or a delegation token, ends with its token; whichever is earlier. A client authenticates anew before,
as the same user by the same mechanism. The first request after the end, other than SaslHandshake,
ends the connection. A credential or token that is removed ends the connections that it opened
(``SaslAuthenticator.credentials_changed``); one that is replaced or renewed does not.

Such connections stay with the listener that accepted them (``raylog.listener.moves``).
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, assert_never

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from raylog.errors import ProtocolError
from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.security.bearer import Bearer, BearerDone, BearerExchange, RejectedTokenError
from raylog.security.plain_users import PlainDone
from raylog.security.sasl import (
    OAUTHBEARER,
    PLAIN,
    TOKEN_BYTES_MAX,
    AuthenticationError,
    Check,
    Continue,
    Credentials,
    Done,
    Exchange,
    NobodysCredentials,
    PlainExchange,
    ScramExchange,
)
from raylog.security.scram import ScramMechanism
from raylog.security.tokens import TokenCredentials
from raylog.wire.bearer_tokens import BearerTokens
from raylog.wire.frames import decode_request_body, decode_request_header, encode_response
from raylog.wire.plain_logins import PlainLogins
from raylog.wire.request import Request
from raylog.wire.server_connection import ServerConnection

if TYPE_CHECKING:
    from raylog.wire.server import Server

logger = logging.getLogger("raylog.wire")

FAILURES_OF_HOST_MAX: Final = 20
FAILURE_DELAY_MS: Final = 100  # where nothing else is configured
CHECKS_MAX: Final = 2
"""Passwords that are hashed at a time; each takes a thread for milliseconds."""
BEFORE_BYTES_MAX: Final = TOKEN_BYTES_MAX + 1024  # of a frame before authentication
SESSION_S_MAX: Final = 365 * 24 * 3_600  # clients compute with the nanoseconds of what they are told
_HANDSHAKE: Final = table.SASL_HANDSHAKE.key
_AUTHENTICATE: Final = table.SASL_AUTHENTICATE.key
_BEFORE: Final = (table.API_VERSIONS.key, _HANDSHAKE)
_NOT_EXPECTED: Final = "SaslAuthenticate request received after successful authentication"


_Proved = tuple[str, ScramMechanism, str | None]
"""What opened a connection: the user's credential for a mechanism, or a token of that id."""
_AnyDone = Done | BearerDone | PlainDone


class _SaslStage(enum.Enum):
    HANDSHAKE = "before the handshake"
    EXCHANGE = "during authentication"
    CHECKING = "while a password or token is checked"
    AUTHENTICATED = "after authentication"
    REJECTED = "after its token was refused"
    FAILED = "after authentication failed"


class SaslStateError(ProtocolError):
    """A client that does not keep to the order of things."""


class SaslAuthenticator:
    """What the SASL connections of one listener share. ``mechanisms``, ``reauth_ms`` (0: sessions do
    not end) and ``failure_delay_ms`` are the configs, and may change at any time.

    ``credentials`` returns those that count now, ``tokens`` are the delegation tokens that do.
    ``key``: a secret of the cluster.
    """

    def __init__(self, credentials: Callable[[], Credentials], *, key: bytes) -> None:
        self.mechanisms: tuple[str, ...] = ()
        self.reauth_ms = 0
        self.failure_delay_ms = FAILURE_DELAY_MS
        self.failing: Counter[str] = Counter()  # by host: failures whose answer is still to come
        self.checks = asyncio.Semaphore(CHECKS_MAX)
        self._credentials = credentials
        self._nobody = NobodysCredentials(key)
        self.tokens = TokenCredentials()
        self._connections: dict[_Proved, dict[SaslConnection, Done]] = {}

    def connection(
        self, server: Server, tokens: BearerTokens | None = None, logins: PlainLogins | None = None
    ) -> SaslConnection:
        """A connection of that server, as it makes them. ``tokens``: those that its listener takes.
        ``logins``: the listener's own users of PLAIN; None: those of the cluster count.
        """
        return SaslConnection(server, self, tokens, logins)

    def exchange(self, mechanism: str) -> Exchange | BearerExchange:
        """Begin one; the mechanism is one of ``MECHANISMS``."""
        if mechanism == OAUTHBEARER:
            return BearerExchange()
        if mechanism == PLAIN:
            return PlainExchange(self._credentials(), self._nobody)
        scram = next(each for each in ScramMechanism if each.sasl_name == mechanism)
        return ScramExchange(
            scram,
            self._credentials(),
            self._nobody,
            secrets.token_urlsafe(24),
            tokens=self.tokens,
            now_ms=_unix_ms(),
        )

    def admit(self, connection: SaslConnection, done: Done) -> bool:
        """Whether that credential still counts; from now on the connection ends with it."""
        if done.token is not None:
            counts = self.tokens.counts(done.token.token_id, done.mechanism, done.credential)
        else:
            counts = self._credentials().get((done.user, done.mechanism)) == done.credential
        if counts:
            self._connections.setdefault(_proved(done), {})[connection] = done
        return counts

    def forget(self, connection: SaslConnection, done: Done) -> None:
        connections = self._connections.get(_proved(done), {})
        connections.pop(connection, None)
        if not connections:
            self._connections.pop(_proved(done), None)

    def credentials_changed(self) -> None:
        """End the connections whose credential is gone. Costs a look-up for each user that is
        connected.
        """
        credentials = self._credentials()
        for key, connections in list(self._connections.items()):
            user, mechanism, token_id = key
            if token_id is None:
                counts, what = (user, mechanism) in credentials, mechanism.sasl_name
            else:
                credential = next(iter(connections.values())).credential
                counts, what = self.tokens.counts(token_id, mechanism, credential), f"delegation token {token_id}"
            if counts:
                continue
            gone = self._connections.pop(key)
            logger.info("closing %d connections of user %r, who has no %s any more", len(gone), user, what)
            for connection in gone:
                connection.close()


class SaslConnection(ServerConnection):
    """One client. ``principal`` is ``User:<name>`` once it has authenticated."""

    proves_later = True

    def __init__(
        self,
        server: Server,
        authenticator: SaslAuthenticator,
        tokens: BearerTokens | None = None,
        logins: PlainLogins | None = None,
    ) -> None:
        super().__init__(server)
        self.frame_bytes_max = BEFORE_BYTES_MAX
        self._authenticator = authenticator
        self._tokens = tokens
        self._logins = logins
        self._stage = _SaslStage.HANDSHAKE
        self._mechanism = ""
        self._exchange: Exchange | BearerExchange | PlainLogins | None = None
        self._is_raw = False  # tokens come without a request around them
        self._done: _AnyDone | None = None  # who it is
        self._expires_at: float | None = None
        self._begun_at = 0.0

    @property
    def may_leave(self) -> bool:
        """The end of its session is noticed here."""
        return False

    @property
    def has_token(self) -> bool:
        """Whether it has authenticated by a delegation token."""
        return isinstance(self._done, Done) and self._done.token is not None

    # -------------------------------------------------------------- reading

    def opened(self) -> None:
        super().opened()
        self._begun_at = self.accepted_at

    def frame_received(self, frame: memoryview) -> None:
        if self._stage is _SaslStage.AUTHENTICATED:
            if self._expires_at is not None and self.loop.time() > self._expires_at:
                self._check_is_renewed(frame)
            super().frame_received(frame)
        elif self._stage is _SaslStage.EXCHANGE and self._is_raw:
            self._take_token(bytes(frame), None)
        else:
            key = int.from_bytes(frame[:2], "big", signed=True)
            taken = {_SaslStage.HANDSHAKE: _BEFORE, _SaslStage.EXCHANGE: (_AUTHENTICATE,)}.get(self._stage, ())
            if key not in taken:
                if self._stage is _SaslStage.EXCHANGE:
                    self._answer_illegal(frame)
                raise SaslStateError(f"API {key} {self._stage.value}")
            super().frame_received(frame)

    def _check_is_renewed(self, frame: memoryview) -> None:
        if int.from_bytes(frame[:2], "big", signed=True) != _HANDSHAKE:
            raise SaslStateError("its session has ended, and it has not authenticated again")

    def _answer_illegal(self, frame: memoryview) -> None:
        """Say ILLEGAL_SASL_STATE in the API's own words, where it has an answer."""
        header, position = decode_request_header(bytes(frame))
        spec = table.BY_KEY.get(header.api_key)
        if spec is not None and spec is not table.PRODUCE and header.version in spec.versions:
            body = decode_request_body(bytes(frame), header, position, ignore_rest=True)
            answer = refusal(spec, header.version, body, ErrorCode.illegal_sasl_state)
            self.write_frame(encode_response(answer, header.correlation_id))

    def refused(self, error: ProtocolError) -> None:
        """What came before authentication may hold a password, so nothing of it is logged."""
        if self._stage is not _SaslStage.AUTHENTICATED and not isinstance(error, SaslStateError):
            error = SaslStateError(f"what it sent {self._stage.value} is no request that is allowed there")
        super().refused(error)

    def sweep(self, now: float) -> None:
        limit_ms = self.server.limits.handshake_timeout_ms
        if self._stage is not _SaslStage.AUTHENTICATED and now - self._begun_at > limit_ms / 1000:
            self.refused(SaslStateError(f"it has not authenticated within {limit_ms} ms"))
            return
        super().sweep(now)

    def closed(self, reason: Exception | None) -> None:
        self._forget(self._done)
        super().closed(reason)

    def _forget(self, done: _AnyDone | None) -> None:
        if isinstance(done, Done):
            self._authenticator.forget(self, done)
        elif isinstance(done, PlainDone) and self._logins is not None:
            self._logins.forget(done, self)

    # -------------------------------------------------------------- authenticating

    @property
    def _mechanisms(self) -> tuple[str, ...]:
        """Those that are enabled, and can succeed at this listener."""
        takes_tokens = self._tokens is not None and self._tokens.takes_any
        return tuple(each for each in self._authenticator.mechanisms if each != OAUTHBEARER or takes_tokens)

    def begin_exchange(self, request: Request) -> None:
        """Answer SaslHandshake."""
        has_no_end = not self._authenticator.reauth_ms and self._expires_at is None
        if self._stage is _SaslStage.AUTHENTICATED and has_no_end:
            _refuse(request, ErrorCode.illegal_sasl_state)
            return
        if self._stage not in (
            _SaslStage.HANDSHAKE,
            _SaslStage.AUTHENTICATED,
        ):  # it came while a stage held the one before
            self.refused(SaslStateError(f"a SaslHandshake {self._stage.value}"))
            return
        mechanism, enabled = request.body.mechanism, self._mechanisms
        host = self.host
        if self._done is not None and mechanism != self._mechanism:
            self._end(request, ErrorCode.illegal_sasl_state, "it changes the mechanism of its session")
        elif mechanism not in enabled:
            hint = "; Kerberos is not spoken, use SCRAM-SHA-512" if mechanism == "GSSAPI" else ""
            why = f"it asks for a mechanism that is not enabled; these are: {', '.join(enabled)}{hint}"
            self._end(request, ErrorCode.unsupported_sasl_mechanism, why, mechanisms=enabled)
        elif self._authenticator.failing[host] >= FAILURES_OF_HOST_MAX:
            self.refused(SaslStateError(f"{FAILURES_OF_HOST_MAX} clients of its address have just failed"))
        else:
            self._mechanism = mechanism
            own = self._logins if mechanism == PLAIN else None
            self._exchange = self._authenticator.exchange(mechanism) if own is None else own
            self._is_raw = request.version == 0
            self._stage = _SaslStage.EXCHANGE
            self._begun_at = self.loop.time()
            answer: Any = load_response_schema(_HANDSHAKE, request.version)
            request.reply(answer(error_code=ErrorCode.none, mechanisms=enabled))

    def receive_token(self, request: Request) -> None:
        """Answer SaslAuthenticate."""
        if self._stage is _SaslStage.AUTHENTICATED:
            _refuse(request, ErrorCode.illegal_sasl_state, _NOT_EXPECTED)
        elif self._stage is _SaslStage.EXCHANGE:
            self._take_token(bytes(request.body.auth_bytes), request)
        else:
            self.refused(SaslStateError(f"a SaslAuthenticate {self._stage.value}"))

    def _take_token(self, token: bytes, request: Request | None) -> None:
        assert self._exchange is not None, "a token before the handshake"
        now = self.loop.time()
        try:
            if len(token) > TOKEN_BYTES_MAX:
                raise AuthenticationError("a token that is too long")
            exchange = self._exchange
            step = exchange.log_in(token) if isinstance(exchange, PlainLogins) else exchange.receive(token)
        except AuthenticationError as error:
            self._fail(request, error, now)
            return
        match step:
            case Continue(reply):
                self._give(request, reply)
            case Done() | PlainDone():
                self._succeed(request, step, now)
            case Check():
                self._stage = _SaslStage.CHECKING
                self.server.spawn(self._check(request, step, now))
            case Bearer():
                self._stage = _SaslStage.CHECKING
                self.server.spawn(self._check_token(request, step, now))
            case _:
                assert_never(step)

    async def _check(self, request: Request | None, check: Check, began: float) -> None:
        async with self._authenticator.checks:
            if self.lost:
                return
            is_right = await asyncio.to_thread(check.is_right)
        if self.lost or self.shut:
            return
        if is_right:
            self._succeed(request, check.done, began)
        else:
            self._fail(request, AuthenticationError("a wrong name or password"), began)

    async def _check_token(self, request: Request | None, bearer: Bearer, began: float) -> None:
        assert self._tokens is not None, "OAUTHBEARER is offered where there are tokens"
        try:
            done = await self._tokens.verify(bearer, self._authenticator.checks)
        except AuthenticationError as error:
            if not (self.lost or self.shut):
                self._reject(request, error, began)
            return
        if not (self.lost or self.shut):
            self._succeed(request, done, began)

    def _succeed(self, request: Request | None, done: _AnyDone, began: float) -> None:
        before = self._done
        if before is not None and before.user != done.user:
            self._fail(request, AuthenticationError(f"it is not user {before.user!r} any more"), began)
            return
        if isinstance(done, Done) and not self._authenticator.admit(self, done):
            self._fail(request, AuthenticationError(f"the password of user {done.user!r} has just changed"), began)
            return
        if isinstance(before, Done) and isinstance(done, Done) and _proved(before) != _proved(done):
            self._forget(before)
        if isinstance(done, PlainDone) and self._logins is not None:
            self._logins.opened(done.user, self, self.close)
        self._done, self._exchange = done, None
        self._stage = _SaslStage.AUTHENTICATED
        self.server.acceptor.proved(self)
        self.frame_bytes_max = self.server.limits.request_bytes_max
        self.principal = f"User:{done.user}"
        self._contexts.clear()  # those of ApiVersions were nobody's
        self.server.counts.successful_authentications[self.listener] += 1
        lifetime_ms = self._begin_session(done)
        logger.debug("%s is user %r, by %s", self.peername, done.user, self._mechanism)
        self._give(request, done.reply, lifetime_ms)

    def _begin_session(self, done: _AnyDone) -> int:
        """When it ends; the milliseconds that the client is told, 0: never."""
        reauth_ms = self._authenticator.reauth_ms
        told = [reauth_ms / 1000] if reauth_ms else []
        if isinstance(done, Done) and done.token is not None:
            told.append(max(1, done.token.expires_at_ms - _unix_ms()) / 1000)
        ends = list(told)
        if isinstance(done, BearerDone) and done.expires_in_s is not None and done.ends_in_s is not None:
            told.append(done.expires_in_s)
            ends.append(done.ends_in_s)
        self._expires_at = self.loop.time() + min(ends) if ends else None
        return max(1, int(min(*told, SESSION_S_MAX) * 1000)) if told else 0

    def _give(self, request: Request | None, token: bytes, lifetime_ms: int = 0) -> None:
        if request is None:
            self.write_frame([len(token).to_bytes(4, "big") + token])
            return
        answer: Any = load_response_schema(_AUTHENTICATE, request.version)
        ends = {"session_lifetime": datetime.timedelta(milliseconds=lifetime_ms)} if request.version >= 1 else {}
        request.reply(answer(error_code=ErrorCode.none, error_message=None, auth_bytes=token, **ends))

    def _fail(self, request: Request | None, error: AuthenticationError, began: float) -> None:
        """Say so when the delay is over, and close; a raw token has no answer that would say it."""
        self._stage = _SaslStage.FAILED
        told = error.told if isinstance(error, RejectedTokenError) else _failed(self._mechanism, self._done)

        def answer() -> None:
            if request is not None:
                _refuse(request, ErrorCode.sasl_authentication_failed, told)
            self.close()

        self._after_delay(error, began, answer)

    def _reject(self, request: Request | None, error: AuthenticationError, began: float) -> None:
        """Say so in OAUTHBEARER's words when the delay is over; the client's next message fails."""
        self._stage = _SaslStage.REJECTED

        def answer() -> None:
            assert isinstance(self._exchange, BearerExchange), self._exchange
            if self.lost or self.shut:
                return
            self._stage = _SaslStage.EXCHANGE
            self._give(request, self._exchange.reject())

        self._after_delay(error, began, answer)

    def _after_delay(self, error: AuthenticationError, began: float, answer: Callable[[], None]) -> None:
        """Answer a failure. Until then it counts for the client's address, even if it hangs up."""
        host, failing = self.host, self._authenticator.failing
        self.server.counts.failed_authentications[self.listener] += 1
        logger.warning("authentication of %s by %s failed: %s", self.peername, self._mechanism, error)
        failing[host] += 1

        def over() -> None:
            failing[host] -= 1
            if not failing[host]:
                del failing[host]
            answer()

        self.loop.call_at(began + self._authenticator.failure_delay_ms / 1000, over)

    def _end(self, request: Request, code: ErrorCode, why: str, **more: Any) -> None:
        logger.info("closing the connection of %s: %s", self.peername, why)
        self._stage = _SaslStage.FAILED
        answer: Any = load_response_schema(_HANDSHAKE, request.version)
        request.reply(answer(error_code=code, **more))
        self.close()


def _proved(done: Done) -> _Proved:
    return done.user, done.mechanism, None if done.token is None else done.token.token_id


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


def _failed(mechanism: str, before: _AnyDone | None) -> str:
    """Kafka's words, the same whatever is wrong."""
    what = "authentication" if before is None else "re-authentication"
    return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {mechanism}"


def _refuse(request: Request, code: ErrorCode, message: str | None = None) -> None:
    """Not by ``refusal``, which repeats what was asked: a token that failed may hold a password."""
    answer: Any = load_response_schema(request.api_key, request.version)
    told = {"error_message": message, "auth_bytes": b""} if request.api_key == _AUTHENTICATE else {}
    request.reply(answer(error_code=code, **told))


def handshake(request: Request) -> None:
    """The handler of SaslHandshake, on listeners with SASL or without."""
    connection = request.connection
    if isinstance(connection, SaslConnection):
        connection.begin_exchange(request)
    else:
        _refuse(request, ErrorCode.illegal_sasl_state)


def authenticate(request: Request) -> None:
    """The handler of SaslAuthenticate, on listeners with SASL or without."""
    connection = request.connection
    if isinstance(connection, SaslConnection):
        connection.receive_token(request)
    else:
        _refuse(request, ErrorCode.illegal_sasl_state, "SaslAuthenticate request received without SaslHandshake")
