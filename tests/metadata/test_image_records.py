"""An image under records of every kind: it is copied whole, and a snapshot of it loses nothing.

A new record fails the first test until it stands in ``HISTORY``; then the others show whether ``MetadataImage.copy`` and
``MetadataImage.records`` know what it changed.
"""

from __future__ import annotations

import uuid
from dataclasses import fields, replace
from typing import get_args

import pytest

from raylog.control.high_watermarks import PartitionHighWatermark, TopicHighWatermarks
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import (
    AclCreated,
    AclDeleted,
    ActorDied,
    ActorRegistered,
    ActorRemoved,
    BrokerConfigChanged,
    BrokerDrainChanged,
    BrokerLeaving,
    BrokerRegistered,
    BrokerUnregistered,
    ClientQuotaRemoved,
    ClientQuotaSet,
    ClusterFormatted,
    ConfiguredKind,
    ControllersPlanned,
    DelegationTokenRemoved,
    DelegationTokenSet,
    DiskRegistered,
    HighWatermarksNoted,
    HostKind,
    HostPlanned,
    HostRetired,
    PartitionChanged,
    PartitionState,
    ProducerIdsAllocated,
    Record,
    RemovalConfirmed,
    RemovalPending,
    ReplicaSlot,
    ResourceConfigChanged,
    StaticConfigsChanged,
    StaticSource,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserScramCredentialRemoved,
    UserScramCredentialSet,
)
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.security.protocols import AdvertisedListener, SecurityProtocol
from raylog.security.scram import ScramCredential, ScramMechanism
from raylog.security.tokens import DelegationToken
from raylog.types import FIRST_REPLICA_SLOT, Endpoint, node_id

T, GONE = uuid.UUID(int=1), uuid.UUID(int=2)
D, LATER = uuid.UUID(int=3), uuid.UUID(int=4)
BROKER, HOST, IDLE = node_id(1, 0), node_id(1, FIRST_REPLICA_SLOT), node_id(1, FIRST_REPLICA_SLOT + 1)
ADDRESS = Endpoint("h", 1)
SECURE = AdvertisedListener("OUT", SecurityProtocol.SSL, ADDRESS)
HELD = PartitionState((ReplicaSlot(1, HOST, D, 5),), (1,), leader=1, leader_incarnation=5, leader_epoch=0)
READS = AclBinding(Resource.TOPIC, "t", PatternType.PREFIXED, "User:a", "*", Operation.READ, PermissionType.ALLOW)
CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 4_096)
TOKEN = DelegationToken("id", "User:alice", "User:bob", ("User:carol",), 1, 2, 3)
HISTORY: tuple[Record, ...] = (
    ClusterFormatted("c"),
    BrokerRegistered(1, "rack"),
    BrokerRegistered(2),
    BrokerUnregistered(2),
    BrokerDrainChanged(1, True),
    StaticConfigsChanged(StaticSource.NODES, (("log.roll.ms", "6"), ("num.partitions", "1"))),
    StaticConfigsChanged(StaticSource.START, (("num.partitions", "2"),)),
    BrokerConfigChanged(None, "num.partitions", "3"),
    BrokerConfigChanged(1, "log.roll.ms", "7"),
    ResourceConfigChanged(ConfiguredKind.CLIENT_METRICS, "all", "metrics", "*"),
    ResourceConfigChanged(ConfiguredKind.CLIENT_METRICS, "all", "interval.ms", "100"),
    ResourceConfigChanged(ConfiguredKind.CLIENT_METRICS, "all", "metrics", None),
    ResourceConfigChanged(ConfiguredKind.CLIENT_METRICS, "gone", "metrics", "*"),
    ResourceConfigChanged(ConfiguredKind.CLIENT_METRICS, "gone", "metrics", None),
    ControllersPlanned((1,)),
    DiskRegistered(D, 1, "/a"),
    ActorRegistered(BROKER, D, 4, ADDRESS, "boot", listener=ADDRESS, listeners=(SECURE,)),
    BrokerLeaving(1, 4),
    HostPlanned(HOST, D, HostKind.REPLICAS),
    ActorRegistered(HOST, D, 5, ADDRESS, "boot", former=(3,)),
    ActorRegistered(IDLE, D, 6, ADDRESS, "boot"),
    ActorDied(IDLE, 6),
    ActorRemoved(IDLE),
    TopicCreated(T, "t"),
    TopicConfigChanged(T, "retention.ms", "1"),
    PartitionChanged(T, 0, HELD),
    HighWatermarksNoted((TopicHighWatermarks(T, (PartitionHighWatermark(0, 0, 9),)),)),
    HostRetired(HOST),
    TopicCreated(GONE, "gone"),
    PartitionChanged(GONE, 0, HELD),
    TopicDeleted(GONE),
    RemovalPending(GONE, 1, HOST, D, "gone"),
    RemovalConfirmed(GONE, 1, HOST),
    ProducerIdsAllocated(1_000),
    AclCreated(T, READS),
    AclCreated(GONE, replace(READS, operation=Operation.ALL)),
    AclDeleted(GONE),
    UserScramCredentialSet("alice", ScramMechanism.SCRAM_SHA_256, CREDENTIAL),
    UserScramCredentialSet("alice", ScramMechanism.SCRAM_SHA_512, CREDENTIAL),
    UserScramCredentialRemoved("alice", ScramMechanism.SCRAM_SHA_256),
    ClientQuotaSet((("user", "alice"),), "producer_byte_rate", 1_024.0),
    ClientQuotaSet((("client-id", None), ("user", "alice")), "request_percentage", 0.5),
    ClientQuotaSet((("ip", "10.0.0.1"),), "connection_creation_rate", 9.0),
    ClientQuotaRemoved((("user", "alice"),), "producer_byte_rate"),
    DelegationTokenSet(TOKEN),
    DelegationTokenSet(replace(TOKEN, token_id="gone")),
    DelegationTokenSet(replace(TOKEN, expires_at_ms=3)),
    DelegationTokenRemoved("gone"),
)
each_moment = pytest.mark.parametrize("moment", range(len(HISTORY)), ids=lambda index: type(HISTORY[index]).__name__)


def test_the_history_has_records_of_every_kind_and_fills_every_field_of_an_image() -> None:
    assert {type(record) for record in HISTORY} == set(get_args(Record))
    image = MetadataImage.of(HISTORY)
    seen = {each.name for each in fields(image) if getattr(image, each.name)}
    seen |= {"hosts"} if MetadataImage.of(HISTORY[:19]).hosts else set()  # before the only host retires
    assert seen == {each.name for each in fields(image)}


@each_moment
def test_a_snapshot_loses_nothing(moment: int) -> None:
    image = MetadataImage.of(HISTORY[: moment + 1])
    image.check()
    assert MetadataImage.of(image.records()) == image


@each_moment
def test_a_copy_is_whole_and_shares_nothing_that_changes(moment: int) -> None:
    image = MetadataImage.of(HISTORY[:moment])
    copy = image.copy()
    assert copy == image
    copy.apply(HISTORY[moment])
    assert image == MetadataImage.of(HISTORY[:moment])
    assert copy == MetadataImage.of(HISTORY[: moment + 1]) == copy.copy()
