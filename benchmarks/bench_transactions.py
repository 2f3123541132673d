"""Transactions beside Apache Kafka 3.9.1: how long a commit takes, and what exactly once costs in records per second.

Both sides are clusters of three brokers on this machine, up for the whole script and warmed by rounds that do not count: raylog embedded,
every server a Ray actor; Kafka as three KRaft brokers that are controllers too, with a 1 GB heap. All topics have RF 3 and
min.insync.replicas 2, as the logs of the coordinators have. Servers have their defaults; sides take turns; while one is measured the other
is idle.

The parts (``--only PART``; the others' figures stay in the file as an earlier run left them):

- ``commit``: transactions of confluent-kafka, one behind the other, of 1 and of 100 records of 100 B, on 1 and on 12 partitions (on 12 a
  transaction of one record has one in each). *transaction*: from its begin until the commit has returned; *commit*: the last part of
  that, when all records are acknowledged. Medians of each round, and the 99th percentile of all rounds together.
- ``produce``: one producer, one partition, records of 1 KB, in transactions of 100 ms. raylog's ``send_batch`` without and with them; on
  both sides confluent-kafka's ``produce`` loop, and kafka-producer-perf-test with ``--transaction-duration-ms``, a fresh JVM each time.
  raylog's rate is compared with that of the faster one on Kafka.
- ``consume``: one consumer reads a partition of committed transactions with both isolation levels: raylog's ``poll_batch``, and
  confluent-kafka from raylog.
- ``pipeline``: consume, transform, produce with confluent-kafka: up to 500 records per transaction, which commits the offsets as well.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from apache_kafka import VERSION, ApacheKafka
from confluent_kafka import Consumer as ConfluentKafkaConsumer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentKafkaProducer
from consumers import AHEAD, ConfluentKafkaReader
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments, ready_page_cache
from producers import BATCH_SIZE, LINGER_MS, SETTINGS, perf_test_rate, random_values, written_bytes

from raylog.client.sync import Consumer, Producer

RAYLOG, KAFKA = "raylog", "Apache Kafka"
PARTS = ("commit", "produce", "consume", "pipeline")
LEVELS = ("read_uncommitted", "read_committed")
REPLICAS = 3
CONFIGS = {"min.insync.replicas": "2"}
ROUNDS = 3

COMMITTED = ((1, 1), (100, 1), (1, 12), (100, 12))  # records, partitions
SMALL = 100
TRANSACTIONS = 180
WARM_UP = 1_000  # transactions
LARGE = 1_000
PRODUCED = 250_000
PRODUCED_BY_OTHERS = 50_000
DURATION_MS = 100
PER_CALL = 1_000
CONSUMED = 200_000
PER_TRANSACTION = 1_000
PIPED = 10_000
PIPED_AT_ONCE = 500
WAIT_S = 60.0

WITHOUT, WITH = "raylog send_batch, without", "raylog send_batch, in transactions"
OUR_CONFLUENT, THEIR_CONFLUENT = "raylog, confluent-kafka in transactions", "Kafka, confluent-kafka in transactions"
OUR_TOOL, THEIR_TOOL = "raylog, perf-test in transactions", "Kafka, perf-test in transactions"
COMMIT_MAX = 1.0  # times Kafka's p50
PRODUCE_MIN = 0.9  # times raylog's own rate
PRODUCE_TIMES_MIN = 3.0  # times Kafka's
CONSUME_MIN = 0.9  # times the rate of read_uncommitted
PIPELINE_MIN = 1.0  # times Kafka's

_numbers = itertools.count()
Taken = dict[str, list[float]]
"""By what it is: how long each took, in ms."""


def transactional(bootstrap: str, **options: Any) -> ConfluentKafkaProducer:
    """A producer of confluent-kafka with an id of its own, which has taken it."""
    config = {"bootstrap.servers": bootstrap, "transactional.id": f"bench-{next(_numbers)}", "log_level": 0}
    producer = ConfluentKafkaProducer(config | options)
    producer.init_transactions(WAIT_S)
    return producer


class Script:
    """Both clusters, and how much is done with them."""

    def __init__(self, bench: Benchmark, ours: EmbeddedCluster, theirs: ApacheKafka, *, quick: bool) -> None:
        self.bench = bench
        self.ours = ours
        self.theirs = theirs
        self.quick = quick
        self.bootstraps = {RAYLOG: ours.cluster.bootstrap_servers(), KAFKA: theirs.bootstrap}

    def _share(self, count: int) -> int:
        return count // (10 if self.quick else 1)

    def _create(self, topic: str, partitions: int = 1) -> None:
        for side in (self.ours, self.theirs):
            side.create_topic(topic, partitions=partitions, replication_factor=REPLICAS, configs=CONFIGS)

    # -------------------------------------------------------------- commit

    def commit(self) -> None:
        self._warm_up()
        for records, partitions in COMMITTED:
            topic = f"commit-{records}-{partitions}"
            self._create(topic, partitions)
            sent = [number % partitions for number in range(max(records, partitions))]
            sides = {
                name: Commits(transactional(bootstrap, **{"linger.ms": 0}), topic, sent)
                for name, bootstrap in self.bootstraps.items()
            }
            case = commit_case(records, partitions)
            for name, rounds in self._taken(case, sides).items():
                for what in rounds[0]:
                    medians = [statistics.median(taken[what]) for taken in rounds]
                    self.bench.record(f"{case}: {what}, p50", name, medians, unit="ms")
                    every = Measurement("ms", [each for taken in rounds for each in taken[what]])
                    self.bench.record(f"{case}: {what}, p99", name, [every.percentile(99)], unit="ms")

    def _warm_up(self) -> None:
        """Without it the first cases meet a JVM that still compiles: its commits take twice as long then."""
        self._create("warm", 12)
        for bootstrap in self.bootstraps.values():
            Commits(transactional(bootstrap, **{"linger.ms": 0}), "warm", list(range(12))).run(self._share(WARM_UP))

    def _taken(self, case: str, sides: Mapping[str, Commits]) -> dict[str, list[Taken]]:
        """What each side took in each round."""
        shown: dict[str, list[Taken]] = {name: [] for name in sides}
        for number in range(-1, self.bench.rounds):
            for name in reversed(list(sides)) if number % 2 else list(sides):
                taken = sides[name].run(self._share(TRANSACTIONS))
                if number >= 0:
                    shown[name].append(taken)
                    medians = {what: round(statistics.median(each), 2) for what, each in taken.items()}
                    print(f"{case} · {name} · {medians} ms", flush=True)
        return shown

    # -------------------------------------------------------------- produce

    def produce(self) -> None:
        count, by_others = self._share(PRODUCED), self._share(PRODUCED_BY_OTHERS)
        values = random_values(count, LARGE)
        self._create("produced")
        with (
            Producer(self.ours.cluster.address, acks="all") as plain,
            Producer(self.ours.cluster.address, transactional_id="bench-native") as in_transactions,
        ):
            self.bench.alternate(
                PRODUCE_CASE,
                {
                    WITHOUT: lambda: count / sent_plainly(plain, values) / 1_000,
                    WITH: lambda: count / sent_in_transactions(in_transactions, values) / 1_000,
                    THEIR_CONFLUENT: partial(self._confluent, KAFKA, values[:by_others]),
                    OUR_CONFLUENT: partial(self._confluent, RAYLOG, values[:by_others]),
                    THEIR_TOOL: partial(self._tool, KAFKA, by_others),
                    OUR_TOOL: partial(self._tool, RAYLOG, by_others),
                },
                unit="k records/s",
                written_bytes=written_bytes(count, LARGE, REPLICAS),
            )

    def _confluent(self, side: str, values: list[bytes]) -> float:
        producer = transactional(self.bootstraps[side], **{"linger.ms": LINGER_MS, "batch.size": BATCH_SIZE})
        return len(values) / produced_in_transactions(producer, values) / 1_000

    def _tool(self, side: str, count: int) -> float:
        rate = perf_test_rate(self.bootstraps[side], "produced", count, LARGE, "all", transaction_ms=DURATION_MS)
        return rate / 1_000

    # -------------------------------------------------------------- consume

    def consume(self) -> None:
        count = self._share(CONSUMED)
        self.ours.create_topic("consumed", replication_factor=REPLICAS, configs=CONFIGS)
        values = random_values(count, LARGE)
        ready_page_cache(written_bytes(count, LARGE, REPLICAS))
        with Producer(self.ours.cluster.address, transactional_id="bench-filler") as producer:
            for start in range(0, count, PER_TRANSACTION):
                with producer.transaction() as transaction:
                    transaction.send_batch("consumed", values[start : start + PER_TRANSACTION], partition=0)
        self.bench.alternate(
            consume_case("poll_batch"),
            {level: partial(self._polled, level, count) for level in LEVELS},
            unit="k records/s",
        )
        readers = {
            level: ConfluentKafkaReader(self.bootstraps[RAYLOG], "consumed", count, isolation_level=level)
            for level in LEVELS
        }
        self.bench.alternate(
            consume_case("confluent-kafka"),
            {level: partial(read_by, reader) for level, reader in readers.items()},
            unit="k records/s",
        )
        for reader in readers.values():
            reader.close()

    def _polled(self, level: str, count: int) -> float:
        with Consumer(self.ours.cluster.address, isolation_level=level, auto_offset_reset="earliest") as consumer:
            start = time.perf_counter()
            consumer.assign([("consumed", 0)])
            got = 0
            while got < count:
                got += consumer.poll_batch(timeout=WAIT_S).num_rows
            took = time.perf_counter() - start
        assert got == count, f"{got} of {count} records"
        return count / took / 1_000

    # -------------------------------------------------------------- pipeline

    def pipeline(self) -> None:
        count = self._share(PIPED)
        for topic in ("numbers", "squares"):
            self._create(topic)
        for bootstrap in self.bootstraps.values():
            fill(bootstrap, "numbers", count)
        self.bench.alternate(
            PIPELINE_CASE,
            {name: partial(self._piped, name, count) for name in self.bootstraps},
            unit="records/s",
        )

    def _piped(self, side: str, count: int) -> float:
        try:
            return piped(self.bootstraps[side], count)
        except KafkaException as error:
            error.add_note(f"from {side}")
            raise


class Commits:
    """One side's transactions. ``sent``: the partition of each record of one."""

    def __init__(self, producer: ConfluentKafkaProducer, topic: str, sent: list[int]) -> None:
        self._producer = producer
        self._topic = topic
        self._sent = sent

    def run(self, count: int) -> Taken:
        """So many transactions, and the commit of each."""
        producer, value = self._producer, bytes(SMALL)
        whole, commits = [], []
        for _ in range(count):
            start = time.perf_counter()
            producer.begin_transaction()
            for partition in self._sent:
                producer.produce(self._topic, value, None, partition)
            assert producer.flush(WAIT_S) == 0, "records were not acknowledged"
            flushed = time.perf_counter()
            producer.commit_transaction(WAIT_S)
            end = time.perf_counter()
            whole.append(1_000 * (end - start))
            commits.append(1_000 * (end - flushed))
        return {"transaction": whole, "commit": commits}


