"""Disks that fill up, fail, come back damaged or are of a newer version: nothing acknowledged is lost, and the controller knows why."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import pytest
from kio.schema.errors import ErrorCode
from raw_requests import actor, batch, end_of, eventually, fetch, part, produce, status

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.errors import DiskError, RaylogError
from raylog.log import checkpoint
from raylog.log.disk_files import DiskFiles
from raylog.records.batch import batches
from raylog.replication.context import HostConfig
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import cluster
from raylog.types import broker_of

pytestmark = pytest.mark.core

Numbered = Callable[[int, int], list[bytes]]


def test_a_full_disk_under_a_leader_moves_the_lead_and_loses_nothing(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    node = faulty.leader()
    before = actor(faulty.running, node)
    with Producer(faulty.running.address, acks="all") as producer:
        acked = [producer.send("t", value, partition=0) for value in numbered(0, 100)]
        assert producer.flush(30) == 0
        faulty.files[broker_of(node)].fill_up()
        acked += [producer.send("t", value, partition=0) for value in numbered(100, 200)]
        assert [delivery.result(60).offset for delivery in acked] == list(range(200))
    assert faulty.files[broker_of(node)].failed_writes
    assert faulty.leader() != node
    assert faulty.values(200) == numbered(0, 200)
    failed = eventually(lambda: actor(faulty.running, node)["failures"], "the failure known to the controller")
    assert "t-0" in failed[0] and os.strerror(errno.ENOSPC) in failed[0]
    after = actor(faulty.running, node)
    assert (after["state"], after["incarnation"]) == ("live", before["incarnation"])  # writes stopped, not the process
    faulty.files[broker_of(node)].mend()
    faulty.running.crash(node)
    faulty.await_whole()
    assert fetch(faulty.running, node, "t", 0).error_code is ErrorCode.none
    assert faulty.values(200) == numbered(0, 200)


def test_a_full_disk_under_a_follower_costs_the_isr_a_member_and_nothing_else(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    leader = faulty.leader()
    follower = next(broker for broker in range(3) if broker != broker_of(leader))
    faulty.files[follower].fill_up()
    assert faulty.produce(numbered(0, 100)) == list(range(100))
    eventually(lambda: follower not in part(faulty.running, "t")["isr"], "the full follower out of the ISR")
    assert faulty.leader() == leader
    assert faulty.values(100) == numbered(0, 100)


def test_a_full_disk_without_replicas_stops_writes_until_there_is_room(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic(replication_factor=1)
    node = faulty.leader()
    assert faulty.produce(numbered(0, 50)) == list(range(50))
    disk = faulty.files[broker_of(node)]
    disk.fill_up()
    refused = produce(faulty.running, node, "t", batch(b"too much"))
    assert refused.error_code is ErrorCode.kafka_storage_error
    assert os.strerror(errno.ENOSPC) in refused.error_message
    with Producer(
        faulty.running.address, acks="all", delivery_timeout_ms=2_500, request_timeout_ms=2_000, linger_ms=0
    ) as producer:
        given_up = producer.send("t", b"given up", partition=0)
        with pytest.raises(RaylogError):
            given_up.result(60)
    disk.mend()
    faulty.running.crash(node)
    eventually(lambda: part(faulty.running, "t")["leader"] >= 0, "a leader again")
    assert faulty.produce(numbered(50, 60)) == list(range(50, 60))
    assert faulty.values(60) == numbered(0, 60)


def test_a_topic_that_filled_the_disk_can_be_deleted(faulty: Any, numbered: Numbered) -> None:
    """Its replica is offline, and has no log open: the folder goes all the same, or nothing would ever be free again."""
    faulty.make_topic(replication_factor=1)
    node = faulty.leader()
    faulty.produce(numbered(0, 50))
    faulty.files[broker_of(node)].fill_up()
    refused = produce(faulty.running, node, "t", batch(b"too much"))
    assert refused.error_code is ErrorCode.kafka_storage_error
    folder = faulty.folder(broker_of(node))
    assert folder.exists()
    with AdminClient(faulty.running.address) as admin:
        admin.delete_topics(["t"])
    eventually(lambda: not folder.exists(), "the folder away")


def test_a_log_that_could_not_be_opened_for_a_while_comes_back_by_itself(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 20))
    node = faulty.leader()
    disk = faulty.files[broker_of(node)]
    faulty.hold()
    faulty.running.crash(node)
    disk.read_error = errno.EIO
    faulty.let_go()
    eventually(lambda: actor(faulty.running, node)["failures"], "the failure known to the controller")
    incarnation = actor(faulty.running, node)["incarnation"]
    disk.mend()
    faulty.await_whole()
    after = actor(faulty.running, node)
    assert after["incarnation"] == incarnation and not after["failures"]


@pytest.mark.parametrize("kind", ["write", "read"])
def test_an_io_error_takes_the_replica_offline_and_another_leads(faulty: Any, numbered: Numbered, kind: str) -> None:
    faulty.make_topic()
    node = faulty.leader()
    faulty.produce(numbered(0, 20))
    disk = faulty.files[broker_of(node)]
    if kind == "write":
        disk.write_error = errno.EIO
        faulty.produce(numbered(20, 30))
    else:
        disk.read_error = errno.EIO
        assert fetch(faulty.running, node, "t", 3).error_code is ErrorCode.kafka_storage_error
    eventually(lambda: faulty.leader() != node, "another leader")
    expected = numbered(0, 30 if kind == "write" else 20)
    assert faulty.values(len(expected)) == expected
    failed = eventually(lambda: actor(faulty.running, node)["failures"], "the failure known to the controller")
    assert os.strerror(errno.EIO) in failed[0]


@pytest.mark.parametrize("damage", ["torn", "garbage", "flipped"])
def test_a_damaged_tail_is_cut_at_restart_and_fetched_again(faulty: Any, numbered: Numbered, damage: str) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 40), batch_size=100)
    node = faulty.leader()
    faulty.hold()
    faulty.running.crash(node)
    log = faulty.folder(broker_of(node)) / f"{0:020d}.log"
    content = log.read_bytes()
    last = list(batches(content))[-1]
    if damage == "torn":
        log.write_bytes(content[:-10])
    elif damage == "garbage":
        log.write_bytes(content + os.urandom(500))
    else:
        log.write_bytes(content[: -last.size + 30] + bytes([content[-last.size + 30] ^ 1]) + content[-last.size + 31 :])
    eventually(lambda: faulty.leader() != node, "another leader")
    faulty.produce(numbered(40, 50))
    faulty.let_go()
    faulty.await_whole()
    mended = log.read_bytes()
    assert [each.has_valid_crc() for each in batches(mended)] == [True] * len(list(batches(mended)))
    for broker in range(3):
        assert (faulty.folder(broker) / log.name).read_bytes() == mended
    assert faulty.values(50) == numbered(0, 50)


def test_a_bug_while_a_log_is_opened_is_known_to_the_controller(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 20))
    node = faulty.leader()
    faulty.hold()
    faulty.running.crash(node)
    faulty.files[broker_of(node)].read_bug = TypeError("a bug of ours")
    faulty.let_go()
    failed = eventually(lambda: actor(faulty.running, node)["failures"], "the failure known to the controller")
    assert "t-0: TypeError: a bug of ours" in failed[0]
    assert faulty.produce(numbered(20, 30)) == list(range(20, 30))  # the other two go on


def test_a_checkpoint_of_a_newer_version_keeps_the_replica_closed_and_says_so(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 5))
    node = faulty.leader()
    faulty.hold()
    faulty.running.crash(node)
    path = faulty.folder(broker_of(node)) / "replica.checkpoint"
    newer = path.read_bytes().rpartition(b"crc ")[0].replace(b"replica-checkpoint 1", b"replica-checkpoint 2")
    untouched = newer + b"crc %08x\n" % crc32c.crc32c(newer)
    path.write_bytes(untouched)
    faulty.let_go()
    eventually(lambda: actor(faulty.running, node)["state"] == "live", "the process back")
    failed = eventually(lambda: actor(faulty.running, node)["failures"], "the failure known to the controller")
    assert "replica.checkpoint" in failed[0] and "version 2" in failed[0]
    assert path.read_bytes() == untouched
    assert faulty.produce(numbered(5, 10)) == list(range(5, 10))  # the other two go on


def test_a_disk_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    with cluster(brokers=1, folder=tmp_path):
        pass
    meta = tmp_path / "broker-0" / "meta.properties"
    meta.write_text(meta.read_text().replace("version=1", "version=2"))
    with (
        pytest.raises(DiskError, match=r"meta\.properties has version 2, newer than this raylog's 1; upgrade raylog"),
        cluster(brokers=1, folder=tmp_path),
    ):
        pass


def test_a_metadata_log_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    with cluster(brokers=1, folder=tmp_path):
        pass
    folder = tmp_path / "broker-0" / "__cluster_metadata-0"
    state = folder / "quorum-state"
    state.write_text('{"version": 3, "term": 1, "voted_for": null}')
    with pytest.raises(DiskError, match=r"quorum-state is of version 3"), cluster(brokers=1, folder=tmp_path):
        pass


def test_a_metadata_log_that_cannot_be_written_ends_the_controller_and_not_the_data(
    faulty: Any, numbered: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.make_topic()
    running = faulty.running

    def full(write: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Producer(running.address, acks="all") as producer:
        producer.send("t", b"0", partition=0).result(60)
        epoch = part(running, "t")["leader_epoch"]
        monkeypatch.setattr(type(running.controller._log), "store", lambda self, write: full(write))
        with AdminClient(running.address, default_api_timeout_ms=1000) as admin, pytest.raises(RaylogError):
            admin.create_topics([NewTopic("lost", 1, 3)])
        assert os.strerror(errno.ENOSPC) in running.run(running.controller.ended())
        for value in numbered(1, 20):
            producer.send("t", value, partition=0).result(60)
        monkeypatch.undo()
        running.start_controller()
        producer.send("t", b"20", partition=0).result(60)
    faulty.await_whole()
    assert part(running, "t")["leader_epoch"] == epoch
    assert "lost" not in {each["name"] for each in status(running)["topics"]}
    assert faulty.values(21) == numbered(0, 21)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of four megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_real_full_disk_stops_writes_and_keeps_what_was_acknowledged(small_disk: Path) -> None:
    with cluster(brokers=1, folder=small_disk) as running:
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
        node = int(eventually(lambda: part(running, "t")["leader_node"] + 1, "a leader")) - 1
        acked = 0
        for _ in range(100):
            answer = produce(running, node, "t", batch(os.urandom(100_000)), acks=1)
            if answer.error_code is not ErrorCode.none:
                break
            acked += 1
        assert answer.error_code is ErrorCode.kafka_storage_error and acked > 10
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        epoch = part(running, "t")["leader_epoch"]
        running.crash(node)
        eventually(
            lambda: (now := part(running, "t"))["leader"] >= 0 and now["leader_epoch"] > epoch, "another process leads"
        )
        eventually(lambda: end_of(running, "t") == acked, "all that was acknowledged")
        assert produce(running, node, "t", batch(b"there is room")).base_offset == acked


class _WatchedFiles(DiskFiles):
    """The operating system's files. ``writers``: the threads that wrote a ``replica.checkpoint`` with a record below the high watermark."""

    def __init__(self) -> None:
        self.writers: list[str] = []

    def write_file(self, path: str, data: bytes, *, flush: bool = True) -> None:
        if path.endswith(checkpoint.FILE_NAME) and checkpoint.decode(data).high_watermark > 0:
            self.writers.append(threading.current_thread().name)
        super().write_file(path, data, flush=flush)


def test_a_checkpoint_that_is_due_with_time_is_written_in_a_thread() -> None:
    files = _WatchedFiles()
    often = HostConfig(replica_high_watermark_checkpoint_interval_ms=50)
    with (
        cluster(1, replica_server=lambda spec: ReplicaServer(spec, files=files, config=often)) as running,
        AdminClient(running.address) as admin,
        Producer(running.address, acks="all") as producer,
    ):
        admin.create_topics([NewTopic("t", 1, 1)])
        producer.send("t", b"a", partition=0).result(60)
        eventually(lambda: files.writers, "a checkpoint of the record")
    assert files.writers[0].startswith("raylog-tidy")
