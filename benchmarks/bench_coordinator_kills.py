"""SIGKILL of a transaction's coordinator, again and again, amid transactions: how long no commit succeeds, and whether anything is lost.

An embedded cluster of three brokers, every server a Ray actor; RF 3, min.insync.replicas 2. Two producers write small transactions one
behind the other, each into a topic of its own: raylog's, and confluent-kafka's with its defaults. At a random moment the process that
leads the producer's partition of ``__transaction_state`` is killed by its id, whatever else it leads. A transaction that fails is
aborted, and its records are written again in the next one; after a fatal error the producer is made anew. The next kill waits until
every partition of ``__transaction_state`` has its whole ISR again. A *pause* is the longest time between two consecutive commits from
the kill until then. Every kill counts and every pause is in the JSON file.

Beside them: the longest time between commits in the second before each kill.

At the end the topics are read by a consumer with ``isolation.level=read_committed``: every record of a committed transaction has to be
there once, in order. A commit whose outcome nobody knows is looked up there before its records are written again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentKafkaProducer
from embedded import EmbeddedCluster
from harness import Benchmark, arguments

from raylog.client.links.address import ClusterAddress
from raylog.client.sync import Consumer, Producer
from raylog.errors import RaylogError, TransactionAbortedError
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for

KILLS = 50
PER_TRANSACTION = 10
CALM_S = 1.0
WAIT_S = 60.0
PAUSE_P99_MS = 1_000
NATIVE, CONFLUENT = "raylog's producer", "confluent-kafka"
REPLICAS = 3


class Unknown(Exception):
    """Nobody knows whether the transaction was committed."""


Commit = Callable[[list[bytes]], bool]
"""Whether these records are committed; False: none of them is. Raises Unknown."""


@dataclass
class Writer:
    """Writes numbered records in transactions until it is stopped. ``commits``: when each was acknowledged."""

    name: str
    transactional_id: str
    topic: str
    address: ClusterAddress
    commit: Commit
    commits: list[float] = field(default_factory=list)
    written: int = 0
    aborted: int = 0
    unknown: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(WAIT_S)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                values = [b"%012d" % (self.written + number) for number in range(PER_TRANSACTION)]
                try:
                    is_committed = self.commit(values)
                except Unknown:
                    self.unknown += 1
                    is_committed = len(read_committed(self.address, self.topic)) > self.written
                if is_committed:
                    self.written += PER_TRANSACTION
                    self.commits.append(time.perf_counter())
                else:
                    self.aborted += 1
        except BaseException as error:
            self.error = error

    def longest_pause_s(self, start: float, end: float) -> float:
        """Between two commits, of those in this time and the ones around it."""
        before = max((each for each in self.commits if each <= start), default=start)
        after = min((each for each in self.commits if each >= end), default=end)
        moments = [before, *(each for each in self.commits if start < each < end), after]
        return max(later - earlier for earlier, later in pairwise(moments))

    def longest_within_s(self, start: float, end: float) -> float:
        """The same, of the commits in this time alone."""
        moments = [start, *(each for each in self.commits if start < each < end), end]
        return max(later - earlier for earlier, later in pairwise(moments))


def native(address: ClusterAddress, transactional_id: str, topic: str) -> Commit:
    producer = Producer(address, transactional_id=transactional_id, linger_ms=0)

    def commit(values: list[bytes]) -> bool:
        try:
            with producer.transaction() as transaction:
                transaction.send_batch(topic, values, partition=0)
        except TransactionAbortedError:
            return False
        except RaylogError as error:
            raise Unknown from error
        return True

    return commit


def confluent(bootstrap: str, transactional_id: str, topic: str) -> Commit:
    def made() -> ConfluentKafkaProducer:
        config = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
        producer = ConfluentKafkaProducer(config)
        producer.init_transactions(WAIT_S)
        return producer

    producer = made()

    def commit(values: list[bytes]) -> bool:
        nonlocal producer
        is_ending = False
        try:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value, None, 0)
            producer.flush(WAIT_S)
            is_ending = True
            producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            cause = error.args[0]
            if cause.txn_requires_abort():
                producer.abort_transaction(WAIT_S)
                return False
            producer = made()  # which aborts what is under way, or completes what was decided
            if is_ending:
                raise Unknown from error
            return False
        return True

    return commit


def read_committed(address: ClusterAddress, topic: str) -> list[bytes]:
    """All records up to the last stable offset; waits until no transaction is open."""
    with Consumer(address, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found: list[bytes] = []
        while taken := consumer.consume(10_000, timeout=2.0):
            found += [record.value for record in taken if record.value is not None]
    return found


def kill(running: EmbeddedCluster, writer: Writer, dice: random.Random) -> tuple[float, float]:
    """Kill the writer's coordinator at a random moment, and wait until it has all its replicas again: when, and until when."""
    time.sleep(CALM_S * (1 + dice.random()))
    if writer.error is not None:
        raise writer.error
    partition = partition_for(writer.transactional_id)
    pid = running.leader_pid(TRANSACTIONS_TOPIC, partition)
    at = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while running.leader_pid(TRANSACTIONS_TOPIC, partition) in (0, pid):
        time.sleep(0.01)
    running.await_whole(TRANSACTIONS_TOPIC, REPLICAS)
    return at, time.perf_counter()


