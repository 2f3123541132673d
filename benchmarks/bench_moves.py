"""A replica moves between two actors of its disk, again and again, under load: how long nothing is acknowledged, and what is lost.

An embedded cluster of three brokers, every server a Ray actor; two topics of one partition, with three replicas
(min.insync.replicas 2) and with one. One idempotent producer sends paced records with acks=all to one of them and writes
down when each is acknowledged, and where. At a random moment, with requests in flight, the replica that leads is moved
to the other actor of its disk. The next move waits until the ISR is whole again and the preferred replica leads. A
*pause* is the longest time between two consecutive acknowledgements from the move until then, so it covers both changes of the leader,
the closing and the opening of the log and the retries. Every move counts.

Beside them, what the machine alone does: the longest time between acknowledgements in the second before each move.

At the end the partition is read back: every acknowledged record has to be there once, at the offset that the
acknowledgement named, in the order in which it was sent.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass

from embedded import WAIT_S, EmbeddedCluster
from harness import Benchmark, arguments
from paced_load import Ledger, Pacer, held_against, partition_records

from raylog.client.producer.deliveries import RecordMetadata
from raylog.client.sync import AdminClient, Producer
from raylog.errors import RaylogError
from raylog.types import broker_of

RECORD_BYTES = 100
MOVES = 100
RECORDS_PER_SECOND = 1000
CALM_S = 1.0
NO_REQUEST_S = 5.0
P99_MS = {3: 100, 1: 250}


@dataclass(frozen=True, slots=True)
class Move:
    at: float
    whole_at: float


class Mover:
    """The replica of the preferred broker of one partition, and the two actors between which it goes."""

    def __init__(self, running: EmbeddedCluster, admin: AdminClient, topic: str, replicas: int) -> None:
        self._running = running
        self._admin = admin
        self._topic = topic
        self._replicas = replicas
        home = self._leader()
        self._broker = broker_of(home)
        other, _ = admin.add_actor(self._broker)
        self._actors = [home, other]
        deadline = time.monotonic() + WAIT_S
        while not any(each.actor == other and each.state == "live" for each in admin.list_actors()):
            assert time.monotonic() < deadline, f"actor {other} does not start"
            time.sleep(0.1)

    def _leader(self) -> int:
        return int(self._running.partitions(self._topic, self._running.cluster.status())[0]["leader_node"])

    def move(self, producer: Producer, pacer: Pacer, dice: random.Random) -> Move:
        """Waits for a random moment with requests in flight, moves the leader, and waits until it leads again with a whole ISR."""
        time.sleep(CALM_S * (1 + dice.random()))
        deadline = time.monotonic() + NO_REQUEST_S
        while not producer.buffered_bytes:
            assert time.monotonic() < deadline and pacer.error is None, f"nothing is in flight: {pacer.error}"
            time.sleep(0.0001)  # a busy loop would starve the threads that send
        self._actors.reverse()
        target = self._actors[0]
        at = time.perf_counter()
        (refused,) = self._admin.move_replicas([(self._topic, 0, self._broker, target)]).values()
        assert refused is None, refused
        deadline = time.monotonic() + WAIT_S
        while self._leader() != target:
            assert time.monotonic() < deadline, f"actor {target} does not lead"
            time.sleep(0.01)
        self._running.await_whole(self._topic, self._replicas)
        return Move(at, time.perf_counter())


def measure(bench: Benchmark, running: EmbeddedCluster, replicas: int, moves_wanted: int, dice: random.Random) -> None:
    topic = f"moved-{replicas}"
    running.create_topic(
        topic, replication_factor=replicas, configs={"min.insync.replicas": "2"} if replicas > 1 else {}
    )
    ledger = Ledger()

    def send(producer: Producer, sequence: int, value: bytes) -> None:
        def settled(metadata: RecordMetadata | None, error: RaylogError | None) -> None:
            ledger.note(sequence, None if metadata is None else metadata.offset, error)

        producer.send(topic, value, partition=0, on_delivery=settled)

    with running.cluster.admin() as admin, running.cluster.producer(acks="all", linger_ms=0) as producer:
        mover = Mover(running, admin, topic, replicas)
        pacer = Pacer(
            lambda sequence, value: send(producer, sequence, value),
            records_per_second=RECORDS_PER_SECOND,
            record_bytes=RECORD_BYTES,
        )
        pacer.start()
        moves = []
        for number in range(moves_wanted):
            moves.append(mover.move(producer, pacer, dice))
            pause_ms = 1000 * ledger.longest_gap(moves[-1].at, moves[-1].whole_at)
            print(f"RF {replicas}, move {number + 1}: {pause_ms:.0f} ms", flush=True)
        time.sleep(CALM_S)
        pacer.stop()
        producer.flush()
    result = held_against(ledger, partition_records(running.cluster, topic))
    contestant = f"RF {replicas}"
    pauses = bench.record(
        "longest time between acks, around the move",
        contestant,
        [1000 * ledger.longest_gap(each.at, each.whole_at) for each in moves],
        unit="ms",
    )
    bench.record(
        f"longest time between acks, {CALM_S:g} s before it",
        contestant,
        [1000 * ledger.longest_gap(each.at - CALM_S, each.at) for each in moves],
        unit="ms",
    )
    bench.record("leads again, ISR whole", contestant, [each.whole_at - each.at for each in moves], unit="s")
    bench.record(
        "read back",
        contestant,
        [float(len(ledger.times))],
        unit="records",
        lost=result.lost,
        twice=result.twice,
        misplaced=result.misplaced,
        disordered=result.disordered,
        failed=ledger.failures,
    )
    bench.target(f"{contestant}: pause p50, ms", pauses.percentile(50), at_most=P99_MS[replicas])
    bench.target(f"{contestant}: pause p99, ms", pauses.percentile(99), at_most=P99_MS[replicas])
    bench.target(f"{contestant}: acknowledged records lost", result.lost, at_most=0)
    bench.target(f"{contestant}: records twice in the log", result.twice, at_most=0)
    bench.target(
        f"{contestant}: acknowledged records at another offset or out of order",
        result.misplaced + result.disordered,
        at_most=0,
    )
    bench.target(f"{contestant}: records refused for good", ledger.failed, at_most=0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--moves", type=int, default=None, help=f"how many (default {MOVES})")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the moves")
    options = arguments(parser)
    moves_wanted = options.moves or (5 if options.quick else MOVES)
    bench = Benchmark(
        "moves",
        f"pause of writes when the leader's replica moves to another actor of its disk, acks=all, {moves_wanted} moves each",
        settings={
            "min.insync.replicas": "2 of 3, 1 of 1",
            "acks": "all",
            "records_per_second": RECORDS_PER_SECOND,
            "record_bytes": RECORD_BYTES,
            "moves": moves_wanted,
            "seed": options.seed,
        },
        quick=options.quick,
    )
    dice = random.Random(options.seed)
    with EmbeddedCluster() as running:
        for replicas in (3, 1):
            measure(bench, running, replicas, moves_wanted, dice)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
