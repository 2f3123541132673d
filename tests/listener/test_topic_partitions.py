"""DescribeTopicPartitions (KIP-966), which Java's AdminClient asks for before Metadata: pages of topics by name, and who may lead."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, metadata, request

from raylog.kafka import table
from raylog.kafka.context import EXTERNAL
from raylog.listener import cluster_view
from raylog.listener.routes import Routes
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import (
    ActorRegistered,
    BrokerRegistered,
    ClusterFormatted,
    DiskRegistered,
    PartitionChanged,
    PartitionState,
    ReplicaSlot,
    TopicCreated,
)
from raylog.types import Endpoint, node_id
from raylog.wire.frames import decode_response, encode_response

KEY = table.DESCRIBE_TOPIC_PARTITIONS.key
SIZES = {"a": 2, "b": 3, "c": 1}
DISK = uuid.UUID(int=1)


def everything(name: str) -> bool:
    return True


def routes(**changes: Any) -> Routes:
    """A broker that leads topics of those sizes; ``changes`` to the state of their partitions."""
    image = MetadataImage.of([ClusterFormatted("c"), BrokerRegistered(0), DiskRegistered(DISK, 0, "/0")])
    for slot in range(3):
        listener = Endpoint("outside", 9092) if slot == 0 else None
        image.apply(ActorRegistered(node_id(0, slot), DISK, 5, Endpoint("inside", slot), "boot", listener=listener))
    for number, (name, size) in enumerate(SIZES.items()):
        topic_id = uuid.UUID(int=100 + number)
        image.apply(TopicCreated(topic_id, name))
        for partition in range(size):
            slots = (ReplicaSlot(0, node_id(0, 2), DISK, 5),)
            state = PartitionState(slots, (0,), leader=0, leader_incarnation=5, leader_epoch=3)
            image.apply(PartitionChanged(topic_id, partition, dataclasses.replace(state, **changes)))
    return Routes(0, lambda: image)


def asking(*names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
    return request(
        KEY,
        0,
        topics=lambda module: tuple(module.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=lambda module: cursor and module.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def page(found: Routes, body: Any) -> tuple[list[tuple[str, list[int]]], tuple[str, int] | None]:
    """The partitions of an answer that has been over the wire, and where the next page begins."""
    entity = cluster_view.describe_topic_partitions(found, body, 0, everything, listener=EXTERNAL)
    reply = decode_response(KEY, 0, b"".join(encode_response(entity, 1))[4:])
    following = reply.next_cursor and (reply.next_cursor.topic_name, reply.next_cursor.partition_index)
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in reply.topics], following


def test_topics_come_by_name_and_once_each() -> None:
    assert page(routes(), asking("c", "a", "c")) == ([("a", [0, 1]), ("c", [0])], None)


def test_without_names_all_topics_are_described() -> None:
    assert page(routes(), asking()) == ([("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])], None)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("names", [(), ("a", "b", "c")], ids=["all", "named"])
def test_pages_show_every_partition_once(limit: int, names: tuple[str, ...]) -> None:
    found, cursor, shown = routes(), None, []
    for _ in range(10):
        topics, cursor = page(found, asking(*names, limit=limit, cursor=cursor))
        numbers = [(name, number) for name, partitions in topics for number in partitions]
        assert len(numbers) <= limit
        shown += numbers
        if cursor is None:
            break
    assert shown == [(name, number) for name, size in SIZES.items() for number in range(size)]


def test_a_page_that_ends_with_a_topic_goes_on_at_the_next_one() -> None:
    assert page(routes(), asking(limit=2)) == ([("a", [0, 1])], ("b", 0))


@pytest.mark.parametrize("limit", [0, -5])
def test_a_page_holds_one_partition_at_least(limit: int) -> None:
    assert page(routes(), asking(limit=limit)) == ([("a", [0])], ("a", 1))


def test_a_page_holds_no_more_than_brokers_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "PARTITIONS_MAX", 4)
    assert page(routes(), asking(limit=2_000)) == ([("a", [0, 1]), ("b", [0, 1])], ("b", 2))


def test_an_unknown_topic_is_one_with_an_error() -> None:
    reply = cluster_view.describe_topic_partitions(
        routes(), asking("a", "nowhere", "no where"), 0, everything, listener=EXTERNAL
    )
    errors = [(topic.name, topic.error_code) for topic in reply.topics]
    invalid, unknown = ErrorCode.invalid_topic_exception, ErrorCode.unknown_topic_or_partition
    assert errors == [("a", ErrorCode.none), ("no where", invalid), ("nowhere", unknown)]


def test_a_topic_that_is_gone_since_the_last_page_ends_none() -> None:
    assert page(routes(), asking(cursor=("aa", 7))) == ([("b", [0, 1, 2]), ("c", [0])], None)


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)], ids=["of another topic", "of no partition"])
def test_a_cursor_that_is_none_is_an_invalid_request(cursor: tuple[str, int]) -> None:
    reply = cluster_view.describe_topic_partitions(
        routes(), asking("a", cursor=cursor), 0, everything, listener=EXTERNAL
    )
    assert [(topic.name, topic.error_code) for topic in reply.topics] == [("a", ErrorCode.invalid_request)]
    assert reply.next_cursor is None


def part(found: Routes) -> Any:
    return (
        cluster_view.describe_topic_partitions(found, asking("c"), 0, everything, listener=EXTERNAL)
        .topics[0]
        .partitions[0]
    )


def test_replicas_are_told_as_metadata_tells_them() -> None:
    found = part(routes())
    assert (found.leader_id, found.leader_epoch, found.replica_nodes, found.isr_nodes) == (0, 3, (0,), (0,))
    assert (found.eligible_leader_replicas, found.last_known_elr, found.offline_replicas) == ((), (), ())


def test_who_is_eligible_to_lead_is_told() -> None:
    nobody = {"isr": (), "leader": -1, "leader_incarnation": 0}
    found = part(routes(**nobody, elr=(0,)))
    assert (found.leader_id, found.error_code) == (-1, ErrorCode.none), "a leader that is away is no error here"
    assert (found.eligible_leader_replicas, found.last_known_elr) == ((0,), ())
    assert part(routes(**nobody, last_known_leader=0)).last_known_elr == (0,)


@pytest.mark.core
def test_a_client_is_answered_by_any_broker(client: Callable[[int], Client], new_topic: Callable[..., str]) -> None:
    name = new_topic((1, 2), (2, 0))
    for broker in range(3):
        connection = client(broker)
        (topic,), (known,) = connection.ask(asking(name)).topics, connection.ask(metadata(name)).topics
        assert (topic.name, topic.error_code, topic.is_internal) == (name, ErrorCode.none, False)
        assert (topic.topic_id, topic.topic_authorized_operations) == (known.topic_id, cluster_view.TOPIC_OPERATIONS)
        told = ("partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "offline_replicas")
        both = ([[getattr(each, field) for field in told] for each in of.partitions] for of in (topic, known))
        assert len(topic.partitions) == 2 and next(both) == next(both)
