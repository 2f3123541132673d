"""What controllers tell of what has happened: which records are events, in which words, and how many are kept."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from raylog.metadata.controllers.history import ClusterHistory, facts
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import (
    ActorDied,
    ActorRegistered,
    BrokerConfigChanged,
    BrokerDrainChanged,
    BrokerRegistered,
    ClientQuotaSet,
    ConfiguredKind,
    DiskRegistered,
    HostKind,
    HostPlanned,
    PartitionChanged,
    PartitionState,
    ReplicaSlot,
    ResourceConfigChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    decode_batch,
    decode_decision,
    encode_batch,
)
from raylog.types import BROKER_SLOT, NO_LEADER, Endpoint, node_id

TOPIC = uuid.UUID(int=7)
DISK = uuid.UUID(int=8)
LED = PartitionState(
    tuple(ReplicaSlot(broker, node_id(broker, 2), DISK, 1) for broker in (0, 1, 2)), (0, 1, 2), 0, 100, 4, 10
)


def image(state: PartitionState | None = LED) -> MetadataImage:
    made = MetadataImage.empty()
    made.apply(TopicCreated(TOPIC, "orders"))
    if state is not None:
        made.apply(PartitionChanged(TOPIC, 0, state))
    return made


def of_change(before: PartitionState | None, **changes: object) -> list[tuple[str, str, str]]:
    after = dataclasses.replace(before or LED, **changes)  # type: ignore[arg-type]
    return list(facts(image(before), PartitionChanged(TOPIC, 0, after)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"leader": 1, "leader_epoch": 5}, [("leader-elected", "broker 1 leads, epoch 5, after broker 0")]),
        ({"leader_incarnation": 101, "leader_epoch": 5}, [("leader-elected", "broker 0 leads, epoch 5, as before")]),
        (
            {"leader": 2, "leader_epoch": 5, "isr": (2,), "unclean_elections": 1},
            [
                ("leader-elected-unclean", "broker 2 leads, epoch 5: acknowledged records may be lost"),
                ("isr-shrunk", "without brokers 0, 1: in sync are [2]"),
            ],
        ),
        ({"isr": (0, 1)}, [("isr-shrunk", "without broker 2: in sync are [0, 1]")]),
        (
            {"leader": NO_LEADER, "isr": (), "last_known_leader": 0},
            [
                ("partition-offline", "nobody leads; broker 0 did"),
                ("isr-shrunk", "without brokers 0, 1, 2: in sync are []"),
            ],
        ),
        (
            {"adding": (1,), "removing": (2,)},
            [("reassignment-started", "adding [1], removing [2], from [0, 1, 2]")],
        ),
        (
            {
                "replicas": (
                    LED.replicas[0],
                    dataclasses.replace(LED.replicas[1], node_id=node_id(1, 3)),
                    LED.replicas[2],
                )
            },
            [("replica-moved", f"broker 1's from actor {node_id(1, 2)} to {node_id(1, 3)}")],
        ),
        ({"partition_epoch": 11, "elr": ()}, []),
    ],
)
def test_a_change_of_a_partition_is_told_by_what_changed(
    changes: dict[str, object], expected: list[tuple[str, str]]
) -> None:
    assert of_change(LED, **changes) == [(kind, "orders-0", text) for kind, text in expected]


def test_who_comes_back_into_the_isr_or_leads_after_nobody_did_is_told() -> None:
    shrunk = dataclasses.replace(LED, isr=(0, 1))
    assert of_change(shrunk, isr=(0, 1, 2)) == [
        ("isr-expanded", "orders-0", "with broker 2: in sync are [0, 1, 2]"),
    ]
    nobody = dataclasses.replace(LED, leader=NO_LEADER, leader_incarnation=0, isr=(0,), last_known_leader=0)
    assert of_change(nobody, leader=0, leader_incarnation=200, leader_epoch=5) == [
        ("leader-elected", "orders-0", "broker 0 leads, epoch 5, as before")
    ]


def test_the_end_of_a_reassignment_names_the_replicas() -> None:
    under_way = dataclasses.replace(LED, adding=(2,), removing=(1,))
    ended = {"adding": (), "removing": (), "replicas": (LED.replicas[0], LED.replicas[2]), "isr": (0, 2)}
    kinds = [(kind, text) for kind, _, text in of_change(under_way, **ended)]
    assert ("reassignment-ended", "its replicas are [0, 2]") in kinds


def test_the_first_leader_of_a_new_partition_is_no_event() -> None:
    assert of_change(None) == []
    unled = dataclasses.replace(LED, leader=NO_LEADER, leader_incarnation=0, leader_epoch=-1, isr=(0,))
    assert of_change(unled, leader=0, leader_incarnation=1, leader_epoch=0) == []


def test_a_death_has_the_reason_that_the_controller_had() -> None:
    died = ActorDied(node_id(1, 2), 5, "it has been silent for 9 s")
    assert list(facts(image(), died)) == [
        ("actor-died", f"actor {node_id(1, 2)} of broker 1", "it has been silent for 9 s")
    ]
    (kind, subject, _) = next(
        facts(image(), ActorRegistered(node_id(1, BROKER_SLOT), DISK, 6, Endpoint("h", 1), "boot", pid=4))
    )
    assert (kind, subject) == ("actor-started", "broker 1")


def test_configs_of_brokers_are_told_without_their_values_which_may_be_secrets() -> None:
    (fact,) = facts(image(), BrokerConfigChanged(1, "ssl.keystore.key", "a private key"))
    assert fact == ("config-changed", "broker 1", "ssl.keystore.key set")
    changed = ResourceConfigChanged(ConfiguredKind.CLIENT_METRICS, "all", "metrics", "*")
    assert list(facts(image(), changed)) == [("config-changed", "client metrics all", "metrics: *")]
    (fact,) = facts(image(), TopicConfigChanged(TOPIC, "retention.ms", None))
    assert fact == ("config-changed", "orders", "retention.ms: back to its default")


def test_a_topics_configs_at_its_creation_are_no_events_of_their_own() -> None:
    assert list(facts(MetadataImage.empty(), TopicConfigChanged(TOPIC, "retention.ms", "1"))) == []


def test_brokers_disks_hosts_topics_and_quotas_are_told() -> None:
    made = image()
    made.apply(BrokerRegistered(1))
    records = (
        BrokerRegistered(1),
        BrokerRegistered(2, "r"),
        BrokerRegistered(1, "r"),
        BrokerDrainChanged(1, True),
        DiskRegistered(DISK, 1, "/d"),
        HostPlanned(node_id(1, 5), DISK, HostKind.REPLICAS, True),
        TopicDeleted(TOPIC),
        ClientQuotaSet((("user", "alice"), ("client-id", None)), "producer_byte_rate", 1000.0),
    )
    assert [fact[:2] for record in records for fact in facts(made, record)] == [
        ("broker-registered", "broker 2"),
        ("broker-changed", "broker 1"),
        ("broker-drained", "broker 1"),
        ("disk-registered", "broker 1"),
        ("actor-added", f"actor {node_id(1, 5)} of broker 1"),
        ("topic-deleted", "orders"),
        ("quota-changed", "user alice, client-id (default)"),
    ]


def told(history: ClusterHistory, *position: int) -> tuple[list[tuple[int, int]], bool]:
    events, lacks = history.after((position[0], position[1]), 100)
    return [each.position for each in events], lacks


def test_events_are_told_from_a_position_on_and_what_was_dropped_is_said() -> None:
    history, now = ClusterHistory(events_max=3), image()
    for index in range(1, 4):
        history.decided(index, index * 1_000, (BrokerDrainChanged(index, True), BrokerDrainChanged(9, True)), now)
    assert told(history, 2, 0) == ([(2, 1), (3, 0), (3, 1)], False)
    assert told(history, 3, 1) == ([], False)
    assert told(history, 1, 0) == ([(2, 1), (3, 0), (3, 1)], True)
    assert [each.position for each in history.newest(2)[0]] == [(3, 0), (3, 1)] and history.newest(2)[1]
    assert history.after((1, 0), 1)[0][0].at_ms == 2_000


def test_after_a_snapshot_what_was_before_it_is_not_known() -> None:
    history = ClusterHistory()
    history.decided(1, 1, (BrokerDrainChanged(1, True),), image())
    history.restored(5)
    assert told(history, 1, 0) == ([], True)
    history.decided(6, 1, (BrokerDrainChanged(1, True),), image())
    assert told(history, 5, 1 << 31) == ([(6, 0)], False)


def test_a_decision_keeps_its_time_and_one_without_is_read_too() -> None:
    records = (BrokerDrainChanged(1, True),)
    assert decode_decision(encode_batch(records, 1_700_000_000_000)) == (1_700_000_000_000, records)
    assert decode_decision(encode_batch(records)) == (-1, records)
    assert decode_batch(encode_batch(records, 5)) == records
