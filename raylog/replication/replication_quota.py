"""What a leader holds back from followers that are not in sync, because its process has copied all
that it may for now.

It owns the list of leaders whose followers' fetches wait for the throttle, and the timer that has
those read again. Who is throttled is the assignment's word (``Replica.throttles_copying_out``) and
the ISR's; how much may be copied is the account's (``throttle.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.replication.context import Deadline, HostContext
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.replica import Replica


def is_throttled(replica: Replica, follower: int) -> bool:
    """Whether what this replica sends that broker is paid from the throttle: it leads, is listed,
    and the broker is not in sync.
    """
    leader = replica.leader
    return leader is not None and replica.throttles_copying_out and follower not in leader.isr.maximal


class CopyingOut:
    __slots__ = ("_context", "_held_back", "_timer")

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._held_back: dict[TopicIdPartition, Replica] = {}
        self._timer: Deadline | None = None

    def hold_back(self, replica: Replica, now_ms: int) -> None:
        """A fetch of one of its followers is read again as soon as something may be copied."""
        self._held_back[replica.id] = replica
        if self._timer is None:
            due_ms = now_ms + self._context.copying_out.ready_in_ms
            self._timer = self._context.wheel.add(due_ms, self._due)

    def _due(self, now_ms: int, wall_ms: int) -> None:
        self._timer = None
        held_back, self._held_back = self._held_back, {}
        for replica in held_back.values():
            replica.watchers.wake_followers()

    def set_rate(self, rate: int | None, now_ms: int) -> None:
        """What is held back now is read again at once."""
        self._context.copying_out.set_rate(rate, now_ms)
        if self._timer is not None:
            self._timer.cancel()
        self._due(now_ms, now_ms)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        armed = self._timer is not None and self._timer.bucket is not None
        assert armed or not self._held_back, f"{sorted(self._held_back)} are held back for ever"
