"""Writes a stream's entries into its ledger while queries read it, and clears up behind them.

A round looks at the checkpoint (which entries are taken, which committed), forgets what is committed, commits it to a consumer group if
there is one, and, when it is time, looks at the logs and writes the next entry. A group that can't be committed to holds nothing up: it is
for people who look at its lag. When the next entry is due, and how much goes into it, is ``Pace``:

- An entry that no batch has taken yet is left to be; what comes meanwhile goes into further ones, fewer and fewer the longer none is taken,
  so a query that waits for its trigger finds all there is, in few files, and one that has ended is not written for.
- Untaken entries together hold at most ``offsets_max``, and a trigger takes all that are there: so no trigger exceeds it.

Nothing is lost by a failure here: what is not written now is written later, from the same place. That goes for a cluster that does not
answer and a disk that is full; any other error ends the planning, and by ``check`` the query. A ledger has one planner at a time; in one
process the newest takes over, another process is refused by the ledger's lock.

``round`` is called on the planner's thread, ``plan_all`` and ``check`` on any: a lock keeps them apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raylog.errors import RaylogError
from raylog.ranges.cut import LogEnds
from raylog.ranges.entries import Entry, following
from raylog.ranges.ledger import Ledger
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
class Pace:
    """When the next entry is due. Pure."""

    poll_s: float = POLL_S

    def is_due(self, now_s: float, written_s: float, untaken_since_s: float | None) -> bool:
        """``written_s``: when the last entry was; ``untaken_since_s``: when the oldest one was that no batch has taken."""
        if untaken_since_s is None:
            return now_s - written_s >= self.poll_s
        return now_s - written_s >= max(UNTAKEN_PAUSE_S, UNTAKEN_SHARE * (now_s - untaken_since_s))


class StreamPlanner:
    """``look`` tells the topics' ids and logs, ``parts`` how an entry's ranges are split into tasks, ``commit`` keeps a group's offsets."""

    def __init__(
        self,
        ledger: Ledger,
        progress: CheckpointProgress,
        *,
        look: Callable[[], Logs],
        parts: Callable[[Entry], list[OffsetRange]],
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
        self._pace = Pace()
        self._open = {number: ledger.entry(number) for number in ledger.numbers() if number}  # not committed yet
        self._written: dict[int, float] = dict.fromkeys(self._open, clock())
        self._written_s = 0.0
        self._committed = 0
        self._untold: Ends | None = None  # what the group shall be told
        self._tell_s = 0.0  # not before
        self._said: dict[str, float] = {}
        self._plans = True
        self._error: BaseException | None = None  # that ended it
        self._is_closed = False  # the ledger is another planner's
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"raylog-stream-{ledger.directory.name}", daemon=True)

    def start(self, *, plans: bool = True) -> None:
        """Go on in a thread of its own until ``stop``; without ``plans`` it only clears up behind the queries."""
        self._plans = plans
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give the ledger away. Entries that were written stay."""
        self._ending.set()
        self._thread.join()

    def check(self) -> None:
        """RaylogError for an error that ended the planning."""
        if self._error is not None:
            raise RaylogError(
                f"the stream of {self._ledger.directory} is not planned any more, since: {self._error!r}"
            ) from self._error

    def fail(self, error: BaseException) -> None:
        """Let the queries of a planner that is stopped end with this error: none has come in its place."""
        self._error = error

    def plan_all(self) -> None:
        """Write entries, each of at most ``offsets_max`` offsets, until all that the logs hold now is in one.

        Nothing where the ledger is another planner's by now, or this one does not plan.
        """
        with self._lock:
            if self._is_closed or not self._plans:
                return
            ids, logs = self._look()
            while (entry := following(self._last, ids, logs, offsets_max=self._offsets_max)) is not None:
                self._write(entry)

    def round(self) -> None:
        """One look at everything; what the thread does every ``POLL_S``."""
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
    def _last(self) -> Entry:
        assert self._ledger.last is not None, "entry 0 was written when the stream was made"
        return self._ledger.last

    def _write(self, entry: Entry) -> None:
        self._ledger.append(entry, self._parts(entry))
        self._open[entry.number] = entry
        self._written[entry.number] = self._written_s = self._clock()

    def _follow(self) -> None:
        """Take note of what was committed since."""
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
        """Commit what is not told yet to the group; where it refuses, again after ``FAILED_PAUSE_S``."""
        if self._commit is None or self._untold is None or self._clock() < self._tell_s:
            return
        try:
            self._commit(self._untold)
        except RaylogError as error:
            self._tell_s = self._clock() + FAILED_PAUSE_S
            self._say(f"the stream of {self._ledger.directory} goes on, but its group does not show it: {error}")
        else:
            self._untold = None

    def _remind(self, oldest_s: float | None, now_s: float) -> None:
        if oldest_s is not None and now_s - oldest_s > REMINDER_S and not self._progress.has_begun():
            self._say(
                f"a stream waits in {self._ledger.directory}, and no query with its checkpoint has begun: "
                'writeStream needs .option("checkpointLocation", the checkpoint of read_stream)'
            )

    def _run(self) -> None:
        try:
            while not self._ending.wait(POLL_S) and not self._is_over():
                try:
                    self.round()
                except (RaylogError, OSError) as error:
                    self._say(
                        f"the stream of {self._ledger.directory} is not planned at the moment, and goes on later: {error}"
                    )
                    self._ending.wait(FAILED_PAUSE_S)
        except Exception as error:
            logger.exception("the stream of %s is not planned any more", self._ledger.directory)
            self._error = error
        finally:
            with self._lock:
                self._is_closed = True
                self._ledger.close()
            self._on_end()

    def _say(self, what: str) -> None:
        """A warning, the same one at most once in ``REMINDER_S``."""
        now_s = time.monotonic()
        if now_s - self._said.get(what, float("-inf")) >= REMINDER_S:
            self._said[what] = now_s
            logger.warning("%s", what)
