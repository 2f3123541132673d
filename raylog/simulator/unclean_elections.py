"""Everybody in sync is gone, and somebody decides to go on with a replica that is not: an unclean
election, asked for.

``UncleanElections.strike`` takes a partition and one of its followers. The follower is cut off
until it has left the ISR; clients go on meanwhile, so it lacks what is acknowledged then. Then the
machines of the ISR lose their power, or, where a controller runs beside them, their processes hang.
The cut heals, and an administrator asks for an unclean election until there was one or somebody in
sync is back.

What such an election loses is forgiven, as always (``checkers``, ``group_checker``): all that came
before it. What is promised after it counts like anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.metadata.records import PartitionState
from raylog.metadata.requests import ElectionType
from raylog.simulator.processes import Machine
from raylog.types import NO_LEADER, TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.faults import Faults
    from raylog.simulator.simulation import Simulation

ASK_EVERY_MS = 200


class UncleanElections:
    """Of partitions of the topic ``topic`` only."""

    def __init__(self, simulation: Simulation, faults: Faults, topic: str) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self._faults = faults
        self._topic = topic
        self._is_under_way = False

    def strike(self) -> None:
        """Nothing while one is under way."""
        found = [
            (id, state)
            for id, topic, state in self.simulation.partitions()
            if topic == self._topic and state.leader != NO_LEADER and len(state.brokers) > 2
        ]
        if self._is_under_way or not found:
            return
        id, state = self.scheduler.rng.choice(found)
        survivor = self.scheduler.rng.choice([broker for broker in state.brokers if broker != state.leader])
        behind = self.simulation.machine_of(survivor)
        ways = [
            way
            for broker in state.brokers
            if broker != survivor
            for way in ((self.simulation.machine_of(broker), behind), (behind, self.simulation.machine_of(broker)))
        ]
        for sender, receiver in ways:
            self.simulation.network.cut(sender, receiver)
        self._is_under_way = True

        def heal() -> None:
            self._is_under_way = False
            self.simulation.network.heal(ways)

        number = self._faults.lasting(4_000, 12_000, heal)

        def look() -> None:
            if not self._faults.is_lasting(number):
                return
            now = self.simulation.state_of(id)
            if now is None or survivor in now.isr or now.leader == NO_LEADER:
                self.scheduler.after_ms(50, look, "the survivor is in sync")
            else:
                delay_ms = self.scheduler.between(0, 1_000)  # in which clients are told what the survivor lacks
                self.scheduler.after_ms(delay_ms, strike_down, "strike down the isr")

        def strike_down() -> None:
            now = self.simulation.state_of(id)
            if not self._faults.is_lasting(number) or now is None or survivor in now.isr:
                return
            self.simulation.counts["isrs struck down"] += 1
            for broker in now.isr:
                self._strike_down(self.simulation.machine_of(broker))
            self._faults.end(number)
            self._is_under_way = True
            self._ask(id, now, tries=60)

        look()

    def _strike_down(self, machine: Machine) -> None:
        if any(place.machine is machine for place in self.simulation.controllers.places):
            for process in self.simulation.servers():
                if process.machine is machine:
                    process.pause()
                    self._faults.lasting(4_000, 12_000, process.resume)
        elif machine.is_on:
            machine.lose_power()

    def _ask(self, id: TopicIdPartition, before: PartitionState, tries: int) -> None:
        now = self.simulation.state_of(id)
        if now is None or now.unclean_elections > before.unclean_elections:
            self.simulation.counts["unclean elections that were asked for"] += now is not None
            tries = 0
        if not tries or (now is not None and now.leader not in (NO_LEADER, before.leader)):
            self._is_under_way = False
            return
        self.simulation.administration.elect(ElectionType.UNCLEAN)
        self.scheduler.after_ms(ASK_EVERY_MS, lambda: self._ask(id, before, tries - 1), "ask for an unclean election")
