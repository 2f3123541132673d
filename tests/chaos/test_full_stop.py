"""A whole cluster stops and starts: SIGKILL of every process at once under a load, and ``raylog down``; replication factor 1, too.

Everything that was acknowledged is there again, and ``raylog up`` says what recovery did.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import PATIENCE_S, STATUS_S, eventually, isr_is_whole
from ray_machines import MACHINE, RAY_TOOK_TOO_LONG, kill_marked, processes_marked

import raylog
from raylog import NewTopic
from raylog.cli.metadata_files import is_metadata, metadata_entries
from raylog.disks.quorum_disks import METADATA_FOLDER
from raylog.log.partition_metadata import LOCK_NAME
from raylog.records.batch import batches
from raylog.testing.verifiable_load import VerifiableLoad, audit_of

pytestmark = pytest.mark.chaos

TOPICS = {"thrice": (2, 3), "once": (2, 1)}  # partitions, replication factor
LOGS = sum(partitions * factor for partitions, factor in TOPICS.values())
TORN = b"torn record"


@dataclass(frozen=True, slots=True)
class Home:
    """A folder of its own for Ray and the data, and the commands that a user gives there."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def mark(self) -> str:
        return f"{self.folder}/only"

    def up(self) -> str:
        """``raylog up``. On a busy machine it may be told by Ray, or find itself, that something takes too long: it is run again."""
        for _ in range(3):
            done = self._run("up", self.data)
            if RAY_TOOK_TOO_LONG in done.stderr:
                kill_marked({self.mark})
            elif "does not serve yet" not in done.stderr:
                break
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def raylog(self, *arguments: object) -> str:
        """A command that has to work; what it printed."""
        done = self._run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAYLOG_FOLDER")}
        return subprocess.run(
            [sys.executable, "-m", "raylog.cli.main", *map(str, arguments)],
            env=kept | {"RAY_TMPDIR": str(self.folder), MACHINE: self.mark},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    made = Home(folder)
    try:
        made.up()
        with raylog.connect(folder=made.data).admin() as admin:
            admin.create_topics(
                [
                    NewTopic(name, partitions, factor, configs={"min.insync.replicas": str(min(2, factor))})
                    for name, (partitions, factor) in TOPICS.items()
                ]
            )
        yield made
    finally:
        kill_marked({made.mark})
        shutil.rmtree(folder, ignore_errors=True)


def logs_of(home: Home) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(home.raylog("status", "--folder", home.data, "--json"))["logs"]
    return found


def test_everything_killed_at_once_under_a_load_comes_back_whole_and_says_so(home: Home) -> None:
    cluster = raylog.connect(folder=home.data)
    eventually(lambda: all(isr_is_whole(cluster, topic) for topic in TOPICS), "all replicas in sync")
    loads = [
        VerifiableLoad(cluster.address, topic, partitions=partitions, producers=2, records_per_second=1_000)
        for topic, (partitions, _) in TOPICS.items()
    ]
    with ExitStack() as running:
        for load in loads:
            running.enter_context(load)
        eventually(lambda: all(load.ledger.acknowledged > 1_000 for load in loads), "acknowledged records")
        killed = kill_marked({home.mark})
        killed_at = time.monotonic()
        before = [load.ledger.acknowledged for load in loads]
        (torn,) = home.data.glob("broker-1/thrice-0/*.log")
        with torn.open("ab") as log:
            log.write(TORN)  # what a process leaves that is killed in a write
        said = home.up()
        assert f"Logs:  recovered {LOGS} logs" in said, said
        assert f"1 cut an incomplete batch of {len(TORN)} bytes at the tail; {LOGS - 1} whole" in said, said
        eventually(
            lambda: all(load.ledger.acknowledged > count for load, count in zip(loads, before, strict=True)),
            "the same clients go on",
        )
        served_at = time.monotonic()
    print(f"{killed} processes killed at once; their clients went on after {served_at - killed_at:.1f} s. {said}")
    assert {key: logs_of(home)[key] for key in ("clean", "whole", "suspect", "opening")} == {
        "clean": 0,
        "whole": LOGS,
        "suspect": 0,
        "opening": 0,
    }
    for load in loads:
        assert not load.ledger.failed, load.words()
        findings = audit_of(load, cluster.address)
        assert findings.holds, findings.words()


def test_a_clean_stop_and_start_recovers_nothing_and_keeps_everything(home: Home) -> None:
    cluster = raylog.connect(folder=home.data)
    eventually(lambda: all(isr_is_whole(cluster, topic) for topic in TOPICS), "all replicas in sync")
    loads = [
        VerifiableLoad(cluster.address, topic, partitions=partitions, producers=1, records_per_second=1_000)
        for topic, (partitions, _) in TOPICS.items()
    ]
    for load in loads:
        with load:
            eventually(lambda load=load: load.ledger.acknowledged > 500, "acknowledged records")
    home.raylog("down", home.data)
    assert not processes_marked({home.mark}), "down leaves nothing running"
    said = home.up()
    assert f"Logs:  {LOGS} logs as a clean stop left them" in said, said
    for load in loads:
        findings = audit_of(load, cluster.address)
        assert findings.holds and findings.acknowledged == load.ledger.acknowledged, findings.words()


@pytest.mark.slow
def test_logs_of_one_broker_that_are_cut_while_everything_is_down_cost_nothing(home: Home) -> None:
    """Within seconds of the load, before a high watermark was checkpointed: nothing in those logs shows that they were longer."""
    topic, partitions = "cut", 3
    cluster = raylog.connect(folder=home.data)
    with cluster.admin() as admin:
        admin.create_topics([NewTopic(topic, partitions, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(cluster, topic), "all replicas in sync")
    with VerifiableLoad(cluster.address, topic, partitions=partitions, producers=2, records_per_second=3_000) as load:
        eventually(lambda: load.ledger.acknowledged > 3_000, "acknowledged records")
    kill_marked({home.mark})
    assert not load.ledger.failed, load.words()
    logs = sorted(home.data.glob(f"broker-1/{topic}-*/*.log"))
    assert len(logs) == partitions
    for path in logs:
        with path.open("r+b") as log:
            log.truncate(path.stat().st_size // 2 - 7)
    print(home.up())
    eventually(lambda: isr_is_whole(cluster, topic), "all replicas in sync again")
    findings = audit_of(load, cluster.address)
    print(findings.words())
    assert findings.holds and findings.acknowledged == load.ledger.acknowledged, findings.words()
    with cluster.admin() as admin:
        verification = admin.verify_replicas([topic])
    assert verification.holds, verification.words()


@pytest.mark.slow
def test_an_old_copy_of_one_brokers_logs_that_is_back_alone_does_not_lead_after_the_wait(home: Home) -> None:
    """Log and checkpoint are old together, so nothing on that disk shows it; the controllers' record of high watermarks does.

    The good logs stay locked by this test until the wait is long over.
    """
    topic, witness, partitions, wait_s = "old", "witness", 2, 2
    cluster = raylog.connect(folder=home.data)
    with cluster.admin() as admin:
        configs = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(topic, partitions, 3, configs=configs), NewTopic(witness, 1, 3, configs=configs)])
    setting = f"unclean.shutdown.election.wait.ms={wait_s * 1_000}"
    home.raylog(
        "configs",
        "alter",
        "--folder",
        home.data,
        "--entity-type",
        "brokers",
        "--entity-default",
        "--add-config",
        setting,
    )
    eventually(lambda: isr_is_whole(cluster, topic) and isr_is_whole(cluster, witness), "all replicas in sync")
    copies = home.folder / "copies"
    with VerifiableLoad(cluster.address, topic, partitions=partitions, producers=2, records_per_second=1_000) as load:
        eventually(lambda: load.ledger.acknowledged > 1_000, "acknowledged records")
        for folder in home.data.glob(f"broker-1/{topic}-*"):
            shutil.copytree(folder, copies / folder.name)
        ends = {folder.name: log_end(folder) for folder in copies.iterdir()}
        eventually(
            lambda: all(noted(home, topic, name) > end for name, end in ends.items()),
            "the controllers' record is beyond the copies",
        )
    kill_marked({home.mark})
    assert not load.ledger.failed, load.words()
    for copy in copies.iterdir():
        shutil.rmtree(home.data / "broker-1" / copy.name)
        shutil.copytree(copy, home.data / "broker-1" / copy.name)
    with ExitStack() as locks:
        good = [
            path
            for broker in (0, 2)
            for name in (topic, witness)
            for path in home.data.glob(f"broker-{broker}/{name}-*/{LOCK_NAME}")
        ]
        assert len(good) == 2 * (partitions + 1)
        for path in good:
            fcntl.flock(locks.enter_context(path.open("r+")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        starting = threading.Thread(target=lambda: print(home.up()))
        starting.start()
        eventually(lambda: has_left_the_isr(cluster, topic, 1), "the old copies are not in sync any more")
        # Its good log came back at the same time as the old copies, and waited as long for the others.
        eventually(lambda: partitions_of(cluster, witness)[0]["leader"] == 1, "the wait is over")
        assert all(part["leader"] < 0 and 1 not in part["isr"] for part in partitions_of(cluster, topic))
    starting.join()
    eventually(lambda: isr_is_whole(cluster, topic), "all replicas in sync again")
    findings = audit_of(load, cluster.address)
    print(findings.words())
    assert findings.holds and findings.acknowledged == load.ledger.acknowledged, findings.words()


def log_end(folder: Path) -> int:
    """Behind the last whole batch of a copied log."""
    (log,) = folder.glob("*.log")
    return max(view.next_offset for view in batches(log.read_bytes(), allow_partial_tail=True))


def noted(home: Home, topic: str, folder: str) -> int:
    """The high watermark of a partition in the controllers' record, as one of their files has it; 0: none yet."""
    ids, marks = {}, {}
    for path in sorted((home.data / "broker-0" / METADATA_FOLDER).iterdir()):  # the log comes after its snapshots
        if not is_metadata(path):
            continue
        for entry in metadata_entries(path, path.read_bytes()):
            if entry.get("record") == "TopicCreated":
                ids[entry["topic_id"]] = entry["name"]
            for each in entry.get("topics", ()) if entry.get("record") == "HighWatermarksNoted" else ():
                for part in each["partitions"]:
                    marks[f"{ids.get(each['topic_id'])}-{part['partition']}"] = part["offset"]
    return int(marks.get(folder, 0))


def partitions_of(cluster: raylog.Cluster, topic: str) -> list[dict[str, Any]]:
    return [part for each in cluster.status(STATUS_S)["topics"] if each["name"] == topic for part in each["partitions"]]


def has_left_the_isr(cluster: raylog.Cluster, topic: str, broker: int) -> bool:
    parts = partitions_of(cluster, topic)
    return bool(parts) and all(broker not in part["isr"] for part in parts)
