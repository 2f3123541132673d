"""Folders with transactions of Apache Kafka's: who asks for committed records gets those, from every replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from raw_requests import ask, endpoint_of, eventually, part
from transactional_folders import ALL, COMMITTED, END, STABLE_END, TOPIC, cluster_over_transactions, is_led

from raylog.client.links import requests
from raylog.client.sync import AdminClient
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
