"""Faults to be patched into leaders, followers and controllers, by name, as in ``mutations``: who leads, who is in sync, who votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.metadata.partitions import elections, partition_decisions, reassignments
from raylog.metadata.partitions.elections import Candidates, Standing
from raylog.metadata.records import PartitionState
from raylog.raft.messages import QuorumRole, VoteReply
from raylog.raft.outbox import Outbox
from raylog.raft.quorum import Quorum
from raylog.replication import host
from raylog.replication.flushing import Flushing
from raylog.replication.follower import Follower
from raylog.replication.isr import InSyncReplicas
from raylog.replication.leader import FollowerProgress, Leader
from raylog.replication.listed_offsets import list_offset
from raylog.replication.parked import Watchers
from raylog.replication.replica import Replica

Mutation = Callable[[pytest.MonkeyPatch], None]


# ---------------------------------------------------------------------- leaders and followers


def leave_the_fetch_epoch_unchecked(patch: pytest.MonkeyPatch) -> None:
    """A fetch of an older leader epoch counts in this one."""
    validate = Replica.validate_fetch

    def any_epoch(self: Replica, request: Any, *, follower: bool) -> Any:
        return validate(self, replace(request, current_leader_epoch=-1), follower=follower)

    patch.setattr(Replica, "validate_fetch", any_epoch)


def park_produces_over_a_deposition(patch: pytest.MonkeyPatch) -> None:
    """Who waits for acks=all goes on waiting at the follower, whose high watermark rises over other records."""
    refuse = Watchers.refuse_all

    def patient(self: Watchers, error: int, message: str | None = None, hint: Any = None) -> None:
        waiting, self.by_high_watermark = self.by_high_watermark, type(self.by_high_watermark)()
        refuse(self, error, message, hint)
        if hint is not None:
            self.by_high_watermark = waiting

    patch.setattr(Watchers, "refuse_all", patient)


def take_a_follower_in_before_the_epochs_start(patch: pytest.MonkeyPatch) -> None:
    """It has reached the high watermark, which a new leader may not know yet."""

    def expand(self: Leader, progress: FollowerProgress, now_ms: int) -> None:
        caught_up = progress.log_end_offset >= self.log.high_watermark
        if caught_up and self.replica.context.connected and self.isr.may_ask(now_ms):
            self._ask((*self.isr.maximal, progress.broker_id))

    patch.setattr(Leader, "_maybe_expand", expand)


def take_a_lagging_follower_in(patch: pytest.MonkeyPatch) -> None:
    def expand(self: Leader, progress: FollowerProgress, now_ms: int) -> None:
        if self.replica.context.connected and self.isr.may_ask(now_ms):
            self._ask((*self.isr.maximal, progress.broker_id))

    patch.setattr(Leader, "_maybe_expand", expand)


def advance_the_high_watermark_without_the_asked(patch: pytest.MonkeyPatch) -> None:
    """By the committed ISR, though the controller may have taken in whom it was asked for."""
    note = Leader._note_isr

    def committed(self: Leader) -> None:
        maximal, self.isr.maximal = self.isr.maximal, self.isr.committed
        note(self)
        self.isr.maximal = maximal

    patch.setattr(Leader, "_note_isr", committed)


def forget_isr_questions_with_the_session(patch: pytest.MonkeyPatch) -> None:
    """The controller may have carried out what it was asked before the session was lost."""
    changed = InSyncReplicas.session_changed

    def forgetful(self: InSyncReplicas) -> None:
        changed(self)
        self.uncertain = False
        self.maximal = self.committed

    patch.setattr(InSyncReplicas, "session_changed", forgetful)


def take_an_isr_answer_for_that_of_the_known_epoch(patch: pytest.MonkeyPatch) -> None:
    """The partition has changed, perhaps as asked, and the leader goes by the ISR that it knew."""
    answered = InSyncReplicas.answered

    def known(self: InSyncReplicas, answer: Any, now_ms: int, *, backoff_ms: int) -> bool:
        return answered(self, replace(answer, partition_epoch=self.partition_epoch), now_ms, backoff_ms=backoff_ms)

    patch.setattr(InSyncReplicas, "answered", known)


def take_the_answer_to_another_isr_question(patch: pytest.MonkeyPatch) -> None:
    answered = InSyncReplicas.answered

    def anybodys(self: InSyncReplicas, answer: Any, now_ms: int, *, backoff_ms: int) -> bool:
        mine = answer if self.in_flight is None else replace(answer, request_id=self.in_flight)
        return answered(self, mine, now_ms, backoff_ms=backoff_ms)

    patch.setattr(InSyncReplicas, "answered", anybodys)


def cut_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower's own one lags: records above it may be acknowledged, and be on the new leader too."""
    patch.setattr(Follower, "_cut", lambda self, leader_epoch, leader_end: self._truncate(self.log.high_watermark))


