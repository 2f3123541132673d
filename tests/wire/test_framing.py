"""Frames in and out of a byte stream, with a transport made of lists."""

import asyncio
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ProtocolError
from raylog.wire import framing
from raylog.wire.framing import LARGE_FRAME_BYTES, FramedProtocol


class Wire(asyncio.Transport):
    """Takes what is written and remembers whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, buffers: Any) -> None:
        self.written.append(b"".join(buffers))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Collector(FramedProtocol):
    """Keeps the frames; holds reading after each ``hold_every``-th."""

    def __init__(self, hold_every: int = 0, frame_bytes_max: int = 1 << 24) -> None:
        super().__init__(frame_bytes_max=frame_bytes_max)
        self.frames: list[bytes] = []
        self.hold_every = hold_every
        self.echo = False

    def frame_received(self, frame: memoryview) -> None:
        assert frame.readonly
        self.frames.append(bytes(frame))
        if self.hold_every and len(self.frames) % self.hold_every == 0:
            self.hold_reading()
        if self.echo:
            self.write_frame([bytes(frame)])

    def closed(self, reason: Exception | None) -> None:
        self.reason = reason


class SocketWire(Wire):
    """A wire over a TCP socket, which remembers how many bytes have to be there before its reader is woken."""

    family = socket.AF_INET

    def __init__(self, *, is_encrypted: bool = False) -> None:
        super().__init__()
        self.is_encrypted = is_encrypted
        self.low_water = 1

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self, "ssl_object": self if self.is_encrypted else None}.get(name, default)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            self.low_water = value


def connected(protocol: FramedProtocol, wire: Wire | None = None) -> Wire:
    wire = wire or Wire()

    async def connect() -> None:
        protocol.connection_made(wire)

    asyncio.run(connect())
    return wire


def feed(protocol: FramedProtocol, data: bytes, cuts: list[int] | None = None) -> None:
    """Gives the bytes as a loop would: at most what the protocol's buffer takes, at most up to the next cut."""
    cuts = sorted(cut for cut in cuts or [] if 0 < cut < len(data))
    position = 0
    while position < len(data):
        buffer = protocol.get_buffer(-1)
        assert len(buffer) > 0
        end = next((cut for cut in cuts if cut > position), len(data))
        count = min(len(buffer), end - position)
        buffer[:count] = data[position : position + count]
        protocol.buffer_updated(count)
        position += count


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


bodies_of_every_size = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(LARGE_FRAME_BYTES - 5, LARGE_FRAME_BYTES + 5).map(lambda size: bytes([size % 251]) * size),
        st.integers(1, 3).map(lambda millions: bytes([millions]) * (millions * 1_000_000 + 17)),
    ),
    max_size=8,
)


@given(bodies_of_every_size, st.lists(st.integers(0, 4_000_000), max_size=20))
def test_frames_arrive_whole_and_in_order_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    protocol = Collector()
    connected(protocol)
    feed(protocol, b"".join(map(framed, bodies)), cuts)
    assert protocol.frames == bodies
    assert not protocol.mid_frame


@given(bodies_of_every_size, st.lists(st.integers(0, 200), max_size=20), st.integers(1, 3))
def test_held_reading_delivers_nothing_and_loses_nothing(bodies: list[bytes], cuts: list[int], every: int) -> None:
    protocol = Collector(hold_every=every)
    wire = connected(protocol)
    stream = b"".join(map(framed, bodies))
    cuts = sorted(set(cuts) | {len(stream)})
    position = 0
    for cut in cuts:
        while position < min(cut, len(stream)):
            while not wire.reading:
                held = len(protocol.frames)
                assert held % every == 0
                protocol.release_reading()
            buffer = protocol.get_buffer(-1)
            count = min(len(buffer), cut - position, len(stream) - position)
            buffer[:count] = stream[position : position + count]
            protocol.buffer_updated(count)
            position += count
    while not wire.reading:
        protocol.release_reading()
    assert protocol.frames == bodies


def test_two_connections_of_a_thread_do_not_mix_in_the_shared_buffer() -> None:
    first, second = Collector(), Collector()
    connected(first)
    connected(second)
    one, other = framed(b"a" * 1000) * 3, framed(b"b" * 77) * 40
    for position in range(0, 3000, 50):
        feed(first, one[position : position + 50])
        feed(second, other[position : position + 50])
    feed(first, one[3000:])
    feed(second, other[3000:])
    assert first.frames == [b"a" * 1000] * 3
    assert second.frames == [b"b" * 77] * 40


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_size_out_of_bounds_closes_the_connection(size: int) -> None:
    protocol = Collector(frame_bytes_max=1000)
    wire = connected(protocol)
    feed(protocol, framed(b"fine") + struct.pack(">i", size))
    assert protocol.frames == [b"fine"]
    assert wire.is_closed
    protocol.connection_lost(None)
    assert isinstance(protocol.reason, ProtocolError)


