"""Sessions of frames, fed to a Broker's real connections without a socket.

A session is one client's bytes, as a coverage-guided fuzzer keeps them in its corpus::

    session = who: 1 byte, of WHO | stream: frames behind their sizes, as on the wire

``Feeder`` makes the connection that the listener would make, hands it the stream on the servers' own loop, and reads what it writes.
Behind that connection everything is real: the authorizer, the Router, the controller, replicas, coordinators, their logs.

Each frame has one of these outcomes: answered, with Kafka's errors or without; answered by the connection's end; not answered within
``PATIENCE_S``, as a member waits for its group. All else is a finding.
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hostile_frames import PASSWORD, TOKENS, USER, changed, errors_of, real_frames, sasl_frames

from raylog.errors import ProtocolError
from raylog.kafka import table
from raylog.wire.frames import decode_request_body, decode_request_header, decode_response
from raylog.wire.server import Server
from raylog.wire.server_connection import ServerConnection

WHO: Final = ("open", "sasl", "login", "super")
SUPER_USER: Final = "root"
FRAMES_MAX: Final = 16
SESSION_BYTES_MAX: Final = 16_384
PATIENCE_S: Final = 0.05
LOGIN_S: Final = 10.0
LOOK_S: Final = 0.002
HANG_S: Final = 60.0
FRAME_CPU_S_MAX: Final = 1.0
"""Of the loop's thread, while it takes a frame; the machine may be busy, so the wall's clock says nothing."""
_SIZE: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hhi")
_VALIDATED: Final = {
    spec.key
    for spec in (
        table.CREATE_TOPICS,
        table.CREATE_PARTITIONS,
        table.ALTER_CONFIGS,
        table.INCREMENTAL_ALTER_CONFIGS,
        table.ALTER_CLIENT_QUOTAS,
    )
}
_HARMLESS: Final = _VALIDATED | {
    spec.key
    for spec in (
        table.METADATA,
        table.FETCH,
        table.LIST_OFFSETS,
        table.OFFSET_FOR_LEADER_EPOCH,
        table.DELETE_RECORDS,
        table.DESCRIBE_ACLS,
        table.DESCRIBE_CONFIGS,
        table.DESCRIBE_LOG_DIRS,
        table.DESCRIBE_DELEGATION_TOKEN,
        table.DELETE_GROUPS,
        table.ELECT_LEADERS,
        table.LIST_PARTITION_REASSIGNMENTS,
        table.DESCRIBE_CLIENT_QUOTAS,
        table.DESCRIBE_USER_SCRAM_CREDENTIALS,
        table.DESCRIBE_QUORUM,
        table.DESCRIBE_CLUSTER,
        table.DESCRIBE_PRODUCERS,
        table.DESCRIBE_TRANSACTIONS,
        table.LIST_TRANSACTIONS,
        table.DESCRIBE_GROUPS,
        table.LIST_GROUPS,
        table.GET_TELEMETRY_SUBSCRIPTIONS,
        table.LIST_CONFIG_RESOURCES,
        table.DESCRIBE_TOPIC_PARTITIONS,
    )
}
"""What a super user may send: it changes nothing, or not without end."""


def session(who: str, frames: Sequence[bytes]) -> bytes:
    return bytes((WHO.index(who),)) + b"".join(_SIZE.pack(len(each)) + each for each in frames)


def seeds(topic_id: uuid.UUID) -> list[bytes]:
    """A session of each real frame, before and after authentication, and those that belong together."""
    real, tokens = real_frames(topic_id), sasl_frames(TOKENS)
    found = [session("open", [frame]) for frame in (*real, *tokens)]
    found += [session("login", [frame]) for frame in real[::7]]
    found += [session("super", [frame]) for frame in real if is_harmless(frame)]
    found += [session("sasl", [handshake, token]) for handshake in tokens[:8] for token in tokens[8:]]
    return found


def kept_frames(corpus: Path) -> list[bytes]:
    """The frames of the sessions that a fuzzer has kept there."""
    files = sorted(corpus.iterdir()) if corpus.is_dir() else []
    frames = (frame for file in files for frame in split(file.read_bytes()[1:])[0])
    return sorted({each for each in frames if len(each) >= 8})


def who_of(data: bytes) -> str:
    return WHO[data[0] % len(WHO)]


def split(stream: bytes) -> tuple[list[bytes], bytes]:
    """The whole frames of a stream, and what follows them."""
    frames, position = [], 0
    while len(frames) < FRAMES_MAX and position + 4 <= len(stream):
        (size,) = _SIZE.unpack_from(stream, position)
        if size < 0 or position + 4 + size > len(stream):
            break
        frames.append(stream[position + 4 : position + 4 + size])
        position += 4 + size
    return frames, stream[position : position + 64] if len(frames) < FRAMES_MAX else b""


def mixed(chance: random.Random, data: bytes, frames: Sequence[bytes], mutate: Any = None) -> bytes:
    """Another session, much like this one: a frame of it is changed, or it has another frame more or less.

    ``mutate`` is the fuzzer's own way of changing bytes, which knows what the code has compared them with.
    """
    own, rest = split(data[1:])
    who = data[0] if data and chance.random() < 0.95 else chance.randrange(len(WHO))
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(own)) if own else 0
        what = chance.randrange(8) if own else 5
        if what < 3:
            own[at] = changed(chance, own[at], frames)
        elif what < 5 and mutate is not None and own[at]:
            own[at] = own[at][:4] + mutate(own[at][4:], len(own[at]) + 64)
        elif what == 5 and len(own) < FRAMES_MAX:
            own.insert(at, chance.choice(frames))
        elif what == 6 and len(own) > 1:
            del own[at]
        elif what == 7 and len(own) < FRAMES_MAX:
            own.insert(chance.randrange(len(own)), own[at])
    if chance.random() < 0.02:
        rest = bytes(chance.randrange(256) for _ in range(chance.randrange(12)))
    return (bytes((who % len(WHO),)) + b"".join(_SIZE.pack(len(each)) + each for each in own) + rest)[
        :SESSION_BYTES_MAX
    ]


class _Transport(asyncio.Transport):
    """Keeps what is written for the feeder, and ends when either side wants it to."""

    def __init__(self, feeder: Feeder, connection: ServerConnection) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._feeder = feeder
        self._connection = connection
        self._closing = False
        self.is_paused = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self._feeder.wrote(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._lost)

    abort = close

    def _lost(self) -> None:
        self._connection.connection_lost(None)
        self._feeder.settle()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Feeder:
    """Feeds sessions to a server, one after another, from a thread that is not its loop's."""

    def __init__(self, server: Server, findings: Counter[str]) -> None:
        self._server = server
        self._ports = {"sasl" if each.has_sasl else "open": each for each in server.ports}
        self.findings = findings
        self.frames: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.slowest_cpu_s = 0.0
        self._kept: dict[str, ServerConnection] = {}  # those that have logged in
        self._connection: ServerConnection | None = None
        self._asked: deque[bytes] = deque()
        self._read = b""
        self._is_raw = False
        self._is_feeding = False
        self._settled = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0

    def feed(self, data: bytes) -> None:
        """Returns when all of it is answered, or nothing more is awaited."""
        if not data:
            return
        who = who_of(data)
        frames, rest = split(data[1:])
        if who == "super":
            frames, rest = [each for each in frames if is_harmless(each)], b""
        if who in ("login", "super") and (who not in self._kept or self._kept[who].shut):
            self._log_in(who)
        self.frames[who] += len(frames) + bool(rest)
        self._run(who, frames, rest)

    def close(self) -> None:
        """End what is kept."""
        for each in self._kept.values():
            self._server.loop.call_soon_threadsafe(each.abort)

    def _log_in(self, who: str) -> None:
        self._kept.pop(who, None)
        token = f"\0{SUPER_USER}\0{PASSWORD}".encode() if who == "super" else TOKENS[0]
        handshake, authenticate = sasl_frames(TOKENS)[4], sasl_frames((token,))[-1]
        for _ in range(20):
            self._run(who, [handshake], b"", is_login=True)
            self._run(who, [authenticate], b"", is_login=True)
            if self._kept[who].principal.endswith((SUPER_USER, USER)):
                return
            self._kept.pop(who)
        self.findings[f"nobody can log in as {who}"] += 1

    def _run(self, who: str, frames: list[bytes], rest: bytes, *, is_login: bool = False) -> None:
        self._settled.clear()
        self._server.loop.call_soon_threadsafe(self._begin, who, frames, rest, is_login)
        if not self._settled.wait(HANG_S):
            self.findings[f"the loop stands still for {HANG_S:g} s"] += 1
            raise TimeoutError("the servers' loop stands still")

    # ------------------------------------------------------------------ on the servers' loop

    def _begin(self, who: str, frames: list[bytes], rest: bytes, is_login: bool) -> None:
        connection = self._kept.get(who)
        if connection is None or connection.shut:
            connection = self._opened("open" if who == "open" else "sasl")
            if is_login:
                self._kept[who] = connection
        self._connection = connection
        self._read = b""
        self._is_raw = any(each[:4] == b"\0\x11\0\0" for each in frames)
        self._asked = deque()
        self._is_feeding = True
        self._deadline = self._server.loop.time() + (LOGIN_S if is_login else PATIENCE_S)
        self._timer = self._server.loop.call_later(LOOK_S, self._look)
        for number, frame in enumerate(frames):
            if len(frame) >= 8 and not self._is_raw:
                frame = frame[:4] + _SIZE.pack(number) + frame[8:]
            self._asked.append(frame)
            self._give(connection, _SIZE.pack(len(frame)) + frame)
        if rest:
            self._give(connection, rest)
        self._is_feeding = False
        self.settle()

    def _opened(self, place: str) -> ServerConnection:
        server, port = self._server, self._ports[place]
        connection = server.connection_of(port)
        connection.peername = "127.0.0.1:1"
        connection.must_prove = port.has_sasl
        if port.has_sasl:
            server.acceptor.unauthenticated_of_host[connection.host] += 1
        connection.connection_made(_Transport(self, connection))
        return connection

    def _give(self, connection: ServerConnection, data: bytes) -> None:
        """What an event loop does with bytes that have come."""
        transport = connection.transport
        assert isinstance(transport, _Transport)
        began = time.thread_time()
        try:
            while data and not transport.is_paused and not transport.is_closing():
                room = connection.get_buffer(-1)
                count = min(len(room), len(data))
                room[:count] = data[:count]
                connection.buffer_updated(count)
                data = data[count:]
        except Exception as error:
            self.findings[f"the connection raises {told_of(error)}"] += 1
            connection.abort()
        spent = time.thread_time() - began
        self.slowest_cpu_s = max(self.slowest_cpu_s, spent)
        if spent > FRAME_CPU_S_MAX:
            self.findings[f"a frame of API {data[4:8].hex()} takes more than {FRAME_CPU_S_MAX:g} s"] += 1

    def wrote(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= 4:
            (size,) = _SIZE.unpack_from(self._read)
            if len(self._read) < 4 + size:
                break
            answer, self._read = self._read[4 : 4 + size], self._read[4 + size :]
            self._note(answer)
        self.settle()

    def _note(self, answer: bytes) -> None:
        if self._is_raw:
            self.outcomes["answered, to a token that is no request"] += 1
            return
        while self._asked:
            frame = self._asked.popleft()
            if frame[4:8] == answer[:4]:
                self._judge(frame, answer)
                return
            self.outcomes["no answer is due"] += 1  # to a Produce with acks=0
        if self._connection is not None and not self._connection.shut:
            self.findings["an answer to nothing"] += 1

    def _judge(self, frame: bytes, answer: bytes) -> None:
        key, version, _ = _HEAD.unpack_from(frame)
        if key == table.API_VERSIONS.key and version not in table.API_VERSIONS.versions:
            version = 0  # in which it tells those that are spoken
        try:
            self.outcomes.update(errors_of(decode_response(key, version, answer)))
        except Exception as error:
            self.findings[f"an answer of API {key} in version {version} that no client reads: {told_of(error)}"] += 1

    def settle(self) -> None:
        connection = self._connection
        if connection is None or self._is_feeding:
            return
        if connection.lost or connection.shut:
            self.outcomes["the connection is closed"] += 1
        elif connection.in_flight_requests:
            return
        elif connection not in self._kept.values():
            connection.abort()
        self._end()

    def _look(self) -> None:
        """Not every request has an answer that would say that it is done."""
        connection = self._connection
        self.settle()
        if connection is None or self._connection is not connection:
            return
        if self._server.loop.time() < self._deadline:
            self._timer = self._server.loop.call_later(LOOK_S, self._look)
            return
        self.outcomes["it waits"] += 1
        connection.abort()
        self._end()

    def _end(self) -> None:
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._settled.set()


def is_harmless(frame: bytes) -> bool:
    key = int.from_bytes(frame[:2], "big")
    if key not in _HARMLESS:
        return False
    if key not in _VALIDATED:
        return True
    try:
        header, position = decode_request_header(frame)
        body = decode_request_body(frame, header, position, ignore_rest=True)
    except ProtocolError:
        return True  # refused, whoever sends it
    return bool(getattr(body, "validate_only", False))


def told_of(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} [{str(error)[:90]}; {Path(last.filename).name}:{last.lineno}]"
