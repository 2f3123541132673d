"""Answers about the committed image: topics, nodes, the cluster. Pure functions; they decide
nothing.

A node is named to clients while its process is registered and not declared dead. A partition whose
leader is not among them has leader −1 and LEADER_NOT_AVAILABLE. A partition that nobody has led yet
has the leader that it will get (``new_partitions``).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from raylog.control.session import Heartbeat
from raylog.metadata.actors import disk_moves
from raylog.metadata.actors.opened_logs import NamedLogs, OpenedLogs
from raylog.metadata.configuration import effective_configs
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.partitions import elections, new_partitions, reassignments
from raylog.metadata.partitions.topic_decisions import INTERNAL_TOPICS
from raylog.metadata.records import ActorRegistered, PartitionState
from raylog.metadata.requests import (
    ActorStatus,
    BrokerView,
    ClusterDescribed,
    ClusterStatusReport,
    DescribedPartition,
    DescribedTopic,
    DescribeTopics,
    NodeView,
    TopicsDescribed,
)
from raylog.types import BROKER_SLOT, NO_LEADER, broker_of, node_id, slot_of


def describe_topics(image: MetadataImage, request: DescribeTopics, *, controller_node: int) -> TopicsDescribed:
    if request.names is None and request.topic_ids is None:
        views = [_topic_view(image, topic) for _, topic in _by_name(image)]
    else:
        views = []
        for name in request.names or ():
            topic = image.topic_named(name)
            views.append(
                _topic_view(image, topic)
                if topic is not None
                else DescribedTopic(name, None, ErrorCode.unknown_topic_or_partition)
            )
        for topic_id in request.topic_ids or ():
            found = image.topics.get(topic_id)
            views.append(
                _topic_view(image, found)
                if found is not None
                else DescribedTopic(None, topic_id, ErrorCode.unknown_topic_id)
            )
    return TopicsDescribed(image.cluster_id, controller_node, _node_views(image, image.actors.values()), tuple(views))


def describe_cluster(image: MetadataImage, *, controller_node: int, controller_epoch: int) -> ClusterDescribed:
    nodes: dict[int, list[ActorRegistered]] = {}
    for node, registered in image.actors.items():
        nodes.setdefault(broker_of(node), []).append(registered)
    return ClusterDescribed(
        image.cluster_id,
        controller_node,
        controller_epoch,
        tuple(
            BrokerView(
                broker_id,
                broker.rack,
                tuple((disk.directory_id, disk.path) for disk in image.disks_of(broker_id)),
                _node_views(image, nodes.get(broker_id, ())),
                image.is_draining(broker_id),
                actor.endpoint if actor is not None else None,
                actor is not None and actor.alive,
                actor.listener if actor is not None and actor.alive else None,
                actor.listeners if actor is not None and actor.alive else (),
            )
            for broker_id, broker in sorted(image.brokers.items())
            for actor in [image.actors.get(node_id(broker_id, BROKER_SLOT))]
        ),
    )


@dataclass(slots=True)
class _PartitionHealth:
    partitions: int = 0
    leaderless: list[tuple[str, int]] = field(default_factory=list)
    under_replicated: list[tuple[str, int]] = field(default_factory=list)
    under_min_isr: list[tuple[str, int]] = field(default_factory=list)
    unclean_elections: int = 0
    leaders: Counter[int] = field(default_factory=Counter)
    """By node id: how many partitions it leads."""


def _partition_health(image: MetadataImage) -> _PartitionHealth:
    health = _PartitionHealth()
    for name, topic in _by_name(image):
        minimum = effective_configs.integer(image, topic, "min.insync.replicas")
        for partition, state in sorted(topic.partitions.items()):
            health.partitions += 1
            health.unclean_elections += state.unclean_elections
            health.leaders[state.node_of(state.leader)] += 1
            if state.leader == NO_LEADER:
                health.leaderless.append((name, partition))
            if len(state.isr) < len(reassignments.origin(state)):
                health.under_replicated.append((name, partition))
            if len(state.isr) < elections.effective_min_isr(state, minimum):
                health.under_min_isr.append((name, partition))
    return health


def cluster_status(
    image: MetadataImage,
    *,
    controller_node: int,
    controller_epoch: int,
    state_of: Callable[[int], str],
    failures_of: Callable[[int], NamedLogs],
    damaged_on: Callable[[int], NamedLogs],
    mended_on: Callable[[int], NamedLogs],
    usage_of: Callable[[int], Heartbeat],
    logs: OpenedLogs,
    failed_disks: Mapping[uuid.UUID, str],
) -> ClusterStatusReport:
    """``failed_disks`` tells what only the active controller knows of disks, the other arguments
    what it knows of processes.
    """
    health = _partition_health(image)
    nodes = sorted(set(image.actors) | set(image.assigned) | set(image.hosts))
    return ClusterStatusReport(
        cluster_id=image.cluster_id,
        controller_node=controller_node,
        controller_epoch=controller_epoch,
        brokers=len(image.brokers),
        topics=len(image.topics),
        partitions=health.partitions,
        leaderless=tuple(health.leaderless),
        under_replicated=tuple(health.under_replicated),
        under_min_isr=tuple(health.under_min_isr),
        unclean_elections=health.unclean_elections,
        removals_pending=len(image.removals),
        failed_disks=tuple(sorted((each, reason) for each, reason in failed_disks.items() if each in image.disks)),
        actors=tuple(
            ActorStatus(
                node_id=node,
                incarnation=actor.incarnation if actor is not None else 0,
                endpoint=actor.endpoint if actor is not None else None,
                pid=actor.pid if actor is not None else 0,
                state=state_of(node),
                replicas=len(image.assigned.get(node, ())),
                failures=failures_of(node),
                damaged=damaged_on(node),
                mended=mended_on(node),
                kind=_kind(image, node),
                removals=len(image.removals_of.get(node, ())),
                path=image.disks[directory_id].path if directory_id in image.disks else "",
                host=image.hosts[node].kind if node in image.hosts else None,
                leaders=health.leaders[node],
                cpu_per_mille=usage.cpu_per_mille,
                memory_bytes=usage.memory_bytes,
                busy_per_mille=usage.busy_per_mille,
                is_automatic=node in image.hosts and image.hosts[node].is_automatic,
            )
            for node in nodes
            for actor, usage in [(image.actors.get(node), usage_of(node))]
            for directory_id in [actor.directory_id if actor is not None else image.directory_of(node)]
        ),
        logs=logs,
        disk_moves=disk_moves.under_way(image),
    )


def _kind(image: MetadataImage, node: int) -> str:
    if slot_of(node) == BROKER_SLOT:
        return "broker"
    host = image.hosts.get(node)
    return host.kind.value if host is not None else "replicas"


def _by_name(image: MetadataImage) -> list[tuple[str, Topic]]:
    return [(name, image.topics[topic_id]) for name, topic_id in sorted(image.topic_ids.items())]


def _node_views(image: MetadataImage, actors: Iterable[ActorRegistered]) -> tuple[NodeView, ...]:
    alive = sorted((actor for actor in actors if actor.alive), key=lambda actor: actor.node_id)
    views = []
    for actor in alive:
        broker = image.brokers.get(broker_of(actor.node_id))
        views.append(NodeView(actor.node_id, actor.endpoint, broker.rack if broker is not None else None))
    return tuple(views)


def _topic_view(image: MetadataImage, topic: Topic) -> DescribedTopic:
    return DescribedTopic(
        topic.name,
        topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            _partition_view(image, partition, state) for partition, state in sorted(topic.partitions.items())
        ),
        configs=tuple(sorted(topic.configs.items())),
    )


def _partition_view(image: MetadataImage, partition: int, state: PartitionState) -> DescribedPartition:
    def is_alive(node: int) -> bool:
        actor = image.actors.get(node)
        return actor is not None and actor.alive

    replicas = tuple(slot.node_id for slot in state.replicas)
    leader = state.node_of(new_partitions.leader_or_next(image, state, running=True))
    has_leader = leader != NO_LEADER and is_alive(leader)
    return DescribedPartition(
        partition,
        ErrorCode.none if has_leader else ErrorCode.leader_not_available,
        leader if has_leader else NO_LEADER,
        state.leader_epoch,
        state.partition_epoch,
        replicas,
        tuple(state.node_of(broker) for broker in state.isr),
        tuple(state.node_of(broker) for broker in state.elr),
        tuple(node for node in replicas if not is_alive(node)),
        state.node_of(state.last_known_leader),
    )
