"""Native consumers in groups, against real coordinators in one process."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.groups import requests as group_requests
from raylog.client.groups.membership import RebalanceListener
from raylog.client.groups.offset_commits import OffsetAndMetadata
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.errors import ConfigError, RaylogError
from raylog.groups.context import GroupConfig
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.records.record import Record
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.conformance

OFFSET_COMMIT = 8
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    groups = GroupConfig(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=500)
    with cluster(brokers=3, replica_server=lambda spec: ReplicaServer(spec, groups=groups)) as found:
        yield found


@pytest.fixture
def topic(running: InProcessCluster) -> str:
    name = f"events-{next(_numbers)}"
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, partitions=4, replication_factor=3)])
    return name


@pytest.fixture
def member(running: InProcessCluster, topic: str) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers of a group of the test's own; they are closed at its end. None of their timeouts passes within a test's patience."""
    made: list[Consumer] = []

    def make(**options: Any) -> Consumer:
        values = {
            "group_id": f"group-of-{topic}",
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 300,
            "session_timeout_ms": 300_000,
            "request_timeout_ms": 300_000,
        }
        made.append(Consumer(running.address, **(values | options)))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def test_a_member_always_has_a_heartbeat_at_its_coordinator_whatever_its_interval(
    topic: str, member: Callable[..., Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it hears of a rebalance at once."""
    monkeypatch.setattr("raylog.groups.requests.HEARTBEAT_HELD_BACK_MS", 50)
    monkeypatch.setattr("raylog.client.groups.membership.HEARTBEAT_HELD_BACK_MS", 50)
    sent: list[int] = []

    def heartbeat(*values: Any) -> Any:
        sent.append(1)
        return original(*values)

    original = group_requests.heartbeat
    monkeypatch.setattr(group_requests, "heartbeat", heartbeat)
    consumer = member(heartbeat_interval_ms=300_000, session_timeout_ms=900_000)
    consumer.subscribe(topic)
    while not consumer.assignment():
        consumer.poll(0.05)
    eventually(lambda: len(sent) >= 3, "heartbeats go on")


def produce(running: InProcessCluster, topic: str, count: int, start: int = 0) -> None:
    with Producer(running.address) as producer:
        for number in range(start, start + count):
            producer.send(topic, str(number).encode(), partition=number % 4)


def read(consumer: Consumer, count: int, within_s: float = 60) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.consume(count - len(found), timeout=0.2)
    assert len(found) == count, f"{len(found)} of {count}"
    return found


def until(condition: Callable[[], Any], *polling: Consumer, within_s: float = 60) -> list[Record]:
    """Poll everybody until something is so; what they read meanwhile."""
    found: list[Record] = []
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never comes true"
        for consumer in polling:
            found += consumer.consume(timeout=0.02)
    return found


def polled(*polling: Consumer) -> list[Record]:
    """Poll everybody once; what they read."""
    return [record for consumer in polling for record in consumer.consume(timeout=0.02)]


class Journal(RebalanceListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.threads: set[int] = set()

    def _note(self, kind: str, partitions: list[TopicPartition]) -> None:
        self.calls.append((kind, sorted(key.partition for key in partitions)))
        self.threads.add(threading.get_ident())

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self._note("lost", partitions)


def test_a_member_reads_everything_and_its_successor_goes_on_there(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 20)
    with member() as first:
        first.subscribe(topic)
        assert first.subscription() == [topic]
        assert sorted(int(record.value or b"") for record in read(first, 20)) == list(range(20))
        assert len(first.assignment()) == 4
        known = first.group_metadata()
        assert known.generation >= 1 and known.member_id and known.group_instance_id is None
        with AdminClient(running.address) as admin:
            found = admin.describe_groups(known.group_id)[known.group_id]
        assert [each.member_id for each in found.members] == [known.member_id]
        assert [first.position((topic, index)) for index in range(4)] == [5, 5, 5, 5]
    produce(running, topic, 4, start=20)
    second = member()
    second.subscribe([topic])
    assert sorted(int(record.value or b"") for record in read(second, 4)) == [20, 21, 22, 23]
    assert second.lag() == {TopicPartition(topic, index): 0 for index in range(4)}


def test_offsets_are_committed_with_metadata_per_partition(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 8)
    consumer = member(enable_auto_commit=False)
    consumer.subscribe(topic)
    read(consumer, 8)
    keys = [TopicPartition(topic, index) for index in range(4)]
    assert consumer.committed(keys) == dict.fromkeys(keys)
    consumer.commit({keys[0]: (1, "halfway"), keys[1]: 2})
    found = consumer.committed(keys)
    assert found[keys[0]] == OffsetAndMetadata(1, "halfway") and found[keys[2]] is None
    told: list[Any] = []
    done = threading.Event()
    consumer.commit_async(on_commit=lambda offsets, error: (told.append((offsets, error)), done.set()))
    assert done.wait(60)
    offsets, error = told[0]
    assert error is None and {key: each.offset for key, each in offsets.items()} == dict.fromkeys(keys, 2)
    after = consumer.committed(keys)
    assert {key: each.offset for key, each in after.items() if each is not None} == dict.fromkeys(keys, 2)


def test_what_was_not_committed_is_read_again(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 8)
    with member(enable_auto_commit=False) as first:
        first.subscribe(topic)
        read(first, 8)
        first.commit({TopicPartition(topic, 1): 2})
    second = member(enable_auto_commit=False)
    second.subscribe(topic)
    assert sorted(int(record.value or b"") for record in read(second, 6)) == [0, 2, 3, 4, 6, 7]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_two_members_share_and_the_one_that_stays_takes_over(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer], strategy: str
) -> None:
    first, second = (member(partition_assignment_strategy=strategy) for _ in range(2))
    journal = Journal()
    first.subscribe(topic, journal)
    until(lambda: len(first.assignment()) == 4, first)
    second.subscribe(topic)
    until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    assert not set(first.assignment()) & set(second.assignment())
    produce(running, topic, 8)
    found: list[Record] = []
    eventually(lambda: found.extend(polled(first, second)) or len(found) >= 8, "all records")
    assert len(found) == 8 and sum(first.lag().values()) == 0 == sum(second.lag().values())
    second.close()
    until(lambda: len(first.assignment()) == 4, first)
    produce(running, topic, 4, start=8)
    assert sorted(int(record.value or b"") for record in read(first, 4)) == [8, 9, 10, 11]
    revoked = [partitions for kind, partitions in journal.calls if kind == "revoked"]
    if strategy == "cooperative-sticky":
        assert list(map(len, revoked)) == [2], f"gives up only what goes: {journal.calls}"
    else:
        assert revoked[0] == [0, 1, 2, 3], f"gives up everything: {journal.calls}"
    assert journal.threads == {threading.get_ident()}, "listeners are called by the thread that polls"
    assert not [kind for kind, _ in journal.calls if kind == "lost"]


def test_offsets_are_committed_before_partitions_go(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 40)
    first, second = member(auto_commit_interval_ms=600_000), member(auto_commit_interval_ms=600_000)
    first.subscribe(topic)
    read(first, 40)
    second.subscribe(topic)
    again = until(lambda: len(second.assignment()) == 2, first, second)
    again += until(lambda: all(lag == 0 for lag in second.lag().values()), first, second)
    assert again == [], "nothing is read twice"


def test_listeners_may_seek_and_commit(running: InProcessCluster, topic: str, member: Callable[..., Consumer]) -> None:
    produce(running, topic, 8)
    consumer = member(enable_auto_commit=False)

    def begin(partitions: list[TopicPartition]) -> None:
        for key in partitions:
            consumer.seek(key, 1)

    consumer.subscribe(topic, on_assigned=begin, on_revoked=lambda partitions: consumer.commit())
    assert sorted(int(record.value or b"") for record in read(consumer, 4)) == [4, 5, 6, 7]
    consumer.close()
    checker = member(enable_auto_commit=False)
    found = checker.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    assert found is not None and found.offset == 2, "closing revokes, and the listener committed"


def test_the_example_keeps_offsets_with_its_results(
    running: InProcessCluster,
    topic: str,
    member: Callable[..., Consumer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.util.spec_from_file_location("offsets_outside", EXAMPLES / "offsets_outside.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "TOPIC", topic)
    with Producer(running.address) as producer:
        for number in range(20):
            producer.send(topic, b"1", key=b"account", partition=number % 4)
    path = str(tmp_path / "ledger.db")
    first, second = (member(enable_auto_commit=False) for _ in range(2))
    taken = 0
    while taken < 20:  # its first polls may pass while it joins
        taken += example.add_up(first, example.Ledger(path), idle_polls=1)
    assert taken == 20
    first.close()
    again = 0
    while len(second.assignment()) < 4:
        again += example.add_up(second, example.Ledger(path), idle_polls=1)
    assert again + example.add_up(second, example.Ledger(path), idle_polls=1) == 0, "it goes on where the ledger says"
    assert example.Ledger(path).total() == 20
    assert second.committed([(topic, 0)]) == {TopicPartition(topic, 0): None}


def test_commits_happen_by_themselves_every_interval(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 8)
    consumer = member(auto_commit_interval_ms=50)
    consumer.subscribe(topic)
    read(consumer, 8)
    keys = [TopicPartition(topic, index) for index in range(4)]

    def committed() -> bool:
        return [each.offset for each in consumer.committed(keys).values() if each is not None] == [2, 2, 2, 2]

    until(committed, consumer)


def test_heartbeats_go_on_while_the_user_works(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 4)
    journal = Journal()
    consumer = member(session_timeout_ms=8_000)
    consumer.subscribe(topic, journal)
    read(consumer, 4)
    other = member(session_timeout_ms=8_000)
    other.subscribe(topic)
    began = time.monotonic()
    while time.monotonic() < began + 10:  # the user works for longer than the session; another one polls meanwhile
        other.poll(0.1)
    assert other.assignment() == [], "nothing is taken from who has not polled"
    until(lambda: len(other.assignment()) == 2, consumer, other)
    assert [kind for kind, _ in journal.calls if kind == "lost"] == []


def test_who_does_not_poll_is_out_and_joins_again_with_its_next_poll(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    journal = Journal()
    slow = member(max_poll_interval_ms=1_500)
    slow.subscribe(topic, journal)
    until(lambda: len(slow.assignment()) == 4, slow)
    other = member()
    other.subscribe(topic)
    until(lambda: len(other.assignment()) == 4, other)
    with pytest.raises(RaylogError):
        slow.commit({TopicPartition(topic, 0): 1})
    until(lambda: len(slow.assignment()) == len(other.assignment()) == 2, slow, other)
    assert ("lost", [0, 1, 2, 3]) in journal.calls


def test_a_pattern_takes_in_topics_that_come_later(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    consumer = member(metadata_max_age_ms=200)
    consumer.subscribe(f"^{topic}")
    until(lambda: len(consumer.assignment()) == 4, consumer)
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(f"{topic}-more", partitions=1)])
    until(lambda: len(consumer.assignment()) == 5, consumer)
    with AdminClient(running.address) as admin:
        admin.create_partitions(f"{topic}-more", 3)
    until(lambda: len(consumer.assignment()) == 7, consumer)


def test_a_member_that_is_killed_is_replaced_when_its_connection_ends(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    first = member()
    first.subscribe(topic)
    until(lambda: len(first.assignment()) == 4, first)
    code = "import pickle, sys\nconsumer = pickle.load(sys.stdin.buffer)\nwhile True: consumer.poll(0.1)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(first))
            process.stdin.close()
            until(lambda: len(first.assignment()) == 2, first)
        finally:
            process.kill()
    until(lambda: len(first.assignment()) == 4, first)  # its connection has ended: nobody waits for session.timeout.ms


def test_a_coordinator_that_says_nothing_is_left_when_another_one_leads(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    consumer = member(enable_auto_commit=False)
    consumer.subscribe(topic)
    until(lambda: len(consumer.assignment()) == 4, consumer)
    with AdminClient(running.address) as admin:
        number = partition_for(f"group-of-{topic}")
        place = TopicPartition(OFFSETS_TOPIC, number)
        part = admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions[number]
        handlers = running.launcher.servers[part.leader_node]._server.handlers
        answers, handlers[OFFSET_COMMIT] = handlers[OFFSET_COMMIT], lambda request: None
        try:
            told: list[Any] = []
            done = threading.Event()
            consumer.commit_async({(topic, 0): 0}, lambda offsets, error: (told.append(error), done.set()))
            admin.reassign({place: [*part.replicas[1:], part.replicas[0]]})
            admin.elect_leaders([place])
            assert done.wait(60) and told == [None], "nobody waits for request.timeout.ms"
        finally:
            handlers[OFFSET_COMMIT] = answers


def test_a_static_member_comes_back_to_what_it_had(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    first, second = member(group_instance_id="a"), member(group_instance_id="b")
    journal = Journal()
    first.subscribe(topic, journal)
    second.subscribe(topic)
    until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    had, before = second.assignment(), list(journal.calls)
    second.close()
    again = member(group_instance_id="b")
    again.subscribe(topic)
    until(lambda: len(again.assignment()) == 2, first, again)
    assert again.assignment() == had and journal.calls == before


def test_a_second_consumer_of_an_instance_fences_the_first(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    first = member(group_instance_id="a")
    first.subscribe(topic)
    until(lambda: len(first.assignment()) == 4, first)
    second = member(group_instance_id="a")
    second.subscribe(topic)
    until(lambda: len(second.assignment()) == 4, second)

    def is_fenced() -> bool:
        try:
            first.poll(0.05)
        except RaylogError as error:
            return type(error).__name__ == "FencedInstanceIdError"
        return False

    eventually(is_fenced, "the first one is told")


def test_a_group_goes_on_when_its_coordinator_dies(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 8)
    consumer = member(auto_commit_interval_ms=50)
    consumer.subscribe(topic)
    read(consumer, 8)
    with AdminClient(running.address) as admin:
        number = partition_for(f"group-of-{topic}")
        node = admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions[number].leader_node
    running.crash(node)
    produce(running, topic, 4, start=8)
    read(consumer, 4)
    consumer.commit(timeout=60)
    assert len(consumer.assignment()) == 4


def test_a_consumer_of_its_own_partitions_may_keep_its_offsets_with_a_group(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    produce(running, topic, 8)
    with member() as first:
        first.assign([(topic, 1)])
        assert [int(record.value or b"") for record in read(first, 2)] == [1, 5]
    with member() as second:
        second.assign([(topic, 1)])
        assert second.position((topic, 1)) == 2
        with pytest.raises(ConfigError, match="assigns its own partitions"):
            second.subscribe(topic)


def test_a_subscription_pickles(running: InProcessCluster, topic: str, member: Callable[..., Consumer]) -> None:
    produce(running, topic, 4)
    consumer = member()
    consumer.subscribe(topic)
    restored: Consumer = pickle.loads(pickle.dumps(consumer))
    consumer.close()
    with restored:
        read(restored, 4)


def test_without_a_group_there_is_nothing_to_subscribe_to(running: InProcessCluster) -> None:
    with Consumer(running.address) as consumer, pytest.raises(ConfigError, match=r"set group\.id"):
        consumer.subscribe("t")


def test_an_unopened_consumer_can_be_asked_while_another_thread_polls(member: Callable[..., Consumer]) -> None:
    consumer = member()
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(consumer.assignment()), daemon=True)
    with consumer._lock:  # as a poll holds it while it waits
        asking.start()
        asking.join(60)
    assert found == [[]]


def test_unsubscribing_leaves_the_group(running: InProcessCluster, topic: str, member: Callable[..., Consumer]) -> None:
    first, second = member(), member()
    journal = Journal()
    first.subscribe(topic, journal)
    second.subscribe(topic)
    until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    first.unsubscribe()
    assert first.assignment() == [] and journal.calls[-1][0] == "revoked"
    until(lambda: len(second.assignment()) == 4, second)


def test_without_an_offset_and_a_rule_the_user_is_told(
    running: InProcessCluster, topic: str, member: Callable[..., Consumer]
) -> None:
    consumer = member(auto_offset_reset="none")
    consumer.subscribe(topic)
    with pytest.raises(RaylogError, match="no committed offset"):
        until(lambda: False, consumer)


def test_an_async_consumer_is_a_member_too(running: InProcessCluster, topic: str) -> None:
    produce(running, topic, 8)
    calls: list[str] = []

    async def assigned(partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        calls.append(f"assigned {len(partitions)}")

    async def main() -> int:
        options = {"group_id": f"async-{topic}", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AsyncConsumer(running.address, options) as consumer:
            consumer.subscribe(topic, on_assigned=assigned, on_revoked=lambda partitions: calls.append("revoked"))
            found: list[Record] = []
            while len(found) < 8:
                found += await consumer.consume(timeout=1)
            await consumer.commit()
            committed = await consumer.committed([(topic, 0)])
            return sum(each.offset for each in committed.values() if each is not None)

    assert asyncio.run(main()) == 2
    assert calls == ["assigned 4", "revoked"]
