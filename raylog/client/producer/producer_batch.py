"""One batch on its way to one partition: its records, the bytes they became, its producer stamp and
its outcome.

A batch is *open* while ``send`` may add records (a list, encoded when it leaves), *closed* once it
has bytes or has been taken for sending, *done* when it was acknowledged or given up. ``send_batch``
makes batches that are closed from the start. A batch that the leader finds too large is split: its
two children carry the records on, and its outcome is theirs.

Invariants: a done batch never changes; ``record_count`` and ``serial`` are fixed once closed;
children hold the parent's records in order. Completion happens on one thread (the sender's),
waiting on any.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from raylog.errors import KafkaError, RaylogError, kafka_error
from raylog.records.batch import (
    ATTRIBUTES_LOW_POSITION,
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    NO_SEQUENCE,
    TRANSACTIONAL_MASK,
    BatchView,
    write_crc,
)
from raylog.records.codec import RECORD_OVERHEAD_MAX, decode, encode
from raylog.records.record import Header

RawRecord = tuple[int, bytes | None, bytes | None, Sequence[Header]]
"""Timestamp in ms, key, value, headers."""

Stamp = tuple[int, int, int]
"""Producer id, producer epoch, base sequence."""

NO_STAMP: Stamp = (-1, -1, NO_SEQUENCE)

_STAMP = struct.Struct(">qhi")
_STAMP_POSITION = 43


class ProducerBatch:
    __slots__ = (
        "_stamped",
        "_waiting",
        "attempts",
        "base_offset",
        "being_encoded",
        "children",
        "compression",
        "created_ms",
        "data",
        "deadline_ms",
        "done",
        "error",
        "held_bytes",
        "is_transactional",
        "log_append_time_ms",
        "on_done",
        "open",
        "outcome_unknown",
        "parent",
        "partition",
        "record_count",
        "records",
        "serial",
        "size_bytes",
        "stamp",
        "topic",
        "was_sent_first",
        "was_split_in_doubt",
    )

    def __init__(
        self, topic: str, partition: int, *, created_ms: float, deadline_ms: float, compression: int = 0
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.compression = compression
        self.serial: tuple[int, ...] = ()  # the order within the partition; a child's begins with its parent's
        self.open = True
        self.being_encoded = False
        self.records: list[RawRecord] | None = []
        self.data: bytes | bytearray | None = None
        self.record_count = 0
        self.is_transactional = False
        self.size_bytes = HEADER_SIZE  # uncompressed while open
        self.held_bytes = 0  # of buffer.memory, until done
        self.attempts = 0
        self.outcome_unknown = False  # some attempt may have been appended, or may yet be
        self.was_split_in_doubt = False  # its records may be in the log as part of the batch that it was split from
        self.was_sent_first = False  # the last time: every batch before it was settled then
        self.stamp = NO_STAMP
        self._stamped = NO_STAMP
        self.parent: ProducerBatch | None = None
        self.children: tuple[ProducerBatch, ...] = ()
        self.done = False
        self.error: RaylogError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self._waiting: list[Callable[[], None]] = []
        self.on_done: list[Callable[[], None]] = []  # callbacks of users and interceptors, in send order

    @classmethod
    def of_bytes(
        cls,
        topic: str,
        partition: int,
        data: bytes | bytearray,
        record_count: int,
        *,
        created_ms: float,
        deadline_ms: float,
        compression: int,
    ) -> ProducerBatch:
        """A closed batch around encoded bytes that bear no producer stamp yet."""
        batch = cls(topic, partition, created_ms=created_ms, deadline_ms=deadline_ms, compression=compression)
        batch.open = False
        batch.records = None
        batch.data = data
        batch.record_count = record_count
        batch.size_bytes = batch.held_bytes = len(data)
        return batch

    @property
    def has_sequence(self) -> bool:
        return self.stamp[2] != NO_SEQUENCE

    def add(self, record: RawRecord, size_bytes: int) -> int:
        """Append to an open batch; gives the record's index."""
        assert self.open and self.records is not None, "a record for a closed batch"
        index = self.record_count
        self.records.append(record)
        self.record_count = index + 1
        self.size_bytes += size_bytes
        self.held_bytes += size_bytes
        return index

    def encode(self) -> None:
        """Make the bytes of the collected records, unless there are some, or the batch is done:
        another thread may finish it meanwhile.
        """
        records = self.records
        if self.data is None and records is not None:
            assert records, "a batch of no records"
            self.data = encode(records, compression=self.compression)
            self.records = None
            if self.done:
                self.data = None

    def stamped_bytes(self) -> bytes | bytearray:
        """The bytes with the present producer stamp in the header and the CRC over it.

        The first stamp goes in where they are; later ones into a copy, since a connection may still
        hold what was sent.
        """
        assert self.data is not None
        if self.stamp != self._stamped:
            if isinstance(self.data, bytearray) and self._stamped == NO_STAMP:
                stamp_in_place(self.data, self.stamp, is_transactional=self.is_transactional)
            else:
                self.data = stamped(self.data, self.stamp, is_transactional=self.is_transactional)
            self._stamped = self.stamp
        return self.data

    def split(self) -> tuple[ProducerBatch, ...]:
        """Two halves by bytes, in place of this batch. Only for batches of two records and more."""
        assert self.record_count > 1 and self.data is not None, (
            f"a batch of {self.record_count} records cannot be split"
        )
        records: list[RawRecord] = [
            (record.timestamp, record.key, record.value, record.headers) for record in decode(BatchView(self.data))
        ]
        sizes = [RECORD_OVERHEAD_MAX + len(key or b"") + len(value or b"") for _, key, value, _ in records]
        half, seen, cut = sum(sizes) / 2, 0, 0
        while cut < len(records) - 1 and seen + sizes[cut] <= half:
            seen += sizes[cut]
            cut += 1
        cut = max(cut, 1)
        producer_id, epoch, sequence = self.stamp
        children = []
        for number, part in enumerate((records[:cut], records[cut:])):
            data = encode(part, compression=self.compression)
            child = ProducerBatch.of_bytes(
                self.topic,
                self.partition,
                data,
                len(part),
                created_ms=self.created_ms,
                deadline_ms=self.deadline_ms,
                compression=self.compression,
            )
            child.serial = (*self.serial, number)
            child.parent = self
            child.is_transactional = self.is_transactional
            child.attempts = self.attempts
            child.outcome_unknown = child.was_split_in_doubt = self.outcome_unknown
            if self.has_sequence:
                child.stamp = (producer_id, epoch, after(sequence, cut if number else 0))
            child.held_bytes = self.held_bytes // 2 if number else self.held_bytes - self.held_bytes // 2
            children.append(child)
        self.children = tuple(children)
        self.data = None
        return self.children

    # -------------------------------------------------------------- the outcome

    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._finish()

    def fail(self, error: RaylogError) -> None:
        self.error = error
        self._finish()

    def error_of(self, index: int) -> RaylogError | None:
        """What became of one record of a finished batch; None if it was appended.

        As in Kafka's Java producer nothing of a refused batch is appended. A record that the leader
        named gets its own error, with the batch's code if no other one was named, else
        INVALID_RECORD; the others get a plain KafkaError.
        """
        error = self.error
        if not isinstance(error, KafkaError) or not error.record_errors:
            return error
        at = bisect_left(error.record_errors, index, key=lambda each: each.index)
        first = error.record_errors[min(at, len(error.record_errors) - 1)]
        where = f"{self.topic}-{self.partition}"
        if first.index == index:
            kind = type(error) if len(error.record_errors) == 1 else kafka_error(ErrorCode.invalid_record)
            return kind(f"{where} refused the record: {first.message}")
        return KafkaError(
            f"{where}: the record is valid but was not appended, because others in its batch were refused "
            f"({error}): send it again"
        )

    def _finish(self) -> None:
        assert not self.done, "an outcome for a finished batch"
        self.done = True
        self.data = None
        self.records = None
        callbacks, self.on_done = self.on_done, []
        for callback in (*callbacks, *self._waiting):  # a waiter finds the callbacks made
            callback()
        parent = self.parent
        if parent is not None and not parent.done and all(child.done for child in parent.children):
            parent._finish()

    def call_when_done(self, callback: Callable[[], None]) -> None:
        """Calls back at completion, at once if that has been; now and then twice."""
        self._waiting.append(callback)
        if self.done:
            callback()

    def leaf(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that finally carried the record of that index, and its index there."""
        batch = self
        while batch.children:
            for child in batch.children:
                if index < child.record_count:
                    batch = child
                    break
                index -= child.record_count
            else:
                raise AssertionError(f"index {index} behind the last child")
        return batch, index

    def leaves(self) -> Iterator[ProducerBatch]:
        """The batches that finally carried the records, in order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def __repr__(self) -> str:
        state = "done" if self.done else "open" if self.open else f"attempt {self.attempts}"
        return f"<batch {self.serial} of {self.topic}-{self.partition}: {self.record_count} records, stamp {self.stamp}, {state}>"


def stamp_in_place(data: bytearray, stamp: Stamp, *, is_transactional: bool = False) -> None:
    """Put the batch under another producer stamp where it is. Nobody else may be reading it."""
    if is_transactional:
        data[ATTRIBUTES_LOW_POSITION] |= TRANSACTIONAL_MASK
    _STAMP.pack_into(data, _STAMP_POSITION, *stamp)
    write_crc(data)


def stamped(data: bytes | bytearray, stamp: Stamp, *, is_transactional: bool = False) -> bytes:
    """The same batch under another producer stamp."""
    fields: list[Any] = list(HEADER.unpack_from(data))
    if is_transactional:
        fields[5] |= TRANSACTIONAL_MASK
    fields[9:12] = stamp
    header = bytearray(HEADER.pack(*fields))
    records = memoryview(data)[HEADER_SIZE:]
    crc = crc32c(records, crc32c(bytes(header[CRC_START:])))
    header[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return b"".join((header, records))


def after(sequence: int, record_count: int) -> int:
    """The sequence so many records later; 2**31 − 1 is followed by 0."""
    return sequence + record_count & 0x7FFFFFFF
