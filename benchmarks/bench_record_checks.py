"""What it costs that a leader walks the records of every batch before it appends them: CPU time of produce with and without.

The replica is a process of its own (``replica_processes``). Its walk over the records is turned off and on again between the rounds,
so both figures come from the same process. Produce is all that one record takes: the CPU time of the client and of the leader, for
``send_batch`` with acks=1 at RF 1, uncompressed, in batches of up to 1 MiB. CPU time hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from harness import Benchmark, arguments, cpu_ns
from producers import SETTINGS, RaylogProducer, random_values, written_bytes
from replica_processes import ReplicaProcesses, replica_processes

from raylog.log import record_validation
from raylog.server.replica_server import ReplicaServer

RECORDS = {10: 4_000_000, 100: 2_000_000, 1000: 400_000}
JUDGED = (100, 1000)  # records of 10 B are there to show what the worst is like
WITH, WITHOUT = "records are checked", "records are not checked"
_record_faults = record_validation.record_faults


class SwitchedReplica(ReplicaServer):
    """``ReplicaProcesses.ask`` reads an attribute of it: these two turn the walk on and off."""

    @property
    def checks(self) -> bool:
        record_validation.record_faults = _record_faults
        return True

    @property
    def checks_nothing(self) -> bool:
        record_validation.record_faults = lambda *_, **__: None  # type: ignore[assignment]
        return True


def measured(bench: Benchmark, running: ReplicaProcesses, size: int, count: int) -> None:
    topic = f"records-of-{size}"
    running.create_topic(topic, replication_factor=1)
    leader = running.leader(topic)
    pids = {"produce": (running.pids[leader], os.getpid()), "the leader alone": (running.pids[leader],)}
    producer = RaylogProducer(running.address, topic, random_values(count, size), "1")
    spent: dict[str, dict[str, list[float]]] = {case: {WITH: [], WITHOUT: []} for case in pids}

    def cost(way: str) -> Callable[[], float]:
        def run() -> float:
            assert running.ask(leader, "checks" if way == WITH else "checks_nothing")
            before = {case: cpu_ns(*each) for case, each in pids.items()}
            producer.rate()
            for case, each in pids.items():
                spent[case][way].append((cpu_ns(*each) - before[case]) / count)
            return spent["produce"][way][-1]

        return run

    case = f"{size} B"
    found = bench.alternate(
        case,
        {way: cost(way) for way in (WITH, WITHOUT)},
        unit="CPU ns/record",
        written_bytes=written_bytes(count, size),
    )
    for way, values in spent["the leader alone"].items():
        bench.record(f"{case}, the leader alone", way, values[1:], unit="CPU ns/record")
    if size in JUDGED:
        bench.target(
            f"{case}: CPU time of produce with checks, times that without",
            found[WITH].median / found[WITHOUT].median,
            at_most=1.03,
        )
    producer.close()


def main() -> int:
    quick = arguments().quick
    bench = Benchmark(
        "record_checks",
        "CPU time of produce with and without a look at each record",
        settings=SETTINGS | {"records": RECORDS},
        quick=quick,
    )
    with replica_processes(brokers=1, replica=SwitchedReplica) as running:
        for size, count in RECORDS.items():
            measured(bench, running, size, count // (20 if quick else 1))
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
