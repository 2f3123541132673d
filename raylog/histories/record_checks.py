"""What the records of a history say one by one: reads of what is not committed, offsets with several
values, values at several offsets, acknowledged records that nobody polled.
"""

from __future__ import annotations

from collections.abc import Iterator

from raylog.histories.anomalies import Anomaly, AnomalyKind
from raylog.histories.known_records import KnownRecords, SentRecord
from raylog.histories.operations import EventType, HistoryOperation, LocatedRecord, Value
from raylog.types import TopicPartition


def wrong_reads(known: KnownRecords) -> Iterator[Anomaly]:
    """Polls of records that failed operations sent, of one's own, and of those that nobody sent."""
    for record, readers in known.readers.items():
        origins = known.origins[record]
        writers = tuple(dict.fromkeys(sent.operation for sent in origins))
        if not writers:
            words = f"{_all(readers)} polled {record}, which nobody sent there"
            yield Anomaly(AnomalyKind.UNSENT_READ, tuple(readers), (record,), words)
            continue
        own = [reader for reader in readers if writers == (reader,)]
        for reader in own:
            words = f"{reader} polled {record}, which it had sent itself"
            yield Anomaly(AnomalyKind.PRECOMMITTED_READ, (reader,), (record,), words)
        others = [reader for reader in readers if reader not in own]
        if others and known.is_aborted(record):
            words = f"{_all(others)} polled {record}, which {_all(writers)} sent"
            yield Anomaly(AnomalyKind.ABORTED_READ, (*others, *writers), (record,), words)


def inconsistent_offsets(known: KnownRecords) -> Iterator[Anomaly]:
    """Offsets at which operations know different values."""
    for partition, offsets in known.places.items():
        for offset, values in sorted(offsets.items()):
            if len(values) > 1:
                records = tuple(LocatedRecord(partition, offset, value) for value in values)
                told = "; ".join(f"{record.value!r} says {_all(known.knowing(record))}" for record in records)
                words = f"offset {offset} of {partition.topic}-{partition.partition} has {len(values)} values: {told}"
                yield Anomaly(AnomalyKind.INCONSISTENT_OFFSETS, _knowing(known, records), records, words)


def duplicates(known: KnownRecords) -> Iterator[Anomaly]:
    """Values that are at several offsets, without those of failed operations at the offsets that
    these were told. What an operation was told whose end is unknown counts only once it has
    certainly committed, or somebody polled it: else its process may rightly have sent it again.
    """
    uncommitted = {
        sent.record
        for sent in known.sent
        if sent.operation.type is EventType.FAIL
        or (not known.has_committed(sent.operation) and sent.record not in known.readers)
    }
    offsets_of: dict[tuple[TopicPartition, Value], list[int]] = {}
    for partition, offsets in known.places.items():
        for offset, values in sorted(offsets.items()):
            for value in values:
                if LocatedRecord(partition, offset, value) not in uncommitted:
                    offsets_of.setdefault((partition, value), []).append(offset)
    for (partition, value), found in offsets_of.items():
        if len(found) > 1:
            records = tuple(LocatedRecord(partition, offset, value) for offset in found)
            told = "; ".join(f"offset {record.offset} says {_all(known.knowing(record))}" for record in records)
            words = f"{value!r} is at {len(found)} offsets of {partition.topic}-{partition.partition}: {told}"
            yield Anomaly(AnomalyKind.DUPLICATE, _knowing(known, records), records, words)


def lost_writes(known: KnownRecords) -> Iterator[Anomaly]:
    """Acknowledged records that nobody polled, below the highest offset that somebody polled."""
    for sent in _never_polled(known):
        last = known.last_polled.get(sent.send.partition, -1)
        if sent.send.offset is not None and sent.send.offset <= last:
            words = f"nobody polled {sent.record}, which {sent.operation} sent, but somebody polled offset {last}"
            yield Anomaly(AnomalyKind.LOST_WRITE, (sent.operation,), (sent.record,), words)


def unseen_records(known: KnownRecords) -> Iterator[Anomaly]:
    """Acknowledged records that nobody polled, above all that was polled or at offsets that nobody
    was told; one anomaly for each partition.
    """
    unseen: dict[TopicPartition, list[SentRecord]] = {}
    for sent in _never_polled(known):
        partition, offset, _ = sent.record
        if offset is None or offset > known.last_polled.get(partition, -1):
            unseen.setdefault(partition, []).append(sent)
    for partition, left in unseen.items():
        last = known.last_polled.get(partition, -1)
        polled = f"the highest offset polled is {last}" if last >= 0 else "nobody polled anything there"
        words = f"nobody polled {len(left)} acknowledged records of {partition.topic}-{partition.partition}, the first"
        words += f" of them {left[0].record}; {polled}"
        operations = tuple(dict.fromkeys(sent.operation for sent in left))
        yield Anomaly(AnomalyKind.UNSEEN, operations, tuple(sent.record for sent in left), words)


def _never_polled(known: KnownRecords) -> Iterator[SentRecord]:
    """Of records that must be there. Of an operation whose end is unknown, only what was
    acknowledged must: it may never have sent the rest.
    """
    for sent in known.sent:
        is_sure = sent.send.offset is not None or sent.operation.type is EventType.OK
        if is_sure and not sent.is_polled and known.has_committed(sent.operation):
            yield sent


def _knowing(known: KnownRecords, records: tuple[LocatedRecord, ...]) -> tuple[HistoryOperation, ...]:
    return tuple(dict.fromkeys(operation for record in records for operation in known.knowing(record)))


def _all(operations: list[HistoryOperation] | tuple[HistoryOperation, ...]) -> str:
    """The first of them, and how many more."""
    more = len(operations) - 1
    return f"{operations[0]}" + f" and {more} more" * bool(more)
