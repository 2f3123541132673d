"""How a client of a listener proves who it is and whom it talks to: the client's half of TLS and of
SASL.

A ``ClientSecurity`` holds what Kafka's options say, and the texts of the files that they name. So it
can travel to another machine, which needs none of these files. It pickles, and its ``repr`` shows
no secret.

TLS comes first, then SASL (KIP-43, KIP-152). Where sessions have an end the client authenticates
again before it (KIP-368); meanwhile its requests wait, and leave in order afterwards.

Every failure that trying again cannot mend is an ``SslAuthenticationError`` or a
``SaslAuthenticationFailedError``, in one line that says what to do.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from raylog.errors import ConfigError, DisconnectedError, SslAuthenticationError, kafka_error
from raylog.security.protocols import SecurityProtocol
from raylog.security.sasl import PLAIN, AuthenticationError
from raylog.security.sasl_client import ScramLogin, plain_token
from raylog.security.scram import ScramMechanism
from raylog.types import Endpoint
from raylog.wire.tls import VERSIONS, in_memory
from raylog.wire.tls_alerts import NOT_TLS

if TYPE_CHECKING:
    from raylog.wire.connection import Connection

logger = logging.getLogger("raylog.wire")

SaslAuthenticationFailedError = kafka_error(ErrorCode.sasl_authentication_failed)
_HANDSHAKE: Final = (17, 1)
_AUTHENTICATE: Final = (36, 2)
_AGAIN_AFTER: Final = (0.85, 0.95)  # of a session's time, as Kafka's own clients do
_chance = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """``trusted`` is the PEM of the authorities (None: the machine's own), ``chain`` and ``key`` are
    the client's certificate and private key. ``mechanism`` None: no SASL.
    """

    protocol: SecurityProtocol
    trusted: str | None = field(default=None, repr=False)
    chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True
    versions: tuple[str, ...] = tuple(VERSIONS)
    suites: tuple[str, ...] = ()
    mechanism: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext | None:
        """What TLS needs; None without TLS. Raises ConfigError for PEM that does not fit."""
        return _context(self) if self.protocol.has_tls else None


@lru_cache(16)
def _context(security: ClientSecurity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = min(VERSIONS[each] for each in security.versions)
    context.maximum_version = max(VERSIONS[each] for each in security.versions)
    if security.suites:
        context.set_ciphers(":".join(security.suites))
    context.check_hostname = security.checks_host_name
    if security.trusted is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=security.trusted)
        except (ssl.SSLError, ValueError):
            raise ConfigError("ssl.truststore: it does not hold certificates in PEM") from None
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # as Java: all of the store is trusted
    if security.chain is not None:
        _load_own(context, security)
    return context


def _load_own(context: ssl.SSLContext, security: ClientSecurity) -> None:
    asked = []

    def password() -> str:
        asked.append(True)
        if security.key_password is None:
            raise ConfigError("ssl.keystore: the private key is encrypted: set ssl.key.password")
        return security.key_password

    try:
        with in_memory(security.chain or "") as chain, in_memory(security.key or "") as key:
            context.load_cert_chain(chain, key, password=password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError("ssl.keystore: the private key is not that of the certificate") from None
        if asked:
            raise ConfigError("ssl.keystore: ssl.key.password does not open the private key") from None
        raise ConfigError("ssl.keystore does not hold a private key and its certificates in PEM") from None


# ------------------------------------------------------------------ TLS


NO_TLS: Final = "if it does not speak TLS, give another port, or security.protocol=PLAINTEXT or SASL_PLAINTEXT"
_CERTIFICATE_WANTED: Final = "set ssl.keystore.location to one that its ssl.truststore knows"


def tls_failure(endpoint: Endpoint, error: OSError, no_tls: str = NO_TLS) -> SslAuthenticationError | None:
    """What a failed handshake means; None if trying again may help: the peer was merely gone. ``no_tls``
    is said of a peer that speaks no TLS.
    """
    where = f"TLS with {endpoint} failed"
    if isinstance(error, ssl.SSLCertVerificationError):
        return SslAuthenticationError(f"{where}: {_why_not_trusted(endpoint, error)}")
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return None
    reason = error.reason or str(error)
    if reason in NOT_TLS:
        remedy = no_tls
    elif "CERTIFICATE" in reason or reason.endswith(("UNKNOWN_CA", "ALERT_DECRYPT_ERROR")):
        remedy = f"it does not accept this client's certificate ({reason}): {_CERTIFICATE_WANTED}"
    elif "VERSION" in reason or "HANDSHAKE_FAILURE" in reason or "NO_" in reason:
        remedy = f"no common version or cipher suite ({reason}): see ssl.enabled.protocols and ssl.cipher.suites"
    else:
        remedy = reason
    return SslAuthenticationError(f"{where}: {remedy}")


def _why_not_trusted(endpoint: Endpoint, error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message
    if "expired" in said:
        return "the broker's certificate has expired: give the broker a new one"
    if "not yet valid" in said:
        return "the broker's certificate is not valid yet: compare the clocks of both machines"
    if "ostname mismatch" in said or "IP address mismatch" in said:
        return (
            f"the broker's certificate does not name {endpoint.host}: connect by a name that it has, or issue it with this "
            'one; ssl.endpoint.identification.algorithm="" does without that check'
        )
    return (
        f"the broker's certificate is signed by nobody whom this client trusts ({said}): set ssl.truststore.location to the "
        "certificate of the authority that signed it"
    )


def unauthenticated_end(security: ClientSecurity | None) -> str:
    """What to consider when a listener closes a connection before its first answer."""
    if security is None:
        return "if that is a listener with TLS or SASL, set security.protocol and what goes with it"
    if security.protocol.has_tls:
        missing = (
            "if it asks for a certificate of the client's, set ssl.keystore.location"
            if security.chain is None
            else "if it does not accept this client's certificate, have the authority that signed it in its ssl.truststore, "
            "or set ssl.keystore.location to another one"
        )
        return f"the broker closed it at the end of the TLS handshake: {missing}; the broker's log has the reason"
    return "see the broker's log for the reason, and compare security.protocol with that of its listener"


# ------------------------------------------------------------------ SASL


Ask = Callable[[Any], asyncio.Future[Any]]
"""Sends a request at once, past those that wait for the end of the authentication."""


async def log_in(endpoint: Endpoint, security: ClientSecurity, ask: Ask) -> float:
    """Authenticate. Returns for how many seconds the session lasts; 0: without end.

    Raises SaslAuthenticationFailedError if trying again cannot help, and DisconnectedError.
    """
    assert security.mechanism is not None
    try:
        await _agree(endpoint, security, ask)
        if security.mechanism == PLAIN:
            reply = await _exchange(endpoint, ask, plain_token(security.user, security.password))
        else:
            scram = next(each for each in ScramMechanism if each.sasl_name == security.mechanism)
            login = ScramLogin(scram, security.user, security.password, secrets.token_urlsafe(24))
            reply = await _exchange(endpoint, ask, login.first())
            reply = await _exchange(endpoint, ask, login.final(reply.auth_bytes))
            login.verify(reply.auth_bytes)
    except AuthenticationError as error:
        raise SaslAuthenticationFailedError(f"SASL with {endpoint} failed: {error}") from None
    except DisconnectedError as error:
        hint = "it may speak TLS (SASL_SSL), or have too many failed clients of this address"
        if security.protocol.has_tls:
            hint = f"{unauthenticated_end(security)}; it may also have too many failed clients of this address"
        raise DisconnectedError(f"{endpoint} closed the connection during SASL ({hint})") from error
    return float(reply.session_lifetime.total_seconds())


async def _agree(endpoint: Endpoint, security: ClientSecurity, ask: Ask) -> None:
    request: Any = load_request_schema(*_HANDSHAKE)
    reply = await ask(request(mechanism=security.mechanism))
    if reply.error_code is ErrorCode.none:
        return
    if reply.error_code is ErrorCode.unsupported_sasl_mechanism:
        why = f"sasl.mechanism={security.mechanism} is not enabled there: set one of {', '.join(reply.mechanisms)}"
    elif reply.error_code is ErrorCode.illegal_sasl_state:
        without = "SSL" if security.protocol.has_tls else "PLAINTEXT"
        why = f"the listener has no SASL: set security.protocol={without}"
    else:
        why = reply.error_code.name.upper()
    raise SaslAuthenticationFailedError(f"SASL with {endpoint} failed: {why}")


async def _exchange(endpoint: Endpoint, ask: Ask, token: bytes) -> Any:
    request: Any = load_request_schema(*_AUTHENTICATE)
    reply = await ask(request(auth_bytes=token))
    if reply.error_code is not ErrorCode.none:
        told = reply.error_message or reply.error_code.name.upper()
        raise SaslAuthenticationFailedError(
            f"SASL with {endpoint} failed: {told}: check the user's name and password; `raylog users list` on a node of the "
            "cluster shows who exists, by which mechanism"
        )
    return reply


class SaslSession:
    """The session of one connection: begun by ``begin``, and begun anew before it ends."""

    def __init__(self, connection: Connection, security: ClientSecurity) -> None:
        self._connection = connection
        self._security = security
        self._renewal: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        connection = self._connection
        lifetime_s = await log_in(connection.endpoint, self._security, connection.send_first)
        if lifetime_s and connection.is_open:
            connection.loop.call_later(lifetime_s * _chance.uniform(*_AGAIN_AFTER), self._renew)

    def _renew(self) -> None:
        if self._connection.is_open:
            self._renewal = self._connection.loop.create_task(self._begin_anew())

    async def _begin_anew(self) -> None:
        connection = self._connection
        connection.hold_requests()
        try:
            await self.begin()
        except (SaslAuthenticationFailedError, DisconnectedError) as error:
            if connection.is_open:
                logger.warning("closing the connection to %s: %s", connection.endpoint, error)
            connection.close(error)
        else:
            connection.release_requests()
