"""What anybody may do to a Broker's listener: a line in the log, and nothing to anybody else."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from outside import Client, fetch, listener, metadata, parts, produce
from raw_requests import batch, eventually, throw

from raylog.server.broker_server import BrokerServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire import private
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.framing import LENT_BYTES_MAX, SMALLEST_BODY, _pool
from raylog.wire.limits import Limits
from raylog.wire.listeners import plaintext
from raylog.wire.schema import fields_of

pytestmark = pytest.mark.core

LIMITS = Limits(
    request_bytes_max=1 << 20,
    connection_bytes_max=1 << 20,
    server_bytes_max=4 << 20,
    frame_timeout_ms=300,
    connections_max=64,
    idle_timeout_ms=600_000,  # longer than any of these tests, on a busy machine
)


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    """One broker whose listener allows little."""
    with cluster(brokers=1) as found:
        found.launcher.build["broker"] = lambda spec: BrokerServer(
            spec, listeners=plaintext(Endpoint("127.0.0.1", 0)), limits=LIMITS
        )
        node = node_id(0, BROKER_SLOT)
        found.crash(node)
        found.await_true(
            lambda: node in found.launcher.servers and found.launcher.servers[node].router.server.endpoint is not None
        )
        yield found


@pytest.fixture
def topic(running: InProcessCluster) -> str:
    client = Client(running, 0)
    client.ask(metadata("t", create=True))
    eventually(lambda: client.ask(metadata("t")).topics[0].partitions, "the topic")
    eventually(lambda: client.ask(metadata("t")).topics[0].partitions[0].leader_id == 0, "its leader")
    client.close()
    return "t"


@pytest.fixture
def others(running: InProcessCluster, topic: str) -> Callable[[], None]:
    """Somebody who was connected all the time, and somebody who comes afterwards, are served."""
    before = Client(running, 0)
    server = running.launcher.servers[node_id(0, BROKER_SLOT)].router.server

    def are_served() -> None:
        throw(listener(running, 0), b"")  # whoever waited to be accepted has been, or this one is refused
        room = server.limits.connections_max // 2
        eventually(lambda: len(server.connections) + server.acceptor.at_the_door < room, "room for somebody new")
        after = Client(running, 0)
        for client in (before, after):
            (answer,) = client.ask(produce(topic, {0: batch(b"v")})).responses[0].partition_responses
            assert answer.error_code is ErrorCode.none
            assert parts(client.ask(fetch(topic, {0: answer.base_offset})))[0].records
        after.close()
        before.close()

    return are_served


def framed(entity: Any) -> bytes:
    return b"".join(encode_request(entity, 1, client_id_field("c")))


def is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def held_bytes(running: InProcessCluster) -> int:
    return int(running.launcher.servers[node_id(0, BROKER_SLOT)].router.server.in_flight_bytes)


def test_garbage(running: InProcessCluster, others: Callable[[], None], caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(3)
    for _ in range(50):
        throw(listener(running, 0), rng.randbytes(rng.choice((1, 5, 60, 3_000))))
    for protocol in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
        assert throw(listener(running, 0), protocol) == b""
    assert "no HTTP port" in caplog.text and "TLS hello" in caplog.text
    others()


def test_frames_that_are_cut_anywhere(running: InProcessCluster, topic: str, others: Callable[[], None]) -> None:
    whole = framed(produce(topic, {0: batch(b"never")}))
    for end in range(0, len(whole), 3):
        throw(listener(running, 0), whole[:end])
        shorter = struct.pack(">i", max(0, end - 4)) + whole[4:end]
        throw(listener(running, 0), shorter)
    others()
    assert held_bytes(running) == 0


def test_frames_that_are_too_large_or_negative(
    running: InProcessCluster, others: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    for size in (LIMITS.request_bytes_max + 1, 1 << 30, -1, -(1 << 31)):
        assert throw(listener(running, 0), struct.pack(">i", size) + b"\x00\x03\x00\x0c") == b""
        assert ("negative frame size" if size < 0 else "allowed are 1048576") in caplog.text
    others()


def test_a_hostile_length_in_every_array_of_every_request(
    running: InProcessCluster, others: Callable[[], None]
) -> None:
    """Nothing is reserved for what is merely announced: a length beyond the frame ends the connection."""
    spoken = running.launcher.servers[node_id(0, BROKER_SLOT)].router.server.versions
    tried = 0
    for api_key, versions in sorted(spoken.items()):
        if api_key >= private.FIRST_API_KEY:
            continue
        for version in (versions.start, versions.stop - 1):
            cls = load_request_schema(api_key, version)
            if not any(field.is_array for field in fields_of(cls)):
                continue
            for position in range(40):
                for length in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"):
                    header = struct.pack(">hhih", api_key, version, 1, -1)
                    body = b"\x00" * position + length
                    data = header + body
                    throw(listener(running, 0), struct.pack(">i", len(data)) + data, finish=False)
                    tried += 1
    assert tried > 2_000
    others()


def test_hostile_requests_of_raylogs_own_apis_end_their_connection(
    running: InProcessCluster, others: Callable[[], None]
) -> None:
    """Whoever reaches the listener may send those about transactions of several producers."""
    spoken = running.launcher.servers[node_id(0, BROKER_SLOT)].router.server.versions
    own = [api_key for api_key in spoken if api_key >= private.FIRST_API_KEY]

    endpoint = listener(running, 0)

    def framed(api_key: int, body: bytes) -> bytes:
        data = struct.pack(">hhih", api_key, 0, 1, -1) + body
        return struct.pack(">i", len(data)) + data

    sound = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True}
    wrong: list[dict[str, object]] = [{name: value} for name in sound for value in (None, [1], {"a": 1}, 1.5, b"x")]
    of_end: list[dict[str, object]] = [{"winners": value} for value in (5, ["x"], [None], {"a": 1})]
    of_end += [{"label": value} for value in (5, None, [1])]
    assert own == [private.JOIN_TRANSACTION, private.KEEP_TRANSACTION, private.END_SHARED_TRANSACTION]
    for api_key in own:
        is_end = api_key == private.END_SHARED_TRANSACTION
        fields = [each for each in wrong if is_end or "committed" not in each] + (of_end if is_end else [])
        bodies = [msgpack.packb(sound | each) for each in fields]
        bodies += [
            b"",
            b"\xc1",
            b"\xdd\xff\xff\xff\xff",
            msgpack.packb([1]),
            msgpack.packb({}),
            msgpack.packb(sound)[:-3],
        ]
        with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as connection:
            connection.sendall(framed(api_key, msgpack.packb(sound)))
            assert connection.recv(4), "one that is sound is answered"
        for body in bodies:
            with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as connection:
                connection.sendall(framed(api_key, body))
                assert not connection.recv(4), body
    others()


def test_slow_frames_end(
    running: InProcessCluster, others: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = listener(running, 0)
    with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as slow:
        slow.sendall(struct.pack(">i", 1_000) + b"\x00\x03")
        assert slow.recv(1) == b"", "the Broker hangs up"
    assert "did not come within 300 ms" in caplog.text
    others()


def test_no_more_connections_than_allowed(
    running: InProcessCluster, others: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = listener(running, 0)
    opened = [socket.create_connection((endpoint.host, endpoint.port), timeout=60) for _ in range(200)]
    try:
        for each in opened:
            each.setblocking(False)
        eventually(lambda: sum(map(is_ended, opened)) >= 136, "the ends of those that are too many")
        assert caplog.text.count("which is all that are allowed") >= 136
    finally:
        for each in opened:
            each.close()
    server = running.launcher.servers[node_id(0, BROKER_SLOT)].router.server
    eventually(lambda: len(server.connections) <= 1, "the others gone")
    others()


def test_a_thousand_half_open_connections(
    running: InProcessCluster, others: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each announces a megabyte and sends a few bytes of it."""
    router = running.launcher.servers[node_id(0, BROKER_SLOT)].router
    server = router.server
    many = replace(LIMITS, connections_max=10_000, frame_timeout_ms=60_000)
    monkeypatch.setattr(router, "_limits", many)
    monkeypatch.setattr(server, "limits", many)
    endpoint = listener(running, 0)
    opened = []
    try:
        for _ in range(1_000):
            opened.append(socket.create_connection((endpoint.host, endpoint.port), timeout=60))
            opened[-1].sendall(struct.pack(">i", 1 << 20) + b"\x00\x00\x00\x0b")

        async def held() -> int:
            stuck = [each for each in server.connections if each.mid_frame]
            return _pool.lent_bytes if len(stuck) >= 1_000 else 0

        size = eventually(lambda: running.run(held()), "all of them stuck")
        assert size <= LENT_BYTES_MAX + 1_000 * SMALLEST_BODY
        others()
    finally:
        for each in opened:
            each.close()
    eventually(lambda: len(server.connections) <= 1, "all of them gone")


