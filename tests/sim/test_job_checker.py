"""The checker of jobs whose tasks write in one transaction finds each of the faults that it is there for."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from raylog.simulator.checkers import Violation
from raylog.simulator.job_checker import JobChecker, JobRow, KnownAttempt
from raylog.simulator.transaction_checker import KnownTransaction, TransactionName
from raylog.types import TopicIdPartition

pytestmark = pytest.mark.sim

TOPIC = uuid.UUID(int=1)
P0, P1 = TopicIdPartition(TOPIC, 0), TopicIdPartition(TOPIC, 1)


class Job:
    """Writes batches of two tasks, one row each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.checker = JobChecker(2, self.counts, lambda id: True, lambda: False)
        self.producer_ids = 100

    def attempt(self, batch: int, task: int, id: TopicIdPartition, offset: int) -> KnownAttempt:
        self.producer_ids += 1
        transaction = KnownTransaction(TransactionName("job@", self.producer_ids), self.producer_ids, 0)
        known = self.checker.joined(batch, task, transaction)
        known.rows[JobRow(batch, task, 0)] = (id, offset)
        return known

    def commit(self, batch: int, *winners: KnownAttempt) -> None:
        owner = KnownTransaction(TransactionName("job", batch), 1, batch, commits=True)
        owner.participants = [each.transaction for each in winners]
        for each in winners:
            each.transaction.commits = True
        self.checker.committed(str(batch), owner)

    def shown(self, id: TopicIdPartition, *rows: tuple[int, JobRow], start: int = 0) -> None:
        self.checker.was_read(id, start, [(offset, row.written_by(7)) for offset, row in rows])


def written() -> Job:
    """One batch is committed: a row at offset 5 of one partition, and one at 6 of another."""
    job = Job()
    job.attempt(0, 1, P1, 9)
    job.commit(0, job.attempt(0, 0, P0, 5), job.attempt(0, 1, P1, 6))
    return job


ROW, OTHER = JobRow(0, 0, 0), JobRow(0, 1, 0)


def test_a_job_that_is_whole_passes() -> None:
    job = written()
    job.shown(P0, (5, ROW))
    job.checker.was_read(P1, 0, [(3, b"of somebody else"), (6, OTHER.written_by(1))])
    job.checker.at_end()
    assert job.counts == {"batches of jobs committed": 1, "rows of jobs shown": 2}


def test_a_row_that_is_not_shown_is_missed() -> None:
    job = written()
    job.shown(P0, (5, ROW))
    job.shown(P1)
    with pytest.raises(Violation, match=r"was committed at 6 of .* and is not shown"):
        job.checker.at_end()


def test_what_was_deleted_is_not_missed() -> None:
    job = written()
    job.shown(P0, start=6)  # and the other partition is gone
    job.checker.at_end()


@pytest.mark.parametrize("offset", [9, 5], ids=["of an attempt that lost", "twice"])
def test_a_row_that_is_shown_elsewhere_is_found(offset: int) -> None:
    job = written()
    job.shown(P0, (5, ROW))
    job.shown(P1, (6, OTHER), (9, OTHER if offset == 9 else ROW))
    with pytest.raises(Violation, match="is shown at 9"):
        job.checker.at_end()


def test_a_row_without_a_known_offset_is_shown_once() -> None:
    job = Job()
    job.commit(0, job.attempt(0, 0, P0, -1), job.attempt(0, 1, P0, -1))
    job.shown(P0, (5, ROW), (6, OTHER))
    job.checker.at_end()
    job.shown(P0, (5, ROW), (6, OTHER), (7, ROW))
    with pytest.raises(Violation, match="is shown at 7"):
        job.checker.at_end()


def test_a_batch_that_is_committed_again_is_found() -> None:
    job = written()
    with pytest.raises(Violation, match=r"batch 0 is committed by .* and 1 is the next one"):
        job.commit(0, job.attempt(0, 0, P0, 15), job.attempt(0, 1, P1, 16))


@pytest.mark.parametrize("tasks", [(0,), (0, 0), (0, 1, 1)])
def test_a_batch_has_one_attempt_at_each_task(tasks: tuple[int, ...]) -> None:
    job = Job()
    with pytest.raises(Violation, match="with these of its tasks"):
        job.commit(0, *(job.attempt(0, task, P0, at) for at, task in enumerate(tasks)))


def test_a_driver_has_to_be_told_how_far_its_job_has_come() -> None:
    job = written()
    assert job.checker.label_read("0", 1) == 1
    assert job.checker.label_read("0", 0) == 1, "it was committed after the question"
    for label in ("", "1"):
        with pytest.raises(Violation, match="is the last batch"):
            job.checker.label_read(label, 1)


def test_no_producer_id_and_epoch_is_for_two_attempts() -> None:
    job = Job()
    first = job.attempt(0, 0, P0, 5)
    with pytest.raises(Violation, match="was given to two attempts"):
        job.checker.joined(0, 0, KnownTransaction(TransactionName("job@", 0), first.transaction.producer_id, 0))
