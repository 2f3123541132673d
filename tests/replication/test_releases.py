"""A process lets go of a replica that another actor of its disk holds from now on: the log is closed cleanly and the folder stays."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Release, Removal, ReplicaReleased, ReplicaRemoved
from raylog.replication.events import Assigned, LogClosed, LogOpened, OpenLog, Released, Removed, Tell
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, Hosts
from raylog.types import Condition, Endpoint

NOT_LEADER = ErrorCode.not_leader_or_follower.value
FOLDER = f"/data/topic{P0.topic_id.int}-0"
ELSEWHERE = Endpoint("10.0.0.9", 9)
RELEASE = Release(1, *P0, leader_node=77, leader_epoch=1, leader_endpoint=ELSEWHERE)


@pytest.fixture
def hosts() -> Hosts:
    return Hosts((1, 2))


def released(hosts: Hosts, broker: int) -> list[ReplicaReleased]:
    return [frame for frame in hosts.told[broker] if isinstance(frame, ReplicaReleased)]


def test_what_waits_is_refused_with_the_new_leader_and_the_log_is_closed_cleanly(hosts: Hosts) -> None:
    hosts.assign(1, (1, 2), replicas=(1, 2), min_isr=1)
    hosts.cut.add(2)
    parked = hosts.produce(1, b"x", producer=(5, 0, 0))
    assert hosts.produced(parked) is None
    hosts.handle(1, Released(RELEASE))
    result = hosts.produced(parked)
    assert result is not None and result.error == NOT_LEADER
    assert result.hint is not None and (result.hint.leader_node, result.hint.endpoint) == (77, ELSEWHERE)
    assert [frame.partition for frame in released(hosts, 1)] == [0]
    assert P0 not in hosts.processes[1].host.replicas and hosts.disks[1].files().exists(FOLDER)
    (closed,) = hosts.closed
    assert closed.clean and not closed.delete
    hosts.kill(1)
    hosts.start(1)
    hosts.assign(2, (2,), epoch=2, replicas=(1, 2))
    assert hosts.opened(1)[-1].status.condition is Condition.CLEAN
    assert hosts.opened(1)[-1].status.log_end_offset == 1, "the record is in the log"


def test_later_requests_are_told_where_it_went_until_it_returns_or_is_deleted(hosts: Hosts) -> None:
    hosts.assign(1, (1,), replicas=(1, 2))
    hosts.handle(1, Released(RELEASE))
    result = hosts.produced(hosts.produce(1, b"x"))
    assert result is not None and result.error == NOT_LEADER and result.hint is not None
    fetched = hosts.fetched(hosts.fetch(1, 0))
    assert fetched is not None and fetched.error == NOT_LEADER and fetched.hint is not None
    hosts.assign(1, (1,), epoch=3, replicas=(1, 2))
    assert hosts.replica(1).role is Role.LEADER
    hosts.handle(1, Released(RELEASE))
    hosts.handle(1, Removed(Removal(1, *P0, f"topic{P0.topic_id.int}")))
    result = hosts.produced(hosts.produce(1, b"x"))
    assert result is not None and result.error == ErrorCode.unknown_topic_or_partition.value


def test_what_is_not_here_is_let_go_at_once_and_each_time(hosts: Hosts) -> None:
    hosts.handle(1, Released(RELEASE))
    hosts.handle(1, Released(RELEASE))
    assert len(released(hosts, 1)) == 2


def test_a_deposed_controller_releases_nothing(hosts: Hosts) -> None:
    hosts.assign(1, (1,), replicas=(1, 2))
    hosts.processes[1].host.admit_controller(5)
    hosts.handle(1, Released(RELEASE))
    assert hosts.replica(1).role is Role.LEADER and not released(hosts, 1)


def opening(hosts: Hosts) -> tuple[Assigned, LogOpened]:
    """A replica whose log a thread is just opening, and what the thread will report."""
    reported: list[LogOpened] = []
    handle = hosts.handle

    def held(broker: int, event):  # type: ignore[no-untyped-def]
        if isinstance(event, LogOpened) and broker == 1:
            reported.append(event)
            return []
        return handle(broker, event)

    hosts.handle = held  # type: ignore[method-assign]
    hosts.assign(1, (1,), replicas=(1, 2))
    hosts.handle = handle  # type: ignore[method-assign]
    return Assigned(hosts.assignments[P0]), reported[0]


def test_an_opening_under_way_is_closed_when_it_ends(hosts: Hosts) -> None:
    _, ended = opening(hosts)
    hosts.handle(1, Released(RELEASE))
    assert not released(hosts, 1)
    hosts.handle(1, ended)
    assert len(released(hosts, 1)) == 1 and P0 not in hosts.processes[1].host.replicas
    assert not hosts.opened(1) and hosts.closed[-1].reports


def test_an_assignment_meanwhile_keeps_the_replica(hosts: Hosts) -> None:
    assigned, ended = opening(hosts)
    hosts.handle(1, Released(RELEASE))
    hosts.handle(1, assigned)
    hosts.handle(1, ended)
    assert hosts.replica(1).role is Role.LEADER and not released(hosts, 1)


def test_a_deletion_meanwhile_deletes(hosts: Hosts) -> None:
    _, ended = opening(hosts)
    hosts.handle(1, Released(RELEASE))
    hosts.handle(1, Removed(Removal(1, *P0, f"topic{P0.topic_id.int}")))
    hosts.handle(1, ended)
    assert any(isinstance(frame, ReplicaRemoved) for frame in hosts.told[1])
    assert not hosts.disks[1].files().exists(FOLDER)


def test_a_folder_that_another_has_locked_is_no_longer_waited_for(hosts: Hosts) -> None:
    hosts.assign(1, (1,), replicas=(1, 2))
    log = hosts.replica(1).log
    assert log is not None
    hosts.processes[1].host.replicas.clear()  # as in another process: the lock stays
    hosts.handle(1, Assigned(hosts.assignments[P0]))
    assert hosts.replica(1).role is Role.OPENING
    hosts.handle(1, Released(RELEASE))
    assert len(released(hosts, 1)) == 1
    log.close(clean=False)
    hosts.advance(10_000)
    assert P0 not in hosts.processes[1].host.replicas


def test_hello_names_what_is_not_open_yet(hosts: Hosts) -> None:
    _, ended = opening(hosts)
    assert hosts.processes[1].host.unopened() == (P0,) and not hosts.processes[1].host.status()
    hosts.handle(1, ended)
    assert hosts.processes[1].host.unopened() == ()
    assert OpenLog(hosts.assignments[P0]) not in hosts.handle(1, Assigned(hosts.assignments[P0]))


def test_a_release_waits_for_the_log_that_is_still_being_closed(hosts: Hosts) -> None:
    """Released, assigned again and released again, before the thread has closed the log."""
    assignment = hosts.assign(1, (1,), replicas=(1, 2))
    host = hosts.processes[1].host

    def told(event: object) -> list[ReplicaReleased]:
        effects = host.handle(event, hosts.now_ms, 0)  # type: ignore[arg-type]
        host.check()
        return [each.frame for each in effects if isinstance(each, Tell) and isinstance(each.frame, ReplicaReleased)]

    assert not told(Released(RELEASE))
    assert not told(Assigned(assignment)) and not told(Released(RELEASE))
    assert not told(LogOpened(P0, None, "locked", locked=True)), "its own first closing holds the lock"
    assert not told(Released(RELEASE))
    assert len(told(LogClosed(P0))) == 1
