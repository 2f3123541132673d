"""Which segments of one process's logs hold files open, so that thousands of logs fit into one
table of file descriptors.

A log that is open holds one descriptor for good: that of its lock. A segment opens its files when
something reads or writes them: one for the records, and one for each index that is looked up or
written. It holds them until ``segments_max`` other segments have been used since. Then its files
are closed, also those of an active segment, and it opens them again when it needs them. So the logs
of a process hold at most::

    one descriptor per log  +  FILES_PER_SEGMENT × segments_max

``within`` draws the bounds from the process's limit (``ulimit -n``). A quarter of it goes to
segments, ``OWN_DESCRIPTORS`` are set aside for threads, sockets and Ray, and the rest is for logs.
A log beyond that is refused before it opens anything (``TooManyLogs``): in a full table the logs
that serve would fail on their next flush or checkpoint.

Threads: a segment's files belong to the thread where its log is written. Only what that thread
does, an opening or a use, closes the files of others, and all logs of one ``OpenFiles`` are written
by one thread. ``leave`` takes segments out of the account, for a thread that closes their log. It
may be called in any thread, and so may ``log_opened`` and ``log_closed``.

Invariants (``check``): at most ``segments_max`` segments are in the account, and no more than
``logs_max`` logs are open.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from raylog.errors import DiskError
from raylog.log.files import File

FILES_PER_SEGMENT = 3  # the records and two indexes
OWN_DESCRIPTORS = 256  # sockets, threads at work, Ray's own files and libraries
DESCRIPTORS_MAX = 65_536  # a process asks for no more, as Ray's own don't
SEGMENTS_MIN = 16
SEGMENTS_MAX = 4_096  # more save nothing: what is opened seldom is opened cheaply


class TooManyLogs(DiskError):
    """This process may not open another log: its file descriptors would not suffice."""


class Closable(Protocol):
    """What the account says of a segment: it closes its files, and opens them again when it is
    asked.
    """

    def close_files(self) -> None: ...


TABLE_IS_FULL = (errno.EMFILE, errno.ENFILE)


class OpenFiles:
    """See the module. ``logs_max`` None: as many as there are."""

    __slots__ = ("_guard", "_logs", "_segments", "logs_max", "segments_max")

    def __init__(self, segments_max: int, logs_max: int | None = None) -> None:
        assert segments_max >= 2, segments_max  # the one that opens, and the one that it is compared with
        self.segments_max = segments_max
        self.logs_max = logs_max
        self._segments: dict[Closable, None] = {}  # the least recently used first
        self._logs = 0
        self._guard = threading.Lock()

    @classmethod
    def within(cls, descriptors: int) -> OpenFiles:
        """Bounds for a process that may have so many descriptors."""
        return cls(segments_max_of(descriptors), logs_max_of(descriptors))

    # ------------------------------------------------------------------ logs

    def log_opened(self) -> None:
        """A log is about to be opened. Raises TooManyLogs; else ``log_closed`` has to follow one
        day.
        """
        with self._guard:
            if self.logs_max is not None and self._logs >= self.logs_max:
                raise TooManyLogs(
                    f"this process may hold {self.logs_max:,} replicas with the file descriptors that it has. "
                    "Raise `ulimit -n` before Ray starts: see `raylog doctor`."
                )
            self._logs += 1

    def log_closed(self) -> None:
        with self._guard:
            self._logs -= 1

    # ------------------------------------------------------------------ segments

    def open(self, segment: Closable, opening: Callable[[], File]) -> File:
        """A file of that segment. Where the process has no descriptor left, for whatever reason,
        others close theirs first.
        """
        self.use(segment)
        try:
            return opening()
        except OSError as error:
            if error.errno not in TABLE_IS_FULL:
                raise
            self._close_all_but(segment)
            return opening()

    def _close_all_but(self, segment: Closable) -> None:
        with self._guard:
            for other in list(self._segments):
                if other is not segment:
                    del self._segments[other]
                    other.close_files()

    def use(self, segment: Closable) -> None:
        """It is about to open a file, or to use those that it has open. Others may close theirs."""
        with self._guard:
            segments = self._segments
            segments.pop(segment, None)
            segments[segment] = None
            while len(segments) > self.segments_max:
                oldest = next(iter(segments))
                del segments[oldest]
                oldest.close_files()

    def leave(self, segments: Iterable[Closable]) -> None:
        """Whatever these hold open is no longer this account's: when it returns, nobody but the
        caller closes it.
        """
        with self._guard:
            for segment in segments:
                self._segments.pop(segment, None)

    def __contains__(self, segment: Closable) -> bool:
        return segment in self._segments

    @property
    def logs(self) -> int:
        """The logs that hold their locks."""
        return self._logs

    @property
    def descriptors_max(self) -> int:
        """What the logs that are open now may hold at most."""
        return self._logs + FILES_PER_SEGMENT * self.segments_max

    def check(self) -> None:
        """Assert the bounds of the module's docstring."""
        assert len(self._segments) <= self.segments_max, (len(self._segments), self.segments_max)
        assert self._logs >= 0 and (self.logs_max is None or self._logs <= self.logs_max), (self._logs, self.logs_max)


def segments_max_of(descriptors: int) -> int:
    """How many segments may hold files open in a process that may have so many descriptors."""
    return max(SEGMENTS_MIN, min(SEGMENTS_MAX, descriptors // (4 * FILES_PER_SEGMENT)))


def logs_max_of(descriptors: int) -> int:
    """How many logs a process may hold that may have so many descriptors."""
    return max(1, descriptors - FILES_PER_SEGMENT * segments_max_of(descriptors) - OWN_DESCRIPTORS)


def descriptors_for(logs: int) -> int:
    """The limit that a process needs to hold so many logs."""
    low, high = 1, 2 * logs + 4 * (OWN_DESCRIPTORS + FILES_PER_SEGMENT * SEGMENTS_MIN)
    while low < high:
        middle = (low + high) // 2
        if logs_max_of(middle) >= logs:
            high = middle
        else:
            low = middle + 1
    return low
