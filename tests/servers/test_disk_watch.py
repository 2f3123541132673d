"""A disk of a broker fails under real servers: it goes offline alone, is shown, and comes back when it works again."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest
from raw_requests import eventually, status

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.disks.disk import lock_disk
from raylog.errors import DiskLockedError
from raylog.server import disk_watch
from raylog.server.disk_watch import HEALTH_FILE, DiskWatch, try_disk
from raylog.testing.in_process import cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

PARTITIONS = 4


@pytest.fixture
def failing(monkeypatch):
    """The paths of disks that don't work; the real trial is made on all others."""
    paths = set()

    def trial(path):
        if path in paths:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        try_disk(path)

    monkeypatch.setattr(disk_watch, "try_disk", trial)
    monkeypatch.setattr(disk_watch, "CHECK_S", 0.05)
    return paths


def on_disk(path):
    """The partitions that have a folder there."""
    return {int(name.removeprefix("t-")) for name in os.listdir(path) if name.startswith("t-")}


def leaders(running):
    return [part["leader"] for topic in status(running)["topics"] for part in topic["partitions"]]


def is_whole(running):
    parts = [part for topic in status(running)["topics"] for part in topic["partitions"]]
    return len(parts) == PARTITIONS and all(len(part["isr"]) == 3 for part in parts)


def test_a_disk_that_fails_goes_offline_alone_and_comes_back(failing):
    with cluster(brokers=3, disks=2) as running, AdminClient(running.address) as admin:
        admin.create_topics(NewTopic("t", partitions=PARTITIONS, replication_factor=3))
        eventually(lambda: is_whole(running) and -1 not in leaders(running), "all replicas in sync")
        broker = status(running)["brokers"][0]
        assert len(broker["disks"]) == 2 and broker["offline_disks"] == {}
        bad, good = broker["disks"]
        eventually(lambda: on_disk(bad) | on_disk(good) == set(range(PARTITIONS)), "the replicas' folders")
        on_bad, on_good = on_disk(bad), on_disk(good)
        assert len(on_bad) == len(on_good) == 2
        led_before = leaders(running)
        failing.add(bad)
        eventually(lambda: status(running)["brokers"][0]["offline_disks"], "the disk shown as offline")
        assert os.strerror(errno.EIO) in status(running)["brokers"][0]["offline_disks"][bad]
        eventually(lambda: all(leaders(running)[number] != 0 for number in on_bad), "leaders elsewhere")
        led = leaders(running)
        assert [led[number] for number in on_good] == [led_before[number] for number in on_good]
        assert -1 not in led and status(running)["brokers"][0]["live"]
        with Producer(running.address, acks="all") as producer:
            for number in range(100):
                producer.send("t", str(number).encode(), partition=number % PARTITIONS)
            assert producer.flush(30) == 0
        failing.clear()
        eventually(lambda: is_whole(running), "the replicas of the disk in sync again")
        assert status(running)["brokers"][0]["offline_disks"] == {}
        with Consumer(running.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", number) for number in range(PARTITIONS)])
            found = []
            eventually(
                lambda: found.extend(consumer.poll_batch(timeout=0.5)["value"].to_pylist()) or len(found) == 100,
                "every record",
            )


@pytest.fixture
def folders(tmp_path):
    found = [tmp_path / name for name in ("one", "other")]
    for each in found:
        each.mkdir()
    return found


def test_all_disks_of_a_broker_are_locked_until_it_stops(folders):
    async def watch():
        watched = DiskWatch(folders[0], lambda failed: None)
        watched.assign(_named(folders))
        await _until(lambda: _is_locked(folders[1]))
        assert not _is_locked(folders[0]), "the Broker itself locks the disk that it starts on"
        watched.assign(_named(folders[:1]))
        await _until(lambda: not _is_locked(folders[1]))
        watched.assign(_named(folders))
        await _until(lambda: _is_locked(folders[1]))
        await watched.stop()
        await _until(lambda: not _is_locked(folders[1]))

    asyncio.run(watch())


def test_a_full_disk_has_not_failed_and_one_that_does_not_answer_has(folders, monkeypatch):
    monkeypatch.setattr(disk_watch, "CHECK_S", 0.01)
    monkeypatch.setattr(disk_watch, "PATIENCE_S", 0.05)

    async def watch():
        import threading

        go_on = threading.Event()

        def trial(path):
            if path == str(folders[0]):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            go_on.wait()

        monkeypatch.setattr(disk_watch, "try_disk", trial)
        told = []
        watched = DiskWatch(folders[0], told.append)
        watched.assign(_named(folders))
        # A machine that is busy may be late with the full disk's answer, too: what is said in the end counts.
        await _until(lambda: told and [each.directory_id.int for each in told[-1]] == [1])
        (failed,) = told[-1]
        assert "has not answered" in failed.reason
        go_on.set()
        await _until(lambda: told[-1] == ())
        await watched.stop()

    asyncio.run(watch())


def test_a_trial_leaves_one_small_file(tmp_path):
    try_disk(str(tmp_path))
    try_disk(str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == [HEALTH_FILE]
    assert (tmp_path / HEALTH_FILE).stat().st_size == 16


def _named(folders):
    import uuid

    from raylog.control.session import BrokerDisk

    return tuple(BrokerDisk(uuid.UUID(int=number), str(path)) for number, path in enumerate(folders))


def _is_locked(path):
    try:
        lock_disk(path).release()
    except DiskLockedError:
        return True
    return False


async def _until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
