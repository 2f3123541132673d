"""The records of ``__transaction_state``, byte for byte as Apache Kafka writes them
(TransactionLogKey, TransactionLogValue).

Big-endian, the primitives of ``coordination.fields``::

    key    i16 0, string transactional id
    value  i16 version
    0      i64 producer id, i16 producer epoch, i32 timeout, i8 state,
           array of (string topic, array of i32 partition), i64 last update, i64 start
    1      the same with compact strings and arrays, tags behind each item of the array, and tags:
           0 i64 previous producer id, 1 i64 next producer id, 2 i16 client's transaction version
           and of raylog's own, which Kafka's tools pass over:
           10,000 participants, each i64 producer id, i16 producer epoch, i8 part;
           10,001 the label of the last transaction that was committed with one, UTF-8

The array is null for a transaction that is empty. A tag that says −1, or version 0, is left out.
Version 1 is written, both are read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from raylog.coordination import fields
from raylog.coordination.fields import Buffer, Reader, Tags
from raylog.errors import ProtocolError
from raylog.types import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1
_KEY_VERSION = 0
_NEWEST_VALUE = 1
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_PARTICIPANTS_TAG, _LABEL_TAG = 10_000, 10_001
_PARTICIPANT = struct.Struct(">qhb")


class TransactionState(IntEnum):
    """By Kafka's numbers. The last two are Kafka's own on the way to others; here nothing is ever in
    them.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """What Kafka's answers and tools call it."""
        return "".join(part.capitalize() for part in self.name.split("_"))


class Participation(IntEnum):
    """What a participant has to do with the transaction of its transactional id.

    SPARE: nothing, and its epoch has never been used. JOINED: what it writes belongs to it. WINS: so
    it is, and the transaction is committed with it.
    """

    SPARE = 0
    JOINED = 1
    WINS = 2


@dataclass(frozen=True, slots=True)
class Participant:
    """One of several producers that write in the transactions of one id (``participants``)."""

    producer_id: int
    producer_epoch: int
    part: Participation = Participation.JOINED


@dataclass(frozen=True, slots=True)
class TransactionKey:
    transactional_id: str


@dataclass(frozen=True, slots=True)
class TransactionValue:
    """A transactional id as it stands. Times are of the wall clock, in milliseconds; −1: none.

    ``previous_producer_id`` is the one before the latest change, and ``next_producer_id`` the one
    that the client goes on with when the transaction that ends now is complete. ``client_version``:
    the version of transactions that the client speaks, 0 or 2. ``label``: that of the last
    transaction that was committed with one.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_timestamp: int = NO_TIMESTAMP
    start_timestamp: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    participants: tuple[Participant, ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One record of the log, decoded. ``value`` None: the transactional id is forgotten."""

    key: TransactionKey
    value: TransactionValue | None


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value as the log holds them. ProtocolError where a name is too long."""
    key = fields.i16(_KEY_VERSION) + fields.string(record.key.transactional_id)
    return key, None if record.value is None else _value(record.value)


def _value(value: TransactionValue) -> bytes:
    tags = {
        _PREVIOUS_ID_TAG: fields.i64(value.previous_producer_id) if value.previous_producer_id >= 0 else b"",
        _NEXT_ID_TAG: fields.i64(value.next_producer_id) if value.next_producer_id >= 0 else b"",
        _CLIENT_VERSION_TAG: fields.i16(value.client_version) if value.client_version else b"",
        _PARTICIPANTS_TAG: b"".join(
            _PARTICIPANT.pack(each.producer_id, each.producer_epoch, each.part) for each in value.participants
        ),
        _LABEL_TAG: value.label.encode(),
    }
    return b"".join(
        (
            fields.i16(_NEWEST_VALUE),
            fields.i64(value.producer_id),
            fields.i16(value.producer_epoch),
            fields.i32(value.timeout_ms),
            fields.i8(value.state),
            _partitions(value),
            fields.i64(value.last_update_timestamp),
            fields.i64(value.start_timestamp),
            fields.tagged(tags),
        )
    )


def _partitions(value: TransactionValue) -> bytes:
    if value.state is TransactionState.EMPTY:
        return fields.uvarint(0)
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(value.partitions):
        by_topic.setdefault(topic, []).append(number)
    written = [fields.uvarint(len(by_topic) + 1)]
    for topic, numbers in by_topic.items():
        written += [fields.compact_string(topic), fields.uvarint(len(numbers) + 1)]
        written += [fields.i32(number) for number in numbers]
        written.append(fields.tagged({}))
    return b"".join(written)


def decode(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """A record of the log; None for a kind that is not known. Raises ProtocolError for bytes that
    cannot be read, and for a value of a newer version.
    """
    if key is None:
        raise ProtocolError("a transaction's record without a key")
    reader = Reader(key, "key of a transaction's record")
    if reader.i16() != _KEY_VERSION:
        return None
    known = TransactionKey(reader.string())
    return TransactionRecord(known, None if value is None else _read_value(Reader(value, "transaction")))


def _read_value(reader: Reader) -> TransactionValue:
    version = reader.i16()
    if not 0 <= version <= _NEWEST_VALUE:
        raise ProtocolError(f"a transaction of version {version}: a newer one than {_NEWEST_VALUE} cannot be read")
    compact = version >= 1
    producer_id, epoch, timeout_ms, number = reader.i64(), reader.i16(), reader.i32(), reader.i8()
    if number not in list(TransactionState):
        raise ProtocolError(f"a transaction in state {number}, which is not known")
    topics = reader.array(lambda: _read_topic(reader, compact=compact), compact=compact)
    last_update, start = reader.i64(), reader.i64()
    tags = reader.tags() if compact else {}
    return TransactionValue(
        producer_id,
        epoch,
        timeout_ms,
        TransactionState(number),
        frozenset(each for topic in topics for each in topic),
        last_update,
        start,
        _tag(tags, _PREVIOUS_ID_TAG, NO_PRODUCER_ID),
        _tag(tags, _NEXT_ID_TAG, NO_PRODUCER_ID),
        _tag(tags, _CLIENT_VERSION_TAG, 0),
        _read_participants(tags.get(_PARTICIPANTS_TAG, b"")),
        tags.get(_LABEL_TAG, b"").decode(errors="replace"),
    )


def _read_participants(raw: bytes) -> tuple[Participant, ...]:
    if len(raw) % _PARTICIPANT.size:
        raise ProtocolError(f"a transaction with {len(raw)} bytes of participants, each of {_PARTICIPANT.size}")
    found = list(_PARTICIPANT.iter_unpack(raw))
    if unknown := [part for _, _, part in found if part not in list(Participation)]:
        raise ProtocolError(f"a participant with part {unknown[0]}, which is not known")
    return tuple(Participant(producer_id, epoch, Participation(part)) for producer_id, epoch, part in found)


def _read_topic(reader: Reader, *, compact: bool) -> tuple[TopicPartition, ...]:
    topic = reader.string(compact=compact)
    numbers = reader.array(reader.i32, compact=compact)
    if compact:
        reader.skip_tags()
    return tuple(TopicPartition(topic, number) for number in numbers)


def _tag(tags: Tags, tag: int, default: int) -> int:
    return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default
