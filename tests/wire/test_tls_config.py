"""``ssl.*`` of a listener: what is taken, what is refused and with which words, and who gets in."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, common_name, settings
from wire_ends import EMPTY_REPLY, produce, read_frame, server_of

from raylog.errors import ConfigError
from raylog.types import Endpoint
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.ports import Port
from raylog.wire.request import Request
from raylog.wire.server import Server
from raylog.wire.tls import SUITES_OF_1_3, TlsConfig

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
GCM = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def keystore(authority: Authority) -> Path:
    return authority.signed("broker")


class Listening:
    """A server with one TLS listener called OUT; ``principals`` are those of its requests."""

    def __init__(self, configs: dict[str, str]) -> None:
        tls = TlsConfig.of(configs, "OUT")
        port = Port("OUT", Endpoint("127.0.0.1", 0), ssl=tls.context(), principal_of=tls.principal_of)
        self.principals: list[str] = []
        self.server: Server = server_of({0: self._handle}, secret=None, ordered=True, ports=[port])

    def _handle(self, request: Request) -> None:
        assert request.context.listener == "OUT"
        self.principals.append(request.context.principal)
        request.reply(EMPTY_REPLY)

    async def ask(self, authority: Authority, own: Path | None = None, **limits: Any) -> str:
        """Who the server takes the client for; the version of TLS is in ``self.version``."""
        context = ssl.create_default_context(cafile=str(authority.certificate))
        for name, value in limits.items():
            setattr(context, name, value)
        if own is not None:
            context.load_cert_chain(own)
        endpoint = self.server.endpoint
        assert endpoint is not None
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        try:
            writer.writelines(encode_request(produce(), 1, client_id_field("c")))
            await read_frame(reader)
            self.version, self.suite = writer.get_extra_info("ssl_object").version(), writer.get_extra_info("cipher")[0]
            return self.principals[-1]
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def __aenter__(self) -> Listening:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()


TURNED_AWAY = (OSError, asyncio.IncompleteReadError)


def test_versions_and_suites_are_those_that_are_set(run: Run, authority: Authority, keystore: Path) -> None:
    async def work(expected: tuple[str, str | None], **others: str) -> None:
        async with Listening(settings(keystore, **others)) as listening:
            assert await listening.ask(authority) == "User:ANONYMOUS"
            assert listening.version == expected[0] and expected[1] in (None, listening.suite)

    run(work(("TLSv1.3", None)))
    run(work(("TLSv1.2", None), ssl_enabled_protocols="TLSv1.2"))
    run(work(("TLSv1.2", None), ssl_protocol="TLSv1.2"))
    run(work(("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"), ssl_cipher_suites=GCM))
    run(work(("TLSv1.3", None), ssl_cipher_suites=",".join([GCM, *SUITES_OF_1_3])))


def test_an_old_version_gets_nothing(run: Run, authority: Authority, keystore: Path) -> None:
    async def work() -> None:
        async with Listening(settings(keystore, ssl_enabled_protocols="TLSv1.3")) as listening:
            with pytest.raises(TURNED_AWAY):
                await listening.ask(authority, maximum_version=ssl.TLSVersion.TLSv1_2)
            assert not listening.principals

    run(work())


def test_keys_may_be_encrypted_and_stand_in_the_settings_without_their_lines(
    run: Run, authority: Authority, tmp_path: Path
) -> None:
    text = authority.signed("broker", password="secret-42").read_text()
    start = text.index("-----BEGIN CERTIFICATE")
    inline = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": text[:start].replace("\n", " "),
        "ssl.keystore.certificate.chain": text[start:],
        "ssl.key.password": "secret-42",
    }

    async def work(configs: dict[str, str]) -> None:
        async with Listening(configs) as listening:
            assert await listening.ask(authority) == "User:ANONYMOUS"

    run(work(inline))
    run(work(settings(tmp_path / "broker.pem", ssl_key_password="secret-42")))
    assert "secret-42" not in repr(TlsConfig.of(inline, "OUT")) and "PRIVATE KEY" not in repr(
        TlsConfig.of(inline, "OUT")
    )


def test_a_listeners_own_setting_goes_before_that_of_all(keystore: Path) -> None:
    configs = settings(keystore, ssl_enabled_protocols="TLSv1.2")
    configs["listener.name.out.ssl.enabled.protocols"] = "TLSv1.3"
    assert TlsConfig.of(configs, "OUT").versions == {"TLSv1.3"}
    assert TlsConfig.of(configs, "IN").versions == {"TLSv1.2"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ssl.keystore.type": "JKS"}, "openssl pkcs12 -in store.p12 -out store.pem"),
        ({"ssl.keystore.type": "PKCS12"}, "only PEM is supported"),
        ({"ssl.keystore.type": ""}, "is not given, which in Kafka means JKS"),
        ({"ssl.keystore.password": "secret-42"}, "ssl.keystore.password cannot be given for PEM"),
        ({"ssl.keystore.location": ""}, "listener OUT has no certificate"),
        ({"ssl.keystore.key": "x"}, "excludes ssl.keystore.key"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1 is none of TLSv1.2, TLSv1.3"),
        ({"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.3"}, "leaves none of"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "Python cannot choose"),
        ({"ssl.cipher.suites": "TLS_NONE"}, "TLS_NONE is no suite of TLS 1.2"),
        ({"ssl.cipher.suites": GCM, "ssl.enabled.protocols": "TLSv1.3"}, "has no suite of TLSv1.3"),
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth=maybe is none of none, requested, required"),
        ({"ssl.client.auth": "required"}, "who signs clients' certificates"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "is no rule"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(keystore: Path, change: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TlsConfig.of(settings(keystore) | change, "OUT")
    assert why in str(raised.value) and "secret-42" not in str(raised.value)


def test_files_that_do_not_fit_are_named_and_their_secrets_are_not(authority: Authority, tmp_path: Path) -> None:
    locked, other = authority.signed("locked", password="secret-42"), authority.signed("other")
    mixed, no_pem = tmp_path / "mixed.pem", tmp_path / "no.pem"
    key, other_key = (path.read_text().partition("-----BEGIN CERT") for path in (authority.signed("a"), other))
    mixed.write_text(key[0] + other_key[1] + other_key[2])
    no_pem.write_bytes(b"\xfe\xed\xfe\xed")
    for configs, why in (
        (settings(tmp_path / "nowhere.pem"), "nowhere.pem cannot be read: No such file"),
        (settings(locked), "is encrypted: set ssl.key.password"),
        (settings(locked, ssl_key_password="secret-43"), "does not open the private key"),
        (settings(mixed), "the private key is not that of the certificate"),
        (settings(no_pem), "does not hold a private key and its certificates in PEM"),
        (settings(other, no_pem, ssl_client_auth="required"), "no.pem does not hold certificates in PEM"),
    ):
        with pytest.raises(ConfigError) as raised:
            TlsConfig.of(configs, "OUT").context()
        assert why in str(raised.value) and "secret-4" not in str(raised.value)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_only_who_shows_a_certificate_of_the_right_authority_gets_in_where_it_is_required(
    run: Run,
    authority: Authority,
    keystore: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    version: ssl.TLSVersion,
) -> None:
    stranger = Authority(tmp_path / "elsewhere", "an authority").signed("alice")  # of the same name
    configs = settings(keystore, authority.certificate, ssl_client_auth="required")

    async def work() -> None:
        async with Listening(configs) as listening:
            limit = {"maximum_version": version}
            for own in (None, stranger, authority.signed("late", common_name("alice"), expired=True)):
                with pytest.raises(TURNED_AWAY):
                    await listening.ask(authority, own, **limit)
            assert not listening.principals
            assert await listening.ask(authority, authority.signed("alice"), **limit) == "User:CN=alice"

    with caplog.at_level(logging.WARNING, "raylog.wire"):
        run(work())
    assert "listener OUT: a TLS handshake failed: PEER_DID_NOT_RETURN_A_CERTIFICATE" in caplog.text
    assert "listener OUT: a TLS handshake failed: certificate has expired" in caplog.text


def test_where_a_certificate_is_requested_one_may_have_none_but_no_wrong_one(
    run: Run, authority: Authority, keystore: Path, tmp_path: Path
) -> None:
    rules = {"ssl.principal.mapping.rules": r"RULE:^CN=(\w+)$/$1/U,DEFAULT"}
    configs = settings(keystore, authority.certificate, ssl_client_auth="requested") | rules

    async def work() -> None:
        async with Listening(configs) as listening:
            assert await listening.ask(authority) == "User:ANONYMOUS"
            assert await listening.ask(authority, authority.signed("alice")) == "User:ALICE"
            strange = authority.signed("strange", common_name("admin,O=raylog"))
            assert await listening.ask(authority, strange) == r"User:CN=admin\,O\=raylog"
            assert await listening.ask(authority, authority.signed("other", common_name("Jürgen"))) == "User:CN=Jürgen"
            with pytest.raises(TURNED_AWAY):
                await listening.ask(authority, Authority(tmp_path / "elsewhere").signed("alice"))
            for nobody in ("admin\nUser:b", "admin\x85"):
                with pytest.raises(TURNED_AWAY):
                    await listening.ask(authority, authority.signed("nobody", common_name(nobody)))
            assert len(listening.principals) == 4

    run(work())


def test_whatever_is_in_the_truststore_is_trusted_though_its_own_signer_is_not_there(
    run: Run, authority: Authority, keystore: Path, tmp_path: Path
) -> None:
    intermediate = Authority(tmp_path / "intermediate", "an intermediate", issuer=authority)
    configs = settings(keystore, intermediate.certificate, ssl_client_auth="required")

    async def work() -> None:
        async with Listening(configs) as listening:
            assert await listening.ask(authority, intermediate.signed("alice")) == "User:CN=alice"
            with pytest.raises(TURNED_AWAY):
                await listening.ask(authority, authority.signed("bob"))

    run(work())


def test_a_client_shows_its_certificate_in_every_handshake_of_tls_1_3(
    run: Run, authority: Authority, keystore: Path
) -> None:
    own = authority.signed("alice")

    def sessions(endpoint: Endpoint) -> list[bool]:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(own)
        session, reused = None, []
        for _ in range(2):
            with (
                socket.create_connection((endpoint.host, endpoint.port), timeout=30) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as secure,
            ):
                secure.sendall(b"".join(map(bytes, encode_request(produce(), 1, client_id_field("c")))))
                assert secure.recv(100)
                session, is_reused = secure.session, secure.session_reused
                reused.append(bool(is_reused))
        return reused

    async def work(client_auth: str) -> list[bool]:
        async with Listening(settings(keystore, authority.certificate, ssl_client_auth=client_auth)) as listening:
            assert listening.server.endpoint is not None
            return await asyncio.to_thread(sessions, listening.server.endpoint)

    assert run(work("none")) == [False, True]
    assert run(work("required")) == [False, False]


def test_nobody_renegotiates(keystore: Path) -> None:
    assert TlsConfig.of(settings(keystore), "OUT").context().options & ssl.OP_NO_RENEGOTIATION
