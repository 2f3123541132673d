"""What a thousand partitions cost, and what servers cost that have nothing to do.

- *1,000 partitions, RF 1, one broker*: from ``create_topics`` to the acknowledgement of one record in each partition by a producer that
  was warm before, beside Apache Kafka; and what raylog's processes weigh and do more than before when all is quiet again.
- *1,000 partitions, RF 3, three brokers*: memory and CPU of all of raylog's processes when all is quiet again, beside as many Ray actors
  whose class does nothing.
- *No topics, three brokers*: processes, memory and CPU; beside the same number of Ray actors on the same Ray whose class does nothing,
  over the same time. What those cost is Ray's, and nothing that raylog does can save it.

CPU is the time that the processes' threads ran on a core, from ``schedstat``, as a share of one core. Memory is the proportional share
(PSS). Ray's own processes (raylet, GCS, dashboard agents) are nobody's here: Ray runs them without raylog, too.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

import ray
from apache_kafka import LATEST, VERSION, ApacheKafka
from embedded import EmbeddedCluster
from harness import Benchmark, arguments, cpu_ns, pss_bytes

RAYLOG = "raylog"
KAFKA = f"Apache Kafka {LATEST}"
EARLIER_KAFKA = f"Apache Kafka {VERSION}"
BARE = "Ray actors that do nothing"
NO_TOPICS = "three brokers, no topics"
PARTITIONS = 1_000
WARMING_TOPICS = 10
QUIET_S = 15.0  # before anything is counted: replicas have caught up, files are flushed
WINDOW_S = 20.0
WITHIN_S = 600.0
VALUE = bytes(100)


def create_and_write(bootstrap: str, topic: str, partitions: int, replication_factor: int) -> float:
    """Seconds until each partition of a new topic has acknowledged a record."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.timeout.ms": int(WITHIN_S * 1_000)})
    producer.list_topics(timeout=30)  # connects
    start = time.perf_counter()
    new = NewTopic(topic, partitions, replication_factor)
    admin.create_topics([new], operation_timeout=WITHIN_S, request_timeout=WITHIN_S)[topic].result()
    write_one_record_each(producer, topic, partitions)
    return time.perf_counter() - start


def write_one_record_each(producer: Any, topic: str, partitions: int) -> None:
    """Until each partition has acknowledged its record."""
    errors: list[object] = []
    for partition in range(partitions):
        producer.produce(topic, VALUE, partition=partition, on_delivery=lambda error, _: errors.append(error))
    waiting = producer.flush(WITHIN_S)
    assert not waiting and errors == [None] * partitions, f"{waiting} records wait, {set(map(str, errors))}"


def megabytes(pids: Sequence[int]) -> float:
    return sum(pss_bytes(pid) for pid in pids) / 1e6


def percent_of_a_core(groups: Sequence[Sequence[int]], windows: int) -> list[list[float]]:
    """For each group of processes its share of a core in each of so many windows, all over the same time."""
    found: list[list[float]] = [[] for _ in groups]
    for _ in range(windows):
        before, start = [cpu_ns(*pids) for pids in groups], time.perf_counter_ns()
        time.sleep(WINDOW_S)
        took = time.perf_counter_ns() - start
        for values, pids, used in zip(found, groups, before, strict=True):
            values.append(100 * (cpu_ns(*pids) - used) / took)
    return found


def bare_actors(count: int) -> list[Any]:
    """So many Ray actors of an empty class with an asyncio loop, started like raylog's servers."""

    class Bare:
        async def pid(self) -> int:
            import os

            return os.getpid()

    made: Any = ray.remote(Bare)
    options: dict[str, Any] = {"num_cpus": 0, "runtime_env": {"env_vars": {"RAY_worker_niceness": "0"}}}
    return [made.options(**options).remote() for _ in range(count)]


def no_topics(bench: Benchmark, running: EmbeddedCluster) -> None:
    servers = running.processes()
    bare = bare_actors(len(servers))
    bare_pids = ray.get([each.pid.remote() for each in bare])
    time.sleep(QUIET_S)
    case = NO_TOPICS
    bench.record(f"{case}: processes", RAYLOG, [len(servers)], unit="processes", kinds=sorted(servers.values()))
    groups = {RAYLOG: list(servers), BARE: bare_pids}
    for name, pids in groups.items():
        bench.record(f"{case}: memory (PSS)", name, [megabytes(pids)], unit="MB")
    shares = percent_of_a_core(list(groups.values()), bench.rounds)
    for name, values in zip(groups, shares, strict=True):
        bench.record(f"{case}: CPU, idle", name, values, unit="% of a core", load=os.getloadavg()[0])
    for each in bare:
        ray.kill(each)