def cut_to_where_the_leader_ends_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """Though this log may end that epoch earlier, or not know it."""

    def cut(self: Follower, leader_epoch: int, leader_end: int) -> None:
        self._truncate(min(leader_end, self.log.log_end_offset))

    patch.setattr(Follower, "_cut", cut)


def trust_a_suspect_log_at_its_first_fetch(patch: pytest.MonkeyPatch) -> None:
    """Before it holds again what it lost."""
    patch.setattr(Follower, "_holds_all", lambda self, leader_high_watermark: True)


def complete_appends_before_their_flush(patch: pytest.MonkeyPatch) -> None:
    """Where flush.messages demands one."""
    appended = Flushing.appended

    def hasty(self: Flushing, now_ms: int) -> None:
        appended(self, now_ms)
        self.completed_end = self.log.log_end_offset

    patch.setattr(Flushing, "appended", hasty)
    patch.setattr(Flushing, "flushed", lambda self, log_end_offset: setattr(self, "in_flight_end", None))
    patch.setattr(Flushing, "check", lambda self: None)


def list_offsets_that_are_not_committed(patch: pytest.MonkeyPatch) -> None:
    def uncommitted(replica: Replica, request: Any, of: Any, **how: Any) -> Any:
        return list_offset(replica, request, replace(of, replica_id=replica.context.broker_id), **how)

    patch.setattr(host, "list_offset", uncommitted)


def acknowledge_deletions_before_the_followers(patch: pytest.MonkeyPatch) -> None:
    """A follower that is elected next shows the deleted records again."""
    patch.setattr(Leader, "low_watermark", lambda self: self.log.log_start_offset)


# ---------------------------------------------------------------------- elections


def keep_the_elr_on_a_changed_minimum(patch: pytest.MonkeyPatch) -> None:
    """What it promised was said of another minimum."""
    keep = lambda state, *, min_isr: replace(state, partition_epoch=state.partition_epoch + 1)  # noqa: E731
    patch.setattr(elections, "with_other_minimum", keep)


def keep_the_isr_beside_an_elected_elr_member(patch: pytest.MonkeyPatch) -> None:
    """The former ISR may lack what nobody but the elected has."""
    lead = elections.led_by

    def led(state: PartitionState, leader: int, candidates: Candidates, isr: Any, *rest: Any, **how: Any) -> Any:
        if leader in state.elr and leader not in state.isr:
            isr = (*(member for member in state.isr), leader)
        return lead(state, leader, candidates, isr, *rest, **how)

    patch.setattr(elections, "led_by", led)


def make_everybody_eligible_who_was_in_sync(patch: pytest.MonkeyPatch) -> None:
    """Whoever leaves the ISR stays eligible, though the high watermark goes on without it."""

    def eligible(state: PartitionState, isr: tuple[int, ...], min_isr: int) -> tuple[int, ...]:
        former = set(state.isr) | set(state.elr)
        return tuple(broker for broker in state.brokers if broker in former and broker not in isr)

    patch.setattr(elections, "_eligible", eligible)


def elect_the_last_known_leader_over_the_isr(patch: pytest.MonkeyPatch) -> None:
    elect = elections._elected

    def elected(state: PartitionState, candidates: Candidates, min_isr: int, *rest: Any) -> Any:
        last = state.last_known_leader
        if last in candidates and candidates[last].standing is Standing.LIVE:
            return elections.led_by(state, last, candidates, tuple({*state.isr, last}), min_isr)
        return elect(state, candidates, min_isr, *rest)

    patch.setattr(elections, "_elected", elected)


def let_the_dead_leave_an_isr_that_nobody_leads(patch: pytest.MonkeyPatch) -> None:
    """Who comes back first leads, whether or not it was the last one in sync."""
    leave = elections._leaderless

    def left(state: PartitionState) -> PartitionState:
        after = leave(state)
        return after if after is state else replace(after, isr=(), elr=())

    patch.setattr(elections, "_leaderless", left)


