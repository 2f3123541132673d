"""A group coordinator on a bench: a log in memory, a clock in the hand, and members that are one call each.

The log takes what the machine appends. While ``replicates`` everything is replicated at once; else ``replicate()`` does it.
"""

from __future__ import annotations

import uuid
from collections import deque
from typing import Any

from raylog.coordination.coordinator import CoordinatorRole, PartitionCoordinator
from raylog.coordination.events import (
    Append,
    Appended,
    Applicable,
    CoordinatorRequestReceived,
    CoordinatorTicked,
    Effect,
    Elected,
    EndOfTransaction,
    Event,
    HighWatermarkRose,
    MarkerAppended,
    OfTransaction,
    Replayed,
    Resigned,
)
from raylog.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.groups.context import GroupConfig
from raylog.groups.machine import GroupCoordinator, GroupKind
from raylog.groups.records import GroupRecord, decode, encode
from raylog.groups.requests import (
    CommittedPartition,
    FetchedOffset,
    GroupHeartbeat,
    GroupReply,
    JoinedGroup,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    LeftGroup,
    OffsetCommit,
    OffsetFetch,
    OffsetsFetched,
    Protocol,
    Request,
    SyncedGroup,
    SyncGroup,
    TxnOffsetCommit,
)
from raylog.replication.transaction_events import TransactionMembership
from raylog.types import TopicPartition

GROUP = "g"
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def range_of(*topics: str) -> tuple[Protocol, ...]:
    """The protocols of a consumer that knows range alone."""
    return (Protocol("range", encode_subscription(Subscription(topics))),)


