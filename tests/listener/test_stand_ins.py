"""Through which Broker clients reach what a broker leads while its own listener is away: without sockets, from an image alone."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode
from outside import metadata

from raylog.kafka.context import EXTERNAL
from raylog.listener import cluster_view
from raylog.listener.lately_gone import LINGERS_MS, LatelyGone
from raylog.listener.owners import Owner
from raylog.listener.routes import Redirect, Routes
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
from raylog.types import BROKER_SLOT, Endpoint, node_id

TOPIC = uuid.UUID(int=77)
BROKERS = (0, 1, 2, 3)
LED = SimpleNamespace(topic_id=TOPIC)
NOT_LEADER = ErrorCode.not_leader_or_follower


def disk(broker: int) -> uuid.UUID:
    return uuid.UUID(int=broker + 1)


def image(*away: int, without_listener: tuple[int, ...] = ()) -> MetadataImage:
    """Four brokers, each leading the partition of its number, which has no other replica; the Brokers of some have died."""
    found = MetadataImage.of([ClusterFormatted("c"), *map(BrokerRegistered, BROKERS), TopicCreated(TOPIC, "t")])
    for broker in BROKERS:
        found.apply(DiskRegistered(disk(broker), broker, f"/{broker}"))
        listener = Endpoint(f"outside-{broker}", 9092) if broker not in without_listener else None
        for slot, advertised in ((BROKER_SLOT, listener), (2, None)):
            inside = Endpoint(f"inside-{broker}", slot)
            found.apply(ActorRegistered(node_id(broker, slot), disk(broker), 5, inside, "boot", listener=advertised))
        slots = (ReplicaSlot(broker, node_id(broker, 2), disk(broker), 5),)
        state = PartitionState(slots, (broker,), leader=broker, leader_incarnation=5, leader_epoch=3)
        found.apply(PartitionChanged(TOPIC, broker, state))
    for broker in away:
        found.apply(ActorDied(node_id(broker, BROKER_SLOT), 5))
    return found


def routes(found: MetadataImage) -> dict[int, Routes]:
    """What each broker's own copy says."""
    return {broker: Routes(broker, lambda: found) for broker in BROKERS}


def served_by(found: MetadataImage, partition: int) -> list[int]:
    """The brokers that forward to the process that leads a partition."""
    serving = []
    for broker, each in routes(found).items():
        place = each.leader(LED, partition)
        if isinstance(place, Owner):
            assert place.node_id == node_id(partition, 2)
            serving.append(broker)
    return serving


def test_a_broker_that_is_there_is_reached_at_its_own_listener() -> None:
    assert [served_by(image(), broker) for broker in BROKERS] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("away", [(0,), (1,), (3,), (0, 1), (1, 2, 3)])
def test_what_a_broker_leads_that_is_away_is_served_by_exactly_one_that_is_there(away: tuple[int, ...]) -> None:
    found = image(*away)
    for broker in away:
        (stand_in,) = [each for each in served_by(found, broker) if each not in away]
        assert {each.stand_in_of(broker) for each in routes(found).values()} == {stand_in}


def test_brokers_that_are_away_are_spread_over_those_that_are_there() -> None:
    found = routes(image(2, 3))[0]
    assert {found.stand_in_of(2), found.stand_in_of(3)} == {0, 1}


def test_who_is_not_the_stand_in_names_it() -> None:
    found = routes(image(1))
    (stand_in,) = [broker for broker in (0, 2, 3) if isinstance(found[broker].leader(LED, 1), Owner)]
    for broker in {0, 2, 3} - {stand_in}:
        assert found[broker].leader(LED, 1) == Redirect(NOT_LEADER, stand_in, 3)
        assert found[broker].reader(LED, 1) == Redirect(NOT_LEADER, stand_in, 3)
    assert isinstance(found[stand_in].reader(LED, 1), Owner)