def test_who_sends_more_than_he_may_is_not_read_until_it_is_done(
    running: InProcessCluster, topic: str, others: Callable[[], None]
) -> None:
    """Requests that wait are bounded in bytes, per connection, whatever arrives."""
    endpoint = listener(running, 0)
    waits = framed(fetch(topic, {0: 1_000_000}, max_wait_ms=100))
    big = framed(produce(topic, {0: batch(b"x" * 500_000)}))
    most = 0

    async def pour() -> int:
        nonlocal most
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        for _ in range(20):
            writer.write(waits + big)
        answers = 0
        while answers < 40:
            size = int.from_bytes(await reader.readexactly(4), "big")
            await reader.readexactly(size)
            answers += 1
            most = max(most, held_bytes(running))
        writer.close()
        return answers

    assert running.run(pour(), 60) == 40
    assert most <= LIMITS.connection_bytes_max + LIMITS.request_bytes_max
    others()
    assert held_bytes(running) == 0


def test_an_unknown_client_version_is_answered_or_ended(
    running: InProcessCluster, others: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    for api_key in (0, 1, 3, 19, 999, -5):
        data = struct.pack(">hhih", api_key, 99, 1, -1) + b"\x00" * 20
        assert throw(listener(running, 0), struct.pack(">i", len(data)) + data) == b""
    assert "version 99 of produce is not spoken here" in caplog.text and "API key 999" in caplog.text
    others()
