"""What the Broker between a Kafka client and a replica costs: the same client straight at the replica, and through the listener.

One replica as a process of its own, RF 1; a Broker (and the controller, idle) in another: the production servers on uvloop. Straight
means the replica's second door (``second_door``): the same handlers, no Broker. confluent-kafka produces with acks=1 and consumes,
under the settings of ``bench_listener.py``.

CPU seconds are those of both processes per GB of values: on the straight way the Broker's are nearly none.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection as Pipe

from consumers import ConfluentKafkaReader
from harness import Benchmark, arguments, cpu_seconds
from producers import SETTINGS, ConfluentKafka, megabytes_per_second, random_values, written_bytes
from replica_processes import replica_processes
from second_door import ReplicaServerWithSecondDoor

from raylog.actors.malloc_settings import keep_freed_memory

STRAIGHT, THROUGH = "straight at the replica", "through the Broker"
TOPICS = {100: "hundred-bytes", 1000: "kilobyte"}
RECORDS = {100: 2_000_000, 1000: 500_000}


def serve(port: Pipe) -> None:
    """The Broker's process, whose child the replica is. Sends where each topic is, either way, and the replica's process id."""
    keep_freed_memory()
    with replica_processes(1, ReplicaServerWithSecondDoor) as running:
        for topic in TOPICS.values():
            running.create_topic(topic, replication_factor=1)
        broker = running.bootstrap_servers()
        found = {}
        for topic in TOPICS.values():
            leader = running.leader(topic)
            found[topic] = (str(running.ask(leader, "second_door")), broker, running.pids[leader])
        port.send(found)
        with contextlib.suppress(EOFError):
            port.recv()  # until the script ends


@contextlib.contextmanager
def serving() -> Iterator[tuple[int, dict[str, tuple[str, str, int]]]]:
    """The Broker's process id, and what ``serve`` sends."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,))
    process.start()
    theirs.close()
    try:
        yield process.pid or 0, ours.recv()
    finally:
        ours.close()
        process.join(30)
        process.kill()


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "router_cost",
        "confluent-kafka straight at a replica and through the Broker, RF 1, acks=1",
        settings=SETTINGS | {"records": RECORDS},
        rounds=3,
        quick=quick,
    )

    def compare(name: str, size: int, count: int, pids: list[int], clients: dict[str, Callable[[], float]]) -> None:
        costs: dict[str, list[float]] = {way: [] for way in clients}

        def measured(way: str) -> float:
            used = cpu_seconds(*pids)
            rate = clients[way]()
            costs[way].append((cpu_seconds(*pids) - used) / (count * size / 1e9))
            return rate / 1e6 if size == 100 else megabytes_per_second(rate, size)

        contestants = {way: partial(measured, way) for way in clients}
        unit = "M records/s" if size == 100 else "MB/s"
        written = written_bytes(count, size) if name.startswith("produce") else 0
        bench.alternate(name, contestants, unit=unit, written_bytes=written)
        for way, values in costs.items():
            bench.record(f"{name}, servers' CPU", way, values[1:], unit="CPU s/GB")

    with serving() as (broker, found):
        for size, topic in TOPICS.items():
            count = RECORDS[size] // (20 if quick else 1)
            *places, replica = found[topic]
            ways = dict(zip((STRAIGHT, THROUGH), places, strict=True))
            values = random_values(count, size)
            producers = {way: ConfluentKafka(at, topic, values, "1") for way, at in ways.items()}
            compare(
                f"produce {size} B", size, count, [broker, replica], {way: each.rate for way, each in producers.items()}
            )
            readers = {way: ConfluentKafkaReader(at, topic, count) for way, at in ways.items()}
            compare(
                f"consume {size} B", size, count, [broker, replica], {way: each.rate for way, each in readers.items()}
            )
            for each in (*producers.values(), *readers.values()):
                each.close()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