def test_a_broker_without_a_listener_of_its_own_is_served_by_another_one() -> None:
    found = image(without_listener=(2,))
    assert len([broker for broker in served_by(found, 2) if broker != 2]) == 1


def test_metadata_names_the_stand_in_as_the_leader_and_leaves_the_rest_as_it_is() -> None:
    found = routes(image(1))[0]
    reply = cluster_view.metadata(found, metadata("t"), 12, listener=EXTERNAL, controller=0, refused={})
    assert [each.node_id for each in reply.brokers] == [0, 2, 3]
    part = reply.topics[0].partitions[1]
    assert (part.error_code, part.leader_id) == (ErrorCode.none, found.stand_in_of(1))
    assert (part.leader_epoch, part.replica_nodes, part.isr_nodes, part.offline_replicas) == (3, (1,), (1,), ())


class Gone:
    """A Broker's view of brokers that went away, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.image = image()
        self.routes = Routes(0, lambda: self.image)
        self.lately = LatelyGone(self.routes, lambda: self.now_ms)
        self.lately.follow()

    def at(self, now_ms: int, *away: int) -> list[int]:
        """Whom Metadata names at that time, when these are away."""
        self.now_ms, self.image = now_ms, image(*away)
        self.lately.follow()
        reply = cluster_view.metadata(
            self.routes,
            metadata("t"),
            12,
            listener=EXTERNAL,
            controller=0,
            refused={},
            gone=self.lately.listeners(),
        )
        leaders = {part.leader_id for part in reply.topics[0].partitions}
        assert not leaders & set(away), "they lead nothing"
        return [each.node_id for each in reply.brokers]


def test_metadata_names_a_broker_for_as_long_as_kafka_after_it_has_gone() -> None:
    gone = Gone()
    assert gone.at(1_000, 1) == [0, 1, 2, 3]
    assert gone.at(3_000, 1, 2) == [0, 1, 2, 3]
    assert gone.at(1_000 + LINGERS_MS - 1, 1, 2) == [0, 1, 2, 3]
    assert gone.at(1_000 + LINGERS_MS, 1, 2) == [0, 2, 3]
    assert gone.at(3_000 + LINGERS_MS, 1, 2) == [0, 3]


def test_a_broker_that_goes_again_is_named_for_as_long_again() -> None:
    gone = Gone()
    assert gone.at(1_000, 1) == [0, 1, 2, 3]
    assert gone.at(5_000) == [0, 1, 2, 3]
    assert gone.at(8_000, 1) == [0, 1, 2, 3]
    assert gone.at(8_000 + LINGERS_MS - 1, 1) == [0, 1, 2, 3]
    assert gone.at(8_000 + LINGERS_MS, 1) == [0, 2, 3]


def test_who_was_away_before_this_broker_came_is_not_named() -> None:
    found = image(1)
    lately = LatelyGone(Routes(0, lambda: found), lambda: 0)
    lately.follow()
    assert lately.listeners() == []


def test_where_no_broker_is_there_nobody_leads_outside() -> None:
    found = routes(image(*BROKERS))[0]
    part = (
        cluster_view.metadata(found, metadata("t"), 12, listener=EXTERNAL, controller=0, refused={})
        .topics[0]
        .partitions[1]
    )
    assert (part.error_code, part.leader_id) == (ErrorCode.leader_not_available, -1)


def test_a_leader_that_has_died_itself_leads_nowhere() -> None:
    dead = image(1)
    dead.apply(ActorDied(node_id(1, 2), 5))
    found = routes(dead)[0]
    part = (
        cluster_view.metadata(found, metadata("t"), 12, listener=EXTERNAL, controller=0, refused={})
        .topics[0]
        .partitions[1]
    )
    assert (part.error_code, part.leader_id) == (ErrorCode.leader_not_available, -1)
    assert all(isinstance(each.leader(LED, 1), Redirect) for each in routes(dead).values())
