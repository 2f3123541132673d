"""Consumer groups in motion: how fast ten members share out 100 partitions, and how long reading and committing pause when somebody dies.

raylog embedded, every server a Ray actor, and Apache Kafka as three KRaft brokers, both up for the whole script;
``group.initial.rebalance.delay.ms`` 0, the servers' other defaults; a topic of 100 partitions, RF 1 (raylog's packed, one
process per broker). Ten consumers, each a process of its own, with their clients' defaults (eager ``range``): raylog's native
one, and confluent-kafka's for Kafka.

- *join to stable*: from the last member's start, its client imported, until every member owns its part of the 100
  partitions, the group being Stable with ten members. New processes and a new group each time.
- *member killed*: SIGKILL of one member, while a record goes to every partition each 50 ms: until another member has read the first
  record of the last one of its partitions. Members with ``cooperative-sticky`` read on meanwhile. Kafka learns of it when the
  session times out: its default of 45 s, and the 6 s that are the least that it takes.
- *coordinator killed*: SIGKILL of the process that leads the group's partition of ``__consumer_offsets`` (RF 3), while every member
  commits each 50 ms and waits for the answer: the longest time between two commits of one member, of whichever it was
  longest. raylog's coordinators are processes of their own, a broker of Kafka dies whole.

::

    python benchmarks/bench_rebalance.py                          # everything
    python benchmarks/bench_rebalance.py --cases join --only raylog   # these anew, the others' results are kept
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from apache_kafka import VERSION, ApacheKafka
from confluent_kafka import ConsumerGroupState
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from embedded import EmbeddedCluster
from harness import Benchmark, Measurement, arguments
from member_processes import Member, Members, Membership
from paced_load import longest_gap

from raylog.client.sync import Producer
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for

TOPIC = "shared"
PARTITIONS = 100
MEMBERS = 10
RUNS = 10
BURST_EVERY_S = 0.05
COMMIT_EVERY_S = 0.05
VALUE = bytes(100)
CALM_S = 1.0  # before a strike, and up to as much more
WATCHED_S = 2.0  # after everybody has committed again

JOIN, MEMBER, COORDINATOR = "join", "member", "coordinator"
TITLES = {
    JOIN: "join to stable",
    MEMBER: "member killed: its partitions read again",
    COORDINATOR: "coordinator killed: commits again",
}
BOUNDS_S = {JOIN: 2.0, MEMBER: 1.0, COORDINATOR: 1.0}
COOPERATIVE = "cooperative-sticky"

Found = dict[str, dict[str, Measurement]]


class Raylog:
    """An embedded cluster of three brokers."""

    name: ClassVar = "raylog"
    client: ClassVar = "raylog"
    variants: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        JOIN: {"": {}},
        MEMBER: {"": {}, COOPERATIVE: {"partition.assignment.strategy": COOPERATIVE}},
        COORDINATOR: {"": {}},
    }

    def __init__(self) -> None:
        self._running = EmbeddedCluster()

    def __enter__(self) -> Self:
        self._running.__enter__()
        try:
            self.address = self._running.cluster.address
            self._admin = self._running.cluster.admin()
            self._admin.alter_configs(broker="all", set={"group.initial.rebalance.delay.ms": "0"})
            self._running.create_topic(TOPIC, partitions=PARTITIONS, configs={"replicas.per.actor": PARTITIONS})
            self._producer = Producer(self.address, linger_ms=0)
        except BaseException:
            self._running.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close(0)
        self._admin.close()
        self._running.__exit__(None, None, None)

    def options(self, group: str) -> dict[str, Any]:
        return {"group.id": group, "auto.offset.reset": "latest"}

    def send(self, partition: int) -> None:
        self._producer.send(TOPIC, VALUE, partition=partition)

    def stable_members(self, group: str) -> int:
        """How many members the group has, if it is stable."""
        found = self._admin.describe_groups(group)[group]
        return len(found.members) if found.state == "Stable" else -1

    def kill_coordinator(self, group: str) -> Callable[[], None]:
        """Gives what mends it."""
        pid = self._running.leader_pid(OFFSETS_TOPIC, partition_for(group))
        os.kill(pid, signal.SIGKILL)

        def mend() -> None:
            while self._running.leader_pid(OFFSETS_TOPIC, partition_for(group)) in (0, pid):
                time.sleep(0.05)
            self._running.await_whole(OFFSETS_TOPIC, 3)

        return mend


class Kafka:
    """Three combined KRaft brokers."""

    name: ClassVar = "Apache Kafka"
    client: ClassVar = "confluent-kafka"
    variants: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        JOIN: {"": {}},
        MEMBER: {"session 6 s": {"session.timeout.ms": 6000}, "session 45 s (default)": {}},
        COORDINATOR: {"": {}},
    }

    def __init__(self) -> None:
        self._kafka = ApacheKafka(3)

    def __enter__(self) -> Self:
        self._kafka.__enter__()
        try:
            self.address = self._kafka.bootstrap
            self._kafka.create_topic(TOPIC, partitions=PARTITIONS)
            self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            self._producer = KafkaProducer({"bootstrap.servers": self.address, "linger.ms": 0, "log_level": 0})
        except BaseException:
            self._kafka.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.__exit__(None, None, None)

    def options(self, group: str) -> dict[str, Any]:
        return {"group.id": group, "auto.offset.reset": "latest"}

    def send(self, partition: int) -> None:
        self._producer.produce(TOPIC, VALUE, partition=partition)
        self._producer.poll(0)

    def stable_members(self, group: str) -> int:
        found = self._admin.describe_consumer_groups([group], request_timeout=10)[group].result()
        return len(found.members) if found.state == ConsumerGroupState.STABLE else -1

    def kill_coordinator(self, group: str) -> Callable[[], None]:
        broker = self._kafka.leader(OFFSETS_TOPIC, partition_for(group))
        self._kafka.kill(broker)

        def mend() -> None:
            self._kafka.start_broker(broker)
            whole_in_a_row = 0
            while whole_in_a_row < 5:  # a broker may describe what was, for a moment
                topics = self._admin.list_topics(timeout=30).topics
                parts = [*topics[OFFSETS_TOPIC].partitions.values(), *topics[TOPIC].partitions.values()]
                whole = all(part.leader > 0 and len(part.isrs) == len(part.replicas) for part in parts)
                whole_in_a_row = whole_in_a_row + 1 if whole else 0
                time.sleep(0.2)

        return mend


Contestant = Raylog | Kafka
CONTESTANTS: dict[str, Callable[[], Contestant]] = {Raylog.name: Raylog, Kafka.name: Kafka}


class Load(threading.Thread):
    """A record to every partition each ``BURST_EVERY_S``."""

    def __init__(self, contestant: Contestant) -> None:
        super().__init__(daemon=True)
        self._contestant = contestant
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(BURST_EVERY_S):
            for partition in range(PARTITIONS):
                try:
                    self._contestant.send(partition)
                except BufferError:  # of Kafka's client, while a broker is away
                    break

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


# ------------------------------------------------------------------ what is measured


def joined_at(contestant: Contestant, members: Members, group: str) -> float:
    """Waits until all members share all partitions in a stable group; the moment when the last was told its part."""

    def is_shared() -> bool:
        owned = [partition for each in members.all for partition in each.owned]
        return sorted(owned) == list(range(PARTITIONS)) and all(each.owned for each in members.all)

    while True:
        members.await_true(is_shared, "everybody owns its part", timeout_s=120)
        at = max(each.assigned[-1][0] for each in members.all)
        is_stable = contestant.stable_members(group) == MEMBERS
        if is_stable and at == max(each.assigned[-1][0] for each in members.all):
            return at
        time.sleep(0.02)


def await_reading(members: Members) -> None:
    """Waits until every member has read from each of its partitions since it owns them."""

    def is_reading() -> bool:
        return all(
            {partition for at, partition in each.read if at >= each.assigned[-1][0]} >= set(each.owned)
            for each in members.all
        )

    members.await_true(is_reading, "everybody reads all its partitions")


def time_to_join(contestant: Contestant, group: str, options: Mapping[str, Any]) -> float:
    members = Members(contestant.client, MEMBERS)
    try:
        membership = Membership(contestant.client, contestant.address, TOPIC, contestant.options(group) | dict(options))
        start = members.join(membership)
        taken = joined_at(contestant, members, group) - start
        members.leave()
        return taken
    finally:
        members.stop()


def member_kills(
    contestant: Contestant, group: str, options: Mapping[str, Any], runs: int, dice: random.Random
) -> Measurement:
    membership = Membership(contestant.client, contestant.address, TOPIC, contestant.options(group) | dict(options))
    pauses = Measurement("s", notes={"told": [], "survivors": []})
    members = Members(contestant.client, MEMBERS)
    try:
        with Load(contestant):
            for _ in range(runs):
                members.join(membership)
                joined_at(contestant, members, group)
                await_reading(members)
                time.sleep(CALM_S * (1 + dice.random()))
                victim = dice.choice(members.all)
                pause, told = _kill_member(members, victim)
                pauses.values.append(pause)
                pauses.notes["told"].append(told)
                print(f"{contestant.name}, {group}: {pause:.3f} s, told of new parts after {told:.3f} s", flush=True)
                members.replace(victim)
        members.leave()
        return pauses
    finally:
        members.stop()


def _kill_member(members: Members, victim: Member) -> tuple[float, float]:
    """Seconds until all its partitions were read by others, and until the last of those was told its part."""
    orphans = set(victim.owned)
    others = [each for each in members.all if each is not victim]
    first: dict[int, float] = {}
    at = time.monotonic()
    victim.process.kill()

    def are_read() -> bool:
        for each in others:
            for read_at, partition in each.read:
                if read_at > at and partition in orphans:
                    first[partition] = min(first.get(partition, read_at), read_at)
        return len(first) == len(orphans)

    members.await_true(are_read, "the dead member's partitions are read", timeout_s=120)
    told = max(told_at for each in others for told_at, owned in each.assigned if orphans & set(owned) and told_at > at)
    return max(first.values()) - at, told - at


def coordinator_kills(
    contestant: Contestant, group: str, options: Mapping[str, Any], runs: int, dice: random.Random
) -> Measurement:
    chosen = contestant.options(group) | {"enable.auto.commit": False} | dict(options)
    membership = Membership(contestant.client, contestant.address, TOPIC, chosen, COMMIT_EVERY_S)
    pauses = Measurement("s", notes={"shortest": [], "calm": []})
    members = Members(contestant.client, MEMBERS)
    try:
        members.join(membership)
        joined_at(contestant, members, group)
        with Load(contestant):
            for _ in range(runs):
                await_commits(members, time.monotonic())
                time.sleep(CALM_S * (1 + dice.random()))
                at = time.monotonic()
                mend = contestant.kill_coordinator(group)
                await_commits(members, at)
                time.sleep(WATCHED_S)
                end = time.monotonic()
                mend()
                gaps = [longest_gap(array("d", each.committed), at, end) for each in members.all]
                calm = max(longest_gap(array("d", each.committed), at - CALM_S, at) for each in members.all)
                pauses.values.append(max(gaps))
                pauses.notes["shortest"].append(min(gaps))
                pauses.notes["calm"].append(calm)
                print(
                    f"{contestant.name}, {group}: {min(gaps):.3f} – {max(gaps):.3f} s, {calm:.3f} s before", flush=True
                )
        members.leave()
        return pauses
    finally:
        members.stop()


def await_commits(members: Members, since: float) -> None:
    def have_committed() -> bool:
        return all(sum(at > since for at in each.committed[-5:]) == 5 for each in members.all)

    members.await_true(have_committed, "everybody has committed five times", timeout_s=120)


# ------------------------------------------------------------------ the script


def label(contestant: Contestant, variant: str) -> str:
    return f"{contestant.name}, {variant}" if variant else contestant.name


def measure(contestants: list[Contestant], cases: list[str], runs: int, dice: random.Random) -> Found:
    found: Found = {}
    for contestant in contestants:
        time_to_join(contestant, "warm-up", {})  # the first group of a cluster has __consumer_offsets made
    if JOIN in cases:
        measured = found[TITLES[JOIN]] = {each.name: Measurement("s") for each in contestants}
        for number in range(runs):
            for contestant in contestants if number % 2 == 0 else reversed(contestants):
                taken = time_to_join(contestant, f"join-{number}", {})
                measured[contestant.name].values.append(taken)
                print(f"{contestant.name}, join: {taken:.3f} s", flush=True)
    for case, strike in ((MEMBER, member_kills), (COORDINATOR, coordinator_kills)):
        if case not in cases:
            continue
        measured = found[TITLES[case]] = {}
        for contestant in contestants:
            for variant, options in contestant.variants[case].items():
                group = f"{case}-{variant or 'plain'}"
                count = min(runs, 3) if "45 s" in variant else runs
                measured[label(contestant, variant)] = strike(contestant, group, options, count, dice)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=None, help=f"of each kind (default {RUNS})")
    parser.add_argument("--cases", nargs="+", choices=list(TITLES), default=list(TITLES), help="only these")
    parser.add_argument("--only", choices=list(CONTESTANTS), help="one contestant; the other's results are kept")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the strikes")
    options = arguments(parser)
    runs = options.runs or (1 if options.quick else RUNS)
    bench = Benchmark(
        "rebalance",
        f"a group of {MEMBERS} consumers on {PARTITIONS} partitions: joining, and the death of a member and of the coordinator, "
        f"beside Apache Kafka {VERSION}",
        settings={
            "members": MEMBERS,
            "partitions": PARTITIONS,
            "brokers": 3,
            "group.initial.rebalance.delay.ms": 0,
            "records_per_second": PARTITIONS / BURST_EVERY_S,
            "commits_per_second_each": 1 / COMMIT_EVERY_S,
            "seed": options.seed,
        },
        quick=options.quick,
    )
    bench.cases = {} if options.quick else bench.earlier()
    makers = [CONTESTANTS[options.only]] if options.only else list(CONTESTANTS.values())
    dice = random.Random(options.seed)
    with Running([make() for make in makers]) as contestants:
        found = measure(contestants, options.cases, runs, dice)
    for case in TITLES.values():
        if measured := bench.cases.get(case, {}) | found.get(case, {}):
            bench.cases[case] = dict(sorted(measured.items(), key=lambda each: not each[0].startswith(Raylog.name)))
    bench.cases = {case: bench.cases[case] for case in TITLES.values() if case in bench.cases}
    for kind, case in TITLES.items():
        for name, measurement in bench.cases.get(case, {}).items():
            if name.startswith(Raylog.name):
                bench.target(f"{case}, {name}, longest, s", max(measurement.values), at_most=BOUNDS_S[kind])
    counts = {f"{case}, {name}": len(each.values) for case, by in bench.cases.items() for name, each in by.items()}
    bench.note(f"Runs: {'; '.join(f'{name}: {count}' for name, count in counts.items())}.")
    return bench.finish()


class Running:
    """Contestants between ``with`` and its end."""

    def __init__(self, contestants: list[Contestant]) -> None:
        self._contestants = contestants
        self._started: list[Contestant] = []

    def __enter__(self) -> list[Contestant]:
        try:
            for each in self._contestants:
                self._started.append(each.__enter__())
        except BaseException:
            self.__exit__()
            raise
        return self._started

    def __exit__(self, *_: object) -> None:
        while self._started:
            self._started.pop().__exit__(None, None, None)


if __name__ == "__main__":
    raise SystemExit(main())
