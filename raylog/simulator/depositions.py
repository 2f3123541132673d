"""A leader that is deposed alive, with records that nobody else has: the fault that makes logs
diverge.

``Depositions.strike`` cuts a leader off from its followers and leaves it in touch with controllers
and clients. Producers go on: what they send is appended, and those with acks=all wait for followers
who do not come. Then leadership moves without a death: the leader's broker is drained, or another
replica becomes the preferred one and is elected. The former leader answers who waits and, when the
cut has healed, cuts its log to the new leader's. Now and then leadership comes back before the cut
has healed: then fetches and answers of two epochs ago arrive at a leader who has led in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.metadata.records import PartitionState
from raylog.metadata.requests import (
    AlterReassignments,
    ElectionType,
    ElectLeaders,
    PartitionTarget,
)
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.faults import Faults
    from raylog.simulator.simulation import Simulation


class Depositions:
    def __init__(self, simulation: Simulation, faults: Faults) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self._faults = faults
        self._is_under_way = False

    def strike(self) -> None:
        """Cut, wait, move leadership, heal; each at its own time. Nothing while one is under way."""
        if self._is_under_way:
            return
        found = [
            each for each in self.simulation.partitions() if len(each[2].isr) > 1 and each[2].leader in each[2].isr
        ]
        if not found:
            return
        rng = self.scheduler.rng
        id, topic, state = rng.choice(found)
        leader = state.leader
        successor = rng.choice([broker for broker in state.isr if broker != leader])
        alone = self.simulation.machine_of(leader)
        others = [self.simulation.machine_of(broker) for broker in state.brokers if broker != leader]
        ways = [(other, alone) for other in others]
        if self.scheduler.chance(0.7):
            ways += [(alone, other) for other in others]
        for sender, receiver in ways:
            self.simulation.network.cut(sender, receiver)
        self._is_under_way = True

        def heal() -> None:
            self._is_under_way = False
            self.simulation.network.heal(ways)

        number = self._faults.lasting(1_000, 4_000, heal)
        process = self.simulation.process_of(leader, state.leader_incarnation)

        def look() -> None:
            if not self._faults.is_lasting(number):
                return
            replica = process.host.replicas.get(id) if process is not None and process.alive else None
            if replica is None or replica.leader is None:
                self._faults.end(number)
            elif replica.open_log().log_end_offset == replica.open_log().high_watermark:
                self.scheduler.after_ms(20, look, "the cut off leader has nothing new")
            else:
                self.scheduler.after_ms(self.scheduler.between(0, 300), depose, "depose a leader")

        def depose() -> None:
            if self._faults.is_lasting(number):
                self._move(id, topic, state, leader, successor)
                if self.scheduler.chance(0.4):
                    pause_ms = self.scheduler.between(50, 800)
                    self.scheduler.after_ms(pause_ms, come_back, "the deposed comes back")
                elif self.scheduler.chance(0.5):
                    self._end_later(number)

        def come_back() -> None:
            if self._faults.is_lasting(number):
                self._prefer(topic, id.partition, state, leader)
                self._end_later(number)

        look()

    def _end_later(self, number: int) -> None:
        self.scheduler.after_ms(self.scheduler.between(50, 800), lambda: self._faults.end(number), "the cut heals")

    def _move(self, id: TopicIdPartition, topic: str, state: PartitionState, leader: int, successor: int) -> None:
        if self.scheduler.chance(0.6):
            self._prefer(topic, id.partition, state, successor)
        else:
            self._drain(leader)

    def _drain(self, broker: int) -> None:
        """For a moment."""
        administration = self.simulation.administration
        administration.drain_broker(broker, True)
        pause_ms = self.scheduler.between(200, 3_000)
        self._faults.lasting(pause_ms, pause_ms, lambda: administration.drain_broker(broker, False))

    def _prefer(self, topic: str, partition: int, state: PartitionState, broker: int) -> None:
        """The same replicas, this one first, and then an election of preferred leaders."""
        administrator = self.simulation.administration.administrator
        order = (broker, *(each for each in state.brokers if each != broker))
        elect = ElectLeaders(ElectionType.PREFERRED, ((topic, partition),))
        self.simulation.trace(f"prefer {broker} as the leader of {topic}-{partition}")
        administrator.request(
            AlterReassignments((PartitionTarget(topic, partition, order),)),
            lambda reply: administrator.request(elect, lambda reply: None),
        )
