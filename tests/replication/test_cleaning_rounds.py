"""Which log a process compacts next, and what becomes of it when its disk does not let it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from raylog.records.codec import encode
from raylog.replication.context import HostConfig
from raylog.replication.events import ProducePartition, ProduceReceived
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, TOPIC_ID, WALL_MS, Hosts
from raylog.types import TopicIdPartition

P1 = TopicIdPartition(TOPIC_ID, 1)
BACKOFF_MS = 10
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0.01"}


def put(hosts: Hosts, id: TopicIdPartition, count: int, *, keys: int) -> None:
    """Some segments of records, each a batch of its own."""
    for number in range(count):
        records = encode([(WALL_MS, b"k%d" % (number % keys), b"v" * 40, ())])
        hosts.handle(1, ProduceReceived(hosts.token(), 1, 30_000, (ProducePartition(id, bytes(records)),)))
    hosts.run()


def refusing(code: int) -> Callable[[str, str], None]:
    """A disk on which no segment can be made that replaces others."""

    def fault(operation: str, path: str) -> None:
        if operation == "write" and ".cleaned" in path:
            raise OSError(code, os.strerror(code), path)

    return fault


def compacted(hosts: Hosts, id: TopicIdPartition) -> int:
    """Up to which offset a log is."""
    return hosts.log(1, id).compaction.point


@pytest.fixture
def hosts() -> Hosts:
    made = Hosts((1,), HostConfig(log_cleaner_backoff_ms=BACKOFF_MS))
    for id in (P0, P1):
        made.assign(1, (1,), id=id, config=CONFIG)
    return made


def test_the_log_with_the_largest_dirty_share_is_compacted_first_and_then_the_next_one(hosts: Hosts) -> None:
    put(hosts, P0, 20, keys=20)
    hosts.advance(2 * BACKOFF_MS)
    clean = compacted(hosts, P0)
    assert clean > 0, "its keys are all different: it is as large as before"
    put(hosts, P0, 10, keys=10)
    put(hosts, P1, 10, keys=10)
    while not compacted(hosts, P1):
        assert compacted(hosts, P0) == clean, "a third of it is dirty, all of the other"
        assert hosts.now_ms < 10 * BACKOFF_MS
        hosts.advance(1)
    hosts.advance(1)
    assert compacted(hosts, P0) > clean, "at once, without another rest"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_tried_again_and_its_log_serves_on(hosts: Hosts, code: int) -> None:
    put(hosts, P0, 12, keys=3)
    hosts.disks[1].fault = refusing(code)
    hosts.advance(3 * BACKOFF_MS)
    assert hosts.replica(1).role is Role.LEADER and compacted(hosts, P0) == 0
    assert len(hosts.read(1)) == 12
    hosts.disks[1].fault = None
    hosts.advance(BACKOFF_MS)
    assert compacted(hosts, P0) > 0


def test_a_disk_that_fails_takes_the_replica_offline_and_no_other(hosts: Hosts) -> None:
    put(hosts, P0, 12, keys=3)
    hosts.disks[1].fault = refusing(errno.EIO)
    hosts.advance(2 * BACKOFF_MS)
    assert hosts.replica(1).role is Role.OFFLINE and "compaction" in (hosts.replica(1).reason or "")
    assert hosts.replica(1, P1).role is Role.LEADER
