"""Which records a refused batch was refused for (KIP-467), as a client of the listener hears it, whichever way the answer came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, produce

from raylog.records.batch import write_crc
from raylog.records.codec import encode

pytestmark = pytest.mark.core

GOOD = encode([(1, b"k", b"v", ())])
KEYLESS = encode([(1, b"k", b"v", ()), (1, None, b"v", ()), (1, b"k", b"v", ()), (1, None, b"v", ())])
NO_KEY = "a compacted topic takes no record without a key"


def answers(reply: Any) -> list[tuple[int, ErrorCode, list[tuple[int, str]], str | None]]:
    return [
        (
            each.index,
            each.error_code,
            [(error.batch_index, error.batch_index_error_message) for error in each.record_errors],
            each.error_message,
        )
        for each in reply.responses[0].partition_responses
    ]


def test_records_at_fault_are_named_on_every_way_through_the_listener(
    client: Callable[[int], Client], new_topic: Callable[..., str]
) -> None:
    """The bytes of one partition; one owner of several; several owners and a partition that another broker leads."""
    compacted = new_topic((0,), (0,), (1,), cleanup_policy="compact")
    connection = client(0)
    for version in (8, 9, 11):
        (answer,) = answers(connection.ask(produce(compacted, {0: KEYLESS}, version=version)))
        assert answer[:3] == (0, ErrorCode.invalid_record, [(1, NO_KEY), (3, NO_KEY)])
        assert answer[3] == f"{compacted}-0: 2 of 4 records are refused: record 1: {NO_KEY}; record 3: {NO_KEY}."
    (old,) = connection.ask(produce(compacted, {0: KEYLESS}, version=7)).responses[0].partition_responses
    assert old.error_code is ErrorCode.invalid_record

    several = answers(connection.ask(produce(compacted, {0: GOOD, 1: KEYLESS, 2: KEYLESS})))
    assert [answer[:3] for answer in several] == [
        (0, ErrorCode.none, []),
        (1, ErrorCode.invalid_record, [(1, NO_KEY), (3, NO_KEY)]),
        (2, ErrorCode.not_leader_or_follower, []),
    ]


def test_timestamps_and_broken_records_are_named_too(
    client: Callable[[int], Client], new_topic: Callable[..., str]
) -> None:
    bounded = new_topic((0,), message_timestamp_before_max_ms="1000")
    connection = client(0)
    (late,) = answers(connection.ask(produce(bounded, {0: encode([(-1, None, b"v", ()), (1, None, b"v", ())])})))
    assert late[:2] == (0, ErrorCode.invalid_timestamp) and [index for index, _ in late[2]] == [1]
    assert "timestamp 1 is more than message.timestamp.before.max.ms=1000" in late[2][0][1]
    broken = bytearray(encode([(-1, None, b"value", ())]))
    broken[61] += 2
    write_crc(broken)
    (refused,) = answers(connection.ask(produce(bounded, {0: bytes(broken)})))
    assert refused[:2] == (0, ErrorCode.invalid_record) and [index for index, _ in refused[2]] == [0]
