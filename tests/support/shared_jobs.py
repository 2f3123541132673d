"""Transactions of several producers, without a cluster: an owner by hand (``SharedEnds``), and a job in a world without mercy
(``SharedJob``), where everything is drawn from one seed.

The job's driver writes batches, one transaction each, with tasks that are tried several times. Everybody fails wherever he can: the
driver dies or is taken for dead, attempts go on writing when others have won, coordinators die with what of their log was not
replicated, leaders write some of the markers and lose some of their answers.

- What leaders hold in the end is that of one attempt at each task, for each batch in its turn.
- No producer id and epoch is given to two attempts.
- A driver that is heard of in time is not fenced by a timeout.
- The job ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from raylog.coordination.events import OthersAnswered
from raylog.transactions.records import Participant, Participation
from raylog.transactions.requests import (
    AddPartitions,
    EndTransaction,
    JoinTransaction,
    KeepTransaction,
    MarkersWritten,
    PartitionsAdded,
    TransactionEnded,
    TransactionJoined,
    TransactionKept,
    TransactionReply,
    TransactionRequest,
    WriteMarkers,
)
from raylog.types import TopicPartition
from tests.support.transaction_ends import ID, NOT_LEADER_OR_FOLLOWER, TIMEOUT_MS, TransactionEnds

PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
RETRIABLE = frozenset(code.value for code in ErrorCode if code.retriable)


class SharedEnds(TransactionEnds):
    """With an owner: ``owner`` is its producer id and epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = (-1, -1)
        self.take_over()

    def take_over(self) -> int:
        found = self.init()
        if not found.error:
            self.owner = (found.producer_id, found.producer_epoch)
        return found.error

    def join(self) -> TransactionJoined:
        found = self.reply(JoinTransaction(ID, *self.owner))
        assert isinstance(found, TransactionJoined)
        return found

    def joined(self) -> tuple[int, int]:
        found = self.join()
        assert found.error == 0, found
        return found.producer_id, found.producer_epoch

    def keep(self) -> TransactionKept:
        found = self.reply(KeepTransaction(ID, *self.owner))
        assert isinstance(found, TransactionKept)
        return found

    def share(self, *winners: int, commits: bool = True, label: str = "") -> TransactionEnded:
        """End the transaction. The owner goes on with what it is answered."""
        found = self.reply(EndTransaction(ID, *self.owner, commits, 2, True, winners, label))
        assert isinstance(found, TransactionEnded)
        if not found.error:
            self.owner = (found.producer_id, found.producer_epoch)
        return found


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task of a batch, under the producer id and epoch that it was given."""

    producer_id: int
    epoch: int
    batch: int
    task: int


@dataclass
class Driver:
    """One process of the driver. ``winners``: of the batch that it is at."""

    owner: tuple[int, int]
    winners: list[int] = field(default_factory=list)
    batch: int = 0
    has_been_silent: bool = False  # for longer than its transactions may take


class SharedJob(SharedEnds):
    """``done``, the driver's checkpoint, is behind the log whenever it dies between the commit and the note."""

    BATCHES, TASKS = 4, 3

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.open: dict[tuple[int, TopicPartition], list[Attempt]] = {}  # what was written, until its marker
        self.committed: list[tuple[int, int]] = []
        self.given: set[tuple[int, int]] = set()
        self.late: list[Attempt] = []  # attempts that lost, and do not know it
        self.former: list[Driver] = []  # taken for dead when all that was left to do was to commit
        self.done = -1
        self.driver: Driver | None = None
        self.is_healed = False
        super().__init__()

    def strikes(self, chance: float) -> bool:
        return not self.is_healed and self.rng.random() < chance

    # ------------------------------------------------------------------ a run

    def run(self) -> None:
        for _ in range(3_000):
            self.step()
            if self.done == self.BATCHES - 1:
                break
        self.heal()

    def heal(self) -> None:
        self.is_healed = True
        self.replicate()
        for _ in range(100):
            self.leaders()
            self.sleep(1_000)
        assert not self.open, f"never ended: {self.open}"
        batches = [batch for batch, _ in self.committed]
        assert batches == sorted(batches), f"a batch after a later one: {batches}"
        wanted = [(batch, task) for batch in range(self.BATCHES) for task in range(self.TASKS)]
        assert sorted(self.committed) == wanted, f"committed are {sorted(self.committed)}"

    def step(self) -> None:
        if self.strikes(0.03):
            self.crash()
        self.leaders()
        driver = self.driver
        if driver is None:
            self.wake_one()
            if self.take_over() == 0:
                self.driver = Driver(self.owner)
            self.sleep(self.rng.randrange(50))
            return
        kept = self.keep()
        if kept.error:
            self.dies(None if kept.error in RETRIABLE else driver, kept.error)
        elif kept.label and int(kept.label) > self.done:
            self.done = int(kept.label)
        elif self.strikes(0.06):
            self.driver = None
        else:
            driver.batch, driver.winners = self.done + 1, []
            self.write_batch(driver)

    def dies(self, fenced: Driver | None, error: int) -> None:
        assert fenced is None or fenced.has_been_silent, f"{fenced} was heard of all the time, and is refused: {error}"
        self.driver = None

    # ------------------------------------------------------------------ the driver

    def write_batch(self, driver: Driver) -> None:
        for task in range(self.TASKS):
            for _ in range(200):
                if self.strikes(0.06):
                    self.driver = None
                    return
                self.wake_one()
                if error := self.passes_time(driver):
                    self.dies(driver, error)
                    return
                found = self.join()
                if found.error:
                    if found.error not in RETRIABLE:
                        self.dies(driver, found.error)
                        return
                    self.leaders()
                    self.sleep(20)
                    continue
                attempt = Attempt(found.producer_id, found.producer_epoch, driver.batch, task)
                place = attempt.producer_id, attempt.epoch
                assert place not in self.given, f"{place} is given twice"
                self.given.add(place)
                if self.strikes(0.03):  # before anything is written
                    self.late.append(attempt)
                    self.driver = None
                    return
                if self.write(attempt) and not self.strikes(0.2):
                    driver.winners.append(attempt.producer_id)
                    break
                self.late.append(attempt)
            else:
                raise AssertionError(f"task {task} of batch {driver.batch} gets nowhere")
        if self.strikes(0.1):
            self.former.append(driver)
            self.driver = None
            return
        self.commit(driver)

    def passes_time(self, driver: Driver) -> int:
        """Tasks take long. A driver that says nothing meanwhile has to be fenced; one that does, not: the error that it is told."""
        if self.strikes(0.02):
            driver.has_been_silent = True
            self.sleep(TIMEOUT_MS + 1_000)
        elif self.strikes(0.05):
            for _ in range(2):
                self.sleep(TIMEOUT_MS * 2 // 3)
                error = self.keep().error
                while error in RETRIABLE:
                    error = self.keep().error
                if error:
                    return error
        return 0

    def commit(self, driver: Driver) -> None:
        """Until there is an answer: a retry has that of the first."""
        for _ in range(200):
            ended = self.reply(
                EndTransaction(ID, *driver.owner, True, 2, True, tuple(driver.winners), str(driver.batch))
            )
            assert isinstance(ended, TransactionEnded)
            if ended.error not in RETRIABLE and not self.strikes(0.15):  # else the answer is lost
                break
            self.leaders()
            self.sleep(100)
        if driver is not self.driver:
            return
        if ended.error or self.strikes(0.3):  # it dies after the decision, before it has noted it
            self.dies(driver if ended.error else None, ended.error)
            return
        self.owner = driver.owner = ended.producer_id, ended.producer_epoch
        self.done = driver.batch

    def wake_one(self) -> None:
        """Of those that were given up: an attempt writes, a driver commits."""
        if self.late and self.strikes(0.3):
            self.write(self.late.pop(self.rng.randrange(len(self.late))))
        if self.former and self.strikes(0.3):
            self.commit(self.former.pop())

    def write(self, attempt: Attempt) -> bool:
        """As the leader does it: the coordinator takes the partition in, or says that the attempt is late."""
        partition = self.rng.choice(PARTITIONS)
        for _ in range(20):
            asked = AddPartitions(ID, attempt.producer_id, attempt.epoch, (partition,), 2)
            answered = self.reply(asked)
            assert isinstance(answered, PartitionsAdded)
            error = answered.errors[0][1]
            if not error:
                self.open.setdefault((attempt.producer_id, partition), []).append(attempt)
                return True
            if error not in RETRIABLE:
                return False
            self.leaders()
        return False

    # ------------------------------------------------------------------ leaders and coordinators

    def reply(self, request: TransactionRequest) -> TransactionReply:
        """Leaders go on while the coordinator has it wait; it may die before the answer is replicated."""
        self.is_replicating = not self.strikes(0.2)
        token = self.ask(request)
        for _ in range(100):
            if token in self.replies:
                break
            if self.strikes(0.1):
                self.crash()
            else:
                self.replicate()
            self.leaders()
            self.sleep(50)
        self.is_replicating = True
        self.replicate()
        return self.replies[token]

    def crash(self) -> None:
        """What was not replicated is lost."""
        del self.log[self.coordinator.position :]
        self.failover()

    def leaders(self) -> None:
        for number, question in list(self.questions.items()):
            if not isinstance(question, WriteMarkers):
                continue
            errors = []
            for partition in question.partitions:
                if self.strikes(0.1):
                    continue  # it was not reached
                for each in question.participants:
                    is_refused = self.strikes(0.15)
                    if not is_refused or self.strikes(0.3):  # it is written, and the answer is lost
                        self.mark(partition, each)
                    errors.append((partition, NOT_LEADER_OR_FOLLOWER if is_refused else 0))
            del self.questions[number]
            self.handle(OthersAnswered(number, MarkersWritten(tuple(errors))))

    def mark(self, partition: TopicPartition, marker: Participant) -> None:
        found = self.open.pop((marker.producer_id, partition), [])
        assert all(each.epoch < marker.producer_epoch for each in found), f"{marker} ends {found}"
        if marker.part is Participation.WINS:
            self.committed += [(each.batch, each.task) for each in found]
