"""A hierarchical timing wheel: the deadlines of thousands of parked requests, most of which are
cancelled.

A wheel is a ring of ``size`` buckets, each ``tick_ms`` wide. A deadline beyond the ring goes to a
coarser wheel above, whose tick is the whole ring below; wheels are added as they are needed. When a
coarse bucket comes due, its timers move down to finer ones ("downgrade") until they stand in a
bucket of one tick, which fires. Adding and cancelling cost O(1); a heap holds one entry per used
bucket (not per timer) and says when the next one is due. Kafka's ``SystemTimer`` and its purgatory
are built so.

The wheel owns no clock: ``advance(now_ms)`` is told the time and returns what fired, in order of
deadlines and, within one tick, of arrival. A timer may fire late (whenever ``advance`` is called)
but never early.

Invariants (``check``): a timer that is armed stands in exactly one bucket, and that bucket covers
its deadline; the clock never goes back.
"""

from __future__ import annotations

import heapq
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class WheelPlace(NamedTuple):
    """Where a timer stands: the level of its wheel (1 is the finest), the slot in the ring and the
    bucket's start.
    """

    level: int
    slot: int
    bucket_start_ms: int


class WheelTimer(Generic[T]):
    """One deadline. ``bucket`` is None when it is not armed: fired, cancelled, or never added."""

    __slots__ = ("bucket", "deadline_ms", "payload")

    def __init__(self, deadline_ms: int, payload: T) -> None:
        self.deadline_ms = deadline_ms
        self.payload = payload
        self.bucket: _Bucket[T] | None = None

    def cancel(self) -> None:
        """Disarm. Harmless when it has fired or was cancelled before."""
        bucket = self.bucket
        if bucket is not None:
            del bucket.timers[self]
            self.bucket = None


class _Bucket(Generic[T]):
    """The timers of one slot. ``start_ms`` is −1 while the slot is not in the heap; a dict keeps
    the order of arrival.
    """

    __slots__ = ("start_ms", "timers")

    def __init__(self) -> None:
        self.start_ms = -1
        self.timers: dict[WheelTimer[T], None] = {}


class _Wheel(Generic[T]):
    """One level: ``now_ms`` is its clock, a multiple of its tick."""

    __slots__ = ("buckets", "interval_ms", "now_ms", "tick_ms")

    def __init__(self, tick_ms: int, size: int, now_ms: int) -> None:
        self.tick_ms = tick_ms
        self.interval_ms = tick_ms * size
        self.now_ms = now_ms - now_ms % tick_ms
        self.buckets: list[_Bucket[T] | None] = [None] * size


class TimingWheel(Generic[T]):
    """Timers with payloads of one type. ``size`` buckets per level; times are milliseconds."""

    def __init__(self, *, tick_ms: int = 1, size: int = 512, now_ms: int = 0) -> None:
        assert tick_ms >= 1 and size >= 2, (tick_ms, size)
        self._size = size
        self._wheels: list[_Wheel[T]] = [_Wheel(tick_ms, size, now_ms)]
        self._due: list[tuple[int, int, _Bucket[T]]] = []  # (start of the bucket, number of the entry, bucket)
        self._entries = 0
        self._overdue: dict[
            WheelTimer[T], None
        ] = {}  # armed with a deadline that had come: they fire at the next advance
        self._overdue_bucket: _Bucket[T] = _Bucket()
        self._overdue_bucket.timers = self._overdue

    @property
    def now_ms(self) -> int:
        """The latest time it was told, rounded down to a tick."""
        return self._wheels[0].now_ms

    def add(self, deadline_ms: int, payload: T) -> WheelTimer[T]:
        """Arm a timer. One whose deadline has come fires at the next ``advance``, and
        ``next_due_ms`` says so.
        """
        timer = WheelTimer(deadline_ms, payload)
        self._place(timer)
        return timer

    def place_of(self, timer: WheelTimer[T]) -> WheelPlace | None:
        """Where an armed timer stands; None when it is due at once or not armed."""
        for level, wheel in enumerate(self._wheels, start=1):
            for slot, bucket in enumerate(wheel.buckets):
                if bucket is not None and timer.bucket is bucket:
                    return WheelPlace(level, slot, bucket.start_ms)
        return None

    def next_due_ms(self) -> int | None:
        """When ``advance`` has something to do next (fire, or move timers down); None when nothing
        is armed.
        """
        if self._overdue:
            return self.now_ms
        due = self._due
        while due and not due[0][2].timers:  # emptied by cancellations
            heapq.heappop(due)[2].start_ms = -1
        return due[0][0] if due else None

    def advance(self, now_ms: int) -> list[WheelTimer[T]]:
        """Set the clock and return the timers whose deadline is at or before ``now_ms``, disarmed."""
        fired: list[WheelTimer[T]] = []
        self._drain(self._overdue_bucket, fired)
        due = self._due
        while due and due[0][0] <= now_ms:
            start_ms, _, bucket = heapq.heappop(due)
            bucket.start_ms = -1
            self._set_clock(start_ms)
            timers, bucket.timers = bucket.timers, {}
            for timer in timers:
                timer.bucket = None
                self._place(timer)  # down a level, or overdue
            self._drain(self._overdue_bucket, fired)
        self._set_clock(now_ms)
        return fired

    def __len__(self) -> int:
        placed = sum(len(bucket.timers) for wheel in self._wheels for bucket in wheel.buckets if bucket is not None)
        return placed + len(self._overdue)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for wheel in self._wheels:
            assert wheel.now_ms % wheel.tick_ms == 0, (wheel.now_ms, wheel.tick_ms)
            for bucket in filter(None, wheel.buckets):
                for timer in bucket.timers:
                    assert timer.bucket is bucket, "a timer stands in a bucket that it does not know"
                    assert 0 <= timer.deadline_ms - bucket.start_ms < wheel.tick_ms, (
                        f"a timer for {timer.deadline_ms} stands in the bucket from {bucket.start_ms}"
                    )

    def _place(self, timer: WheelTimer[T]) -> None:
        deadline_ms = timer.deadline_ms
        level = 0
        while True:
            wheel = self._wheels[level]
            if deadline_ms < wheel.now_ms + wheel.tick_ms:
                bucket = self._overdue_bucket  # only at the finest level: coarser ones take what lies beyond the finer
                break
            if deadline_ms < wheel.now_ms + wheel.interval_ms:
                number = deadline_ms // wheel.tick_ms
                slot = number % self._size
                found = wheel.buckets[slot]
                if found is None:
                    found = wheel.buckets[slot] = _Bucket()
                bucket = found
                if bucket.start_ms < 0:
                    bucket.start_ms = number * wheel.tick_ms
                    self._entries += 1
                    heapq.heappush(self._due, (bucket.start_ms, self._entries, bucket))
                break
            level += 1
            if level == len(self._wheels):
                self._wheels.append(_Wheel(wheel.interval_ms, self._size, wheel.now_ms))
        bucket.timers[timer] = None
        timer.bucket = bucket

    def _set_clock(self, now_ms: int) -> None:
        for wheel in self._wheels:
            if now_ms < wheel.now_ms + wheel.tick_ms:
                break
            wheel.now_ms = now_ms - now_ms % wheel.tick_ms

    def _drain(self, bucket: _Bucket[T], fired: list[WheelTimer[T]]) -> None:
        for timer in bucket.timers:
            timer.bucket = None
            fired.append(timer)
        bucket.timers.clear()
