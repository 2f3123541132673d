"""What a leader knows of one follower, and what to send it next.

::

    PROBE      where the logs match is not known: one append at a time, until one matches or the next heartbeat
    REPLICATE  they match up to match_index: appends leave one after the other, ahead of the replies
    SNAPSHOT   the next entry is gone from the leader's log: a snapshot is on its way, nothing else but heartbeats

Invariant: 0 <= match_index < next_index.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ProgressState(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    next_index: int
    heard_ms: int  # the last reply
    caught_up_ms: int = -1  # the last reply by which it had everything; -1: none
    match_index: int = 0
    acked_round: int = 0
    is_recovering: bool = False  # by its last reply: its disk has lost entries, and it takes no part in elections yet
    state: ProgressState = ProgressState.PROBE
    paused: bool = False  # PROBE: the one append is under way
    snapshot_index: int = 0
    snapshot_sent_ms: int = 0

    def matched(self, index: int) -> None:
        """The follower has everything up to ``index``."""
        self.match_index = max(self.match_index, index)
        self.next_index = max(self.next_index, self.match_index + 1)
        self.paused = False
        if self.state is ProgressState.PROBE or (
            self.state is ProgressState.SNAPSHOT and self.match_index >= self.snapshot_index
        ):
            self.state = ProgressState.REPLICATE
            self.next_index = self.match_index + 1

    def replied(self, last_index: int, now_ms: int) -> None:
        """Note when, after ``matched``; the leader's log ends at ``last_index``."""
        if self.match_index >= last_index:
            self.caught_up_ms = now_ms

    def rejected(self, rejected_index: int, hint_index: int) -> bool:
        """The append behind ``rejected_index`` did not match; False for news that is too old to
        matter.
        """
        match self.state:
            case ProgressState.SNAPSHOT:
                return False
            case _ if rejected_index <= self.match_index:  # old, or it has lost what it had: heartbeats ask again
                return False
            case ProgressState.PROBE if rejected_index != self.next_index - 1:
                return False
        self.state = ProgressState.PROBE
        self.paused = False
        self.next_index = max(min(rejected_index, hint_index + 1), self.match_index + 1)
        return True

    def append_sent(self, count: int) -> None:
        """An append of so many entries is on its way."""
        if self.state is ProgressState.REPLICATE:
            self.next_index += count
        else:
            self.paused = True

    def snapshot_sent(self, index: int, now_ms: int) -> None:
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = index
        self.snapshot_sent_ms = now_ms

    def check(self) -> None:
        assert 0 <= self.match_index < self.next_index, self
