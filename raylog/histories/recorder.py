"""Makes a history of what clients do, whichever clients they are.

A test tells the recorder what it asks of its clients, and hands it what they answer. It needs no
client of its own: a delivery is whatever has an ``offset``, a record whatever has ``topic``,
``partition``, ``offset`` and ``value``, as attributes or as methods. So it takes the deliveries and
records of confluent-kafka, kafka-python, aiokafka and of raylog::

    recorder = HistoryRecorder()
    writing = recorder.process("writer")
    producer.produce("t", b"a", partition=0, on_delivery=writing.send("t", 0, b"a"))
    reading = recorder.process("reader")
    reading.assign({("t", 0): 0})
    consumer.assign([TopicPartition("t", 0, 0)])
    for message in reading.poll(consumer.consume(100, 1.0)):
        ...
    verdict = check(recorder.history())

Each process is used by one thread at a time; deliveries may come on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, TypeVar

from raylog.histories.operations import (
    Action,
    Assign,
    Crash,
    Debug,
    EventType,
    OperationEvent,
    Poll,
    Send,
    Subscribe,
    Value,
)
from raylog.types import TopicPartition

T = TypeVar("T")


class DeliveryNoted(Protocol):
    """Takes what a client says of a delivery: confluent-kafka's (error, message), raylog's
    (metadata, error), or either alone.
    """

    def __call__(self, *told: object) -> None: ...


@dataclass(slots=True, eq=False)
class RecordedOperation:
    """An operation that is being recorded. ``end`` is None while it is open."""

    number: int
    process: str
    actions: list[Action] = field(default_factory=list)
    end: EventType | None = None
    is_ending: bool = False  # its commit was asked for

    def event(self, kind: EventType) -> OperationEvent:
        if kind is EventType.INVOKE:
            sends = [Send(action.partition, action.value) for action in self.actions if isinstance(action, Send)]
            return OperationEvent(self.process, kind, tuple(sends), self.number)
        return OperationEvent(self.process, kind, tuple(self.actions), self.number)


class HistoryRecorder:
    """Thread-safe. ``value_of`` turns the value of a record into what tells it from all others of
    its partition, on both sides; by default it is the value itself.
    """

    def __init__(self, value_of: Callable[[object], Value] | None = None) -> None:
        self._value_of = value_of
        self._lock = threading.Lock()
        self._moments: list[tuple[RecordedOperation, EventType]] = []
        self._operations = 0
        self._processes: dict[str, RecordedProcess] = {}

    def process(self, name: str) -> RecordedProcess:
        """The process of that name."""
        with self._lock:
            return self._processes.setdefault(name, RecordedProcess(self, name))

    def history(self) -> list[OperationEvent]:
        """What has happened until now. Operations that are still open end as ``info``, but a
        transaction whose commit nobody has asked for has not committed and ends as ``fail``.
        """
        with self._lock:
            events = [recording.event(kind) for recording, kind in self._moments]
            started = [recording for recording, kind in self._moments if kind is EventType.INVOKE]
            ends = [
                (each, EventType.INFO if each.is_ending else EventType.FAIL) for each in started if each.end is None
            ]
            return events + [recording.event(kind) for recording, kind in ends]

    def value(self, value: object) -> Value:
        """What tells a record with this value from the others."""
        if self._value_of is not None:
            return self._value_of(value)
        assert isinstance(value, bytes | str | int | None), f"give HistoryRecorder a value_of for {value!r}"
        return value

    def begin(self, process: str, actions: Iterable[Action] = (), *, is_ending: bool = True) -> RecordedOperation:
        with self._lock:
            recording = RecordedOperation(self._operations, process, list(actions), is_ending=is_ending)
            self._operations += 1
            self._moments.append((recording, EventType.INVOKE))
            return recording

    def add(self, recording: RecordedOperation, action: Action) -> int:
        """Another action of an open operation; returns its index."""
        with self._lock:
            assert recording.end is None, f"an operation of {recording.process} has ended and can do no more"
            recording.actions.append(action)
            return len(recording.actions) - 1

    def end(self, recording: RecordedOperation, kind: EventType) -> None:
        with self._lock:
            if recording.end is None:
                recording.end = kind
                self._moments.append((recording, kind))

    def locate(self, recording: RecordedOperation, index: int, offset: int) -> None:
        """Somebody was told where a send landed; also after the operation has ended."""
        with self._lock:
            send = recording.actions[index]
            assert isinstance(send, Send)
            recording.actions[index] = Send(send.partition, send.value, offset)


class RecordedProcess:
    """What one producer, one consumer, or both in turn, do. Made by ``HistoryRecorder.process``.

    While a transaction is open, everything belongs to it.
    """

    def __init__(self, recorder: HistoryRecorder, name: str) -> None:
        self.name = name
        self._recorder = recorder
        self._transaction: RecordedOperation | None = None

    def send(self, topic: str, partition: int, value: object) -> DeliveryNoted:
        """A record is about to be sent. Returns what takes the news of its delivery, once.

        A send outside a transaction that fails may have happened all the same.
        """
        action = Send(TopicPartition(topic, partition), self._recorder.value(value))
        if self._transaction is None:
            return self._settling(self._recorder.begin(self.name, [action]), 0, ends=True)
        return self._settling(self._transaction, self._recorder.add(self._transaction, action), ends=False)

    def _settling(self, recording: RecordedOperation, index: int, *, ends: bool) -> DeliveryNoted:
        def note(*told: object) -> None:
            delivered = next((each for each in told if hasattr(each, "offset")), None)
            failed = any(each is not None and each is not delivered for each in told) or delivered is None
            offset = -1 if failed else _whole(delivered, "offset")
            if offset >= 0:
                self._recorder.locate(recording, index, offset)
            if ends:
                self._recorder.end(recording, EventType.INFO if failed else EventType.OK)

        return note

    def poll(self, polled: T) -> T:
        """Note what a poll returned, and return it: a record, records, records by partition, or
        None. Messages that are errors are left out.
        """
        records: dict[TopicPartition, list[tuple[int, Value]]] = {}
        for record in _records(polled):
            if (error := getattr(record, "error", None)) is not None and error() is not None:
                continue
            key = TopicPartition(str(_fact(record, "topic")), _whole(record, "partition"))
            value = self._recorder.value(_fact(record, "value"))
            records.setdefault(key, []).append((_whole(record, "offset"), value))
        if records:
            self._note(Poll(records))
        return polled

    def assign(self, offsets: Mapping[tuple[str, int], int | None]) -> None:
        """From now on the process reads these partitions from these offsets. None stands for an
        offset that the test does not know. Call it for a seek and for a rebalance, too, with all
        partitions that the consumer has.
        """
        self._note(Assign({TopicPartition(*key): offset for key, offset in offsets.items()}))

    def subscribe(self, *topics: str, reports_rebalances: bool = False) -> None:
        """From now on a group assigns partitions of these topics. With ``reports_rebalances``,
        ``assign`` is called for each rebalance.
        """
        self._note(Subscribe(topics, reports_rebalances))

    def crash(self) -> None:
        """The clients of this process are gone; new ones may go on in its name. Nobody knows what
        became of an open transaction whose commit was asked for.
        """
        if self._transaction is not None:
            end = EventType.INFO if self._transaction.is_ending else EventType.FAIL
            self._recorder.end(self._transaction, end)
            self._transaction = None
        self._note(Crash())

    def debug(self, text: str) -> None:
        """A remark for who reads the history."""
        self._note(Debug(text))

    def transaction(self) -> RecordedTransaction:
        """Use it around a transaction, in a ``with`` statement."""
        assert self._transaction is None, f"{self.name} has an open transaction"
        self._transaction = self._recorder.begin(self.name, is_ending=False)
        return RecordedTransaction(self, self._recorder, self._transaction)

    def forget(self, recording: RecordedOperation) -> None:
        """The transaction is over."""
        if self._transaction is recording:
            self._transaction = None

    def _note(self, action: Action) -> None:
        if self._transaction is not None:
            self._recorder.add(self._transaction, action)
            return
        self._recorder.end(self._recorder.begin(self.name, [action]), EventType.OK)


class RecordedTransaction:
    """One transaction. If it is left without ``commit`` it did not commit, whatever becomes of it:
    its producer's next one, or its timeout, aborts it.
    """

    def __init__(self, process: RecordedProcess, recorder: HistoryRecorder, recording: RecordedOperation) -> None:
        self._process = process
        self._recorder = recorder
        self._recording = recording

    def __enter__(self) -> RecordedTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(EventType.INFO if self._recording.is_ending else EventType.FAIL)

    def commit(self, commit: Callable[[], T]) -> T:
        """Commit by calling ``commit``. If it raises, nobody knows whether the transaction
        committed, unless ``abort`` succeeds afterwards.
        """
        self._recording.is_ending = True
        result = commit()
        self._end(EventType.OK)
        return result

    def abort(self, abort: Callable[[], T]) -> T:
        """Abort by calling ``abort``."""
        result = abort()
        self._end(EventType.FAIL)
        return result

    def _end(self, kind: EventType) -> None:
        self._recorder.end(self._recording, kind)
        self._process.forget(self._recording)


def _records(polled: object) -> Sequence[object]:
    if polled is None:
        return []
    if hasattr(polled, "offset"):
        return [polled]
    if isinstance(polled, Mapping):
        return [record for records in polled.values() for record in records]
    assert isinstance(polled, Collection), f"give poll() records that can be looked at twice, not {polled!r}"
    return list(polled)


def _fact(message: object, name: str) -> object:
    """An attribute, or what the method of that name returns."""
    found = getattr(message, name)
    return found() if callable(found) else found


def _whole(message: object, name: str) -> int:
    """A whole number of a message; -1 if it has none."""
    found = _fact(message, name)
    return found if isinstance(found, int) else -1
