"""SIGKILL of a host that leads 300 partitions, under load: how long each of them takes no writes, and whether anything is lost.

An embedded cluster of three brokers, every server a Ray actor; a topic of 300 partitions, RF 3,
min.insync.replicas 2, all of them led by the same process: the one host of broker 0's disk. One idempotent
producer sends paced records with acks=all to the partitions in turn. At a random moment the host is
killed by its process id. The next kill waits until broker 0 leads all of them again.

A partition's *pause* is the longest time between two consecutive acknowledgements of its records, from the
kill until two seconds after it. It contains the time between two records of one partition, which is written
beside it. Every partition of every kill is in the JSON file.

The client runs on the same cores as the cluster. What its process imported is taken out of the
reach of the garbage collector before the first kill: a full collection stopped it for 200 ms now
and then, and with it all partitions. How late the script's own thread was is written beside the
pauses.

At the end everything is read back: each acknowledged record has to be there once, at the offset that its
acknowledgement named, in the order in which it was sent.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import time
from array import array
from collections.abc import Iterator

from embedded import EmbeddedCluster
from harness import Benchmark, arguments
from paced_load import Ledger, Pacer, held_against, longest_gap

from raylog.client.admin.admin import NewTopic
from raylog.client.producer.deliveries import RecordMetadata
from raylog.client.sync import Producer
from raylog.cluster import Cluster
from raylog.errors import RaylogError

TOPIC = "led-by-one"
PARTITIONS = 300
KILLS = 10
RECORDS_PER_SECOND = 6_000
RECORD_BYTES = 100
CALM_S = 2.0
WATCHED_S = 2.0
AGAIN_S = 120.0


def send(producer: Producer, ledgers: list[Ledger], sequence: int, value: bytes) -> None:
    partition = sequence % len(ledgers)

    def settled(metadata: RecordMetadata | None, error: RaylogError | None) -> None:
        ledgers[partition].note(sequence, None if metadata is None else metadata.offset, error)

    producer.send(TOPIC, value, partition=partition, on_delivery=settled)


def led_by(running: EmbeddedCluster, broker: int) -> int:
    return sum(each["leader"] == broker for each in running.partitions(TOPIC, running.cluster.status()))


def await_all_led(running: EmbeddedCluster, broker: int, partitions: int) -> None:
    """Has the preferred leaders elected until that broker leads everything."""
    deadline = time.monotonic() + AGAIN_S
    running.await_whole(TOPIC, 3)
    with running.cluster.admin() as admin:
        while led_by(running, broker) < partitions:
            assert time.monotonic() < deadline, f"broker {broker} leads {led_by(running, broker)} of {partitions}"
            admin.elect_leaders()
            time.sleep(0.1)


def records_of(cluster: Cluster, partition: int) -> Iterator[tuple[int, bytes]]:
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, partition)])
        end = consumer.end_offsets([(TOPIC, partition)])[(TOPIC, partition)]
        position = 0
        while position < end:
            table = consumer.poll_batch(timeout=30)
            assert table.num_rows, f"nothing comes at offset {position} of {end}"
            offsets = table["offset"].to_pylist()
            yield from zip(offsets, table["value"].to_pylist(), strict=True)
            position = offsets[-1] + 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=None, help=f"how many (default {KILLS})")
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    options = arguments(parser)
    kills_wanted = options.kills or (1 if options.quick else KILLS)
    bench = Benchmark(
        "host_kill",
        f"pause of each partition when the host of {options.partitions} leaders is SIGKILLed, RF 3, acks=all",
        settings={
            "partitions": options.partitions,
            "replication.factor": 3,
            "min.insync.replicas": 2,
            "acks": "all",
            "records_per_second": RECORDS_PER_SECOND,
            "record_bytes": RECORD_BYTES,
            "kills": kills_wanted,
            "seed": options.seed,
        },
        quick=options.quick,
    )
    dice = random.Random(options.seed)
    ledgers = [Ledger() for _ in range(options.partitions)]
    kills: list[float] = []
    with EmbeddedCluster() as running:
        followers = ((0, 1, 2), (0, 2, 1))
        assignment = {partition: followers[partition % 2] for partition in range(options.partitions)}
        with running.cluster.admin() as admin:
            admin.create_topics(NewTopic(TOPIC, configs={"min.insync.replicas": "2"}, replica_assignment=assignment))
        running.await_whole(TOPIC, 3)
        with running.cluster.producer(acks="all", linger_ms=0) as producer:
            pacer = Pacer(
                lambda sequence, value: send(producer, ledgers, sequence, value),
                records_per_second=RECORDS_PER_SECOND,
                record_bytes=RECORD_BYTES,
            )
            gc.collect()
            gc.freeze()
            pacer.start()
            for _ in range(kills_wanted):
                await_all_led(running, 0, options.partitions)
                pid = running.leader_pid(TOPIC)
                time.sleep(CALM_S * (1 + dice.random()))
                kills.append(time.perf_counter())
                os.kill(pid, signal.SIGKILL)
                time.sleep(WATCHED_S)
                pacer.check()
            pacer.stop()
            producer.flush()
        lost = twice = misplaced = 0
        for partition, ledger in enumerate(ledgers):
            result = held_against(ledger, records_of(running.cluster, partition))
            lost += result.lost
            twice += result.twice
            misplaced += result.misplaced + result.disordered

    def gaps(after_s: float, length_s: float) -> list[float]:
        return [
            1000 * longest_gap(ledger.times, kill + after_s, kill + after_s + length_s)
            for kill in kills
            for ledger in ledgers
        ]

    pauses = bench.record("a partition's longest time between acks", "around the kill", gaps(0, WATCHED_S), unit="ms")
    bench.record("a partition's longest time between acks", f"{CALM_S:g} s before it", gaps(-CALM_S, CALM_S), unit="ms")
    times = array("d", sorted(time for ledger in ledgers for time in ledger.times))
    bench.record(
        "nothing is acknowledged at all",
        "around the kill",
        [1000 * longest_gap(times, kill, kill + WATCHED_S) for kill in kills],
        unit="ms",
    )
    bench.record(
        "the script's own lateness",
        "around the kill",
        [1000 * pacer.worst_lateness(kill, kill + WATCHED_S) for kill in kills],
        unit="ms",
    )
    failed = sum(ledger.failed for ledger in ledgers)
    bench.record(
        "read back", "acknowledged", [float(len(times))], unit="records",
        lost=lost, twice=twice, misplaced=misplaced, failed=failed,
    )  # fmt: skip
    bench.target("pause p50, ms", pauses.percentile(50), at_most=500)
    bench.target("pause p99, ms", pauses.percentile(99), at_most=500)
    bench.target("acknowledged records lost", lost, at_most=0)
    bench.target("records twice in the log", twice, at_most=0)
    bench.target("acknowledged records at another offset or out of order", misplaced, at_most=0)
    bench.target("records refused for good", failed, at_most=0)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
