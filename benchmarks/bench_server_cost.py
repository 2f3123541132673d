"""What a gigabyte costs a server: CPU seconds of the leader (and of a follower) per GB of values, and that no record is decoded.

Every replica is a process of its own (``replica_processes``), so its CPU time is its own: Produce with acks=1 at RF 1,
Fetch of the same records, Produce with acks=all at RF 3. Records of 1 KB, uncompressed, in batches of up to 1 MiB; the
cost of a byte hardly depends on the size of the records: of each, a leader reads the lengths (``bench_record_checks``), and
otherwise servers look at batches only.

That they do is shown by a counter around the one class through which all decoding goes, read at the end of everything
above. The counter itself is put to the test afterwards: a lookup by timestamp has to decode, and has to move it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness import Benchmark, arguments, cpu_seconds
from producers import SETTINGS, RaylogProducer, random_values, written_bytes
from replica_processes import ReplicaProcesses, replica_processes

from raylog.client.sync import Consumer

SIZE = 1000
RECORDS = 500_000
SINGLE, REPLICATED = "single", "replicated"


def produce(producer: RaylogProducer) -> float:
    """Gigabytes of values."""
    producer.rate()
    return producer.count * SIZE / 1e9


def fetch(running: ReplicaProcesses, count: int) -> float:
    """Reads the last ``count`` records as Arrow tables; gives gigabytes of values."""
    with Consumer(running.address, max_partition_fetch_bytes=8 << 20) as consumer:
        consumer.assign([(SINGLE, 0)])
        end = consumer.end_offsets([(SINGLE, 0)])[(SINGLE, 0)]
        consumer.seek((SINGLE, 0), end - count)
        got = 0
        while got < count:
            got += consumer.poll_batch(timeout=30).num_rows
    return count * SIZE / 1e9


def lookup_by_time(running: ReplicaProcesses) -> None:
    with Consumer(running.address) as consumer:
        consumer.offsets_for_times({(SINGLE, 0): 1})


def main() -> int:
    quick = arguments().quick
    count = RECORDS // (20 if quick else 1)
    bench = Benchmark(
        "server_cost",
        "CPU time of servers per GB of 1 KB values",
        settings=SETTINGS | {"records": count, "record_bytes": SIZE},
        quick=quick,
    )
    with replica_processes(brokers=3) as running:
        running.create_topic(SINGLE, replication_factor=1)
        running.create_topic(REPLICATED, replication_factor=3)
        values = random_values(count, SIZE)
        single = RaylogProducer(running.address, SINGLE, values, "1")
        replicated = RaylogProducer(running.address, REPLICATED, values, "all")
        followers = running.pids  # one process per replica: these are left when the two leaders are taken out
        single_pid = followers.pop(running.leader(SINGLE))
        leader_pid = followers.pop(running.leader(REPLICATED))
        shares: list[float] = []

        def cost(work: Callable[[], float], pid: int) -> float:
            before = cpu_seconds(pid)
            gigabytes = work()
            return (cpu_seconds(pid) - before) / gigabytes

        def replicated_cost() -> float:
            before = cpu_seconds(*followers.values())
            own = cost(partial(produce, replicated), leader_pid)
            shares.append((cpu_seconds(*followers.values()) - before) / len(followers) / (count * SIZE / 1e9))
            return own

        unit = "CPU s/GB"
        once, thrice = written_bytes(count, SIZE), written_bytes(count, SIZE, 3)
        bench.alternate(
            "RF 1",
            {"produce, acks=1": lambda: cost(partial(produce, single), single_pid)},
            unit=unit,
            written_bytes=once,
        )
        bench.alternate("RF 1", {"fetch": lambda: cost(partial(fetch, running, count), single_pid)}, unit=unit)
        bench.alternate("RF 3", {"produce, acks=all: leader": replicated_cost}, unit=unit, written_bytes=thrice)
        bench.record("RF 3", "produce, acks=all: each follower", shares[1:], unit=unit)
        decoded = running.decoded_batches()
        lookup_by_time(running)
        assert running.decoded_batches() > decoded, "the counter does not count"
        single.close()
        replicated.close()
    bench.record("batches decoded by servers", "produce and fetch", [float(decoded)], unit="batches")
    bench.target("record batches decoded by servers for produce and fetch", decoded, at_most=0)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
