"""A request about a group that overtakes its coordinator's leadership waits for it, and for nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Assignment, Release
from raylog.coordination import early_requests
from raylog.coordination.runtime import CoordinatorRuntime
from raylog.groups.machine import GroupKind, GroupMachine
from raylog.groups.requests import (
    GroupHeartbeat,
    JoinGroup,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    Protocol,
    Request,
    SyncGroup,
)
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.replication.events import Effect, Event, Released
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts

NOT_COORDINATOR = ErrorCode.not_coordinator.value
NEW_MEMBER = JoinGroup(
    "g", "", "consumer", (Protocol("range", b""),), 10_000, 60_000, None, "c", "/h", needs_member_id=True
)
JOIN = replace(NEW_MEMBER, connection=7)


class Clock:
    def __init__(self) -> None:
        self.now = 0
        self.due: list[tuple[int, Callable[[], Any]]] = []

    def now_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return WALL_MS

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> Timer:
        entry = (self.now + delay_ms, work)
        self.due.append(entry)
        return Timer(self, entry)

    def pass_to(self, now_ms: int) -> None:
        while ready := sorted((each for each in self.due if each[0] <= now_ms), key=lambda each: each[0]):
            self.due.remove(ready[0])
            self.now = ready[0][0]
            ready[0][1]()
        self.now = now_ms


class Timer:
    def __init__(self, clock: Clock, entry: tuple[int, Callable[[], Any]]) -> None:
        self._clock, self._entry = clock, entry

    def cancel(self) -> None:
        if self._entry in self._clock.due:
            self._clock.due.remove(self._entry)


class Coordinators(Hosts):
    """Broker 1's process, which may come to coordinate groups of partition 0 of ``__consumer_offsets``."""

    def __init__(self) -> None:
        self.groups: CoordinatorRuntime[Any, Any, Any] | None = None
        self.answers: list[Any] = []
        self.holds = False
        super().__init__((1, 2), watched_topics=("topic7",))
        self.time = Clock()
        self.groups = CoordinatorRuntime(GroupKind(new_uuid=uuid.uuid4), self, self.time)  # type: ignore[arg-type]

    @property
    def early(self) -> Any:
        assert self.groups is not None
        return self.groups._early

    def assign_it(self, leader: int, epoch: int, brokers: tuple[int, ...] = (1, 2)) -> None:
        assert self.groups is not None
        assignment = self.assign(leader, brokers, epoch=epoch)
        self.hear(assignment)

    def hear(self, assignment: Assignment) -> None:
        assert self.groups is not None
        self.groups.hear(replace(assignment, topic=OFFSETS_TOPIC))
        self.holds = True
        self.look()

    def look(self) -> None:
        """Feed the coordinators what the replicas' machine has reported since."""
        assert self.groups is not None
        while self.leaderships:
            broker, effect = self.leaderships.pop(0)
            if broker == 1:
                self.groups.receive((effect,))

    def handle(self, broker: int, event: Event) -> list[Effect]:
        effects = super().handle(broker, event)
        if self.holds and broker == 1:
            self.look()
        return effects

    def ask(self, request: Request, number: int = 0) -> None:
        assert self.groups is not None
        self.groups.ask(number, request, self.answers.append)

    def log(self, id: Any = P0, *rest: Any) -> Any:
        if isinstance(id, int):
            return super().log(id, *rest)
        replica = self.host(1).replicas.get(id)
        return replica.log if replica is not None else None


@pytest.fixture
def new() -> Coordinators:
    """Nobody has led the partition yet."""
    hosts = Coordinators()
    hosts.assign_it(-1, -1)
    return hosts


def errors(hosts: Coordinators) -> list[int]:
    return [each.partitions[0].error if hasattr(each, "partitions") else each.error for each in hosts.answers]


