"""The records of ``__consumer_offsets``: Apache Kafka's own keys and values, byte for byte.

A key begins with its version, which also says what it is; a value begins with its own. Types as in
``fields``::

    OffsetCommitKey     0–1   group string, topic string, partition i32
    GroupMetadataKey    2     group string
    OffsetCommitValue   0     offset i64, metadata string, commit_timestamp i64
                        1     … + expire_timestamp i64
                        2     as 0
                        3     offset i64, leader_epoch i32, metadata string, commit_timestamp i64
                        4     as 3, flexible; tag 0: topic_id uuid
    GroupMetadataValue  0     protocol_type string, generation i32, protocol string?, leader string?, [member]
                        1     member + rebalance_timeout i32
                        2     + current_state_timestamp i64 before the members
                        3     member + group_instance_id string?
                        4     as 3, flexible
    member                    member_id string, (3+ group_instance_id string?), client_id string, client_host string,
                              (1+ rebalance_timeout i32), session_timeout i32, subscription bytes, assignment bytes

Written are keys 1 and 2 and values 3, as Kafka 2.3–3.9 write them. An offset whose topic's id is
known is a value 4 with the id, as Kafka 4.1 writes it, and one with an explicit expiry a value 1,
which has no room for an id. Read is all of the above (KIP-915); Kafka reads value 4 from 3.5 on. A
null value is a tombstone. Keys of other versions belong to protocols that are not spoken here
(KIP-848's): they read as ``UnknownKey`` and are passed over; a value of a newer version is refused
by name.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from raylog.coordination import fields
from raylog.coordination.fields import Buffer, Reader
from raylog.errors import ProtocolError

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
_OFFSET_KEY_VERSION, _GROUP_KEY_VERSION = 1, 2
_NEWEST_VALUE = 4
_TOPIC_ID_TAG = 0
_ONE_TAG_OF_A_UUID = bytes((1, _TOPIC_ID_TAG, 16))


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A record of something else, by the version of its key."""

    version: int


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """``offset`` is the next one to read. Timestamps are wall-clock milliseconds;
    ``expire_timestamp`` −1: by retention.

    ``topic_id`` is of the topic that had the name at the commit; None where nobody knew it.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class MemberValue:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A group as it was last stable or empty. ``protocol_type`` is "" for a group that only stores
    offsets.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[MemberValue, ...]


Key = OffsetKey | GroupKey
Value = OffsetValue | GroupValue


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One record of the log, decoded. ``value`` None: a tombstone."""

    key: Key
    value: Value | None

    def __post_init__(self) -> None:
        wanted = OffsetValue if isinstance(self.key, OffsetKey) else GroupValue
        assert self.value is None or isinstance(self.value, wanted), f"{self.key} with {self.value}"


# ------------------------------------------------------------------ writing


def encode_key(key: Key) -> bytes:
    """The bytes of a key. ProtocolError where a name is too long for them."""
    if isinstance(key, GroupKey):
        return fields.i16(_GROUP_KEY_VERSION) + fields.string(key.group_id)
    named = fields.string(key.group_id) + fields.string(key.topic)
    return fields.i16(_OFFSET_KEY_VERSION) + named + fields.i32(key.partition)


