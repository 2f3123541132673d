"""A load that costs servers much and its sender little: small Produce requests that are encoded once and sent over and over.

One process, one connection for each partition, ``WINDOW`` requests in flight on each. Nothing is encoded and hardly anything decoded: of
a reply the sender looks at error and offset, which stand at fixed places. So one core of senders keeps several cores of servers busy, and
what is measured is the servers.

Where a leader moves, the partition is asked about anew and its requests go to the new leader; those without an answer
count for nothing. Offsets that are acknowledged have to rise: an acknowledged record that was lost would free its offset for another one.

Run as ``python saturating_load.py FD``: a pipe to the script that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection as PipeEnd
from typing import Any

import uvloop

from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import call
from raylog.errors import DisconnectedError, RaylogError
from raylog.records.codec import encode_values
from raylog.types import Endpoint, TopicPartition
from raylog.wire.connection import Connection
from raylog.wire.frames import client_id_field, encode_request
from raylog.wire.handshake import ClientHandshake
from raylog.wire.private import ClusterStatusRequest

WINDOW = 64
RECORD_BYTES = 100
RETRY_S = 0.005
OUTCOME = struct.Struct(">hq")  # error and base offset, in a Produce reply of one partition


@dataclass(slots=True)
class Sent:
    """What became of one partition's records. ``longest_pause_s``: between two acknowledgements."""

    acked: int = 0
    last_offset: int = -1
    disordered: int = 0
    refused: int = 0
    unanswered: int = 0
    longest_pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wanted:
    address: ClusterAddress
    topic: str
    partitions: int


# ------------------------------------------------------------------ in the load's process


class _Line(Connection):
    """A connection to a leader that counts replies."""

    def __init__(self, endpoint: Endpoint, load: _PartitionLoad) -> None:
        super().__init__(endpoint, "load")
        self._load = load
        self.ready = False

    def frame_received(self, frame: memoryview) -> None:
        if self.ready:
            self._load.answered(self, frame)
        else:
            super().frame_received(frame)

    def closed(self, reason: Exception | None) -> None:
        super().closed(reason)
        if self.ready:
            self._load.lost(self)


class _PartitionLoad:
    def __init__(self, wanted: Wanted, partition: int) -> None:
        self._wanted = wanted
        self._partition = partition
        self._at = 4 + 1 + 1 + 1 + len(wanted.topic) + 1 + 4  # correlation id, tags, topics, name, partitions, index
        batch = encode_values([b"." * RECORD_BYTES], timestamp_ms=int(time.time() * 1000))
        request = requests.produce({TopicPartition(wanted.topic, partition): batch}, acks=1, timeout_ms=30_000)
        frame = b"".join(bytes(part) for part in encode_request(request, 1, client_id_field("load")))
        self._half = frame * (WINDOW // 2)
        self._line: _Line | None = None
        self._unanswered = self._since_send = 0
        self._last_at = 0.0
        self.sent = Sent()

    async def connect(self) -> None:
        """Find the leader and begin to send; again and again until it serves."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(RaylogError, OSError):
                endpoint = await loop.run_in_executor(None, self._leader)
                line = _Line(endpoint, self)
                await line.connect()
                await line.shake_hands(ClientHandshake(self._wanted.address.secret, self._wanted.address.cluster_id))
                break
            await asyncio.sleep(RETRY_S)
        line.ready = True
        self._line = line
        self._since_send = 0
        self._unanswered = WINDOW
        line.transport.write(self._half * 2)  # type: ignore[union-attr]

    def _leader(self) -> Endpoint:
        status = call(self._wanted.address, ClusterStatusRequest()).status
        (topic,) = (each for each in status["topics"] if each["name"] == self._wanted.topic)
        leader = topic["partitions"][self._partition]["leader_node"]
        for actor in status["actors"]:
            if actor["node_id"] == leader and actor["endpoint"]:
                host, _, port = actor["endpoint"].rpartition(":")
                return Endpoint(host, int(port))
        raise DisconnectedError(f"partition {self._partition} has no leader now")

    def answered(self, line: _Line, frame: memoryview) -> None:
        if line is not self._line:
            return
        error, offset = OUTCOME.unpack_from(frame, self._at)
        sent = self.sent
        self._unanswered -= 1
        if error:
            sent.refused += 1
            self.lost(line)
            line.abort()
            return
        sent.acked += 1
        if offset <= sent.last_offset:
            sent.disordered += 1
        sent.last_offset = offset
        self._since_send += 1
        if self._since_send == WINDOW // 2:
            self._since_send = 0
            self._unanswered += WINDOW // 2
            now = time.perf_counter()
            if self._last_at:
                sent.longest_pause_s = max(sent.longest_pause_s, now - self._last_at)
            self._last_at = now
            line.transport.write(self._half)  # type: ignore[union-attr]

    def lost(self, line: _Line) -> None:
        """That leader is none any more: find the next one."""
        if line is self._line:
            self._line = None
            self.sent.unanswered += self._unanswered
            asyncio.get_running_loop().create_task(self.connect())

    def stop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self.sent.unanswered += self._unanswered
            line.abort()


async def _serve(pipe: PipeEnd) -> None:
    loop = asyncio.get_running_loop()
    wanted: Wanted = pipe.recv()
    loads = [_PartitionLoad(wanted, partition) for partition in range(wanted.partitions)]
    await asyncio.gather(*(each.connect() for each in loads))
    pipe.send(None)
    over = asyncio.Event()

    def asked() -> None:
        try:
            what = pipe.recv()
        except EOFError:
            over.set()
            return
        if what == "stop":
            for load in loads:
                load.stop()
        elif what == "forget pauses":
            for load in loads:
                load.sent.longest_pause_s = 0.0
        pipe.send((time.perf_counter(), time.process_time(), [load.sent for load in loads]))

    loop.add_reader(pipe.fileno(), asked)
    await over.wait()


def main() -> None:
    uvloop.run(_serve(PipeEnd(int(sys.argv[1]))))


# ------------------------------------------------------------------ in the script's process


@dataclass(frozen=True, slots=True)
class Looked:
    """When, what CPU time the load had used, and what became of the records of each partition."""

    at: float
    cpu_s: float
    partitions: list[Sent]

    @property
    def acked(self) -> int:
        return sum(each.acked for each in self.partitions)


class SaturatingLoad:
    """A running load, until the end of ``with``."""

    def __init__(self, address: ClusterAddress, topic: str, partitions: int) -> None:
        self._wanted = Wanted(address, topic, partitions)

    def __enter__(self) -> SaturatingLoad:
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self._ask(self._wanted)
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, what: Any) -> Any:
        self._pipe.send(what)
        return self._pipe.recv()

    def look(self) -> Looked:
        return Looked(*self._ask("look"))

    def forget_pauses(self) -> None:
        self._ask("forget pauses")

    def stop(self) -> Looked:
        """Send nothing more; the last look."""
        return Looked(*self._ask("stop"))


if __name__ == "__main__":
    import saturating_load

    saturating_load.main()  # not this one's: what comes over the pipe is of that module
