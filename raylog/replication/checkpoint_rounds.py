"""When each replica's checkpoint is due: once per round of
``replica.high.watermark.checkpoint.interval.ms``, where something has moved.

A checkpoint is a small file and a rename, written in a thread. A process that holds hundreds of
replicas would keep its threads from flushes and openings for tens of milliseconds if it wrote all
of them together, so a round is cut into turns: as many as there are replicas, but none shorter than
``TURN_MS``, and each replica has its turn by its place in the table. While the table stays as it is
a replica's turns are one interval apart.

A round in which nothing has moved since the last one has no turns. Then the process sleeps until
``wake`` says that something may have, and goes on with the turn that would have been next.

With the first turn of each round the process also reports to the controller, in one frame, the high
watermarks of the partitions that it leads: those that have moved since its last report, or that
this session's controller has not heard of in this epoch. The controllers keep a record of them
(``metadata.high_watermark_record``).

Owns the timer, the count of turns and what was reported; the order is carried out by the shell,
like all housekeeping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from raylog.control.high_watermarks import HighWatermark, by_topic
from raylog.control.session import HighWatermarks
from raylog.replication.context import HostContext
from raylog.replication.events import RunHousekeeping, Tell
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.replica import Replica

TURN_MS = 50


def arm_housekeeping(context: HostContext, replica: Replica, now_ms: int) -> None:
    """Have retention applied to its log every ``log.retention.check.interval.ms``, for as long as
    it is open.
    """

    def due(now_ms: int, wall_ms: int) -> None:
        if replica.log is not None:
            replica.checkpointed = replica.log.high_watermark
            context.effects.append(RunHousekeeping(replica.id, replica.log))
            arm(now_ms)

    def arm(now_ms: int) -> None:
        replica.housekeeping = context.wheel.add(now_ms + context.config.log_retention_check_interval_ms, due)

    arm(now_ms)


def hasten_housekeeping(context: HostContext, replicas: Iterable[Replica], now_ms: int) -> None:
    """The interval may be another one now: a shorter one counts from now, a longer one from the
    next time, which stays.
    """
    latest_ms = now_ms + context.config.log_retention_check_interval_ms
    for replica in replicas:
        planned = replica.housekeeping
        if planned is not None and planned.deadline_ms > latest_ms:
            planned.cancel()
            replica.housekeeping = context.wheel.add(latest_ms, planned.payload)


class CheckpointRounds:
    __slots__ = ("_begun", "_context", "_replicas", "_reported", "_slept_ms", "_turn")

    def __init__(self, context: HostContext, replicas: Mapping[TopicIdPartition, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._turn = 0
        self._begun = False
        self._slept_ms: int | None = None  # since when: the time of a round's first turn
        self._reported: dict[TopicIdPartition, HighWatermark] = {}  # in this session

    def begin(self, now_ms: int) -> None:
        """There is a replica, from now on."""
        if not self._begun:
            self._begun = True
            self._arm(now_ms + self._turn_ms)

    def wake(self, now_ms: int) -> None:
        """A high watermark may have moved, or the controller may not know one."""
        if self._slept_ms is None:
            return
        passed = (now_ms - self._slept_ms) // self._turn_ms + 1
        self._turn = passed % self._turns
        self._arm(self._slept_ms + passed * self._turn_ms)
        self._slept_ms = None

    @property
    def _interval_ms(self) -> int:
        return self._context.config.replica_high_watermark_checkpoint_interval_ms

    @property
    def _turns(self) -> int:
        """0 < turns: of a round."""
        return max(1, min(len(self._replicas), self._interval_ms // TURN_MS))

    @property
    def _turn_ms(self) -> int:
        return self._interval_ms // self._turns

    def _arm(self, due_ms: int) -> None:
        self._context.wheel.add(due_ms, self._due)

    def _due(self, now_ms: int, wall_ms: int) -> None:
        turns, count = self._turns, len(self._replicas)
        turn = self._turn % turns
        if turn == 0:
            self._report()
            if not any(_has_moved(replica) for replica in self._replicas.values()):
                self._slept_ms = now_ms
                return
        self._turn = turn + 1
        for replica in list(self._replicas.values())[count * turn // turns : count * (turn + 1) // turns]:
            log = replica.log
            if log is not None and _has_moved(replica):
                replica.checkpointed = log.high_watermark
                self._context.effects.append(RunHousekeeping(replica.id, log, retention=False))
        self._arm(now_ms + self._turn_ms)

    def session_changed(self, now_ms: int) -> None:
        """The next controller, or the same one in another session, is told everything again."""
        self._reported.clear()
        self.wake(now_ms)

    def _report(self) -> None:
        if not self._context.connected:
            return
        led = {
            id: HighWatermark(replica.leader.leader_epoch, replica.leader.log.high_watermark)
            for id, replica in self._replicas.items()
            if replica.leader is not None
        }
        moved = [(id, mark) for id, mark in led.items() if mark.offset > 0 and self._reported.get(id) != mark]
        self._reported = led
        if moved:
            self._context.effects.append(Tell(HighWatermarks(by_topic(moved))))


def _has_moved(replica: Replica) -> bool:
    return replica.log is not None and replica.log.high_watermark != replica.checkpointed
