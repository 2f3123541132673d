"""The metrics of a controller's process: what the active one knows of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from raylog.metadata.image import MetadataImage
from raylog.metrics import table
from raylog.metrics.registry import Collector, Samples
from raylog.server.process_metrics import ProcessMetrics
from raylog.types import BROKER_SLOT, NO_LEADER, node_id
from raylog.wire.server import Server


class MeteredController(Protocol):
    """What the metrics need of a controller's process."""

    @property
    def is_active(self) -> bool: ...

    @property
    def image(self) -> MetadataImage: ...


def metrics_of_controller(
    controller: MeteredController, node: int, servers: Callable[[], Sequence[Server]]
) -> ProcessMetrics:
    """The registry of such a process."""
    return ProcessMetrics(node, servers, of_cluster(controller))


def of_cluster(controller: MeteredController) -> Collector:
    """What the active controller knows of the cluster. A standby says nothing."""

    def collect(samples: Samples) -> None:
        if not controller.is_active:
            return
        samples.add(table.ACTIVE_CONTROLLERS, 1)
        whole = controller.image
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
