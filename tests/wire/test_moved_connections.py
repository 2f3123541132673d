"""Connections that move between servers: the channel that carries them, and nothing lost of what their clients ask meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from wire_ends import EMPTY_REPLY, client_of, produce, server_of

from raylog.kafka.context import PRINCIPAL_CHARACTERS_MAX
from raylog.security.quotas import BYTE_RATES
from raylog.wire import private, values
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.limits import Limits
from raylog.wire.moved_connections import (
    GREETING_MAX,
    MESSAGE_BYTES_MAX,
    PENDING_IN_MESSAGE,
    Channel,
    ChannelListener,
    Ended,
    Message,
    Moved,
    MovedQuota,
    connect,
)
from raylog.wire.request import Request
from raylog.wire.server import Server
from raylog.wire.server_connection import KEPT_CHARACTERS_MAX, ServerConnection

pytestmark = pytest.mark.core

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Ends:
    """Both ends of a channel, and what each has heard."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[Message, socket.socket | None]] = asyncio.Queue()
        self.closed = asyncio.Event()
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.left = Channel(left, lambda *_: None, self.closed.set)
        self.right = Channel(right, lambda *heard: self.heard.put_nowait(heard), self.closed.set)


@pytest.mark.parametrize("size", [0, 1, PENDING_IN_MESSAGE, PENDING_IN_MESSAGE + 1, 5_000_000])
def test_a_moved_connection_arrives_with_its_socket_and_all_that_was_read(run: Run, size: int) -> None:
    pending = random.Random(size).randbytes(size)

    async def work() -> None:
        ends = Ends()
        here, there = socket.socketpair()
        with here, there:
            assert ends.left.send(Moved(7, pending, "User:a", "EXTERNAL", came_back=2), there)
        message, moved = await ends.heard.get()
        assert message == Moved(7, pending, "User:a", "EXTERNAL", came_back=2) and moved is not None
        moved.close()
        assert ends.left.send(Ended(7))
        assert await ends.heard.get() == (Ended(7), None)
        ends.left.close()
        await ends.closed.wait()

    run(work())


def test_what_a_client_is_limited_to_goes_along_and_older_messages_have_none() -> None:
    quotas = (MovedQuota("producer_byte_rate", 1e6, 1e7, is_of_user=True, is_of_client_id=False),)
    moved = Moved(7, b"", "User:a", "EXTERNAL", client_id="app", quotas=quotas, exceeded="producer_byte_rate")
    plain = values.unpack_map(values.pack(moved))
    assert values.from_plain(Moved, plain) == moved
    for name in ("client_id", "quotas", "exceeded"):
        del plain[name]
    assert values.from_plain(Moved, plain) == Moved(7, b"", "User:a", "EXTERNAL")


def test_the_longest_names_fit_into_a_message() -> None:
    quotas = tuple(MovedQuota(key, 1e9, 1e10, is_of_user=True, is_of_client_id=True) for key in BYTE_RATES)
    moved = Moved(
        1 << 60,
        bytes(PENDING_IN_MESSAGE),
        "\N{GRINNING FACE}" * PRINCIPAL_CHARACTERS_MAX,
        "L" * 100,
        grants=tuple((0, bytes(249), "t" * 300) for _ in range(64)),
        client_id="\N{GRINNING FACE}" * KEPT_CHARACTERS_MAX,
        quotas=quotas,
    )
    assert len(values.pack(moved)) < MESSAGE_BYTES_MAX


def test_a_full_channel_sends_nothing_and_does_not_block(run: Run) -> None:
    async def work() -> None:
        ends = Ends()
        here, there = socket.socketpair()
        with here, there:
            sent = 0
            while ends.left.send(Moved(sent, b"x" * PENDING_IN_MESSAGE, "User:a", "EXTERNAL"), there):
                sent += 1
                assert sent < 1_000
            assert ends.left.is_open
            for number in range(sent):
                message, moved = await ends.heard.get()
                assert message.number == number and moved is not None
                moved.close()
        ends.left.close()
        ends.right.close()

    run(work())


@pytest.mark.parametrize("said", [b"no map", b"Q\x80", b"M\x80", b"M\x82\xa6number\x01\xa7pending\xc4\x00"])
def test_a_message_that_makes_no_sense_ends_the_channel(run: Run, said: bytes) -> None:
    async def work() -> None:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        closed = asyncio.Event()
        Channel(right, lambda *_: pytest.fail("nobody said anything"), closed.set)
        left.send(said)
        await closed.wait()
        left.close()

    run(work())


def test_only_who_knows_the_token_opens_a_channel(run: Run) -> None:
    async def work() -> None:
        accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
        listener = ChannelListener(accepted.put_nowait)
        stranger = connect(listener.name, b"?" * len(listener.token))
        with stranger:
            stranger.settimeout(60)
            assert await asyncio.to_thread(stranger.recv, 1) == b""
        known = connect(listener.name, listener.token)
        (await accepted.get()).close()
        assert accepted.empty()
        known.close()
        listener.close()
        with pytest.raises(OSError):
            connect(listener.name, listener.token)

    run(work())


