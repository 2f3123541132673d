"""Quorums on simulated disks and a network of one queue: the shell around the pure machine, for
scenarios and random runs.

Owns delivery, disks, crashes and the trace of what happened; every member is production ``Quorum``
on production ``MetadataLog``. Nothing happens by itself: the driver delivers messages, moves the
clock, completes writes and crashes members. The state machine of a member is the list of entries
that it applied; a snapshot's data is that list, so restoring one can be checked.

``QuorumHistory`` judges across members, after everything that happened: one leader a term, one vote
a term, one entry at each committed index and in every later leader's log, in order and without
gaps; settled tickets were drawn by the true leader.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

import msgpack

from raylog.raft.messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Message,
    QuorumConfig,
    QuorumRole,
    QuorumWrite,
    Ready,
    Snapshot,
    SnapshotRequest,
    VoteReply,
    VoteRequest,
    bootstrap_snapshot,
    decode_voters,
)
from raylog.raft.metadata_log import DAMAGED_SUFFIX, LOG_NAME, MetadataLog
from raylog.raft.quorum import Quorum
from raylog.simulator.simulated_files import SimulatedDisk

_FOLDER = "/disk/metadata"


def encode_state(applied: Iterable[Entry]) -> bytes:
    state: bytes = msgpack.packb([(entry.index, entry.term, int(entry.kind), entry.data) for entry in applied])
    return state


def decode_state(data: bytes) -> list[Entry]:
    if not data:
        return []
    return [Entry(index, term, EntryKind(kind), content) for index, term, kind, content in msgpack.unpackb(data)]


@dataclass(slots=True)
class Envelope:
    sender: str
    receiver: str
    message: Message


@dataclass(slots=True)
class NetworkMember:
    """One process and its disk. ``quorum`` is None while it is down."""

    name: str
    id: uuid.UUID
    disk: SimulatedDisk
    quorum: Quorum | None = None
    log: MetadataLog | None = None
    pending: QuorumWrite | None = None
    stalled: bool = False  # writes wait for ``complete_write``
    applied: list[Entry] = field(default_factory=list)


class QuorumHistory:
    """What happened in all members together, and whether it may have."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[int, str], str] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_term = 0  # the highest of any committed entry
        self.tickets: dict[tuple[str, int, int], int] = {}  # (leader, term, ticket): committed_term when it was drawn
        self.settled_tickets = 0

    def leads(self, name: str, quorum: Quorum) -> None:
        assert self.leaders.setdefault(quorum.term, name) == name, (quorum.term, self.leaders[quorum.term], name)
        for index, entry in self.committed.items():
            if index > quorum.log.snapshot.last_index:
                assert quorum.log.term_at(index) == entry.term, f"{name} leads term {quorum.term} without {entry}"

    def voted(self, term: int, voter: str, candidate: str) -> None:
        assert self.votes.setdefault((term, voter), candidate) == candidate, f"{voter} voted twice in term {term}"

    def applied(self, member: NetworkMember, entry: Entry) -> None:
        assert entry.index == len(member.applied) + 1, (member.name, entry, len(member.applied))
        assert self.committed.setdefault(entry.index, entry) == entry, (member.name, entry, self.committed[entry.index])
        self.committed_term = max(self.committed_term, entry.term)

    def restored(self, member: NetworkMember, snapshot: Snapshot) -> list[Entry]:
        state = decode_state(snapshot.data)
        assert len(state) == snapshot.last_index >= len(member.applied), (member.name, snapshot)
        assert all(self.committed[entry.index] == entry for entry in state), (member.name, snapshot)
        return state

    def drew(self, name: str, term: int, ticket: int) -> None:
        self.tickets[name, term, ticket] = self.committed_term

    def settled(self, name: str, term: int, last_ticket: int) -> None:
        for drawn in sorted(self.tickets):
            if drawn[:2] == (name, term) and drawn[2] <= last_ticket:
                assert self.tickets.pop(drawn) <= term, f"{name} was deposed before it drew {drawn}"
                self.settled_tickets += 1


