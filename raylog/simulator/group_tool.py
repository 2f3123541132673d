"""Somebody with a tool: keeps the offsets of a group that has no members, looks at them, and
deletes them, or the whole group.

One request at a time, each with one attempt; what became of it is ``group_checker``'s to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.groups.requests import CommittedPartition, DeleteGroup, OffsetCommit, OffsetDelete, OffsetFetch, Request
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.simulator.coordinator_processes import CoordinatorCall
from raylog.simulator.processes import Machine
from raylog.simulator.workload import Client
from raylog.types import TopicIdPartition, TopicPartition

if TYPE_CHECKING:
    from raylog.simulator.simulated_groups import GroupSimulation


class GroupTool(Client):
    def __init__(self, name: str, simulation: GroupSimulation, machine: Machine, id: TopicIdPartition) -> None:
        super().__init__(name, simulation, machine)
        self.groups = simulation
        self.id = id
        self._places = tuple(TopicPartition(f"work{id.partition}", number) for number in range(3))
        self._is_over = False
        self._work_later()

    def stop(self) -> None:
        self._is_over = True

    def _work_later(self) -> None:
        self.simulation.rhythm.later(self.later, 300_000, self._work, f"{self.name} works")

    def leader_found(self) -> None:
        self._work_later()

    def partition_is_gone(self) -> None:
        self._is_over = True

    def _work(self) -> None:
        if self._is_over:
            return
        leader = self.leader
        if leader is None:
            self.find_leader(OFFSETS_TOPIC, self.id, newer_than=-1)
            return

        def answered(reply: Any) -> None:
            error = 1 if reply is None else getattr(reply, "error", 0)
            if error and self.leader == leader:
                self.leader = None
            self._work_later()

        rng = self.scheduler.rng
        kinds: list[Callable[[], Request]] = [
            self._commit,
            self._commit,
            self._fetch,
            self._fetch,
            self._delete,
            self._bury,
        ]
        self.ask(leader.endpoint, CoordinatorCall(self.id, rng.choice(kinds)(), is_native=False), answered)

    def _commit(self) -> Request:
        place = self.scheduler.rng.choice(self._places)
        part = CommittedPartition(place.topic, place.partition, self.groups.next_offset())
        return OffsetCommit(self.name, (part,), "", -1, None)

    def _fetch(self) -> Request:
        return OffsetFetch(self.name)

    def _delete(self) -> Request:
        return OffsetDelete(self.name, (self.scheduler.rng.choice(self._places),))

    def _bury(self) -> Request:
        return DeleteGroup(self.name)
