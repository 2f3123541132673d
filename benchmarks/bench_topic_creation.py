"""How long a new topic takes until it has taken a record in every partition, beside Apache Kafka.

- *Created on purpose*: from ``create_topics`` of confluent-kafka's admin client to the acknowledgement of one record in each
  partition by a producer that was connected and warm before. Both with librdkafka's defaults, so acks=all. What
  ``create_topics`` alone took stands beside.
- *Created by the first record*: from ``send`` to the acknowledgement, for four clients with their defaults; the topic gets the
  number of partitions and replicas that each server gives by default.

Every side has the machine to itself: raylog embedded, every server a Ray actor, then Kafka's two versions, one after the other, as
KRaft brokers that are controllers too, with a 1 GB heap and otherwise their defaults. Each side is warmed by topics that do not
count. Topics are deleted after each round.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from apache_kafka import LATEST, VERSION, ApacheKafka
from embedded import EmbeddedCluster
from first_records import CLIENTS
from harness import Benchmark, arguments

RAYLOG = "raylog"
KAFKA = f"Apache Kafka {LATEST}"
EARLIER_KAFKA = f"Apache Kafka {VERSION}"
SIDES = (RAYLOG, KAFKA, EARLIER_KAFKA)
PARTITIONS = (1, 6, 12, 100)
REPLICATION_FACTORS = (1, 3)
WARMING_TOPICS = 10  # of one partition; the JVM compiles meanwhile
WITHIN_S = 300.0
RATIO_MAX = 1.5
SECONDS_MAX = 1.0
SECONDS_MAX_UP_TO_PARTITIONS = 12
VALUE = bytes(100)


@contextmanager
def started(side: str, brokers: int) -> Iterator[str]:
    """A cluster of that side; its bootstrap servers."""
    with ExitStack() as running:
        if side == RAYLOG:
            yield running.enter_context(EmbeddedCluster(brokers)).cluster.bootstrap_servers()
        else:
            version = LATEST if side == KAFKA else VERSION
            properties = {"auto.create.topics.enable": "true"}  # Kafka's default, which ApacheKafka turns off
            yield running.enter_context(ApacheKafka(brokers, version=version, properties=properties)).bootstrap


@dataclass(slots=True)
class Times:
    """Seconds by case and side."""

    created: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    acknowledged: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    first_records: dict[str, dict[str, list[float]]] = field(default_factory=dict)


class Side:
    """The clients of one cluster, and the topics that they make."""

    def __init__(self, name: str, bootstrap: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.name = name
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._numbers = itertools.count()

    def create_and_write(self, partitions: int, replication_factor: int) -> tuple[float, float]:
        """Seconds until ``create_topics`` returned, and until each partition has acknowledged a record."""
        from confluent_kafka.admin import NewTopic

        topic = f"created-{next(self._numbers)}"
        errors: list[object] = []
        start = time.perf_counter()
        new = NewTopic(topic, partitions, replication_factor)
        self._admin.create_topics([new], operation_timeout=WITHIN_S, request_timeout=WITHIN_S)[topic].result()
        created = time.perf_counter() - start
        for partition in range(partitions):
            self._producer.produce(topic, VALUE, partition=partition, on_delivery=lambda error, _: errors.append(error))
        waiting = self._producer.flush(WITHIN_S)
        acknowledged = time.perf_counter() - start
        assert not waiting and errors == [None] * partitions, f"{self.name}, {topic}: {waiting} wait, {errors}"
        self.delete(topic)
        return created, acknowledged

    def delete(self, *topics: str) -> None:
        for each in self._admin.delete_topics(list(topics), operation_timeout=WITHIN_S).values():
            each.result()

    def first_records(self, client: str, rounds: int) -> list[float]:
        """Seconds until the first record of each of so many topics was acknowledged; two more that do not count go before."""
        topics = [f"first-{client}-{number}" for number in range(rounds + 2)]
        producer = CLIENTS[client](self.bootstrap)
        try:
            return [producer.first(topic) for topic in topics][2:]
        finally:
            producer.close()
            self.delete(*topics)


def measure(side: str, brokers: int, rounds: int, most: int, times: Times) -> None:
    """All cases of one side on one cluster: created topics, and on three brokers those that create themselves."""
    with started(side, brokers) as bootstrap:
        running = Side(side, bootstrap)
        for _ in range(WARMING_TOPICS):
            running.create_and_write(1, brokers)
        for partitions in (count for count in PARTITIONS if count <= most):
            case = f"{partitions} partition{'s' * (partitions > 1)}, RF {brokers}"
            running.create_and_write(partitions, brokers)
            found = [running.create_and_write(partitions, brokers) for _ in range(rounds)]
            times.created.setdefault(case, {})[side] = [each for each, _ in found]
            times.acknowledged.setdefault(case, {})[side] = [each for _, each in found]
            print(f"{side}, {case}: {[round(each, 3) for _, each in found]}", file=sys.stderr, flush=True)
        if brokers == max(REPLICATION_FACTORS):
            for client in CLIENTS:
                found_first = running.first_records(client, rounds)
                times.first_records.setdefault(client, {})[side] = found_first
                print(f"{side}, {client}: {[round(each, 3) for each in found_first]}", file=sys.stderr, flush=True)


def judge(bench: Benchmark, times: Times) -> None:
    """Every case with its ratios."""
    for case, sides in times.acknowledged.items():
        found = {side: bench.record(f"{case}, all acknowledged", side, each, unit="s") for side, each in sides.items()}
        for side, each in times.created[case].items():
            bench.record(f"{case}, create_topics alone", side, each, unit="s")
        ours = found[RAYLOG].median
        bench.target(f"{case}: times Kafka {LATEST}'s", ours / found[KAFKA].median, at_most=RATIO_MAX)
        if int(case.split()[0]) <= SECONDS_MAX_UP_TO_PARTITIONS:
            bench.target(f"{case}: seconds", ours, at_most=SECONDS_MAX)
    for client, sides in times.first_records.items():
        case = f"first record of a topic that creates itself, {client}"
        found = {side: bench.record(case, side, each, unit="s") for side, each in sides.items()}
        ratio = found[RAYLOG].median / found[KAFKA].median
        bench.target(f"first record, {client}: times Kafka {LATEST}'s", ratio, at_most=RATIO_MAX)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most-partitions", type=int, default=max(PARTITIONS), help="leave larger topics out")
    parser.add_argument("--only", choices=SIDES, action="append", help="measure this side alone, and print it")
    asked = arguments(parser)
    bench = Benchmark(
        "topic_creation",
        f"a new topic until every partition has acknowledged a record, beside Apache Kafka {LATEST} and {VERSION}",
        settings={
            "clients": "defaults: acks=all, no compression",
            "servers": "defaults",
            "warming": f"{WARMING_TOPICS} topics, and one of each case",
        },
        quick=asked.quick,
    )
    times = Times()
    for brokers in REPLICATION_FACTORS:
        for side in asked.only or SIDES:
            measure(side, brokers, bench.rounds, asked.most_partitions, times)
    if asked.only:
        return 0
    judge(bench, times)
    bench.note(
        "Sides ran one after the other, each alone on the machine. RF 1 is on one broker, RF 3 and the topics that create "
        "themselves on three."
    )
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
