"""raylog's consumers and librdkafka's in one group: the same protocols, the same bytes, the same offsets."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from raw_requests import eventually

from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.groups.context import GroupConfig
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.conformance

_groups = itertools.count()
RANGE, COOPERATIVE = "range", "cooperative-sticky"


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    """Three brokers whose groups do not wait for more members when they begin."""
    groups = GroupConfig(group_initial_rebalance_delay_ms=0)
    with cluster(brokers=3, replica_server=lambda spec: ReplicaServer(spec, groups=groups)) as found:
        yield found


@pytest.fixture
def group() -> str:
    return f"mixed-{next(_groups)}"


class Polled:
    """A consumer that a thread of its own polls. ``values`` is what it has read, ``owned`` which partitions it has."""

    def __init__(self, poll: Callable[[], tuple[list[bytes], set[int]]], close: Callable[[], None]) -> None:
        self.values: list[bytes] = []
        self.owned: set[int] = set()
        self.errors: list[Exception] = []
        self._poll = poll
        self._close = close
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                values, self.owned = self._poll()
                self.values += values
        except Exception as error:
            self.errors.append(error)
        finally:
            self._close()

    def close(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self.errors, self.errors


def native(running: InProcessCluster, group: str, topic: str, strategy: str, **options: Any) -> Polled:
    values = {"group_id": group, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 200}
    consumer = Consumer(running.address, partition_assignment_strategy=strategy, **(values | options))
    consumer.subscribe(topic)

    def poll() -> tuple[list[bytes], set[int]]:
        records = consumer.consume(timeout=0.05)
        return [bytes(each.value or b"") for each in records], {key.partition for key in consumer.assignment()}

    return Polled(poll, consumer.close)


def librdkafka(running: InProcessCluster, group: str, topic: str, strategy: str, **options: Any) -> Polled:
    settings = {
        "bootstrap.servers": running.bootstrap_servers(),
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 60_000,
        "heartbeat.interval.ms": 200,
        "partition.assignment.strategy": strategy,
        "log_level": 0,
    }
    consumer = confluent_kafka.Consumer(settings | options)
    consumer.subscribe([topic])

    def poll() -> tuple[list[bytes], set[int]]:
        messages = consumer.consume(100, timeout=0.05)
        values = [bytes(each.value() or b"") for each in messages if each.error() is None]
        return values, {each.partition for each in consumer.assignment()}

    return Polled(poll, consumer.close)


def produce(running: InProcessCluster, topic: str, first: int, end: int) -> None:
    with Producer(running.address) as producer:
        for number in range(first, end):
            producer.send(topic, b"%d" % number, partition=number % 6)


def read_so_far(*members: Polled) -> list[int]:
    return sorted(int(value) for member in members for value in member.values)


@pytest.mark.parametrize("strategy", [RANGE, "roundrobin", COOPERATIVE])
@pytest.mark.parametrize("leads", ["native", "librdkafka"])
def test_native_and_librdkafka_members_share_one_group(
    running: InProcessCluster, new_topic: Callable[..., str], group: str, strategy: str, leads: str
) -> None:
    topic = new_topic(6)
    makers = [native, librdkafka] if leads == "native" else [librdkafka, native]
    members = [makers[0](running, group, topic, strategy)]
    try:
        eventually(lambda: members[0].owned == set(range(6)), "all partitions for the first")
        produce(running, topic, 0, 60)
        eventually(lambda: read_so_far(*members) == list(range(60)), "everything read once")
        members.append(makers[1](running, group, topic, strategy))
        members.append(native(running, group, topic, strategy))
        eventually(lambda: sorted(len(each.owned) for each in members) == [2, 2, 2], "two partitions for each")
        assert set().union(*(each.owned for each in members)) == set(range(6))
        produce(running, topic, 60, 120)
        eventually(lambda: read_so_far(*members) == list(range(120)), "everything read once by somebody")
        members.pop(0).close()
        eventually(lambda: sorted(len(each.owned) for each in members) == [3, 3], "three partitions for each")
    finally:
        for member in members:
            member.close()


def test_offsets_that_one_commits_the_other_goes_on_at(
    running: InProcessCluster, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(6)
    produce(running, topic, 0, 60)
    for number, make in enumerate((native, librdkafka, native)):
        produce(running, topic, 60 + 6 * number, 66 + 6 * number)
        member = make(running, group, topic, RANGE)
        expected = list(range(66)) if not number else list(range(60 + 6 * number, 66 + 6 * number))
        eventually(lambda member=member, expected=expected: read_so_far(member) == expected, "what nobody has read")
        member.close()
    with AdminClient(running.address) as admin:
        offsets = admin.list_group_offsets(group)
    assert {key.partition: each.offset for key, each in offsets.items()} == dict.fromkeys(range(6), 13)
    assert TopicPartition(topic, 0) in offsets


def test_static_members_of_both_kinds_are_described_alike(
    running: InProcessCluster, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(6)
    ours = native(running, group, topic, RANGE, group_instance_id="ours", client_id="c")
    theirs = librdkafka(running, group, topic, RANGE, **{"group.instance.id": "theirs", "client.id": "c"})
    try:
        eventually(lambda: len(ours.owned) == len(theirs.owned) == 3, "half for each")
        with AdminClient(running.address) as admin:
            found = admin.describe_groups(group)[group]
        shown = {each.group_instance_id: each for each in found.members}
        assert found.state == "Stable" and set(shown) == {"ours", "theirs"}
        assert {key.partition for key in shown["ours"].assignment} == ours.owned
        assert {key.partition for key in shown["theirs"].assignment} == theirs.owned
        assert shown["ours"].client_id == shown["theirs"].client_id == "c"
    finally:
        ours.close()
        theirs.close()
