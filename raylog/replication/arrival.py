"""A copy on its way from another disk of a broker (``disk_moves``), as the leader knows it from when
it is near until the controller has decided that it takes its replica's place.

A copy is *near* when it has all that the log had at its fetch before this one. The leader counts it
from then on as it counts the ISR: the high watermark waits for it. Where the log ends at that moment
is the copy's goal. A goal stands still, however much is written meanwhile; so the copy of a
partition that is written without pause reaches it, too. Then the leader asks the controller::

    state   ends when
    near    the copy has reached its goal (it is asked in); ``NEAR_MS`` are over; the assignment or the ISR changes
    asked   the controller has decided otherwise; another epoch begins. Never by time: it may be decided

**The leader's own replica.** Its copy leads on, and a record that the leader appends after the copy's
last fetch is lost. With acks=all nobody is told of such a record: the high watermark waits for the
copy. Records with other acks are acknowledged when they are appended. So the leader *holds* them
(``Leader.holds``): from the beginning of an arrival to its end it appends none. Those that came
before are below the goal, which the copy has reached when it is asked in. So the copy has every
record that was acknowledged, whatever its acks.

What is held waits as records do whose partition will be led here soon (``awaited``). It is appended
if the arrival ends and the leader stays, else refused: its producer sends it to the new leader.
"""

from __future__ import annotations

from typing import Final

from raylog.replication.context import Deadline

NEAR_MS: Final = 1_000  # for what a copy lacks that was a round behind; a throttle may make it last
REST_MS: Final = 5_000  # between two attempts, in which records of all acks are appended


class Arrival:
    """``id`` is what the leader calls the copy, ``goal`` the end of the log that it has to reach."""

    __slots__ = ("deadline", "goal", "id", "is_own")

    def __init__(self, id: int, goal: int, deadline: Deadline, *, is_own: bool) -> None:
        """``is_own``: it is a copy of the leader's own replica. ``deadline`` ends it while it is not
        asked in.
        """
        self.id = id
        self.goal = goal
        self.deadline = deadline
        self.is_own = is_own