def test_requests_of_all_kinds_wait_for_the_leadership_in_their_order(new: Coordinators) -> None:
    for request in (NEW_MEMBER, SyncGroup("g", "m", 1), GroupHeartbeat("g", "m", 1), OffsetFetch("g", None)):
        new.ask(request)
    assert not new.answers and len(new.early) == 4
    new.assign_it(1, 0)
    kinds = [type(each).__name__ for each in new.answers]
    assert kinds == ["JoinedGroup", "SyncedGroup", "HeartbeatAnswer", "OffsetsFetched"]
    assert [each.error for each in new.answers] == [
        ErrorCode.member_id_required,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        0,
    ]
    assert not len(new.early) and not [due for due, _ in new.time.due if due < 10_000], "no deadline is left"


def test_a_request_that_overtakes_the_assignment_waits_for_it() -> None:
    hosts = Coordinators()
    hosts.ask(OffsetFetch("g", None))
    assert not hosts.answers
    hosts.time.pass_to(early_requests.UNKNOWN_WAIT_MS - 1)
    hosts.assign_it(-1, -1)
    hosts.time.pass_to(early_requests.UNKNOWN_WAIT_MS + 1)
    assert not hosts.answers, "it is known now"
    hosts.assign_it(1, 0)
    assert [each.error for each in hosts.answers] == [0]


def test_a_partition_that_never_comes_is_not_waited_for_as_long_as_one_that_will_serve() -> None:
    hosts = Coordinators()
    hosts.ask(OffsetFetch("g", None))
    hosts.time.pass_to(early_requests.UNKNOWN_WAIT_MS)
    assert [each.error for each in hosts.answers] == [NOT_COORDINATOR]


def test_a_wait_ends_and_no_later_than_the_request_allows(new: Coordinators) -> None:
    new.ask(OffsetFetch("g", None))
    new.ask(replace(NEW_MEMBER, rebalance_timeout_ms=300))
    new.time.pass_to(299)
    assert not new.answers
    new.time.pass_to(300)
    assert [type(each).__name__ for each in new.answers] == ["JoinedGroup"]
    new.time.pass_to(early_requests.WAIT_MS)
    assert [each.error for each in new.answers] == [NOT_COORDINATOR] * 2


def test_who_does_not_lead_and_will_not_says_so_at_once(new: Coordinators) -> None:
    new.ask(OffsetFetch("g", None))
    new.assign_it(2, 0)
    assert [each.error for each in new.answers] == [NOT_COORDINATOR], "another leads: nothing to wait for"
    new.ask(OffsetFetch("g", None))
    assert [each.error for each in new.answers] == [NOT_COORDINATOR] * 2
    new.handle(1, Released(Release(1, P0.topic_id, P0.partition)))
    new.ask(OffsetFetch("g", None))
    assert [each.error for each in new.answers] == [NOT_COORDINATOR] * 3


def test_groups_are_listed_without_a_wait(new: Coordinators) -> None:
    new.ask(ListGroups())
    assert len(new.answers) == 1


def test_no_more_wait_than_there_is_room_for(new: Coordinators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_requests, "REQUESTS_MAX", 2)
    for _ in range(3):
        new.ask(OffsetFetch("g", None))
    assert [each.error for each in new.answers] == [NOT_COORDINATOR] and len(new.early) == 2


def test_a_native_member_whose_connection_ends_does_not_join_later(new: Coordinators) -> None:
    assert new.groups is not None
    new.ask(JOIN)
    new.ask(OffsetCommit("other", (), connection=8))
    new.groups.connection_closed(7)
    assert len(new.early) == 1
    new.assign_it(1, 0)
    coordinator = new.groups.coordinator_of(0)
    assert coordinator is not None and isinstance(coordinator.machine, GroupMachine)
    assert "g" not in coordinator.machine.groups
    assert len(new.answers) == 1


def test_a_process_that_ends_answers_nobody(new: Coordinators) -> None:
    assert new.groups is not None
    new.ask(OffsetFetch("g", None))
    new.groups.stop()
    new.time.pass_to(10_000)
    assert not new.answers and not len(new.early)
