"""A job of a simulated cluster whose tasks write in one transaction, as Spark's and Ray Data's do
(``raylog.client.transactions.shared``).

Its driver owns a transactional id, and writes batch after batch, one transaction each. Each attempt at a
task joins the driver's transaction, as a producer of its own, and writes the task's rows. The driver
commits with one attempt at each task, and with the batch's number as the label; the next driver reads it,
and so knows which batch is next. While a transaction is under way the driver tells the coordinator that it
lives.

What jobs may meet they do: a driver dies at any step, pauses for longer than its transaction may take, or
goes on beside its successor. An attempt is overtaken by another one and writes on, ends amid its rows,
or has written all and is never heard of. Batches that were appended are sent again when the transaction
has long ended. ``job_checker`` knows what has to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.records.codec import encode_values
from raylog.replication.transaction_events import TransactionMembership
from raylog.simulator.job_checker import UNKNOWN_OFFSET, JobChecker, JobRow, KnownAttempt
from raylog.simulator.processes import Process
from raylog.simulator.transaction_checker import KnownTransaction, TransactionName, value_of
from raylog.simulator.transaction_coordinator import TIMEOUT_MS, CoordinatorSays
from raylog.simulator.transactional_producers import BatchSender
from raylog.simulator.workload import NETWORK_EXCEPTION, RETRIABLE
from raylog.transactions.requests import (
    VERSION_2,
    EndTransaction,
    JoinTransaction,
    KeepTransaction,
    TransactionEnded,
    TransactionJoined,
    TransactionKept,
    TransactionRequest,
)
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.hosted_transactions import HostedTransactions
    from raylog.simulator.simulation import Simulation

TASKS = 2
KEEP_US = TIMEOUT_MS * 1_000 // 4
PATIENCE_US = 800_000  # of a driver that hears nothing of an attempt
Reported = Callable[["TaskAttempt", int], None]


class SimulatedJob(Process):
    """The job: its drivers, one after another, and the executors of their tasks, which are one process
    here.
    """

    def __init__(self, transactions: HostedTransactions) -> None:
        super().__init__("job", transactions.simulation.client_machine)
        self.transactions = transactions
        self.simulation: Simulation = transactions.simulation
        self.transactional_id = self.name
        self.membership = TransactionMembership(self.transactional_id, adds=True, is_abortable=True)
        self.checker = JobChecker(
            TASKS,
            self.simulation.counts,
            transactions.checker.holds,
            transactions.checker.coordinator_has_lost,
        )
        transactions.decided.on_shared_commit = self.checker.committed
        self.is_over = False
        self._numbers = 0
        self._senders: dict[TopicIdPartition, BatchSender] = {}
        self._drivers: list[JobDriver] = []
        self.arrive()
        self._replace_later()

    @property
    def current(self) -> JobDriver:
        return self._drivers[-1]

    def arrive(self) -> None:
        """Another driver takes the job over."""
        self._drivers = [each for each in self._drivers if each.alive]
        self._drivers.append(JobDriver(self))

    def places(self) -> list[TopicIdPartition]:
        """The partitions that rows can go to."""
        return sorted(id for id in self.transactions.partitions if not self.simulation.is_deleted(id))

    def new_name(self, transactional_id: str) -> TransactionName:
        self._numbers += 1
        return TransactionName(transactional_id, self._numbers)

    def sender(self, id: TopicIdPartition) -> BatchSender:
        if id not in self._senders:
            self._senders[id] = BatchSender(self, self.transactions.partitions[id], id)
        return self._senders[id]

    def ask(self, asker: Process, request: TransactionRequest, answered: Callable[[Any], None]) -> None:
        """Until there is an answer that is not retriable."""

        def heard(reply: Any) -> None:
            if (NETWORK_EXCEPTION if reply is None else reply.error) in RETRIABLE:
                delay_us = self.scheduler.between(5_000, 60_000) * self.slowness
                asker.later(delay_us, lambda: self.ask(asker, request, answered), f"{asker.name} asks again")
            else:
                answered(reply)

        self.transactions.hosted.ask(asker, request, heard)

    @property
    def slowness(self) -> int:
        return self.simulation.calm if self.simulation.rhythm.is_night else 1

    # ---------------------------------------------------------------- faults

    def _replace_later(self) -> None:
        self.simulation.rhythm.later(self.later, 700_000, self._replace, "a driver is replaced")

    def _replace(self) -> None:
        if self.simulation.is_healing:
            return
        what = self.scheduler.rng.choice(("dies", "is paused", "goes on"))
        former = self.current
        self.simulation.trace(f"{former.name} {what}, and is replaced")
        self.simulation.counts["drivers of jobs replaced"] += 1
        if what == "dies":
            former.kill()
        elif what == "is paused":
            former.pause()
            self.scheduler.after_ms(self.scheduler.between(10, 3_000), former.resume, "a driver wakes up")
        self.arrive()
        self._replace_later()

    # ---------------------------------------------------------------- the end

    def stop(self) -> None:
        self.is_over = True
        for driver in list(self._drivers):
            driver.resume()

    def unfinished(self) -> str | None:
        if not self.current.alive:
            self.arrive()
        if not self.current.is_ready:
            return f"{self.current.name} has not taken the job over"
        for driver in self._drivers:
            if driver.alive and driver.transaction is not None:
                return f"{driver.name} is amid batch {driver.batch}, {driver.transaction.name}"
        return None


class JobDriver(Process):
    """``transaction``: the one under way, of ``batch``. ``is_ready``: it has the id, and knows which batch
    is next.
    """

    def __init__(self, job: SimulatedJob) -> None:
        super().__init__(f"driver{job.new_name('driver').number}", job.machine)
        self.job = job
        self.simulation = job.simulation
        self.is_ready = False
        self.batch = -1
        self.transaction: KnownTransaction | None = None
        self._identity = (-1, -1)
        self._winners: dict[int, TaskAttempt] = {}
        self._is_ending = False  # the end of the transaction is asked for
        self._next_later()

    def _next_later(self) -> None:
        self.simulation.rhythm.later(self.later, 50_000, self._next, f"{self.name} goes on")

    def _next(self) -> None:
        if self.job.current is not self and not self.is_ready:
            self.later(0, self.kill, f"{self.name} gives way")
        elif not self.is_ready:
            self._take_over()
        elif self.job.is_over:
            pass
        elif self.job.places():
            self._begin()
        else:
            self._next_later()

    def _take_over(self) -> None:
        def heard(says: CoordinatorSays) -> None:
            if says.error in RETRIABLE:
                delay_us = self.scheduler.between(5_000, 60_000) * self.job.slowness
                self.later(delay_us, self._take_over, f"{self.name} asks again")
                return
            assert not says.error, says
            self._identity = (says.producer_id, says.producer_epoch)
            self._read_label()

        self.job.transactions.hosted.initialise(self, self.job.transactional_id, VERSION_2, heard)

    def _read_label(self) -> None:
        batches = self.job.checker.batches

        def heard(reply: TransactionKept) -> None:
            if reply.error:
                self._end_later()
                return
            self.batch = self.job.checker.label_read(reply.label, batches)
            self.is_ready = True
            self._next_later()

        self.job.ask(self, KeepTransaction(self.job.transactional_id, *self._identity), heard)

    def _end_later(self) -> None:
        """It is fenced, or its transaction has taken too long: another one goes on."""
        self.transaction = None
        self.later(0, self._end, f"{self.name} is fenced")

    def _end(self) -> None:
        is_current = self.job.current is self
        self.kill()
        if is_current:
            self.job.arrive()

    # ---------------------------------------------------------------- a batch

    def _begin(self) -> None:
        name = self.job.new_name(self.job.transactional_id)
        transaction = self.job.transactions.checker.begun(name, *self._identity)
        self.transaction, self._winners, self._is_ending = transaction, {}, False
        self._keep_later(transaction)
        for task in range(TASKS):
            self._try(transaction, task)
        if self.scheduler.chance(0.1) and not self.job.is_over:
            self.later(self.scheduler.skewed_us(30_000), lambda: self._dies(transaction), f"{self.name} dies")

    def _keep_later(self, transaction: KnownTransaction) -> None:
        self.later(KEEP_US, lambda: self._keep(transaction), f"{self.name} says that it lives")

    def _keep(self, transaction: KnownTransaction) -> None:
        """What fails here the end will tell."""
        if self.transaction is transaction:
            request = KeepTransaction(self.job.transactional_id, *self._identity)
            self.job.transactions.hosted.ask(self, request, lambda reply: None)
            self._keep_later(transaction)

    def _dies(self, transaction: KnownTransaction) -> None:
        if self.transaction is transaction and not self.job.is_over:
            self.simulation.counts["drivers of jobs that died amid a batch"] += 1
            self._end()

    def _try(self, transaction: KnownTransaction, task: int) -> None:
        """One attempt after another, until one counts."""
        if not self._wants(transaction, task):
            return
        self._attempt(transaction, task)
        again_us = PATIENCE_US * self.job.slowness
        if self.scheduler.chance(0.2) and not self.job.is_over:
            again_us = self.scheduler.skewed_us(20_000)  # it is slow, so another one begins beside it
        self.later(again_us, lambda: self._try(transaction, task), f"{self.name} tries task {task} again")

    def _wants(self, transaction: KnownTransaction, task: int) -> bool:
        return self.transaction is transaction and task not in self._winners and not self._is_ending

    def _attempt(self, transaction: KnownTransaction, task: int) -> None:
        if self.job.places():
            self.simulation.counts["attempts at tasks of jobs"] += 1
            TaskAttempt(self.job, transaction, self._identity, self.batch, task, self._reported)
        else:
            self._decide(transaction, commits=False)

    def _reported(self, attempt: TaskAttempt, error: int) -> None:
        """An attempt has come to an end; this takes a moment to arrive."""
        self.later(self.scheduler.skewed_us(2_000), lambda: self._hears(attempt, error), f"{self.name} hears of a task")

    def _hears(self, attempt: TaskAttempt, error: int) -> None:
        if not self._wants(attempt.owner, attempt.task):
            return
        if attempt.known is None:
            self._end_later()  # it could not join
        elif error:
            self._attempt(attempt.owner, attempt.task)
        else:
            self._winners[attempt.task] = attempt
            if len(self._winners) == TASKS:
                self._decide(attempt.owner, commits=self.job.is_over or self.scheduler.chance(0.9))

    def _decide(self, transaction: KnownTransaction, *, commits: bool) -> None:
        self._is_ending = True
        winners = [each for _, each in sorted(self._winners.items())] if commits else []
        for each in winners:
            each.recorded.is_ending = True
        request = EndTransaction(
            self.job.transactional_id,
            *self._identity,
            commits,
            VERSION_2,
            is_shared=True,
            winners=tuple(each.producer_id for each in winners),
            label=str(self.batch) if commits else "",
        )
        self.job.ask(self, request, lambda reply: self._ended(transaction, winners, reply))
        if self.scheduler.chance(0.1) and not self.job.is_over:
            self.later(self.scheduler.skewed_us(5_000), lambda: self._dies(transaction), f"{self.name} dies")

    def _ended(self, transaction: KnownTransaction, winners: list[TaskAttempt], reply: TransactionEnded) -> None:
        if self.transaction is not transaction:
            return
        if reply.error:
            self._end_later()
            return
        self.job.transactions.decided.acknowledged(transaction, commits=bool(winners))
        for each in winners:
            self.job.transactions.history.ended(each.recorded, is_acknowledged=True)
        self._identity = (reply.producer_id, reply.producer_epoch)
        self.batch += bool(winners)
        self.transaction = None
        self._next_later()


class TaskAttempt:
    """One attempt at a task: joins, writes the rows one after another, and reports. ``known`` is None
    until it has joined.
    """

    def __init__(
        self,
        job: SimulatedJob,
        owner: KnownTransaction,
        identity: tuple[int, int],
        batch: int,
        task: int,
        reported: Reported,
    ) -> None:
        self.job = job
        self.owner = owner
        self.task = task
        self.known: KnownAttempt | None = None
        self._batch = batch
        self._name = job.new_name(f"{job.name}@{task}")
        self._reported = reported
        scheduler = job.scheduler
        is_lost = scheduler.chance(0.1) and not job.is_over
        self._rows = 1 + (batch + task) % 3
        self._rows_left = scheduler.between(1, self._rows) if is_lost else -1  # then it ends, and nobody hears of it
        self._sequences: dict[TopicIdPartition, int] = {}
        history = job.transactions.history
        self.recorded = history.begun(history.process(f"{self._name.transactional_id}.{self._name.number}"))
        job.ask(job, JoinTransaction(job.transactional_id, *identity), self._joined)

    @property
    def producer_id(self) -> int:
        assert self.known is not None, self._name
        return self.known.transaction.producer_id

    def _joined(self, reply: TransactionJoined) -> None:
        if reply.error:
            self._reported(self, reply.error)
            return
        checker = self.job.transactions.checker
        transaction = checker.joined(self._name, self.owner, reply.producer_id, reply.producer_epoch)
        self.known = self.job.checker.joined(self._batch, self.task, transaction)
        if there := self.job.places():
            ids = self.job.scheduler.rng.sample(there, min(len(there), 2))
            self._write(self.known, ids, 0)
        else:
            self._reported(self, NETWORK_EXCEPTION)

    def _write(self, known: KnownAttempt, ids: list[TopicIdPartition], number: int) -> None:
        """The row of that number; then the next one."""
        id, transaction = self.job.scheduler.rng.choice(ids), known.transaction
        row = JobRow(self._batch, self.task, number)
        written = self._sequences.get(id, 0)
        values = [value_of(self._name, written), row.written_by(self._name.number)]
        self._sequences[id] = written + 1
        data = bytes(
            encode_values(
                values,
                timestamp_ms=self.job.machine.wall_ms(),
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                base_sequence=written * len(values),
                is_transactional=True,
            )
        )
        recorded = self.job.transactions.history.sending(self.recorded, id, values)

        def located(offset: int) -> None:
            known.rows[row] = (id, offset + 1)
            recorded(offset)

        def answered(error: int) -> None:
            if not error:
                transaction.acknowledged[id] = transaction.acknowledged.get(id, 0) + 1
                known.rows.setdefault(row, (id, UNKNOWN_OFFSET))
            if number + 1 == self._rows_left:
                return
            if error or number + 1 == self._rows:
                self._reported(self, error)
            else:
                self._write(known, ids, number + 1)

        sender = self.job.sender(id)
        sender.send(data, answered, located=located)
        if self.job.scheduler.chance(0.2) and not self.job.is_over:
            again = lambda: sender.send(data, lambda error: None, attempts=3)  # noqa: E731
            self.job.later(self.job.scheduler.skewed_us(80_000), again, f"{sender.name} comes late")
