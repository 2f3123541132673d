"""Faults to be patched into moves between actors, by name, as in ``mutations``: who lets go, who leads meanwhile, who is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.metadata.active import ActiveController
from raylog.metadata.actors.actor_removals import Departures
from raylog.metadata.ledger import LetGo
from raylog.metadata.partitions import moves
from raylog.metadata.partitions.announcements import Announcements
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.records import PartitionState
from raylog.replication.folders import Folders
from raylog.replication.replica import Replica

Mutation = Callable[[pytest.MonkeyPatch], None]


def release_only_when_a_move_is_committed(patch: pytest.MonkeyPatch) -> None:
    """Who was out of sight then is never told again."""
    greet = Announcements.to_session

    def greeted(self: Announcements, session: Any, **settings: Any) -> Any:
        session.releasing.clear()
        return greet(self, session, **settings)

    patch.setattr(Announcements, "to_session", greeted)


def never_release_what_is_moved(patch: pytest.MonkeyPatch) -> None:
    release = ActiveController._release

    def released(self: ActiveController, held: Any, already_sent: Any) -> None:
        release(self, [each for each in held if not isinstance(each, LetGo)], already_sent)

    patch.setattr(ActiveController, "_release", released)


def forget_the_openings_of_a_former_holder(patch: pytest.MonkeyPatch) -> None:
    """Its hello names only what is open, and an opening that is reported later is not answered."""
    take = ActiveController._take_stock

    def taken(self: ActiveController, session: Any, hello: Any, admission: Any) -> None:
        take(self, session, replace(hello, unopened=()), admission)

    patch.setattr(ActiveController, "_take_stock", taken)


def dismiss_an_actor_before_it_has_let_go(patch: pytest.MonkeyPatch) -> None:
    def moved_away(self: Departures, node_ids: Any) -> None:
        for node_id in node_ids:
            session = self._sessions.of_node(node_id)
            if session is not None:
                session.releasing.clear()
                self._dismiss_if_idle(session)

    patch.setattr(Departures, "moved_away", moved_away)


def move_a_leader_without_another_epoch(patch: pytest.MonkeyPatch) -> None:
    """The new process leads on in the epoch of the old one."""
    move = PartitionDecisions.move

    def moved(self: PartitionDecisions, id: Any, slot: Any, node_id: int, now_ms: int) -> None:
        latest = self._ledger.latest
        state = latest.partition(id)
        if state is None or state.leader != slot.broker_id:
            move(self, id, slot, node_id, now_ms)
            return
        incarnation = latest.actors[node_id].incarnation
        slots = tuple(
            replace(each, node_id=node_id, admitted=incarnation) if each == slot else each for each in state.replicas
        )
        after = replace(
            state, replicas=slots, leader_incarnation=incarnation, partition_epoch=state.partition_epoch + 1
        )
        self._change(latest.topics[id.topic_id], id, state, after)

    patch.setattr(PartitionDecisions, "move", moved)


def trust_whatever_a_moved_replica_finds(patch: pytest.MonkeyPatch) -> None:
    """The new process counts for the one that was judged."""
    move = moves.moved

    def moved(state: PartitionState, broker_id: int, node_id: int, candidates: Any, **settings: Any) -> PartitionState:
        after = move(state, broker_id, node_id, candidates, **settings)
        slots = tuple(replace(each, admitted=0) if each.broker_id == broker_id else each for each in after.replicas)
        return replace(after, replicas=slots)

    patch.setattr(moves, "moved", moved)


def keep_the_epoch_of_a_replica_that_moves(patch: pytest.MonkeyPatch) -> None:
    """A fetch of the time when the new process had it before counts."""
    move = moves.moved

    def moved(state: PartitionState, broker_id: int, node_id: int, candidates: Any, **settings: Any) -> PartitionState:
        after = move(state, broker_id, node_id, candidates, **settings)
        return after if state.leader == broker_id else replace(after, leader_epoch=state.leader_epoch)

    patch.setattr(moves, "moved", moved)


def delete_the_folder_of_what_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "let_go", lambda self: self.remove())


def open_what_was_released_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """An opening that is under way when the Release comes goes on."""
    release = Folders.release

    def released(self: Folders, id: Any) -> None:
        replica = self._replicas.get(id)
        if replica is None or not replica.is_opening:
            release(self, id)

    patch.setattr(Folders, "release", released)


MOVE_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        release_only_when_a_move_is_committed,
        never_release_what_is_moved,
        forget_the_openings_of_a_former_holder,
        dismiss_an_actor_before_it_has_let_go,
        move_a_leader_without_another_epoch,
        trust_whatever_a_moved_replica_finds,
        keep_the_epoch_of_a_replica_that_moves,
        delete_the_folder_of_what_is_released,
        open_what_was_released_meanwhile,
    )
}
