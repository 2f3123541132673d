"""A group machine has read what was replicated. Where its log is cut below that, it forgets everything and reads anew."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.control.session import Assignment, Removal, ReplicaDamaged
from raylog.coordination.runtime import FOLLOW_MS, CoordinatorRuntime
from raylog.groups.machine import GroupKind
from raylog.groups.records import GroupRecord, OffsetKey, OffsetValue, encode
from raylog.groups.requests import FetchedOffset, OffsetFetch, OffsetsFetched
from raylog.log.log import Log
from raylog.offsets_topic import OFFSETS_TOPIC
from raylog.records.codec import RecordBatchBuilder
from raylog.replication.events import DamageSuspected, Effect, Event, OwnAppend, ProducePartition, Removed
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts
from raylog.types import TopicPartition

PARTITIONS = tuple(TopicPartition("t", number) for number in range(4))


class _Clock:
    """Nothing here waits for the time; what is due at once or soon is done at the next look."""

    def __init__(self) -> None:
        self.due: list[Callable[[], Any]] = []
        self.later: list[Callable[[], Any]] = []

    def now_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return WALL_MS

    def call_later(self, delay_ms: int, work: Callable[[], Any]) -> _Clock:
        if delay_ms <= FOLLOW_MS:
            self.due.append(work)
        else:
            self.later.append(work)
        return self

    def cancel(self) -> None:
        pass


class Coordinators(Hosts):
    """Hosts of one partition of ``__consumer_offsets``, of which the last one's process coordinates groups."""

    def __init__(self, brokers: tuple[int, ...]) -> None:
        self.coordinates = brokers[-1]
        self.clock = _Clock()
        self.groups: CoordinatorRuntime[Any, Any, Any] | None = None
        self.holds = False
        super().__init__(brokers, watched_topics=("topic7",))
        self.groups = CoordinatorRuntime(GroupKind(new_uuid=uuid.uuid4), self, self.clock)

    def hold(self, assignment: Assignment) -> None:
        assert self.groups is not None
        self.groups.hear(replace(assignment, topic=OFFSETS_TOPIC))
        self.holds = True
        self.look()

    def look(self) -> None:
        """Feed the coordinators what the replicas' machine has reported since."""
        assert self.groups is not None
        while self.leaderships:
            broker, effect = self.leaderships.pop(0)
            if broker == self.coordinates:
                self.groups.receive((effect,))
        while self.clock.due:
            self.clock.due.pop(0)()

    def handle(self, broker: int, event: Event) -> list[Effect]:
        effects = super().handle(broker, event)
        if self.holds and broker == self.coordinates:
            self.look()
        return effects

    def commit(self, broker: int, partition: int, offset: int) -> None:
        record = GroupRecord(OffsetKey("g", "t", partition), OffsetValue(offset, -1, "", WALL_MS))
        builder = RecordBatchBuilder()
        key, value = encode(record)
        builder.append(timestamp_ms=WALL_MS, key=key, value=value)
        leader = self.host(broker).replicas[P0].leader
        assert leader is not None
        part = ProducePartition(P0, bytes(builder.build()))
        self.handle(broker, OwnAppend(self.token(), part, leader.leader_epoch))
        self.run()
        self.advance(1_000)

    def committed(self) -> dict[int, int]:
        """What a client of the group hears from this coordinator."""
        assert self.groups is not None
        answers: list[Any] = []
        self.groups.ask(0, OffsetFetch("g", PARTITIONS), answers.append)
        (fetched,) = answers
        assert isinstance(fetched, OffsetsFetched) and not fetched.error, fetched
        found = [each for each in fetched.partitions if isinstance(each, FetchedOffset)]
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def restart_cut(self, broker: int, offset: int) -> None:
        """Its process comes back, and its log has lost what lies above the offset."""
        known = self.log(broker)
        self.kill(broker)
        log = Log.open(
            known.directory,
            files=self.disks[broker].files(),
            config=known.config,
            topic="t",
            partition=0,
            topic_id=known.topic_id,
            now_ms=WALL_MS,
            boot_id="boot",
        )
        log.truncate_to(offset)
        log.close()
        self.start(broker)
        self.run()

    # what ``Replicas`` asks of a process
    def suspect(self, id: Any, offset: int) -> None:
        self.handle(self.coordinates, DamageSuspected(id, offset))

    def log(self, id: Any = P0, *rest: Any) -> Any:
        if isinstance(id, int):
            return super().log(id, *rest)
        replica = self.host(self.coordinates).replicas.get(id)
        return replica.log if replica is not None else None


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_follower_whose_log_is_cut_reads_what_is_in_it_now(is_cut: bool) -> None:
    """After an unclean election what a follower has read may be in nobody's log any more."""
    hosts = Coordinators((1, 2))
    hosts.hold(hosts.assign(1, (1, 2)))
    hosts.commit(1, 0, 10)
    hosts.commit(1, 1, 11)
    coordinator = hosts.groups and hosts.groups.coordinator_of(0)
    assert coordinator is not None and coordinator.position == 2
    if is_cut:
        hosts.restart_cut(1, 1)
    hosts.assign(1, (1,), epoch=1)
    hosts.commit(1, 2, 12)
    hosts.assign(2, (2, 1), epoch=2)
    hosts.advance(1_000)
    assert hosts.committed() == {0: 10, 2: 12} | ({} if is_cut else {1: 11})


def test_a_leader_whose_log_is_another_one_reads_it_from_its_start() -> None:
    hosts = Coordinators((1,))
    assignment = hosts.assign(1, (1,))
    hosts.hold(assignment)
    hosts.commit(1, 0, 10)
    hosts.assign(1, (1,), epoch=1)
    assert hosts.committed() == {0: 10}
    hosts.handle(1, Removed(Removal(1, *P0)))
    hosts.assign(1, (1,), epoch=2)
    assert hosts.committed() == {}
    hosts.commit(1, 1, 11)
    hosts.assign(1, (1,), epoch=3)
    assert hosts.committed() == {1: 11}


@pytest.mark.parametrize("offset", [0, 1])
def test_a_log_with_damaged_bytes_is_reported_and_read_once_it_was_copied_anew(offset: int) -> None:
    hosts = Coordinators((1, 2))
    assignment = hosts.assign(1, (1, 2))
    for number in range(3):
        hosts.commit(1, number, 10 + number)
    segment = hosts.log(2).segments.active
    found = segment.locate(offset)
    assert found is not None
    hosts.disks[2].flip_bit(f"{segment.path}.log", found[0] + 70)
    hosts.log(2).recent.clear()
    hosts.hold(assignment)
    (told,) = [frame for frame in hosts.told[2] if isinstance(frame, ReplicaDamaged)]
    assert f"offset {offset}" in told.damage
    coordinator = hosts.groups and hosts.groups.coordinator_of(0)
    assert coordinator is not None and coordinator.position <= offset, "nothing was read over"
    hosts.assign(1, (1,), epoch=1)
    while hosts.clock.later:
        hosts.clock.later.pop()()
    hosts.assign(2, (2, 1), epoch=2)
    hosts.advance(1_000)
    assert hosts.committed() == {0: 10, 1: 11, 2: 12}
