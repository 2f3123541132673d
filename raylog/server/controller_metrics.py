"""The metrics of a controller's process: where it is in the quorum, and what the active one knows of
the cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from raylog.metadata.image import MetadataImage
from raylog.metrics import table
from raylog.metrics.registry import Collector, Samples
from raylog.raft.messages import QuorumRole
from raylog.raft.quorum import Quorum
from raylog.server.process_metrics import ProcessMetrics
from raylog.server.spec import ServerSpec
from raylog.types import BROKER_SLOT, NO_LEADER, broker_of, node_id
from raylog.wire.server import Server

NOBODY: Final = -1
_STATES: Final = {
    QuorumRole.LEADER: "leader",
    QuorumRole.CANDIDATE: "candidate",
    QuorumRole.PRECANDIDATE: "prospective",
    QuorumRole.FOLLOWER: "follower",
}


class MeteredController(Protocol):
    """What the metrics need of a controller."""

    @property
    def active(self) -> object | None: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def quorum(self) -> Quorum: ...

    @property
    def leaders_seen(self) -> int: ...


def of(
    controller: Callable[[], MeteredController],
    spec: ServerSpec,
    servers: Callable[[], Sequence[Server]],
    reached: Callable[[], Sequence[uuid.UUID]],
) -> ProcessMetrics:
    """The registry of such a process. ``reached``: the other controllers that it can reach."""
    in_quorum = of_quorum(controller, broker_of(spec.node_id), reached)
    return ProcessMetrics(spec.node_id, servers, in_quorum, of_cluster(controller))


def of_quorum(
    controller: Callable[[], MeteredController], broker: int, reached: Callable[[], Sequence[uuid.UUID]]
) -> Collector:
    """Where this controller is in the quorum; as the active one, also how far the voters are."""

    def collect(samples: Samples) -> None:
        told = controller()
        quorum, disks, linked = told.quorum, told.image.disks, {*reached(), told.quorum.identity}

        def broker_of_disk(member: uuid.UUID | None) -> int:
            if member == quorum.identity:
                return broker
            return disks[member].broker_id if member in disks else NOBODY

        voters = set(quorum.voters)
        known_commit = quorum.commit_index if quorum.is_leader else quorum.leader_commit_index
        samples.add(table.NEW_CONTROLLERS, told.leaders_seen)
        samples.add(table.RAFT_STATE, 1, state_of(quorum))
        for metric, value in (
            (table.LAST_APPLIED_RECORD, quorum.delivered_index),
            (table.LAST_COMMITTED_RECORD, quorum.commit_index),
            (table.RAFT_LEADER, broker_of_disk(quorum.leader)),
            (table.RAFT_VOTED_FOR, broker_of_disk(quorum.voted_for)),
            (table.RAFT_EPOCH, quorum.term),
            (table.RAFT_HIGH_WATERMARK, quorum.commit_index),
            (table.RAFT_END, quorum.last_index),
            (table.RAFT_END_EPOCH, quorum.log.last_term),
            (table.RAFT_VOTERS, len(voters)),
            (table.RAFT_OBSERVERS, len(linked - voters)),
            (table.RAFT_LAG, max(0, known_commit - quorum.delivered_index)),
            (table.UNREACHABLE_VOTERS, len(voters - linked)),
        ):
            samples.add(metric, value)
        if told.active is not None:
            ends = quorum.match_indexes()
            for voter in quorum.voters:
                lag = max(0, quorum.last_index - ends.get(voter, 0))
                samples.add(table.VOTER_LAG, lag, str(broker_of_disk(voter)))

    return collect


def state_of(quorum: Quorum) -> str:
    """By Kafka's name: who does not vote observes, and who follows nobody is not attached."""
    if quorum.identity not in quorum.voters:
        return "observer"
    if quorum.role is QuorumRole.FOLLOWER and quorum.leader is None:
        return "unattached"
    return _STATES[quorum.role]


def of_cluster(controller: Callable[[], MeteredController]) -> Collector:
    """What the active controller knows of the cluster. A standby says nothing."""

    def collect(samples: Samples) -> None:
        told = controller()
        if told.active is None:
            return
        samples.add(table.ACTIVE_CONTROLLERS, 1)
        whole = told.image
        states = [state for topic in whole.topics.values() for state in topic.partitions.values()]
        alive = sum(
            actor is not None and actor.alive
            for actor in (whole.actors.get(node_id(broker, BROKER_SLOT)) for broker in whole.brokers)
        )
        samples.add(table.TOPICS, len(whole.topics))
        samples.add(table.ALL_PARTITIONS, len(states))
        samples.add(table.OFFLINE_PARTITIONS, sum(state.leader == NO_LEADER for state in states))
        samples.add(
            table.PREFERRED_REPLICA_IMBALANCE,
            sum(state.leader not in (NO_LEADER, state.brokers[0]) for state in states),
        )
        samples.add(table.ACTIVE_BROKERS, alive)
        samples.add(table.FENCED_BROKERS, len(whole.brokers) - alive)
        samples.add(table.UNCLEAN_ELECTIONS, sum(state.unclean_elections for state in states))
        samples.add(table.LEADER_EPOCHS, sum(state.leader_epoch + 1 for state in states))

    return collect