def sent_plainly(producer: Producer, values: list[bytes]) -> float:
    """How long it takes until all are acknowledged, in seconds."""
    start = time.perf_counter()
    deliveries = [
        producer.send_batch("produced", values[at : at + PER_CALL], partition=0)
        for at in range(0, len(values), PER_CALL)
    ]
    producer.flush()
    took = time.perf_counter() - start
    stored = sum(each.result(0).count for each in deliveries)
    assert stored == len(values), f"{stored} of {len(values)} records were stored"
    return took


def sent_in_transactions(producer: Producer, values: list[bytes]) -> float:
    """How long it takes until all are committed; each transaction is committed ``DURATION_MS`` after its begin."""
    start = time.perf_counter()
    deliveries = []
    at = 0
    while at < len(values):
        with producer.transaction() as transaction:
            until = time.perf_counter() + DURATION_MS / 1_000
            while at < len(values) and time.perf_counter() < until:
                deliveries.append(transaction.send_batch("produced", values[at : at + PER_CALL], partition=0))
                at += PER_CALL
    took = time.perf_counter() - start
    stored = sum(each.result(0).count for each in deliveries)
    assert stored == len(values), f"{stored} of {len(values)} records were stored"
    return took


def produced_in_transactions(producer: ConfluentKafkaProducer, values: list[bytes]) -> float:
    """The same by confluent-kafka."""
    start = time.perf_counter()
    at = 0
    while at < len(values):
        producer.begin_transaction()
        until = time.perf_counter() + DURATION_MS / 1_000
        while at < len(values) and time.perf_counter() < until:
            try:
                producer.produce("produced", values[at], None, 0)
            except BufferError:
                producer.poll(0.005)
            else:
                at += 1
        producer.commit_transaction(WAIT_S)
    return time.perf_counter() - start


