"""Folders with transactions of Apache Kafka's: who asks for committed records gets those, from every replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from raw_requests import ask, endpoint_of, eventually, part
from transactional_folders import ALL, COMMITTED, END, STABLE_END, TOPIC, cluster_over_transactions, is_led
from typer.testing import CliRunner

from raylog.cli.main import app
from raylog.client.links import requests
from raylog.client.sync import AdminClient, Consumer
from raylog.records.aborted import AbortedTransactions
from raylog.records.batch import batches
from raylog.records.codec import light_records
from raylog.testing.in_process import InProcessCluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

T0 = TopicPartition(TOPIC, 0)
LATEST = -1


def fetched(running: InProcessCluster, level: int) -> Any:
    """All that the leader gives at once."""
    body = requests.fetch(
        {T0: (0, -1)},
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 24,
        partition_max_bytes=1 << 24,
        isolation_level=level,
    )
    return ask(running, endpoint_of(running, part(running, TOPIC)["leader_node"]), body).responses[0].partitions[0]


def latest(running: InProcessCluster, level: int) -> int:
    body = requests.list_offsets({T0: (LATEST, -1)}, isolation_level=level)
    answer = ask(running, endpoint_of(running, part(running, TOPIC)["leader_node"]), body)
    found: int = answer.topics[0].partitions[0].offset
    return found


def values(answer: Any) -> list[bytes]:
    """As a client takes them."""
    aborted = AbortedTransactions((each.producer_id, each.first_offset) for each in answer.aborted_transactions or ())
    return [
        bytes(each.value)
        for view in batches(answer.records)
        if not aborted.hides(view) and not view.is_control
        for each in light_records(view)
    ]


def assert_isolated(running: InProcessCluster) -> None:
    answer = fetched(running, requests.READ_COMMITTED)
    assert values(answer) == COMMITTED
    assert (answer.last_stable_offset, answer.high_watermark) == (STABLE_END, END)
    assert latest(running, requests.READ_COMMITTED) == STABLE_END
    answer = fetched(running, requests.READ_UNCOMMITTED)
    assert values(answer) == ALL and answer.aborted_transactions is None
    assert latest(running, requests.READ_UNCOMMITTED) == END


def test_committed_records_are_read_from_a_folder_of_kafkas_and_from_copies_of_it(tmp_path: Path) -> None:
    with cluster_over_transactions(tmp_path) as running, AdminClient(running.address) as admin:
        assert_isolated(running)
        admin.reassign({T0: [2]})
        eventually(lambda: not admin.list_reassignments() and is_led(running, replicas=1), "moved")
        assert part(running, TOPIC)["leader_node"] >> 16 == 2
        eventually(lambda: latest(running, requests.READ_UNCOMMITTED) == END, "the new leader knows what is committed")
        assert_isolated(running)


# ------------------------------------------------------------------ raylog's own consumers


def read_all(consumer: Consumer, end: int) -> list[bytes]:
    """By records, until the position is at the end."""
    found: list[bytes] = []

    def is_over() -> bool:
        found.extend(bytes(record.value or b"") for record in consumer.consume(timeout=0.1))
        return consumer.position(T0) >= end

    eventually(is_over, "the position is at the end")
    return found


@pytest.mark.parametrize(
    ("level", "expected", "end"), [("read_committed", COMMITTED, STABLE_END), ("read_uncommitted", ALL, END)]
)
def test_a_native_consumer_reads_what_its_isolation_level_says(
    tmp_path: Path, level: str, expected: list[bytes], end: int
) -> None:
    with cluster_over_transactions(tmp_path) as running:
        options = {"isolation.level": level, "auto.offset.reset": "earliest"}
        with Consumer(running.address, options) as consumer:
            consumer.assign([T0])
            assert consumer.end_offsets([T0])[T0] == end
            assert read_all(consumer, end) == expected
            assert consumer.lag()[T0] == 0
            consumer.seek_to_beginning()
            tables: list[bytes] = []

            def is_over() -> bool:
                tables.extend(consumer.poll_batch(timeout=0.1)["value"].to_pylist())
                return consumer.position(T0) >= end

            eventually(is_over, "the position is at the end")
            assert tables == expected
            consumer.seek(T0, 3)  # behind the beginning of an aborted transaction
            behind = [each for each in expected if each not in (b"plain", b"aborted 1", b"committed 1")]
            assert read_all(consumer, end) == behind
            consumer.seek_to_end()
            assert consumer.position(T0) == end


def test_a_paused_consumer_forgets_no_aborted_transaction(tmp_path: Path) -> None:
    """What is put back while it pauses is given as it would have been."""
    with cluster_over_transactions(tmp_path) as running:
        options = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "max.poll.records": 1}
        with Consumer(running.address, options) as consumer:
            consumer.assign([T0])
            found: list[bytes] = []

            def all_read() -> bool:
                record = consumer.poll(0.1)
                if record is not None:
                    found.append(bytes(record.value or b""))
                    consumer.pause(T0)
                    assert consumer.poll(0) is None
                    consumer.resume(T0)
                return consumer.position(T0) >= STABLE_END

            eventually(all_read, "all is read")
            assert found == COMMITTED


def test_a_consumer_group_goes_on_behind_what_was_aborted(tmp_path: Path) -> None:
    with cluster_over_transactions(tmp_path) as running:
        options = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "group.id": "g"}
        with Consumer(running.address, options) as consumer:
            consumer.assign([T0])
            assert read_all(consumer, STABLE_END) == COMMITTED
            consumer.commit()
        with Consumer(running.address, options) as consumer:
            consumer.assign([T0])
            assert consumer.position(T0) == STABLE_END


@pytest.mark.parametrize(("level", "expected"), [("read_committed", COMMITTED), ("read_uncommitted", ALL)])
def test_raylog_consume_prints_what_the_isolation_level_says(tmp_path: Path, level: str, expected: list[bytes]) -> None:
    with cluster_over_transactions(tmp_path) as running:
        arguments = ["consume", TOPIC, "--from-beginning", "--until-end", "--isolation-level", level]
        ended = CliRunner().invoke(app, [*arguments, "--bootstrap-server", running.bootstrap_servers()])
        assert ended.exit_code == 0, ended.output
        assert ended.stdout.encode().split(b"\n")[:-1] == expected
