"""The checkers can fail: each of these faults, patched into the machines, is found by the ordinary random run within a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import summary

from raylog.metadata import elections, partition_decisions
from raylog.metadata.elections import Standing
from raylog.replication.follower import Follower
from raylog.replication.host import ReplicaHost
from raylog.replication.leader import Leader
from raylog.replication.replica import Replica
from raylog.testing.simulation import Simulation

pytestmark = pytest.mark.sim

SEEDS_MAX = 300
FIRST_SEED = 10_000

Patch = Callable[[pytest.MonkeyPatch], None]


def truncate_by_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """What Kafka did before leader epochs: cut to the high watermark, then copy whatever the leader has (TV-21, TV-22)."""
    begin, ask = Follower.__init__, Follower.next_request

    def cut_first(self: Follower, *arguments: Any) -> None:
        begin(self, *arguments)
        self.log.truncate_to(self.log.high_watermark)
        self.replica.flushing.truncated()

    patch.setattr(Follower, "__init__", cut_first)
    patch.setattr(Follower, "next_request", lambda self: replace(ask(self), last_fetched_epoch=-1))


def acknowledge_before_the_isr_has_it(patch: pytest.MonkeyPatch) -> None:
    produce = ReplicaHost._produce
    patch.setattr(
        ReplicaHost,
        "_produce",
        lambda self, event, now_ms, wall_ms: produce(
            self, replace(event, acks=min(1, abs(event.acks))), now_ms, wall_ms
        ),
    )


def elect_outside_the_isr(patch: pytest.MonkeyPatch) -> None:
    elect = elections._elected

    def first_live(state: Any, candidates: Any, min_isr: int, *rest: Any) -> Any:
        live = [broker for broker in state.brokers if candidates[broker].standing is Standing.LIVE]
        if not live or live[0] in state.isr:
            return elect(state, candidates, min_isr, *rest)
        return elections.led_by(state, live[0], candidates, (*state.isr, live[0]), min_isr)

    patch.setattr(elections, "_elected", first_live)


def keep_a_leader_epoch_across_a_restart(patch: pytest.MonkeyPatch) -> None:
    leave, lead = elections._leaderless, elections.led_by

    def left(state: Any) -> Any:
        return replace(leave(state), leader_epoch=state.leader_epoch)

    def led(state: Any, leader: int, *rest: Any, **settings: Any) -> Any:
        after = lead(state, leader, *rest, **settings)
        return replace(after, leader_epoch=state.leader_epoch) if leader == state.last_known_leader else after

    patch.setattr(elections, "_leaderless", left)
    patch.setattr(elections, "led_by", led)


def accept_an_old_incarnation_into_the_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Replica,
        "follower_progress",
        lambda self, request: self.leader.followers.get(request.replica_id),
    )
    patch.setattr(partition_decisions.PartitionDecisions, "_may_be_in_sync", staticmethod(lambda *arguments: True))


def ignore_the_partition_epoch(patch: pytest.MonkeyPatch) -> None:
    alter = partition_decisions.PartitionDecisions.alter

    def altered(self: Any, session: Any, request: Any, *rest: Any) -> Any:
        topic = self._ledger.latest.topics.get(request.topic_id)
        state = topic.partitions.get(request.partition) if topic is not None else None
        if state is not None:
            request = replace(request, partition_epoch=state.partition_epoch)
        return alter(self, session, request, *rest)

    patch.setattr(partition_decisions.PartitionDecisions, "alter", altered)


def elect_a_suspect_replica(patch: pytest.MonkeyPatch) -> None:
    opened = elections.opened

    def trusting(state: Any, broker_id: int, incarnation: int, status: Any) -> Any:
        return opened(state, broker_id, incarnation, replace(status, condition=elections.Condition.WHOLE))

    patch.setattr(elections, "opened", trusting)


def advance_the_high_watermark_below_the_minimum_isr(patch: pytest.MonkeyPatch) -> None:
    advance = Leader.advance_high_watermark

    def advanced(self: Leader) -> None:
        minimum, self.min_isr = self.min_isr, 1
        advance(self)
        self.min_isr = minimum

    patch.setattr(Leader, "advance_high_watermark", advanced)


def promise_more_than_was_appended(patch: pytest.MonkeyPatch) -> None:
    """The next fetch leaves before the append: its offset is where the log will end."""
    ask = Follower.next_request

    def early(self: Follower) -> Any:
        request = ask(self)
        return replace(request, fetch_offset=max(request.fetch_offset, self.log.high_watermark + 1))

    patch.setattr(Follower, "next_request", early)


MUTATIONS: list[Patch] = [
    truncate_by_high_watermark,
    acknowledge_before_the_isr_has_it,
    elect_outside_the_isr,
    keep_a_leader_epoch_across_a_restart,
    accept_an_old_incarnation_into_the_isr,
    ignore_the_partition_epoch,
    elect_a_suspect_replica,
    advance_the_high_watermark_below_the_minimum_isr,
    promise_more_than_was_appended,
]


def found_by(seed: int) -> str | None:
    """What a checker, or an assertion of the machines' own, says. Anything else is a mutation that no longer fits the code."""
    try:
        Simulation(seed).run()
    except AssertionError as error:  # a Violation is one
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutated_machine_is_caught(mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for count in range(1, SEEDS_MAX + 1):
        found = found_by(FIRST_SEED + count)
        if found is not None:
            summary.further.append(f"caught after {count:3d} seeds: {mutation.__name__}: {found[:120]}")
            return
    pytest.fail(f"{mutation.__name__} passed {SEEDS_MAX} seeds")
