"""Everything that a history says about records: who sent each, at which offset it is, who polled it.

A polled record belongs to the send that was acknowledged at its offset. If there is none, it may
belong to any send of the value whose offset is unknown; and if there is none of those either, the
record has moved, and belongs to every send of the value.

An operation whose end is unknown has committed if another operation polled one of its records: then
all of its records must be there. That does not follow at ``read_uncommitted``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from raylog.histories.anomalies import IsolationModel
from raylog.histories.operations import EventType, HistoryOperation, LocatedRecord, Send, Value
from raylog.types import TopicPartition


@dataclass(slots=True, eq=False)
class SentRecord:
    """One send of a history."""

    operation: HistoryOperation
    send: Send
    is_polled: bool = False

    @property
    def record(self) -> LocatedRecord:
        return LocatedRecord(self.send.partition, self.send.offset, self.send.value)


class KnownRecords:
    """``sent`` is in the order of operations. ``readers`` and ``origins`` are keyed by what was
    polled; ``origins`` is empty for a record that nobody sent. ``places`` has all values that are
    known at each offset, of what was acknowledged and what was polled.
    """

    def __init__(self, operations: Sequence[HistoryOperation], model: IsolationModel) -> None:
        self.operations = operations
        self.sent = [SentRecord(operation, send) for operation in operations for send in operation.sends]
        self.readers: dict[LocatedRecord, list[HistoryOperation]] = {}
        self.origins: dict[LocatedRecord, list[SentRecord]] = {}
        self._by_value: dict[tuple[TopicPartition, Value], list[SentRecord]] = {}
        self._revealed: set[HistoryOperation] = set()
        for sent in self.sent:
            self._by_value.setdefault((sent.send.partition, sent.send.value), []).append(sent)
        for operation in operations:
            for record in operation.polled:
                self.readers.setdefault(record, []).append(operation)
        for record, readers in self.readers.items():
            self._find_origins(record, readers, does_reveal=model is not IsolationModel.READ_UNCOMMITTED)
        self.last_polled: dict[TopicPartition, int] = {}
        for partition, offset, _ in self.readers:
            assert offset is not None
            self.last_polled[partition] = max(offset, self.last_polled.get(partition, -1))
        self.places: dict[TopicPartition, dict[int, list[Value]]] = {}
        acknowledged = (sent.record for sent in self.sent if sent.send.offset is not None)
        for partition, offset, value in chain(acknowledged, self.readers):
            assert offset is not None
            values = self.places.setdefault(partition, {}).setdefault(offset, [])
            if value not in values:
                values.append(value)

    def _find_origins(self, record: LocatedRecord, readers: Iterable[HistoryOperation], *, does_reveal: bool) -> None:
        candidates = self._by_value.get((record.partition, record.value), [])
        exact = [sent for sent in candidates if sent.send.offset == record.offset]
        unknown = [sent for sent in candidates if sent.send.offset is None]
        origins = exact or unknown or candidates
        for sent in origins:
            sent.is_polled = True
        self.origins[record] = origins
        writers = {sent.operation: None for sent in origins}
        if does_reveal and len(writers) == 1:
            self._revealed.update(writer for writer in writers if any(reader is not writer for reader in readers))

    def has_committed(self, operation: HistoryOperation) -> bool:
        """Whether the operation certainly took effect."""
        if operation.type is EventType.INFO:
            return operation in self._revealed
        return operation.type is EventType.OK

    def is_aborted(self, record: LocatedRecord) -> bool:
        """Whether all who may have sent a polled record have failed."""
        origins = self.origins[record]
        return bool(origins) and all(sent.operation.type is EventType.FAIL for sent in origins)

    def writer(self, record: LocatedRecord) -> HistoryOperation | None:
        """The operation that sent a polled record, if there can be only one and it did not fail."""
        writers = list(
            {sent.operation: None for sent in self.origins[record] if sent.operation.type is not EventType.FAIL}
        )
        return writers[0] if len(writers) == 1 else None

    def knowing(self, record: LocatedRecord) -> tuple[HistoryOperation, ...]:
        """The operations that sent or polled this value at this offset."""
        senders = [
            sent.operation
            for sent in self._by_value.get((record.partition, record.value), [])
            if sent.send.offset == record.offset
        ]
        return tuple(dict.fromkeys([*senders, *self.readers.get(record, [])]))
