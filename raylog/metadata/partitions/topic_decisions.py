"""Decisions about topics: create, delete, grow. Each is ``decide(image, request, …) → (records,
reply)`` and changes nothing.

Owns validation and the records that follow. Where replicas go is the planner's choice (a callable,
so that the core need not import it), which actor holds them is ``NodeSlots``'. A new partition has
every assigned replica in its ISR, no leader, and leader epoch −1; its first election follows when
replicas have opened (``elections``).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from raylog.configs import topic_configs
from raylog.errors import RaylogError, code_of
from raylog.metadata.actors.node_slots import NodeSlots
from raylog.metadata.configuration import creation_defaults, effective_configs
from raylog.metadata.configuration.creation_defaults import CreationDefaults
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.partitions import reassignments
from raylog.metadata.records import (
    PartitionChanged,
    PartitionState,
    Record,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from raylog.metadata.requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    PartitionGrowth,
    PartitionsCreated,
    RequestedTopic,
    TopicCreation,
    TopicDeletion,
    TopicOutcome,
    TopicsCreated,
    TopicsDeleted,
)
from raylog.refusals import (
    InvalidAssignment,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopic,
    UnknownTopicId,
)
from raylog.types import INTERNAL_TOPICS as INTERNAL_TOPICS
from raylog.types import METADATA_TOPIC

INTERNAL_PARTITIONS = 50
INTERNAL_REPLICATION_FACTOR_MAX = 3
INTERNAL_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": str(100 << 20),
}
NO_DEFAULTS = CreationDefaults()
Place = tuple[int, uuid.UUID]


@dataclass(frozen=True, slots=True)
class BrokerPlaces:
    """A broker that may take replicas, as the planner sees it: at least one disk."""

    broker_id: int
    rack: str | None
    directory_ids: tuple[uuid.UUID, ...]


class Planner(Protocol):
    """``raylog.placement.planner.plan_replicas``, or another of its shape. It may raise
    KafkaErrors.
    """

    def __call__(
        self,
        brokers: Sequence[Any],
        *,
        partitions: int,
        replication_factor: int,
        first_broker: int = 0,
        shift: int = 0,
        first_partition: int = 0,
        replicas_on_disk: Mapping[uuid.UUID, int] | None = None,
    ) -> Sequence[Sequence[Place]]: ...


class TopicDecisions:
    """One event's decisions about topics against one image; what it decides for one topic counts
    for the next.
    """

    def __init__(
        self,
        image: MetadataImage,
        *,
        brokers: Sequence[BrokerPlaces],
        brokers_down: Sequence[BrokerPlaces] = (),
        plan: Planner,
        new_uuid: Callable[[], uuid.UUID],
        defaults: CreationDefaults = NO_DEFAULTS,
        failed_disks: Collection[uuid.UUID] = (),
    ) -> None:
        """``brokers`` take replicas; those that are down only where there are too few others, or
        where named by hand.
        """
        self._image = image
        self._failed_disks = failed_disks
        self._brokers_up = tuple(brokers)
        self._brokers_all = tuple(brokers) + tuple(brokers_down)
        self._plan = plan
        self._new_uuid = new_uuid
        self._defaults = defaults
        self._slots = NodeSlots(image)
        self._replicas_on_disk: dict[uuid.UUID, int] = {}
        for topic in image.topics.values():
            for state in topic.partitions.values():
                for slot in state.slots:
                    self._count(slot.directory_id)
        self._topics_before = len(image.topics)
        self._partitions_before = sum(len(topic.partitions) for topic in image.topics.values())
        self._described: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str, int], ...]] = {}

    # -------------------------------------------------------------- create

    def create(self, request: CreateTopics) -> tuple[list[Record], TopicsCreated]:
        records: list[Record] = []
        results = []
        try:
            _check_total(map(self._requested, request.topics))
        except PolicyViolation as error:
            refused = (TopicCreation(topic.name, code_of(error), str(error)) for topic in request.topics)
            return [], TopicsCreated(tuple(refused))
        names = {topic_configs.folded_name(name): name for name in self._image.topic_ids}
        requested = Counter(topic.name for topic in request.topics)
        for topic in request.topics:
            try:
                if requested[topic.name] > 1:
                    raise InvalidRequest(f"topic {topic.name!r} is named twice in one request")
                created, result = self._create(topic, names)
            except RaylogError as error:
                results.append(TopicCreation(topic.name, code_of(error), str(error)))
                continue
            names[topic_configs.folded_name(topic.name)] = topic.name
            records += created
            results.append(result)
        return [] if request.validate_only else records, TopicsCreated(tuple(results))

    def _requested(self, topic: RequestedTopic) -> int:
        """How many partitions it shall have."""
        if topic.assignment:
            return len(topic.assignment)
        if topic.partitions == -1:
            return INTERNAL_PARTITIONS if topic.name in INTERNAL_TOPICS else self._defaults.num_partitions
        return max(0, topic.partitions)

    def _create(self, topic: RequestedTopic, names: Mapping[str, str]) -> tuple[list[Record], TopicCreation]:
        """``names``: of the topics that there are, by what is folded of them."""
        topic_configs.validate_topic_name(topic.name)
        if topic.name == METADATA_TOPIC:
            raise InvalidRequest(f"{METADATA_TOPIC} is the controllers' own log")
        if topic.name in self._image.topic_ids:
            raise TopicAlreadyExists(f"topic {topic.name!r} already exists")
        clash = names.get(topic_configs.folded_name(topic.name))
        if clash is not None:
            raise InvalidTopicName(f"topic {topic.name!r} differs from {clash!r} only in '.' and '_'")
        configs = {name: topic_configs.validated(name, value) for name, value in topic.configs}
        if topic.name in INTERNAL_TOPICS:
            topic, configs = self._as_internal(topic, configs)
        places = self._manual_places(topic) if topic.assignment else self._planned_places(topic)
        if topic.replication_factor == -1 and not topic.assignment:
            configs |= creation_defaults.min_insync_replicas(self._image, configs, len(places[0]))
        topic_id = self._new_uuid()
        records: list[Record] = [TopicCreated(topic_id, topic.name)]
        records += [TopicConfigChanged(topic_id, name, value) for name, value in sorted(configs.items())]
        records += self._partitions(topic_id, topic.name, 0, places, configs)
        self._topics_before += 1
        self._partitions_before += len(places)
        return records, TopicCreation(
            topic.name,
            topic_id=topic_id,
            partitions=len(places),
            replication_factor=len(places[0]),
            configs=self._described_configs(configs),
        )

    def _described_configs(self, configs: Mapping[str, str]) -> tuple[tuple[str, str, int], ...]:
        """What is in force for a topic with these of its own. Most topics of a request have the same."""
        key = tuple(sorted(configs.items()))
        if key not in self._described:
            in_force = (
                (name, effective_configs.topic_synonyms(self._image, configs, name)[0])
                for name in sorted(topic_configs.TOPIC_CONFIGS)
            )
            self._described[key] = tuple((name, each.value, each.source) for name, each in in_force)
        return self._described[key]

    def _as_internal(self, topic: RequestedTopic, configs: dict[str, str]) -> tuple[RequestedTopic, dict[str, str]]:
        """An internal topic as this cluster has them, where the request does not say otherwise."""
        if not topic.assignment:
            factor = topic.replication_factor
            if factor == -1:
                factor = max(1, min(INTERNAL_REPLICATION_FACTOR_MAX, len(self._brokers_all)))
            partitions = INTERNAL_PARTITIONS if topic.partitions == -1 else topic.partitions
            topic = replace(topic, partitions=partitions, replication_factor=factor)
        min_isr = {"min.insync.replicas": "2"} if topic.replication_factor >= INTERNAL_REPLICATION_FACTOR_MAX else {}
        return topic, INTERNAL_CONFIGS | min_isr | configs

    def _planned_places(self, topic: RequestedTopic) -> Sequence[Sequence[Place]]:
        partitions = self._defaults.num_partitions if topic.partitions == -1 else topic.partitions
        factor = self._defaults.factor(self._image) if topic.replication_factor == -1 else topic.replication_factor
        if partitions < 1:
            raise InvalidPartitions(f"a topic has 1 to {topic_configs.PARTITIONS_MAX} partitions, not {partitions}")
        return self._plan(
            self._brokers_for(factor, " (default.replication.factor)" * (topic.replication_factor == -1)),
            partitions=partitions,
            replication_factor=factor,
            first_broker=self._partitions_before,
            shift=self._topics_before,
            replicas_on_disk=self._replicas_on_disk,
        )

    def _brokers_for(self, factor: int, origin: str = "") -> tuple[BrokerPlaces, ...]:
        if factor < 1:
            raise InvalidReplicationFactor(f"the replication factor must be at least 1, not {factor}")
        if factor > len(self._brokers_all):
            raise InvalidReplicationFactor(
                f"replication factor {factor}{origin} is larger than the number of brokers, {len(self._brokers_all)}"
            )
        return self._brokers_up if factor <= len(self._brokers_up) else self._brokers_all

    def _manual_places(self, topic: RequestedTopic) -> Sequence[Sequence[Place]]:
        if topic.partitions != -1 or topic.replication_factor != -1:
            raise InvalidRequest("with an assignment by hand, partitions and replication factor must both be -1")
        by_partition = dict(topic.assignment)
        if len(by_partition) != len(topic.assignment) or sorted(by_partition) != list(range(len(by_partition))):
            raise InvalidAssignment(f"partitions must be numbered from 0 without a gap, not {sorted(by_partition)}")
        return self._named_places([brokers for _, brokers in sorted(by_partition.items())], len(by_partition[0]))

    def _named_places(self, assignment: Sequence[Sequence[int]], factor: int) -> list[list[Place]]:
        """Brokers named by hand, each with its least loaded disk."""
        load = dict(self._replicas_on_disk)
        chosen = []
        for partition, brokers in enumerate(assignment):
            if not brokers or len(set(brokers)) != len(brokers):
                raise InvalidAssignment(f"partition {partition}: brokers {list(brokers)} are none, or one twice")
            if len(brokers) != factor:
                raise InvalidAssignment(f"partition {partition} has {len(brokers)} replicas, another has {factor}")
            places = []
            for broker in brokers:
                disks = self._image.disks_of(broker) if broker in self._image.brokers else []
                if not disks:
                    raise InvalidAssignment(f"partition {partition}: broker {broker} is unknown or has no disk")
                disk = min(
                    disks, key=lambda each: (each.directory_id in self._failed_disks, load.get(each.directory_id, 0))
                ).directory_id
                load[disk] = load.get(disk, 0) + 1
                places.append((broker, disk))
            chosen.append(places)
        return chosen

    def _partitions(
        self, topic_id: uuid.UUID, topic: str, first: int, places: Sequence[Sequence[Place]], configs: Mapping[str, str]
    ) -> list[Record]:
        per_actor = topic_configs.replicas_per_actor(configs)
        records: list[Record] = []
        before = self._slots.lowest_free()
        try:
            for partition, replicas in enumerate(places, first):
                slots = tuple(
                    self._slots.allocate(topic_id, topic, broker, disk, replicas_per_actor=per_actor)
                    for broker, disk in replicas
                )
                state = PartitionState(slots, tuple(slot.broker_id for slot in slots))
                records.append(PartitionChanged(topic_id, partition, state))
        except InvalidPartitions:
            self._slots.back_to(before)
            raise
        for replicas in places:
            for _, disk in replicas:
                self._count(disk)
        return [*self._slots.take_planned(), *records]

    def _count(self, disk: uuid.UUID) -> None:
        self._replicas_on_disk[disk] = self._replicas_on_disk.get(disk, 0) + 1

    # -------------------------------------------------------------- grow

    def grow(self, request: CreatePartitions) -> tuple[list[Record], PartitionsCreated]:
        records: list[Record] = []
        results = []
        try:
            _check_total(map(self._added, request.topics))
        except PolicyViolation as error:
            refused = (TopicOutcome(growth.name, code_of(error), str(error)) for growth in request.topics)
            return [], PartitionsCreated(tuple(refused))
        requested = Counter(growth.name for growth in request.topics)
        for growth in request.topics:
            try:
                if requested[growth.name] > 1:
                    raise InvalidRequest(f"topic {growth.name!r} is named twice in one request")
                records += self._grow(growth)
            except RaylogError as error:
                results.append(TopicOutcome(growth.name, code_of(error), str(error)))
                continue
            results.append(TopicOutcome(growth.name))
        return [] if request.validate_only else records, PartitionsCreated(tuple(results))

    def _added(self, growth: PartitionGrowth) -> int:
        topic = self._image.topic_named(growth.name)
        return 0 if topic is None else max(0, growth.count - len(topic.partitions))

    def _grow(self, growth: PartitionGrowth) -> list[Record]:
        topic = self._image.topic_named(growth.name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {growth.name!r}")
        if topic.name in INTERNAL_TOPICS:
            raise InvalidRequest(
                f"the partitions of {topic.name} never grow: the hash of a group depends on their number"
            )
        count = len(topic.partitions)
        if growth.count == count:
            raise InvalidPartitions(f"topic {topic.name!r} already has {count} partitions")
        if not count < growth.count <= topic_configs.PARTITIONS_MAX:
            raise InvalidPartitions(
                f"topic {topic.name!r} has {count} partitions; they can only grow, up to "
                f"{topic_configs.PARTITIONS_MAX}, not become {growth.count}"
            )
        added = growth.count - count
        factor = len(reassignments.target(topic.partitions[0]))
        if growth.assignments is not None:
            if len(growth.assignments) != added:
                raise InvalidAssignment(f"{added} partitions are added, {len(growth.assignments)} are assigned")
            places: Sequence[Sequence[Place]] = self._named_places(growth.assignments, factor)
        else:
            brokers = self._brokers_for(factor)
            start = self._growth_start(topic, brokers)
            places = self._plan(
                brokers,
                partitions=added,
                replication_factor=factor,
                first_broker=start,
                shift=start,
                first_partition=count,
                replicas_on_disk=self._replicas_on_disk,
            )
        return self._partitions(topic.topic_id, topic.name, count, places, topic.configs)

    def _growth_start(self, topic: Topic, brokers: Sequence[BrokerPlaces]) -> int:
        """Growth goes on where creation began: at the place of partition 0's preferred leader, as
        in Kafka.
        """
        first = topic.partitions[0].replicas[0].broker_id
        ids = sorted(broker.broker_id for broker in brokers)
        return next((index for index, each in enumerate(ids) if each >= first), 0)


def _check_total(counts: Iterable[int]) -> None:
    """Of the partitions that one request makes. As in Kafka, too many are refused as a whole, before anything is planned."""
    total = sum(counts)
    if total > topic_configs.REQUEST_PARTITIONS_MAX:
        raise PolicyViolation(
            f"one request makes at most {topic_configs.REQUEST_PARTITIONS_MAX} partitions, not {total}"
        )


def decide_delete_topics(
    image: MetadataImage, request: DeleteTopics, *, enabled: bool
) -> tuple[list[Record], TopicsDeleted]:
    """A topic that is named twice, whether by name or by id, is not deleted: the asker does not
    know what it wants.
    """
    records: list[Record] = []
    results = []
    named = Counter([image.topic_ids.get(name) for name in request.names] + list(request.topic_ids))

    def delete(name: str | None, topic_id: uuid.UUID | None) -> None:
        try:
            topic = _find(image, name, topic_id)
            if not enabled:
                raise TopicDeletionDisabled("delete.topic.enable is false")
            if named[topic.topic_id] > 1:
                raise InvalidRequest(f"topic {topic.name!r} is named twice in one request")
        except RaylogError as error:
            results.append(TopicDeletion(name, topic_id, code_of(error), str(error)))
            return
        records.append(TopicDeleted(topic.topic_id))
        results.append(TopicDeletion(topic.name, topic.topic_id))

    for each_name in request.names:
        delete(each_name, None)
    for each_id in request.topic_ids:
        delete(None, each_id)
    return records, TopicsDeleted(tuple(results))


def _find(image: MetadataImage, name: str | None, topic_id: uuid.UUID | None) -> Topic:
    if name is not None:
        topic = image.topic_named(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic
    topic = image.topics.get(topic_id) if topic_id is not None else None
    if topic is None:
        raise UnknownTopicId(f"there is no topic with id {topic_id}")
    return topic
