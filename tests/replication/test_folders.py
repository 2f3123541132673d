"""When a log is opened again after an opening failed, and a folder is deleted after a deletion could not be done."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable

import pytest

from raylog.control.session import Removal, ReplicaFailed, ReplicaRemoved
from raylog.replication.context import HostConfig
from raylog.replication.events import Assigned, FlushCompleted, LogOpened, Removed
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, Hosts, contents
from raylog.types import Condition

FOLDER = f"/data/topic{P0.topic_id.int}-0"
REMOVAL = Removal(1, *P0, f"topic{P0.topic_id.int}")
RETRY_MS, RETRY_MAX_MS = HostConfig().failed_log_retry_ms, HostConfig().failed_log_retry_max_ms


def failing(code: int, *operations: str) -> Callable[[str, str], None]:
    def fault(operation: str, path: str) -> None:
        if operation in operations:
            raise OSError(code, os.strerror(code), path)

    return fault


@pytest.fixture
def hosts() -> Hosts:
    return Hosts((1,))


def exists(hosts: Hosts) -> bool:
    return hosts.disks[1].files().exists(FOLDER)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ENOSPC])
def test_a_log_that_could_not_be_opened_is_opened_when_that_has_passed(hosts: Hosts, code: int) -> None:
    hosts.disks[1].fault = failing(code, "open")
    assignment = hosts.assign(1, (1,))
    assert hosts.replica(1).role is Role.OFFLINE
    hosts.advance(10 * RETRY_MS)
    failures = [frame for frame in hosts.told[1] if isinstance(frame, ReplicaFailed)]
    assert len(failures) == 1, "the same reason is not told again"
    hosts.disks[1].fault = None
    hosts.advance(RETRY_MAX_MS)
    assert hosts.replica(1).role is Role.LEADER and hosts.replica(1).reason is None
    assert [frame.status.id for frame in hosts.opened(1)] == [assignment.id]
    result = hosts.produced(hosts.produce(1, b"x"))
    assert result is not None and result.error == 0


def test_each_opening_that_fails_is_followed_by_a_longer_pause(hosts: Hosts) -> None:
    openings: list[int] = []

    def fault(operation: str, path: str) -> None:
        if operation == "make_directory":
            openings.append(hosts.now_ms)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    hosts.disks[1].fault = fault
    hosts.assign(1, (1,))
    hosts.advance(4 * RETRY_MAX_MS)
    pauses = [later - earlier for earlier, later in itertools.pairwise(openings)]
    assert pauses[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS] and pauses[-1] == RETRY_MAX_MS


def test_an_io_error_of_an_open_log_is_final(hosts: Hosts) -> None:
    hosts.assign(1, (1,))
    hosts.disks[1].fault = failing(errno.EIO, "write")
    hosts.produce(1, b"x")
    hosts.disks[1].fault = None
    hosts.advance(10 * RETRY_MAX_MS)
    assert hosts.replica(1).role is Role.OFFLINE


def test_a_replica_whose_disk_was_full_is_deleted_with_its_topic(hosts: Hosts) -> None:
    hosts.assign(1, (1,))
    hosts.produce(1, b"x" * 1_000)
    disk = hosts.disks[1]
    disk.capacity_bytes -= disk.free_bytes
    hosts.produce(1, b"y" * 1_000)
    assert hosts.replica(1).role is Role.OFFLINE
    hosts.handle(1, Removed(REMOVAL))
    assert not exists(hosts) and disk.free_bytes > 1_000
    assert hosts.told[1][-1] == ReplicaRemoved(*P0)
    assert P0 not in hosts.host(1).replicas


def test_a_replica_that_could_not_be_opened_is_deleted_with_its_topic(hosts: Hosts) -> None:
    hosts.assign(1, (1,))
    hosts.kill(1)
    hosts.start(1)
    hosts.disks[1].fault = failing(errno.EIO, "read")
    hosts.assign(1, (1,))
    assert hosts.replica(1).role is Role.OFFLINE
    hosts.disks[1].fault = None
    hosts.handle(1, Removed(REMOVAL))
    assert not exists(hosts) and hosts.told[1][-1] == ReplicaRemoved(*P0)
    hosts.advance(2 * RETRY_MAX_MS)
    assert hosts.opened(1) == [], "nobody tries to open it any more"


def test_a_replica_that_is_removed_while_another_process_has_its_folder_is_deleted_when_that_ends(hosts: Hosts) -> None:
    hosts.assign(1, (1,))
    dying = hosts.processes[1]
    hosts.start(1)
    hosts.assign(1, (1,))
    assert hosts.replica(1).role is Role.OPENING
    hosts.handle(1, Removed(REMOVAL))
    hosts.advance(1_000)
    assert exists(hosts) and ReplicaRemoved(*P0) not in hosts.told[1]
    dying.files.crash()
    hosts.advance(1_000)
    assert not exists(hosts) and hosts.told[1].count(ReplicaRemoved(*P0)) == 1


def test_a_removal_that_meets_an_opening_of_a_locked_folder_deletes_it_afterwards(hosts: Hosts) -> None:
    assignment = hosts.assign(1, (1,))
    hosts.kill(1)
    hosts.start(1)
    hosts.host(1).handle(Assigned(assignment), 0, 0)
    assert hosts.handle(1, Removed(REMOVAL)) == [], "a thread is at work"
    hosts.handle(1, LogOpened(P0, None, "locked", locked=True))
    assert not exists(hosts) and hosts.told[1] == [ReplicaRemoved(*P0)]
    assert P0 not in hosts.host(1).replicas


def test_a_deletion_that_failed_is_tried_again(hosts: Hosts) -> None:
    for is_open in (True, False):
        hosts = Hosts((1,))
        hosts.assign(1, (1,))
        if not is_open:
            hosts.kill(1)
            hosts.start(1)
        hosts.disks[1].fault = failing(errno.EIO, "replace")
        hosts.handle(1, Removed(REMOVAL))
        hosts.handle(1, Removed(REMOVAL))
        hosts.advance(10 * RETRY_MS)
        assert exists(hosts) and ReplicaRemoved(*P0) not in hosts.told[1]
        hosts.disks[1].fault = None
        hosts.advance(RETRY_MAX_MS)
        assert not exists(hosts) and hosts.told[1].count(ReplicaRemoved(*P0)) == 1


def test_a_replica_that_comes_back_is_not_deleted_by_the_removal_before(hosts: Hosts) -> None:
    hosts.assign(1, (1,))
    hosts.produce(1, b"kept")
    hosts.kill(1)
    hosts.start(1)
    hosts.disks[1].fault = failing(errno.EIO, "replace")
    hosts.handle(1, Removed(REMOVAL))
    hosts.disks[1].fault = None
    hosts.assign(1, (1,))
    hosts.advance(2 * RETRY_MAX_MS)
    assert [value for _, _, value in contents(hosts.log(1))] == [b"kept"]
    assert hosts.opened(1)[-1].status.condition is Condition.WHOLE


def test_a_flush_of_a_log_that_was_closed_says_nothing_of_the_one_opened_since(hosts: Hosts) -> None:
    each = {"flush.messages": "1"}
    assignment = hosts.assign(1, (1,), config=each)
    old = hosts.log(1)
    hosts.handle(1, Removed(REMOVAL))
    hosts.handle(1, Assigned(assignment))
    hosts.holds_flushes = True
    waiting = hosts.produce(1, b"x")
    hosts.handle(1, FlushCompleted(P0, 5, log=old))
    hosts.handle(1, FlushCompleted(P0, 5, "the old one failed", log=old))
    assert hosts.produced(waiting) is None and hosts.replica(1).role is Role.LEADER
    hosts.finish_flushes()
    assert hosts.produced(waiting) is not None


def test_a_topic_that_is_deleted_takes_its_counts_along_where_there_are_many(hosts: Hosts) -> None:
    hosts.assign(1, (1,))
    counts = hosts.replica(1).context.counts
    counts._forget_at = 0
    assert len(counts.topics) == 1
    hosts.handle(1, Removed(REMOVAL))
    hosts.advance(RETRY_MAX_MS)
    assert counts.topics == {}
