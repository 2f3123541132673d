"""The active controller's part in the record of high watermarks: it takes leaders' reports and
writes them down together.

Leaders report high watermarks that have moved (``replication.checkpoint_rounds``). What is news
waits here, the newest of each partition, until one record takes all of it into the metadata log, at
most every ``high.watermark.record.interval.ms``. Nothing waits, and nothing is written, where no
high watermark moves. What waits is lost with this controller; leaders report to the next one all
that they have.

A mark is written only where these hold, at that moment:

- It is the word of the present leader, in its present epoch. A later leader reports for itself.
- It is ahead of what is recorded. A new leader may know less for a while.
- Every member of the ISR has its log open, as far as this controller knows. Else the leader may
  already count records that a member has copied since it opened its log, while what it said when it
  opened is still on its way: that log would look cut.

What the record is for is said in ``elections``. An unclean election ends it (``image``).
"""

from __future__ import annotations

from raylog.control.high_watermarks import HighWatermark, by_partition, by_topic
from raylog.control.session import HighWatermarks
from raylog.metadata.configuration.controller_config import ControllerSettings
from raylog.metadata.ledger import Ledger
from raylog.metadata.partitions.elections import Standing
from raylog.metadata.partitions.partition_decisions import PartitionDecisions
from raylog.metadata.records import HighWatermarksNoted
from raylog.metadata.sessions import Session
from raylog.timers import Timers
from raylog.types import TopicIdPartition

HIGH_WATERMARKS = "high-watermarks"


class HighWatermarkRecord:
    __slots__ = ("_ledger", "_partitions", "_settings", "_timers", "_waiting")

    def __init__(
        self, ledger: Ledger, partitions: PartitionDecisions, timers: Timers, settings: ControllerSettings
    ) -> None:
        self._ledger = ledger
        self._partitions = partitions
        self._timers = timers
        self._settings = settings
        self._waiting: dict[TopicIdPartition, HighWatermark] = {}  # for the next record

    def reported(self, session: Session, report: HighWatermarks, now_ms: int) -> None:
        """A process says how far the partitions are that it leads."""
        latest = self._ledger.latest
        for id, mark in by_partition(report.topics):
            state = latest.partition(id)
            if state is None or state.leader_epoch != mark.leader_epoch:
                continue
            if state.node_of(state.leader) != session.node_id or state.leader_incarnation != session.incarnation:
                continue
            if self._is_news(id, mark):
                self._waiting[id] = mark
        self._arm(now_ms)

    def write(self, now_ms: int) -> None:
        """The time has come: decide one record of what may be written; what may not be yet waits
        on.
        """
        due: dict[TopicIdPartition, HighWatermark] = {}
        waiting, self._waiting = self._waiting, {}
        for id, mark in sorted(waiting.items()):
            state = self._ledger.latest.partition(id)
            if state is None or state.leader_epoch != mark.leader_epoch or not self._is_news(id, mark):
                continue
            standings = {self._partitions.candidate(id, state, broker).standing for broker in state.isr}
            (due if standings == {Standing.LIVE} else self._waiting)[id] = mark
        if due:
            self._ledger.add(HighWatermarksNoted(by_topic(due.items())))
        self._arm(now_ms)

    def _is_news(self, id: TopicIdPartition, mark: HighWatermark) -> bool:
        known = self._ledger.latest.high_watermarks.get(id)
        return mark.offset > (known.offset if known is not None else 0)

    def _arm(self, now_ms: int) -> None:
        if self._waiting and (HIGH_WATERMARKS,) not in self._timers:
            self._timers.set((HIGH_WATERMARKS,), now_ms + self._settings.now.high_watermark_record_interval_ms)

    def check(self) -> None:
        assert not self._waiting or (HIGH_WATERMARKS,) in self._timers, f"{self._waiting} would wait for ever"
