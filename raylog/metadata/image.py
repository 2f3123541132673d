"""The metadata image: everything the cluster has decided, as ``fold(apply, records)``.

Owns the state that records describe and the few indexes over it. It knows nothing of sessions, time
or who is alive beyond what records say, and decides nothing. ``apply`` is its only mutator; a
record that does not fit (an unknown topic, an actor that is not registered) is a programmer's
error, because decisions are made against the same fold.

The controller keeps two: one of the committed records, which answers reads and feeds assignments,
and one that also holds what is decided but not committed, against which the next request is
decided.

Invariants: ``topic_ids`` is the inverse of the topics' names; ``assigned`` and ``removals_of`` are
the inverses of the replicas' (future ones, too) and removals' node ids; partitions are numbered from 0 without a gap;
``high_watermarks`` names existing partitions, and nothing from before their last unclean election;
``records()`` folds to an equal image.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, assert_never

from raylog.control.high_watermarks import HighWatermark, by_partition, by_topic
from raylog.metadata.configuration.broker_values import BrokerValues
from raylog.metadata.records import (
    KINDS,
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
    HostPlanned,
    HostRetired,
    OfSecurity,
    PartitionChanged,
    PartitionState,
    ProducerIdsAllocated,
    Record,
    RemovalConfirmed,
    RemovalPending,
    ReplicaSlot,
    ResourceConfigChanged,
    StaticConfigsChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    UserScramCredentialRemoved,
    UserScramCredentialSet,
)
from raylog.security.acls import Acls
from raylog.security.quotas import ClientQuotas
from raylog.security.scram import CredentialKey, ScramCredential
from raylog.security.tokens import DelegationToken
from raylog.types import BROKER_SLOT, FIRST_REPLICA_SLOT, TopicIdPartition, broker_of, node_id, slot_of

Value = TypeVar("Value")


@dataclass(slots=True)
class Topic:
    topic_id: uuid.UUID
    name: str
    configs: dict[str, str] = field(default_factory=dict)  # only what was set; topic_configs has the defaults
    partitions: dict[int, PartitionState] = field(default_factory=dict)


class RemovalKey(NamedTuple):
    topic_id: uuid.UUID
    partition: int
    node_id: int


RecordOfSecurity = (
    AclCreated
    | AclDeleted
    | UserScramCredentialSet
    | UserScramCredentialRemoved
    | ClientQuotaSet
    | ClientQuotaRemoved
    | DelegationTokenSet
    | DelegationTokenRemoved
)


@dataclass(slots=True)
class MetadataImage:
    """No field has a default: a new one that ``empty`` or ``copy`` forgets is a type error."""

    cluster_id: str
    brokers: dict[int, BrokerRegistered]
    draining: set[int]  # of the brokers, by hand
    leaving: dict[int, int]  # broker → incarnation of its Broker: its node is about to go
    broker_values: BrokerValues  # only what somebody said
    resource_configs: dict[tuple[ConfiguredKind, str], dict[str, str]]  # by kind and name; none is empty
    planned_controllers: tuple[int, ...]  # the brokers that shall hold one; empty: nobody has said
    disks: dict[uuid.UUID, DiskRegistered]
    actors: dict[int, ActorRegistered]  # the newest process of each node, dead or alive
    hosts: dict[int, HostPlanned]  # server actors that run even with nothing to hold
    retiring: dict[int, HostPlanned]  # they are to give away what they still hold
    topics: dict[uuid.UUID, Topic]
    topic_ids: dict[str, uuid.UUID]
    removals: dict[RemovalKey, RemovalPending]
    next_producer_id: int
    acls: Acls
    credentials: dict[CredentialKey, ScramCredential]
    quotas: ClientQuotas
    tokens: dict[str, DelegationToken]
    high_watermarks: dict[TopicIdPartition, HighWatermark]  # lower bounds; not a Broker's
    assigned: dict[int, set[TopicIdPartition]]
    removals_of: dict[int, set[RemovalKey]]

    @classmethod
    def empty(cls) -> MetadataImage:
        return cls(
            cluster_id="",
            brokers={},
            draining=set(),
            leaving={},
            broker_values=BrokerValues(),
            resource_configs={},
            planned_controllers=(),
            disks={},
            actors={},
            hosts={},
            retiring={},
            topics={},
            topic_ids={},
            removals={},
            next_producer_id=0,
            acls=Acls(),
            credentials={},
            quotas=ClientQuotas(),
            tokens={},
            high_watermarks={},
            assigned={},
            removals_of={},
        )

    @classmethod
    def of(cls, records: Iterable[Record]) -> MetadataImage:
        image = cls.empty()
        for record in records:
            image.apply(record)
        return image

    def copy(self) -> MetadataImage:
        """An image of its own that shares only frozen values."""
        return MetadataImage(
            cluster_id=self.cluster_id,
            brokers=dict(self.brokers),
            draining=set(self.draining),
            broker_values=self.broker_values.copy(),
            resource_configs={resource: dict(configs) for resource, configs in self.resource_configs.items()},
            planned_controllers=self.planned_controllers,
            leaving=dict(self.leaving),
            disks=dict(self.disks),
            actors=dict(self.actors),
            hosts=dict(self.hosts),
            retiring=dict(self.retiring),
            topics={
                each.topic_id: Topic(each.topic_id, each.name, dict(each.configs), dict(each.partitions))
                for each in self.topics.values()
            },
            topic_ids=dict(self.topic_ids),
            removals=dict(self.removals),
            next_producer_id=self.next_producer_id,
            acls=self.acls.copy(),
            credentials=dict(self.credentials),
            quotas=self.quotas.copy(),
            tokens=dict(self.tokens),
            high_watermarks=dict(self.high_watermarks),
            assigned={node: set(ids) for node, ids in self.assigned.items()},
            removals_of={node: set(keys) for node, keys in self.removals_of.items()},
        )

    # -------------------------------------------------------------- reading

    def partition(self, id: TopicIdPartition) -> PartitionState | None:
        topic = self.topics.get(id.topic_id)
        return None if topic is None else topic.partitions.get(id.partition)

    @property
    def broker_configs(self) -> Mapping[int | None, Mapping[str, str]]:
        """The values in force that somebody said, by broker id; None: for all brokers."""
        return self.broker_values.in_force

    def topic_named(self, name: str) -> Topic | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partitions_on(self, node_id: int) -> list[TopicIdPartition]:
        """What is assigned to a node, in a fixed order."""
        return sorted(self.assigned.get(node_id, ()))

    def removals_on(self, node_id: int) -> list[RemovalKey]:
        return sorted(self.removals_of.get(node_id, ()))

    def needs(self, node_id: int) -> bool:
        """Whether the node is a planned host, or has anything to hold or to delete."""
        return node_id in self.hosts or bool(self.assigned.get(node_id)) or bool(self.removals_of.get(node_id))

    def directory_of(self, node_id: int) -> uuid.UUID:
        """The disk of a node that is needed."""
        host = self.hosts.get(node_id)
        if host is not None:
            return host.directory_id
        ids = self.partitions_on(node_id)
        if ids:
            slots = self.topics[ids[0].topic_id].partitions[ids[0].partition].slots
            return next(slot.directory_id for slot in slots if slot.node_id == node_id)
        return self.removals[self.removals_on(node_id)[0]].directory_id

    def hosts_of(self, directory_id: uuid.UUID) -> list[HostPlanned]:
        """The planned hosts of a disk."""
        return [host for _, host in sorted(self.hosts.items()) if host.directory_id == directory_id]

    def disks_of(self, broker_id: int) -> list[DiskRegistered]:
        """The disks of a broker that it still has."""
        return [
            disk for _, disk in sorted(self.disks.items()) if disk.broker_id == broker_id and disk.replaced_by is None
        ]

    def is_draining(self, broker_id: int) -> bool:
        """Whether leaders are kept away from that broker: by hand, or because its node is about to
        go.
        """
        return broker_id in self.draining or broker_id in self.leaving

    # -------------------------------------------------------------- the fold

    def apply(self, record: Record) -> None:
        match record:
            case PartitionChanged():
                self._change_partition(record)
            case ActorRegistered():
                self._add_actor(record)
            case ActorDied():
                self._end_actor(record)
            case ActorRemoved():
                assert not self.needs(record.node_id), f"node {record.node_id} is still needed"
                del self.actors[record.node_id]
            case HostPlanned():
                assert record.directory_id in self.disks, f"{record} of an unknown disk"
                self.hosts[record.node_id] = record
            case HostRetired():
                host = self.hosts.pop(record.node_id)
                if self.assigned.get(record.node_id):
                    self.retiring[record.node_id] = host
            case TopicCreated():
                assert record.name not in self.topic_ids, f"topic {record.name!r} exists"
                self.topics[record.topic_id] = Topic(record.topic_id, record.name)
                self.topic_ids[record.name] = record.topic_id
            case TopicDeleted():
                self._delete_topic(record)
            case TopicConfigChanged():
                self._change_topic_config(record)
            case BrokerConfigChanged() | StaticConfigsChanged():
                self.broker_values.apply(record)
            case ResourceConfigChanged():
                self._change_resource_config(record)
            case RemovalPending():
                self._add_removal(record)
            case RemovalConfirmed():
                self._drop_removal(RemovalKey(record.topic_id, record.partition, record.node_id))
            case BrokerRegistered():
                self.brokers[record.broker_id] = record
            case BrokerDrainChanged():
                self._change_drain(record)
            case BrokerLeaving():
                self.leaving[record.broker_id] = record.incarnation
            case BrokerUnregistered():
                self._forget_broker(record.broker_id)
            case ControllersPlanned():
                self.planned_controllers = record.broker_ids
            case DiskRegistered():
                self._register_disk(record)
            case ProducerIdsAllocated():
                assert record.next_producer_id >= self.next_producer_id, f"{record} after {self.next_producer_id}"
                self.next_producer_id = record.next_producer_id
            case OfSecurity():
                self._change_security(record)
            case HighWatermarksNoted():
                self._note_high_watermarks(record)
            case ClusterFormatted():
                assert self.cluster_id in ("", record.cluster_id), f"{record} in a log of {self.cluster_id}"
                self.cluster_id = record.cluster_id
            case _:
                assert_never(record)

    def _change_security(self, record: RecordOfSecurity) -> None:
        match record:
            case AclCreated():
                self.acls.add(record.id, record.acl)
            case AclDeleted():
                self.acls.remove(record.id)
            case UserScramCredentialSet():
                self.credentials[record.user, record.mechanism] = record.credential
            case UserScramCredentialRemoved():
                del self.credentials[record.user, record.mechanism]
            case ClientQuotaSet():
                self.quotas.set(record.entity, record.key, record.value)
            case ClientQuotaRemoved():
                self.quotas.remove(record.entity, record.key)
            case DelegationTokenSet():
                self.tokens[record.token.token_id] = record.token
            case DelegationTokenRemoved():
                del self.tokens[record.token_id]
            case _:
                assert_never(record)

    def _end_actor(self, record: ActorDied) -> None:
        actor = self.actors[record.node_id]
        assert actor.incarnation == record.incarnation, f"{record} does not name the registered {actor}"
        self.actors[record.node_id] = replace(actor, alive=False)

    def _register_disk(self, record: DiskRegistered) -> None:
        self.disks[record.directory_id] = record
        if record.replaced_by is not None:
            self._replace_disk(record.directory_id, record.replaced_by)

    def _note_high_watermarks(self, record: HighWatermarksNoted) -> None:
        for id, mark in by_partition(record.topics):
            assert self.partition(id) is not None, f"{mark} of {id}, which does not exist"
            self.high_watermarks[id] = mark

    def _add_actor(self, record: ActorRegistered) -> None:
        self.actors[record.node_id] = record
        broker_id = broker_of(record.node_id)
        if slot_of(record.node_id) == BROKER_SLOT and self.leaving.get(broker_id) != record.incarnation:
            self.leaving.pop(broker_id, None)

    def _change_drain(self, record: BrokerDrainChanged) -> None:
        assert record.broker_id in self.brokers, f"{record} of an unknown broker"
        (self.draining.add if record.is_draining else self.draining.discard)(record.broker_id)

    def _change_topic_config(self, record: TopicConfigChanged) -> None:
        configs = self.topics[record.topic_id].configs
        if record.value is None:
            configs.pop(record.key, None)
        else:
            configs[record.key] = record.value

    def _change_resource_config(self, record: ResourceConfigChanged) -> None:
        resource = record.kind, record.name
        if record.value is not None:
            self.resource_configs.setdefault(resource, {})[record.key] = record.value
            return
        configs = self.resource_configs.get(resource, {})
        configs.pop(record.key, None)
        if not configs:
            self.resource_configs.pop(resource, None)

    def _change_partition(self, record: PartitionChanged) -> None:
        topic = self.topics[record.topic_id]
        before = topic.partitions.get(record.partition)
        assert before is not None or record.partition == len(topic.partitions), f"a gap before {record}"
        if before is None or before.slots != record.state.slots:
            kept = {slot.node_id for slot in record.state.slots}
            for node in kept:
                self.assigned.setdefault(node, set()).add(record.id)
            for slot in before.slots if before is not None else ():
                if slot.node_id not in kept:
                    self._unassign(slot.node_id, record.id)
        if before is not None and record.state.unclean_elections > before.unclean_elections:
            self.high_watermarks.pop(record.id, None)  # records below it were given up
        topic.partitions[record.partition] = record.state

    def _delete_topic(self, record: TopicDeleted) -> None:
        topic = self.topics.pop(record.topic_id)
        del self.topic_ids[topic.name]
        for partition, state in topic.partitions.items():
            self.high_watermarks.pop(TopicIdPartition(record.topic_id, partition), None)
            for slot in state.slots:
                self._unassign(slot.node_id, TopicIdPartition(record.topic_id, partition))
                if may_hold_folder(self, slot):
                    self._add_removal(
                        RemovalPending(record.topic_id, partition, slot.node_id, slot.directory_id, topic.name)
                    )

    def _replace_disk(self, old: uuid.UUID, new: uuid.UUID) -> None:
        for topic in self.topics.values():
            for partition, state in topic.partitions.items():
                if any(slot.directory_id == old for slot in state.slots):
                    slots = tuple(
                        replace(slot, directory_id=new) if slot.directory_id == old else slot for slot in state.slots
                    )
                    count = len(state.replicas)
                    topic.partitions[partition] = replace(state, replicas=slots[:count], futures=slots[count:])
        for key in [key for key, removal in self.removals.items() if removal.directory_id == old]:
            self._drop_removal(key)
        for hosts in (self.hosts, self.retiring):
            for host in [host for host in hosts.values() if host.directory_id == old]:
                hosts[host.node_id] = replace(host, directory_id=new)

    def _forget_broker(self, broker_id: int) -> None:
        held = [node for node in self.assigned if broker_of(node) == broker_id]
        assert not held, f"broker {broker_id} still holds replicas on {held}"
        assert broker_id not in self.planned_controllers, f"broker {broker_id} shall hold a controller"
        del self.brokers[broker_id]
        self.draining.discard(broker_id)
        self.broker_values.forget(broker_id)
        self.leaving.pop(broker_id, None)
        for disk in [disk for disk in self.disks.values() if disk.broker_id == broker_id]:
            del self.disks[disk.directory_id]
        for node in [node for node in self.actors if broker_of(node) == broker_id]:
            del self.actors[node]
        for node in [node for node in self.hosts if broker_of(node) == broker_id]:
            del self.hosts[node]
        for node in [node for node in self.removals_of if broker_of(node) == broker_id]:
            for key in self.removals_of.pop(node):
                del self.removals[key]

    def _add_removal(self, removal: RemovalPending) -> None:
        key = RemovalKey(removal.topic_id, removal.partition, removal.node_id)
        self.removals[key] = removal
        self.removals_of.setdefault(removal.node_id, set()).add(key)

    def _drop_removal(self, key: RemovalKey) -> None:
        if self.removals.pop(key, None) is not None:
            self.removals_of[key.node_id].discard(key)
            if not self.removals_of[key.node_id]:
                del self.removals_of[key.node_id]

    def _unassign(self, node_id: int, id: TopicIdPartition) -> None:
        ids = self.assigned[node_id]
        ids.discard(id)
        if not ids:
            del self.assigned[node_id]
            self.retiring.pop(node_id, None)

    # -------------------------------------------------------------- snapshots

    def records(self) -> Iterator[Record]:
        """Records that fold to this image, in a fixed order: a snapshot."""
        for kind in KINDS:
            yield from self._records_of(kind)

    def _records_of(self, kind: type[Record]) -> Iterator[Record]:
        if issubclass(kind, ClusterFormatted):
            if self.cluster_id:
                yield ClusterFormatted(self.cluster_id)
        elif issubclass(kind, BrokerRegistered):
            yield from _in_order(self.brokers)
        elif issubclass(kind, BrokerDrainChanged):
            yield from (BrokerDrainChanged(broker_id, True) for broker_id in sorted(self.draining))
        elif issubclass(kind, StaticConfigsChanged):
            yield from self.broker_values.static_records()
        elif issubclass(kind, BrokerConfigChanged):
            yield from self.broker_values.dynamic_records()
        elif issubclass(kind, ResourceConfigChanged):
            for (of, name), configs in sorted(self.resource_configs.items(), key=lambda e: (e[0][0].value, e[0][1])):
                yield from (ResourceConfigChanged(of, name, *entry) for entry in sorted(configs.items()))
        elif issubclass(kind, ControllersPlanned):
            if self.planned_controllers:
                yield ControllersPlanned(self.planned_controllers)
        elif issubclass(kind, DiskRegistered):
            yield from _in_order(self.disks)
        elif issubclass(kind, HostPlanned):
            yield from _in_order({**self.hosts, **self.retiring})
        elif issubclass(kind, TopicCreated):
            yield from (TopicCreated(topic_id, topic.name) for topic_id, topic in sorted(self.topics.items()))
        elif issubclass(kind, TopicConfigChanged):
            for topic_id, topic in sorted(self.topics.items()):
                yield from (TopicConfigChanged(topic_id, *entry) for entry in sorted(topic.configs.items()))
        elif issubclass(kind, PartitionChanged):
            for topic_id, topic in sorted(self.topics.items()):
                yield from (PartitionChanged(topic_id, *entry) for entry in sorted(topic.partitions.items()))
        elif issubclass(kind, HighWatermarksNoted):
            if self.high_watermarks:
                yield HighWatermarksNoted(by_topic(sorted(self.high_watermarks.items())))
        elif issubclass(kind, HostRetired):
            yield from (HostRetired(node) for node in sorted(self.retiring))
        elif issubclass(kind, RemovalPending):
            yield from _in_order(self.removals)
        elif issubclass(kind, ActorRegistered):
            yield from _in_order(self.actors)
        elif issubclass(kind, BrokerLeaving):
            yield from (BrokerLeaving(*entry) for entry in sorted(self.leaving.items()))
        elif issubclass(kind, ProducerIdsAllocated):
            if self.next_producer_id:
                yield ProducerIdsAllocated(self.next_producer_id)
        elif issubclass(
            kind,
            BrokerUnregistered
            | ActorDied
            | ActorRemoved
            | TopicDeleted
            | RemovalConfirmed
            | AclDeleted
            | UserScramCredentialRemoved
            | ClientQuotaRemoved
            | DelegationTokenRemoved,
        ):
            pass  # it ended what an image does not have any more, or changed what it has
        else:
            yield from self._security_records_of(kind)

    def _security_records_of(
        self, kind: type[AclCreated | UserScramCredentialSet | ClientQuotaSet | DelegationTokenSet]
    ) -> Iterator[Record]:
        if issubclass(kind, AclCreated):
            yield from (AclCreated(*entry) for entry in sorted(self.acls.by_id.items()))
        elif issubclass(kind, UserScramCredentialSet):
            for key in sorted(self.credentials, key=lambda key: (key[0], key[1].value)):
                yield UserScramCredentialSet(*key, self.credentials[key])
        elif issubclass(kind, ClientQuotaSet):
            yield from (ClientQuotaSet(*each) for each in self.quotas.each())
        elif issubclass(kind, DelegationTokenSet):
            yield from (DelegationTokenSet(self.tokens[token_id]) for token_id in sorted(self.tokens))
        else:
            assert_never(kind)

    def check(self) -> None:
        """The invariants of the class and of each partition."""
        assert {topic.name: topic_id for topic_id, topic in self.topics.items()} == self.topic_ids
        assigned: dict[int, set[TopicIdPartition]] = {}
        for topic_id, topic in self.topics.items():
            assert sorted(topic.partitions) == list(range(len(topic.partitions))), f"{topic.name}: a gap"
            for partition, state in topic.partitions.items():
                state.check()
                for slot in state.slots:
                    assigned.setdefault(slot.node_id, set()).add(TopicIdPartition(topic_id, partition))
                    disk = self.disks.get(slot.directory_id)
                    assert disk is not None, f"{topic.name}-{partition} on an unknown disk {slot}"
                    assert disk.replaced_by is None, f"{topic.name}-{partition} on a disk that is lost: {slot}, {disk}"
        assert self.draining <= self.brokers.keys(), f"{self.draining} are drained of {self.brokers}"
        self.broker_values.check()
        assert all(self.resource_configs.values()), f"nothing is set of one of {self.resource_configs}"
        self.acls.check()
        self.quotas.check()
        assert self.brokers.keys() >= set(self.planned_controllers), f"{self.planned_controllers} of {self.brokers}"
        configured = self.broker_values.dynamic.keys() - {None}
        assert configured <= self.brokers.keys(), f"{configured} are configured of {self.brokers.keys()}"
        for broker_id, incarnation in self.leaving.items():
            actor = self.actors[node_id(broker_id, BROKER_SLOT)]
            assert broker_id in self.brokers and actor.incarnation == incarnation, f"{actor} is not the one that leaves"
        assert all(self.assigned.get(node) and node not in self.hosts for node in self.retiring), f"{self.retiring}"
        for node, host in (*self.hosts.items(), *self.retiring.items()):
            planned_on = self.disks.get(host.directory_id)
            assert host.node_id == node and planned_on is not None and planned_on.replaced_by is None, f"{host}"
            assert planned_on.broker_id == broker_of(node) and slot_of(node) >= FIRST_REPLICA_SLOT, f"{host}"
        assert assigned == self.assigned, "the index of assigned replicas is wrong"
        removals: dict[int, set[RemovalKey]] = {}
        for key in self.removals:
            removals.setdefault(key.node_id, set()).add(key)
        assert removals == self.removals_of, "the index of removals is wrong"
        for id, mark in self.high_watermarks.items():
            known = self.partition(id)
            assert known is not None and 0 <= mark.leader_epoch <= known.leader_epoch, f"{mark} of {id}: {known}"


def _in_order(things: Mapping[Any, Value]) -> Iterator[Value]:
    return (thing for _, thing in sorted(things.items(), key=lambda entry: entry[0]))


def may_hold_folder(image: MetadataImage, slot: ReplicaSlot) -> bool:
    """Whether a process may have been told of this replica; else there is no folder to delete."""
    return bool(slot.admitted) or slot.node_id in image.actors
