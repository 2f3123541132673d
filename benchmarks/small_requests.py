"""Small requests of many Kafka clients from one process that needs little CPU itself: for measuring a broker's price per request.

Each client is a connection of ``plain_kafka``, to the broker that Metadata names as leader of its partition (client n: partition n, modulo
their number). The kinds:

- ``produce``: a record per request, so many requests in flight on each connection, the next one sent as soon as one is answered.
- ``fetch``: one record per reply, from the partition's start to its end and again; the next request when one is answered.
- ``clients``: half of the clients send a record each at a steady rate, at moments of their own; the other half wait for what comes, each at
  the end of one partition. Latency: from the write of a request to its acknowledgement.

An acknowledged offset that does not rise, a fetched record that is not the one asked for, a closed connection: the load says so and the
benchmark fails. What is refused (a leader moved between a broker's processes) is counted,
and asked again except by ``clients``' producers.

Run as ``python small_requests.py FD``: a pipe to the script that started it.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection as PipeEnd
from typing import Any, Literal, cast

import plain_kafka
import uvloop
from plain_kafka import FETCHED, PRODUCED, SIZE, FetchFrame

Kind = Literal["produce", "fetch", "clients"]
ONE_RECORD = 1  # as a fetch's limit of bytes: the first batch comes all the same
ALL_RECORDS = 1_048_576


@dataclass(frozen=True, slots=True)
class Wanted:
    """A load. ``in_flight`` is of producers, ``per_second`` of all ``clients`` together."""

    bootstrap: str
    topic: str
    kind: Kind
    connections: int
    in_flight: int = 1
    per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What there was since the load began: when it was looked at, CPU time of the load, answered requests,
    refused ones by error code, replies with records.

    ``latencies_s``: of acknowledgements since the last look, of ``clients`` only.
    """

    at: float
    cpu_s: float
    answered: int
    refused: dict[int, int]
    read: int
    latencies_s: array[float]


# ------------------------------------------------------------------ in the load's process


@dataclass(slots=True)
class _Tally:
    answered: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    read: int = 0
    failure: str = ""
    latencies_s: array[float] = field(default_factory=lambda: array("d"))


class _Client(asyncio.Protocol):
    """Takes replies out of the stream; ``answered`` gives what to write next."""

    transport: asyncio.Transport

    def __init__(self, tally: _Tally) -> None:
        self.tally = tally
        self.over = False
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over:
            self.tally.failure = f"a connection was closed: {error!r}"

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position = 0
        wanted = []
        while len(data) - position >= SIZE.size:
            start = position + SIZE.size
            end = start + SIZE.unpack_from(data, position)[0]
            if end > len(data):
                break
            wanted.append(self.answered(data[start:end]))
            position = end
        self._rest = data[position:]
        if wanted and not self.over:
            self.transport.write(b"".join(wanted))

    def answered(self, reply: bytes) -> bytes:
        """Takes a reply; gives the next request, or nothing."""
        raise NotImplementedError

    def begin(self) -> None:
        """Sends the first requests."""
        raise NotImplementedError

    def stop(self) -> None:
        self.over = True
        self.transport.abort()


class _Producer(_Client):
    def __init__(self, tally: _Tally, wanted: Wanted, partition: int) -> None:
        super().__init__(tally)
        self._frame = plain_kafka.produce_frame(wanted.topic, partition, acks=1)
        self._at = plain_kafka.produced_at(wanted.topic)
        self._in_flight = wanted.in_flight
        self._last_offset = -1

    def begin(self) -> None:
        self.transport.write(self._frame * self._in_flight)

    def answered(self, reply: bytes) -> bytes:
        error, offset = PRODUCED.unpack_from(reply, self._at)
        if error:
            self.tally.refused[error] += 1
        else:
            self.tally.answered += 1
            if offset <= self._last_offset:
                self.tally.failure = f"offset {offset} acknowledged after {self._last_offset}"
            self._last_offset = offset
        return self._frame


class _PacedProducer(_Producer):
    """Sends when it is told to."""

    def __init__(self, tally: _Tally, wanted: Wanted, partition: int) -> None:
        super().__init__(tally, wanted, partition)
        self._sent: deque[float] = deque()

    def begin(self) -> None:
        """Nothing yet."""

    def send(self) -> None:
        self._sent.append(time.perf_counter())
        self.transport.write(self._frame)

    def answered(self, reply: bytes) -> bytes:
        acked = self.tally.answered
        super().answered(reply)
        taken_s = time.perf_counter() - self._sent.popleft()
        if self.tally.answered > acked:
            self.tally.latencies_s.append(taken_s)
        return b""


