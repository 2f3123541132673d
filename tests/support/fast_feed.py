"""Sessions of frames at full speed: many connections at a time, on the servers' own loop, without a tracer.

``Feeder`` (``fed_frames``) hands over one session after another from a thread of its own. Here ``LANES_MAX`` lanes each feed one
connection, so that a request that waits holds up nobody. A session is drawn from a seed and its number alone: frames of its door's
corpus, most of them changed. What it is made of::

    door  ──draws──►  frames  ──lane──►  connection  ──►  answered, ended, or waiting after PATIENCE_S

Every frame is counted by door and API once the connection has taken it; what stands behind a frame that ended its connection is never
read, and not counted. A session in whose time something was found is saved, with its seed and number in the name of its file.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fed_frames import FRAME_CPU_S_MAX, FRAMES_MAX, WHO, told_of
from hostile_frames import changed, errors_of
from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.wire import private, values
from raylog.wire.frames import decode_response
from raylog.wire.ports import Port
from raylog.wire.server import Server
from raylog.wire.server_connection import ServerConnection

PLACES: Final = ("controller", "broker", "replicas", "coordinators")
DOORS: Final = (
    *WHO,
    "bearer",
    "renewed",
    "tls",
    "hello",
    *(f"{who} at {place}" for who in ("stranger", "member", "node") for place in PLACES),
)
"""Those of a corpus file's first byte; the first four are ``fed_frames.WHO``. ``bearer`` shows tokens of OAUTHBEARER, and ``renewed``
does so again on a connection that a good one has opened. ``tls`` sends frames inside of TLS, and ``hello`` what should begin it. The
others come in by the inside links: a stranger does not prove the secret, a member has, and a node says that it is the Broker.
"""
LANES_MAX: Final = 32
PATIENCE_S: Final = 0.05
LOOK_S: Final = 0.005
LOG_IN_S: Final = 30.0
CHANGED_SHARE: Final = 0.6
CHANGED_SHARE_INSIDE: Final = 0.35
"""Where a connection that ends has to log in again."""
SESSION_SHARE: Final = 0.02
RAW_HANDSHAKE: Final = b"\0\x11\0\0"
"""Tokens that follow it have no request around them."""
JUDGED_MAX: Final = 100_000
JUDGED_BYTES_MAX: Final = 2_048
SAVED_MAX: Final = 40
_SIZE: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hhi")
_PRODUCE: Final = table.PRODUCE.key

Ask = Callable[[bytes], Awaitable[bytes]]
"""Sends a frame of a login and returns the answer's, each without its size."""


@dataclass
class Door:
    """Where frames come in. ``frames`` are changed; ``sessions`` belong together, and are all that is sent where ``is_sequence``.
    ``log_in`` opens a connection, whose frames are sent after authentication; ``is_taken`` says what may be sent there.
    """

    name: str
    server: Server
    port: Port
    frames: Sequence[bytes]
    sessions: Sequence[Sequence[bytes]]
    share: int
    is_sequence: bool = False
    log_in: Callable[[Ask], Awaitable[None]] | None = None
    is_taken: Callable[[bytes], bool] | None = None
    others: Sequence[bytes] = ()

    def drawn(self, chance: random.Random) -> Iterator[bytes]:
        """The frames of a session, which follow from the state of ``chance``, one by one: most of what stands behind a frame that
        ends its connection is never made.
        """
        others = self.others or self.frames
        changed_share = CHANGED_SHARE if self.log_in is None else CHANGED_SHARE_INSIDE
        for each in self._chosen(chance):
            if chance.random() < changed_share:
                each = changed(chance, each, others)
            if self.is_taken is None or self.is_taken(each):
                yield each

    def _chosen(self, chance: random.Random) -> Iterator[bytes]:
        if self.is_sequence:
            for each in chance.choice(self.sessions):
                if chance.random() < 0.05:
                    yield chance.choice(self.frames)
                yield each
            return
        for _ in range(FRAMES_MAX):
            if chance.random() < SESSION_SHARE:
                yield from chance.choice(self.sessions)
            else:
                yield chance.choice(self.frames)


def session_of(door: str, frames: Sequence[bytes]) -> bytes:
    """What a corpus file says."""
    return bytes((DOORS.index(door),)) + b"".join(_SIZE.pack(len(each)) + each for each in frames)


