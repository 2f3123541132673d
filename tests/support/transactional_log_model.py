"""A small correct model of a transactional log, which makes histories for the checker.

Partitions are lists of records and markers. A copier has one transaction at a time, in which it
sends and polls; independent readers poll. A poll returns what is below the last stable offset and
not aborted. ``commit_unsure`` and ``abort_unsure`` end a transaction without the copier being told.
After an abort the copier goes back to where its transaction found it.

``plan`` is a list of (what, who, where) of small numbers, of which every combination is a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.histories import Action, Assign, EventType, OperationEvent, Poll, Send, Value
from raylog.types import TopicPartition

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
COPIERS = 3
READERS = 2
POLL_RECORDS = 3
STEPS = ("send", "send", "send", "poll", "commit", "commit", "abort", "commit_unsure", "abort_unsure", "read", "rewind")

Plan = list[tuple[int, int, int]]


@dataclass(slots=True, eq=False)
class ModelTransaction:
    number: int
    actions: list[Action] = field(default_factory=list)
    is_open: bool = True
    has_committed: bool = False


@dataclass(slots=True)
class Written:
    """A record, or a marker if there is no value."""

    value: Value
    transaction: ModelTransaction


@dataclass(slots=True)
class ModelProcess:
    name: str
    positions: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    committed: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    transaction: ModelTransaction | None = None


class LogModel:
    """Runs a plan; ``history`` grows."""

    def __init__(self) -> None:
        self.log: dict[TopicPartition, list[Written]] = {partition: [] for partition in PARTITIONS}
        self.history: list[OperationEvent] = []
        self.copiers = [ModelProcess(f"copier-{number}") for number in range(COPIERS)]
        self.readers = [ModelProcess(f"reader-{number}") for number in range(READERS)]
        self.operations = 0

    def run(self, plan: Plan) -> list[OperationEvent]:
        for process in (*self.copiers, *self.readers):
            self._alone(process, Assign(dict(process.positions)))
        for step, who, where in plan:
            self._step(STEPS[step % len(STEPS)], who, PARTITIONS[where % len(PARTITIONS)])
        for copier in self.copiers:
            if copier.transaction is not None:
                self._end(copier, commits=True, kind=EventType.OK)
        last = ModelProcess("last")
        self._alone(last, Assign(dict(last.positions)))
        for partition in PARTITIONS:
            while self._has_more(last, partition):
                self._alone(last, self._poll(last, partition))
        return self.history

    def _step(self, step: str, who: int, partition: TopicPartition) -> None:
        copier, reader = self.copiers[who % COPIERS], self.readers[who % READERS]
        if step == "read":
            self._alone(reader, self._poll(reader, partition))
        elif step == "rewind":
            reader.positions = {key: offset // 2 for key, offset in reader.positions.items()}
            self._alone(reader, Assign(dict(reader.positions)))
        elif step in ("send", "poll"):
            transaction = copier.transaction or self._begin(copier)
            if step == "poll":
                transaction.actions.append(self._poll(copier, partition))
            else:
                value = f"{copier.name}/{len(self.history)}/{len(transaction.actions)}"
                transaction.actions.append(Send(partition, value, len(self.log[partition])))
                self.log[partition].append(Written(value, transaction))
        elif copier.transaction is not None:
            ends = {
                "commit": (True, EventType.OK),
                "abort": (False, EventType.FAIL),
                "commit_unsure": (True, EventType.INFO),
                "abort_unsure": (False, EventType.INFO),
            }
            commits, kind = ends[step]
            self._end(copier, commits=commits, kind=kind)

    def _begin(self, copier: ModelProcess) -> ModelTransaction:
        copier.transaction = ModelTransaction(self._number())
        self.history.append(OperationEvent(copier.name, EventType.INVOKE, (), copier.transaction.number))
        return copier.transaction

    def _end(self, copier: ModelProcess, *, commits: bool, kind: EventType) -> None:
        transaction = copier.transaction
        assert transaction is not None
        transaction.is_open, transaction.has_committed = False, commits
        sent = [action.partition for action in transaction.actions if isinstance(action, Send)]
        for partition in dict.fromkeys(sent):
            self.log[partition].append(Written(None, transaction))
        self.history.append(OperationEvent(copier.name, kind, tuple(transaction.actions), transaction.number))
        copier.transaction = None
        if commits:
            copier.committed = dict(copier.positions)
        else:
            copier.positions = dict(copier.committed)
        if kind is not EventType.OK:
            self._alone(copier, Assign(dict(copier.positions)))

    def _alone(self, process: ModelProcess, action: Action) -> None:
        self.history.append(OperationEvent(process.name, EventType.OK, (action,), self._number()))

    def _number(self) -> int:
        self.operations += 1
        return self.operations

    def _last_stable_offset(self, partition: TopicPartition) -> int:
        log = self.log[partition]
        return next((offset for offset, written in enumerate(log) if written.transaction.is_open), len(log))

    def _has_more(self, process: ModelProcess, partition: TopicPartition) -> bool:
        return process.positions[partition] < self._last_stable_offset(partition)

    def _poll(self, process: ModelProcess, partition: TopicPartition) -> Poll:
        found: list[tuple[int, Value]] = []
        while self._has_more(process, partition) and len(found) < POLL_RECORDS:
            offset = process.positions[partition]
            written = self.log[partition][offset]
            if written.value is not None and written.transaction.has_committed:
                found.append((offset, written.value))
            process.positions[partition] = offset + 1
        return Poll({partition: tuple(found)})