def replicated(bench: Benchmark, running: EmbeddedCluster, partitions: int) -> None:
    took = create_and_write(running.cluster.bootstrap_servers(), "replicated", partitions, 3)
    bench.record(
        f"{partitions:,} partitions, RF 3: created and written", RAYLOG, [took], unit="s", load=os.getloadavg()[0]
    )
    time.sleep(QUIET_S)
    servers = list(running.processes())
    case = f"{partitions:,} partitions, RF 3, three brokers, idle"
    bench.record(f"{case}: memory (PSS)", RAYLOG, [megabytes(servers)], unit="MB", processes=len(servers))
    bare = bare_actors(len(servers))
    bare_pids = ray.get([each.pid.remote() for each in bare])
    time.sleep(QUIET_S)
    shares = percent_of_a_core([servers, bare_pids], bench.rounds)
    for name, values in zip((RAYLOG, BARE), shares, strict=True):
        bench.record(f"{case}: CPU", name, values, unit="% of a core", load=os.getloadavg()[0])
    for each in bare:
        ray.kill(each)


def single(bench: Benchmark, partitions: int) -> None:
    case = f"{partitions:,} partitions, RF 1"
    with EmbeddedCluster(1) as running:
        bootstrap = running.cluster.bootstrap_servers()
        for number in range(WARMING_TOPICS):
            create_and_write(bootstrap, f"warming-{number}", 1, 1)
        time.sleep(QUIET_S)
        before = list(running.processes())
        memory = megabytes(before)
        (shares,) = percent_of_a_core([before], bench.rounds)
        bench.record(f"{case}: CPU before, idle", RAYLOG, shares, unit="% of a core")
        took = {RAYLOG: create_and_write(bootstrap, "single", partitions, 1)}
        time.sleep(QUIET_S)
        after = list(running.processes())
        bench.record(f"{case}: memory added (PSS)", RAYLOG, [megabytes(after) - memory], unit="MB")
        (shares,) = percent_of_a_core([after], bench.rounds)
        bench.record(f"{case}: CPU after, idle", RAYLOG, shares, unit="% of a core")
    for side, version in ((KAFKA, LATEST), (EARLIER_KAFKA, VERSION)):
        with ApacheKafka(1, version=version) as kafka:
            for number in range(WARMING_TOPICS):
                create_and_write(kafka.bootstrap, f"warming-{number}", 1, 1)
            took[side] = create_and_write(kafka.bootstrap, "single", partitions, 1)
    for side, each in took.items():
        bench.record(f"{case}: created and written", side, [each], unit="s")


def judge(bench: Benchmark, partitions: int) -> None:
    """All claims, on figures of this run and of those that it left as they were."""
    cases = bench.cases

    def median(case: str, side: str = RAYLOG) -> float:
        return cases[case][side].median

    if f"{NO_TOPICS}: CPU, idle" in cases:
        beyond = median(f"{NO_TOPICS}: CPU, idle") - median(f"{NO_TOPICS}: CPU, idle", BARE)
        what = "CPU beyond that of as many Ray actors that do nothing, % of a core"
        bench.target(f"{NO_TOPICS}: {what}", beyond, at_most=3)
        case = f"{partitions:,} partitions, RF 3, three brokers, idle"
        bench.target(f"{case}: memory of all processes, MB", median(f"{case}: memory (PSS)"), at_most=1_500)
        bench.target(f"{case}: CPU of all processes, % of a core", median(f"{case}: CPU"), at_most=5)
    case = f"{partitions:,} partitions, RF 1"
    if f"{case}: created and written" in cases:
        ratio = median(f"{case}: created and written") / median(f"{case}: created and written", KAFKA)
        bench.target(f"{case}: created and written, times Kafka {LATEST}'s", ratio, at_most=1.5)
        bench.target(f"{case}: memory added, MB", median(f"{case}: memory added (PSS)"), at_most=100)
        added = median(f"{case}: CPU after, idle") - median(f"{case}: CPU before, idle")
        bench.target(f"{case}: CPU added, idle, % of a core", added, at_most=1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--partitions", type=int, default=PARTITIONS, help="fewer than a thousand; nothing is written then"
    )
    parser.add_argument(
        "--only", choices=("three", "one"), help="clusters of so many brokers; the others' figures stay"
    )
    asked = arguments(parser)
    bench = Benchmark(
        "many_partitions",
        f"a thousand partitions on embedded brokers, beside Apache Kafka {LATEST} and {VERSION}; idle servers",
        settings={"servers": "defaults", "quiet_s": QUIET_S, "window_s": WINDOW_S},
        rounds=3,
        quick=asked.quick or asked.partitions != PARTITIONS,
    )
    parts = (asked.only,) if asked.only else ("three", "one")
    if asked.only:
        bench.cases = {
            case: found for case, found in bench.earlier().items() if ("RF 1" in case) != (asked.only == "one")
        }
    if "three" in parts:
        with EmbeddedCluster(3) as running:
            no_topics(bench, running)
            replicated(bench, running, asked.partitions)
    if "one" in parts:
        single(bench, asked.partitions)
    judge(bench, asked.partitions)
    bench.note(
        "Sides ran one after the other, on a machine that others used, too: the load is noted with the figures. "
        "Figures of the part that was not run anew are an earlier run's."
    )
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
