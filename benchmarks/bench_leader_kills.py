"""SIGKILL of a partition's leader, again and again, under load: how long nothing is acknowledged, and whether anything is lost.

An embedded cluster of three brokers, every server a Ray actor; one partition, RF 3, min.insync.replicas 2. One
idempotent producer sends paced records with acks=all and writes down when each is acknowledged, and where. At a random
moment, with requests in flight, the process that leads is killed by its id. The next kill waits until the ISR is whole
again. A *pause* is the longest time between two consecutive acknowledgements from the kill until the ISR is whole, so
it covers the election, the retries and the return of the killed replica. Every kill counts and every pause is in the
JSON file.

Beside them, what the machine alone does: the longest time between acknowledgements in the second before each kill,
and how late the script's own pacer was, at worst, during each pause.

At the end the partition is read back: every acknowledged record has to be there once, at the offset that the
acknowledgement named, in the order in which it was sent.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from dataclasses import dataclass

from embedded import EmbeddedCluster, add_layout_option, layout_of
from harness import Benchmark, arguments
from paced_load import Ledger, Pacer, held_against, partition_records

from raylog.client.producer.deliveries import RecordMetadata
from raylog.client.sync import Producer
from raylog.errors import RaylogError

TOPIC = "killed"
RECORD_BYTES = 100
KILLS = 200
RECORDS_PER_SECOND = 1500
CALM_S = 1.0  # of undisturbed acknowledgements before a kill, and up to as much more
NO_REQUEST_S = 5.0


@dataclass(frozen=True, slots=True)
class Kill:
    at: float
    whole_at: float
    calm_from: float


def kill_leader(running: EmbeddedCluster, producer: Producer, pacer: Pacer, dice: random.Random) -> Kill:
    """Waits for a random moment with requests in flight, kills the leader, and waits until the ISR is whole again."""
    calm_from = time.perf_counter()
    time.sleep(CALM_S * (1 + dice.random()))
    pid = running.leader_pid(TOPIC)
    deadline = time.monotonic() + NO_REQUEST_S
    while not producer.buffered_bytes:
        assert time.monotonic() < deadline and pacer.error is None, f"nothing is in flight: {pacer.error}"
        time.sleep(0.0001)  # a busy loop would starve the threads that send
    at = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while running.leader_pid(TOPIC) in (0, pid):
        time.sleep(0.01)
    running.await_whole(TOPIC, 3)
    return Kill(at, time.perf_counter(), calm_from)


def send(producer: Producer, ledger: Ledger, sequence: int, value: bytes) -> None:
    def settled(metadata: RecordMetadata | None, error: RaylogError | None) -> None:
        ledger.note(sequence, None if metadata is None else metadata.offset, error)

    producer.send(TOPIC, value, partition=0, on_delivery=settled)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=None, help=f"how many (default {KILLS})")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    add_layout_option(parser)
    options = arguments(parser)
    kills_wanted = options.kills or (3 if options.quick else KILLS)
    bench = Benchmark(
        "leader_kills",
        f"pause of writes when the leader is SIGKILLed, RF 3, acks=all, {kills_wanted} kills",
        settings={
            "replication.factor": 3,
            "min.insync.replicas": 2,
            "acks": "all",
            "records_per_second": RECORDS_PER_SECOND,
            "record_bytes": RECORD_BYTES,
            "kills": kills_wanted,
            "seed": options.seed,
        },
        quick=options.quick,
        variant=layout_of(options),
    )
    dice = random.Random(options.seed)
    ledger = Ledger()
    with EmbeddedCluster(replicas_per_actor=options.replicas_per_actor) as running:
        running.create_topic(TOPIC, replication_factor=3, configs={"min.insync.replicas": "2"})
        with running.cluster.producer(acks="all", linger_ms=0) as producer:
            pacer = Pacer(
                lambda sequence, value: send(producer, ledger, sequence, value),
                records_per_second=RECORDS_PER_SECOND,
                record_bytes=RECORD_BYTES,
            )
            pacer.start()
            kills = []
            for number in range(kills_wanted):
                kill = kill_leader(running, producer, pacer, dice)
                kills.append(kill)
                pause_ms = 1000 * ledger.longest_gap(kill.at, kill.whole_at)
                back_s = kill.whole_at - kill.at
                print(f"kill {number + 1}: {pause_ms:.0f} ms, ISR whole after {back_s:.2f} s", flush=True)
            time.sleep(CALM_S)
            pacer.stop()
            producer.flush()
        result = held_against(ledger, partition_records(running.cluster, TOPIC))

    pauses = bench.record(
        "longest time between acks",
        "around the kill",
        [1000 * ledger.longest_gap(kill.at, kill.whole_at) for kill in kills],
        unit="ms",
    )
    bench.record(
        "longest time between acks",
        f"{CALM_S:g} s before it",
        [1000 * ledger.longest_gap(kill.at - CALM_S, kill.at) for kill in kills],
        unit="ms",
    )
    bench.record(
        "the script's own lateness",
        "around the kill",
        [1000 * pacer.worst_lateness(kill.at, kill.whole_at) for kill in kills],
        unit="ms",
    )
    bench.record("ISR whole again", "after", [kill.whole_at - kill.at for kill in kills], unit="s")
    rates = [ledger.count(kill.at - CALM_S, kill.at) / CALM_S for kill in kills]
    bench.record("acknowledged before the kill", "rate", rates, unit="records/s")
    bench.record(
        "read back",
        "acknowledged",
        [float(len(ledger.times))],
        unit="records",
        lost=result.lost,
        twice=result.twice,
        misplaced=result.misplaced,
        disordered=result.disordered,
        failed=ledger.failures,
    )
    bench.target("pause p50, ms", pauses.percentile(50), at_most=100)
    bench.target("pause p99, ms", pauses.percentile(99), at_most=1000)
    bench.target("pause max, ms", max(pauses.values), at_most=1000)
    bench.target("records acknowledged per second before a kill, least", min(rates), at_least=1000)
    bench.target("acknowledged records lost", result.lost, at_most=0)
    bench.target("records twice in the log", result.twice, at_most=0)
    bench.target(
        "acknowledged records at another offset or out of order", result.misplaced + result.disordered, at_most=0
    )
    bench.target("records refused for good", ledger.failed, at_most=0)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
