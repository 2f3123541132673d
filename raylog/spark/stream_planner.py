"""Writes a stream's entries into its ledger while queries read it, and removes entries that are
done.

A round reads the checkpoint (which entries are taken, which committed), removes committed entries,
commits their offsets to a consumer group if there is one, and, when it is due, looks at the logs
and writes the next entry. A failing group commit delays nothing: the group is only there to show
the lag. ``TriggerPace`` decides when the next entry is due and how much it holds:

- An entry that no batch has taken yet is left alone. New records go into further entries, ever less
  often while none is taken. So a query that waits for its trigger finds everything in few files,
  and nothing is written for a query that has ended.
- Untaken entries together hold at most ``offsets_max``. A trigger takes all of them, so it never
  exceeds that.

A failure loses nothing: what is not written now is written later, from the same place. A silent
cluster and a full disk are retried; any other error ends the planning and, through ``check``, the
query. A ledger has one planner at a time: within a process the newest takes over, and another
process is refused by the ledger's lock.

``round`` runs on the planner's thread, ``plan_all`` and ``check`` on any, under a lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raylog.errors import RaylogError
from raylog.ranges.entries import StreamEntry, following
from raylog.ranges.ledger import StreamLedger
from raylog.ranges.snapshot import LogEnds
from raylog.ranges.splitting import OffsetRange
from raylog.spark.checkpoint import CheckpointProgress
from raylog.types import TopicPartition

logger = logging.getLogger("raylog.spark")

POLL_S = 0.1
UNTAKEN_PAUSE_S = 1.0
UNTAKEN_SHARE = 0.1
FAILED_PAUSE_S = 1.0
REMINDER_S = 60.0
Logs = tuple[dict[str, str], dict[TopicPartition, LogEnds]]
Ends = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class TriggerPace:
    """When the next entry is due. Pure."""

    poll_s: float = POLL_S

    def is_due(self, now_s: float, written_s: float, untaken_since_s: float | None) -> bool:
        """``written_s``: when the last entry was written; ``untaken_since_s``: when the oldest
        untaken one was written.
        """
        if untaken_since_s is None:
            return now_s - written_s >= self.poll_s
        return now_s - written_s >= max(UNTAKEN_PAUSE_S, UNTAKEN_SHARE * (now_s - untaken_since_s))


class StreamPlanner:
    """``look`` returns the topics' ids and logs, ``parts`` splits an entry's ranges into tasks,
    ``commit`` commits a group's offsets.
    """

    def __init__(
        self,
        ledger: StreamLedger,
        progress: CheckpointProgress,
        *,
        look: Callable[[], Logs],
        parts: Callable[[StreamEntry], list[OffsetRange]],
        offsets_max: int | None = None,
        commit: Callable[[Ends], None] | None = None,
        is_over: Callable[[], bool] = lambda: False,
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._progress = progress
        self._look = look
        self._parts = parts
        self._offsets_max = offsets_max
        self._commit = commit
        self._is_over = is_over
        self._on_end = on_end
        self._clock = clock
        self._pace = TriggerPace()
        self._open = {number: ledger.entry(number) for number in ledger.numbers() if number}  # not committed yet
        self._written: dict[int, float] = dict.fromkeys(self._open, clock())
        self._written_s = 0.0
        self._committed = 0
        self._untold: Ends | None = None  # offsets still to be committed to the group
        self._tell_s = 0.0  # no commit before this time
        self._said: dict[str, float] = {}
        self._plans = True
        self._error: BaseException | None = None  # the error that ended the planning
        self._is_closed = False  # the ledger is another planner's
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"raylog-stream-{ledger.directory.name}", daemon=True)

    def start(self, *, plans: bool = True) -> None:
        """Run in a thread until ``stop``; without ``plans`` it only removes entries that are done."""
        self._plans = plans
        self._thread.start()

    def stop(self) -> None:
        """End the thread and release the ledger. Written entries stay."""
        self._ending.set()
        self._thread.join()

    def check(self) -> None:
        """Raise RaylogError if an error ended the planning."""
        if self._error is not None:
            raise RaylogError(
                f"the stream of {self._ledger.directory} is no longer planned, because of {self._error!r}"
            ) from self._error

    def fail(self, error: BaseException) -> None:
        """End the queries of a stopped planner with this error, because no other planner replaced
        it.
        """
        self._error = error

    def plan_all(self) -> None:
        """Write entries of at most ``offsets_max`` offsets until they cover everything in the logs
        now.

        Does nothing if another planner has the ledger, or this one does not plan.
        """
        with self._lock:
            if self._is_closed or not self._plans:
                return
            ids, logs = self._look()
            while (entry := following(self._last, ids, logs, offsets_max=self._offsets_max)) is not None:
                self._write(entry)

    def round(self) -> None:
        """Run one round; the thread does so every ``POLL_S``."""
        with self._lock:
            self._round()

    def _round(self) -> None:
        self._follow()
        now_s = self._clock()
        untaken = [number for number in self._open if number > self._progress.taken]
        oldest_s = min((self._written[number] for number in untaken), default=None)
        self._remind(oldest_s, now_s)
        if not self._plans or not self._pace.is_due(now_s, self._written_s, oldest_s):
            return
        offsets_max = self._offsets_max
        if offsets_max is not None:
            offsets_max -= sum(len(each) for number in untaken for each in self._open[number].ranges)
            if offsets_max <= 0:
                return
        entry = following(self._last, *self._look(), offsets_max=offsets_max)
        if entry is not None:
            self._write(entry)

    @property
    def _last(self) -> StreamEntry:
        assert self._ledger.last is not None, "entry 0 was written when the stream was made"
        return self._ledger.last

    def _write(self, entry: StreamEntry) -> None:
        self._ledger.append(entry, self._parts(entry))
        self._open[entry.number] = entry
        self._written[entry.number] = self._written_s = self._clock()

    def _follow(self) -> None:
        """Record what was committed since the last round."""
        self._progress.refresh()
        committed = self._progress.committed
        if committed > self._committed:
            done = max((number for number in self._open if number <= committed), default=None)
            if done is not None:
                self._untold = self._open[done].ends
                for number in [number for number in self._open if number <= done]:
                    del self._open[number], self._written[number]
            self._committed = committed
            self._ledger.forget_below(committed)
        self._tell_group()

    def _tell_group(self) -> None:
        """Commit the pending offsets to the group; after a refusal, retry after ``FAILED_PAUSE_S``."""
        if self._commit is None or self._untold is None or self._clock() < self._tell_s:
            return
        try:
            self._commit(self._untold)
        except RaylogError as error:
            self._tell_s = self._clock() + FAILED_PAUSE_S
            self._say(
                f"the stream of {self._ledger.directory} continues, but its group does not show the progress: {error}"
            )
        else:
            self._untold = None

    def _remind(self, oldest_s: float | None, now_s: float) -> None:
        if oldest_s is not None and now_s - oldest_s > REMINDER_S and not self._progress.has_begun():
            self._say(
                f"the stream in {self._ledger.directory} is waiting, and no query with its checkpoint has started: "
                'writeStream needs .option("checkpointLocation", the checkpoint of read_stream)'
            )

    def _run(self) -> None:
        try:
            while not self._ending.wait(POLL_S) and not self._is_over():
                try:
                    self.round()
                except (RaylogError, OSError) as error:
                    self._say(
                        f"the stream of {self._ledger.directory} cannot be planned at the moment and will be retried: {error}"
                    )
                    self._ending.wait(FAILED_PAUSE_S)
        except Exception as error:
            logger.exception("the stream of %s is no longer planned", self._ledger.directory)
            self._error = error
        finally:
            with self._lock:
                self._is_closed = True
                self._ledger.close()
            self._on_end()

    def _say(self, what: str) -> None:
        """Log a warning, the same one at most once in ``REMINDER_S``."""
        now_s = time.monotonic()
        if now_s - self._said.get(what, float("-inf")) >= REMINDER_S:
            self._said[what] = now_s
            logger.warning("%s", what)
