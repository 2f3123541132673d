"""Records that copiers carry from one topic to another in transactions while faults strike, and what must hold of them.

A feeder numbers the records of each partition of the input from 0 and keeps ahead of the copiers, which are processes
(``transactional_copier``) and may be killed: each is started again. A reader of committed records is there all the time. So
what anybody reads of a partition of the output is 0, 1, 2 … up to what was fed, each once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from ray_clusters import eventually
from transactional_copier import CopierSettings

from raylog.histories import HistoryRecorder, RecordedProcess, RecordedTransaction

COPIER = Path(__file__).with_name("transactional_copier.py")
BACKLOG = 9_000
FED_AT_ONCE = 250
FLUSH_S = 300.0


RECORDS_OF_TRANSACTION = 750
TRANSACTION_TIMEOUT_MS = 10_000
SESSION_TIMEOUT_MS = 6_000


@dataclass(frozen=True, slots=True)
class _Delivery:
    offset: int


def _text(value: object) -> str:
    """A record's value, as the copiers tell it and as readers get it."""
    return value.decode() if isinstance(value, bytes) else str(value)


class _NotCommitted(Exception):
    """A transaction ended with other news than that it is committed."""

    def __init__(self, told: list[Any] | None) -> None:
        self.told = told


@dataclass(slots=True)
class CopyFigures:
    """What the copiers have said of their transactions."""

    committed: int = 0
    aborted: int = 0
    unknown: int = 0  # the copier died, or its producer ended for good
    renewed: Counter[str] = field(default_factory=Counter)  # producers that ended for good, by error
    deaths: int = 0  # of copiers, by themselves


class RunningCopier:
    """One transactional id: a process, the one that is started when it dies, and so on, and who notes what they say."""

    def __init__(self, settings: CopierSettings, process: RecordedProcess, figures: CopyFigures, log: Path) -> None:
        self._settings = settings
        self._process = process
        self._figures = figures
        self._log = log
        self._over = False
        self._killed: set[int] = set()
        self._child = self._started()
        self._thread = threading.Thread(target=self._follow, name=settings.transactional_id, daemon=True)
        self._thread.start()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(COPIER), json.dumps(asdict(self._settings))]
        with self._log.open("a") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def kill(self) -> None:
        self._killed.add(self._child.pid)
        self._child.kill()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP now, SIGCONT at the end."""
        child = self._child
        child.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)

    def stop(self) -> None:
        self._over = True
        while self._thread.is_alive():
            self.kill()
            self._thread.join(0.1)

    def _follow(self) -> None:
        while True:
            child = self._child
            while (told := self._next()) is not None:
                if told[0] == "begin":
                    self._note_transaction()
            self._process.crash()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()
            if self._over:
                return
            self._figures.deaths += child.pid not in self._killed
            self._child = self._started()

    def _next(self) -> list[Any] | None:
        """What the process says next; None when it has ended, maybe amid a line."""
        assert self._child.stdout is not None
        try:
            found: list[Any] = json.loads(self._child.stdout.readline())
        except json.JSONDecodeError:
            return None
        return found

    def _note_transaction(self) -> None:
        notes = []
        with self._process.transaction() as transaction:
            told = self._next()
            while told is not None and told[0] == "send":
                notes += [self._process.send(self._settings.output, partition, value) for partition, value in told[1]]
                told = self._next()
            try:
                if told != ["end"]:
                    raise _NotCommitted(told)
                offsets = transaction.commit(self._offsets_of_committed)
                for note, offset in zip(notes, offsets, strict=True):
                    note(_Delivery(offset))
                self._figures.committed += 1
            except _NotCommitted as error:
                self._note_failed(transaction, error.told)

    def _offsets_of_committed(self) -> list[int]:
        told = self._next()
        if told is None or told[0] != "committed":
            raise _NotCommitted(told)
        offsets: list[int] = told[1]
        return offsets

    def _note_failed(self, transaction: RecordedTransaction, told: list[Any] | None) -> None:
        match told:
            case ["aborted", _]:
                transaction.abort(lambda: None)
                self._figures.aborted += 1
            case ["renewed", why]:
                self._figures.unknown += 1
                self._figures.renewed[why] += 1
            case _:
                self._figures.unknown += 1


class CommittedReader:
    """Reads every partition of a topic from its first record on, committed records only, for as long as it is told to."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, process: RecordedProcess) -> None:
        self.numbers: list[list[int]] = [[] for _ in range(partitions)]  # as they were read, by partition
        self._process = process
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed",
             "enable.auto.commit": False, "log_level": 0}
        )  # fmt: skip
        process.assign({(topic, partition): 0 for partition in range(partitions)})
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])

    def read(self) -> None:
        for message in self._process.poll(self._consumer.consume(500, 0.2)):
            if message.error() is None:
                self.numbers[message.partition()].append(int(message.value().split()[0]))

    @property
    def count(self) -> int:
        return sum(map(len, self.numbers))

    def close(self) -> None:
        self._consumer.close()


