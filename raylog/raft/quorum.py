"""Raft as a pure machine, in etcd-raft's manner: messages, ticks and proposals in, one ``Ready`` out.

Owns: who leads in which term, which entries are committed, what has to be on the disk before what is said. Must not know: what
entries mean, how they are written (``metadata_log``), how messages travel, clocks, randomness (the caller draws election timeouts).

How to drive it::

    quorum.step(sender, message, now_ms) / quorum.tick(now_ms) / quorum.propose([...], now_ms)
    while ready := quorum.ready():
        start ready.write, if any, and call quorum.persisted(ready.write.number, now_ms) when it is durable, at once or later
        send ready.messages; replace the state by ready.restore; apply ready.committed

One write is in flight at a time; what is appended meanwhile goes into the next (group commit). Messages that promise something
(votes, append replies, the first words of a new term) are held here until the write that they rest on is durable; a leader's own
entries leave for the followers while they are being written. Only entries that are also on the own disk are handed out as committed.

Roles: what each answers, and where it can go::

    FOLLOWER      appends what the leader of its term sends, votes once a term          → PRECANDIDATE when it hears no leader
    PRECANDIDATE  asks whether it would be elected; disturbs nobody                     → CANDIDATE with a majority; FOLLOWER
    CANDIDATE     has raised the term and voted for itself                              → LEADER with a majority; FOLLOWER
    LEADER        appends, replicates, commits; steps down when it hears no majority    → FOLLOWER

- A leader's term begins with an entry of its own (LEADER). Entries of older terms are committed only through it; nothing is served before.
- Who heard a leader within the election timeout grants no vote and no pre-vote, so a node that was cut off cannot depose it.
- A leader whose process is known to have ended (``peer_lost``) is forgotten at once, and the next election comes soon
  (``election_timer``). A wrong hint costs an election, never an entry.
- ``confirm_leadership`` gives a ticket that is settled (``Ready.confirmed_round``) when a majority has answered the leader since then.
  Tickets of a leader that steps down are never settled.
- A voter whose disk has lost entries (``HardState.recovering_term``) *recovers*: it follows, and acknowledges what it has on its
  disk, but grants no vote, no pre-vote, and does not stand. It begins in a new term, so the next answer deposes a leader that
  counts on what it had. ``recovery`` says why that is safe.
- Voters change one at a time by an entry that counts from its append; who it takes out may be elected, by the others' votes, until it is
  committed. Observers are sent everything and count for nothing. A machine without voters (``BLANK``) follows and does not vote.

Invariants (``check``): delivered_index <= commit_index <= last_index; delivered_index <= persisted_index; the term never goes
back; for each follower match_index < next_index. Across machines (tested with a random network): one leader a term, logs that agree at an
entry agree before it, committed entries are in every later leader's log. Follows Ongaro's thesis, chapters 3, 4, 6.4, 9.6.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from raylog.raft.election_timer import ElectionTimer
from raylog.raft.followers import Followers
from raylog.raft.log import QuorumLog
from raylog.raft.messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Message,
    NotLeader,
    QuorumConfig,
    QuorumLeadership,
    QuorumRole,
    Ready,
    Snapshot,
    SnapshotRequest,
    VoteReply,
    VoteRequest,
    Voters,
    encode_voters,
)
from raylog.raft.outbox import Outbox
from raylog.raft.progress import Progress, ProgressState
from raylog.raft.recovery import ends_recovery
from raylog.raft.voter_changes import check_voter_change


class Quorum:
    """One member (or observer) of the quorum. Built from what the disk holds; a sole voter leads at once."""

    def __init__(
        self,
        identity: uuid.UUID,
        *,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: Sequence[Entry],
        config: QuorumConfig,
        draw_election_timeout_ms: Callable[[], int],
        now_ms: int,
    ) -> None:
        self.identity = identity
        self.config = config
        self.role = QuorumRole.FOLLOWER
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self.recovering_term = hard_state.recovering_term
        self.leader: uuid.UUID | None = None
        self.leader_commit_index = 0  # what this leader has said of it; 0: nothing yet
        self.log = QuorumLog(snapshot, entries)
        assert self.term >= self.log.last_term, (self.term, self.log.last_term)
        self.commit_index = snapshot.last_index
        self.delivered_index = snapshot.last_index
        self.term_start_index = 0  # of the entry that begins this leader's term
        self._has_known_leader = False  # since this process began
        self._timer = ElectionTimer(config, draw_election_timeout_ms)
        self._votes: set[uuid.UUID] = set()
        self._followers = Followers(identity)
        self._observers: set[uuid.UUID] = set()
        self._round = 0  # the last ticket
        self._confirmed_round = 0
        self._reported_round = 0
        self._reported_leadership: QuorumLeadership | None = None
        self._restore: Snapshot | None = None
        self._outbox = Outbox(self.log, hard_state)
        self._heartbeat_deadline_ms = 0
        self._timer.restart(now_ms)
        self._maybe_end_recovery(now_ms)
        if self.log.voters == (identity,) and self._takes_part:
            self._stand_for_election(now_ms)

    # ------------------------------------------------------------------ what it says of itself

    @property
    def is_leader(self) -> bool:
        return self.role is QuorumRole.LEADER

    @property
    def has_committed_in_term(self) -> bool:
        """Whether this leader may serve: everything that earlier leaders committed is committed here."""
        return self.role is QuorumRole.LEADER and self.commit_index >= self.term_start_index

    @property
    def voters(self) -> Voters:
        return self.log.voters

    @property
    def is_recovering(self) -> bool:
        """Whether this voter's disk has lost entries and has not got them back: it takes no part in elections."""
        return self.recovering_term is not None

    def recovering(self) -> tuple[uuid.UUID, ...]:
        """The voters that are known to be recovering: to a leader all that have answered it, to others themselves alone."""
        return tuple(sorted(self._followers.recovering() + [self.identity] * self.is_recovering))

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def cluster_id(self) -> str:
        """Of the bootstrap snapshot; empty while the disk is blank."""
        return self.log.snapshot.cluster_id

    def match_indexes(self) -> dict[uuid.UUID, int]:
        """For a leader: how far each voter and observer has come, itself included. Empty for others."""
        if self.role is not QuorumRole.LEADER:
            return {}
        return self._followers.match_indexes() | {self.identity: self.log.persisted_index}

    def reply_times(self) -> dict[uuid.UUID, tuple[int, int]]:
        """For a leader: when each other member last replied, and last had everything (-1: never). Empty for others."""
        return self._followers.reply_times()

    def next_deadline_ms(self) -> int | None:
        """When ``tick`` has something to do; None: not until a message comes."""
        if self.role is QuorumRole.LEADER:
            if not self._followers.by_peer:
                return None  # a sole voter says nothing to anybody
            lost_ms = self._majority_lost_ms()
            return self._heartbeat_deadline_ms if lost_ms is None else min(self._heartbeat_deadline_ms, lost_ms)
        return self._timer.deadline_ms if self._takes_part else None

    # ------------------------------------------------------------------ in: time

    def tick(self, now_ms: int) -> None:
        """Judge the timers. The caller drains its input first, so that a pause of its own is not taken for the others' silence."""
        if self.role is QuorumRole.LEADER:
            lost_ms = self._majority_lost_ms()
            if lost_ms is not None and now_ms >= lost_ms:
                self._enter(QuorumRole.FOLLOWER, self.term, None, now_ms)
            elif now_ms >= self._heartbeat_deadline_ms:
                self._broadcast(now_ms, heartbeat=True)
        elif now_ms >= self._timer.deadline_ms and self._takes_part:
            self._stand_for_election(now_ms)

    def restart_timers(self, now_ms: int) -> None:
        """After a pause of this process: nobody's silence during it counts."""
        self._timer.paused(now_ms)
        self._followers.all_heard(now_ms)

    def peer_joined(self, now_ms: int) -> None:
        """A member can be reached. Where nobody has led since this process began, all may just have: they need not wait for silence.

        A leader that is there after all is not disturbed: whoever hears it refuses the vote that precedes an election.
        """
        if not self._has_known_leader and self.role is not QuorumRole.LEADER:
            self._timer.never_led(now_ms, sum(voter < self.identity for voter in self.voters))

    def peer_lost(self, peer: uuid.UUID, now_ms: int) -> None:
        """That member's process has ended, as far as can be seen: if it led, its silence is not waited for."""
        if self.leader == peer and self.role is QuorumRole.FOLLOWER:
            self.leader = None
            self._timer.leader_lost(now_ms)

    # ------------------------------------------------------------------ in: orders

    def propose(self, entries: Sequence[bytes], now_ms: int) -> int:
        """Append entries of the state machine; returns the index of the last one.

        Not durable yet: they are when they come out of ``Ready.committed``, in order. A leader that is deposed before may lose any tail
        of them, so what must be all or nothing goes into one entry. Raises NotLeader.
        """
        assert entries, "nothing to propose"
        self._demand_leadership()
        self._append_own(EntryKind.RECORDS, entries)
        self._broadcast(now_ms)
        return self.log.last_index

    def propose_voters(self, voters: Iterable[uuid.UUID], now_ms: int) -> int:
        """Replace the voters, one added or one removed at a time; in force at once, returns the entry's index.

        Raises NotLeader, or VoterChangeRefused while the leader has not committed in its term, while another change is under way, or where
        the newcomer is not an observer that has caught up with the committed log.
        """
        self._demand_leadership()
        wanted = tuple(sorted(set(voters)))
        check_voter_change(self, wanted, self._followers.by_peer)
        self._append_own(EntryKind.VOTERS, [encode_voters(wanted)])
        self._follow_voters(now_ms)
        self._broadcast(now_ms)
        return self.log.last_index

    def add_observer(self, peer: uuid.UUID, now_ms: int) -> None:
        """Send everything to this one too. Kept over changes of role; a voter may be named, it stays a voter."""
        self._observers.add(peer)
        if self.role is QuorumRole.LEADER:
            self._follow_voters(now_ms)
            if peer != self.identity:
                self._send_append(peer, now_ms, heartbeat=True)

    def remove_observer(self, peer: uuid.UUID, now_ms: int) -> None:
        self._observers.discard(peer)
        if self.role is QuorumRole.LEADER:
            self._follow_voters(now_ms)

    def confirm_leadership(self, now_ms: int) -> int:
        """A ticket: settled, by ``Ready.confirmed_round`` at or above it, once a majority has said that this leader still leads.

        Raises NotLeader.
        """
        self._demand_leadership()
        self._round += 1
        self._settle_rounds()
        self._broadcast(now_ms, heartbeat=True)
        return self._round

    def compact(self, index: int, data: bytes) -> Snapshot | None:
        """Put a snapshot of the state at a delivered index in place of the entries up to it; None where one is there already."""
        assert index <= self.delivered_index, (index, self.delivered_index)
        if index <= self.log.snapshot.last_index:
            return None
        return self.log.compact(index, data)

    # ------------------------------------------------------------------ out

    def ready(self) -> Ready | None:
        """What is to be done now, or None. Each thing is given out once."""
        write = self._outbox.start_write(self._hard_state)
        messages = self._outbox.take()
        restore, self._restore = self._restore, None
        if restore is not None:
            self.delivered_index = restore.last_index
        committed_end = min(self.commit_index, self.log.persisted_index)
        committed: tuple[Entry, ...] = ()
        if committed_end > self.delivered_index:
            committed = self.log.slice(self.delivered_index + 1, committed_end, 1 << 62)
            self.delivered_index = committed_end
        seen = QuorumLeadership(self.term, self.leader, self.is_leader)
        leadership = seen if seen != self._reported_leadership else None
        self._reported_leadership = seen
        confirmed_round = None
        if self.has_committed_in_term and self._confirmed_round > self._reported_round:
            confirmed_round = self._reported_round = self._confirmed_round
        if not (write or messages or restore or committed or leadership or confirmed_round):
            return None
        return Ready(write, messages, restore, committed, leadership, confirmed_round)

    def persisted(self, number: int, now_ms: int) -> None:
        """The write of that number is durable. Call ``ready`` again: what waited for it comes out."""
        restored = self._outbox.finish_write(number)
        if restored is not None:
            self._restore = restored
        self._maybe_end_recovery(now_ms)
        if self.role is QuorumRole.LEADER:
            self._maybe_commit(now_ms)

    # ------------------------------------------------------------------ in: messages

    def step(self, sender: uuid.UUID, message: Message, now_ms: int) -> None:
        """A message of another member. Lost, late, doubled and reordered ones do no harm."""
        if message.term > self.term:
            match message:
                case VoteRequest():
                    if self._hears_a_leader(now_ms):
                        return
                    if not message.pre_vote:
                        self._enter(QuorumRole.FOLLOWER, message.term, None, now_ms)
                case VoteReply(pre_vote=True, granted=True):
                    pass  # it echoes the term that was asked for
                case VoteReply() | AppendReply():
                    self._enter(QuorumRole.FOLLOWER, message.term, None, now_ms)
                case AppendRequest() | SnapshotRequest():
                    self._enter(QuorumRole.FOLLOWER, message.term, sender, now_ms)
                case _:
                    assert_never(message)
        elif message.term < self.term:
            match message:
                case VoteRequest():
                    self._outbox.say(sender, VoteReply(self.term, granted=False, pre_vote=message.pre_vote))
                case AppendRequest() | SnapshotRequest():
                    # The term in the answer deposes the sender.
                    self._outbox.say(sender, self._append_reply(match_index=0, round=0))
                case VoteReply() | AppendReply():
                    pass
                case _:
                    assert_never(message)
            return
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message, now_ms)
            case VoteReply():
                self._on_vote_reply(sender, message, now_ms)
            case AppendRequest():
                self._on_leader_heard(sender, now_ms)
                self._on_append_request(sender, message)
            case SnapshotRequest():
                self._on_leader_heard(sender, now_ms)
                self._on_snapshot_request(sender, message)
            case AppendReply():
                self._on_append_reply(sender, message, now_ms)
            case _:
                assert_never(message)

    def _on_vote_request(self, sender: uuid.UUID, message: VoteRequest, now_ms: int) -> None:
        log = self.log
        remembers = bool(self.voters) and not self.is_recovering
        worthy = remembers and (message.last_term, message.last_index) >= (log.last_term, log.last_index)
        if message.pre_vote:
            granted = worthy and message.term > self.term
            self._outbox.say(sender, VoteReply(message.term if granted else self.term, granted, pre_vote=True))
            return
        granted = worthy and (self.voted_for == sender or (self.voted_for is None and self.leader is None))
        reply = VoteReply(self.term, granted, pre_vote=False)
        if granted:
            self.voted_for = sender
            self._timer.restart(now_ms)
            self._say_when_durable(sender, reply)
        else:
            self._outbox.say(sender, reply)

    def _on_vote_reply(self, sender: uuid.UUID, message: VoteReply, now_ms: int) -> None:
        asked = QuorumRole.PRECANDIDATE if message.pre_vote else QuorumRole.CANDIDATE
        asked_term = self.term + 1 if message.pre_vote else self.term
        if self.role is asked and message.granted and message.term == asked_term:
            self._votes.add(sender)
            self._count_votes(now_ms)

    def _on_leader_heard(self, sender: uuid.UUID, now_ms: int) -> None:
        assert self.role is not QuorumRole.LEADER, f"{sender} and {self.identity} both lead in term {self.term}"
        if self.role is not QuorumRole.FOLLOWER or self.leader != sender:
            self._enter(QuorumRole.FOLLOWER, self.term, sender, now_ms)
        self._timer.leader_heard(now_ms)

    def _on_append_request(self, sender: uuid.UUID, message: AppendRequest) -> None:
        log = self.log
        self.leader_commit_index = max(self.leader_commit_index, message.commit_index)
        previous = message.previous_index
        if self._is_blank and previous == 0:  # even index 0 does not match: the bootstrap snapshot is missing
            self._outbox.say(sender, self._append_reply(0, message.round, rejected_index=0))
        elif previous < self.commit_index:
            self._say_when_durable(sender, self._append_reply(self.commit_index, message.round))
        elif log.term_at(previous) == message.previous_term:
            log.merge(message.entries, self.commit_index)
            match_index = previous + len(message.entries)
            self.commit_index = max(self.commit_index, min(message.commit_index, match_index))
            self._say_when_durable(sender, self._append_reply(match_index, message.round))
        else:
            hint_index = log.last_index_within(previous - 1, message.previous_term)
            hint_term = log.term_at(hint_index) or 0
            self._outbox.say(sender, self._append_reply(hint_index, message.round, previous, hint_term))

    def _on_snapshot_request(self, sender: uuid.UUID, message: SnapshotRequest) -> None:
        snapshot = message.snapshot
        if not self._is_blank:
            if snapshot.last_index <= self.commit_index:
                self._say_when_durable(sender, self._append_reply(self.commit_index, message.round))
                return
            if self.log.term_at(snapshot.last_index) == snapshot.last_term:  # nothing is missing but the commit
                self.commit_index = snapshot.last_index
                self._say_when_durable(sender, self._append_reply(snapshot.last_index, message.round))
                return
        self.log.install(snapshot)
        self.commit_index = snapshot.last_index
        self._say_when_durable(sender, self._append_reply(snapshot.last_index, message.round))

    def _append_reply(
        self, match_index: int, round: int, rejected_index: int | None = None, hint_term: int = 0
    ) -> AppendReply:
        return AppendReply(self.term, match_index, round, rejected_index, hint_term, self.is_recovering)

    def _on_append_reply(self, sender: uuid.UUID, message: AppendReply, now_ms: int) -> None:
        progress = self._followers.by_peer.get(sender)
        if self.role is not QuorumRole.LEADER or progress is None:
            return
        progress.heard_ms = now_ms
        progress.is_recovering = message.is_recovering
        if message.round > progress.acked_round:
            progress.acked_round = message.round
            self._settle_rounds()
        if message.rejected_index is None:
            advanced = message.match_index > progress.match_index
            progress.matched(message.match_index)
            progress.replied(self.log.last_index, now_ms)
            if advanced:
                self._maybe_commit(now_ms)
        elif message.rejected_index == 0 and progress.state is not ProgressState.SNAPSHOT:
            self._send_snapshot(sender, progress, now_ms)
        else:
            hint_index = self.log.last_index_within(message.match_index, message.hint_term)
            progress.rejected(message.rejected_index, hint_index)
        if sender in self._followers.by_peer:  # committing may have ended this term, or taken the sender out
            self._send_append(sender, now_ms)

    # ------------------------------------------------------------------ elections

    @property
    def _is_blank(self) -> bool:
        return not self.voters and self.log.last_index == 0

    @property
    def _takes_part(self) -> bool:
        """Whether it may stand for election. One that is voted out may until that is committed: only its log may have the entry."""
        return self.log.has_seat(self.identity, self.commit_index) and not self.is_recovering

    def _maybe_end_recovery(self, now_ms: int) -> None:
        """Once an entry of a later leader is on the disk. What says so on the disk may follow: until then it recovers once more."""
        if self.recovering_term is not None and ends_recovery(self.log, self.recovering_term):
            self.recovering_term = None
            self._timer.restart(now_ms)

    def _hears_a_leader(self, now_ms: int) -> bool:
        if self.role is QuorumRole.LEADER:
            return True
        return self.leader is not None and self._timer.has_heard_lately(now_ms)

    def _enter(self, role: QuorumRole, term: int, leader: uuid.UUID | None, now_ms: int) -> None:
        assert term >= self.term, (term, self.term)
        if term > self.term:
            self.term = term
            self.voted_for = None
            self._outbox.end_term()
        self.role = role
        self.leader, self.leader_commit_index = leader, 0
        self._has_known_leader |= leader is not None
        self._votes = set()
        self._followers.by_peer.clear()
        self._confirmed_round = self._reported_round = self._round
        self._timer.restart(now_ms)

    def _stand_for_election(self, now_ms: int) -> None:
        self._timer.stood()
        self._enter(QuorumRole.PRECANDIDATE, self.term, None, now_ms)
        self._ask_for_votes(pre_vote=True)
        self._count_votes(now_ms)

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        self._votes = {self.identity}
        term = self.term + 1 if pre_vote else self.term
        request = VoteRequest(term, self.log.last_index, self.log.last_term, pre_vote)
        for peer in self.voters:
            if peer == self.identity:
                continue
            if pre_vote:
                self._outbox.say(peer, request)
            else:
                self._say_when_durable(peer, request)

    def _count_votes(self, now_ms: int) -> None:
        if 2 * len(self._votes.intersection(self.voters)) <= len(self.voters):
            return
        if self.role is QuorumRole.PRECANDIDATE:
            self._enter(QuorumRole.CANDIDATE, self.term + 1, None, now_ms)
            self.voted_for = self.identity
            self._ask_for_votes(pre_vote=False)
            self._count_votes(now_ms)
        else:
            self._timer.won()
            self._enter(QuorumRole.LEADER, self.term, self.identity, now_ms)
            self._follow_voters(now_ms)
            self._append_own(EntryKind.LEADER, [b""])
            self.term_start_index = self.log.last_index
            self._broadcast(now_ms, heartbeat=True)

    # ------------------------------------------------------------------ leading

    def _demand_leadership(self) -> None:
        if self.role is not QuorumRole.LEADER:
            raise NotLeader(
                f"{self.identity} does not lead in term {self.term}; the leader is {self.leader or 'not known'}"
            )

    def _append_own(self, kind: EntryKind, contents: Sequence[bytes]) -> None:
        start = self.log.last_index + 1
        self.log.append([Entry(start + position, self.term, kind, data) for position, data in enumerate(contents)])

    def _follow_voters(self, now_ms: int) -> None:
        """Keep a Progress for exactly those that are to be sent something."""
        self._followers.follow(self._observers.union(self.voters), self.log.last_index + 1, now_ms)

    def _majority_lost_ms(self) -> int | None:
        """When the leader will have heard no majority for an election timeout; None: it is one alone."""
        if self.voters == (self.identity,):
            return None
        heard_ms = self._followers.majority(self.voters, 1 << 62, lambda progress: progress.heard_ms)
        return heard_ms + self.config.election_timeout_ms

    def _settle_rounds(self) -> None:
        acked = self._followers.majority(self.voters, self._round, lambda progress: progress.acked_round)
        self._confirmed_round = max(self._confirmed_round, acked)

    def _maybe_commit(self, now_ms: int) -> None:
        matched = self._followers.majority(self.voters, self.log.persisted_index, lambda progress: progress.match_index)
        if matched <= self.commit_index or self.log.term_at(matched) != self.term:
            return
        self.commit_index = matched
        self._broadcast(now_ms, heartbeat=True)
        if self.identity not in self.voters and self.log.voters_index <= self.commit_index:
            self._enter(QuorumRole.FOLLOWER, self.term, None, now_ms)  # voted out, and everybody will learn it

    def _broadcast(self, now_ms: int, *, heartbeat: bool = False) -> None:
        if heartbeat:
            self._heartbeat_deadline_ms = now_ms + self.config.heartbeat_interval_ms
        for peer in sorted(self._followers.by_peer):
            self._send_append(peer, now_ms, heartbeat=heartbeat)

    def _send_append(self, peer: uuid.UUID, now_ms: int, *, heartbeat: bool = False) -> None:
        """Send what the peer lacks, as far as its state allows; a heartbeat leaves in any case."""
        progress = self._followers.by_peer[peer]
        if progress.state is ProgressState.SNAPSHOT:
            if now_ms >= progress.snapshot_sent_ms + self.config.election_timeout_ms:
                self._send_snapshot(peer, progress, now_ms)
            elif heartbeat:  # it says that the leader lives, and matches any log
                self._say_in_term(peer, AppendRequest(self.term, 0, 0, (), 0, self._round))
            return
        if progress.paused and not heartbeat:
            return
        previous_index = progress.next_index - 1
        previous_term = self.log.term_at(previous_index)
        if previous_term is None:
            assert previous_index < self.log.snapshot.last_index, (previous_index, self.log.snapshot.last_index)
            self._send_snapshot(peer, progress, now_ms)
            return
        last = min(self.log.last_index, progress.match_index + self.config.in_flight_entries_max)
        entries = self.log.slice(progress.next_index, last, self.config.append_bytes_max)
        if not entries and not heartbeat:
            return
        request = AppendRequest(self.term, previous_index, previous_term, entries, self.commit_index, self._round)
        self._say_in_term(peer, request)
        progress.append_sent(len(entries))

    def _send_snapshot(self, peer: uuid.UUID, progress: Progress, now_ms: int) -> None:
        progress.snapshot_sent(self.log.snapshot.last_index, now_ms)
        self._say_in_term(peer, SnapshotRequest(self.term, self.log.snapshot, self._round))

    @property
    def _hard_state(self) -> HardState:
        return HardState(self.term, self.voted_for, self.recovering_term)

    def _say_when_durable(self, peer: uuid.UUID, message: Message) -> None:
        self._outbox.say_when_durable(peer, message, self._hard_state)

    def _say_in_term(self, peer: uuid.UUID, message: Message) -> None:
        self._outbox.say_in_term(peer, message, self._hard_state)

    def check(self) -> None:
        """The invariants of the module's docstring."""
        self.log.check()
        assert self.delivered_index <= self.commit_index <= self.log.last_index, self
        assert self.log.persisted_index == 0 or self.delivered_index <= self.log.persisted_index, self
        assert self.term >= self.log.last_term, self
        assert self.term >= self._outbox.saved.term, (self._outbox.saved, self)
        assert self.role is QuorumRole.FOLLOWER or not self.is_recovering, self
        assert self.role in (QuorumRole.FOLLOWER, QuorumRole.PRECANDIDATE) or self.voted_for == self.identity, self
        assert (self.role is QuorumRole.LEADER) == (self.leader == self.identity), self
        self._followers.check(self.log.last_index)

    def __repr__(self) -> str:
        return (
            f"Quorum({self.identity}, {self.role.value}, term={self.term}, voted_for={self.voted_for}, leader={self.leader}, "
            f"last={self.log.last_index}, persisted={self.log.persisted_index}, commit={self.commit_index}, "
            f"delivered={self.delivered_index})"
        )
