"""What it costs that a leader checks the CRC of every batch that a consumer reads: its CPU time with and without.

The replica is a process of its own (``replica_processes``). Its check of what a read returns is turned off and on again between the rounds,
so both figures come from the same process and the same bytes, which are in the page cache. The records are read by raylog's own
consumer as Arrow tables, straight from the leader, and by confluent-kafka's ``consume`` loop through a Broker (which runs in the
script's process here). CPU time hardly depends on what else the machine does; rates stand below.

What followers fetch right behind the leader's appends comes from memory, not from the file, and is not checked here: a follower checks
what it receives.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from consumers import ConfluentKafkaReader
from harness import Benchmark, arguments, cpu_ns
from producers import SETTINGS, RaylogProducer, megabytes_per_second, random_values
from replica_processes import ReplicaProcesses, replica_processes

from raylog.client.sync import Consumer
from raylog.log import segment
from raylog.records.batch import LOG_OVERHEAD
from raylog.server.replica_server import ReplicaServer

RECORDS = {100: 2_000_000, 1000: 400_000}
ADDED_MAX = 0.1  # CPU s/GB: CRC-32C at 10 GB/s
WITH, WITHOUT = "batches are checked", "batches are not checked"
_LENGTH = struct.Struct(">i")
_whole_batches = segment.whole_batches


def _unchecked(buffer: bytes | bytearray, start: int, end: int) -> tuple[int, int]:
    """As ``whole_batches`` says it where nothing is damaged."""
    position = last = start
    while position < end:
        last = position
        position += _LENGTH.unpack_from(buffer, position + 8)[0] + LOG_OVERHEAD
    return position, last


class SwitchedReplica(ReplicaServer):
    """``ReplicaProcesses.ask`` reads an attribute of it: these two turn the check on and off."""

    @property
    def checks(self) -> bool:
        segment.whole_batches = _whole_batches
        return True

    @property
    def checks_nothing(self) -> bool:
        segment.whole_batches = _unchecked
        return True


def native(running: ReplicaProcesses, topic: str, count: int) -> Callable[[], float]:
    """Records per second of raylog's consumer."""

    def rate() -> float:
        with Consumer(running.address) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 0)
            start, got = time.perf_counter(), 0
            while got < count:
                got += consumer.poll_batch(timeout=30).num_rows
            return count / (time.perf_counter() - start)

    return rate


def measured(bench: Benchmark, running: ReplicaProcesses, size: int, count: int) -> None:
    topic = f"records-of-{size}"
    running.create_topic(topic, replication_factor=1)
    leader = running.leader(topic)
    producer = RaylogProducer(running.address, topic, random_values(count, size), "1")
    producer.rate()
    producer.close()
    confluent = ConfluentKafkaReader(running.bootstrap_servers(), topic, count)
    readers = {"raylog's consumer": native(running, topic, count), "confluent-kafka": confluent.rate}
    for client, reader in readers.items():
        rates: dict[str, list[float]] = {WITH: [], WITHOUT: []}

        def cost(way: str, reader: Callable[[], float] = reader, rates: dict[str, list[float]] = rates) -> float:
            assert running.ask(leader, "checks" if way == WITH else "checks_nothing")
            before = cpu_ns(running.pids[leader])
            rates[way].append(megabytes_per_second(reader(), size))
            return (cpu_ns(running.pids[leader]) - before) / (count * size)

        case = f"{size} B, {client}"
        ways = {way: lambda way=way: cost(way) for way in (WITHOUT, WITH)}
        found = bench.alternate(f"{case}: the leader's CPU time", ways, unit="CPU s/GB")
        for way, values in rates.items():
            bench.record(f"{case}: rate", way, values[1:], unit="MB/s")
        added = found[WITH].median - found[WITHOUT].median
        bench.target(f"{case}: CPU time that checks add to a leader, s/GB", added, at_most=ADDED_MAX)
    confluent.close()


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "checked_reads",
        "CPU time of a leader per GB of values read, with and without a check of each batch's CRC",
        settings=SETTINGS | {"records": RECORDS},
        rounds=7,
        quick=quick,
    )
    with replica_processes(brokers=1, replica=SwitchedReplica) as running:
        for size, count in RECORDS.items():
            measured(bench, running, size, count // (20 if quick else 1))
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
