"""What the active controller has decided, and what it may say about it.

Owns the two images and the decisions between them: ``latest`` holds every decision, committed or
not, and is what the next request is decided against; ``committed`` holds the committed ones, and is
what others are told. A decision's records are applied to ``latest`` as they are added, sealed into
one batch at the end of the event, and applied to ``committed`` when the quorum has committed the
batch.

What has to wait for the commit is *held*: by the batch sealed in the same event, else by the last
one that is still pending (an answer may rest on a decision before it), else it is free at once.

Invariants: sequence numbers are contiguous; ``latest`` = ``committed`` + the pending batches + the
open one, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from raylog.metadata.events import CloseSession, SendControllerReply, SendFrame
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import Record
from raylog.metadata.requests import ControllerReply
from raylog.types import TopicIdPartition


@dataclass(frozen=True, slots=True)
class Greet:
    """Held until its registration is committed: tell the new session everything that it shall hold."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Created:
    """Held until the partitions that this request creates are committed: the reply may have to wait
    for their leaders.
    """

    token: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Held until the move is committed: tell the session's process that another one holds the
    replica.
    """

    session_id: int
    id: TopicIdPartition


Held = SendControllerReply | SendFrame | CloseSession | Greet | LetGo | Created


@dataclass(frozen=True, slots=True)
class Decision:
    """One batch of records on its way through the quorum."""

    sequence: int
    records: tuple[Record, ...]
    held: list[Held]


class Ledger:
    __slots__ = ("_held", "_last_sequence", "_open", "_pending", "committed", "latest")

    def __init__(self, image: MetadataImage) -> None:
        self.committed = image
        self.latest = image.copy()
        self._pending: deque[Decision] = deque()
        self._open: list[Record] = []
        self._held: list[Held] = []
        self._last_sequence = 0

    def add(self, *records: Record) -> None:
        """Decide these records."""
        for record in records:
            self.latest.apply(record)
            self._open.append(record)

    def answer(self, token: int, records: Iterable[Record], reply: ControllerReply) -> None:
        """Decide these records; the reply waits until they are committed."""
        self.add(*records)
        self.hold(SendControllerReply(token, reply))

    def hold(self, *effects: Held) -> None:
        """Let these out when everything decided so far is committed."""
        self._held.extend(effects)

    def seal(self) -> tuple[Decision | None, list[Held]]:
        """Close the event: its decision, if it made one, and what need not wait."""
        held, self._held = self._held, []
        if self._open:
            self._last_sequence += 1
            decision = Decision(self._last_sequence, tuple(self._open), held)
            self._open = []
            self._pending.append(decision)
            return decision, []
        if self._pending:
            self._pending[-1].held.extend(held)
            return None, []
        return None, held

    def commit(self, sequence: int) -> Decision:
        """The next pending decision, now committed and applied."""
        decision = self._pending.popleft()
        assert decision.sequence == sequence, f"committed {sequence}, expected {decision.sequence}"
        for record in decision.records:
            self.committed.apply(record)
        return decision

    @property
    def is_settled(self) -> bool:
        return not self._pending and not self._open

    def unanswered(self) -> list[int]:
        """The tokens of the requests whose replies are held."""
        held = [effect for decision in self._pending for effect in decision.held] + self._held
        return [effect.token for effect in held if isinstance(effect, SendControllerReply | Created)]

    def drop_reply(self, token: int) -> None:
        for decision in self._pending:
            decision.held[:] = [
                each
                for each in decision.held
                if not (isinstance(each, SendControllerReply | Created) and each.token == token)
            ]

    def check(self) -> None:
        assert not self._open and not self._held, "an event was not sealed"
        self.latest.check()
        if self.is_settled:
            assert self.latest == self.committed, "the images differ although nothing is pending"
