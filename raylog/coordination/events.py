"""What goes into the coordinator of one partition, and what comes out of it.

Events are facts that the runtime reports. Effects are orders that it carries out in the order
given. ``now_ms`` (monotonic) and ``wall_ms`` come with each event. A *token* is the runtime's name
for one request that waits for a reply.

Records may belong to transactions. Such a record counts once the marker says that its transaction
was committed, and never if it was aborted.

The runtime owes the coordinator six things. It reports the records below the high watermark with
``Replayed``, in order and without a gap, while the replica follows and after ``Elected`` until
``position`` has reached the log's end. It appends the records of each ``Append`` to the partition's
log as one batch if the process still leads in that epoch, and reports ``Appended`` exactly once
each, in order; and ``MarkerAppended`` for each marker that a transaction's coordinator has it append
there, in the order of the log. It reports ``HighWatermarkRose`` while the process leads, and ``Resigned`` as soon
as it does not. It ticks when ``next_deadline_ms`` has passed. It reports with ``TopicsKnown``,
before ``Elected`` and after each change, which topics exist. It has each ``AskOthers`` answered
once, whatever happens; the coordinator ignores answers to what an earlier leadership asked.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
RecordT = TypeVar("RecordT")
Token = int


@dataclass(frozen=True, slots=True)
class OutsideQuestion:
    """What a machine may ask of others than its own log. Each kind has questions of its own."""


@dataclass(frozen=True, slots=True)
class OutsideAnswer:
    """What comes back."""


@dataclass(frozen=True, slots=True)
class OfTransaction(Generic[RecordT]):
    """A record of a producer's open transaction."""

    producer_id: int
    record: RecordT


@dataclass(frozen=True, slots=True)
class EndOfTransaction:
    """A marker: what the producer's open transaction says counts from here on, or never will."""

    producer_id: int
    is_committed: bool


Applicable: TypeAlias = RecordT | OfTransaction[RecordT] | EndOfTransaction
"""What a log of records holds, in its order."""


@dataclass(frozen=True, slots=True)
class Transactional:
    """Records are written as a producer's, in its open transaction. ``leave``: the runtime's, by
    which that may begin here (``runtime.Replicas``).
    """

    producer_id: int
    producer_epoch: int
    leave: int


# ------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class CoordinatorRequestReceived(Generic[RequestT]):
    token: Token
    request: RequestT


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection of a native client ended, for whatever reason."""

    connection: int


@dataclass(frozen=True, slots=True)
class Elected:
    """This process leads the partition in that epoch. ``log_end_offset``: the end of its log before
    any record of this epoch.
    """

    leader_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This process no longer leads, in any epoch up to that one."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Replayed(Generic[RecordT]):
    """Records below the high watermark, the first that the coordinator has not seen;
    ``next_offset`` follows the last one.
    """

    records: tuple[Applicable[RecordT], ...]
    next_offset: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an Append: its end in the log, or the error for which nothing was appended."""

    sequence: int
    end_offset: int
    error: int = 0


@dataclass(frozen=True, slots=True)
class MarkerAppended:
    """A transaction ends in this partition's log, before ``end_offset``. It counts when that is
    replicated.
    """

    end_offset: int
    end: EndOfTransaction


@dataclass(frozen=True, slots=True)
class HighWatermarkRose:
    """Everything below ``offset`` is replicated."""

    offset: int


@dataclass(frozen=True, slots=True)
class TopicsKnown:
    """The topics that exist, with their ids. The mapping belongs to the runtime, which changes it
    before each such event.

    ``gone`` are the names of topics that were just deleted: what is stored for them is void, with
    an id or without. After ``is_whole`` any topic may have gone unnoticed; otherwise none but
    ``gone`` has.
    """

    topics: Mapping[str, uuid.UUID]
    gone: tuple[str, ...] = ()
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class OthersAnswered:
    """The answer to a question of that number."""

    number: int
    answer: OutsideAnswer


@dataclass(frozen=True, slots=True)
class CoordinatorTicked:
    """A deadline that ``next_deadline_ms`` announced may have come."""


Event = (
    CoordinatorRequestReceived[RequestT] | ConnectionClosed | Elected | Resigned | Replayed[RecordT] | Appended | MarkerAppended
    | HighWatermarkRose | TopicsKnown | OthersAnswered | CoordinatorTicked
)  # fmt: skip

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class SendCoordinatorReply(Generic[ReplyT]):
    token: Token
    reply: ReplyT


@dataclass(frozen=True, slots=True)
class Append(Generic[RecordT]):
    """One batch for this partition's log, to be refused if the replica does not lead in
    ``leader_epoch``.
    """

    sequence: int
    leader_epoch: int
    records: tuple[RecordT, ...]
    transactional: Transactional | None = None


@dataclass(frozen=True, slots=True)
class AskOthers:
    """A question to other processes of the cluster; ``OthersAnswered`` of that number follows."""

    number: int
    question: OutsideQuestion


Effect = SendCoordinatorReply[ReplyT] | Append[RecordT] | AskOthers
