"""When coordinators on followers read what is replicated: a little later, and all at once. One that is elected reads at once."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.coordination.coordinator import CoordinatorRole
from raylog.coordination.runtime import FOLLOW_MS, CoordinatorRuntime, _Partition
from raylog.groups.machine import GroupKind
from raylog.replication.leaderships import HighWatermarkMoved, LeadershipBegan
from raylog.types import TopicIdPartition
from tests.coordination.test_timer import Alarm

ID = TopicIdPartition(uuid.UUID(int=1), 7)


class ReplicatedLog:
    """Of empty batches; notes from where it was read."""

    log_start_offset = 0
    where = "p-7"

    def __init__(self) -> None:
        self.high_watermark = 0
        self.read_from: list[int] = []

    def read(self, offset: int, max_bytes: int, *, end_offset: int, in_memory: bool) -> Any:
        self.read_from.append(offset)
        return SimpleNamespace(records=b"", next_offset=end_offset)


@pytest.fixture
def log() -> ReplicatedLog:
    return ReplicatedLog()


@pytest.fixture
def alarm() -> Alarm:
    return Alarm()


@pytest.fixture
def runtime(log: ReplicatedLog, alarm: Alarm) -> CoordinatorRuntime[Any, Any, Any]:
    replicas: Any = SimpleNamespace(log=lambda id: log if id == ID else None)
    found: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(GroupKind(new_uuid=uuid.uuid4), replicas, alarm)
    found._partitions[ID.partition] = _Partition(ID)
    return found


def test_a_follower_reads_all_that_is_replicated_at_once_and_not_at_once(
    runtime: CoordinatorRuntime[Any, Any, Any], log: ReplicatedLog, alarm: Alarm
) -> None:
    for high_watermark in (3, 5, 8):
        log.high_watermark = high_watermark
        runtime.receive((HighWatermarkMoved(ID, high_watermark, high_watermark),))
    assert log.read_from == []
    alarm.pass_to(FOLLOW_MS)
    assert log.read_from == [0] and position(runtime) == 8
    log.high_watermark = 9
    runtime.receive((HighWatermarkMoved(ID, 9, 9),))
    alarm.pass_to(2 * FOLLOW_MS)
    assert log.read_from == [0, 8] and position(runtime) == 9


def test_one_that_is_elected_meanwhile_reads_at_once(
    runtime: CoordinatorRuntime[Any, Any, Any], log: ReplicatedLog, alarm: Alarm
) -> None:
    log.high_watermark = 3
    runtime.receive((HighWatermarkMoved(ID, 3, 3),))
    runtime.receive((LeadershipBegan(ID, 1, 3),))
    assert log.read_from == [0] and position(runtime) == 3
    assert runtime._partitions[ID.partition].coordinator.role is CoordinatorRole.LEADING  # type: ignore[union-attr]
    alarm.pass_to(FOLLOW_MS)
    assert log.read_from == [0], "it had nothing more to read"


def test_one_that_is_about_to_lead_reads_at_once_what_is_replicated_yet(
    runtime: CoordinatorRuntime[Any, Any, Any], log: ReplicatedLog
) -> None:
    log.high_watermark = 1
    runtime.receive((LeadershipBegan(ID, 1, 3),))
    coordinator = runtime.coordinator_of(ID.partition)
    assert coordinator is not None and coordinator.role is CoordinatorRole.LOADING
    log.high_watermark = 3
    runtime.receive((HighWatermarkMoved(ID, 3, 3),))
    assert log.read_from == [0, 1] and coordinator.role is CoordinatorRole.LEADING


def position(runtime: CoordinatorRuntime[Any, Any, Any]) -> int:
    coordinator = runtime.coordinator_of(ID.partition)
    assert coordinator is not None
    return coordinator.position
