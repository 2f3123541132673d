"""One cluster of real processes per module, on a Ray of three nodes, and a load on it that can be accounted for."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from process_faults import Target
from ray_clusters import eventually, kept_environment
from ray_nodes import ray_nodes
from server_faults import ServerFaults

from raylog import NewTopic
from raylog.client.links.address import ClusterAddress
from raylog.testing.verifiable_load import VerifiableLoad, audit_of

PARTITIONS = 3
RECORDS_PER_SECOND = 7_000
RECORDS_AFTERWARDS = 1_000  # that the load goes on, on whatever machine; ``make soak`` demands 5,000 a second
SEED = "RAYLOG_CHAOS_SEED"

UnderLoad = Callable[..., AbstractContextManager[VerifiableLoad]]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """Three controllers, disks and a network that can be made to fail, a topic of three partitions and replicas, all in sync."""
    seed = int(os.environ.get(SEED, time.time_ns() % 1_000_000))
    print(f"\nchaos: {SEED}={seed} chooses the same victims and moments again")
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE"):
        os.environ["RAY_TMPDIR"] = str(folder)
        faults = ServerFaults(folder / "faults.json")
        with ray_nodes(folder / "data", controllers=3, faults=faults.path) as nodes:
            topic = NewTopic("fire", PARTITIONS, 3, configs={"min.insync.replicas": "2", "retention.ms": "-1"})
            with nodes.cluster.admin() as admin:
                admin.create_topics([topic])
            made = Target(nodes, topic.name, random.Random(seed), faults)
            eventually(made.is_whole, "all replicas in sync")
            yield made
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def under_load(target: Target) -> UnderLoad:
    """A load, and at its end everything that must hold after a fault: the ISR whole, the ledger, the replicas.

    ``address``: by which the load and its audit reach the cluster, None for its nodes' own.
    """

    @contextmanager
    def run(address: ClusterAddress | None = None) -> Iterator[VerifiableLoad]:
        address = address or target.nodes.cluster.address
        with VerifiableLoad(
            address, target.topic, partitions=PARTITIONS, records_per_second=RECORDS_PER_SECOND
        ) as load:
            yield load
            eventually(target.is_whole, "all replicas in sync again")
            goal = load.ledger.acknowledged + RECORDS_AFTERWARDS
            eventually(lambda: load.ledger.acknowledged >= goal, f"{goal} acknowledged records")
        pause_ms = 1000 * load.ledger.longest_pause(load.started_at, load.stopped_at)
        print(f"{load.words()} Longest pause of a partition: {pause_ms:,.0f} ms.")
        assert not load.ledger.failed, load.words()
        findings = audit_of(load, address)
        print(findings.words())
        assert findings.holds, findings.words()
        with target.nodes.cluster.admin() as admin:
            verification = admin.verify_replicas([target.topic])
        print(verification.words())
        assert verification.holds, verification.words()
        assert all(len(report.compared) == 3 for report in verification.partitions)

    return run
