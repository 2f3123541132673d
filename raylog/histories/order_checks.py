"""Whether each process saw and wrote each partition in the order of its offsets.

A consumer has a position in each partition, the next offset that it is going to read. It is known
after a poll, and after an ``Assign`` that says it. A poll that returns a lower offset went back, and
one that passes over a record that somebody else polled skipped it. Records that nobody polled are
no skip: those are lost writes. Nor are those of failed operations, which a reader at
``read_committed`` rightly passes over.

After an operation that failed, or whose end is unknown, a consumer goes on wherever its user put
it. Its positions are unknown until the history says them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raylog.histories.anomalies import Anomaly, AnomalyKind, IsolationModel
from raylog.histories.known_records import KnownRecords
from raylog.histories.operations import (
    Assign,
    Crash,
    EventType,
    HistoryOperation,
    LocatedRecord,
    Poll,
    Send,
    Subscribe,
)
from raylog.types import TopicPartition


@dataclass(slots=True)
class _Position:
    """The next offset to read, and who read the last one, in which of its polls."""

    offset: int
    operation: HistoryOperation | None = None
    poll: int = -1


@dataclass(slots=True)
class _Reader:
    """One process."""

    positions: dict[TopicPartition, _Position] = field(default_factory=dict)
    may_rebalance: bool = False


class PollOrder:
    """Follows the positions of all processes through a history."""

    def __init__(self, known: KnownRecords, model: IsolationModel) -> None:
        self._operations = known.operations
        self._visible: dict[TopicPartition, dict[int, LocatedRecord]] = {}
        self._readers: dict[str, _Reader] = {}
        for record in known.readers:
            if model is IsolationModel.READ_UNCOMMITTED or not known.is_aborted(record):
                assert record.offset is not None
                self._visible.setdefault(record.partition, {})[record.offset] = record
        self._offsets = {partition: sorted(records) for partition, records in self._visible.items()}

    def anomalies(self) -> Iterator[Anomaly]:
        for operation in self._operations:
            reader = self._readers.setdefault(operation.process, _Reader())
            for index, action in enumerate(operation.actions):
                match action:
                    case Poll():
                        yield from self._poll(reader, operation, index, action)
                    case Assign():
                        known = {key: offset for key, offset in action.offsets.items() if offset is not None}
                        reader.positions = {key: _Position(offset) for key, offset in known.items()}
                    case Subscribe():
                        reader.positions = {}
                        reader.may_rebalance = not action.reports_rebalances
                    case Crash():
                        self._readers[operation.process] = reader = _Reader()
                    case _:
                        pass
            if operation.type is not EventType.OK:
                for record in operation.polled:
                    reader.positions.pop(record.partition, None)

    def _poll(self, reader: _Reader, operation: HistoryOperation, index: int, poll: Poll) -> Iterator[Anomaly]:
        for partition, records in poll.records.items():
            for offset, value in records:
                position = reader.positions.get(partition)
                if position is not None and position.offset != offset:
                    is_other_poll = (position.operation, position.poll) != (operation, index)
                    is_excused = reader.may_rebalance and is_other_poll
                    yield from self._step(position, operation, LocatedRecord(partition, offset, value), is_excused)
                reader.positions[partition] = _Position(offset + 1, operation, index)

    def _step(
        self, position: _Position, operation: HistoryOperation, record: LocatedRecord, is_excused: bool
    ) -> Iterator[Anomaly]:
        """What is wrong if this record is polled at this position."""
        assert record.offset is not None
        earlier = position.operation
        is_internal = earlier is operation
        operations = (operation,) if earlier is None or is_internal else (earlier, operation)
        if record.offset < position.offset:
            kind = AnomalyKind.INTERNAL_NONMONOTONIC_POLL if is_internal else AnomalyKind.NONMONOTONIC_POLL
            words = f"{operation} went back to {record}; {_there(position, operations)}"
            yield Anomaly(kind, operations, (record,), words, is_excused)
            return
        offsets = self._offsets.get(record.partition, [])
        first, end = bisect_left(offsets, position.offset), bisect_left(offsets, record.offset)
        skipped = [self._visible[record.partition][offset] for offset in offsets[first:end]]
        if skipped:
            kind = AnomalyKind.INTERNAL_POLL_SKIP if is_internal else AnomalyKind.POLL_SKIP
            words = f"{operation} polled {record} and passed over {len(skipped)} records that others polled, the first"
            words += f" of them {skipped[0]}; {_there(position, operations)}"
            yield Anomaly(kind, operations, (*skipped, record), words, is_excused)


def _there(position: _Position, operations: tuple[HistoryOperation, ...]) -> str:
    after = f" after {operations[0]}" if len(operations) > 1 else ""
    return f"its position there was {position.offset}{after}"


def nonmonotonic_sends(known: KnownRecords) -> Iterator[Anomaly]:
    """Sends whose offsets do not rise: within an operation in the order of its actions, and between
    operations of a process where one had completed before the next was invoked.
    """
    highest: dict[tuple[str, TopicPartition], tuple[HistoryOperation, Send]] = {}
    floors: dict[HistoryOperation, dict[TopicPartition, tuple[HistoryOperation, Send]]] = {}
    for _, is_invocation, operation in _moments(known.operations):
        sends = [send for send in operation.sends if send.offset is not None]
        if is_invocation:
            keys = {send.partition: (operation.process, send.partition) for send in sends}
            floors[operation] = {partition: highest[key] for partition, key in keys.items() if key in highest}
            continue
        last: dict[TopicPartition, Send] = {}
        for send in sends:
            before = last.get(send.partition)
            if before is not None and _is_below(send, before):
                words = f"{operation} sent {_located(send)} after {_located(before)}"
                records = (_located(before), _located(send))
                yield Anomaly(AnomalyKind.INTERNAL_NONMONOTONIC_SEND, (operation,), records, words)
            elif before is None and send.partition in floors[operation]:
                earlier, before = floors[operation][send.partition]
                if _is_below(send, before):
                    words = f"{operation} sent {_located(send)} after {earlier} had sent {_located(before)}"
                    records = (_located(before), _located(send))
                    yield Anomaly(AnomalyKind.NONMONOTONIC_SEND, (earlier, operation), records, words)
            last[send.partition] = send
            key = (operation.process, send.partition)
            if key not in highest or not _is_below(send, highest[key][1]):
                highest[key] = (operation, send)


def _moments(operations: Sequence[HistoryOperation]) -> list[tuple[int, bool, HistoryOperation]]:
    """Invocations and completions in the order of the history."""
    moments = [(operation.invoked, True, operation) for operation in operations]
    last = max((operation.completed or 0 for operation in operations), default=0)
    for operation in operations:
        moments.append((last + 1 if operation.completed is None else operation.completed, False, operation))
    return sorted(moments, key=lambda moment: (moment[0], not moment[1]))


def _is_below(send: Send, before: Send) -> bool:
    assert send.offset is not None and before.offset is not None
    return send.offset <= before.offset


def _located(send: Send) -> LocatedRecord:
    return LocatedRecord(send.partition, send.offset, send.value)
