"""The four assignors of Kafka's clients, by the names under which members of every client know
them.

::

    assignor.py    what an assignor is
    in_turn.py     range, roundrobin
    sticky.py      sticky, cooperative-sticky
    balancing.py   the part of the two where members subscribe to different topics
"""

from __future__ import annotations

from raylog.groups.assignors.assignor import Assignor, Plan, SubscribedMember
from raylog.groups.assignors.in_turn import RANGE, ROUNDROBIN
from raylog.groups.assignors.sticky import COOPERATIVE_STICKY, STICKY

ASSIGNORS: dict[str, Assignor] = {each.name: each for each in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)}

__all__ = ["ASSIGNORS", "Assignor", "SubscribedMember", "Plan"]
