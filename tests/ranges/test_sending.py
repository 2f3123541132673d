"""How much of a write's task is on its way at once, and tasks that write in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

import raylog.testing
from raylog.client.config import ProducerConfig
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import Consumer
from raylog.client.transactions.shared import SharedTransactions
from raylog.errors import kafka_error
from raylog.ranges import sending
from raylog.ranges.sending import SentRows, send_tables
from raylog.transactions import participants
from raylog.types import Endpoint

pytestmark = pytest.mark.spark

ADDRESS = ClusterAddress("c", "raylog", "cluster-1", (Endpoint("127.0.0.1", 1),), b"")


@pytest.mark.parametrize(
    ("given", "buffer_memory"),
    [
        ({}, 8 << 20),
        ({"batch.size": "4194304"}, 32 << 20),
        ({"batch_size": 1000}, 8 << 20),
        ({"buffer.memory": "1000000"}, 1_000_000),
        ({"buffer_memory": 64 << 20}, 64 << 20),
    ],
)
def test_a_task_holds_some_batches_that_are_not_acknowledged_or_what_the_user_says(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], buffer_memory: int
) -> None:
    made: list[ProducerConfig] = []

    class Recording:
        def __init__(self, address: ClusterAddress, config: Mapping[str, Any], /, **options: Any) -> None:
            made.append(ProducerConfig.parse(config, options))

        def close(self) -> None:
            pass

    monkeypatch.setattr(sending, "Producer", Recording)
    assert send_tables(ADDRESS, [], "t", given) == SentRows(0)
    assert [config.buffer_memory for config in made] == [buffer_memory]


def table(*values: bytes) -> Any:
    return pa.table({"value": pa.array(values, pa.binary())})


def test_with_a_ticket_a_task_writes_in_the_transaction() -> None:
    with (
        raylog.testing.broker(topics={"t": 1}) as kafka,
        SharedTransactions(kafka.address, "id") as transactions,
    ):
        ticket = transactions.begin()
        won = send_tables(kafka.address, [table(b"a"), table(b"b", b"c")], "t", {}, ticket)
        send_tables(kafka.address, [table(b"lost")], "t", {}, ticket)
        assert send_tables(kafka.address, [table()], "t", {}, ticket) == SentRows(0, None), "it did not join"
        assert won.records == 3 and won.producer_id is not None
        transactions.commit([won.producer_id])
        assert send_tables(kafka.address, [table(b"d")], "t", {}) == SentRows(1, None)
        with Consumer(kafka.address, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            consumer.assign([("t", 0)])
            values: list[bytes | None] = []
            while values[-1:] != [b"d"] and (taken := consumer.consume(10, timeout=30)):
                values += [record.value for record in taken]
    assert values == [b"a", b"b", b"c", b"d"]


def test_more_attempts_than_a_transaction_has_room_for_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participants, "PARTICIPANTS_MAX", 1)
    with (
        raylog.testing.broker(topics={"t": 1}) as kafka,
        SharedTransactions(kafka.address, "id") as transactions,
    ):
        ticket = transactions.begin()
        send_tables(kafka.address, [table(b"a")], "t", {}, ticket)
        with pytest.raises(kafka_error(ErrorCode.policy_violation), match=r"fewer tasks.*exactly_once=False"):
            send_tables(kafka.address, [table(b"b")], "t", {}, ticket)
