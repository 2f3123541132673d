"""Faults to be patched into the machines, by name: what each breaks is said by its name and, where that is not enough, below.

Production code holds no switch for any of them. ``Patch`` is what ``pytest.MonkeyPatch`` offers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.control.session_frames import ControllerEpochGuard
from raylog.log import opening, record_validation, recovery
from raylog.log.log import Log
from raylog.log.producers import ProducerStates
from raylog.log.segment import Segment
from raylog.metadata.partitions import elections, partition_decisions
from raylog.metadata.partitions.elections import Standing
from raylog.raft.messages import AppendReply, VoteReply
from raylog.raft.outbox import Outbox
from raylog.raft.quorum import Quorum
from raylog.raft.state_files import StateFiles
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.follower import Follower
from raylog.replication.host import ReplicaHost
from raylog.replication.leader import Leader
from raylog.replication.produce_requests import ProduceRequests
from raylog.replication.replica import Replica
from raylog.types import Condition

Mutation = Callable[[pytest.MonkeyPatch], None]


def truncate_by_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """What Kafka did before leader epochs: cut to the high watermark, then copy whatever the leader has (TV-21, TV-22)."""
    begin, ask = Follower.__init__, Follower.next_request

    def cut_first(self: Follower, *arguments: Any) -> None:
        begin(self, *arguments)
        self.log.truncate_to(self.log.high_watermark)
        self.replica.flushing.truncated()

    patch.setattr(Follower, "__init__", cut_first)
    patch.setattr(Follower, "next_request", lambda self, *rest: replace(ask(self, *rest), last_fetched_epoch=-1))


def acknowledge_before_the_isr_has_it(patch: pytest.MonkeyPatch) -> None:
    produce = ProduceRequests.received
    patch.setattr(
        ProduceRequests,
        "received",
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


def forget_controller_fencing(patch: pytest.MonkeyPatch) -> None:
    """Whoever says that it is the controller is believed, whatever its epoch."""
    patch.setattr(ControllerEpochGuard, "accepts", lambda self, frame: True)
    patch.setattr(ReplicaHost, "admit_controller", lambda self, controller_epoch: True)


def ignore_the_partition_epoch(patch: pytest.MonkeyPatch) -> None:
    alter = partition_decisions.PartitionDecisions.alter

    def altered(self: Any, session: Any, request: Any, *rest: Any) -> Any:
        topic = self._ledger.latest.topics.get(request.topic_id)
        state = topic.partitions.get(request.partition) if topic is not None else None
        if state is not None:
            request = replace(request, partition_epoch=state.partition_epoch)
        return alter(self, session, request, *rest)

    patch.setattr(partition_decisions.PartitionDecisions, "alter", altered)


def skip_the_recovery_scan(patch: pytest.MonkeyPatch) -> None:
    """After an unclean stop the files are taken as they are: the log ends where its last whole batch does, and nothing is cut."""

    def recovered(segments: list[Segment], files: Any, **known: Any) -> int:
        for segment in segments:
            recovery._trust_indexes(segment, known["config"], known["report"])
        end_offset = segments[-1].base_offset
        try:
            for _, batch in segments[-1].scan():
                end_offset = batch.next_offset
        except (CorruptBatch, UnsupportedMagic):
            pass
        known["report"].condition = Condition.WHOLE
        return end_offset

    patch.setattr(opening, "recover_segments", recovered)


def reuse_a_producer_sequence(patch: pytest.MonkeyPatch) -> None:
    """A batch that comes again is not recognised by its sequence number."""
    judge = ProducerStates.judge

    def forgetful(self: ProducerStates, batches: Any, **known: Any) -> None:
        judge(self, list(batches), **known)

    patch.setattr(ProducerStates, "judge", forgetful)


def keep_a_leader_epoch_across_a_restart(patch: pytest.MonkeyPatch) -> None:
    leave, lead = elections._leaderless, elections.led_by

    def left(state: Any) -> Any:
        return replace(leave(state), leader_epoch=state.leader_epoch)

    def led(state: Any, leader: int, *rest: Any, **settings: Any) -> Any:
        after = lead(state, leader, *rest, **settings)
        return replace(after, leader_epoch=state.leader_epoch) if leader == state.last_known_leader else after

    patch.setattr(elections, "_leaderless", left)
    patch.setattr(elections, "led_by", led)


def send_the_next_fetch_before_the_append(patch: pytest.MonkeyPatch) -> None:
    """Its offset is where the log will end, and promises what is not there yet."""
    ask = Follower.next_request

    def early(self: Follower, *rest: Any) -> Any:
        request = ask(self, *rest)
        return replace(request, fetch_offset=max(request.fetch_offset, self.log.high_watermark + 1))

    patch.setattr(Follower, "next_request", early)


def accept_an_old_incarnation_into_the_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Replica,
        "follower_progress",
        lambda self, request: self.leader.followers.get(request.replica_id),
    )
    patch.setattr(partition_decisions.PartitionDecisions, "_may_be_in_sync", staticmethod(lambda *arguments: True))


def elect_a_suspect_replica(patch: pytest.MonkeyPatch) -> None:
    opened = elections.opened

    def trusting(state: Any, broker_id: int, incarnation: int, status: Any) -> Any:
        return opened(state, broker_id, incarnation, replace(status, condition=Condition.WHOLE))

    patch.setattr(elections, "opened", trusting)


def elect_the_first_that_returns(patch: pytest.MonkeyPatch) -> None:
    """After an unclean stop nobody is heard but the replica that is up first: its log may have been cut at rest."""
    settle = elections.settled

    def settled(state: Any, candidates: Any, **settings: Any) -> Any:
        return settle(state, candidates, **settings | {"wait_for_logs": False})

    patch.setattr(elections, "settled", settled)


def answer_a_quorum_append_before_fsync(patch: pytest.MonkeyPatch) -> None:
    hold = Outbox.say_when_durable

    def hasty(self: Outbox, peer: Any, message: Any, hard_state: Any) -> None:
        if isinstance(message, AppendReply):
            self.say(peer, message)
        else:
            hold(self, peer, message, hard_state)

    patch.setattr(Outbox, "say_when_durable", hasty)


def take_a_metadata_log_that_was_cut_at_rest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateFiles, "read_end", lambda self: None)


def let_a_blank_voter_vote(patch: pytest.MonkeyPatch) -> None:
    """A disk that was replaced has forgotten its votes and entries, and decides elections all the same."""
    answer = Quorum._on_vote_request

    def voting(self: Quorum, sender: Any, message: Any, now_ms: int) -> None:
        if self.voters:
            answer(self, sender, message, now_ms)
        elif message.pre_vote:
            self._outbox.say(sender, VoteReply(message.term, granted=True, pre_vote=True))
        elif self.voted_for in (None, sender):
            self.voted_for = sender
            self._say_when_durable(sender, VoteReply(self.term, granted=True, pre_vote=False))

    patch.setattr(Quorum, "_on_vote_request", voting)


def advance_the_high_watermark_below_the_minimum_isr(patch: pytest.MonkeyPatch) -> None:
    """The ELR is kept: who left the ISR below the minimum may still be elected."""
    advance = Leader.advance_high_watermark

    def advanced(self: Leader) -> None:
        minimum, self.min_isr = self.min_isr, 1
        advance(self)
        self.min_isr = minimum

    patch.setattr(Leader, "advance_high_watermark", advanced)


def compact_up_to_the_log_end(patch: pytest.MonkeyPatch) -> None:
    """A record gives way to one that is not committed, and may be cut away itself."""
    patch.setattr(Log, "stable_end_offset", property(lambda self: self.log_end_offset))


def compact_without_flushing(patch: pytest.MonkeyPatch) -> None:
    """What takes the place of older segments is not on the disk when they go."""

    def unflushed(self: Segment) -> None:
        if not self.suffix:
            flush(self)

    flush = Segment.flush
    patch.setattr(Segment, "flush", unflushed)


def take_records_unread(patch: pytest.MonkeyPatch) -> None:
    """A batch whose CRC is right is appended, whatever its records are."""
    patch.setattr(record_validation, "record_faults", lambda *_, **__: None)


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        truncate_by_high_watermark,
        acknowledge_before_the_isr_has_it,
        elect_outside_the_isr,
        forget_controller_fencing,
        ignore_the_partition_epoch,
        skip_the_recovery_scan,
        reuse_a_producer_sequence,
        keep_a_leader_epoch_across_a_restart,
        send_the_next_fetch_before_the_append,
        accept_an_old_incarnation_into_the_isr,
        elect_a_suspect_replica,
        elect_the_first_that_returns,
        answer_a_quorum_append_before_fsync,
        take_a_metadata_log_that_was_cut_at_rest,
        let_a_blank_voter_vote,
        advance_the_high_watermark_below_the_minimum_isr,
        compact_up_to_the_log_end,
        compact_without_flushing,
        take_records_unread,
    )
}
