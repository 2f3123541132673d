"""What a history consists of: events of operations, with the actions of each operation.

An operation is one transaction, one send outside transactions, one poll, or a change of what a
consumer reads. It has two events::

    invoke          the process began it; its actions are what it is going to do
    ok              it took effect
    fail            it certainly took no effect: the transaction was aborted
    info            nobody knows: the process gave up, died, or never heard

An event after ``invoke`` completes the operation, and its actions replace those of ``invoke``. An
operation that is never completed counts as ``info`` with the actions that it began with.

A process does one thing after another, so a completion belongs to the open operation of its
process. Processes that have several operations in flight, such as a producer that does not wait for
acknowledgements, number them (``OperationEvent.operation``). A completion without an invocation
counts as invoked in the same moment.

Pure values: no clock, no cluster. The order of events in the history is the only time there is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from raylog.types import TopicPartition

Value: TypeAlias = Hashable
"""What tells a record from all others of its partition. Each send of a history has one of its own;
only a transaction that did not commit may be repeated with the same values.
"""


class EventType(StrEnum):
    """What an event says about its operation."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class LocatedRecord(NamedTuple):
    """A record and where it is; ``offset`` is None if nobody was told."""

    partition: TopicPartition
    offset: int | None
    value: Value

    def __str__(self) -> str:
        where = "an unknown offset" if self.offset is None else f"offset {self.offset}"
        return f"{self.value!r} at {where} of {self.partition.topic}-{self.partition.partition}"


@dataclass(frozen=True, slots=True)
class Send:
    """A record for a partition. ``offset`` is where it was acknowledged, None if it was not."""

    partition: TopicPartition
    value: Value
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll returned: by partition, (offset, value) in the order in which the consumer got
    them.
    """

    records: Mapping[TopicPartition, Sequence[tuple[int, Value]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assign:
    """From here on the process reads these partitions, each from that offset; None if the history
    does not say from where. Also what a rebalance or a seek leaves a consumer with.
    """

    offsets: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """From here on a group assigns the partitions of these topics to the process.

    With ``reports_rebalances``, each rebalance is in the history as an ``Assign``. Without it, a
    rebalance may explain whatever the process skips or sees again from one poll to the next.
    """

    topics: tuple[str, ...]
    reports_rebalances: bool = False


@dataclass(frozen=True, slots=True)
class Crash:
    """The clients of the process are gone, and new ones go on in its name."""


@dataclass(frozen=True, slots=True)
class Debug:
    """A remark for who reads the history. The checker ignores it."""

    text: str


Action: TypeAlias = Send | Poll | Assign | Subscribe | Crash | Debug


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """One line of a history. ``operation`` is a number that its invocation and its completion
    share, or None where a process has one operation at a time.
    """

    process: str
    type: EventType
    actions: tuple[Action, ...] = ()
    operation: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HistoryOperation:
    """Both events of an operation. ``type`` is how it ended (never ``invoke``); ``invoked`` and
    ``completed`` are indexes into the history, and ``completed`` is None if it never ended.
    """

    process: str
    type: EventType
    actions: tuple[Action, ...]
    invoked: int
    completed: int | None

    @property
    def sends(self) -> list[Send]:
        return [action for action in self.actions if isinstance(action, Send)]

    @property
    def polled(self) -> list[LocatedRecord]:
        """All records that its polls returned."""
        polls = [action for action in self.actions if isinstance(action, Poll)]
        return [
            LocatedRecord(partition, offset, value)
            for poll in polls
            for partition, records in poll.records.items()
            for offset, value in records
        ]

    def __str__(self) -> str:
        end = self.type.value if self.completed is None else f"{self.type.value} at {self.completed}"
        return f"the operation of {self.process} from event {self.invoked} ({end})"


def paired(history: Iterable[OperationEvent]) -> list[HistoryOperation]:
    """The operations of a history, in the order in which they completed; those that never did come
    last.

    Raises ValueError if a process invokes an operation while the same one is open, or if a number
    is used by two processes or for two operations.
    """
    opened: dict[tuple[str, int | None], tuple[int, OperationEvent]] = {}
    owners: dict[int, str] = {}
    ended: set[int] = set()
    operations = []
    for index, event in enumerate(history):
        number = event.operation
        if number is not None and owners.setdefault(number, event.process) != event.process:
            raise ValueError(f"event {index}: operation {number} belongs to {owners[number]}, not to {event.process}")
        if number in ended:
            raise ValueError(f"event {index}: operation {number} of {event.process} has ended before")
        key = (event.process, number)
        if event.type is EventType.INVOKE:
            if key in opened:
                raise ValueError(
                    f"event {index}: {event.process} has not completed what it invoked at {opened[key][0]}"
                )
            opened[key] = (index, event)
            continue
        invoked, invocation = opened.pop(key, (index, event))
        if number is not None:
            ended.add(number)
        actions = event.actions or invocation.actions
        operations.append(HistoryOperation(event.process, event.type, actions, invoked, index))
    left = [
        HistoryOperation(event.process, EventType.INFO, event.actions, index, None) for index, event in opened.values()
    ]
    return operations + left
