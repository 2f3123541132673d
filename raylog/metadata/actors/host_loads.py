"""How loaded the hosts of a disk are, and what would be gained by moving replicas: pure arithmetic
over heartbeats.

Shares are thousandths of the time in which a host's event loop was busy. A heartbeat gives the
host's share, and its replicas' traffic; the share is split among the replicas by the cost of their
traffic (``session.ReplicaLoad``). What a host does beside its replicas' traffic goes with them:
there is no better guess.

``HostLoad`` keeps one host's last report, and since when it has been busy, or idle, without a
break. Only load history is here, so a new controller begins with nothing and has seen enough after
one window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raylog.control.session import Heartbeat
from raylog.types import TopicIdPartition

GAIN_MIN = 0.15  # the busier host of the two has to become less busy by this share of what it is
WORTH_MOVING_PER_MILLE = 10  # a replica with less than this stays where it is


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a host is busy and when it is idle, and for how long it has to be; ``is_on`` false:
    nothing is done.

    0 <= idle_per_mille < busy_per_mille <= 1000. ``actors_max`` 0: as many hosts for replicas on a
    broker as its machine has cores.
    """

    is_on: bool = True
    busy_per_mille: int = 750
    idle_per_mille: int = 200
    busy_ms: int = 5_000
    idle_ms: int = 300_000
    backoff_ms: int = 10_000
    actors_max: int = 0

    @property
    def rest_ms(self) -> int:
        """How long a replica stays where it was moved to."""
        return 6 * self.backoff_ms


@dataclass(slots=True)
class HostLoad:
    """One process of a host, from its first heartbeat on. Another incarnation begins anew."""

    incarnation: int
    busy_per_mille: int = 0
    shares: dict[TopicIdPartition, int] = field(default_factory=dict)  # of replicas with traffic
    busy_since_ms: int | None = None  # when the first of an unbroken line of busy reports came
    idle_since_ms: int | None = None

    def report(self, heartbeat: Heartbeat, bounds: Bounds, now_ms: int) -> None:
        if heartbeat.busy_per_mille < 0:
            return  # a process that has just begun: it has measured nothing yet
        busy = self.busy_per_mille = heartbeat.busy_per_mille
        whole = sum(load.cost for load in heartbeat.loads)
        self.shares = {load.id: busy * load.cost // whole for load in heartbeat.loads} if whole else {}
        self.busy_since_ms = _since(self.busy_since_ms, busy >= bounds.busy_per_mille, now_ms)
        self.idle_since_ms = _since(self.idle_since_ms, busy <= bounds.idle_per_mille, now_ms)

    def forget_history(self) -> None:
        """Replicas came or went: what was measured before says nothing about the time to come."""
        self.busy_since_ms = self.idle_since_ms = None

    def was_busy_for(self, duration_ms: int, now_ms: int) -> bool:
        return self.busy_since_ms is not None and now_ms - self.busy_since_ms >= duration_ms

    def was_idle_for(self, duration_ms: int, now_ms: int) -> bool:
        return self.idle_since_ms is not None and now_ms - self.idle_since_ms >= duration_ms


def _since(before_ms: int | None, holds: bool, now_ms: int) -> int | None:
    if not holds:
        return None
    return now_ms if before_ms is None else before_ms


def worth_moving(
    shares: Mapping[TopicIdPartition, int],
    target_per_mille: int,
    *,
    movable: Iterable[TopicIdPartition],
) -> list[TopicIdPartition]:
    """The replicas that go from a host with these shares to one that is so busy, hottest first;
    empty if that gains too little.

    Hottest first each replica goes to the side that is less busy so far. The first goes to the
    target where the target has nothing to do, so one hot replica among cold ones is what moves.
    """
    free = set(movable)
    hottest_first = sorted(shares, key=lambda id: (-shares[id], id))
    staying = sum(share for id, share in shares.items() if id not in free or share < WORTH_MOVING_PER_MILLE)
    arriving, moves = target_per_mille, []
    for id in hottest_first:
        if id not in free or shares[id] < WORTH_MOVING_PER_MILLE:
            continue
        if arriving <= staying:
            arriving += shares[id]
            moves.append(id)
        else:
            staying += shares[id]
    before = max(sum(shares.values()), target_per_mille)
    return moves if moves and max(staying, arriving) <= before * (1 - GAIN_MIN) else []