def test_who_says_nothing_makes_way_for_others(run: Run) -> None:
    async def work() -> None:
        accepted: asyncio.Queue[socket.socket] = asyncio.Queue()
        listener = ChannelListener(accepted.put_nowait)
        mute = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3 * GREETING_MAX)]
        for each in mute:
            each.connect("\0" + listener.name)
            await asyncio.sleep(0)
        known = connect(listener.name, listener.token)
        (await accepted.get()).close()
        assert len(listener._greeting) <= GREETING_MAX
        assert await asyncio.to_thread(mute[0].recv, 1) == b""
        for each in (*mute, known):
            each.close()
        listener.close()

    run(work())


def test_another_users_process_is_turned_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        listener = ChannelListener(lambda _: pytest.fail("it was let in"))
        monkeypatch.setattr(os, "geteuid", lambda: 4_711)
        with connect(listener.name, listener.token) as stranger:
            stranger.setblocking(True)
            assert await asyncio.to_thread(is_ended, stranger)
        listener.close()

    run(work())


def is_ended(sock: socket.socket) -> bool:
    """Whether the other end has closed it, also one that had not read all."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


class Pair:
    """Two servers. Each answers, and then gives the connection to the other one."""

    def __init__(self, rng: random.Random, *, every: int) -> None:
        self.rng = rng
        self.every = every
        self.moves = 0
        self.handled: list[bytes] = []
        self.servers = [self._server(0), self._server(1)]

    def _server(self, which: int) -> Server:
        return server_of({0: lambda request: self._handle(which, request)}, ordered=True, secret=None)

    def _handle(self, which: int, request: Request) -> None:
        self.handled.append(bytes(request.body.topic_data[0].partition_data[0].records))
        connection = request.connection
        if self.rng.randrange(self.every) == 0 and not connection.is_leaving:
            other = self.servers[1 - which]

            def hand_over(sock: socket.socket, pending: bytes) -> bool:
                self.moves += 1
                other.adopt(sock, pending, lambda _: None)
                return True

            connection.leave(hand_over)
        if self.rng.randrange(2):
            request.reply(EMPTY_REPLY)
        else:  # later, and it keeps the connection waiting
            connection.loop.call_later(self.rng.choice((0, 0.001)), request.reply, EMPTY_REPLY)


def test_a_server_that_stops_closes_a_connection_that_has_just_come(run: Run) -> None:
    async def work() -> None:
        server = server_of({}, ordered=True, secret=None)
        server.begin()
        here, there = socket.socketpair()
        with there:
            server.adopt(here, b"", lambda _: None)
            await server.stop()
            assert here.fileno() == -1
            there.settimeout(5)
            assert there.recv(1) == b""

    run(work())


def test_a_server_that_has_stopped_closes_what_comes_at_once(run: Run) -> None:
    """A host may hand a connection back while its Broker stops."""
    lost: list[str] = []

    async def work() -> None:
        server = server_of({}, ordered=True, secret=None)
        server.begin()
        await server.stop()
        here, there = socket.socketpair()
        with there:
            server.adopt(here, b"", lambda connection: connection.on_lost(lambda: lost.append("told")))
            assert here.fileno() == -1 and lost == ["told"]
            there.settimeout(5)
            assert there.recv(1) == b""

    run(work())


@pytest.mark.parametrize("every", [1, 3])
def test_requests_in_flight_over_moves_are_answered_once_and_in_order(run: Run, every: int) -> None:
    """A client with many requests in flight, small ones and such as come in pieces, whose connection moves all the time."""
    rng = random.Random(every)
    sent = [b"%06d" % number + bytes(rng.choice((0, 10, 3_000, 70_000, 300_000))) for number in range(400)]

    async def work() -> None:
        pair = Pair(rng, every=every)
        endpoint = await pair.servers[0].start()
        pair.servers[1].begin()
        client = await client_of(endpoint, secret=None)
        for start in range(0, len(sent), 40):
            await asyncio.gather(*(client.send(produce(each)) for each in sent[start : start + 40]))
        assert pair.handled == sent
        assert pair.moves > 10
        while sum(len(server.connections) for server in pair.servers) != 1:  # the last move may be under way
            await asyncio.sleep(0)
        client.close()
        await client.wait_closed()
        for server in pair.servers:
            await server.stop()

    run(work())


class Late:
    """A server that holds its first request until it is told to answer, and to give the connection to another server."""

    def __init__(self, other: Server, **options: Any) -> None:
        self.held: asyncio.Queue[Request] = asyncio.Queue()
        self.handled: list[int] = []
        self._other = other
        self.server = server_of({0: self._handle}, ordered=True, secret=None, **options)

    def _handle(self, request: Request) -> None:
        self.handled.append(request.correlation_id)
        if len(self.handled) == 1:
            self.held.put_nowait(request)
        else:
            request.reply(EMPTY_REPLY)

    def move(self, request: Request) -> None:
        def hand_over(sock: socket.socket, pending: bytes) -> bool:
            self._other.adopt(sock, pending, lambda _: None)
            return True

        request.connection.leave(hand_over)
        request.reply(EMPTY_REPLY)


@pytest.mark.parametrize(("cut", "moves"), [(1, True), (3, True), (4, False), (60, False)])
def test_the_start_of_a_frame_goes_along_and_a_begun_body_keeps_the_connection(run: Run, cut: int, moves: bool) -> None:
    """The size of a frame may arrive in two pieces. The rest of a body is read into memory of its own, which stays."""
    first, second, third = (
        b"".join(encode_request(produce(bytes(200)), number, client_id_field("c"))) for number in (1, 2, 3)
    )

    async def work() -> None:
        handled: list[int] = []

        def handle(request: Request) -> None:
            handled.append(request.correlation_id)
            request.reply(EMPTY_REPLY)

        other = server_of({0: handle}, ordered=True, secret=None)
        other.begin()
        late = Late(other)
        endpoint = await late.server.start()
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(first + second[:cut])
        request = await late.held.get()
        while request.connection.bytes_received < len(first) + cut:
            await asyncio.sleep(0)
        late.move(request)
        answers = [await answer_of(reader)]
        writer.write(second[cut:] + third)
        answers += [await answer_of(reader), await answer_of(reader)]
        assert answers == [1, 2, 3]
        assert (late.handled, handled) == (([1], [2, 3]) if moves else ([1, 2, 3], []))
        writer.close()
        await late.server.stop()
        await other.stop()

    run(work())


def test_a_connection_that_may_be_read_again_while_it_leaves_is_not(run: Run) -> None:
    """It was not read because it had too much in flight, and its answer ends that in the moment in which it leaves."""
    sent = [b"".join(encode_request(produce(), number, client_id_field("c"))) for number in (1, 2, 3)]

    async def work() -> None:
        other = server_of({0: lambda request: request.reply(EMPTY_REPLY)}, ordered=True, secret=None)
        other.begin()
        late = Late(other, limits=Limits(connection_requests_max=1))
        endpoint = await late.server.start()
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(b"".join(sent))
        late.move(await late.held.get())
        assert [await answer_of(reader) for _ in sent] == [1, 2, 3]
        assert late.handled == [1]
        writer.close()
        await late.server.stop()
        await other.stop()

    run(work())


async def answer_of(reader: asyncio.StreamReader) -> int:
    """The correlation id of the next answer."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return int.from_bytes((await reader.readexactly(size))[:4], "big")


