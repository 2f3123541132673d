"""What has happened to the cluster, as its metadata log tells it: elections, ISR changes, moves,
deaths, topics, configs.

Pure. Every controller folds the same log, so each of them tells the same events under the same
positions. The newest ``EVENTS_MAX`` are kept, in memory. A controller that starts anew knows those
since its last snapshot.

First leaders of new partitions are no events: their topic's creation is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from raylog.metadata.image import MetadataImage, RecordOfSecurity
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
from raylog.security.quotas import Entity
from raylog.types import BROKER_SLOT, NO_LEADER, ClusterEvent, broker_of, slot_of

EVENTS_MAX = 10_000

_OfBrokers = (
    BrokerRegistered | BrokerDrainChanged | BrokerLeaving | BrokerUnregistered | DiskRegistered | ControllersPlanned
)
Fact = tuple[str, str, str]
"""The kind of an event, whom or what it is about, and the rest in words."""


@dataclass(slots=True)
class ClusterHistory:
    """The newest events, in the order of the log."""

    events_max: int = EVENTS_MAX
    _events: deque[ClusterEvent] = field(default_factory=deque)
    _forgotten: tuple[int, int] = (-1, -1)  # the position of the last event that is not kept

    def decided(self, index: int, at_ms: int, records: Iterable[Record], image: MetadataImage) -> None:
        """The entry of that index is committed. ``image``: as it is before the records are applied."""
        for number, fact in enumerate(fact for record in records for fact in facts(image, record)):
            self._add(ClusterEvent(index, number, at_ms, *fact))

    def elected(self, index: int, at_ms: int, broker_id: int | None, epoch: int) -> None:
        """The entry of that index begins the term of a controller; None: not known whose."""
        who = "a controller" if broker_id is None else f"broker {broker_id}'s controller"
        self._add(ClusterEvent(index, 0, at_ms, "controller-elected", "controllers", f"{who} is active, epoch {epoch}"))

    def restored(self, index: int) -> None:
        """The image was replaced by one as of that index: what led to it is not known."""
        self._events.clear()
        self._forgotten = (index, 1 << 31)

    def after(self, position: tuple[int, int], count: int) -> tuple[list[ClusterEvent], bool]:
        """The oldest ``count`` events behind that position, and whether earlier ones behind it are
        no longer known.
        """
        found: deque[ClusterEvent] = deque()
        for event in reversed(self._events):
            if event.position <= position:
                break
            found.appendleft(event)
        return list(found)[:count], self._forgotten > position

    def newest(self, count: int) -> tuple[list[ClusterEvent], bool]:
        """The newest ``count`` events, and whether there were earlier ones."""
        events = list(self._events)
        return events[max(0, len(events) - count) :], len(events) > count or self._forgotten >= (0, 0)

    def _add(self, event: ClusterEvent) -> None:
        self._events.append(event)
        if len(self._events) > self.events_max:
            self._forgotten = self._events.popleft().position


def facts(image: MetadataImage, record: Record) -> Iterator[Fact]:
    """What a person would call events of that record."""
    match record:
        case PartitionChanged():
            yield from _of_partition(image, record)
        case ActorRegistered():
            yield "actor-started", _actor(record.node_id), f"process {record.pid} at {record.endpoint}"
        case ActorDied():
            yield "actor-died", _actor(record.node_id), record.reason or "no reason was written down"
        case ActorRemoved():
            yield "actor-removed", _actor(record.node_id), "nothing is assigned to it"
        case HostPlanned():
            why = "another one was saturated" if record.is_automatic else "as asked"
            yield "actor-added", _actor(record.node_id), f"for {record.kind.value} on {_path(image, record)}: {why}"
        case HostRetired():
            yield "actor-retired", _actor(record.node_id), "what it holds goes to others of its disk"
        case TopicCreated():
            yield "topic-created", record.name, f"id {record.topic_id}"
        case TopicDeleted():
            yield "topic-deleted", image.topics[record.topic_id].name, f"id {record.topic_id}"
        case TopicConfigChanged():
            topic = image.topics.get(record.topic_id)
            value = "back to its default" if record.value is None else record.value
            if topic is not None:  # else it is created with that config
                yield "config-changed", topic.name, f"{record.key}: {value}"
        case BrokerConfigChanged():  # its value may be a secret
            whose = "brokers" if record.broker_id is None else f"broker {record.broker_id}"
            yield "config-changed", whose, f"{record.key} {'removed' if record.value is None else 'set'}"
        case ResourceConfigChanged():
            whose = f"{record.kind.name.lower().replace('_', ' ')} {record.name}"
            yield (
                "config-changed",
                whose,
                f"{record.key}: {'back to its default' if record.value is None else record.value}",
            )
        case OfSecurity():
            yield from _of_security(image, record)
        case (
            BrokerRegistered()
            | BrokerDrainChanged()
            | BrokerLeaving()
            | BrokerUnregistered()
            | DiskRegistered()
            | ControllersPlanned()
        ):
            yield from _of_brokers(image, record)
        case (
            ClusterFormatted()
            | HighWatermarksNoted()
            | RemovalPending()
            | RemovalConfirmed()
            | StaticConfigsChanged()
            | ProducerIdsAllocated()
        ):
            pass
        case _:
            assert_never(record)


def _of_partition(image: MetadataImage, record: PartitionChanged) -> Iterator[Fact]:
    topic, before, after = image.topics.get(record.topic_id), image.partition(record.id), record.state
    if topic is None or before is None:
        return
    name = f"{topic.name}-{record.partition}"
    if before.leader_epoch >= 0:
        yield from _of_leader(name, before, after)
    lost = [each for each in before.isr if each not in after.isr]
    won = [each for each in after.isr if each not in before.isr]
    if lost and before.isr:
        yield "isr-shrunk", name, f"without {_brokers(lost)}: in sync are {list(after.isr)}"
    if won and before.leader_epoch >= 0:
        yield "isr-expanded", name, f"with {_brokers(won)}: in sync are {list(after.isr)}"
    if (before.adding, before.removing) != (after.adding, after.removing):
        if after.adding or after.removing:
            going = f"adding {list(after.adding)}, removing {list(after.removing)}"
            yield "reassignment-started", name, f"{going}, from {list(before.brokers)}"
        else:
            yield "reassignment-ended", name, f"its replicas are {list(after.brokers)}"
    elif before.brokers != after.brokers:
        yield "replicas-changed", name, f"{list(after.brokers)}, before {list(before.brokers)}"
    started = [slot for slot in after.futures if slot not in before.futures]
    if started:
        copies = [f"broker {slot.broker_id} copies it to {_disk(image, slot)}" for slot in started]
        yield "disk-move-started", name, ", ".join(copies)
    ended = [slot for slot in before.futures if after.future(slot.broker_id) is None]
    if ended:
        holders = [slot for each in ended if (slot := after.slot(each.broker_id)) is not None]
        held = [f"broker {slot.broker_id} has it on {_disk(image, slot)}" for slot in holders]
        yield "disk-move-ended", name, ", ".join(held) or "the broker holds it no more"
    moved = [
        f"broker {slot.broker_id}'s from actor {former.node_id} to {slot.node_id}"
        for slot in after.replicas
        if (former := before.slot(slot.broker_id)) is not None and former.node_id != slot.node_id
    ]
    if moved:
        yield "replica-moved", name, ", ".join(moved)


def _disk(image: MetadataImage, slot: ReplicaSlot) -> str:
    disk = image.disks.get(slot.directory_id)
    return str(slot.directory_id) if disk is None else disk.path


def _of_leader(name: str, before: PartitionState, after: PartitionState) -> Iterator[Fact]:
    if after.leader == NO_LEADER:
        if before.leader != NO_LEADER:
            yield "partition-offline", name, f"nobody leads; broker {before.leader} did"
        return
    if after.leader_epoch == before.leader_epoch:
        return
    former = before.leader if before.leader != NO_LEADER else before.last_known_leader
    leads = f"broker {after.leader} leads, epoch {after.leader_epoch}"
    if after.unclean_elections > before.unclean_elections:
        yield "leader-elected-unclean", name, f"{leads}: acknowledged records may be lost"
    elif former == after.leader:
        yield "leader-elected", name, f"{leads}, as before"
    else:
        yield "leader-elected", name, f"{leads}, after broker {former}"


def _of_brokers(image: MetadataImage, record: _OfBrokers) -> Iterator[Fact]:
    match record:
        case BrokerRegistered():
            known = image.brokers.get(record.broker_id)
            if known is None:
                yield "broker-registered", f"broker {record.broker_id}", f"rack {record.rack}" if record.rack else ""
            elif known.rack != record.rack:
                yield "broker-changed", f"broker {record.broker_id}", f"rack {record.rack}, before {known.rack}"
        case BrokerDrainChanged():
            kind = "broker-drained" if record.is_draining else "broker-undrained"
            yield kind, f"broker {record.broker_id}", "leaders are kept away" if record.is_draining else "it may lead"
        case BrokerLeaving():
            yield "broker-leaving", f"broker {record.broker_id}", "its node is about to go"
        case BrokerUnregistered():
            yield "broker-unregistered", f"broker {record.broker_id}", "with its disks and actors"
        case DiskRegistered():
            whose = f"broker {record.broker_id}"
            if record.replaced_by is not None:
                yield "disk-replaced", whose, f"{record.path}: its replicas are copied anew"
            elif record.directory_id not in image.disks:
                yield "disk-registered", whose, record.path
        case ControllersPlanned():
            yield "controllers-planned", "controllers", f"of {_brokers(record.broker_ids)}"
        case _:
            assert_never(record)


def _of_security(image: MetadataImage, record: RecordOfSecurity) -> Iterator[Fact]:
    match record:
        case AclCreated():
            yield "acl-created", record.acl.principal, str(record.acl)
        case AclDeleted():
            acl = image.acls.by_id[record.id]
            yield "acl-deleted", acl.principal, str(acl)
        case UserScramCredentialSet():
            yield "user-changed", f"User:{record.user}", f"password for {record.mechanism.sasl_name} set"
        case UserScramCredentialRemoved():
            yield "user-changed", f"User:{record.user}", f"password for {record.mechanism.sasl_name} removed"
        case ClientQuotaSet():
            yield "quota-changed", _entity(record.entity), f"{record.key}: {record.value:g}"
        case ClientQuotaRemoved():
            yield "quota-changed", _entity(record.entity), f"{record.key} removed"
        case DelegationTokenSet():
            yield "token-changed", record.token.owner, f"token {record.token.token_id} made or renewed"
        case DelegationTokenRemoved():
            token = image.tokens[record.token_id]
            yield "token-changed", token.owner, f"token {record.token_id} ended"
        case _:
            assert_never(record)


def _actor(node_id: int) -> str:
    broker, slot = broker_of(node_id), slot_of(node_id)
    return f"broker {broker}" if slot == BROKER_SLOT else f"actor {node_id} of broker {broker}"


def _entity(entity: Entity) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity)


def _brokers(ids: Iterable[int]) -> str:
    listed = [str(each) for each in ids]
    return f"broker{'s' if len(listed) > 1 else ''} {', '.join(listed)}"


def _path(image: MetadataImage, host: HostPlanned) -> str:
    disk = image.disks.get(host.directory_id)
    return disk.path if disk is not None else str(host.directory_id)