def read_by(reader: ConfluentKafkaReader) -> float:
    return reader.rate() / 1_000


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = transactional(bootstrap)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"%0100d" % number, None, 0)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.commit_transaction(WAIT_S)


def piped(bootstrap: str, count: int) -> float:
    """Records per second, from the first ones read to the last commit."""
    producer = transactional(bootstrap)
    consumer = ConfluentKafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"pipeline-{next(_numbers)}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        | AHEAD
    )
    consumer.subscribe(["numbers"])
    (first,) = consumer.consume(1, WAIT_S)
    start = time.perf_counter()
    records, done = [first], 0
    while True:
        producer.begin_transaction()
        for record in records:
            assert record.error() is None, record.error()
            producer.produce("squares", b"%0100d" % int(record.value() or b"0") ** 2, None, 0)
        read_to = [TopicPartition("numbers", 0, (records[-1].offset() or 0) + 1)]
        producer.send_offsets_to_transaction(read_to, consumer.consumer_group_metadata(), WAIT_S)
        producer.commit_transaction(WAIT_S)
        done += len(records)
        if done >= count:
            break
        records = consumer.consume(min(PIPED_AT_ONCE, count - done), WAIT_S)
        assert records, f"{done} of {count} records came"
    took = time.perf_counter() - start
    consumer.close()
    return count / took


