"""Clients of a coordinator of transactions that has died go on at the broker that they know."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, request
from outside_producer import Producer
from raw_requests import at_doors, eventually, isr_is_whole

from raylog.client.sync import AdminClient
from raylog.listener import coordinator_stand_ins
from raylog.listener.coordinator_stand_ins import NAMED_MS, CoordinatorStandIns
from raylog.listener.routes import Routes
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import (
    ActorDied,
    ActorRegistered,
    BrokerRegistered,
    ClusterFormatted,
    DiskRegistered,
    PartitionChanged,
    PartitionState,
    ReplicaSlot,
    TopicCreated,
)
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id

NONE = ErrorCode.none
TOPIC = uuid.UUID(int=77)
BROKERS = (0, 1, 2)


# ---------------------------------------------------------------------- from an image alone


class Sight:
    """What each broker makes of one image of three, whose partition 0 has a replica on each."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.image = MetadataImage.of(
            [ClusterFormatted("c"), *map(BrokerRegistered, BROKERS), TopicCreated(TOPIC, TRANSACTIONS_TOPIC)]
        )
        self.incarnations = dict.fromkeys(BROKERS, 0)
        self.stand_ins = [
            CoordinatorStandIns(Routes(each, lambda: self.image), lambda: self.now_ms) for each in BROKERS
        ]
        for broker in BROKERS:
            self.image.apply(DiskRegistered(uuid.UUID(int=broker + 1), broker, f"/{broker}"))
            self.register(broker, BROKER_SLOT, 5, Endpoint(f"outside-{broker}", 9092))
            self.start(broker)
        self.lead(0)

    def register(self, broker: int, slot: int, incarnation: int, listener: Endpoint | None = None) -> None:
        inside = Endpoint(f"inside-{broker}", slot)
        disk = uuid.UUID(int=broker + 1)
        self.image.apply(ActorRegistered(node_id(broker, slot), disk, incarnation, inside, "boot", listener=listener))

    def start(self, broker: int) -> None:
        self.incarnations[broker] += 1
        self.register(broker, 2, self.incarnations[broker])

    def die(self, broker: int) -> None:
        self.image.apply(ActorDied(node_id(broker, 2), self.incarnations[broker]))

    def lead(self, broker: int) -> None:
        before = self.image.topics[TOPIC].partitions.get(0)
        slots = tuple(ReplicaSlot(each, node_id(each, 2), uuid.UUID(int=each + 1), 5) for each in BROKERS)
        leading = {"leader": broker, "leader_incarnation": self.incarnations[broker]} if broker >= 0 else {}
        epoch = 0 if before is None else before.leader_epoch + 1
        state = PartitionState(slots, BROKERS, leader_epoch=epoch, **leading)
        self.image.apply(PartitionChanged(TOPIC, 0, state))
        self.follow()

    def follow(self) -> None:
        for each in self.stand_ins:
            each.follow()

    @property
    def named(self) -> int | None:
        (found,) = {each.broker(0) for each in self.stand_ins}
        return found

    @property
    def passing(self) -> list[int]:
        return [broker for broker in BROKERS if self.stand_ins[broker].passes_on(0)]


@pytest.fixture
def sight() -> Sight:
    return Sight()


@pytest.mark.parametrize("leaders", [[1], [-1, 1]], ids=["at once", "after a while"])
def test_where_a_coordinator_has_died_its_broker_is_named_for_a_while_and_passes_on(
    sight: Sight, leaders: list[int]
) -> None:
    assert (sight.named, sight.passing) == (None, [])
    sight.die(0)
    for leader in leaders:
        sight.lead(leader)
        sight.start(0)
    assert (sight.named, sight.passing) == (0, [0])
    sight.now_ms = NAMED_MS - 1
    assert sight.named == 0
    sight.now_ms = NAMED_MS
    assert (sight.named, sight.passing) == (None, [0]), "who is there may stay"


def test_the_lead_that_comes_back_ends_it(sight: Sight) -> None:
    sight.die(0)
    sight.lead(1)
    sight.start(0)
    sight.lead(0)
    assert (sight.named, sight.passing) == (None, [])
    sight.lead(1)
    assert (sight.named, sight.passing) == (None, []), "nobody has died since"


def test_a_process_that_leads_again_in_its_next_life_is_no_change(sight: Sight) -> None:
    sight.die(0)
    sight.lead(-1)
    sight.start(0)
    sight.lead(0)
    assert (sight.named, sight.passing) == (None, [])


