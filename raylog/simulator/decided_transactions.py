"""What the log of ``__transaction_state`` says, for the checkers: records as they are first seen below a
high watermark, before anybody can act on them.

Owns what is under way of each transactional id, and tells the checker of transactions
(``KnownTransaction``) which partitions were taken in, and what was decided. What is checked here::

    a transaction is decided once, and one that nobody wrote in is not committed
    it is complete only when no partition has it open any more
    a producer that was told of a commit, or of an abort, has it
    whoever was told that it writes in a transaction of several producers is part of the decision

An unclean election of ``__transaction_state`` may take back all of that: then nothing of
transactions is checked any more (``has_lost``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raylog.simulator.checkers import Checkers, Violation
from raylog.transactions.records import Participation, TransactionState, TransactionValue, decode
from raylog.transactions.transaction import PREPARED
from raylog.types import TopicIdPartition, TopicPartition

if TYPE_CHECKING:
    from collections import Counter

    from raylog.simulator.transaction_checker import KnownTransaction, TransactionChecker


@dataclass(slots=True)
class _StatePartition:
    """Of ``__transaction_state``. All records below ``read_end`` are taken in."""

    read_end: int = 0
    under_way: dict[str, KnownTransaction] = field(default_factory=dict)


class DecidedTransactions:
    """``is_deleted`` says whether somebody has asked for the end of a partition's topic."""

    def __init__(
        self,
        checkers: Checkers,
        checker: TransactionChecker,
        counts: Counter[str],
        is_deleted: Callable[[TopicIdPartition], bool],
    ) -> None:
        self._checkers = checkers
        self._is_deleted = is_deleted
        self.on_decision: Callable[[TopicIdPartition], None] = lambda id: None  # in that partition
        self.on_shared_commit: Callable[[str, KnownTransaction], None] = lambda label, transaction: None
        self._checker = checker
        self._counts = counts
        self._partitions: dict[TopicIdPartition, _StatePartition] = {}
        self._ids: dict[TopicPartition, list[TopicIdPartition]] = {}  # all that ever had the name

    def follow(self, topic: str, id: TopicIdPartition) -> None:
        """There is a new partition that transactions may write to."""
        self._ids.setdefault(TopicPartition(topic, id.partition), []).append(id)

    def follow_state(self, id: TopicIdPartition) -> None:
        """There is a partition of ``__transaction_state``."""
        self._partitions[id] = _StatePartition()

    @property
    def has_lost(self) -> bool:
        return any(self._checkers.history(id).generation for id in self._partitions)

    def seen(self, id: TopicIdPartition) -> None:
        """Something became of a replica; the checkers of the log have seen it."""
        known = self._partitions.get(id)
        if known is None or self.has_lost:
            return
        history = self._checkers.history(id)
        while known.read_end < history.end:
            content = history.records.get(known.read_end)
            known.read_end += 1
            record = decode(content[0], content[1]) if content is not None else None
            if record is not None:
                self._take(known, record.key.transactional_id, record.value)
                if record.value is not None and record.value.state in PREPARED:
                    self.on_decision(id)

    def are_ending(self, id: TopicIdPartition) -> bool:
        """Whether some transaction of that partition is decided and not complete."""
        return any(each.commits is not None for each in self._partitions[id].under_way.values())

    def _take(self, known: _StatePartition, transactional_id: str, value: TransactionValue | None) -> None:
        transaction = known.under_way.get(transactional_id)
        if value is None or value.state is TransactionState.EMPTY:
            known.under_way.pop(transactional_id, None)
        elif value.state is TransactionState.ONGOING:
            begun = known.under_way[transactional_id] = self._under_way(transactional_id, value, transaction)
            begun.partitions.update(id for each in value.partitions for id in self._ids.get(each, ()))
        elif value.state in PREPARED:
            commits = value.state is TransactionState.PREPARE_COMMIT
            self._counts["transactions committed" if commits else "transactions aborted"] += 1
            if transaction is not None:
                self._decide(transaction, commits=commits)
                self._decide_on_participants(transaction, value)
            elif commits:
                raise Violation(f"{transactional_id} commits a transaction that is not under way: {value}")
        elif transaction is not None:
            self._complete(transaction, value)
            del known.under_way[transactional_id]

    def _under_way(
        self, transactional_id: str, value: TransactionValue, known: KnownTransaction | None
    ) -> KnownTransaction:
        """The one that its producer began last. If that has ended, a request of it has come late, and
        began one that nobody knows of and that ends by its timeout.
        """
        try:
            newest = self._checker.newest(transactional_id, value.producer_epoch)
        except KeyError:
            raise Violation(f"{transactional_id} is under way in an epoch in which nobody began: {value}") from None
        if newest.commits is None:
            return newest
        if known is not None and known.commits is None:
            return known
        self._counts["transactions that nobody began"] += 1
        return type(newest)(newest.name, newest.producer_id, newest.producer_epoch)

    def _decide(self, transaction: KnownTransaction, *, commits: bool) -> None:
        if transaction.commits is not None:
            raise Violation(f"{transaction.name} is decided twice: {transaction.commits}, and {commits}")
        transaction.commits = commits

    def _decide_on_participants(self, transaction: KnownTransaction, value: TransactionValue) -> None:
        parts = {(each.producer_id, each.producer_epoch - 1): each.part for each in value.participants}
        for each in transaction.participants:
            part = parts.get((each.producer_id, each.producer_epoch), Participation.SPARE)
            if part is Participation.SPARE:
                raise Violation(f"{each.name} has joined {transaction.name}, and is no part of it: {value}")
            self._decide(each, commits=part is Participation.WINS)
        if transaction.commits and value.participants:
            self.on_shared_commit(value.label, transaction)

    def _complete(self, transaction: KnownTransaction, value: TransactionValue) -> None:
        if transaction.commits is not (value.state is TransactionState.COMPLETE_COMMIT):
            raise Violation(f"{transaction.name} commits: {transaction.commits}, and is complete as {value}")
        parts = (transaction, *transaction.participants)
        still_open = [id for part in parts for id in self._checker.still_open(part) if not self._is_deleted(id)]
        if still_open:
            raise Violation(f"{transaction.name} is complete, and still open in {still_open}")
        transaction.marked |= set(filter(self._checker.has_seen, transaction.partitions))

    def acknowledged(self, transaction: KnownTransaction, *, commits: bool) -> None:
        """Its producer was told that it has ended."""
        is_so = transaction.commits is True if commits else transaction.commits is not True
        if not is_so and not self.has_lost:
            raise Violation(f"the producer of {transaction.name} was told commits={commits}: {transaction.commits}")

    def unfinished(self) -> str | None:
        for id, known in self._partitions.items():
            for transactional_id in known.under_way if not self.has_lost else ():
                return f"the coordinator of {id.partition} is amid a transaction of {transactional_id}"
        return None
