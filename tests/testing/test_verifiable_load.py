"""The verifiable load against a cluster in this process, over the death of leaders: it holds, and a log that lost something does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from raw_requests import eventually, isr_is_whole, part

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.testing.verifiable_load import LoadAudit, VerifiableLoad, audit_of

pytestmark = pytest.mark.core


@pytest.fixture
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as made:
        with AdminClient(made.address) as admin:
            admin.create_topics([NewTopic("t", 2, 3, configs={"min.insync.replicas": "2"})])
        eventually(lambda: isr_is_whole(made, "t"), "all replicas in sync")
        yield made


def load_of(running: InProcessCluster) -> VerifiableLoad:
    return VerifiableLoad(running.address, "t", partitions=2, records_per_second=3_000)


def test_a_load_over_the_death_of_leaders_holds_and_replicas_can_be_compared_meanwhile(
    running: InProcessCluster,
) -> None:
    with load_of(running) as load, AdminClient(running.address) as admin:
        audit = LoadAudit(load, running.address)
        for partition in range(2):
            goal = load.ledger.acknowledged + 1_000
            eventually(lambda goal=goal: load.ledger.acknowledged >= goal, "a thousand more acknowledged records")
            running.crash(part(running, "t", partition)["leader_node"])
            assert audit.catch_up() == 0
        verification = admin.verify_replicas("t")  # while records come in and replicas come back
        eventually(lambda: isr_is_whole(running, "t"), "all replicas in sync again")
    assert verification.holds, verification.words()
    findings = audit_of(load, running.address)
    assert findings.holds and not load.ledger.failed, findings.words()
    assert findings.acknowledged == load.ledger.acknowledged == load.ledger.sent
    assert 0 < load.ledger.longest_pause(load.started_at, load.stopped_at) < 30


def test_a_record_that_was_acknowledged_and_is_not_there_is_found(running: InProcessCluster) -> None:
    with load_of(running) as load:
        eventually(lambda: load.ledger.acknowledged >= 500, "500 acknowledged records")
    ends = dict.fromkeys(range(2), 0)
    for column in load.ledger.columns:
        for partition, offset in zip(column.partitions, column.offsets, strict=True):
            ends[partition] = max(ends[partition], offset + 1)
    with AdminClient(running.address) as admin:
        admin.delete_records({("t", 0): ends[0] // 2})
    findings = audit_of(load, running.address)
    assert findings.lost == ends[0] // 2, findings.words()
