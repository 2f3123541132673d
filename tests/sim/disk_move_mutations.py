"""Faults to be patched into moves of replicas between the disks of a broker, by name, as in ``mutations``: when a copy may take
the replica's place, what counts meanwhile, what becomes of the folders.

They are hunted in the runs whose brokers have two disks each (``raylog.simulator.second_disks``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.metadata.actors import disk_moves
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.partitions.reassignment_decisions import Reassignments
from raylog.metadata.records import PartitionState, ReplicaSlot
from raylog.replication.isr import InSyncReplicas
from raylog.replication.leader import Leader
from raylog.replication.replica import Replica
from raylog.server.apis import log_dirs
from raylog.types import TopicIdPartition, broker_of_future, is_future

Mutation = Callable[[pytest.MonkeyPatch], None]


def switch_before_the_copy_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    """The leader asks it in at its first fetch."""
    take_in = Leader._maybe_take_in

    def taken_in(self: Leader, progress: Any, now_ms: int, *, is_near: bool) -> None:
        end, progress.log_end_offset = progress.log_end_offset, 1 << 62
        take_in(self, progress, now_ms, is_near=True)
        progress.log_end_offset = end

    patch.setattr(Leader, "_maybe_take_in", taken_in)


def acknowledge_while_the_leader_moves(patch: pytest.MonkeyPatch) -> None:
    """Records with acks=1 are appended while the leader asks its own copy in."""
    patch.setattr(Leader, "holds", lambda self, acks: False)


def let_go_of_what_is_held_with_the_session(patch: pytest.MonkeyPatch) -> None:
    """The controller may have decided that the copy leads."""
    change = Leader.session_changed

    def changed(self: Leader, now_ms: int) -> None:
        if self.arrival is not None and not self.replica.context.connected:
            self.arrival.is_own = False
            self.replica.context.changed[self.replica.id] = None
        change(self, now_ms)

    patch.setattr(Leader, "session_changed", changed)


def switch_without_waiting_for_the_copy(patch: pytest.MonkeyPatch) -> None:
    """What the leader commits while it asks the copy in, the copy may lack."""
    ask = InSyncReplicas.asked

    def asked(self: InSyncReplicas, request_id: int, members: tuple[int, ...]) -> None:
        ask(self, request_id, tuple(member for member in members if not is_future(member)))

    patch.setattr(InSyncReplicas, "asked", asked)


def take_in_another_process_than_the_one_that_caught_up(patch: pytest.MonkeyPatch) -> None:
    """Whichever runs on the node of the copy now."""
    alter = PartitionDecisions.alter

    def altered(self: PartitionDecisions, session: Any, request: Any, now_ms: int) -> Any:
        latest = self._ledger.latest
        state = latest.partition(TopicIdPartition(request.topic_id, request.partition))
        members = []
        for member, incarnation in request.isr:
            future = state.future(broker_of_future(member)) if state is not None and is_future(member) else None
            actor = latest.actors.get(future.node_id) if future is not None else None
            members.append((member, incarnation if actor is None else actor.incarnation))
        return alter(self, session, replace(request, isr=tuple(members)), now_ms)

    patch.setattr(PartitionDecisions, "alter", altered)


def lead_on_from_another_disk_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    arrive = disk_moves.arrived

    def arrived(state: PartitionState, broker_id: int, incarnation: int) -> PartitionState:
        return replace(arrive(state, broker_id, incarnation), leader_epoch=state.leader_epoch)

    patch.setattr(disk_moves, "arrived", arrived)


def leave_the_isr_with_the_old_copy(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes to another disk has to join the ISR anew, unless it leads."""
    arrive = disk_moves.arrived

    def arrived(state: PartitionState, broker_id: int, incarnation: int) -> PartitionState:
        after = arrive(state, broker_id, incarnation)
        if broker_id == state.leader:
            return after
        return replace(after, isr=tuple(member for member in after.isr if member != broker_id))

    patch.setattr(disk_moves, "arrived", arrived)


