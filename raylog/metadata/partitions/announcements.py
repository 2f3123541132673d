"""What committed metadata means for each connected actor: its Assignments, Removals and Releases.

Owns the translation of the committed image into session frames. It decides nothing and keeps
nothing but a cache of logs' effective configs (a broker may have some of its own). An Assignment
goes to every actor that holds a replica, whenever anything in it has changed; the leader's goes out
first. Sending one twice is harmless, leaving one out is not, with one exception: a process that has
dropped a replica because its log or disk failed is not asked to open it again.

A Broker answers clients from a copy of the image. It is sent all of it when it is greeted, then
each decision as it commits: the copy is the same fold, one session's delay behind. So is a process
that coordinates transactions, which finds the leaders of their partitions in it. It is not sent
the record of high watermarks, which only elections ask.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import assert_never

from raylog.control.session import (
    AssignedReplica,
    Assignment,
    BrokerDisk,
    BrokerDisks,
    CopyRates,
    CopyRatesChanged,
    ImageChanged,
    Release,
    Removal,
    SettingsChanged,
    TopicsNamed,
)
from raylog.metadata.actors import disk_moves
from raylog.metadata.configuration import effective_configs
from raylog.metadata.configuration import replication_quota_rates as copy_rates
from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.events import SendFrame
from raylog.metadata.image import MetadataImage, RemovalKey, Topic
from raylog.metadata.partitions import elections
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
    PartitionChanged,
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
    encode_batch,
)
from raylog.metadata.sessions import Session, Sessions
from raylog.offsets_topic import TRANSACTIONS_TOPIC
from raylog.types import BROKER_SLOT, INTERNAL_TOPICS, TopicIdPartition, broker_of, node_id, slot_of

IMAGE_FRAME_RECORDS = 10_000  # an image goes out in frames of so many records: some megabytes
TOPIC_FRAME_NAMES = 10_000


class Announcements:
    __slots__ = ("_committed", "_configs", "_controller_epoch", "_names", "_rates", "_sessions", "_settings", "_whole")

    def __init__(
        self, committed: MetadataImage, sessions: Sessions, settings: ControllerSettings, controller_epoch: int
    ) -> None:
        self._committed = committed
        self._sessions = sessions
        self._settings = settings
        self._controller_epoch = controller_epoch
        self._configs: dict[tuple[uuid.UUID, int | None], tuple[tuple[str, str], ...]] = {}  # by topic and broker
        # Until their deletion is sent.
        self._names = {topic.topic_id: topic.name for topic in committed.topics.values()}
        self._rates: dict[int, CopyRates] | None = None  # None: not computed yet
        self._whole: list[ImageChanged] | None = None  # the image as frames, until the next decision

    def touched(self, records: Iterable[Record]) -> list[TopicIdPartition]:
        """The partitions whose Assignment these records, now applied, have changed; in a fixed
        order.
        """
        ids: set[TopicIdPartition] = set()
        for record in records:
            match record:
                case PartitionChanged():
                    ids.add(record.id)
                case ActorRegistered() | ActorDied():
                    ids.update(self._committed.assigned.get(record.node_id, ()))
                case BrokerConfigChanged() | StaticConfigsChanged():
                    if isinstance(record, StaticConfigsChanged) or effective_configs.shapes_logs(record.key):
                        self._configs.clear()
                        every = self._committed.topics.values()
                        ids.update(TopicIdPartition(each.topic_id, part) for each in every for part in each.partitions)
                case TopicConfigChanged():
                    self._configs.clear()
                    topic = self._committed.topics.get(record.topic_id)
                    if topic is not None:
                        ids.update(TopicIdPartition(topic.topic_id, partition) for partition in topic.partitions)
                case TopicCreated():
                    self._names[record.topic_id] = record.name
                case TopicDeleted():
                    self._configs.clear()
                case (
                    ClusterFormatted() | BrokerRegistered() | BrokerDrainChanged() | BrokerLeaving() | BrokerUnregistered()
                    | DiskRegistered() | ActorRemoved() | HostPlanned() | HostRetired() | RemovalPending()
                    | RemovalConfirmed() | ProducerIdsAllocated() | HighWatermarksNoted() | ControllersPlanned()
                    | AclCreated() | AclDeleted() | UserScramCredentialSet() | UserScramCredentialRemoved()
                    | ClientQuotaSet() | ClientQuotaRemoved() | ResourceConfigChanged()
                    | DelegationTokenSet() | DelegationTokenRemoved()
                ):  # fmt: skip
                    pass
                case _:
                    assert_never(record)
        return sorted(id for id in ids if self._committed.partition(id) is not None)

    def of_partition(self, id: TopicIdPartition) -> list[SendFrame]:
        """Its Assignment to everybody connected who holds it, the leader first."""
        topic = self._committed.topics[id.topic_id]
        state = topic.partitions[id.partition]
        made: dict[int | None, Assignment] = {}
        frames = []
        for slot in sorted(state.slots, key=lambda slot: slot.broker_id != state.leader):
            session = self._listening(slot.node_id)
            if session is not None and id not in session.failed:
                frames += self._for_coordinators(session, topic.name)
                own = self._configs_of(slot.broker_id)
                if own not in made:
                    made[own] = self._assignment(topic, id, own)
                frames.append(SendFrame(session.session_id, made[own]))
        return frames

    def copy_rates(self, records: Iterable[Record]) -> list[SendFrame]:
        """What changes, by these records that are now applied, in how fast connected processes may
        copy.
        """
        if not any(map(_shapes_rates, records)):
            return []
        before, self._rates = self._rates, copy_rates.shares(self._committed)
        if self._rates == before:
            return []
        frames = []
        for session in self._sessions.all():
            rates = self._rates.get(session.node_id, CopyRates())
            if rates != session.rates:
                session.rates = rates
                frames.append(SendFrame(session.session_id, CopyRatesChanged(self._controller_epoch, rates)))
        return frames

    def rates_of(self, node_id: int) -> CopyRates:
        """How fast a process of that node may copy, as things are committed."""
        if self._rates is None:
            self._rates = copy_rates.shares(self._committed)
        return self._rates.get(node_id, CopyRates())

    def settings_of(self, node_id: int) -> SettingsChanged:
        """What a process of that node goes by, as things are committed."""
        return SettingsChanged(
            self._controller_epoch,
            self._settings.now.heartbeat_interval_ms,
            effective_configs.of_host(self._committed, broker_of(node_id)),
        )

    def settings(self) -> list[SendFrame]:
        """Configs of brokers, or quotas, have changed: the settings of each connected process that
        are others now.
        """
        frames = []
        of_broker: dict[int, SettingsChanged] = {}
        for session in self._sessions.all():
            broker_id = broker_of(session.node_id)
            settings = of_broker.get(broker_id)
            if settings is None:
                settings = of_broker[broker_id] = self.settings_of(session.node_id)
            if settings != session.settings:
                session.settings = settings
                frames.append(SendFrame(session.session_id, settings))
        return frames

    def to_session(self, session: Session, *, already_sent: Iterable[TopicIdPartition] = ()) -> list[SendFrame]:
        """Everything that a session has to know, but what was just sent."""
        sent = set(already_sent)
        own = self._configs_of(broker_of(session.node_id))
        ids = self._committed.partitions_on(session.node_id)
        frames: list[SendFrame] = []
        for topic in dict.fromkeys(self._committed.topics[id.topic_id].name for id in ids):
            frames += self._for_coordinators(session, topic)
        frames += [
            SendFrame(session.session_id, self._assignment(self._committed.topics[id.topic_id], id, own))
            for id in ids
            if id not in sent
        ]
        frames += [self._removal(session, key) for key in self._committed.removals_on(session.node_id)]
        frames += [frame for id in sorted(session.releasing) for frame in self.release(session, id)]
        if slot_of(session.node_id) == BROKER_SLOT:
            frames += self.disks_of(broker_of(session.node_id))
            frames += self._whole_image(session)
        return frames

    def changes(self, records: Iterable[Record]) -> list[SendFrame]:
        """These records, now applied, to everybody who has the image as it was before."""
        records = [record for record in records if not isinstance(record, HighWatermarksNoted)]
        if not records:
            return []
        self._whole = None
        following = [session for session in self._sessions.all() if session.follows_image]
        if not following:
            return []
        frame = ImageChanged(self._controller_epoch, encode_batch(records))
        return [SendFrame(session.session_id, frame) for session in following]

    def _for_coordinators(self, session: Session, topic: str) -> list[SendFrame]:
        """What a process has to know before it coordinates on partitions of that topic."""
        frames = self._all_topics(session) if topic in INTERNAL_TOPICS else []
        if topic == TRANSACTIONS_TOPIC and not session.follows_image:
            frames += self._whole_image(session)
        return frames

    def _whole_image(self, session: Session) -> list[SendFrame]:
        session.follows_image = True
        if self._whole is None:  # a new controller greets all Brokers at once
            self._whole = list(self._image_frames())
        return [SendFrame(session.session_id, frame) for frame in self._whole]

    def _image_frames(self) -> Iterator[ImageChanged]:
        rest = (record for record in self._committed.records() if not isinstance(record, HighWatermarksNoted))
        part = list(islice(rest, IMAGE_FRAME_RECORDS))
        begins = True
        while True:
            following = list(islice(rest, IMAGE_FRAME_RECORDS))
            yield ImageChanged(self._controller_epoch, encode_batch(part), begins, is_complete=not following)
            if not following:
                return
            part, begins = following, False

    def disks_of(self, broker_id: int) -> list[SendFrame]:
        """To a Broker, if it is connected: its disks."""
        session = self._listening(node_id(broker_id, BROKER_SLOT))
        if session is None:
            return []
        disks = tuple(BrokerDisk(each.directory_id, each.path) for each in self._committed.disks_of(broker_id))
        return [SendFrame(session.session_id, BrokerDisks(self._controller_epoch, disks))]

    def one(self, session: Session, id: TopicIdPartition) -> list[SendFrame]:
        """Its Assignment, or Removal, to one process; nothing where it has none there: it would
        open what it has deleted.
        """
        topic = self._committed.topics.get(id.topic_id)
        if topic is None or id not in self._committed.assigned.get(session.node_id, ()):
            return self.removal(RemovalKey(id.topic_id, id.partition, session.node_id))
        own = self._configs_of(broker_of(session.node_id))
        return [SendFrame(session.session_id, self._assignment(topic, id, own))]

    def removals(self, topic_id: uuid.UUID) -> list[SendFrame]:
        """The Removals of a topic that was just deleted, to everybody connected who held it."""
        frames = []
        for key in sorted(key for key in self._committed.removals if key.topic_id == topic_id):
            session = self._listening(key.node_id)
            if session is not None:
                frames.append(self._removal(session, key))
        return frames

    def topics(self, records: Iterable[Record]) -> list[SendFrame]:
        """What these records, now applied, change in the names of topics, to everybody who
        coordinates groups or transactions.
        """
        following = [session for session in self._sessions.all() if session.follows_topics]
        frames = []
        for record in records:
            if isinstance(record, TopicCreated):
                changed = TopicsNamed(self._controller_epoch, ((record.name, record.topic_id),))
            elif isinstance(record, TopicDeleted):
                changed = TopicsNamed(self._controller_epoch, (), (self._names.pop(record.topic_id),))
            else:
                continue
            frames += [SendFrame(session.session_id, changed) for session in following]
        return frames

    def _all_topics(self, session: Session) -> list[SendFrame]:
        """The names of all topics, once in a session."""
        if session.follows_topics:
            return []
        session.follows_topics = True
        named = [(topic.name, topic.topic_id) for topic in self._committed.topics.values()]
        parts = [tuple(named[at : at + TOPIC_FRAME_NAMES]) for at in range(0, len(named), TOPIC_FRAME_NAMES)]
        return [
            SendFrame(
                session.session_id,
                TopicsNamed(self._controller_epoch, part, begins=number == 0, is_complete=number == len(parts) - 1),
            )
            for number, part in enumerate(parts)
        ]

    def removal(self, key: RemovalKey) -> list[SendFrame]:
        """The Removal of one replica that has moved away, if its actor is connected and has not
        confirmed it yet.
        """
        session = self._listening(key.node_id)
        return [self._removal(session, key)] if session is not None and key in self._committed.removals else []

    def release(self, session: Session, id: TopicIdPartition) -> list[SendFrame]:
        """The Release of a replica that this process holds, unless it is committed that it shall
        hold it, or delete it.
        """
        key = RemovalKey(id.topic_id, id.partition, session.node_id)
        if id in self._committed.assigned.get(session.node_id, ()) or key in self._committed.removals:
            return []
        frame = Release(self._controller_epoch, id.topic_id, id.partition)
        state = self._committed.partition(id)
        slot = state.slot(state.leader) if state is not None else None
        if state is not None and slot is not None:
            leader = self._replica(slot)
            frame = replace(
                frame, leader_node=slot.node_id, leader_epoch=state.leader_epoch, leader_endpoint=leader.endpoint
            )
        return [SendFrame(session.session_id, frame)]

    def _listening(self, node_id: int) -> Session | None:
        """The node's session, if its process is the committed one (else it is greeted when that
        commits).
        """
        session = self._sessions.of_node(node_id)
        actor = self._committed.actors.get(node_id)
        if session is None or actor is None or not actor.alive or actor.incarnation != session.incarnation:
            return None
        return session

    def _removal(self, session: Session, key: RemovalKey) -> SendFrame:
        topic = self._committed.removals[key].topic
        return SendFrame(session.session_id, Removal(self._controller_epoch, key.topic_id, key.partition, topic))

    def _configs_of(self, broker_id: int) -> int | None:
        """The broker whose configs hold for the logs there; None: those of all brokers."""
        return broker_id if effective_configs.has_own(self._committed, broker_id) else None

    def _assignment(self, topic: Topic, id: TopicIdPartition, broker_id: int | None) -> Assignment:
        state = topic.partitions[id.partition]
        configs = self._configs.get((topic.topic_id, broker_id))
        if configs is None:
            configs = tuple(sorted(effective_configs.of_log(self._committed, topic, broker_id).items()))
            self._configs[topic.topic_id, broker_id] = configs
        return Assignment(
            controller_epoch=self._controller_epoch,
            topic_id=topic.topic_id,
            topic=topic.name,
            partition=id.partition,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=tuple(map(self._replica, (*state.replicas, *map(disk_moves.shown, state.futures)))),
            isr=state.isr,
            adding=state.adding,
            removing=state.removing,
            min_isr=elections.effective_min_isr(
                state, effective_configs.integer(self._committed, topic, "min.insync.replicas")
            ),
            config=configs,
            elr=state.elr,
        )

    def _replica(self, slot: ReplicaSlot) -> AssignedReplica:
        actor = self._committed.actors.get(slot.node_id)
        if actor is None or not actor.alive:
            return AssignedReplica(slot.broker_id, slot.node_id, slot.directory_id, 0, None)
        return AssignedReplica(slot.broker_id, slot.node_id, slot.directory_id, actor.incarnation, actor.endpoint)


def _shapes_rates(record: Record) -> bool:
    """Whether such a record may change how fast processes copy."""
    match record:
        case (
            BrokerConfigChanged() | StaticConfigsChanged() | TopicConfigChanged() | PartitionChanged()
            | ActorRegistered() | ActorDied() | TopicDeleted()
        ):  # fmt: skip
            return True
        case (
            ClusterFormatted() | BrokerRegistered() | BrokerDrainChanged() | BrokerLeaving() | BrokerUnregistered()
            | DiskRegistered() | ActorRemoved() | HostPlanned() | HostRetired() | TopicCreated() | RemovalPending()
            | RemovalConfirmed() | ProducerIdsAllocated() | HighWatermarksNoted() | ControllersPlanned()
            | AclCreated() | AclDeleted() | UserScramCredentialSet() | UserScramCredentialRemoved()
            | ClientQuotaSet() | ClientQuotaRemoved() | ResourceConfigChanged()
            | DelegationTokenSet() | DelegationTokenRemoved()
        ):  # fmt: skip
            return False
        case _:
            assert_never(record)
