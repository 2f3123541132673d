"""Keys and values of __consumer_offsets and the consumer protocol, against bytes that Apache Kafka 3.9.1's own classes wrote."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_writer

from raylog.errors import ProtocolError
from raylog.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.groups.records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    UnknownKey,
    decode,
    decode_key,
    encode,
    encode_key,
    encode_value,
)
from raylog.offsets_topic import java_string_hash, partition_for
from raylog.types import TopicPartition

OFFSET_KEY = "0001 0008 6d792d67726f7570 0006 6f7264657273 00000007"
GROUP_KEY = "0002 0008 6d792d67726f7570"
OFFSET_VALUES = {
    0: "0000 0000011f71fb04cb 0005 6dc3a97461 000001640c09144c",
    1: "0001 0000011f71fb04cb 0005 6dc3a97461 000001640c09144c 000001640c1414bf",
    2: "0002 0000011f71fb04cb 0005 6dc3a97461 000001640c09144c",
    3: "0003 0000011f71fb04cb 00000005 0005 6dc3a97461 000001640c09144c",
    4: "0004 0000011f71fb04cb 00000005 06 6dc3a97461 000001640c09144c 00",
}
_GROUP = "0008 636f6e73756d6572 00000009 0005 72616e6765 0008 632d312d75756964"
_ID, _CLIENT, _TIMES, _BYTES = (
    "0008 632d312d75756964",
    "0003 632d31 000a 2f3132372e302e302e31",
    "000493e0 0000afc8",
    "00000003 010203 00000002 0405",
)
GROUP_VALUES = {
    0: f"0000 {_GROUP} 00000001 {_ID} {_CLIENT} 0000afc8 {_BYTES}",
    1: f"0001 {_GROUP} 00000001 {_ID} {_CLIENT} {_TIMES} {_BYTES}",
    2: f"0002 {_GROUP} 000001640c09144c 00000001 {_ID} {_CLIENT} {_TIMES} {_BYTES}",
    3: f"0003 {_GROUP} 000001640c09144c 00000001 {_ID} 0008 7374617469632d31 {_CLIENT} {_TIMES} {_BYTES}",
    4: "0004 09636f6e73756d6572 00000009 0672616e6765 09632d312d75756964 000001640c09144c 02 09632d312d75756964"
    " 097374617469632d31 04632d31 0b2f3132372e302e302e31 000493e0 0000afc8 04010203 030405 00 00",
}
EMPTY_GROUP = "0003 0008636f6e73756d6572 0000000a ffff ffff 000001640c09144c 00000000"
_TOPICS = "00000002 0002 7430 0002 7431 00000002 0908"
_OWNED = "00000002 0002 7430 00000002 00000000 00000002 0002 7431 00000001 00000001"
SUBSCRIPTIONS = {
    0: f"0000 {_TOPICS}",
    1: f"0001 {_TOPICS} {_OWNED}",
    2: f"0002 {_TOPICS} {_OWNED} 00000006",
    3: f"0003 {_TOPICS} {_OWNED} 00000006 0006 7261636b2d61",
}
OWNED = (TopicPartition("t0", 0), TopicPartition("t0", 2), TopicPartition("t1", 1))
SUBSCRIPTION = Subscription(("t1", "t0"), b"\x09\x08", OWNED, 6, "rack-a")


def raw(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [
        ("test-group", 12),
        ("testGroup-1", 21),
        ("testGroup-2", 20),
        ("a1", 6),
        ("al", 15),
        ("console-consumer-1", 24),
        ("my-group", 12),
        ("test", 48),
        ("polygenelubricants", 0),
    ],
)
def test_tv_11_a_group_belongs_to_the_partition_of_its_java_hash(group_id: str, partition: int) -> None:
    assert partition_for(group_id) == partition


def test_the_hash_counts_utf_16_units_and_its_least_value_is_partition_0() -> None:
    assert java_string_hash("polygenelubricants") == -(1 << 31)
    assert java_string_hash("") == 0
    assert java_string_hash("€😀") == (0x20AC * 31 + 0xD83D) * 31 + 0xDE00
    assert partition_for("polygenelubricants", 7) == 0


def test_keys_are_kafkas_bytes() -> None:
    assert encode_key(OffsetKey("my-group", "orders", 7)) == raw(OFFSET_KEY)
    assert encode_key(GroupKey("my-group")) == raw(GROUP_KEY)
    assert decode_key(raw(OFFSET_KEY)) == OffsetKey("my-group", "orders", 7)
    assert decode_key(b"\x00\x00" + raw(OFFSET_KEY)[2:]) == OffsetKey("my-group", "orders", 7)
    assert decode_key(raw(GROUP_KEY)) == GroupKey("my-group")


def test_keys_of_other_protocols_are_known_as_such() -> None:
    assert decode(raw("0003 0003 616263"), b"anything") == UnknownKey(3)


@pytest.mark.parametrize("version", OFFSET_VALUES)
def test_offset_values_of_every_version_are_read(version: int) -> None:
    record = decode(raw(OFFSET_KEY), raw(OFFSET_VALUES[version]))
    expected = OffsetValue(
        1234567890123,
        5 if version >= 3 else -1,
        "méta",
        1529210278988,
        1529210999999 if version == 1 else -1,
    )
    assert record == GroupRecord(OffsetKey("my-group", "orders", 7), expected)
    if version in (1, 3):
        assert encode_value(expected) == raw(OFFSET_VALUES[version])


@pytest.mark.parametrize("version", GROUP_VALUES)
def test_group_values_of_every_version_are_read(version: int) -> None:
    record = decode(raw(GROUP_KEY), raw(GROUP_VALUES[version]))
    member = MemberValue(
        "c-1-uuid",
        "static-1" if version >= 3 else None,
        "c-1",
        "/127.0.0.1",
        300_000 if version >= 1 else 45_000,
        45_000,
        b"\x01\x02\x03",
        b"\x04\x05",
    )
    timestamp = 1529210278988 if version >= 2 else -1
    expected = GroupValue("consumer", 9, "range", "c-1-uuid", timestamp, (member,))
    assert record == GroupRecord(GroupKey("my-group"), expected)
    if version == 3:
        assert encode_value(expected) == raw(GROUP_VALUES[3])


def test_an_empty_group_and_tombstones_are_kafkas_bytes() -> None:
    empty = GroupRecord(GroupKey("g"), GroupValue("consumer", 10, None, None, 1529210278988, ()))
    assert encode(empty) == (raw("0002 0001 67"), raw(EMPTY_GROUP))
    assert decode(*encode(empty)) == empty
    gone = GroupRecord(OffsetKey("g", "t", 0), None)
    assert encode(gone)[1] is None
    assert decode(*encode(gone)) == gone


def test_values_of_a_newer_version_are_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="offset commit of version 5"):
        decode(raw(OFFSET_KEY), raw("0005 00"))
    with pytest.raises(ProtocolError, match="group metadata of version 9"):
        decode(raw(GROUP_KEY), raw("0009 00"))
    with pytest.raises(ProtocolError, match="without a key"):
        decode(None, b"")


@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_subscriptions_are_kafkas_bytes(version: int) -> None:
    assert encode_subscription(SUBSCRIPTION, version) == raw(SUBSCRIPTIONS[version])
    read = decode_subscription(raw(SUBSCRIPTIONS[version]))
    assert read.topics == ("t0", "t1") and read.user_data == b"\x09\x08"
    assert read.owned == (OWNED if version >= 1 else ())
    assert read.generation == (6 if version >= 2 else -1)
    assert read.rack == ("rack-a" if version >= 3 else None)


def test_a_subscription_without_anything_and_one_of_a_newer_version_are_read() -> None:
    assert encode_subscription(Subscription(("t0",)), 0) == raw("0000 00000001 00027430 ffffffff")
    newer = raw("0007" + SUBSCRIPTIONS[3][4:] + "00000001")
    assert decode_subscription(newer).rack == "rack-a"


@pytest.mark.parametrize("version", range(4))
def test_assignments_are_kafkas_bytes(version: int) -> None:
    assert encode_assignment(ConsumerProtocolAssignment(OWNED, b"\x07"), version) == raw(
        f"000{version} {_OWNED} 00000001 07"
    )
    assert decode_assignment(raw(f"000{version} {_OWNED} 00000001 07")) == ConsumerProtocolAssignment(OWNED, b"\x07")
    assert decode_assignment(b"") == ConsumerProtocolAssignment(())


names = st.text(max_size=6)
partitions = st.lists(st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 9)), max_size=6)


@given(
    st.lists(names, max_size=4), st.none() | st.binary(max_size=5), partitions, st.integers(-1, 99), st.none() | names
)
def test_subscriptions_agree_with_kio(
    topics: list[str], user_data: bytes | None, owned: list[TopicPartition], generation: int, rack: str | None
) -> None:
    from kio.schema.consumer_protocol_subscription.v3 import ConsumerProtocolSubscription
    from kio.schema.consumer_protocol_subscription.v3.data import TopicPartition as Owned

    gathered: dict[str, list[Any]] = {}
    for topic, partition in owned:
        gathered.setdefault(topic, []).append(partition)
    entity = ConsumerProtocolSubscription(
        topics=tuple(sorted(topics)),
        user_data=user_data,
        owned_partitions=tuple(Owned(topic=name, partitions=tuple(each)) for name, each in gathered.items()),  # type: ignore[arg-type]
        generation_id=generation,  # type: ignore[arg-type]
        rack_id=rack,
    )
    buffer = io.BytesIO()
    entity_writer(ConsumerProtocolSubscription)(buffer, entity)
    mine = encode_subscription(Subscription(tuple(topics), user_data, tuple(owned), generation, rack))
    assert mine == b"\x00\x03" + buffer.getvalue()
    assert sorted(decode_subscription(mine).owned) == sorted(owned)


@given(st.binary(max_size=60))
def test_hostile_bytes_end_in_a_protocol_error(data: bytes) -> None:
    for version in range(5):
        prefix = bytes((0, version))
        for read in (
            lambda: decode_subscription(prefix + data),  # noqa: B023
            lambda: decode_assignment(prefix + data),  # noqa: B023
            lambda: decode(prefix + data, data),  # noqa: B023
            lambda: decode(raw(GROUP_KEY), prefix + data),  # noqa: B023
            lambda: decode(raw(OFFSET_KEY), prefix + data),  # noqa: B023
        ):
            try:
                read()
            except ProtocolError:
                pass


def test_an_array_longer_than_its_message_costs_nothing() -> None:
    with pytest.raises(ProtocolError, match="items where"):
        decode_subscription(raw("0000 7fffffff"))


def test_an_offset_with_its_topics_id_is_written_as_kafka_4_1_writes_it() -> None:
    topic_id = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    value = OffsetValue(1234567890123, 5, "m\u00e9ta", 1529210278988, topic_id=topic_id)
    data = bytes.fromhex(f"{OFFSET_VALUES[4][:-2]} 01 00 10 {topic_id.hex}")
    record = GroupRecord(OffsetKey("my-group", "orders", 7), value)
    assert encode_value(value) == data
    assert decode(encode_key(record.key), data) == record
    unset = bytes.fromhex(f"{OFFSET_VALUES[4][:-2]} 01 00 10 {'00' * 16}")
    again = decode(encode_key(record.key), unset)
    assert isinstance(again, GroupRecord) and isinstance(again.value, OffsetValue) and again.value.topic_id is None
