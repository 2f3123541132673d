"""When a member of the quorum stands for election: when it has heard no leader for long, sooner
when its leader is known to have ended.

Election timeouts are drawn by the caller, at least ``election_timeout_ms`` each. After
``leader_lost`` they are shortened in proportion, so that the first election comes after about
``lost_leader_timeout_ms``, and each further one in a row after twice the time, up to the ordinary
one: elections that follow each other faster than the disks can answer would never end.

Members that begin together would stand together, again and again, until their timeouts are far
enough apart. So the first time each leaves those before it twice the shortest timeout to be
elected.
"""

from __future__ import annotations

from collections.abc import Callable

from raylog.raft.messages import QuorumConfig


class ElectionTimer:
    """``deadline_ms``: when it runs out."""

    def __init__(self, config: QuorumConfig, draw_timeout_ms: Callable[[], int]) -> None:
        self.deadline_ms = 0
        self._ordinary_ms = config.election_timeout_ms
        self._lost_leader_ms = config.lost_leader_timeout_ms
        self._draw_timeout_ms = draw_timeout_ms
        self._heard_leader_ms = 0
        self._hurry_ms = 0  # the shortest timeout while the leader is known to be gone; 0: the ordinary one

    def restart(self, now_ms: int) -> None:
        timeout_ms = self._draw_timeout_ms()
        assert timeout_ms >= self._ordinary_ms, (timeout_ms, self._ordinary_ms)
        if self._hurry_ms:
            timeout_ms = timeout_ms * self._hurry_ms // self._ordinary_ms
        self.deadline_ms = now_ms + timeout_ms

    def leader_heard(self, now_ms: int) -> None:
        self._heard_leader_ms = now_ms
        self._hurry_ms = 0
        self.restart(now_ms)

    def leader_lost(self, now_ms: int) -> None:
        """The leader's process has ended."""
        self._hurry_ms = self._lost_leader_ms
        self.restart(now_ms)

    def never_led(self, now_ms: int, place: int) -> None:
        """There has been no leader since the members began. ``place``: this one's among the voters,
        counted from 0.

        They may all begin at the same moment, so they stand in order, not all at once.
        """
        self.leader_lost(now_ms)
        self.deadline_ms += 2 * self._lost_leader_ms * place

    def paused(self, now_ms: int) -> None:
        """This process was: nobody's silence meanwhile counts."""
        self.restart(now_ms)
        self._heard_leader_ms = now_ms

    def stood(self) -> None:
        """An election begins; if it fails, the next one comes after twice the time."""
        self._hurry_ms = 2 * self._hurry_ms if 2 * self._hurry_ms < self._ordinary_ms else 0

    def won(self) -> None:
        self._hurry_ms = 0

    def has_heard_lately(self, now_ms: int) -> bool:
        """Whether a leader was heard within an ordinary election timeout."""
        return now_ms < self._heard_leader_ms + self._ordinary_ms
