"""What thousands of partitions need: creation, writing, reading, files and memory maps, and both kinds of restart.

Two clusters, started with ``raylog up`` as their users start them: *4,000 partitions, RF 1, one broker*, and *1,000 partitions, RF 3,
three brokers*. In each, a topic is created, one record is written to each partition by confluent-kafka, and all are read. Then the
cluster is ended with ``raylog down`` and started again, written and read again; then everything is ended by SIGKILL, Ray included,
started again, and read.

- *created*: until ``create_topics`` has its answer; *written*, *read*: all partitions, by a client that is new.
- *down*, *up*: the command from start to end. *up and read*: from the start of the command until a client has read every record.
- *Open files* and *memory maps*: of that process of raylog's that has most of them, at the end of writing and reading, against its limits.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import psutil
from bench_many_partitions import write_one_record_each
from bench_start import Home, await_true, home
from harness import Benchmark, arguments

RAYLOG = "raylog"
WITHIN_S = 600.0
POLL_RECORDS = 500
PARTS = {1: 4_000, 3: 1_000}  # partitions by replication factor


def create(bootstrap: str, topic: str, partitions: int, replication_factor: int) -> float:
    """Seconds until the answer."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 300_000})
    admin.list_topics(timeout=30)  # connects
    start = time.perf_counter()
    new = NewTopic(topic, partitions, replication_factor)
    admin.create_topics([new], operation_timeout=WITHIN_S, request_timeout=WITHIN_S)[topic].result()
    return time.perf_counter() - start


def write(bootstrap: str, topic: str, partitions: int) -> float:
    """Seconds until each partition has acknowledged one record."""
    from confluent_kafka import Producer

    start = time.perf_counter()
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.timeout.ms": int(WITHIN_S * 1_000)})
    write_one_record_each(producer, topic, partitions)
    return time.perf_counter() - start


def read(bootstrap: str, topic: str, partitions: int, records: int) -> float:
    """Seconds until that many records of every partition have been read."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    start = time.perf_counter()
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reads", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        found = [0] * partitions
        lacking = partitions
        while lacking:
            assert time.perf_counter() - start < WITHIN_S, f"{lacking} of {partitions} partitions lack records"
            for message in consumer.consume(POLL_RECORDS, timeout=1.0):
                if message.error() is None:
                    found[message.partition()] += 1
                    lacking -= found[message.partition()] == records
        assert set(found) == {records}, set(found)
    finally:
        consumer.close()
    return time.perf_counter() - start


def servers(at: Home) -> list[psutil.Process]:
    found = []
    for process in at.processes():
        with contextlib.suppress(psutil.Error, IndexError):
            if process.cmdline()[0].startswith("ray::") and "Actor" in process.cmdline()[0]:
                found.append(process)
    return found


def count_handles(bench: Benchmark, case: str, at: Home) -> None:
    files, maps, threads, memory = [], [], [], []
    for process in servers(at):
        files.append(len(os.listdir(f"/proc/{process.pid}/fd")))
        maps.append(len(Path(f"/proc/{process.pid}/maps").read_text().splitlines()))
        threads.append(process.num_threads())
        memory.append(process.memory_full_info().pss / 1e6)
    soft, _ = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)
    allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    bench.record(f"{case}: open files of the process with most", RAYLOG, [max(files)], unit="files", all=files)
    bench.record(f"{case}: memory maps of the process with most", RAYLOG, [max(maps)], unit="maps", all=maps)
    bench.record(f"{case}: threads of the process with most", RAYLOG, [max(threads)], unit="threads", all=threads)
    bench.record(f"{case}: memory of all server processes (PSS)", RAYLOG, [sum(memory)], unit="MB", all=memory)
    limits = f"`ulimit -n` was {soft:,}, `vm.max_map_count` {allowed:,}."
    if limits not in bench.notes:
        bench.note(limits)


def name_of(partitions: int, replication_factor: int) -> str:
    return f"{partitions:,} partitions, RF {replication_factor}, {'one broker' if replication_factor == 1 else 'three brokers'}"


def run(bench: Benchmark, partitions: int, replication_factor: int) -> None:
    import raylog

    case = name_of(partitions, replication_factor)

    def took(what: str, seconds: float) -> None:
        bench.record(f"{case}: {what}", RAYLOG, [seconds], unit="s", load=os.getloadavg()[0])
        print(f"{case}: {what}: {seconds:.2f} s", flush=True)
        bench.write()

    def up() -> str:
        seconds, phases = at.up()
        took(f"up{after}", seconds)
        bench.cases[f"{case}: up{after}"][RAYLOG].notes["phases_s"] = phases
        return str(raylog.connect(folder=at.data).bootstrap_servers())

    with home(replication_factor) as at:
        after = ", a new folder"
        bootstrap = up()
        took("created", create(bootstrap, "many", partitions, replication_factor))
        took("written", write(bootstrap, "many", partitions))
        took("read", read(bootstrap, "many", partitions, 1))
        count_handles(bench, case, at)
        took("down", at.down())
        await_true(lambda: not servers(at), "the end of every server")
        after = ", after down"
        for number, end in enumerate((at.kill, None), 2):
            began = time.perf_counter()
            bootstrap = up()
            read(bootstrap, "many", partitions, number - 1 if number == 2 else 2)
            took(f"up and read{after}", time.perf_counter() - began)
            count_handles(bench, case + after, at)
            if end is not None:
                took("written again", write(bootstrap, "many", partitions))
                end()
                after = ", after SIGKILL of everything"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=0, help="instead of both; nothing is written then")
    parser.add_argument("--replication-factor", type=int, default=1, choices=(1, 3))
    parser.add_argument("--only", choices=tuple(map(str, PARTS)), help="one of the two; the other's figures stay")
    asked = arguments(parser)
    bench = Benchmark(
        "many_restarts",
        "thousands of partitions: created, written, read, restarted cleanly and after SIGKILL of everything",
        settings={"servers": "defaults"},
        rounds=1,
        quick=asked.quick or asked.partitions > 0,
    )
    if asked.partitions:
        run(bench, asked.partitions, asked.replication_factor)
    elif asked.quick:
        run(bench, 50, 1)
    else:
        wanted = [int(asked.only)] if asked.only else list(PARTS)
        kept = tuple(name_of(PARTS[factor], factor) for factor in PARTS if factor not in wanted)
        bench.cases = {case: found for case, found in bench.earlier().items() if kept and case.startswith(kept)}
        for factor in wanted:
            run(bench, PARTS[factor], factor)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
