"""One group's members, and the state it is in, as its coordinator knows them.

What each state answers, and where it goes::

    Empty                 no members; may hold offsets. Join begins a rebalance; commits from outside only;
                          Sync, Heartbeat: UNKNOWN_MEMBER_ID                                → PreparingRebalance, Dead
    PreparingRebalance    collects JoinGroups until all members have joined or the rebalance timeout has passed.
                          Sync, Heartbeat: REBALANCE_IN_PROGRESS; commits are taken           → CompletingRebalance, Empty, Dead
    CompletingRebalance   all have joined; waits for the leader's assignments. Sync waits; Heartbeat: fine;
                          commits: REBALANCE_IN_PROGRESS                                     → Stable, PreparingRebalance, Dead
    Stable                Sync: the assignment again; Heartbeat: fine; commits are taken      → PreparingRebalance, Dead
    Dead                  deleted or given away: COORDINATOR_NOT_AVAILABLE                    → nowhere

The first member to join leads. The generation grows by one whenever a join phase completes. The
protocol is one that all members know, the one with most votes (each member votes for its first
choice among the common ones); on a tie what the leader prefers.

Nothing here answers anybody: a member's tokens are its requests that wait, and ``rebalances``
answers them. Wall-clock times come in.

Invariants (``check``): static members are members; a group with members has one as leader, and a
protocol type; each state has members or not, as above; a pending member is no member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from raylog.errors import ProtocolError
from raylog.groups.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from raylog.groups.records import NO_TIMESTAMP, GroupValue, MemberValue
from raylog.groups.requests import JoinedMember, Protocol


class State(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_NEXT: dict[State, tuple[State, ...]] = {
    State.EMPTY: (State.PREPARING_REBALANCE, State.DEAD),
    State.PREPARING_REBALANCE: (State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD),
    State.COMPLETING_REBALANCE: (State.STABLE, State.PREPARING_REBALANCE, State.DEAD),
    State.STABLE: (State.PREPARING_REBALANCE, State.DEAD),
    State.DEAD: (),
}


class Member:
    """``*_token``: the request of that kind that waits, None if none does. ``is_new``: it has not
    yet seen a join phase complete.

    ``is_gone``: its native connection ended, and it has not been heard of since.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "connection",
        "group_instance_id",
        "heartbeat_token",
        "is_gone",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Sequence[Protocol],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = tuple(protocols)
        self.assignment = assignment
        self.join_token: int | None = None
        self.sync_token: int | None = None
        self.heartbeat_token: int | None = None
        self.is_new = False
        self.is_gone = False
        self.connection: int | None = None

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_token is not None

    def metadata(self, protocol: str) -> bytes:
        """What it said for that protocol, which it knows."""
        return next(each.metadata for each in self.protocols if each.name == protocol)

    def vote(self, candidates: Iterable[str]) -> str:
        among = set(candidates)
        return next(each.name for each in self.protocols if each.name in among)