def test_a_frame_of_the_largest_size_is_taken() -> None:
    protocol = Collector(frame_bytes_max=1000)
    connected(protocol)
    feed(protocol, framed(b"x" * 1000) + framed(b""))
    assert protocol.frames == [b"x" * 1000, b""]


@pytest.mark.parametrize(
    ("start", "hint"),
    [(b"GET / HTTP/1.1\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00\x01", "TLS"), (b"\xff\xff\xff\xff", "negative")],
)
def test_refusal_names_what_the_bytes_look_like(start: bytes, hint: str) -> None:
    protocol = Collector(frame_bytes_max=1000)
    connected(protocol)
    feed(protocol, start)
    protocol.connection_lost(None)
    assert hint in str(protocol.reason)


def test_announcing_a_large_frame_reserves_little() -> None:
    protocol = Collector(frame_bytes_max=104_857_600)
    connected(protocol)
    feed(protocol, struct.pack(">i", 104_857_600) + b"x")
    assert protocol.mid_frame
    assert len(protocol.get_buffer(-1)) < framing.POOLED_BYTES_MAX  # a tenth of what was announced


def test_many_that_announce_and_stop_hold_little_each() -> None:
    before = framing._pool.lent_bytes
    announcing = [Collector(frame_bytes_max=104_857_600) for _ in range(2_000)]
    for protocol in announcing:
        connected(protocol)
        feed(protocol, struct.pack(">i", 104_857_600) + b"x")
    held = framing._pool.lent_bytes - before
    assert held <= framing.LENT_BYTES_MAX + 2_000 * framing.SMALLEST_BODY
    whole = Collector(frame_bytes_max=104_857_600)
    connected(whole)
    data = bytes(range(256)) * 4_000
    feed(whole, framed(data))
    assert whole.frames == [data], "who sends what he announces gets his memory"
    for protocol in announcing:
        protocol.connection_lost(None)
    assert framing._pool.lent_bytes == before


def test_receive_buffers_are_used_again() -> None:
    pool = framing.BufferPool()
    buffer = pool.take(1_000_000)
    pool.give(buffer)
    assert pool.take(900_000) is buffer
    assert pool.take(900_000) is not buffer


def test_a_receive_buffer_is_not_used_again_while_somebody_has_a_view_of_it() -> None:
    pool = framing.BufferPool()
    buffer = pool.take(1_000_000)
    view = memoryview(buffer)[10:20].toreadonly()
    pool.give(buffer)
    assert pool.take(1_000_000) is not buffer
    view.release()
    assert pool.take(1_000_000) is buffer


def test_what_is_kept_of_a_large_frame_stays_as_it_was() -> None:
    class Keeper(Collector):
        def frame_received(self, frame: memoryview) -> None:
            kept.append(frame[-70_000:])

    kept: list[memoryview] = []
    protocol = Keeper()
    connected(protocol)
    bodies = [bytes([number]) * (70_000 + number) for number in range(20)]
    for body in bodies:
        feed(protocol, framed(body))
    assert [bytes(each) for each in kept] == [body[-70_000:] for body in bodies]


def test_the_rest_of_a_large_frame_is_read_in_large_pieces() -> None:
    protocol, wire = Collector(), SocketWire()
    connected(protocol, wire)
    data = framed(b"x" * 1_000_000)
    feed(protocol, data[:100])
    assert wire.low_water == framing.RECEIVE_STEP
    feed(protocol, data[100:900_000])
    assert wire.low_water == 100_004, "more than the peer owes never comes"
    feed(protocol, data[900_000:])
    assert wire.low_water == 1
    feed(protocol, data[:100])
    protocol.take_what_comes()
    feed(protocol, data[100:500_000])
    assert wire.low_water == 1, "who asked for every byte gets the rest of the frame so"
    feed(protocol, data[500_000:] + framed(b"x" * 100_000)[:6])
    assert wire.low_water == 1 and len(protocol.frames) == 2, "a frame of this size is read as it comes"


def test_the_bytes_below_an_encrypted_stream_are_not_counted_on() -> None:
    protocol, wire = Collector(), SocketWire(is_encrypted=True)
    connected(protocol, wire)
    feed(protocol, framed(b"x" * 1_000_000)[:100])
    assert wire.low_water == 1


def test_replies_to_frames_of_one_read_leave_in_one_write() -> None:
    protocol = Collector()
    protocol.echo = True
    wire = connected(protocol)
    feed(protocol, framed(b"a") + framed(b"b") + framed(b"c"))
    assert wire.written == [b"abc"]


def test_nothing_is_delivered_after_close() -> None:
    protocol = Collector()
    connected(protocol)
    feed(protocol, framed(b"a"))
    protocol.close()
    feed(protocol, framed(b"b"))
    assert protocol.frames == [b"a"]


def test_the_rest_of_a_frame_cut_by_the_end_is_dropped() -> None:
    protocol = Collector()
    connected(protocol)
    feed(protocol, framed(b"x" * 100)[:50])
    protocol.connection_lost(ConnectionResetError())
    assert protocol.frames == []
    assert isinstance(protocol.reason, ConnectionResetError)
