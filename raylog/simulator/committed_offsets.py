"""What must hold of offsets that copiers commit in their transactions (``group_copiers``), judged by what
coordinators of groups answer.

Owns who has sent which offset, and what of it was acknowledged; the decisions are those of
``__transaction_state`` (``decided_transactions``). Each offset names its transaction in its metadata. What
is checked of the process that leads::

    an offset is shown only when its transaction is committed
    no offset is shown that is older than one whose transaction had been committed before somebody asked for
    stable offsets, or whose marker had been acknowledged before somebody asked for any
    who asks for stable offsets is shown none while an acknowledged one is of a transaction that has not ended
    offsets are stored for nobody of a generation before one whose plan was given out (KIP-447)

That a transaction's records are shown if its offset is, and not twice, is what ``copy_checker`` says of the
target. An unclean election of ``__consumer_offsets`` or of ``__transaction_state`` ends all of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from raylog.groups.requests import (
    FetchedOffset,
    GroupReply,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFetched,
    Request,
    SyncedGroup,
    SyncGroup,
    TxnOffsetCommit,
)
from raylog.simulator.checkers import Violation
from raylog.simulator.transaction_checker import KnownTransaction


@dataclass(slots=True)
class _SentOffset:
    """An offset that was sent. ``is_acknowledged``: its producer knows that it is stored."""

    transaction: KnownTransaction
    offset: int
    is_acknowledged: bool = False


@dataclass(slots=True)
class _CopyingGroup:
    """``commits`` by what names them."""

    commits: dict[str, _SentOffset] = field(default_factory=dict)
    newest_generation: int = -1  # of which a plan was given out


@dataclass(frozen=True, slots=True)
class KnownAtReceipt:
    """What was so when a request reached a coordinator. ``committed_end``: the last offset of a
    committed transaction, ``marked_end`` of one whose markers were all acknowledged, −1 for none.
    ``under_way``: acknowledged offsets of those that had not ended.
    """

    newest_generation: int
    committed_end: int
    marked_end: int
    under_way: tuple[_SentOffset, ...]


class CommittedOffsets:
    """``coordinator_has_lost``: decisions, so that nothing is known any more."""

    def __init__(self, counts: Counter[str], coordinator_has_lost: Callable[[], bool]) -> None:
        self._counts = counts
        self._coordinator_has_lost = coordinator_has_lost
        self._groups: dict[str, _CopyingGroup] = {}

    def sent(self, group_id: str, transaction: KnownTransaction, offset: int) -> str:
        """An offset is about to be sent. Returns what names it."""
        name = name_of(transaction)
        self._groups.setdefault(group_id, _CopyingGroup()).commits[name] = _SentOffset(transaction, offset)
        return name

    def acknowledged(self, group_id: str, transaction: KnownTransaction) -> None:
        self._groups[group_id].commits[name_of(transaction)].is_acknowledged = True

    # ---------------------------------------------------------------- coordinators

    def received(self, request: Request) -> KnownAtReceipt:
        group = self._groups.get(getattr(request, "group_id", ""), _CopyingGroup())
        committed = [each for each in group.commits.values() if each.transaction.commits]
        ends = [each.offset for each in committed]
        marked = [each.offset for each in committed if each.transaction.marked >= each.transaction.partitions]
        under_way = [
            each for each in group.commits.values() if each.is_acknowledged and each.transaction.commits is None
        ]
        return KnownAtReceipt(group.newest_generation, max(ends, default=-1), max(marked, default=-1), tuple(under_way))

    def answered(self, request: Request, received: KnownAtReceipt, reply: GroupReply) -> None:
        """By the process that leads."""
        if self._coordinator_has_lost():
            return
        match request, reply:
            case SyncGroup(), SyncedGroup(error=0):
                group = self._groups.setdefault(request.group_id, _CopyingGroup())
                group.newest_generation = max(group.newest_generation, request.generation)
            case TxnOffsetCommit(), OffsetsCommitted():
                self._stored(request, received, reply)
            case OffsetFetch(), OffsetsFetched(error=0):
                for each in reply.partitions:
                    self._shown(request, received, each)

    def _stored(self, request: TxnOffsetCommit, received: KnownAtReceipt, reply: OffsetsCommitted) -> None:
        if any(each.error for each in reply.partitions):
            self._counts["offsets in transactions refused"] += 1
            return
        self._counts["offsets in transactions stored"] += 1
        if request.generation < received.newest_generation:
            raise Violation(f"{request} is stored, after generation {received.newest_generation} had its plan")

    def _shown(self, request: OffsetFetch, received: KnownAtReceipt, shown: FetchedOffset) -> None:
        if shown.error:
            self._counts["offsets that were not stable"] += 1
            return
        where = f"{request.group_id}: {shown}"
        if shown.offset >= 0:
            commit = self._groups[request.group_id].commits[shown.metadata]
            if not commit.transaction.commits:
                raise Violation(f"{where} is shown, of a transaction that commits: {commit.transaction.commits}")
        least = received.committed_end if request.require_stable else received.marked_end
        if shown.offset < least:
            raise Violation(f"{where} is shown, and {least} had been committed")
        left = [each for each in received.under_way if each.transaction.commits is None]
        if request.require_stable and left:
            raise Violation(f"{where} is shown as stable, and {left[0]} has not ended")
        self._counts["committed offsets shown"] += shown.offset >= 0


def name_of(transaction: KnownTransaction) -> str:
    return f"{transaction.name.transactional_id}/{transaction.name.number}"