class Bench:
    """``answers`` holds every answer by its token; ``log`` every batch with the offset of its first record."""

    def __init__(self, config: GroupConfig | None = None, *, lead: bool = True) -> None:
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self._ids = 0
        self._tokens = 0
        self.now_ms = 1_000
        self.wall_ms = 1_700_000_000_000
        self.answers: dict[int, GroupReply] = {}
        self.asked: list[int] = []
        self.log: list[Applicable[GroupRecord]] = []
        self.high_watermark = 0
        self.leader_epoch = 0
        self.replicates = True
        self.append_error = 0
        self.held: deque[tuple[int, int]] = deque()  # appends that were taken and not yet replicated
        self.coordinator = self._new()
        if lead:
            self.elect()

    def _new(self) -> GroupCoordinator:
        return PartitionCoordinator(GroupKind(self.config, new_uuid=self._new_uuid).machine(0))

    def _new_uuid(self) -> uuid.UUID:
        self._ids += 1
        return uuid.UUID(int=self._ids)

    # -------------------------------------------------------------- the log

    def handle(self, event: Event) -> None:
        self._run(self.coordinator.handle(event, self.now_ms, self.wall_ms))
        self.coordinator.check()

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self._append(effect)
            else:
                assert effect.token in self.asked, f"an answer to nobody: {effect}"
                assert effect.token not in self.answers, f"answered twice: {self.answers[effect.token]}, then {effect}"
                self.answers[effect.token] = effect.reply

    def _append(self, append: Append) -> None:
        assert append.leader_epoch == self.leader_epoch, f"{append} in epoch {self.leader_epoch}"
        if self.append_error:
            self.handle(Appended(append.sequence, -1, self.append_error))
            return
        for record in append.records:
            again = decode(*encode(record))
            assert again == record
            of = append.transactional
            self.log.append(record if of is None else OfTransaction(of.producer_id, record))
        self.handle(Appended(append.sequence, len(self.log)))
        if self.replicates:
            self.replicate()

    def replicate(self) -> None:
        """Everything in the log is replicated now."""
        self.high_watermark = len(self.log)
        self.handle(HighWatermarkRose(self.high_watermark))

    def end_transaction(self, producer_id: int, *, commit: bool = True) -> None:
        """Its marker is appended."""
        end = EndOfTransaction(producer_id, commit)
        self.log.append(end)
        self.handle(MarkerAppended(len(self.log), end))
        if self.replicates:
            self.replicate()

    def elect(self) -> None:
        """The coordinator leads, in the next epoch, and reads the tail."""
        self.leader_epoch += 1
        self.handle(Elected(self.leader_epoch, len(self.log)))
        self.replay()

    def replay(self) -> None:
        self.high_watermark = len(self.log)
        if self.coordinator.role is not CoordinatorRole.LEADING:
            self.handle(Replayed(tuple(self.log[self.coordinator.position :]), len(self.log)))

    def resign(self) -> None:
        self.handle(Resigned(self.leader_epoch))

    def fail_over(self, *, keep: int | None = None) -> None:
        """Another process leads, with an empty memory, and a log that ends at ``keep`` (by default the high watermark)."""
        self.resign()
        self.log = self.log[: self.high_watermark if keep is None else keep]
        self.coordinator = self._new()
        self.elect()

    # -------------------------------------------------------------- time

    def pass_time(self, ms: int) -> None:
        """Let time go by, with every deadline at its moment."""
        until_ms = self.now_ms + ms
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= until_ms:
            self._go_to(max(due_ms, self.now_ms))
            self.handle(CoordinatorTicked())
        self._go_to(until_ms)

    def _go_to(self, now_ms: int) -> None:
        self.wall_ms += now_ms - self.now_ms
        self.now_ms = now_ms

    # -------------------------------------------------------------- requests

    def ask(self, request: Request) -> int:
        """Send a request; its token."""
        self._tokens += 1
        self.asked.append(self._tokens)
        self.handle(CoordinatorRequestReceived(self._tokens, request))
        return self._tokens

    def call(self, request: Request) -> Any:
        """The answer to a request, which comes at once."""
        token = self.ask(request)
        assert token in self.answers, f"{request} waits"
        return self.answers[token]

    def answer(self, token: int) -> Any:
        assert token in self.answers, f"request {token} waits"
        return self.answers[token]

    def waits(self, token: int) -> bool:
        return token not in self.answers

    def join(self, member_id: str = "", **fields: Any) -> int:
        """A JoinGroup of a consumer that reads topic t; its token."""
        values: dict[str, Any] = {
            "protocol_type": "consumer",
            "protocols": range_of("t"),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "needs_member_id": False,
        }
        return self.ask(JoinGroup(GROUP, member_id, **(values | fields)))

    def sync(self, joined: JoinedGroup, assignments: dict[str, bytes] | None = None, **fields: Any) -> int:
        """The SyncGroup that follows that answer; a leader sends ``assignments``."""
        given = tuple((assignments or {}).items())
        return self.ask(SyncGroup(GROUP, joined.member_id, joined.generation, given, **fields))

    def members(self, count: int, **fields: Any) -> list[JoinedGroup]:
        """A stable group of so many members; the last answer to each one's JoinGroup. The first one leads."""
        joined: list[JoinedGroup] = []
        for _ in range(count):
            tokens = [self.join(**fields)]
            for each in joined:
                tokens.append(self.join(each.member_id, **fields))
            joined = [self.answer(token) for token in [*tokens[1:], tokens[0]]]
        leader = next(each for each in joined if each.leader == each.member_id)
        plan = {each.member_id: each.member_id.encode() for each in joined}
        tokens = [self.sync(each, plan if each is leader else None) for each in joined]
        for each, token in zip(joined, tokens, strict=True):
            synced = self.answer(token)
            assert isinstance(synced, SyncedGroup) and not synced.error, synced
            assert synced.assignment == each.member_id.encode()
        return [leader, *(each for each in joined if each is not leader)]

    def beat(self, joined: JoinedGroup, **fields: Any) -> int:
        """The error of a heartbeat."""
        error: int = self.call(GroupHeartbeat(GROUP, joined.member_id, joined.generation, **fields)).error
        return error

    def leave(self, *member_ids: str) -> LeftGroup:
        left: LeftGroup = self.call(LeaveGroup(GROUP, tuple(LeavingMember(each) for each in member_ids)))
        return left

    def commit(self, offset: int, joined: JoinedGroup | None = None, *, topic: str = "t", **fields: Any) -> int:
        """An OffsetCommit for partition 0; its token. ``joined`` None: from outside of the group."""
        metadata = fields.pop("metadata", "")
        partitions = (CommittedPartition(topic, 0, offset, 3, metadata),)
        if joined is not None:
            fields |= {"member_id": joined.member_id, "generation": joined.generation}
        return self.ask(OffsetCommit(GROUP, partitions, **fields))

    def commit_in_transaction(
        self, offset: int, producer_id: int = 1, joined: JoinedGroup | None = None, *, topic: str = "t", **fields: Any
    ) -> int:
        """A TxnOffsetCommit for partition 0; its token."""
        partitions = (CommittedPartition(topic, 0, offset, 3),)
        if joined is not None:
            fields = {"member_id": joined.member_id, "generation": joined.generation} | fields
        return self.ask(TxnOffsetCommit(GROUP, partitions, producer_id, 0, TransactionMembership("x"), **fields))

    def committed(self, topic: str = "t") -> int:
        """What OffsetFetch says of partition 0; −1 for nothing."""
        fetched: OffsetsFetched = self.call(OffsetFetch(GROUP, (TopicPartition(topic, 0),)))
        assert not fetched.error and isinstance(fetched.partitions[0], FetchedOffset)
        return fetched.partitions[0].offset


def plan_of(**partitions: list[int]) -> dict[str, bytes]:
    """Assignments of topic t by member, as a leading consumer encodes them."""
    return {
        member: encode_assignment(ConsumerProtocolAssignment(tuple(TopicPartition("t", each) for each in numbers)))
        for member, numbers in partitions.items()
    }
