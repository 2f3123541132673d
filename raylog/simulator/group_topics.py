"""The topics that simulated groups read: made, deleted and made again under their names, while
coordinators come and go.

Nobody writes to them; what counts is that their names and ids change. A deletion is often followed
at once by the death of a coordinator, so that the deletion and what is to be done about it meet
different processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.metadata.requests import CreateTopics, DeleteTopics, RequestedTopic
from raylog.types import TopicPartition

if TYPE_CHECKING:
    from raylog.simulator.simulated_groups import GroupAdministration

CONFIGS = (("segment.index.bytes", "480"),)


class GroupTopics:
    """``create_all`` once; then ``delete_some`` now and then; ``restore`` when nothing shall be
    missing any more.
    """

    def __init__(self, administration: GroupAdministration, names: tuple[str, ...]) -> None:
        self._administration = administration
        self._simulation = administration.simulation
        self._scheduler = administration.scheduler
        self.names = names
        self._busy: set[str] = set()  # a request is on its way
        self._is_restoring = False

    def create_all(self) -> None:
        for name in self.names:
            self._create(name)

    def _create(self, name: str) -> None:
        self._busy.add(name)
        self._simulation.trace(f"create {name}")
        request = CreateTopics((RequestedTopic(name, 1, 1, configs=CONFIGS),))
        self._administration.administrator.request(request, lambda reply: self._changed(name))

    def _changed(self, name: str) -> None:
        self._busy.discard(name)
        self._administration.describe(self._described)

    def _described(self) -> None:
        if self._is_restoring:
            self.restore()

    def delete_some(self) -> None:
        there = [name for name in self.names if name in self._administration.topics and name not in self._busy]
        if not there:
            return
        name = self._scheduler.rng.choice(there)
        topic = self._administration.topics.pop(name)
        assert topic.topic_id is not None, topic
        self._busy.add(name)
        self._simulation.trace(f"delete {name}")
        self._simulation.counts["topics of groups deleted"] += 1
        self._simulation.deleted_topics.add(topic.topic_id)
        request = DeleteTopics(topic_ids=(topic.topic_id,))
        self._administration.administrator.request(request, lambda reply: self._deleted(name))
        if self._scheduler.chance(0.5):
            delay_us = self._scheduler.skewed_us(20_000)
            self._scheduler.after_us(delay_us, self._kill_a_coordinator, "a coordinator dies beside a deletion")

    def _deleted(self, name: str) -> None:
        delay_us = self._scheduler.skewed_us(200_000)
        self._scheduler.after_us(delay_us, lambda: self._create(name), f"{name} is made again")

    def _kill_a_coordinator(self) -> None:
        coordinators = self._simulation.leading_coordinators()
        if coordinators and not self._simulation.is_healing:
            process = self._scheduler.rng.choice(coordinators)
            self._simulation.trace(f"{process.name} dies beside a deletion")
            process.kill()

    def restore(self) -> None:
        """Make what is missing, and look again until nothing is."""
        self._is_restoring = True
        for name in self.names:
            if name not in self._administration.topics and name not in self._busy:
                self._create(name)

    def unheard(self, place: TopicPartition, known: object) -> str | None:
        """Why a process that knows that id for the place's topic is behind; None if it is not."""
        topic = self._administration.topics.get(place.topic)
        if topic is None:
            return f"{place.topic} is not there"
        return None if topic.topic_id == known else f"it knows {place.topic} as {known}, not {topic.topic_id}"
