"""What is asked of the controller about the disks of a broker, and what it answers: plain values, as
in ``metadata.requests``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskTarget:
    """``path`` is of the disk that shall hold the broker's replica of that partition."""

    topic: str
    partition: int
    path: str


@dataclass(frozen=True, slots=True)
class MoveToDisks:
    """→ MovingToDisks. The replicas of that broker shall be on these disks of it. They are copied
    after the reply. The disk where a replica is already cancels its move.
    """

    broker_id: int
    replicas: tuple[DiskTarget, ...]


@dataclass(frozen=True, slots=True)
class MovingToDisks:
    """An error and its message for each replica, in their order; 0 and None: its move has begun, or
    it is there.
    """

    outcomes: tuple[tuple[int, str | None], ...]


@dataclass(frozen=True, slots=True)
class DiskMove:
    """A replica on its way to another disk of its broker. ``node_id`` is of the actor that copies
    it, or will when it has started.
    """

    topic: str
    partition: int
    broker_id: int
    node_id: int
    path: str
