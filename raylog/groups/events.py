"""What goes into the group machine of one partition of ``__consumer_offsets``, and what comes out of it.

Events are facts that the shell reports, effects are orders that it carries out in the order given. ``now_ms`` (monotonic) and
``wall_ms`` come with each event. A *token* is the shell's name for one request that waits for a reply.

The shell owes the machine five things. It reports what is below the high watermark with ``Replayed``, in order and without a gap,
while the replica follows and after ``Elected`` until ``position`` has reached the log's end. It appends the records of each
``Append`` to its own log as one batch if it still leads in that epoch, and reports ``Appended`` exactly once each, in order. It says
``HighWatermarkRose`` while it leads, and ``Resigned`` as soon as it does not. It ticks when ``next_deadline_ms`` has passed.
It reports with ``TopicsKnown``, before ``Elected`` and whenever that changes, which topics there are as of the leader epoch.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from raylog.groups.records import GroupRecord
from raylog.groups.requests import GroupReply, Request

Token = int

# ------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class RequestReceived:
    token: Token
    request: Request


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection of a native member ended, however that came about."""

    connection: int


@dataclass(frozen=True, slots=True)
class Elected:
    """This process leads the partition in that epoch. ``log_end_offset``: the end of its log before anything of this epoch."""

    leader_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """It does not lead any more, in any epoch up to that one."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """Records below the high watermark, the first ones that the machine has not seen; ``next_offset`` follows the last one."""

    records: tuple[GroupRecord, ...]
    next_offset: int


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of an Append: its end in the log, or the error for which nothing was appended."""

    sequence: int
    end_offset: int
    error: int = 0


@dataclass(frozen=True, slots=True)
class HighWatermarkRose:
    """Everything below ``offset`` is replicated."""

    offset: int


@dataclass(frozen=True, slots=True)
class TopicsKnown:
    """The topics that there are, with their ids. The mapping is the shell's, which changes it before each such event.

    ``gone`` are the names of topics that were just deleted: what is stored of them is void, with an id or without. After
    ``is_whole`` any topic may have gone unnoticed; otherwise nothing else has than ``gone``.
    """

    topics: Mapping[str, uuid.UUID]
    gone: tuple[str, ...] = ()
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Ticked:
    """A deadline that ``next_deadline_ms`` announced may have come."""


Event = (
    RequestReceived | ConnectionClosed | Elected | Resigned | Replayed | Appended | HighWatermarkRose | TopicsKnown | Ticked
)  # fmt: skip

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class Reply:
    token: Token
    reply: GroupReply


@dataclass(frozen=True, slots=True)
class Append:
    """One batch for this partition's log, to be refused if the replica does not lead in ``leader_epoch``."""

    sequence: int
    leader_epoch: int
    records: tuple[GroupRecord, ...]


Effect = Reply | Append