def encode_value(value: Value | None) -> bytes | None:
    """The bytes of a value, None for a tombstone."""
    if value is None:
        return None
    return _group_value(value) if isinstance(value, GroupValue) else _offset_value(value)


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value as the log holds them."""
    return encode_key(record.key), encode_value(record.value)


def _offset_value(value: OffsetValue) -> bytes:
    metadata = fields.string(value.metadata)
    offset, committed = fields.i64(value.offset), fields.i64(value.commit_timestamp)
    if value.expire_timestamp != NO_TIMESTAMP:
        return fields.i16(1) + offset + metadata + committed + fields.i64(value.expire_timestamp)
    leader_epoch = fields.i32(value.leader_epoch)
    if value.topic_id is None:
        return fields.i16(3) + offset + leader_epoch + metadata + committed
    flexible = fields.compact_string(value.metadata) + committed
    return fields.i16(4) + offset + leader_epoch + flexible + _ONE_TAG_OF_A_UUID + value.topic_id.bytes


def _group_value(value: GroupValue) -> bytes:
    head = (
        fields.i16(3),
        fields.string(value.protocol_type),
        fields.i32(value.generation),
        fields.string(value.protocol),
        fields.string(value.leader),
        fields.i64(value.current_state_timestamp),
        fields.i32(len(value.members)),
    )
    return b"".join(head) + b"".join(_member(member) for member in value.members)


def _member(member: MemberValue) -> bytes:
    return b"".join(
        (
            fields.string(member.member_id),
            fields.string(member.group_instance_id),
            fields.string(member.client_id),
            fields.string(member.client_host),
            fields.i32(member.rebalance_timeout_ms),
            fields.i32(member.session_timeout_ms),
            fields.sized_bytes(member.subscription),
            fields.sized_bytes(member.assignment),
        )
    )


# ------------------------------------------------------------------ reading


def decode_key(data: Buffer) -> Key | UnknownKey:
    """Raises ProtocolError for bytes that are no key."""
    reader = Reader(data, "key of an offsets record")
    version = reader.i16()
    if version in (0, 1):
        return OffsetKey(reader.string(), reader.string(), reader.i32())
    if version == 2:
        return GroupKey(reader.string())
    return UnknownKey(version)


def decode(key: Buffer | None, value: Buffer | None) -> GroupRecord | UnknownKey:
    """A record of the log. Raises ProtocolError for bytes that cannot be read, and for a value of a
    newer version.
    """
    if key is None:
        raise ProtocolError("an offsets record without a key")
    known = decode_key(key)
    if isinstance(known, UnknownKey):
        return known
    if value is None:
        return GroupRecord(known, None)
    reader = Reader(value, "offset commit" if isinstance(known, OffsetKey) else "group metadata")
    version = reader.i16()
    if not 0 <= version <= _NEWEST_VALUE:
        raise ProtocolError(f"{reader.what} of version {version}: a newer one than {_NEWEST_VALUE} cannot be read")
    if isinstance(known, OffsetKey):
        return GroupRecord(known, _read_offset(reader, version))
    return GroupRecord(known, _read_group(reader, version))


def _read_offset(reader: Reader, version: int) -> OffsetValue:
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.string(compact=version >= 4)
    committed = reader.i64()
    expires = reader.i64() if version == 1 else NO_TIMESTAMP
    raw = reader.tags().get(_TOPIC_ID_TAG, b"") if version >= 4 else b""
    topic_id = uuid.UUID(bytes=raw) if len(raw) == 16 and any(raw) else None
    return OffsetValue(offset, leader_epoch, metadata, committed, expires, topic_id)


def _read_group(reader: Reader, version: int) -> GroupValue:
    compact = version >= 4
    protocol_type = reader.string(compact=compact)
    generation = reader.i32()
    protocol = reader.nullable_string(compact=compact)
    leader = reader.nullable_string(compact=compact)
    timestamp = reader.i64() if version >= 2 else NO_TIMESTAMP
    members = reader.array(lambda: _read_member(reader, version), compact=compact)
    return GroupValue(protocol_type, generation, protocol, leader, timestamp, members)


def _read_member(reader: Reader, version: int) -> MemberValue:
    compact = version >= 4
    member_id = reader.string(compact=compact)
    instance = reader.nullable_string(compact=compact) if version >= 3 else None
    client_id, client_host = reader.string(compact=compact), reader.string(compact=compact)
    rebalance_timeout = reader.i32() if version >= 1 else None
    session_timeout = reader.i32()
    subscription, assignment = reader.bytes(compact=compact), reader.bytes(compact=compact)
    if compact:
        reader.skip_tags()
    return MemberValue(
        member_id,
        instance,
        client_id,
        client_host,
        session_timeout if rebalance_timeout is None else rebalance_timeout,
        session_timeout,
        subscription,
        assignment,
    )