class _Wire(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self, lane: Lane, connection: ServerConnection) -> None:
        super().__init__({"peername": (lane.host, 1)})
        self._lane = lane
        self._connection = connection
        self._is_closing = False
        self.is_paused = False
        self.read = b""

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self.read += data
            self._lane.wrote(self)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._connection.loop.call_soon(self._lost)

    abort = close

    def _lost(self) -> None:
        self._connection.connection_lost(None)
        self._lane.settle()
        self._lane.hung_up(self._connection)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class FastFeed:
    """``run`` feeds so many frames more. ``found``: where sessions with findings go."""

    def __init__(self, doors: Sequence[Door], seed: int, findings: Counter[str], found: Path) -> None:
        self.doors = doors
        self.seed = seed
        self.findings = findings
        self.frames: Counter[tuple[str, int]] = Counter()  # by door and API key; -1: of no API that is served here
        self.outcomes: Counter[str] = Counter()
        self.logins: Counter[str] = Counter()
        self.fed = 0
        self.connections = 0
        self.sessions = 0
        self.saved: list[Path] = []
        self.slowest_s = 0.0
        self.slow: list[tuple[Door, int, list[bytes]]] = []  # sessions that took a long time by the wall's clock
        self.locked_out: dict[str, tuple[Door, str]] = {}  # where a login has failed, and why
        self.judged: dict[tuple[int, int, bytes], frozenset[str]] = {}
        self._found = found
        self._shares = [each.share for each in doors]
        self._until = 0
        self._lanes = [Lane(self, number) for number in range(LANES_MAX)]

    async def run(self, frames: int) -> None:
        """Returns when all of them are answered, or nothing more is awaited, and no connection is left."""
        self._until = self.fed + frames
        await asyncio.gather(*(each.work() for each in self._lanes))
        slow, self.slow = self.slow, []
        for door, number, sent in slow:
            known = sum(self.findings.values())
            began = time.thread_time()  # which is dear to ask for each frame
            await self._lanes[0].feed(door, sent)
            if time.thread_time() - began > FRAME_CPU_S_MAX:
                self.findings[
                    f"a session of {sent[-1][:4].hex()} at {door.name} takes more than {FRAME_CPU_S_MAX:g} s"
                ] += 1
                self.save(known, (door.name, number, sent))
        for each in self._lanes:
            each.close()
        await self._log_in_again()
        await asyncio.sleep(0)

    async def _log_in_again(self) -> None:
        """Where somebody could not, for the machine may have been too busy. Now everything is at rest."""
        locked_out, self.locked_out = self.locked_out, {}
        for door, _ in locked_out.values():
            await self._lanes[0].feed(door, ())
        self._lanes[0].close()
        for door, why in self.locked_out.values():
            self.findings[f"nobody can log in as {door.name}: {why}"] += 1
        self.locked_out.clear()

    async def replay(self, door: str, frames: list[bytes]) -> None:
        """One session, alone."""
        await self._lanes[0].feed(next(each for each in self.doors if each.name == door), frames)
        self._lanes[0].close()
        await asyncio.sleep(PATIENCE_S)

    def next_session(self) -> tuple[Door, Iterator[bytes], int] | None:
        if self.fed >= self._until:
            return None
        number, self.sessions = self.sessions, self.sessions + 1
        chance = random.Random(self.seed << 40 | number)
        (door,) = chance.choices(self.doors, self._shares)
        return door, door.drawn(chance), number

    def count(self, door: Door, frame: bytes) -> None:
        key = int.from_bytes(frame[:2], "big", signed=True)
        is_served = key in door.server.versions or (key == private.HANDSHAKE and door.server.secret is not None)
        self.frames[door.name, key if is_served else -1] += 1
        self.fed += 1

    def save(self, since: int, other: tuple[str, int, Sequence[bytes]] | None = None) -> None:
        """Keep what is under way if there are more findings than then: each lane's session, or another of that door and number."""
        if sum(self.findings.values()) == since:
            return
        self._found.mkdir(parents=True, exist_ok=True)
        lanes = [(each.door.name, each.number, each.sent) for each in self._lanes if each.door is not None]
        for door, number, frames in lanes if other is None else [other]:
            path = self._found / f"{door.replace(' ', '-')}-seed{self.seed}-{number}.bin"
            if path not in self.saved and len(self.saved) < SAVED_MAX:
                path.write_bytes(session_of(door, frames))
                self.saved.append(path)


