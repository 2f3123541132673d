"""One fault each, planted into a history that a correct log has made.

A planter gets the history and a number to choose by, and returns the history with the fault, or
None if there is no place for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from raylog.histories import Action, AnomalyKind, EventType, OperationEvent, Poll, Send, Value
from raylog.types import TopicPartition

History = list[OperationEvent]
Found = tuple[TopicPartition, int, Value]
Planter = Callable[[History, int], History | None]


def changed(event: OperationEvent, change: Callable[[Action], Action | None]) -> OperationEvent:
    return replace(event, actions=tuple(new for action in event.actions if (new := change(action)) is not None))


def repolled(history: History, change: Callable[[OperationEvent, Found], Iterable[tuple[int, Value]]]) -> History:
    """The history with other records in place of each that was polled."""

    def of(event: OperationEvent) -> Callable[[Action], Action]:
        def work(action: Action) -> Action:
            if not isinstance(action, Poll):
                return action
            return Poll(
                {
                    partition: tuple(new for each in records for new in change(event, (partition, *each)))
                    for partition, records in action.records.items()
                }
            )

        return work

    return [changed(event, of(event)) for event in history]


def sends(history: History, *kinds: EventType) -> list[tuple[OperationEvent, Send]]:
    return [
        (event, action)
        for event in history
        if event.type in kinds
        for action in event.actions
        if isinstance(action, Send)
    ]


def polls(history: History) -> list[tuple[OperationEvent, Found]]:
    return [
        (event, (partition, *each))
        for event in history
        for action in event.actions
        if isinstance(action, Poll)
        for partition, records in action.records.items()
        for each in records
    ]


def read_by_many(history: History) -> list[tuple[OperationEvent, Found]]:
    """What the last reader polled, and somebody else too."""
    others = {found for event, found in polls(history) if event.process != "last"}
    return [(event, found) for event, found in polls(history) if event.process == "last" and found in others]


def aborted_read(history: History, choice: int) -> History | None:
    found = sends(history, EventType.FAIL)
    if not found:
        return None
    _, send = found[choice % len(found)]
    assert send.offset is not None
    poll = Poll({send.partition: ((send.offset, send.value),)})
    return [*history, OperationEvent("planted", EventType.OK, (poll,))]


def precommitted_read(history: History, choice: int) -> History | None:
    found = sends(history, EventType.OK)
    if not found:
        return None
    chosen, send = found[choice % len(found)]
    assert send.offset is not None
    poll = Poll({send.partition: ((send.offset, send.value),)})
    return [replace(event, actions=(*event.actions, poll)) if event is chosen else event for event in history]


def unsent_read(history: History, choice: int) -> History | None:
    found = polls(history)
    if not found:
        return None
    _, (partition, offset, _) = found[choice % len(found)]
    at = (partition, offset)
    return repolled(history, lambda _, each: [(each[1], "nobody's" if each[:2] == at else each[2])])


def inconsistent_offset(history: History, choice: int) -> History | None:
    """One reader sees another sent value at an offset."""
    found, other = read_by_many(history), sends(history, EventType.OK)
    if not found:
        return None
    chosen, record = found[choice % len(found)]
    values = [send.value for _, send in other if send.value != record[2] and send.partition == record[0]]
    if not values:
        return None
    value = values[choice % len(values)]
    return repolled(history, lambda event, each: [(each[1], value if event is chosen and each == record else each[2])])


def duplicate(history: History, choice: int) -> History | None:
    """A value is there again, behind everything that its partition has."""
    found = [found for event, found in polls(history) if event.process == "last"]
    if not found:
        return None
    partition, _, value = found[choice % len(found)]
    end = 1 + max(offset for _, (where, offset, _) in polls(history) if where == partition)
    poll = Poll({partition: ((end + 1000, value),)})
    return [*history, OperationEvent("planted", EventType.OK, (poll,))]


def lost_write(history: History, choice: int) -> History | None:
    """Nobody polls an acknowledged record."""
    read = [found for _, found in polls(history)]
    below = [
        (send.partition, send.offset, send.value)
        for _, send in sends(history, EventType.OK)
        if any(partition == send.partition and offset > (send.offset or 0) for partition, offset, _ in read)
    ]
    if not below:
        return None
    hidden = below[choice % len(below)]
    return repolled(history, lambda _, each: [] if each == hidden else [each[1:]])


def unseen(history: History, choice: int) -> History | None:
    """Nobody polls the last acknowledged record of a partition."""
    acknowledged = [(send.offset or 0, send) for _, send in sends(history, EventType.OK)]
    partitions = sorted({send.partition for _, send in acknowledged})
    if not partitions:
        return None
    partition = partitions[choice % len(partitions)]
    end = max(offset for offset, send in acknowledged if send.partition == partition)
    return repolled(history, lambda _, each: [] if each[0] == partition and each[1] >= end else [each[1:]])


def _last_reads(history: History) -> dict[TopicPartition, list[Found]]:
    of: dict[TopicPartition, list[Found]] = {}
    for event, found in polls(history):
        if event.process == "last":
            of.setdefault(found[0], []).append(found)
    return of


def poll_skip(history: History, choice: int) -> History | None:
    """The last reader passes over what somebody else polled."""
    ends = {partition: found[-1] for partition, found in _last_reads(history).items()}
    found = [(event, record) for event, record in read_by_many(history) if record != ends[record[0]]]
    if not found:
        return None
    _, hidden = found[choice % len(found)]
    return repolled(history, lambda event, each: [] if event.process == "last" and each == hidden else [each[1:]])


def nonmonotonic_poll(history: History, choice: int) -> History | None:
    """The last reader gets a record again, at once."""
    found = [(event, record) for event, record in polls(history) if event.process == "last"]
    if not found:
        return None
    chosen, again = found[choice % len(found)]
    return repolled(history, lambda event, each: [each[1:]] * (2 if event is chosen and each == again else 1))


def external_nonmonotonic_poll(history: History, choice: int) -> History | None:
    found = [(event, record) for event, record in polls(history) if event.process == "last"]
    if not found:
        return None
    _, (partition, offset, value) = found[choice % len(found)]
    return [*history, OperationEvent("last", EventType.OK, (Poll({partition: ((offset, value),)}),))]


def nonmonotonic_send(history: History, choice: int) -> History | None:
    """Two sends of a process are where the other one is."""
    found = [(event, send) for event, send in sends(history, EventType.OK)]
    pairs = [
        (first, second)
        for place, (event, first) in enumerate(found)
        for other, second in found[place + 1 :]
        if event.process == other.process and first.partition == second.partition
    ]
    if not pairs:
        return None
    first, second = pairs[choice % len(pairs)]
    values = {(first.partition, first.offset): second.value, (second.partition, second.offset): first.value}

    def swapped(action: Action) -> Action:
        if action is first:
            return replace(first, offset=second.offset)
        return replace(second, offset=first.offset) if action is second else action

    moved = [changed(event, swapped) for event in history]
    return repolled(moved, lambda _, each: [(each[1], values.get(each[:2], each[2]))])


def circular_reads(history: History, choice: int) -> History | None:
    """Two transactions read from each other."""
    found = sends(history, EventType.OK)
    pairs = [(one, other) for one in found for other in found if one[0] is not other[0]]
    if not pairs:
        return None
    (first, sent), (second, answered) = pairs[choice % len(pairs)]

    def reading(event: OperationEvent, send: Send) -> OperationEvent:
        assert send.offset is not None
        return replace(event, actions=(*event.actions, Poll({send.partition: ((send.offset, send.value),)})))

    return [
        reading(event, answered) if event is first else reading(event, sent) if event is second else event
        for event in history
    ]


@dataclass(frozen=True, slots=True)
class PlantedFault:
    planter: Planter
    kinds: frozenset[AnomalyKind]  # one of these has to be found


FAULTS = {
    planter.__name__: PlantedFault(planter, frozenset(kinds))
    for planter, *kinds in (
        (aborted_read, AnomalyKind.ABORTED_READ),
        (precommitted_read, AnomalyKind.PRECOMMITTED_READ),
        (unsent_read, AnomalyKind.UNSENT_READ),
        (inconsistent_offset, AnomalyKind.INCONSISTENT_OFFSETS),
        (duplicate, AnomalyKind.DUPLICATE),
        (lost_write, AnomalyKind.LOST_WRITE),
        (unseen, AnomalyKind.UNSEEN),
        (poll_skip, AnomalyKind.POLL_SKIP, AnomalyKind.INTERNAL_POLL_SKIP),
        (nonmonotonic_poll, AnomalyKind.INTERNAL_NONMONOTONIC_POLL),
        (external_nonmonotonic_poll, AnomalyKind.NONMONOTONIC_POLL),
        (nonmonotonic_send, AnomalyKind.NONMONOTONIC_SEND, AnomalyKind.INTERNAL_NONMONOTONIC_SEND),
        (circular_reads, AnomalyKind.G1C),
    )
}