class Feeder:
    """Writes the numbered records, as one idempotent producer."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.fed = [0] * partitions
        self.acknowledged = [0] * partitions
        self.errors: list[object] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def feed(self) -> None:
        for partition in range(len(self.fed)):
            for _ in range(FED_AT_ONCE):
                value = b"%d" % self.fed[partition]
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
                self.fed[partition] += 1
        self._producer.poll(0)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition()] += 1
        else:
            self.errors.append(error)

    def serve(self) -> None:
        self._producer.poll(0.05)

    def finish(self) -> None:
        left = self._producer.flush(FLUSH_S)
        assert not left and not self.errors and self.acknowledged == self.fed, (left, self.errors)


@dataclass(frozen=True, slots=True)
class CopyFindings:
    """What a reader found of what was fed."""

    fed: int
    lost: int
    doubled: int
    misplaced: int  # behind a record that comes after it

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.misplaced)

    def words(self) -> str:
        return f"{self.fed:,} records: {self.lost:,} lost, {self.doubled:,} twice, {self.misplaced:,} out of order."


def findings(fed: Sequence[int], read: Sequence[Sequence[int]]) -> CopyFindings:
    """Hold what was read of each partition against how many numbers it was fed."""
    lost = sum(len(set(range(count)) - set(numbers)) for count, numbers in zip(fed, read, strict=True))
    doubled = sum(len(numbers) - len(set(numbers)) for numbers in read)
    misplaced = sum(later < earlier for numbers in read for earlier, later in pairwise(numbers))
    return CopyFindings(sum(fed), lost, doubled, misplaced)


class Copies:
    """Feeder, copiers and reader at work. Use it in a ``with`` statement; leave it by ``finish``, or by an error."""

    def __init__(self, bootstrap: str, source: str, sink: str, partitions: int, copiers: int, log: Path) -> None:
        self.bootstrap, self.sink = bootstrap, sink
        self.recorder = HistoryRecorder(_text)
        self.figures = CopyFigures()
        self.feeder = Feeder(bootstrap, source, partitions)
        self.reader = CommittedReader(bootstrap, sink, partitions, self.recorder.process("reader"))
        self.copiers = []
        self.errors: list[BaseException] = []
        self._feeding, self._reading = threading.Event(), threading.Event()
        works = [(self._feeding, self._feed), (self._reading, self.reader.read)]
        self._threads = [threading.Thread(target=self._repeat, args=each, daemon=True) for each in works]
        for number in range(copiers):
            name = f"copier-{number}-{sink}"
            settings = CopierSettings(
                bootstrap, name, source, sink, RECORDS_OF_TRANSACTION, TRANSACTION_TIMEOUT_MS, SESSION_TIMEOUT_MS
            )
            self.copiers.append(RunningCopier(settings, self.recorder.process(name), self.figures, log))

    def __enter__(self) -> Copies:
        for over in (self._feeding, self._reading):
            over.clear()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._feeding.set()
        self._reading.set()
        for copier in self.copiers:
            copier.stop()
        for thread in self._threads:
            thread.join()
        self.reader.close()

    def _repeat(self, over: threading.Event, work: Callable[[], None]) -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:
            self.errors.append(error)

    def _feed(self) -> None:
        if sum(self.feeder.fed) - self.reader.count < BACKLOG:
            self.feeder.feed()
        self.feeder.serve()

    def goes_on(self, records: int) -> None:
        """Wait until the reader has read so many records more."""
        goal = self.reader.count + records
        eventually(lambda: self.errors or self.reader.count >= goal, f"{goal} copied records, {self.figures}")
        assert not self.errors, self.errors

    def goes_on_everywhere(self) -> None:
        """Wait until the reader has read on in every partition."""
        before = [len(numbers) for numbers in self.reader.numbers]
        eventually(
            lambda: all(len(numbers) > was for numbers, was in zip(self.reader.numbers, before, strict=True)),
            f"copied records of every partition, {self.figures}",
        )

    def finish(self) -> list[CopyFindings]:
        """Let the copiers copy the rest. What the reader found that was there all the time, and one that reads it all again."""
        self._feeding.set()
        self._threads[0].join()
        self.feeder.finish()
        fed = self.feeder.fed
        eventually(lambda: self.errors or self.reader.count >= sum(fed), f"all {sum(fed)} records, {self.figures}")
        assert not self.errors, self.errors
        again = CommittedReader(self.bootstrap, self.sink, len(fed), self.recorder.process("second reader"))
        try:
            while again.count < self.reader.count:
                again.read()
            again.read()  # nothing comes after
        finally:
            again.close()
        return [findings(fed, each.numbers) for each in (self.reader, again)]
