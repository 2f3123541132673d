"""When a runtime looks at its coordinators' deadlines: a request costs the same, however many partitions there are."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from raylog.coordination.coordinator import CoordinatorRole
from raylog.coordination.events import CoordinatorRequestReceived, CoordinatorTicked, SendCoordinatorReply
from raylog.coordination.runtime import CoordinatorRuntime, _Partition
from raylog.groups.machine import GroupKind
from raylog.groups.requests import ListGroups
from raylog.types import TopicIdPartition

PARTITIONS = 50


class Alarm:
    """A clock that notes when it was asked to ring."""

    def __init__(self) -> None:
        self.now = 0
        self.rings: list[tuple[int, Callable[[], Any]]] = []

    def now_ms(self) -> int:
        return self.now

    def wall_ms(self) -> int:
        return self.now

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> Any:
        ring = self.now + delay_ms, work
        self.rings.append(ring)

        class Cancelling:
            def cancel(_) -> None:
                if ring in self.rings:
                    self.rings.remove(ring)

        return Cancelling()

    def pass_to(self, now_ms: int) -> None:
        self.now = now_ms
        while ready := [each for each in self.rings if each[0] <= now_ms]:
            self.rings.remove(ready[0])
            ready[0][1]()


class Looked:
    """A coordinator with a deadline that a request sets; counts how often it is looked at."""

    def __init__(self) -> None:
        self.role = CoordinatorRole.LEADING
        self.due_ms: int | None = None
        self.wanted_ms: int | None = None
        self.looks = self.requests = 0
        self.ticks: list[int] = []

    def next_deadline_ms(self) -> int | None:
        self.looks += 1
        return self.due_ms

    def handle(self, event: Any, now_ms: int, wall_ms: int) -> list[Any]:
        if isinstance(event, CoordinatorRequestReceived):
            self.requests += 1
            self.due_ms = self.wanted_ms
            return [SendCoordinatorReply(event.token, "answered")]
        assert isinstance(event, CoordinatorTicked)
        self.ticks.append(now_ms)
        self.due_ms = None
        return []


@pytest.fixture
def several() -> tuple[CoordinatorRuntime[Any, Any, Any], list[Looked], Alarm]:
    alarm = Alarm()
    runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(GroupKind(new_uuid=uuid.uuid4), None, alarm)  # type: ignore[arg-type]
    found = [Looked() for _ in range(PARTITIONS)]
    for number, looked in enumerate(found):
        partition: Any = _Partition(TopicIdPartition(uuid.UUID(int=1), number))
        partition.coordinator = looked
        runtime._partitions[number] = partition
    return runtime, found, alarm


def test_a_request_looks_at_its_own_coordinator_only(
    several: tuple[CoordinatorRuntime[Any, Any, Any], list[Looked], Alarm],
) -> None:
    runtime, found, _ = several
    found[0].wanted_ms = 100
    runtime.ask(0, ListGroups(), lambda reply: None)
    for each in found:
        each.looks = 0
    for _ in range(10):
        runtime.ask(7, ListGroups(), lambda reply: None)
        found[0].wanted_ms = 5_000  # a heartbeat moves the deadline later
        runtime.ask(0, ListGroups(), lambda reply: None)
    assert (found[7].looks, found[0].looks) == (10, 10) and sum(each.looks for each in found) == 20


def test_no_deadline_is_missed_whichever_moves(
    several: tuple[CoordinatorRuntime[Any, Any, Any], list[Looked], Alarm],
) -> None:
    runtime, found, alarm = several
    for number, due_ms in ((3, 500), (4, 200), (5, 300), (4, 900)):
        found[number].wanted_ms = due_ms
        runtime.ask(number, ListGroups(), lambda reply: None)
    assert [at for at, _ in alarm.rings] == [200], "early for all, late for none"
    for now_ms in (200, 300, 500, 900):
        alarm.pass_to(now_ms)
    assert (found[5].ticks, found[3].ticks, found[4].ticks) == ([300], [500], [900])
    assert alarm.rings == []


def test_what_is_listed_is_asked_of_those_that_coordinate(
    several: tuple[CoordinatorRuntime[Any, Any, Any], list[Looked], Alarm],
) -> None:
    runtime, found, _ = several
    for each in found[2:]:
        each.role = CoordinatorRole.FOLLOWING
    found[1].role = CoordinatorRole.LOADING
    assert runtime.coordinated() == [0, 1] and runtime.numbers() == list(range(PARTITIONS))
