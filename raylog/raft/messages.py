"""The words of the quorum: entries, snapshots, settings, what goes over the network, what comes out
of the machine.

Voters and observers are named by directory ids. An *index* counts entries from 1, so the index of
the last entry is also the number of entries, and the exclusive end offset in the name of a snapshot
file. A *term* is a controller epoch. Every message carries the term of its sender; what a term
means to the receiver is in ``raylog.raft.quorum``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

from kio.schema.errors import ErrorCode

from raylog.errors import RaylogError, kafka_error

Voters = tuple[uuid.UUID, ...]
"""Sorted directory ids."""

_VOTERS_VERSION = 1


class NotLeader(kafka_error(ErrorCode.not_controller)):  # type: ignore[misc]
    """Only the leader takes proposals. Nothing was appended."""


class VoterChangeRefused(RaylogError):
    """The voters cannot be changed like this, or not now; the message says what has to come first.
    Nothing was appended.
    """

    code = ErrorCode.invalid_request


class QuorumRole(Enum):
    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(IntEnum):
    """What an entry's data is. The numbers are on disk."""

    RECORDS = 0  # the controller's own bytes
    LEADER = 1  # no data: the first entry of a leader's term
    VOTERS = 2  # the voters from here on, in force as soon as the entry is in a log


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: EntryKind
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that all entries up to ``last_index`` fold to, with the voters in force there.

    ``BLANK`` is a disk that was never formatted; the bootstrap snapshot has ``last_index`` 0 and no
    data, but a cluster id and voters.
    """

    last_index: int
    last_term: int
    cluster_id: str
    voters: Voters
    data: bytes


BLANK = Snapshot(last_index=0, last_term=0, cluster_id="", voters=(), data=b"")


@dataclass(frozen=True, slots=True)
class HardState:
    """What a voter must never forget: the highest term it saw, and whom it voted for in it.

    ``recovering_term`` is set while it is recovering: its disk was found to have lost entries, and
    no entry that it ever held or acknowledged was of a later term than that one.
    """

    term: int = 0
    voted_for: uuid.UUID | None = None
    recovering_term: int | None = None


def bootstrap_snapshot(cluster_id: str, voters: Iterable[uuid.UUID]) -> Snapshot:
    """What formatting writes to each of the first voters."""
    return Snapshot(0, 0, cluster_id, tuple(sorted(set(voters))), b"")


def encode_voters(voters: Voters) -> bytes:
    """The data of a VOTERS entry: a version byte, then 16 bytes each."""
    return bytes([_VOTERS_VERSION]) + b"".join(voter.bytes for voter in voters)


def decode_voters(data: bytes) -> Voters:
    if not data or data[0] > _VOTERS_VERSION:
        raise RaylogError(
            f"a voters entry of version {data[0] if data else '?'}; this raylog reads up to {_VOTERS_VERSION}"
        )
    assert len(data) % 16 == 1, len(data)
    return tuple(sorted(uuid.UUID(bytes=data[start : start + 16]) for start in range(1, len(data), 16)))


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """``election_timeout_ms`` is the shortest time without a leader before anyone stands for
    election; the caller draws from it upwards.

    ``lost_leader_timeout_ms`` takes its place, in the same proportion, where the leader's process
    is known to have ended.
    """

    election_timeout_ms: int = 1000
    heartbeat_interval_ms: int = 200
    lost_leader_timeout_ms: int = 40
    append_bytes_max: int = 1 << 20
    in_flight_entries_max: int = 4096

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_interval_ms < self.election_timeout_ms, self


# ------------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """``pre_vote``: would you vote for me in this term? Nobody's state changes; ``term`` is one
    more than the sender's.
    """

    term: int
    last_index: int
    last_term: int
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class VoteReply:
    """A granted pre-vote echoes the asked term; everything else carries the sender's own."""

    term: int
    granted: bool
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Entries behind ``previous_index``; with none of them a heartbeat. ``round`` counts the
    leader's confirmations of itself.
    """

    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    round: int


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """For a follower whose next entry the leader has no more."""

    term: int
    snapshot: Snapshot
    round: int


@dataclass(frozen=True, slots=True)
class AppendReply:
    """``match_index``: everything up to it is on the sender's disk and equal to the leader's log.

    ``rejected_index`` is None, or the ``previous_index`` that did not match; then ``match_index``
    and ``hint_term`` are the last place at which it may (the sender's entry there, and its term).
    ``is_recovering``: the sender takes no part in elections yet, for its disk has lost entries.
    """

    term: int
    match_index: int
    round: int
    rejected_index: int | None = None
    hint_term: int = 0
    is_recovering: bool = False


Message = VoteRequest | VoteReply | AppendRequest | SnapshotRequest | AppendReply


# ------------------------------------------------------------------ what comes out


@dataclass(frozen=True, slots=True)
class QuorumWrite:
    """To be made durable, in this order, before ``Quorum.persisted(number)`` is called.

    ``snapshot``: a log that does not hold its last entry is emptied, one that does is cut below it.
    ``entries`` follow each other; whatever the log holds from the first one's index on is replaced
    by them.
    """

    number: int
    hard_state: HardState | None
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class QuorumLeadership:
    term: int
    leader: uuid.UUID | None
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything to do now: start ``write``; send ``messages`` (all may leave at once: those that
    need a write were held back for it); replace the state by ``restore``; apply ``committed`` in
    order.

    ``leadership`` is set when it changed. ``confirmed_round``, when set, settles all tickets of
    ``confirm_leadership`` up to it.
    """

    write: QuorumWrite | None
    messages: tuple[tuple[uuid.UUID, Message], ...]
    restore: Snapshot | None
    committed: tuple[Entry, ...]
    leadership: QuorumLeadership | None
    confirmed_round: int | None
