"""One disk of a broker fails under real servers and a load: it goes offline alone, the broker's other disk serves on.

The disk is made to fail in every process that uses it, the Broker that tries it out as well as the replicas that write there
(``tests/support/server_hooks``).
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import eventually, isr_is_whole, kept_environment, kill
from ray_nodes import with_hooks
from server_faults import ServerFaults

import raylog
from raylog import NewTopic
from raylog.testing.verifiable_load import VerifiableLoad, audit_of

pytestmark = pytest.mark.chaos

TOPIC = "fire"
PARTITIONS = 4
STRUCK = 1  # its broker holds no controller: what is lost here are replicas


@dataclass(frozen=True, slots=True)
class TwoDisks:
    """Three brokers with two disks each, on a Ray of their own."""

    cluster: raylog.Cluster
    faults: ServerFaults

    def broker(self) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.cluster.status()["brokers"] if each["id"] == STRUCK)
        return found

    def parts(self) -> list[dict[str, Any]]:
        return [
            part for each in self.cluster.status()["topics"] if each["name"] == TOPIC for part in each["partitions"]
        ]

    def pids(self) -> dict[int, int]:
        """The live processes of the broker by node id."""
        actors = self.cluster.status()["actors"]
        return {each["node_id"]: each["pid"] for each in actors if each["broker"] == STRUCK and each["state"] == "live"}

    def failed_pids(self) -> list[int]:
        return [
            each["pid"] for each in self.cluster.status()["actors"] if each["broker"] == STRUCK and each["failures"]
        ]


def on_disk(path: str) -> set[int]:
    """The partitions that have a folder there."""
    return {int(name.rpartition("-")[2]) for name in os.listdir(path) if name.startswith(f"{TOPIC}-")}


@pytest.fixture
def two_disks() -> Iterator[TwoDisks]:
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_ADDRESS"), ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        os.environ["RAY_TMPDIR"] = str(folder)
        os.environ.pop("RAY_ADDRESS", None)
        faults = ServerFaults(folder / "faults.json")
        ending.enter_context(with_hooks(faults.path))
        cluster = raylog.init(folder / "data", disks_per_broker=2, ray_address="local", timeout_s=120)
        ending.callback(cluster.shutdown)
        with cluster.admin() as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
        eventually(lambda: isr_is_whole(cluster, TOPIC), "all replicas in sync")
        yield TwoDisks(cluster, faults)


def test_a_disk_that_fails_under_a_load_goes_offline_alone_and_its_broker_serves_on(two_disks: TwoDisks) -> None:
    cluster, broker = two_disks.cluster, two_disks.broker()
    bad, good = broker["disks"]
    on_bad, on_good = on_disk(bad), on_disk(good)
    assert len(on_bad) == len(on_good) == PARTITIONS // 2, "each disk has its share"
    with cluster.admin() as admin:
        admin.elect_leaders()
    with VerifiableLoad(cluster.address, TOPIC, partitions=PARTITIONS, records_per_second=2_000) as load:
        eventually(lambda: load.ledger.acknowledged > 2_000, "acknowledged records")
        before = two_disks.pids()
        with two_disks.faults.failing_writes(Path(bad), errno.EIO):
            eventually(lambda: bad in two_disks.broker()["offline_disks"], "the disk shown as offline")
            assert os.strerror(errno.EIO) in two_disks.broker()["offline_disks"][bad]
            assert good not in two_disks.broker()["offline_disks"] and two_disks.broker()["live"]
            eventually(
                lambda: all(two_disks.parts()[number]["leader"] not in (-1, STRUCK) for number in on_bad),
                "others lead what is on it",
            )
            goal = load.ledger.acknowledged + 4_000
            eventually(lambda: load.ledger.acknowledged > goal, "acknowledged records")
            for number in on_good:
                assert STRUCK in two_disks.parts()[number]["isr"], "what is on its other disk serves on"
        failed = two_disks.failed_pids()
        serving = {node: pid for node, pid in before.items() if pid not in failed}
        assert serving.items() <= two_disks.pids().items(), "nobody else had to be started anew"
        for pid in failed:
            kill(pid)  # as docs/limits.md says
        eventually(lambda: isr_is_whole(cluster, TOPIC), "the replicas of the mended disk in sync again")
        assert two_disks.broker()["offline_disks"] == {}
    assert not load.ledger.failed, load.words()
    findings = audit_of(load, cluster.address)
    assert findings.holds, findings.words()
    with cluster.admin() as admin:
        verification = admin.verify_replicas([TOPIC])
    assert verification.holds, verification.words()
