"""What must hold of a job whose tasks write in one transaction (``simulated_jobs``), judged by what the
log of ``__transaction_state`` says and by what a reader of committed records is shown at the end.

Owns what attempts at tasks have written, as far as that was acknowledged, and which of them each
commit has counted. Each row names its batch, its task and its number there, and the attempt that wrote
it: attempts at one task write the same rows. What is checked::

    batches are committed one after another, each once, and each with one attempt at each task
    who takes the job over is told how far it has come
    no producer id and epoch is given to two attempts
    at the end each row of each committed batch is shown once, where its attempt has it; no other row is

What an unclean election, damage or a deletion took from a partition is not missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raylog.log.log import Log
from raylog.simulator import damaged_logs
from raylog.simulator.checkers import Violation, read_batches
from raylog.simulator.transaction_checker import KnownTransaction
from raylog.simulator.transaction_history import Polled, transactional_records
from raylog.types import TopicIdPartition

UNKNOWN_OFFSET = -1  # of what was acknowledged without one
_ROW = b"row:"


class JobRow(NamedTuple):
    batch: int
    task: int
    number: int

    def written_by(self, attempt: int) -> bytes:
        """The value of the record."""
        return _ROW + f"{self.batch}/{self.task}/{self.number}/{attempt}".encode()


@dataclass(slots=True)
class KnownAttempt:
    """``rows``: where those are that were acknowledged."""

    batch: int
    task: int
    transaction: KnownTransaction
    rows: dict[JobRow, tuple[TopicIdPartition, int]] = field(default_factory=dict)


class JobChecker:
    """``holds`` says whether a partition has lost nothing but what was deleted, and
    ``coordinator_has_lost`` whether decisions are lost, so that nothing is known any more.
    """

    def __init__(
        self,
        tasks: int,
        counts: Counter[str],
        holds: Callable[[TopicIdPartition], bool],
        coordinator_has_lost: Callable[[], bool],
    ) -> None:
        self._tasks = tasks
        self._counts = counts
        self._holds = holds
        self._coordinator_has_lost = coordinator_has_lost
        self._attempts: dict[tuple[int, int], KnownAttempt] = {}  # by producer id and epoch
        self._committed: list[list[KnownAttempt]] = []  # of each batch, those that count
        self._shown: dict[TopicIdPartition, tuple[int, list[tuple[JobRow, int]]]] = {}  # and where each log starts

    @property
    def batches(self) -> int:
        """How many are committed."""
        return len(self._committed)

    def joined(self, batch: int, task: int, transaction: KnownTransaction) -> KnownAttempt:
        """An attempt was told which producer it is."""
        identity = transaction.producer_id, transaction.producer_epoch
        attempt = KnownAttempt(batch, task, transaction)
        if self._attempts.setdefault(identity, attempt) is not attempt:
            raise Violation(f"{identity} was given to two attempts: {self._attempts[identity]} and {attempt}")
        return attempt

    # ---------------------------------------------------------------- decisions

    def committed(self, label: str, transaction: KnownTransaction) -> None:
        """A transaction of several producers is decided; what of each of them, its participants say."""
        if label != str(self.batches):
            raise Violation(f"batch {label} is committed by {transaction.name}, and {self.batches} is the next one")
        identities = [(each.producer_id, each.producer_epoch) for each in transaction.participants if each.commits]
        counted = [self._attempts[each] for each in identities]
        found = sorted((each.batch, each.task) for each in counted)
        if found != [(self.batches, task) for task in range(self._tasks)]:
            raise Violation(f"batch {label} is committed with these of its tasks: {found}")
        self._committed.append(counted)

    def label_read(self, label: str, batches: int) -> int:
        """Who has taken the job over reads how far it has come; ``batches`` were committed when it
        asked. Returns the batch that is next.
        """
        following = int(label) + 1 if label else 0
        if not batches <= following <= self.batches and not self._coordinator_has_lost():
            raise Violation(f"{label!r} is the last batch; of {batches} to {self.batches} there are commits")
        return following

    # ---------------------------------------------------------------- the end

    def at_rest(self, id: TopicIdPartition, log: Log) -> None:
        """Somebody reads the whole partition."""
        if not self._holds(id) or damaged_logs.was_corrupted(log):
            return
        start, end = log.log_start_offset, log.high_watermark
        views = read_batches(log, start, end)  # the log may start amid the first
        self.was_read(id, start, transactional_records(views, log.transactions.aborted(start, end), start))

    def was_read(self, id: TopicIdPartition, start: int, records: Sequence[Polled]) -> None:
        """Those are the committed records of a partition from ``start`` on."""
        rows = [(_read_row(value), offset) for offset, value in records if value.startswith(_ROW)]
        self._shown[id] = start, rows

    def at_end(self) -> None:
        if self._coordinator_has_lost():
            return
        wanted = {row: place for batch in self._committed for each in batch for row, place in each.rows.items()}
        found: set[JobRow] = set()
        for id, (_, rows) in self._shown.items():
            for row, offset in rows:
                if wanted.get(row) not in ((id, offset), (id, UNKNOWN_OFFSET)) or row in found:
                    raise Violation(f"{row} is shown at {offset} of {id}; it was committed at {wanted.get(row)}")
                found.add(row)
        for row, (id, offset) in wanted.items():
            if id in self._shown and offset >= self._shown[id][0] and row not in found:
                raise Violation(f"{row} was committed at {offset} of {id}, and is not shown")
        self._counts["batches of jobs committed"] += self.batches
        self._counts["rows of jobs shown"] += len(found)


def _read_row(value: bytes) -> JobRow:
    batch, task, number, _ = value.removeprefix(_ROW).split(b"/")
    return JobRow(int(batch), int(task), int(number))