class QuorumNetwork:
    """Members by name. ``draw_election_timeout_ms(name)`` is each member's source of election
    timeouts.
    """

    def __init__(self, config: QuorumConfig, draw_election_timeout_ms: Callable[[str], int]) -> None:
        self.config = config
        self.now_ms = 0
        self.members: dict[str, NetworkMember] = {}
        self.queue: list[Envelope] = []
        self.cut: set[tuple[str, str]] = set()  # (sender, receiver): messages are lost
        self.trace: list[str] = []
        self.history = QuorumHistory()
        self._draw = draw_election_timeout_ms
        self._names: dict[uuid.UUID, str] = {}

    def name(self, member_id: uuid.UUID | None) -> str:
        return "-" if member_id is None else self._names[member_id]

    def add(self, name: str, voters: Iterable[str] | None) -> None:
        """A new disk, formatted with these voters or left blank, and a process on it."""
        member = NetworkMember(name, self.id_of(name), SimulatedDisk())
        self._names[member.id] = name
        self.members[name] = member
        files = member.disk.files()
        files.make_directory("/disk")
        member.disk.flush_everything()
        if voters is not None:
            MetadataLog.format(files, _FOLDER, bootstrap_snapshot("cluster", [self.id_of(each) for each in voters]))
        self.start(name)

    def id_of(self, name: str) -> uuid.UUID:
        return uuid.UUID(int=int.from_bytes(name.encode(), "big"))

    def start(self, name: str) -> None:
        member = self.members[name]
        log = member.log = MetadataLog.open(member.disk.files(), _FOLDER, has_peers=True)
        member.applied = decode_state(log.snapshot.data)
        member.quorum = Quorum(
            member.id,
            hard_state=log.hard_state,
            snapshot=log.snapshot,
            entries=log.entries,
            config=self.config,
            draw_election_timeout_ms=lambda: self._draw(name),
            now_ms=self.now_ms,
        )
        self.settle(name)

    def crash(self, name: str, rng: random.Random | None = None) -> None:
        """Kill the process and cut the power of its disk; a write under way may or may not have
        been done.
        """
        member = self.members[name]
        if member.pending is not None and rng is not None and rng.random() < 0.5:
            assert member.log is not None
            member.log.store(member.pending)
        member.quorum = member.log = member.pending = None
        member.disk.lose_power(rng or random.Random(0))

    def damage(self, name: str, rng: random.Random) -> None:
        """Kill the process and damage one of its files at rest: a flipped bit, zeros, an end that
        is gone, or all of it.

        Not the bytes that name a format's version: what a newer raylog wrote is left to people.
        """
        member = self.members[name]
        if member.pending is not None and rng.random() < 0.5:
            assert member.log is not None
            member.log.store(member.pending)
        member.quorum = member.log = member.pending = None
        member.disk.flush_everything()
        member.disk.lose_power(rng)  # of what is flushed nothing is lost
        files = member.disk.files()
        names = [each for each in files.list_directory(_FOLDER) if not each.endswith((".lock", ".tmp", DAMAGED_SUFFIX))]
        path = f"{_FOLDER}/{rng.choice([*names, LOG_NAME, LOG_NAME, LOG_NAME])}"
        content = bytearray(files.read_file(path))
        position = rng.randrange(len(content))
        kind = rng.choice(["bit", "zeros", "end", "gone"])
        if kind == "bit":
            content[10 if position in (8, 9) else position] ^= 1 << rng.randrange(8)
        elif kind == "zeros":
            start = position // 512 * 512
            content[start : start + 512] = bytes(len(content[start : start + 512]))
        elif kind == "end":
            del content[position:]
        if kind == "gone":
            files.remove(path)
        else:
            files.write_file(path, bytes(content))
        member.disk.flush_everything()
        self._say(f"{name} dies; {path} is damaged: {kind} at {position}")

    def running(self) -> list[NetworkMember]:
        return [self.members[name] for name in sorted(self.members) if self.members[name].quorum is not None]

    # ------------------------------------------------------------------ what the driver may do

    def deliver_next(self, position: int = 0, *, duplicate: bool = False) -> None:
        envelope = self.queue[position] if duplicate else self.queue.pop(position)
        quorum = self.members[envelope.receiver].quorum
        if quorum is None or (envelope.sender, envelope.receiver) in self.cut:
            return
        quorum.step(self.members[envelope.sender].id, envelope.message, self.now_ms)
        self.settle(envelope.receiver)

    def deliver_all(self) -> None:
        for _ in range(100_000):
            if not self.queue:
                return
            self.deliver_next()
        raise AssertionError("the members do not stop talking")

    def advance(self, elapsed_ms: int) -> None:
        """Move the clock and let the timers of all be judged, in the order of their deadlines."""
        end_ms = self.now_ms + elapsed_ms
        while True:
            due = [
                (deadline_ms, member.name)
                for member in self.running()
                if member.quorum is not None and (deadline_ms := member.quorum.next_deadline_ms()) is not None
            ]
            if not due or min(due)[0] > end_ms:
                break
            deadline_ms, name = min(due)
            self.now_ms = max(self.now_ms, deadline_ms)
            self.tick(name)
            self.deliver_all()
        self.now_ms = end_ms

    def tick(self, name: str) -> None:
        quorum = self.members[name].quorum
        if quorum is not None:
            quorum.tick(self.now_ms)
            self.settle(name)

    def complete_write(self, name: str) -> None:
        member = self.members[name]
        if member.pending is not None:
            assert member.log is not None and member.quorum is not None
            write, member.pending = member.pending, None
            member.log.store(write)
            member.quorum.persisted(write.number, self.now_ms)
            self.settle(name)

    def confirm(self, name: str) -> int:
        quorum = self.members[name].quorum
        assert quorum is not None
        ticket = quorum.confirm_leadership(self.now_ms)
        self.history.drew(name, quorum.term, ticket)
        self.settle(name)
        return ticket

    def compact(self, name: str) -> None:
        member = self.members[name]
        assert member.quorum is not None
        index = member.quorum.delivered_index
        member.quorum.compact(index, encode_state(member.applied[:index]))
        self.settle(name)

    def settle(self, name: str) -> None:
        """Carry out what the member wants done; its writes wait if it is stalled."""
        member = self.members[name]
        quorum = member.quorum
        assert quorum is not None
        while (ready := quorum.ready()) is not None:
            self._carry_out(member, quorum, ready)
            if member.pending is not None and not member.stalled:
                self.complete_write(name)
        quorum.check()

    def _carry_out(self, member: NetworkMember, quorum: Quorum, ready: Ready) -> None:
        history, name = self.history, member.name
        if ready.write is not None:
            assert member.pending is None, (name, member.pending)
            member.pending = ready.write
            self._say(f"{name} writes {self._show_write(ready.write)}")
        for peer, message in ready.messages:
            receiver = self.name(peer)
            if isinstance(message, VoteReply) and message.granted and not message.pre_vote:
                history.voted(message.term, name, receiver)
            self._say(f"{name} → {receiver}: {self.show(message)}")
            self.queue.append(Envelope(name, receiver, message))
        if ready.restore is not None:
            member.applied = history.restored(member, ready.restore)
            self._say(f"{name} restores the state at {ready.restore.last_index}")
        for entry in ready.committed:
            history.applied(member, entry)
            member.applied.append(entry)
            self._say(f"{name} applies {self._show_entry(entry)}")
        if ready.leadership is not None:
            leadership = ready.leadership
            if leadership.is_leader:
                history.leads(name, quorum)
            self._say(f"{name} sees term {leadership.term} led by {self.name(leadership.leader)}")
        if ready.confirmed_round is not None:
            history.settled(name, quorum.term, ready.confirmed_round)
            self._say(f"{name} is confirmed up to ticket {ready.confirmed_round}")

    # ------------------------------------------------------------------ judging and showing

    def check_logs(self) -> None:
        """Logs that agree at an entry agree on everything before it."""
        logs = [member.quorum.log for member in self.running() if member.quorum is not None]
        for position, one in enumerate(logs):
            for other in logs[position + 1 :]:
                first = max(one.snapshot.last_index, other.snapshot.last_index) + 1
                agreed = False
                for index in range(min(one.last_index, other.last_index), first - 1, -1):
                    mine = one.entries[index - one.snapshot.last_index - 1]
                    theirs = other.entries[index - other.snapshot.last_index - 1]
                    agreed = agreed or mine.term == theirs.term
                    assert not agreed or mine == theirs, (mine, theirs)

    def leader(self) -> NetworkMember | None:
        """The leader of the highest term that may serve."""
        leaders = [
            (member.quorum.term, member.name)
            for member in self.running()
            if member.quorum is not None and member.quorum.has_committed_in_term
        ]
        return self.members[max(leaders)[1]] if leaders else None

    def show_state(self) -> list[str]:
        lines = []
        for name in sorted(self.members):
            quorum = self.members[name].quorum
            if quorum is None:
                lines.append(f"{name} is down")
                continue
            serves = " serving" if quorum.has_committed_in_term else ""
            role = quorum.role.value if quorum.voters or quorum.role is not QuorumRole.FOLLOWER else "blank"
            role = "recovering" if quorum.is_recovering else role
            lines.append(
                f"{name} {role}{serves} term={quorum.term} vote={self.name(quorum.voted_for)} leader={self.name(quorum.leader)} "
                f"log={quorum.log.snapshot.last_index}..{quorum.last_index} persisted={quorum.log.persisted_index} "
                f"commit={quorum.commit_index} voters={','.join(map(self.name, quorum.voters))}"
            )
        return lines

    def _say(self, line: str) -> None:
        self.trace.append(line)

    def _show_write(self, write: QuorumWrite) -> str:
        parts = []
        if write.hard_state is not None:
            parts.append(self._show_hard_state(write.hard_state))
        if write.snapshot is not None:
            parts.append(self._show_snapshot(write.snapshot))
        parts += [self._show_entry(entry) for entry in write.entries]
        return ", ".join(parts)

    def _show_hard_state(self, hard_state: HardState) -> str:
        return f"term={hard_state.term} vote={self.name(hard_state.voted_for)}"

    def _show_snapshot(self, snapshot: Snapshot) -> str:
        voters = ",".join(map(self.name, snapshot.voters))
        return f"snapshot {snapshot.last_index}/{snapshot.last_term} of voters {voters}"

    def _show_entry(self, entry: Entry) -> str:
        match entry.kind:
            case EntryKind.RECORDS:
                what = entry.data.decode()
            case EntryKind.LEADER:
                what = "LEADER"
            case EntryKind.VOTERS:
                what = "VOTERS " + ",".join(map(self.name, decode_voters(entry.data)))
        return f"{entry.index}/{entry.term} {what}"

    def show(self, message: Message) -> str:
        term = f"term={message.term}"
        match message:
            case VoteRequest():
                kind = "would you vote?" if message.pre_vote else "vote!"
                return f"{kind} {term} last={message.last_index}/{message.last_term}"
            case VoteReply():
                kind = "pre-vote" if message.pre_vote else "vote"
                return f"{kind} {'granted' if message.granted else 'refused'} {term}"
            case AppendRequest():
                entries = ", ".join(map(self._show_entry, message.entries))
                return (
                    f"append {term} behind {message.previous_index}/{message.previous_term} [{entries}] "
                    f"commit={message.commit_index} round={message.round}"
                )
            case SnapshotRequest():
                return f"{self._show_snapshot(message.snapshot)} {term} round={message.round}"
            case AppendReply():
                if message.rejected_index is None:
                    return f"have {message.match_index} {term} round={message.round}"
                hint = f"{message.match_index}/{message.hint_term}"
                return f"no match at {message.rejected_index}, perhaps {hint} {term} round={message.round}"
            case _:
                assert_never(message)