def test_while_a_broker_is_named_it_stays_that_one(sight: Sight) -> None:
    sight.die(0)
    sight.lead(1)
    sight.now_ms = NAMED_MS - 1
    sight.die(1)
    sight.lead(2)
    assert (sight.named, sight.passing) == (0, [0])
    sight.now_ms += NAMED_MS - 1
    assert sight.named == 0, "from then on"
    sight.now_ms += 1
    sight.die(2)
    sight.start(1)
    sight.lead(1)
    assert (sight.named, sight.passing) == (2, [0, 2])


def test_a_broker_whose_broker_process_has_died_too_is_not_named(sight: Sight) -> None:
    sight.die(0)
    sight.lead(1)
    sight.image.apply(ActorDied(node_id(0, BROKER_SLOT), 5))
    assert sight.named is None
    sight.register(0, BROKER_SLOT, 6, Endpoint("outside-0", 9092))
    assert sight.named is None, "it does not know what it would stand in for"


def test_a_broker_whose_broker_process_died_first_is_not_named(sight: Sight) -> None:
    sight.image.apply(ActorDied(node_id(0, BROKER_SLOT), 5))
    sight.die(0)
    sight.lead(1)
    sight.register(0, BROKER_SLOT, 6, Endpoint("outside-0", 9092))
    assert sight.named is None


def test_a_broker_without_a_listener_is_not_named(sight: Sight) -> None:
    sight.register(0, BROKER_SLOT, 6)
    sight.die(0)
    sight.lead(1)
    assert sight.named is None


def test_a_lead_that_moves_while_its_process_lives_is_no_death(sight: Sight) -> None:
    sight.lead(1)
    assert (sight.named, sight.passing) == (None, [])


# ---------------------------------------------------------------------- through listeners


def named(client: Callable[..., Client], broker: int, transactional_id: str) -> int:
    """The coordinator of an id, as a broker names it; −1 if it knows none."""
    (found,) = client(broker).ask(request(10, 4, key_type=1, coordinator_keys=(transactional_id,))).coordinators
    return int(found.node_id)


def leader(running: InProcessCluster, number: int) -> int:
    return running.controller._controller.image.topic_named(TRANSACTIONS_TOPIC).partitions[number].leader


def crash(running: InProcessCluster, broker: int, number: int) -> None:
    """End the process of that broker that holds the partition."""
    state = running.controller._controller.image.topic_named(TRANSACTIONS_TOPIC).partitions[number]
    running.crash(state.node_of(broker))


@pytest.mark.core
def test_transactions_go_on_at_the_broker_where_their_coordinator_has_died(
    running: InProcessCluster,
    client: Callable[..., Client],
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, one = new_topic((0, 1, 2)), Producer(client, "stays")
    one.initialised()
    number = partition_for(one.id)
    eventually(lambda: isr_is_whole(running, TRANSACTIONS_TOPIC, 50), "all replicas in sync")
    home = leader(running, number)
    monkeypatch.setattr(coordinator_stand_ins, "NAMED_MS", 600_000)  # whatever the machine does meanwhile
    crash(running, home, number)
    one.client = client(home)
    for _ in range(6):
        eventually(lambda: one.add(topic, 0) == {0: NONE}, "the transaction before to be complete")
        assert one.end().error_code is NONE
    assert leader(running, number) != home, "it was passed on"
    assert not at_doors(running), "it does not move to another broker's process"
    eventually(lambda: {named(client, broker, one.id) for broker in range(3)} == {home}, "all to name that broker")
    monkeypatch.setattr(coordinator_stand_ins, "NAMED_MS", 0)
    assert {named(client, broker, one.id) for broker in range(3)} == {leader(running, number)}
    eventually(lambda: one.add(topic, 0) == {0: NONE}, "the transaction before to be complete")
    assert one.end().error_code is NONE
    eventually(lambda: isr_is_whole(running, TRANSACTIONS_TOPIC, 50), "all replicas in sync")
    with AdminClient(running.address) as admin:
        admin.elect_leaders()
    eventually(lambda: named(client, 0, one.id) == home, "the lead to come back")

    def moves() -> bool:
        return one.add(topic, 0) == {0: NONE} and one.end().error_code is NONE and bool(at_doors(running))

    eventually(moves, "the connection to move to this broker's own process")