class Lane:
    """Feeds one connection at a time, from an address of its own."""

    def __init__(self, feed: FastFeed, number: int) -> None:
        self.host = f"127.0.1.{number + 1}"
        self.door: Door | None = None
        self.number = 0  # of its session
        self.sent: list[bytes] = []
        self._feed = feed
        self._kept: dict[str, ServerConnection] = {}  # those that have logged in
        self._connection: ServerConnection | None = None
        self._asked: dict[int, bytes] = {}
        self._last = -1  # whose answer came last
        self._is_raw = self._was_paused = False
        self._login: asyncio.Future[bytes] | None = None
        self._settled: asyncio.Future[None] | None = None

    async def work(self) -> None:
        while (drawn := self._feed.next_session()) is not None:
            door, frames, self.number = drawn
            await self.feed(door, frames)

    def close(self) -> None:
        for each in self._kept.values():
            each.abort()
        self._kept.clear()

    async def feed(self, door: Door, frames: Iterable[bytes]) -> None:
        """One session. Returns when it is answered, has ended, or waits for too long."""
        known = sum(self._feed.findings.values())
        self.door, self.sent = door, []
        connection = self._kept.get(door.name)
        if connection is None or connection.shut:
            connection = self._opened(door)
            if door.log_in is not None:
                await self._log_in(door, connection)
        self._connection = connection
        self._asked, self._last, self._was_paused = {}, -1, False
        self._is_raw = False
        self._send(door, connection, frames)
        await asyncio.sleep(0)
        waits = not self._is_settled() and not await self._settles(connection)
        self._conclude(door, connection, waits)
        self._connection = None
        self._feed.save(known)
        self.door = None

    def _opened(self, door: Door) -> ServerConnection:
        server = door.server
        connection = server.connection_of(door.port)
        connection.peername = f"{self.host}:1"
        connection.must_prove = door.port.has_sasl
        if door.port.has_sasl:
            server.acceptor.unauthenticated_of_host[self.host] += 1
        connection.connection_made(_Wire(self, connection))
        self._feed.connections += 1
        return connection

    async def _log_in(self, door: Door, connection: ServerConnection) -> None:
        assert door.log_in is not None

        async def ask(frame: bytes) -> bytes:
            self._login = asyncio.get_running_loop().create_future()
            self._give(connection, _SIZE.pack(len(frame)) + frame)
            try:
                return await asyncio.wait_for(self._login, LOG_IN_S)
            finally:
                self._login = None

        try:
            self._connection = connection
            await door.log_in(ask)
            self._kept[door.name] = connection
            self._feed.logins[door.name] += 1
        except Exception as error:
            self._feed.locked_out[door.name] = door, told_of(error)
            connection.abort()

    def hung_up(self, connection: ServerConnection) -> None:
        if self._login is not None and connection is self._connection and not self._login.done():
            self._login.set_exception(ConnectionError(f"closed: {connection._close_reason}"))

    def _send(self, door: Door, connection: ServerConnection, frames: Iterable[bytes]) -> None:
        wire = connection.transport
        assert isinstance(wire, _Wire)
        for number, frame in enumerate(frames):
            if connection.shut:
                return
            if wire.is_paused:
                self._was_paused = True
                return
            self._is_raw |= frame[:4] == RAW_HANDSHAKE
            if len(frame) >= 8 and not self._is_raw:
                frame = frame[:4] + _SIZE.pack(number) + frame[8:]
            self._asked[number] = frame
            self.sent.append(frame)
            self._feed.count(door, frame)
            self._give(connection, _SIZE.pack(len(frame)) + frame)

    def _give(self, connection: ServerConnection, data: bytes) -> None:
        """What an event loop does with bytes that have come."""
        wire = connection.transport
        assert isinstance(wire, _Wire)
        began = time.perf_counter()
        try:
            while data and not wire.is_closing():
                room = connection.get_buffer(-1)
                count = min(len(room), len(data))
                room[:count] = data[:count]
                connection.buffer_updated(count)
                data = data[count:]
        except Exception as error:
            self._feed.findings[f"the connection raises {told_of(error)}"] += 1
            connection.abort()
        spent = time.perf_counter() - began
        if spent > self._feed.slowest_s:
            self._feed.slowest_s = spent
        if spent > FRAME_CPU_S_MAX and self.door is not None:
            self._feed.slow.append((self.door, self.number, list(self.sent)))

    # ------------------------------------------------------------------ answers

    def wrote(self, wire: _Wire) -> None:
        data, position = wire.read, 0
        while len(data) - position >= 4:
            (size,) = _SIZE.unpack_from(data, position)
            if len(data) - position < 4 + size:
                break
            self._note(data[position + 4 : position + 4 + size])
            position += 4 + size
        wire.read = data[position:]
        self.settle()

    def _note(self, answer: bytes) -> None:
        if self._login is not None:
            if not self._login.done():
                self._login.set_result(answer)
            return
        if self._is_raw:
            self._feed.outcomes["answered, to a token that is no request"] += 1
            return
        number = int.from_bytes(answer[:4], "big", signed=True)
        frame = self._asked.pop(number, None)
        if frame is None or (number < self._last and self._connection is not None and self._connection.server.ordered):
            self._feed.findings["an answer to nothing"] += 1
            return
        self._last = number
        self._judge(frame, answer)

    def _judge(self, frame: bytes, answer: bytes) -> None:
        """An answer that was judged before is not decoded again."""
        key, version, _ = _HEAD.unpack_from(frame)
        if key == table.API_VERSIONS.key and version not in table.API_VERSIONS.versions:
            version = 0  # in which it tells those that are spoken
        same = key, version, answer[4:]
        known = self._feed.judged.get(same)
        if known is None:
            known = errors_in(key, version, answer, self._feed.findings)
            if len(answer) <= JUDGED_BYTES_MAX and len(self._feed.judged) < JUDGED_MAX:
                self._feed.judged[same] = known
        self._feed.outcomes.update(known)

    def _conclude(self, door: Door, connection: ServerConnection, waits: bool) -> None:
        outcomes = self._feed.outcomes
        if connection.shut or connection.lost:
            outcomes["the connection is closed"] += 1
        elif waits:
            outcomes["it waits"] += 1
        elif not self._is_raw and not self._was_paused:
            for frame in self._asked.values():
                if _is_answered(door, frame):
                    self._feed.findings[f"no answer to {frame[:4].hex()} at {door.name}"] += 1
                else:
                    outcomes["no answer is due"] += 1
        if waits or door.log_in is None or self._is_raw or self._was_paused:
            connection.abort()

    # ------------------------------------------------------------------ waiting

    def settle(self) -> None:
        if self._settled is not None and not self._settled.done() and self._is_settled():
            self._settled.set_result(None)

    def _is_settled(self) -> bool:
        connection = self._connection
        return (
            connection is None
            or connection.lost
            or connection.shut
            or not (connection.in_flight_requests or connection.unsent_bytes)
        )

    async def _settles(self, connection: ServerConnection) -> bool:
        """Not every request has an answer that would say that it is done, so it looks, too."""
        loop = connection.loop
        self._settled = loop.create_future()
        deadline = loop.time() + PATIENCE_S

        def look() -> None:
            nonlocal timer
            self.settle()
            if self._settled is not None and not self._settled.done():
                if loop.time() < deadline:
                    timer = loop.call_later(LOOK_S, look)
                else:
                    self._settled.set_result(None)

        timer = loop.call_later(LOOK_S, look)
        await self._settled
        timer.cancel()
        self._settled = None
        await asyncio.sleep(0)  # an answer is written behind the request's end
        return self._is_settled()


def _is_answered(door: Door, frame: bytes) -> bool:
    """Whether an answer had to come on a connection that lives on."""
    return door.server.ordered and frame[:2] != _PRODUCE.to_bytes(2, "big")


def errors_in(key: int, version: int, answer: bytes, findings: Counter[str]) -> frozenset[str]:
    """The errors that stand in an answer. One that no client can read is a finding."""
    try:
        if key >= private.FIRST_API_KEY and "error" in (told := values.unpack_map(answer[4:])):
            return frozenset({ErrorCode(told["error"]).name})
        return errors_of(decode_response(key, version, answer))
    except Exception as error:
        findings[f"an answer of API {key} in version {version} that no client reads: {told_of(error)}"] += 1
        return frozenset({"an answer that is not decoded"})