def ignore_the_record_of_high_watermarks(patch: pytest.MonkeyPatch) -> None:
    """When the wait for the others is over an old copy of a log leads, though the controllers know that it lacks records."""
    settle = elections.settled

    def settled(state: PartitionState, candidates: Candidates, **settings: Any) -> PartitionState:
        return settle(state, candidates, **settings | {"noted": None})

    patch.setattr(elections, "settled", settled)


def complete_a_reassignment_before_the_new_are_in_sync(patch: pytest.MonkeyPatch) -> None:
    complete = reassignments.completed

    def completed(state: PartitionState, candidates: Candidates, *, min_insync_replicas: int) -> PartitionState:
        if not reassignments.is_under_way(state) or not state.adding:
            return complete(state, candidates, min_insync_replicas=min_insync_replicas)
        live = tuple(b for b in state.adding if candidates[b].standing is Standing.LIVE and b not in state.isr)
        return complete(replace(state, isr=(*state.isr, *live)), candidates, min_insync_replicas=min_insync_replicas)

    patch.setattr(partition_decisions.reassignments, "completed", completed)


def keep_the_epoch_of_a_replica_that_comes_back(patch: pytest.MonkeyPatch) -> None:
    """A fetch that it sent before it was moved away counts for the empty log that it has now."""
    start = reassignments.started
    patch.setattr(
        reassignments, "started", lambda state, wanted, *, renews_epoch=False: start(state, wanted, renews_epoch=False)
    )


# ---------------------------------------------------------------------- the quorum


def vote_before_the_vote_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A voter that crashes may vote for somebody else in the same term."""
    hold = Outbox.say_when_durable

    def hasty(self: Outbox, peer: Any, message: Any, hard_state: Any) -> None:
        if isinstance(message, VoteReply):
            self.say(peer, message)
        else:
            hold(self, peer, message, hard_state)

    patch.setattr(Outbox, "say_when_durable", hasty)


def commit_entries_of_older_terms_by_counting(patch: pytest.MonkeyPatch) -> None:
    """A majority has them, and a later leader may cut them all the same (Raft, figure 8)."""
    maybe = Quorum._maybe_commit

    def counting(self: Quorum, now_ms: int) -> None:
        matched = self._followers.majority(self.voters, self.log.persisted_index, lambda progress: progress.match_index)
        if matched > self.commit_index and self.log.term_at(matched) != self.term:
            self.commit_index = matched
            self._broadcast(now_ms, heartbeat=True)
        maybe(self, now_ms)

    patch.setattr(Quorum, "_maybe_commit", counting)


def vote_twice_in_a_term(patch: pytest.MonkeyPatch) -> None:
    answer = Quorum._on_vote_request

    def generous(self: Quorum, sender: Any, message: Any, now_ms: int) -> None:
        if not message.pre_vote and self.role is QuorumRole.FOLLOWER:
            self.voted_for = None
        answer(self, sender, message, now_ms)

    patch.setattr(Quorum, "_on_vote_request", generous)


def vote_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    answer = Quorum._on_vote_request

    def generous(self: Quorum, sender: Any, message: Any, now_ms: int) -> None:
        answer(self, sender, replace(message, last_term=1 << 40), now_ms)

    patch.setattr(Quorum, "_on_vote_request", generous)


LEADERSHIP_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        leave_the_fetch_epoch_unchecked,
        park_produces_over_a_deposition,
        take_a_follower_in_before_the_epochs_start,
        take_a_lagging_follower_in,
        advance_the_high_watermark_without_the_asked,
        forget_isr_questions_with_the_session,
        take_an_isr_answer_for_that_of_the_known_epoch,
        take_the_answer_to_another_isr_question,
        cut_to_the_high_watermark,
        cut_to_where_the_leader_ends_an_epoch,
        trust_a_suspect_log_at_its_first_fetch,
        complete_appends_before_their_flush,
        list_offsets_that_are_not_committed,
        acknowledge_deletions_before_the_followers,
        keep_the_elr_on_a_changed_minimum,
        keep_the_isr_beside_an_elected_elr_member,
        make_everybody_eligible_who_was_in_sync,
        elect_the_last_known_leader_over_the_isr,
        let_the_dead_leave_an_isr_that_nobody_leads,
        ignore_the_record_of_high_watermarks,
        complete_a_reassignment_before_the_new_are_in_sync,
        keep_the_epoch_of_a_replica_that_comes_back,
        vote_before_the_vote_is_durable,
        commit_entries_of_older_terms_by_counting,
        vote_twice_in_a_term,
        vote_for_a_shorter_log,
    )
}
