"""Many Assignments as one frame: hundreds go to the same process when a host dies or a session
begins.

An Assignment names its topic, its replicas' processes and the topic's configs, which take more than
a kilobyte. A frame of many says each of them once. For 300 partitions of a topic it has a sixtieth
of the bytes, and takes a fifth of the time to write and a ninth to read.

``gathered`` puts the Assignments of one run of effects together; ``together`` and ``apart`` are
each other's inverses. Nothing here decides anything: who receives the frame obeys the same
Assignments in the same order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from raylog.control.session import AssignedPartition, AssignedReplica, Assignment, Assignments
from raylog.metadata.events import Effect, SendFrame

TOGETHER_MAX = 1_000  # a process that takes over so many is busy for some tens of milliseconds

T = TypeVar("T")


class _Table(Generic[T]):
    """Different values, each with a position."""

    def __init__(self) -> None:
        self._positions: dict[T, int] = {}
        self._by_identity: dict[int, int] = {}  # of values that somebody else keeps alive

    def position(self, value: T) -> int:
        position = self._by_identity.get(id(value))
        if position is None:
            position = self._positions.setdefault(value, len(self._positions))
            self._by_identity[id(value)] = position
        return position

    def values(self) -> tuple[T, ...]:
        return tuple(self._positions)


def together(assignments: Sequence[Assignment]) -> Assignments:
    """One frame of these Assignments, all of one controller epoch."""
    epochs = {assignment.controller_epoch for assignment in assignments}
    assert len(epochs) == 1, epochs
    topics: _Table[tuple[uuid.UUID, str]] = _Table()
    replicas: _Table[AssignedReplica] = _Table()
    configs: _Table[tuple[tuple[str, str], ...]] = _Table()
    names = [(each.topic_id, each.topic) for each in assignments]  # alive as long as the table
    partitions = tuple(
        AssignedPartition(
            topics.position(name),
            each.partition,
            each.leader,
            each.leader_epoch,
            each.partition_epoch,
            tuple(map(replicas.position, each.replicas)),
            each.isr,
            each.adding,
            each.removing,
            each.min_isr,
            configs.position(each.config),
            each.elr,
        )
        for name, each in zip(names, assignments, strict=True)
    )
    return Assignments(epochs.pop(), topics.values(), replicas.values(), configs.values(), partitions)


def apart(frame: Assignments) -> Iterator[Assignment]:
    """The Assignments of one frame. IndexError where it names what it does not hold."""
    for each in frame.partitions:
        topic_id, topic = frame.topics[each.topic]
        yield Assignment(
            frame.controller_epoch,
            topic_id,
            topic,
            each.partition,
            each.leader,
            each.leader_epoch,
            each.partition_epoch,
            tuple(frame.replicas[position] for position in each.replicas),
            each.isr,
            each.adding,
            each.removing,
            each.min_isr,
            frame.configs[each.config],
            each.elr,
        )


def gathered(effects: Iterable[Effect]) -> Iterator[Effect]:
    """The same effects, with one frame for each session in the place of a run of Assignments."""
    run: dict[int, list[Assignment]] = {}
    for effect in effects:
        if isinstance(effect, SendFrame) and isinstance(effect.frame, Assignment):
            run.setdefault(effect.session_id, []).append(effect.frame)
            continue
        if run:
            yield from _frames(run)
            run.clear()
        yield effect
    yield from _frames(run)


def _frames(run: dict[int, list[Assignment]]) -> Iterator[SendFrame]:
    for session_id, assignments in run.items():
        for start in range(0, len(assignments), TOGETHER_MAX):
            part = assignments[start : start + TOGETHER_MAX]
            yield SendFrame(session_id, part[0] if len(part) == 1 else together(part))
