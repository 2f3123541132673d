"""``send_batch`` against confluent-kafka's ``produce`` loop, both into the same replica: which client is faster.

The server is the production ``ReplicaServer`` with its controller and broker in one process of its own
(``raylog.testing.in_process``), one partition, replication factor 1, acks=1. raylog's producer comes through the front
door: handshake, then Produce. librdkafka comes through a second one on the same loop (``second_door``): no byte is forwarded,
copied or encoded once more for the peer; its path is one handshake shorter than ours. Through raylog's listener for Kafka clients it
is slower than that (``bench_router_cost.py``).

Both send 1 MiB batches with linger 5 ms and wait until all is acknowledged.

At 1 KB a third contestant shows what the machine has room for: *copies alone*, two processes that do for each MiB what no client
and no server of this protocol can leave out (join the values, CRC-32C, loopback, CRC-32C again, write to the page cache), and nothing
else: no requests, no Python per record, one acknowledgement at the end. Nobody can be faster than that here.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe

import uvloop
from crc32c import crc32c
from harness import Benchmark, arguments, cpu_seconds
from producers import (
    BATCH_SIZE,
    SETTINGS,
    ConfluentKafka,
    RaylogProducer,
    megabytes_per_second,
    random_values,
    written_bytes,
)
from second_door import ReplicaServerWithSecondDoor

from raylog.client.admin.admin import NewTopic
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import AdminClient
from raylog.testing.in_process import cluster
from raylog.types import Endpoint

COPIES = "copies alone"
TOPICS = {100: "hundred-bytes", 1000: "kilobyte"}
RECORDS = {100: 2_000_000, 1000: 500_000}


def serve(port: Pipe) -> None:
    """The server process: a cluster of one broker and a topic per record size."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    with cluster(brokers=1) as running:
        running.launcher.build["replica"] = ReplicaServerWithSecondDoor
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic(topic, 1, 1) for topic in TOPICS.values()])
            while any(topic.partitions[0].leader < 0 for topic in admin.describe_topics().values()):
                time.sleep(0.02)
            leaders = {name: topic.partitions[0].leader_node for name, topic in admin.describe_topics().items()}
        doors = {topic: running.launcher.servers[node].second_door for topic, node in leaders.items()}
        port.send((running.address, doors))
        with contextlib.suppress(EOFError):
            port.recv()  # until the script ends


@contextlib.contextmanager
def serving() -> Iterator[tuple[int, ClusterAddress, dict[str, Endpoint]]]:
    """The server's process id, its address, and the second door of each topic."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process.pid or 0, *ours.recv()
    finally:
        ours.close()
        process.join(30)
        process.kill()


def copy_into_page_cache(port: Pipe) -> None:
    """The receiving process of ``CopiesAlone``: any number of bytes per connection, answered by one byte at their end."""
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryFile(buffering=0) as file:
        port.send(listener.getsockname())
        buffer = memoryview(bytearray(BATCH_SIZE))
        while True:
            connection, _ = listener.accept()
            os.ftruncate(file.fileno(), 0)
            position = 0
            with connection:
                while got := connection.recv_into(buffer, len(buffer), socket.MSG_WAITALL):
                    crc32c(buffer[:got])
                    os.pwrite(file.fileno(), buffer[:got], position)
                    position += got
                connection.sendall(b".")


class CopiesAlone:
    """What every client and server have to do at least, and nothing else."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values = values
        context = multiprocessing.get_context("spawn")
        self._port, theirs = context.Pipe()
        self._process = context.Process(target=copy_into_page_cache, args=(theirs,), daemon=True)
        self._process.start()
        self._address = self._port.recv()

    def rate(self) -> float:
        """Records per second."""
        values = self._values
        per_batch = BATCH_SIZE // len(values[0])
        start = time.perf_counter()
        with socket.create_connection(self._address) as connection:
            for first in range(0, len(values), per_batch):
                batch = b"".join(values[first : first + per_batch])
                crc32c(batch)
                connection.sendall(batch)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"."
        return len(values) / (time.perf_counter() - start)

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def compare(bench: Benchmark, pid: int, address: ClusterAddress, door: Endpoint, size: int, count: int) -> float:
    """The clients in turns with records of one size; gives the ratio of the medians of send_batch and confluent-kafka."""
    values = random_values(count, size)
    clients: dict[str, ConfluentKafka | RaylogProducer | CopiesAlone] = {
        "confluent-kafka": ConfluentKafka(str(door), TOPICS[size], values, "1"),
        "send_batch": RaylogProducer(address, TOPICS[size], values, "1"),
    }
    if size == 1000:
        clients[COPIES] = CopiesAlone(values)
    costs: dict[str, list[float]] = {name: [] for name in clients}

    def measured(name: str) -> float:
        used = cpu_seconds(pid)
        rate = clients[name].rate()
        costs[name].append((cpu_seconds(pid) - used) / (count * size / 1e9))
        return rate / 1e6 if size == 100 else megabytes_per_second(rate, size)

    contestants = {name: partial(measured, name) for name in clients}
    unit = "M records/s" if size == 100 else "MB/s"
    rates = bench.alternate(f"{size} B", contestants, unit=unit, written_bytes=written_bytes(count, size))
    for name, client in clients.items():
        client.close()
        if name != COPIES:
            bench.record(f"{size} B, server's CPU", name, costs[name][1:], unit="CPU s/GB")
    if size == 1000:
        copies = rates[COPIES].median
        bench.note(
            f"Copying alone (join, CRC, loopback, CRC, page cache) runs at {copies / rates['confluent-kafka'].median:.2f} times "
            f"confluent-kafka's rate on this machine: that bounds every client. send_batch reaches "
            f"{rates['send_batch'].median / copies:.0%} of it."
        )
    return rates["send_batch"].median / rates["confluent-kafka"].median


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "produce_send_batch",
        "send_batch against confluent-kafka's produce loop, same replica, RF 1, acks=1",
        settings=SETTINGS | {"records": RECORDS, "acks": 1, "replication.factor": 1},
        quick=quick,
    )
    with serving() as (pid, address, doors):
        for size, at_least in ((100, 1.0), (1000, 3.0)):
            count = RECORDS[size] // (20 if quick else 1)
            ratio = compare(bench, pid, address, doors[TOPICS[size]], size, count)
            bench.target(f"{size} B: times the rate of confluent-kafka", ratio, at_least=at_least)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