def measure(bench: Benchmark, running: EmbeddedCluster, writer: Writer, kills: int, dice: random.Random) -> None:
    running.create_topic(writer.topic, replication_factor=REPLICAS, configs={"min.insync.replicas": "2"})
    writer.start()
    while not writer.commits and writer.error is None:
        time.sleep(0.01)
    spans = []
    for number in range(kills):
        spans.append(kill(running, writer, dice))
        print(f"{writer.name}, kill {number + 1}: {1000 * writer.longest_pause_s(*spans[-1]):.0f} ms", flush=True)
    time.sleep(CALM_S)
    writer.stop()
    pauses = [1000 * writer.longest_pause_s(*span) for span in spans]
    before = [1000 * writer.longest_within_s(at - CALM_S, at) for at, _ in spans]
    taken = bench.record("longest time between commits", f"{writer.name}, around the kill", pauses, unit="ms")
    bench.record("longest time between commits", f"{writer.name}, {CALM_S:g} s before it", before, unit="ms")
    found = read_committed(writer.address, writer.topic)
    wanted = [b"%012d" % number for number in range(writer.written)]
    lost, twice = len(set(wanted) - set(found)), len(found) - len(set(found))
    bench.record(
        "committed records", writer.name, [float(writer.written)], unit="records",
        lost=lost, twice=twice, aborted=writer.aborted, unknown=writer.unknown,
    )  # fmt: skip
    bench.target(f"{writer.name}: pause p99, ms", taken.percentile(99), at_most=PAUSE_P99_MS)
    bench.target(f"{writer.name}: committed records lost", lost, at_most=0)
    bench.target(f"{writer.name}: records twice", twice, at_most=0)
    bench.target(f"{writer.name}: records in another order", int(found != wanted and not lost and not twice), at_most=0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--kills", type=int, default=None, help=f"how many of each producer's coordinator (default {KILLS})"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    options = arguments(parser)
    kills = options.kills or (2 if options.quick else KILLS)
    bench = Benchmark(
        "coordinator_kills",
        f"pause of transactions when their coordinator is SIGKILLed, RF 3, {kills} kills for each producer",
        settings={"records_per_transaction": PER_TRANSACTION, "kills": kills, "seed": options.seed},
        quick=options.quick,
    )
    dice = random.Random(options.seed)
    with EmbeddedCluster() as running:
        address, bootstrap = running.cluster.address, running.cluster.bootstrap_servers()
        for name in (NATIVE, CONFLUENT):
            id = topic = f"killed-{'native' if name == NATIVE else 'confluent'}"
            commit = native(address, id, topic) if name == NATIVE else confluent(bootstrap, id, topic)
            measure(bench, running, Writer(name, id, topic, address, commit), kills, dice)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