class _Consumer(_Client):
    """From the start to the end and again."""

    def __init__(self, tally: _Tally, wanted: Wanted, partition: int, limit: int = ONE_RECORD) -> None:
        super().__init__(tally)
        self._frame = FetchFrame(wanted.topic, partition, partition_max_bytes=limit)
        self._at = plain_kafka.fetched_at(wanted.topic)
        self._offset = 0

    def begin(self) -> None:
        self.transport.write(self._frame.at(self._offset))

    def answered(self, reply: bytes) -> bytes:
        error, high_watermark = FETCHED.unpack_from(reply, self._at)
        if error:
            self.tally.refused[error] += 1
        else:
            self.tally.answered += 1
            first = plain_kafka.first_offset(reply, self._at)
            if first is not None:
                self.tally.read += 1
                if first != self._offset:
                    self.tally.failure = f"offset {self._offset} asked for, {first} came"
            self._offset = self._next(high_watermark, came=first is not None)
        return self._frame.at(self._offset)

    def _next(self, high_watermark: int, *, came: bool) -> int:
        if not came:
            self.tally.failure = f"nothing at offset {self._offset}, below the high watermark {high_watermark}"
        return (self._offset + 1) % high_watermark


class _WaitingConsumer(_Consumer):
    """Stays at the end."""

    def __init__(self, tally: _Tally, wanted: Wanted, partition: int) -> None:
        super().__init__(tally, wanted, partition, ALL_RECORDS)

    def _next(self, high_watermark: int, *, came: bool) -> int:
        return high_watermark if came else self._offset


class _Load:
    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self.tally = _Tally()
        self.clients: list[_Client] = []
        self._pacing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        wanted = self._wanted
        loop = asyncio.get_running_loop()
        leaders = plain_kafka.leaders(wanted.bootstrap, wanted.topic)
        for number in range(wanted.connections):
            pair, member = divmod(number, 2) if wanted.kind == "clients" else (number, 0)
            partition = pair % len(leaders)
            connection = plain_kafka.connect(leaders[partition])
            connection.setblocking(False)
            client = self._client(member, partition)
            await loop.create_connection(lambda client=client: client, sock=connection)  # type: ignore[misc]
            self.clients.append(client)
        for client in self.clients:
            client.begin()
        paced = [each for each in self.clients if isinstance(each, _PacedProducer)]
        if paced:
            self._pacing = loop.create_task(self._pace(paced))

    def _client(self, member: int, partition: int) -> _Client:
        match self._wanted.kind:
            case "produce":
                return _Producer(self.tally, self._wanted, partition)
            case "fetch":
                return _Consumer(self.tally, self._wanted, partition)
            case "clients":
                kind = _WaitingConsumer if member else _PacedProducer
                return kind(self.tally, self._wanted, partition)

    async def _pace(self, producers: list[_PacedProducer]) -> None:
        """Each producer once per period, always at the same moment of it, which is a random one."""
        period_s = len(producers) / self._wanted.per_second
        dice = random.Random(1)
        moments = sorted(dice.random() * period_s for _ in producers)
        dice.shuffle(producers)
        start = time.perf_counter()
        while True:
            for moment, producer in zip(moments, producers, strict=True):
                left = start + moment - time.perf_counter()
                if left > 0:
                    await asyncio.sleep(left)
                producer.send()
            start += period_s

    def look(self) -> Looked:
        tally = self.tally
        latencies, tally.latencies_s = tally.latencies_s, array("d")
        assert not tally.failure, tally.failure
        if self._pacing is not None and self._pacing.done():
            self._pacing.result()
        now, cpu_s = time.perf_counter(), time.process_time()
        return Looked(now, cpu_s, tally.answered, dict(tally.refused), tally.read, latencies)

    def stop(self) -> None:
        if self._pacing is not None:
            self._pacing.cancel()
        for client in self.clients:
            client.stop()


async def _serve(pipe: PipeEnd) -> None:
    load = _Load(pipe.recv())
    await load.begin()
    pipe.send(None)
    over = asyncio.Event()

    def asked() -> None:
        try:
            pipe.recv()
            pipe.send(load.look())
        except EOFError:
            over.set()
        except AssertionError as failure:
            pipe.send(str(failure))

    asyncio.get_running_loop().add_reader(pipe.fileno(), asked)
    await over.wait()
    load.stop()


def main() -> None:
    uvloop.run(_serve(PipeEnd(int(sys.argv[1]))))


# ------------------------------------------------------------------ in the script's process


class SmallRequests:
    """A running load, until the end of ``with``."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def __enter__(self) -> SmallRequests:
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self._ask(self._wanted)
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.wait()

    def _ask(self, what: Any) -> Any:
        self._pipe.send(what)
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise AssertionError(answer)
        return answer

    def look(self) -> Looked:
        found: Looked = self._ask("look")
        return found


if __name__ == "__main__":
    import small_requests

    small_requests.main()  # not this one's: what comes over the pipe is of that module
