"""The records of ``__transaction_state`` are Kafka's, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ProtocolError
from raylog.transactions.records import (
    TransactionKey,
    TransactionRecord,
    TransactionState,
    TransactionValue,
    decode,
    encode,
)
from raylog.types import TopicPartition

KEY = b"\x00\x00" + b"\x00\x02" + b"tx"
UNDER_WAY = TransactionValue(
    producer_id=258,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("a", 7)}),
    last_update_timestamp=2,
    start_timestamp=1,
    previous_producer_id=257,
    next_producer_id=259,
    client_version=2,
)
FIXED = b"\x00\x00\x00\x00\x00\x00\x01\x02" + b"\x00\x03" + b"\x00\x00\xea\x60"
TIMES = (2).to_bytes(8, "big") + (1).to_bytes(8, "big")
VERSION_1 = (
    b"\x00\x01" + FIXED + b"\x01"
    b"\x03" + b"\x02a" + b"\x02" + b"\x00\x00\x00\x07" + b"\x00"
    b"\x02t" + b"\x03" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01" + b"\x00" + TIMES
    + b"\x03" + b"\x00\x08" + (257).to_bytes(8, "big") + b"\x01\x08" + (259).to_bytes(8, "big") + b"\x02\x02\x00\x02"
)  # fmt: skip
VERSION_0 = (
    b"\x00\x00" + FIXED + b"\x01"
    b"\x00\x00\x00\x02" + b"\x00\x01a" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x07"
    b"\x00\x01t" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x01" + TIMES
)  # fmt: skip


def test_a_transaction_is_written_as_kafka_writes_version_1() -> None:
    assert encode(TransactionRecord(TransactionKey("tx"), UNDER_WAY)) == (KEY, VERSION_1)
    assert encode(TransactionRecord(TransactionKey("tx"), None)) == (KEY, None)


def test_an_empty_transaction_has_a_null_for_its_partitions_and_no_tags() -> None:
    empty = TransactionValue(258, 3, 60_000, TransactionState.EMPTY, last_update_timestamp=2, start_timestamp=1)
    written = b"\x00\x01" + FIXED + b"\x00" + b"\x00" + TIMES + b"\x00"
    assert encode(TransactionRecord(TransactionKey("tx"), empty)) == (KEY, written)
    assert decode(KEY, written) == TransactionRecord(TransactionKey("tx"), empty)


def test_version_0_is_read() -> None:
    read = decode(KEY, VERSION_0)
    assert read is not None and read.value is not None
    assert read.value.partitions == UNDER_WAY.partitions and read.value.state is TransactionState.ONGOING
    assert (read.value.previous_producer_id, read.value.next_producer_id, read.value.client_version) == (-1, -1, 0)
    null = b"\x00\x00" + FIXED + b"\x00" + b"\xff\xff\xff\xff" + TIMES
    read = decode(KEY, null)
    assert read is not None and read.value is not None and not read.value.partitions


def test_tags_of_later_versions_are_passed_over() -> None:
    with_more = VERSION_1.replace(b"\x03\x00\x08", b"\x04\x00\x08") + b"\x03\x02\x00\x09"
    assert decode(KEY, with_more) == TransactionRecord(TransactionKey("tx"), UNDER_WAY)


def test_a_key_of_another_kind_is_none_of_ours() -> None:
    assert decode(b"\x00\x01\x00\x00", b"") is None


@pytest.mark.parametrize(
    "key, value",
    [(None, b""), (b"\x00", b""), (KEY, b"\x00\x02" + VERSION_1[2:]), (KEY, VERSION_1[:40]), (KEY, b"\x00\x01" + FIXED + b"\x0b")],
    ids=["no key", "half a key", "a newer version", "half a value", "a state that is not known"],
)  # fmt: skip
def test_what_cannot_be_read_says_so(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(key, value)


partitions = st.frozensets(
    st.builds(TopicPartition, st.text("abc.", min_size=1, max_size=9), st.integers(0, 1 << 20)), max_size=9
)
ids = st.integers(-1, 2**63 - 1)


@given(
    st.text(min_size=1, max_size=50),
    st.builds(
        TransactionValue,
        producer_id=ids,
        producer_epoch=st.integers(-1, 32_767),
        timeout_ms=st.integers(0, 2**31 - 1),
        state=st.sampled_from(TransactionState).filter(bool),
        partitions=partitions,
        last_update_timestamp=ids,
        start_timestamp=ids,
        previous_producer_id=ids,
        next_producer_id=ids,
        client_version=st.sampled_from([0, 2]),
    ),
)
def test_what_is_written_is_read(transactional_id: str, value: TransactionValue) -> None:
    record = TransactionRecord(TransactionKey(transactional_id), value)
    assert decode(*encode(record)) == record