def delete_the_old_folder_when_the_copy_begins(patch: pytest.MonkeyPatch) -> None:
    """Not in the decision by which the copy takes the place."""
    move = Reassignments.move_to_disks

    def moved(self: Reassignments, request: Any, now_ms: int) -> Any:
        answer = move(self, request, now_ms)
        latest = self._ledger.latest
        for wanted in request.replicas:
            topic = latest.topic_named(wanted.topic)
            state = topic.partitions.get(wanted.partition) if topic is not None else None
            if topic is not None and state is not None and state.future(request.broker_id) is not None:
                slot = state.slot(request.broker_id)
                id = TopicIdPartition(topic.topic_id, wanted.partition)
                assert slot is not None
                self._partitions._dismiss(topic, id, slot)
        return answer

    patch.setattr(Reassignments, "move_to_disks", moved)


def keep_the_old_folder_behind_a_move(patch: pytest.MonkeyPatch) -> None:
    _keep_folders(patch, lambda before, slot: slot in before.replicas)


def keep_the_folder_of_a_copy_that_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    _keep_folders(patch, lambda before, slot: slot in before.futures)


def _keep_folders(patch: pytest.MonkeyPatch, keeps: Callable[[PartitionState, ReplicaSlot], bool]) -> None:
    """Of brokers that go on with a replica on another disk."""
    change, dismiss = PartitionDecisions._change, PartitionDecisions._dismiss
    former: list[PartitionState] = []

    def changed(self: PartitionDecisions, topic: Any, id: Any, before: PartitionState, after: PartitionState) -> None:
        former[:] = [before]
        change(self, topic, id, before, after)

    def dismissed(self: PartitionDecisions, topic: Any, id: Any, slot: ReplicaSlot) -> None:
        state = self._ledger.latest.partition(id)
        if state is None or state.slot(slot.broker_id) is None or not keeps(former[0], slot):
            dismiss(self, topic, id, slot)

    patch.setattr(PartitionDecisions, "_change", changed)
    patch.setattr(PartitionDecisions, "_dismiss", dismissed)


def name_the_copy_like_the_replica(patch: pytest.MonkeyPatch) -> None:
    """The leader takes the one for the other."""
    patch.setattr(disk_moves, "shown", lambda future: future)


def never_give_a_lost_copy_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionDecisions, "_without_lost_futures", lambda self, topic, id, state: state)


def give_a_copy_up_that_is_out_of_sight(patch: pytest.MonkeyPatch) -> None:
    """So does a new controller with all of them."""
    lose = PartitionDecisions._without_lost_futures

    def lost(self: PartitionDecisions, topic: Any, id: Any, state: PartitionState) -> PartitionState:
        after = state
        for future in state.futures:
            if future.node_id in self._ledger.latest.actors and self._sessions.of_node(future.node_id) is None:
                after = disk_moves.given_up(after, future.broker_id)
        self._change(topic, id, state, after)
        return lose(self, topic, id, after)

    patch.setattr(PartitionDecisions, "_without_lost_futures", lost)


def keep_the_epoch_of_a_copy_in_a_process_that_runs(patch: pytest.MonkeyPatch) -> None:
    """A fetch of the time when that process had the replica before counts."""
    start = disk_moves.started
    patch.setattr(
        disk_moves, "started", lambda state, future, *, renews_epoch: start(state, future, renews_epoch=False)
    )


def copy_between_disks_without_a_throttle(patch: pytest.MonkeyPatch) -> None:
    note = Replica._note_throttles

    def noted(self: Replica) -> None:
        note(self)
        self.throttles_copying_in = self.throttles_copying_in and not is_future(self.me)

    patch.setattr(Replica, "_note_throttles", noted)


def call_a_copy_the_replica(patch: pytest.MonkeyPatch) -> None:
    """DescribeLogDirs says that a move is complete as soon as it begins."""
    patch.setattr(log_dirs, "is_future_id", lambda broker_id: False)


DISK_MOVE_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        switch_before_the_copy_has_caught_up,
        acknowledge_while_the_leader_moves,
        let_go_of_what_is_held_with_the_session,
        switch_without_waiting_for_the_copy,
        take_in_another_process_than_the_one_that_caught_up,
        lead_on_from_another_disk_in_the_same_epoch,
        leave_the_isr_with_the_old_copy,
        delete_the_old_folder_when_the_copy_begins,
        keep_the_old_folder_behind_a_move,
        keep_the_folder_of_a_copy_that_is_cancelled,
        name_the_copy_like_the_replica,
        never_give_a_lost_copy_up,
        give_a_copy_up_that_is_out_of_sight,
        keep_the_epoch_of_a_copy_in_a_process_that_runs,
        copy_between_disks_without_a_throttle,
        call_a_copy_the_replica,
    )
}
