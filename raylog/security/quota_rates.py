"""How fast somebody goes, and how long he has to wait for it: Kafka's SampledStat, Rate and
TokenBucket.

A ``Rate`` is the sum of some samples over the time that they cover. A sample is what was recorded
within one window after its first record; it is forgotten when nothing was added to it for as long
as all windows together last. The time counts as at least all windows but the last one, so that the
first second of a client does not look like a burst::

    samples         |—— 400 ——|—— 400 ——| … |—— 2,700 —
    rate            sum / (now − start of the oldest, and whole windows added until there are N − 1)
    throttle time   (rate − limit) / limit × that time: then the rate would be the limit

A client may send what N − 1 windows allow at once. When one that waits sends something, what counts
was at most its limit for the time since the oldest sample began, and for N + 1 windows more: one
request comes on top of that.

A ``TokenBucket`` holds up to N windows' worth of tokens (KIP-599). It may fall below zero by one
request; until it is above zero again, nothing more is granted.

Times are milliseconds of one clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOWS: Final = 11
WINDOW_MS: Final = 1_000


class _Sample:
    __slots__ = ("last_ms", "start_ms", "total")

    def __init__(self, start_ms: float) -> None:
        self.start_ms = start_ms
        self.last_ms = start_ms
        self.total = 0.0


class Rate:
    """Per second. ``windows`` and ``window_ms``: Kafka's ``quota.window.num`` and
    ``quota.window.size.seconds``.
    """

    __slots__ = ("_samples", "window_ms", "windows")

    def __init__(self, windows: int = WINDOWS, window_ms: int = WINDOW_MS) -> None:
        self.windows = windows
        self.window_ms = window_ms
        self._samples: deque[_Sample] = deque()  # the oldest first

    def record(self, amount: float, now_ms: float) -> None:
        """A negative amount takes back what was recorded before."""
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self.window_ms:
            samples.append(_Sample(now_ms))
            if len(samples) > self.windows + 1:
                samples.popleft()
        samples[-1].total += amount
        samples[-1].last_ms = now_ms

    def per_second(self, now_ms: float) -> float:
        return self.total(now_ms) / self.covered_ms(now_ms) * 1_000

    def total(self, now_ms: float) -> float:
        """What the samples hold that count."""
        self._purge(now_ms)
        return sum(sample.total for sample in self._samples)

    def covered_ms(self, now_ms: float) -> float:
        """The time that the rate is over."""
        self._purge(now_ms)
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0.0
        missing = self.windows - 1 - int(elapsed_ms // self.window_ms)
        return max(elapsed_ms + max(missing, 0) * self.window_ms, 1)

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """How long to wait until the rate is the limit, in whole milliseconds; 0 if it is not above."""
        excess = self.per_second(now_ms) - limit
        return max(0, round(excess / limit * self.covered_ms(now_ms))) if excess > 0 else 0

    def is_idle(self, now_ms: float) -> bool:
        """Whether nothing is left that counts."""
        self._purge(now_ms)
        return not self._samples

    def _purge(self, now_ms: float) -> None:
        expiry_ms = self.windows * self.window_ms
        while self._samples and now_ms - self._samples[0].last_ms >= expiry_ms:
            self._samples.popleft()


def burst_of(limit: float, windows: int = WINDOWS, window_ms: int = WINDOW_MS) -> float:
    """What may be sent at once by somebody who has sent nothing lately."""
    return limit * (windows - 1) * window_ms / 1_000


class TokenBucket:
    """It begins full."""

    __slots__ = ("_limit", "_tokens", "_updated_ms", "window_ms", "windows")

    def __init__(self, limit: float, now_ms: float, windows: int = WINDOWS, window_ms: int = WINDOW_MS) -> None:
        self.windows = windows
        self.window_ms = window_ms
        self._limit = limit
        self._tokens = self._most
        self._updated_ms = now_ms

    @property
    def _most(self) -> float:
        return self._limit * self.windows * self.window_ms / 1_000

    def tokens(self, now_ms: float) -> float:
        self._tokens = min(self._most, self._tokens + self._limit * (now_ms - self._updated_ms) / 1_000)
        self._updated_ms = now_ms
        return self._tokens

    def is_full(self, now_ms: float) -> bool:
        """Whether nothing was taken that counts."""
        return self.tokens(now_ms) >= self._most

    def limit_to(self, limit: float, now_ms: float) -> None:
        """From now on."""
        self.tokens(now_ms)
        self._limit = limit
        self._tokens = min(self._most, self._tokens)

    def take(self, count: float, now_ms: float) -> None:
        """Whatever is there: it may fall below zero."""
        self._tokens = self.tokens(now_ms) - count

    def throttle_ms(self, now_ms: float) -> int:
        """How long until there is no debt, in whole milliseconds."""
        return max(0, round(-self.tokens(now_ms) / self._limit * 1_000))
