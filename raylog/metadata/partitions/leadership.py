"""Who leads because somebody wants it: elections by hand, draining brokers, and leaders that return
to the preferred replicas by themselves.

Owns the questions over many partitions; the rules for one are ``elections``' and reach it through
``PartitionDecisions``. It knows nothing of sessions or frames.

**Balance** (Kafka's ``auto.leader.rebalance.enable``). Every
``leader.imbalance.check.interval.seconds`` the partitions are grouped by their preferred leader,
the first of their replicas. Where more than ``leader.imbalance.per.broker.percentage`` of a
broker's are led by somebody else, each of them is given back to it if its replica there is live and
in sync. Exactly the percentage is not yet too much. All three are cluster-wide configs
(``broker_configs``).

**Draining** (Kafka's controlled shutdown, but until it is ended by hand). The record and the
elections that follow from it are one decision; new leaders hear of it first, and the old one
answers NOT_LEADER_OR_FOLLOWER with a hint where to go, so a partition is away for as long as its
clients need to turn round. What nobody else can lead yet moves as soon as somebody can
(``elections``). A broker whose node is about to go, by Ray's word, is drained in the same way until
another process of it says hello.
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.image import MetadataImage
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.records import BrokerDrainChanged, BrokerLeaving
from raylog.metadata.requests import (
    BrokerDrained,
    DrainBroker,
    ElectionType,
    ElectLeaders,
    LeadersElected,
    PartitionOutcome,
)
from raylog.timers import Timers
from raylog.types import TopicIdPartition, broker_of

IMBALANCE = "imbalance"


class Leadership:
    __slots__ = ("_ledger", "_partitions", "_settings", "_timers")

    def __init__(
        self, ledger: Ledger, partitions: PartitionDecisions, timers: Timers, settings: ControllerSettings
    ) -> None:
        self._ledger = ledger
        self._partitions = partitions
        self._timers = timers
        self._settings = settings

    def begin(self, now_ms: int) -> None:
        """Balance is looked at for the first time one interval from now, and again so after each
        change of the interval.
        """
        settings = self._settings.in_image(self._ledger.latest)
        if settings.auto_leader_rebalance_enable:
            self._timers.set((IMBALANCE,), now_ms + settings.leader_imbalance_check_interval_seconds * 1_000)
        else:
            self._timers.cancel((IMBALANCE,))

    def restore_balance(self, now_ms: int) -> None:
        """The interval has passed: give leaders back to brokers that lead too few of the partitions
        that prefer them.
        """
        self.begin(now_ms)
        latest = self._ledger.latest
        percentage = self._settings.in_image(latest).leader_imbalance_per_broker_percentage
        for id in imbalanced(latest, percentage=percentage):
            self._partitions.elect(id, ElectionType.PREFERRED)

    def drain(self, request: DrainBroker, now_ms: int) -> BrokerDrained:
        image = self._ledger.latest
        broker_id = request.broker_id
        if broker_id not in image.brokers:
            return BrokerDrained(ErrorCode.broker_id_not_registered, f"broker {broker_id} is not registered")
        led = _led_by(image, broker_id)
        if (broker_id in image.draining) != request.is_draining:
            self._ledger.add(BrokerDrainChanged(broker_id, request.is_draining))
            self._settle(broker_id, now_ms)
        remaining = _led_by(image, broker_id)
        return BrokerDrained(moved=tuple(each for each in led if each not in remaining), remaining=tuple(remaining))

    def leave(self, broker_id: int, incarnation: int, now_ms: int) -> None:
        """That process of the Broker says that its node is about to go. Said again it changes
        nothing.
        """
        if self._ledger.latest.leaving.get(broker_id) != incarnation:
            self._ledger.add(BrokerLeaving(broker_id, incarnation))
            self._settle(broker_id, now_ms)

    def _settle(self, broker_id: int, now_ms: int) -> None:
        image = self._ledger.latest
        held = {id for node, ids in image.assigned.items() if broker_of(node) == broker_id for id in ids}
        self._partitions.settle(held, now_ms)

    def elect(self, request: ElectLeaders) -> LeadersElected:
        outcomes = []
        for name, partition in request.partitions if request.partitions is not None else self._all_partitions():
            topic = self._ledger.latest.topic_named(name)
            message: str | None
            if topic is None or partition not in topic.partitions:
                error, message = ErrorCode.unknown_topic_or_partition, f"there is no partition {name}-{partition}"
            else:
                error, message = self._partitions.elect(TopicIdPartition(topic.topic_id, partition), request.type)
            if request.partitions is not None or error is not ErrorCode.election_not_needed:
                outcomes.append(PartitionOutcome(name, partition, error, message))
        return LeadersElected(tuple(outcomes))

    def _all_partitions(self) -> Iterable[tuple[str, int]]:
        image = self._ledger.latest
        topics = [image.topics[topic_id] for _, topic_id in sorted(image.topic_ids.items())]
        return tuple((topic.name, partition) for topic in topics for partition in sorted(topic.partitions))


def _led_by(image: MetadataImage, broker_id: int) -> list[tuple[str, int]]:
    return [
        (name, partition)
        for name, topic_id in sorted(image.topic_ids.items())
        for partition, state in sorted(image.topics[topic_id].partitions.items())
        if state.leader == broker_id
    ]


def imbalanced(image: MetadataImage, *, percentage: int) -> list[TopicIdPartition]:
    """The partitions that another than their preferred leader leads, of the brokers for which these
    are too many.
    """
    preferring: dict[int, int] = {}
    elsewhere: dict[int, list[TopicIdPartition]] = {}
    for topic_id, topic in sorted(image.topics.items()):
        for partition, state in sorted(topic.partitions.items()):
            broker = state.brokers[0]
            preferring[broker] = preferring.get(broker, 0) + 1
            if state.leader != broker:
                elsewhere.setdefault(broker, []).append(TopicIdPartition(topic_id, partition))
    return [
        id
        for broker, ids in sorted(elsewhere.items())
        if len(ids) * 100 > percentage * preferring[broker]
        for id in ids
    ]