class Group:
    """``members`` stand in the order in which they joined; ``pending`` members have been given an
    id and not used it yet (to their native connections); ``pending_sync`` have joined this
    generation and not synced. ``initial_join_left_ms``: None in all join phases but the first, in
    which joining may put off its end for so long.
    """

    __slots__ = (
        "current_state_timestamp",
        "generation",
        "group_id",
        "history",
        "initial_join_left_ms",
        "leader",
        "members",
        "newcomer_seen",
        "pending",
        "pending_sync",
        "protocol",
        "protocol_type",
        "state",
        "static_members",
        "subscribed_topics",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending: dict[str, int | None] = {}
        self.pending_sync: dict[str, None] = {}
        self.newcomer_seen = False
        self.initial_join_left_ms: int | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.current_state_timestamp = NO_TIMESTAMP
        self.history: deque[str] = deque(maxlen=16)

    @classmethod
    def restored(cls, group_id: str, value: GroupValue | None) -> Group:
        """As the log has it: stable, or empty."""
        group = cls(group_id)
        if value is None:
            return group
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        group.current_state_timestamp = value.current_state_timestamp
        for each in value.members:
            member = Member(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                session_timeout_ms=each.session_timeout_ms,
                protocols=(Protocol(value.protocol or "", each.subscription),),
                assignment=each.assignment,
            )
            group.members[member.member_id] = member
            if member.group_instance_id is not None:
                group.static_members[member.group_instance_id] = member.member_id
        if group.members:
            group.state = State.STABLE
            if group.leader not in group.members:
                group.leader = next(iter(group.members))
        else:
            group.leader = None
        group.note_subscriptions()
        return group

    # -------------------------------------------------------------- states

    def is_in(self, *states: State) -> bool:
        return self.state in states

    def enter(self, state: State, wall_ms: int) -> None:
        assert state in _NEXT[self.state], (
            f"group {self.group_id}: {self.state.value} → {state.value}; before: {list(self.history)}"
        )
        self.history.append(f"{self.state.value} → {state.value} in generation {self.generation}")
        self.state = state
        self.current_state_timestamp = wall_ms

    @property
    def can_rebalance(self) -> bool:
        return State.PREPARING_REBALANCE in _NEXT[self.state]

    def next_generation(self, wall_ms: int) -> None:
        """A join phase is complete: everyone who counts has joined, or nobody is left."""
        self.generation += 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.enter(State.COMPLETING_REBALANCE, wall_ms)
        else:
            self.protocol = None
            self.enter(State.EMPTY, wall_ms)
        self.note_subscriptions()

    # -------------------------------------------------------------- members

    def add(self, member: Member, protocol_type: str) -> None:
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, f"{member.group_instance_id} is here already"
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type, f"{protocol_type} in a group of {self.protocol_type}"
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Forget a member, or one that was pending."""
        member = self.members.pop(member_id, None)
        if member is not None and member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.pop(member_id, None)
        self.pending_sync.pop(member_id, None)

    def rename_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """A static member came back under a new member id; it keeps its place among the members and
        what it was assigned.
        """
        assert self.static_members[instance_id] == old_id, f"{instance_id} is {self.static_members[instance_id]}"
        member = self.members[old_id]
        member.member_id = new_id
        self.members = {each.member_id: each for each in self.members.values()}
        self.static_members[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def accepts(self, member_id: str, size_max: int) -> bool:
        """Whether there is room for whoever asks to join."""
        match self.state:
            case State.EMPTY | State.DEAD:
                return True
            case State.PREPARING_REBALANCE:
                member = self.members.get(member_id)
                if member is not None and member.is_awaiting_join:
                    return True
                return sum(each.is_awaiting_join for each in self.members.values()) < size_max
            case _:
                return member_id in self.members or len(self.members) < size_max

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def have_all_joined(self) -> bool:
        return not self.pending and all(member.is_awaiting_join for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """The leader, if it has joined again, else the first one that has. False if nobody has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or not leader.is_awaiting_join:
            joined = next((each for each in self.members.values() if each.is_awaiting_join), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    # -------------------------------------------------------------- protocols

    def supports(self, protocol_type: str, protocols: Sequence[Protocol]) -> bool:
        """Whether somebody with these protocols can be in this group."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        if not self.members:  # whoever began the first rebalance has left again
            return self.protocol_type == protocol_type and bool(protocols)
        common = self._common_protocols()
        return self.protocol_type == protocol_type and any(each.name in common for each in protocols)

    def _common_protocols(self) -> dict[str, None]:
        """Those that every member knows, in the order of the leader's preference."""
        members = iter(self.members.values())
        first = self.members[self.leader] if self.leader in self.members else next(members, None)
        if first is None:
            return {}
        known = [{each.name for each in member.protocols} for member in self.members.values()]
        return {each.name: None for each in first.protocols if all(each.name in names for names in known)}

    def select_protocol(self) -> str:
        candidates = self._common_protocols()
        assert candidates, f"group {self.group_id}: its members have no protocol in common"
        votes = dict.fromkeys(candidates, 0)
        for member in self.members.values():
            votes[member.vote(candidates)] += 1
        return max(votes, key=lambda name: votes[name])

    def note_subscriptions(self) -> None:
        """Which topics the members of a consumer group read; None: not known, so any may be."""
        self.subscribed_topics = None
        if self.protocol_type != PROTOCOL_TYPE:
            return
        topics: set[str] = set()
        if self.members:
            if self.protocol is None:
                return
            try:
                for member in self.members.values():
                    topics.update(decode_subscription(member.metadata(self.protocol)).topics)
            except ProtocolError:
                return
        self.subscribed_topics = frozenset(topics)

    def reads(self, topic: str) -> bool:
        return self.subscribed_topics is None or topic in self.subscribed_topics

    # -------------------------------------------------------------- views

    def member_views(self) -> tuple[JoinedMember, ...]:
        """What the leader needs in order to share out."""
        assert self.protocol is not None
        return tuple(
            JoinedMember(each.member_id, each.group_instance_id, each.metadata(self.protocol))
            for each in self.members.values()
        )

    def value(self, assignments: dict[str, bytes]) -> GroupValue:
        """The group as the log shall have it."""
        protocol = self.protocol
        members = tuple(
            MemberValue(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                each.metadata(protocol),
                assignments[each.member_id],
            )
            for each in self.members.values()
            if protocol is not None
        )
        timestamp = self.current_state_timestamp
        return GroupValue(self.protocol_type or "", self.generation, protocol, self.leader, timestamp, members)

    def check(self) -> None:
        ids = set(self.members)
        for member_id, member in self.members.items():
            assert member.member_id == member_id, f"{member.member_id} is filed as {member_id}"
            if member.group_instance_id is not None:
                assert self.static_members.get(member.group_instance_id) == member_id, f"{self.static_members}"
        assert set(self.static_members.values()) <= ids, f"{self.static_members} are not among {ids}"
        assert (self.leader in ids) == bool(ids), f"group {self.group_id}: leader {self.leader} of {ids}"
        assert not ids & set(self.pending), f"{self.pending} are members too"
        assert set(self.pending_sync) <= ids
        if ids:
            assert self.protocol_type is not None and self.state is not State.EMPTY, f"{self.state} with {ids}"
        assert self.state in (State.EMPTY, State.DEAD, State.PREPARING_REBALANCE) or ids, (
            f"{self.state} without members"
        )
        if self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            assert self.protocol is not None
