"""The replicas whose coordinators hear of leadership and of what is replicated: those of the topics
that the server names.

Parts of the host note in ``HostContext.watched`` the replicas whose role or high watermark may have
changed. At the end of the event ``announce`` compares each with what was announced last and gives
the differences to the shell, as one effect, in this order::

    LeadershipEnded      the former epoch, if this process led
    LeadershipBegan      the new epoch, if it leads
    TransactionMarked    each marker that was appended, before its offset can be below the high watermark
    HighWatermarkMoved   forwards, or backwards where the log was cut or is another one
    LeadershipExpected   whether this process may lead any moment without leading yet
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raylog.replication.context import HostContext
from raylog.replication.leaderships import (
    HighWatermarkMoved,
    Leadership,
    LeadershipBegan,
    LeadershipEnded,
    LeadershipExpected,
    LeadershipsChanged,
    TransactionMarked,
)
from raylog.replication.replica import Replica
from raylog.types import TopicIdPartition

NOWHERE = -1


@dataclass(slots=True)
class _Announced:
    leader_epoch: int = NOWHERE
    high_watermark: int = NOWHERE
    is_expected: bool | None = None


class WatchedReplicas:
    def __init__(self, context: HostContext, replicas: dict[TopicIdPartition, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._announced: dict[TopicIdPartition, _Announced] = {}

    def note(self, ids: Iterable[TopicIdPartition]) -> None:
        """The role or the health of these replicas may have changed, or they are gone."""
        for id in ids:
            replica = self._replicas.get(id)
            if id in self._announced or (replica is not None and replica.is_watched):
                self._context.watched[id] = None

    def announce(self) -> None:
        """Give the shell what has changed of the replicas that were noted."""
        context = self._context
        noted, context.watched = context.watched, {}
        ended, context.ended_transactions = context.ended_transactions, []
        changes = [change for id in noted for change in self._changes(id, self._replicas.get(id), ended)]
        if changes:
            self._context.effects.append(LeadershipsChanged(tuple(changes)))

    def _changes(
        self, id: TopicIdPartition, replica: Replica | None, ended: list[TransactionMarked]
    ) -> list[Leadership]:
        changes: list[Leadership] = []
        was = self._announced.setdefault(id, _Announced())
        leader = replica.leader if replica is not None else None
        log = replica.log if replica is not None else None
        leader_epoch = leader.leader_epoch if leader is not None else NOWHERE
        if was.leader_epoch not in (NOWHERE, leader_epoch):
            changes.append(LeadershipEnded(id, was.leader_epoch))
        if leader is not None and leader_epoch != was.leader_epoch:
            changes.append(LeadershipBegan(id, leader_epoch, leader.epoch_start_offset))
        was.leader_epoch = leader_epoch
        if leader is not None:
            changes += [each for each in ended if each.id == id]
        high_watermark = log.high_watermark if log is not None else NOWHERE
        if log is not None and high_watermark != was.high_watermark:
            changes.append(HighWatermarkMoved(id, high_watermark, log.stable_end_offset))
        was.high_watermark = high_watermark
        is_expected = replica is not None and replica.may_lead_soon
        if is_expected is not was.is_expected:
            changes.append(LeadershipExpected(id, is_expected))
        was.is_expected = is_expected
        if replica is None:
            del self._announced[id]
        return changes

    def check(self) -> None:
        """Raise AssertionError where something has changed that was not announced."""
        assert not self._context.watched, "an event ended with replicas whose changes nobody has announced"
        for id, was in self._announced.items():
            replica = self._replicas[id]
            led = replica.leader.leader_epoch if replica.leader is not None else NOWHERE
            end = replica.log.high_watermark if replica.log is not None else NOWHERE
            assert (led, end, replica.may_lead_soon) == (was.leader_epoch, was.high_watermark, was.is_expected), (
                f"{id}: leads in epoch {led} to {end}, but {was} was announced"
            )
