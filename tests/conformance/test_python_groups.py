"""Consumer groups of kafka-python and aiokafka through the Brokers' listeners: the same cases for both."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Producer
from group_members import CLIENTS, PATIENCE_S, Member
from kafka.admin import KafkaAdminClient
from raw_requests import eventually

from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster

pytestmark = [pytest.mark.conformance, pytest.mark.usefixtures("closed_sockets")]

NewTopicOf = Callable[..., str]
NewMember = Callable[..., Member]
_groups = itertools.count()
STRATEGIES = [
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
]


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    """Three brokers whose groups do not wait long for more members when they begin."""
    with cluster(brokers=3) as found:
        with AdminClient(found.address) as admin:
            admin.alter_configs(broker="all", set={"group.initial.rebalance.delay.ms": "100"})
        yield found


@pytest.fixture
def group() -> str:
    return f"python-group-{next(_groups)}"


@pytest.fixture(params=[*CLIENTS])
def client(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def member(bootstrap: str, group: str) -> Iterator[Callable[..., Member]]:
    """Makes members of the test's group, and closes those that are left at its end."""
    made: list[Member] = []

    def make(client: str, topic: str, **config: Any) -> Member:
        made.append(CLIENTS[client](bootstrap, group, topic, **config))
        return made[-1]

    yield make
    for each in made:
        each.close()


def fill(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert not producer.flush(PATIENCE_S)


def share(members: list[Member], partitions: int) -> bool:
    """Whether the members have all partitions, each one of them once, and none of them none."""
    owned = sorted(number for each in members for number in each.owned)
    return owned == list(range(partitions)) and all(each.owned for each in members)


@pytest.mark.parametrize(("client", "assignor"), STRATEGIES)
def test_members_share_the_partitions_and_take_over_what_a_leaver_had(
    bootstrap: str, new_topic: NewTopicOf, member: NewMember, client: str, assignor: str
) -> None:
    topic = new_topic(4)
    fill(bootstrap, topic, 4, 40)
    first = member(client, topic, assignor=assignor)
    eventually(lambda: share([first], 4), "one member has everything")
    second = member(client, topic, assignor=assignor)
    eventually(lambda: share([first, second], 4) and len(second.owned) == 2, "two members share")
    if assignor == "cooperative-sticky":
        assert all(len(taken) <= 2 for taken in first.taken), f"it gave up more than it had to: {first.taken}"
    second.close()
    eventually(lambda: share([first], 4), "who is left has everything again")
    eventually(lambda: {*first.values, *second.values} >= {b"%d" % each for each in range(40)}, "all records")


def test_commits_are_where_the_next_one_goes_on(
    bootstrap: str, new_topic: NewTopicOf, member: NewMember, client: str
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, 2, 20)
    first = member(client, topic)
    eventually(lambda: len(first.values) == 20, "all records")
    first.commit(0, 7, "seven")
    assert (first.committed(0), first.committed(1)) == (7, None)
    first.close()
    second = member(client, topic)
    eventually(lambda: len(second.values) >= 13, "what was not committed")
    assert len(second.values) == 13, "three of partition 0 and all of partition 1"


def test_automatic_commits_happen_in_the_background_and_at_close(
    bootstrap: str, new_topic: NewTopicOf, member: NewMember, client: str
) -> None:
    topic = new_topic()
    fill(bootstrap, topic, 1, 10)
    first = member(client, topic, enable_auto_commit=True, auto_commit_interval_ms=100)
    eventually(lambda: len(first.values) == 10 and first.committed(0) == 10, "all records, committed")
    first.close()
    fill(bootstrap, topic, 1, 5)
    second = member(client, topic)
    eventually(lambda: len(second.values) >= 5, "the new records")
    assert len(second.values) == 5


def test_rebalance_listeners_hear_what_is_taken_and_given(
    new_topic: NewTopicOf, member: NewMember, client: str
) -> None:
    topic = new_topic(2)
    first = member(client, topic)
    eventually(lambda: {0, 1} in first.given, "it is given everything")
    second = member(client, topic)
    eventually(lambda: share([first, second], 2), "two members share")
    assert {0, 1} in first.taken and first.given[-1] == first.owned and second.given[-1] == second.owned


def test_a_static_member_that_restarts_within_its_session_moves_nothing(
    new_topic: NewTopicOf, member: NewMember, client: str
) -> None:
    topic = new_topic(2)
    first = member(client, topic, group_instance_id="one", session_timeout_ms=300_000)
    second = member(client, topic, group_instance_id="two", session_timeout_ms=300_000)
    eventually(lambda: share([first, second], 2), "two members share")
    had, told = set(second.owned), len(first.given)
    second.close()  # a static member does not leave
    again = member(client, topic, group_instance_id="two", session_timeout_ms=300_000)
    eventually(lambda: again.owned == had, "the same partitions again")
    assert len(first.given) == told and first.owned


def test_groups_are_listed_described_and_their_offsets_told(
    bootstrap: str, new_topic: NewTopicOf, member: NewMember, group: str, client: str
) -> None:
    topic = new_topic(2)
    first = member(client, topic, client_id="somebody")
    eventually(lambda: first.owned == {0, 1}, "it has everything")
    first.commit(1, 3)
    tell = {"kafka-python": told_by_kafka_python, "aiokafka": told_by_aiokafka}[client]
    names, state, members, offsets = tell(bootstrap, group)
    assert group in names and (state, members) == ("Stable", ["somebody"])
    assert offsets == {(topic, 1): 3}


def told_by_kafka_python(bootstrap: str, group: str) -> tuple[list[str], str, list[str], dict[tuple[str, int], int]]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap.split(","))) as admin:
        names = [each["group_id"] for each in admin.list_groups()]
        described = admin.describe_groups([group])[group]
        found = admin.list_group_offsets({group: None})[group]
    offsets = {(each.topic, each.partition): place.offset for each, place in found.items()}
    return names, described["group_state"], [each["client_id"] for each in described["members"]], offsets


def told_by_aiokafka(bootstrap: str, group: str) -> tuple[list[str], str, list[str], dict[tuple[str, int], int]]:
    async def ask() -> tuple[list[str], str, list[str], dict[tuple[str, int], int]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            names = [each[0] for each in await admin.list_consumer_groups()]
            (reply,) = await admin.describe_consumer_groups([group])
            (described,) = reply.groups
            found = await admin.list_consumer_group_offsets(group)
        finally:
            await admin.close()
        offsets = {(each.topic, each.partition): place.offset for each, place in found.items()}
        return names, described[2], [each[1] for each in described[5]], offsets

    return asyncio.run(ask())
