"""Frames over loopback with nothing behind them: the ceiling for produce, fetch and every other request.

A server in a process of its own answers Produce at once. The client sends 1 MB, 100 KB and 100-byte requests; then
single requests, one at a time. The bare loop is a uvloop echo of the same 100 bytes between two processes: what the
machine itself takes for a round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop
from harness import Benchmark, cpu_seconds
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9 import response as produce_response
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.request import Request
from raylog.wire.server import Server

SECRET, CLUSTER = "bench", "bench"
PAYLOAD_BYTES = 1_000_000_000
ROUND_TRIPS = 5000

REPLY = produce_response.ProduceResponse(
    responses=(
        produce_response.TopicProduceResponse(
            name="flights",
            partition_responses=(
                produce_response.PartitionProduceResponse(
                    index=0,
                    error_code=ErrorCode.none,
                    base_offset=0,
                    log_append_time=None,
                    log_start_offset=0,
                    record_errors=(),
                    error_message=None,
                ),
            ),
        ),
    ),
    throttle_time=datetime.timedelta(0),
)


def produce(size: int) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=memoryview(bytes(size)))  # type: ignore[arg-type]
    topic = TopicProduceData(name="flights", partition_data=(partition,))  # type: ignore[arg-type]
    return ProduceRequest(acks=1, timeout=datetime.timedelta(seconds=30), topic_data=(topic,))  # type: ignore[arg-type]


def serve_frames(port: Pipe) -> None:
    def answer(request: Request) -> None:
        request.reply(REPLY)

    async def main() -> None:
        server = Server({0: answer}, secret=SECRET, cluster_id=CLUSTER)
        port.send((await server.start()).port)
        await asyncio.Event().wait()

    uvloop.run(main())


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def serve_echo(port: Pipe) -> None:
    async def main() -> None:
        listener = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
        port.send(listener.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    uvloop.run(main())


@contextlib.contextmanager
def serving(target: Callable[[Pipe], None]) -> Iterator[tuple[int, int]]:
    """A server process: its port and pid."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv(), process.pid or 0
    finally:
        process.kill()
        process.join()


async def connect(port: int) -> Connection:
    return await Connection.open(Endpoint("127.0.0.1", port), secret=SECRET, cluster_id=CLUSTER)


async def move(port: int, size: int, count: int, window: int) -> float:
    """Seconds for ``count`` requests of ``size`` bytes, ``window`` of them in flight."""
    connection = await connect(port)
    request = produce(size)
    finished = asyncio.get_running_loop().create_future()
    sent = answered = 0

    def on_reply(reply: Any, error: Exception | None) -> None:
        nonlocal sent, answered
        assert error is None, error
        answered += 1
        if sent < count:
            sent += 1
            connection.call(request, on_reply)
        elif answered == count:
            finished.set_result(None)

    start = time.perf_counter()
    for _ in range(min(window, count)):
        sent += 1
        connection.call(request, on_reply)
    await finished
    took = time.perf_counter() - start
    connection.close()
    return took


async def frame_round_trip_us(port: int) -> float:
    connection = await connect(port)
    request = produce(100)
    taken = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        await connection.request(request)
        taken.append(time.perf_counter() - start)
    connection.close()
    return statistics.median(taken) * 1e6


async def bare_round_trip_us(port: int) -> float:
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    taken: list[float] = []

    class Ping(Echo):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.ping()

        def ping(self) -> None:
            self.start = time.perf_counter()
            self.transport.write(bytes(100))

        def data_received(self, data: bytes) -> None:
            taken.append(time.perf_counter() - self.start)
            if len(taken) < ROUND_TRIPS:
                self.ping()
            else:
                finished.set_result(None)

    transport, _ = await loop.create_connection(Ping, "127.0.0.1", port)
    await finished
    transport.close()
    return statistics.median(taken) * 1e6


async def same_loop_round_trip_us() -> float:
    def answer(request: Request) -> None:
        request.reply(REPLY)

    server = Server({0: answer}, secret=SECRET, cluster_id=CLUSTER)
    taken = await frame_round_trip_us((await server.start()).port)
    await server.stop()
    return taken


def main() -> int:
    bench = Benchmark("wire", "Produce frames over loopback, answered at once", settings={"loop": "uvloop"})
    with serving(serve_frames) as (port, pid), serving(serve_echo) as (echo_port, _):
        costs: list[float] = []

        def megabytes_per_second(size: int, window: int) -> float:
            count = PAYLOAD_BYTES // size if size >= 100_000 else 100_000
            used = cpu_seconds(pid)
            took = uvloop.run(move(port, size, count, window))
            if size == 1_000_000:
                costs.append((cpu_seconds(pid) - used) / (size * count / 1e9))
            return size * count / took / 1e6

        large = bench.alternate(
            "throughput",
            {
                "1 MB, 5 in flight": lambda: megabytes_per_second(1_000_000, 5),
                "100 KB, 20 in flight": lambda: megabytes_per_second(100_000, 20),
            },
            unit="MB/s",
        )
        bench.record("server's CPU", "1 MB", costs, unit="CPU s/GB")
        bench.alternate(
            "small requests", {"100 B, 100 in flight": lambda: megabytes_per_second(100, 100) * 1e4}, unit="requests/s"
        )
        trips = bench.alternate(
            "round trip, median",
            {
                "frames, one loop": lambda: uvloop.run(same_loop_round_trip_us()),
                "frames, two processes": lambda: uvloop.run(frame_round_trip_us(port)),
                "bare echo, two processes": lambda: uvloop.run(bare_round_trip_us(echo_port)),
            },
            unit="µs",
        )
    bench.target("1 MB frames, MB/s", large["1 MB, 5 in flight"].median, at_least=1000)
    bench.target("small round trip on one loop, µs", trips["frames, one loop"].median, at_most=60)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
