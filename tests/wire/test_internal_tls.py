"""Links inside a cluster with TLS: what an eavesdropper sees, who is let in, and certificates that change."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from wire_ends import CLUSTER, EMPTY_REPLY, IDENTITY, SECRET, client_of, produce, raw, server_of, until

from raylog.errors import ConfigError, DisconnectedError, SslAuthenticationError
from raylog.types import Endpoint
from raylog.wire.dial import dial
from raylog.wire.handshake import HandshakeError
from raylog.wire.internal_tls import SecretInsideTls, check_links
from raylog.wire.limits import Limits
from raylog.wire.server import Server

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]
RECORDS = b"nobody may read this " * 500


def inside(configs: dict[str, str], secret: str = SECRET) -> SecretInsideTls:
    return SecretInsideTls(secret.encode(), tuple(sorted(configs.items())))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def links(authority: Authority) -> dict[str, str]:
    return settings(authority.signed("node"), authority.certificate)


def server_with(secret: Any, carried: list[bytes] | None = None) -> Server:
    def handle(request: Any) -> None:
        if carried is not None:
            carried.append(bytes(request.body.topic_data[0].partition_data[0].records))
        request.reply(EMPTY_REPLY)

    return server_of({0: handle}, secret=secret)


class Tap:
    """Passes all bytes on between a dialer and a server, and keeps them."""

    def __init__(self, target: Endpoint) -> None:
        self.target = target
        self.seen = bytearray()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Endpoint:
        self.server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return Endpoint("127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await raw(self.target)
        await asyncio.gather(self._pass(reader, onward), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.seen += data
            writer.write(data)
            await writer.drain()
        writer.close()

    async def stop(self) -> None:
        self.server.close()
        await self.server.wait_closed()


@pytest.mark.parametrize("has_tls", [True, False])
def test_an_eavesdropper_sees_records_of_plain_links_only(run: Run, links: dict[str, str], has_tls: bool) -> None:
    secret: Any = inside(links) if has_tls else SECRET

    async def work() -> None:
        carried: list[bytes] = []
        server = server_with(secret, carried)
        tap = Tap(await server.start())
        connection = await client_of(await tap.start(), secret=secret)
        assert await connection.request(produce(RECORDS)) == EMPTY_REPLY
        assert carried == [RECORDS] and connection.peer.node_id == IDENTITY.node_id
        assert (RECORDS[:40] in tap.seen) is not has_tls and len(tap.seen) > len(RECORDS)
        assert (CLUSTER.encode() in tap.seen) is not has_tls, "the handshake is inside, too"
        connection.close()
        await connection.wait_closed()
        await server.stop()
        await tap.stop()

    run(work())


def test_the_secret_is_needed_inside_tls(run: Run, links: dict[str, str]) -> None:
    async def work() -> None:
        server = server_with(inside(links))
        endpoint = await server.start()
        with pytest.raises(HandshakeError, match="secret"):
            await client_of(endpoint, secret=inside(links, "another secret"))
        (await client_of(endpoint, secret=inside(links))).abort()
        await server.stop()

    run(work())


def test_a_plain_dialer_is_refused_and_so_is_a_plain_server(run: Run, links: dict[str, str]) -> None:
    async def work() -> None:
        server, plain = server_with(inside(links)), server_with(SECRET)
        endpoint, plain_endpoint = await server.start(), await plain.start()
        with pytest.raises(DisconnectedError):
            await client_of(endpoint, secret=SECRET)
        assert server.refused_connections == 0 and not server.connections, "it never became a connection"
        with pytest.raises((DisconnectedError, HandshakeError)):
            await client_of(plain_endpoint, secret=inside(links))
        await server.stop()
        await plain.stop()

    run(work())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_links_with_tls_at_one_end_only_say_so_in_one_line_at_both(
    links: dict[str, str], loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    remedy = "give every process of the cluster the same security.inter.broker.protocol"

    async def work() -> list[str]:
        server, plain = server_with(inside(links)), server_with(SECRET)
        said = []
        for endpoint, secret in ((await server.start(), SECRET), (await plain.start(), inside(links))):
            with pytest.raises(DisconnectedError) as raised:
                await client_of(endpoint, secret=secret)
            said.append(str(raised.value))
        await server.stop()
        await plain.stop()
        return said

    run = asyncio.run if loop == "asyncio" else pytest.importorskip("uvloop").run
    to_tls, to_plain = run(work())
    assert "a TLS alert where plain frames are spoken" in to_tls and remedy in to_tls
    assert "if it does not speak TLS" in to_plain and remedy in to_plain and "another port" not in to_plain
    assert (
        f"listener INTERNAL: a TLS handshake failed: WRONG_VERSION_NUMBER: the peer does not speak TLS: {remedy}"
        in (caplog.text)
    )
    assert "a TLS hello where plain frames are spoken" in caplog.text
    assert not any("\n" in each for each in (to_tls, to_plain))


def test_a_certificate_of_another_authority_is_refused_and_says_nothing_about_life(
    run: Run, links: dict[str, str], tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    theirs = settings(other.signed("node"), other.certificate)

    async def work() -> None:
        server = server_with(inside(theirs))
        endpoint = await server.start()
        with pytest.raises(HandshakeError, match="signed by nobody whom this client trusts") as raised:
            await client_of(endpoint, secret=inside(links))
        assert isinstance(raised.value.__cause__, SslAuthenticationError)
        wanted: dict[str, Any] = {
            "node_id": IDENTITY.node_id,
            "incarnation": IDENTITY.incarnation,
            "cluster_id": CLUSTER,
            "timeout_ms": 60_000,
        }
        assert await dial(endpoint, secret=inside(links), **wanted) == "mute"
        lost = inside(settings(other.signed("node"), tmp_path / "nowhere.pem"))
        assert await dial(endpoint, secret=lost, **wanted) == "mute", "nor does a file that is missing here"
        assert await dial(endpoint, secret=inside(theirs), **wanted) == "alive"
        assert await dial(endpoint, secret=inside(theirs), **wanted | {"incarnation": 1}) == "closed"
        await server.stop()
        assert await dial(endpoint, secret=inside(theirs), **wanted) == "refused"

    run(work())


@pytest.mark.parametrize("resets", [True, False])
def test_a_process_that_dies_during_tls_is_dead(run: Run, links: dict[str, str], resets: bool) -> None:
    async def work() -> None:
        async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            listening.close()
            await reader.read(1 if resets else 65_536)
            if resets:
                writer.transport.abort()
            else:
                writer.close()

        listening = await asyncio.start_server(die, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", listening.sockets[0].getsockname()[1])
        wanted: dict[str, Any] = {"node_id": 1, "incarnation": 1, "cluster_id": CLUSTER, "timeout_ms": 60_000}
        assert await dial(endpoint, secret=inside(links), **wanted) == "refused"
        await listening.wait_closed()

    run(work())


def test_a_process_that_holds_all_the_strangers_that_it_takes_is_not_dead(run: Run, links: dict[str, str]) -> None:
    async def work() -> None:
        server = server_with(inside(links))
        server.limits = Limits(unauthenticated_of_host_max=1)
        endpoint = await server.start()
        _, stranger = await raw(endpoint)
        await until(lambda: server.connections_of_host["127.0.0.1"] == 1)
        wanted: dict[str, Any] = {
            "node_id": IDENTITY.node_id,
            "incarnation": IDENTITY.incarnation,
            "cluster_id": CLUSTER,
            "secret": inside(links),
        }
        assert await dial(endpoint, **wanted, timeout_ms=200) == "unreachable"
        turned_away = server.refused_connections
        assert turned_away > 1, "it was dialled again"
        dialling = asyncio.ensure_future(dial(endpoint, **wanted, timeout_ms=60_000))
        await until(lambda: server.refused_connections > turned_away)
        stranger.close()
        assert await dialling == "alive"
        await server.stop()

    run(work())


def test_where_links_ask_for_certificates_each_process_shows_its_own(run: Run, authority: Authority) -> None:
    nobody = {"ssl.principal.mapping.rules": "RULE:^nobody$/x/"}  # who is there, the secret's handshake says
    both = settings(authority.signed("node"), authority.certificate, ssl_client_auth="required") | nobody
    without = settings(authority.signed("node"), authority.certificate)

    async def work() -> None:
        server = server_with(inside(both))
        endpoint = await server.start()
        (await client_of(endpoint, secret=inside(both))).abort()
        (await client_of(endpoint, secret=pickle.loads(pickle.dumps(inside(both))))).abort()
        with pytest.raises((HandshakeError, DisconnectedError)):
            await client_of(endpoint, secret=inside(without))
        wanted: dict[str, Any] = {"node_id": 1, "incarnation": 1, "cluster_id": CLUSTER, "timeout_ms": 60_000}
        assert await dial(endpoint, secret=inside(without), **wanted) == "unreachable", "a refusal is no death"
        await server.stop()

    run(work())


def test_certificates_renewed_on_disk_are_taken_up_at_both_ends(run: Run, tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    keystore, truststore = tmp_path / "node.pem", tmp_path / "trusted.pem"

    def install(authority: Authority) -> None:
        for file, target in ((authority.signed("node"), keystore), (authority.certificate, truststore)):
            shutil.copy(file, tmp_path / "new")
            os.replace(tmp_path / "new", target)

    install(first)
    secret = inside(settings(keystore, truststore))
    travelling = secret.without_files()

    async def work() -> None:
        server = server_with(secret)
        endpoint = await server.start()
        old = await client_of(endpoint, secret=secret)
        install(second)

        async def is_refused(by: SecretInsideTls) -> bool:
            try:
                (await client_of(endpoint, secret=by)).abort()
            except HandshakeError:
                return True
            return False

        while not await is_refused(travelling):
            await asyncio.sleep(0.01)
        assert not await is_refused(secret), "whoever has the files goes by the new authority"
        assert await old.request(produce()) == EMPTY_REPLY, "open connections stay"
        truststore.write_text("no certificate")
        assert not await is_refused(secret), "files that do not fit are not taken up"
        old.abort()
        await until(lambda: not server.connections)
        await server.stop()

    run(work())


def test_what_travels_needs_no_files_and_holds_no_key_unless_links_ask_for_it(authority: Authority) -> None:
    keystore = authority.signed("node")
    everything = authority.certificate.read_text() + keystore.read_text()
    authority.certificate.write_text(everything)  # a truststore that holds more than it should
    for asked in ("none", "required"):
        secret = inside(settings(keystore, authority.certificate, ssl_client_auth=asked))
        data = pickle.dumps(secret)
        assert (b"PRIVATE KEY" in data) is (asked == "required")
        assert pickle.loads(data) == secret.without_files()
        assert SECRET not in repr(secret) and "PRIVATE KEY" not in repr(secret.without_files())


def test_a_start_refuses_links_that_would_not_trust_each_other(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    node, trusted = authority.signed("node"), authority.certificate

    def check(configs: dict[str, str], host: str = "127.0.0.1") -> None:
        check_links(tuple(sorted(configs.items())), host)

    check({})
    check(settings(node, trusted))
    check(settings(node, trusted, ssl_client_auth="required"))
    check(settings(node, trusted, ssl_endpoint_identification_algorithm=""), "10.0.0.7")
    prefixed = {f"listener.name.internal.{name}": value for name, value in settings(node, trusted).items()}
    check(settings(other.signed("node")) | prefixed)
    for configs, host, why in (
        (settings(node), "127.0.0.1", "links inside the cluster have no authorities"),
        (settings(node, other.certificate), "127.0.0.1", "would fail at 127.0.0.1"),
        (settings(node, trusted), "10.0.0.7", "that certificate has to name 10.0.0.7"),
        (settings(authority.signed("old", expired=True), trusted), "127.0.0.1", "expired"),
        (settings(tmp_path / "nowhere.pem", trusted), "127.0.0.1", "cannot be read"),
        (settings(node, tmp_path / "nowhere.pem"), "127.0.0.1", "cannot be read"),
        (settings(node, trusted, ssl_endpoint_identification_algorithm="ldap"), "127.0.0.1", "neither https nor"),
    ):
        with pytest.raises(ConfigError, match=why):
            check(configs, host)
