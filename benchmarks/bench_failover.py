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
import threading
import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from embedded import EmbeddedCluster
from harness import Benchmark, arguments

from raylog.client.deliveries import RecordMetadata
from raylog.client.sync import Producer
from raylog.errors import RaylogError

TOPIC = "killed"
RECORD_BYTES = 100
KILLS = 200
RECORDS_PER_SECOND = 1500
TICK_S = 0.002
CALM_S = 1.0  # of undisturbed acknowledgements before a kill, and up to as much more
NO_REQUEST_S = 5.0


@dataclass(slots=True)
class Ledger:
    """What the producer was told: times, sequence numbers and offsets of all acknowledgements, in order."""

    times: array[float] = field(default_factory=lambda: array("d"))
    sequences: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    failures: list[str] = field(default_factory=list)

    def note(self, sequence: int, metadata: RecordMetadata | None, error: RaylogError | None) -> None:
        """Called on the producer's thread for each record that is settled."""
        if metadata is None:
            self.failures.append(f"{sequence}: {error}")
            return
        self.sequences.append(sequence)
        self.offsets.append(metadata.offset)
        self.times.append(time.perf_counter())

    def longest_gap(self, start: float, end: float) -> float:
        """Seconds between two consecutive acknowledgements, the second of which came in ``[start, end]``."""
        first = max(1, bisect_left(self.times, start))
        last = min(len(self.times), bisect_left(self.times, end) + 1)
        return max((self.times[each] - self.times[each - 1] for each in range(first, last)), default=end - start)

    def count(self, start: float, end: float) -> int:
        return bisect_left(self.times, end) - bisect_left(self.times, start)


class Pacer(threading.Thread):
    """Sends records at a steady rate until told to stop, catching up where it was late."""

    def __init__(self, producer: Producer, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self._ledger = ledger
        self._stopped = threading.Event()
        self.sent = 0
        self.ticks = array("d")  # when it woke up
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            start = time.perf_counter()
            while not self._stopped.is_set():
                now = time.perf_counter()
                self.ticks.append(now)
                while self.sent < (now - start) * RECORDS_PER_SECOND:
                    self._send(self.sent)
                    self.sent += 1
                time.sleep(TICK_S)
        except BaseException as error:
            self.error = error

    def _send(self, sequence: int) -> None:
        value = sequence.to_bytes(8, "big").ljust(RECORD_BYTES, b".")
        self._producer.send(
            TOPIC,
            value,
            partition=0,
            on_delivery=lambda metadata, error: self._ledger.note(sequence, metadata, error),
        )

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        if self.error is not None:
            raise self.error

    def worst_lateness(self, start: float, end: float) -> float:
        """How much longer than a tick this thread slept, at most, in ``[start, end]``."""
        first, last = max(1, bisect_left(self.ticks, start)), bisect_left(self.ticks, end)
        return max((self.ticks[each] - self.ticks[each - 1] - TICK_S for each in range(first, last)), default=0.0)


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


@dataclass(slots=True)
class Readback:
    """What the log holds, held against the ledger."""

    lost: int = 0
    twice: int = 0
    misplaced: int = 0
    disordered: int = 0


def read_back(running: EmbeddedCluster, ledger: Ledger) -> Readback:
    """Reads the whole partition."""
    found: dict[int, int] = {}
    result = Readback()
    last = -1
    with running.cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        end = consumer.end_offsets([(TOPIC, 0)])[(TOPIC, 0)]
        position = 0
        while position < end:
            table = consumer.poll_batch(timeout=30)
            assert table.num_rows, f"nothing comes at offset {position} of {end}"
            for offset, value in zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True):
                sequence = int.from_bytes(value[:8], "big")
                result.twice += sequence in found
                result.disordered += sequence <= last
                found[sequence] = offset
                last = sequence
                position = offset + 1
    for sequence, offset in zip(ledger.sequences, ledger.offsets, strict=True):
        if sequence not in found:
            result.lost += 1
        elif found[sequence] != offset:
            result.misplaced += 1
    return result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=None, help=f"how many (default {KILLS})")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    options = arguments(parser)
    kills_wanted = options.kills or (3 if options.quick else KILLS)
    bench = Benchmark(
        "failover",
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
    )
    dice = random.Random(options.seed)
    ledger = Ledger()
    with EmbeddedCluster() as running:
        running.create_topic(TOPIC, replication_factor=3, configs={"min.insync.replicas": "2"})
        with running.cluster.producer(acks="all", linger_ms=0) as producer:
            pacer = Pacer(producer, ledger)
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
        result = read_back(running, ledger)

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
        failed=ledger.failures[:20],
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
    bench.target("records refused for good", len(ledger.failures), at_most=0)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