def test_an_answer_that_is_not_read_yet_keeps_the_connection_until_it_is(run: Run) -> None:
    large = private.QuorumDescription({"text": "x" * 30_000_000})

    async def work() -> None:
        moved: list[bytes] = []

        def handle(request: Request) -> None:
            def hand_over(sock: socket.socket, pending: bytes) -> bool:
                moved.append(pending)
                sock.close()
                return True

            request.connection.leave(hand_over)
            request.reply(large)

        server = server_of({private.DESCRIBE_QUORUM: handle}, ordered=True, secret=None)
        endpoint = await server.start()
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=1 << 16)
        writer.write(b"".join(encode_request(private.DescribeQuorum(), 5, client_id_field("c"))))
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert size > 30_000_000 and not moved
        assert len(await reader.readexactly(size)) == size
        while not moved:
            await asyncio.sleep(0)
        writer.close()
        await server.stop()

    run(work())


def test_a_connection_that_nobody_takes_goes_on_where_it_is(run: Run) -> None:
    async def work() -> None:
        refused = 0

        def handle(request: Request) -> None:
            def hand_over(sock: socket.socket, pending: bytes) -> bool:
                nonlocal refused
                refused += 1
                sock.close()
                return False

            request.connection.leave(hand_over)
            request.reply(EMPTY_REPLY)

        server = server_of({0: handle}, ordered=True, secret=None)
        client = await client_of(await server.start(), secret=None)
        await asyncio.gather(*(client.send(produce(b"x" * size)) for size in (1, 100, 100_000) * 5))
        assert refused == 15
        client.close()
        await server.stop()

    run(work())


def test_a_connection_with_a_request_for_nobody_ends(run: Run) -> None:
    """What was delivered already, and can't be served here, must not be lost in silence."""

    class Stubborn(ServerConnection):
        def frame_received(self, frame: memoryview) -> None:
            def hand_over(sock: socket.socket, pending: bytes) -> bool:
                sock.close()
                return False

            self.leave(hand_over, pending=bytes(frame))

    async def work() -> None:
        server = server_of({}, connection=Stubborn, ordered=True, secret=None)
        endpoint = await server.start()
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        writer.write(b"\x00\x00\x00\x0a" + bytes(10))
        assert await reader.read() == b""
        writer.close()
        await server.stop()

    run(work())