# ------------------------------------------------------------------ the claims

PRODUCE_CASE = f"1 KB, transactions of {DURATION_MS} ms"
PIPELINE_CASE = "consume, transform, produce, confluent-kafka"


def commit_case(records: int, partitions: int) -> str:
    counted = f"{records} record{'s' if records > 1 else ''}"
    if partitions == 1:
        return f"{counted} on 1 partition"
    return f"{counted} on {'each of ' if records == 1 else ''}{partitions} partitions"


def consume_case(client: str) -> str:
    return f"read from raylog, {client}"


def judge(bench: Benchmark) -> None:
    """All claims, on figures of this run and of those that it left as they were."""

    def median(case: str, name: str) -> float:
        return bench.cases[case][name].median

    for case in bench.cases:
        if case.endswith((": commit, p50", ": transaction, p50")):
            ratio = median(case, RAYLOG) / median(case, KAFKA)
            bench.target(f"{case}, times Kafka's", ratio, at_most=COMMIT_MAX)
        elif case == PRODUCE_CASE:
            rate = median(case, WITH)
            bench.target(f"{case}: times raylog's without", rate / median(case, WITHOUT), at_least=PRODUCE_MIN)
            ratio = rate / max(median(case, THEIR_TOOL), median(case, THEIR_CONFLUENT))
            bench.target(f"{case}: times Kafka's in transactions", ratio, at_least=PRODUCE_TIMES_MIN)
        elif part_of(case) == "consume":
            ratio = median(case, LEVELS[1]) / median(case, LEVELS[0])
            bench.target(f"{case}: read_committed, times read_uncommitted", ratio, at_least=CONSUME_MIN)
        elif case == PIPELINE_CASE:
            ratio = median(case, RAYLOG) / median(case, KAFKA)
            bench.target(f"{case}: times Kafka's rate", ratio, at_least=PIPELINE_MIN)


def part_of(case: str) -> str:
    """The part that measures a case."""
    if case == PRODUCE_CASE:
        return "produce"
    if case == PIPELINE_CASE:
        return "pipeline"
    return "consume" if case.startswith("read from") else "commit"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, help="one part; the others' figures stay")
    options = arguments(parser)
    bench = Benchmark(
        "transactions",
        f"transactions, beside Apache Kafka {VERSION}",
        settings={
            "brokers": 3,
            "replication factor": REPLICAS,
            "min.insync.replicas": 2,
            "transactions_per_round": TRANSACTIONS,
            "records_per_transaction_of_the_pipeline": PIPED_AT_ONCE,
            "records_per_transaction_that_is_read": PER_TRANSACTION,
            "kafka-producer-perf-test": SETTINGS,
            "servers": "defaults",
        },
        rounds=ROUNDS,
        quick=options.quick,
    )
    parts = (options.only,) if options.only else PARTS
    if options.only:
        bench.cases = {case: found for case, found in bench.earlier().items() if part_of(case) not in parts}
    with EmbeddedCluster() as ours, ApacheKafka(brokers=3) as theirs:
        script = Script(bench, ours, theirs, quick=options.quick)
        runs: dict[str, Callable[[], None]] = {
            "commit": script.commit,
            "produce": script.produce,
            "consume": script.consume,
            "pipeline": script.pipeline,
        }
        for part in parts:
            runs[part]()
            bench.write()
    judge(bench)
    if bench.machine["load_at_start"][0] > 1:
        bench.note(
            "The machine did other work beside this run: absolute figures are worse for it, and rounds spread more."
        )
    if options.only:
        bench.note("Figures of parts that were not run anew are an earlier run's.")
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
