"""How fast one process may copy in one direction: an account of bytes that fills with time (Kafka's
replication quotas, Q9).

A broker's rate is the controller's to divide (``replication_quota_rates``); a process has an
account of its share for what it copies out as a leader and another for what it copies in as a
follower. Only records on their way to a replica that is listed as throttled and not in sync are
paid from it; members of the ISR are never held back, so a throttle costs nobody a place in it.

The account fills at ``rate`` bytes per second up to what one second brings. Records come in whole
batches, so it may be overdrawn by one batch; then nothing is copied until it is in credit again by
what ``QUANTUM_MS`` brings, so that copying goes on in few large steps and not in many small ones.
Within any time T at most ``rate`` × T, one second's worth, and one batch are copied.

The account has no clock: ``advance`` is told the time before anything else is asked. Amounts are
kept in thousandths of a byte.
"""

from __future__ import annotations

CREDIT_MS = 1_000
QUANTUM_MS = 50
LOOK_AGAIN_MS = 1_000  # at the latest
UNLIMITED = 1 << 62


class Throttle:
    """One account. ``rate`` None: no limit. Balance ≤ ``CREDIT_MS`` × rate."""

    __slots__ = ("_advanced_ms", "_balance", "_is_saving", "rate")

    def __init__(self) -> None:
        self.rate: int | None = None
        self._balance = 0
        self._is_saving = False
        self._advanced_ms = 0

    def set_rate(self, rate: int | None, now_ms: int) -> None:
        """From now on ``rate`` bytes per second. A debt stays; what was never limited begins with
        nothing.
        """
        self.advance(now_ms)
        if self.rate is None or rate is None:
            self._balance = 0
        self._is_saving = rate is not None
        self._advanced_ms = now_ms
        self.rate = rate

    def advance(self, now_ms: int) -> None:
        if self.rate is not None and now_ms > self._advanced_ms:
            earned = self.rate * (now_ms - self._advanced_ms)
            self._balance = min(self._balance + earned, max(self.rate * CREDIT_MS, 1_000))
            self._advanced_ms = now_ms
            if self._is_saving and self._balance >= self._quantum:
                self._is_saving = False

    @property
    def allowance(self) -> int:
        """How many bytes may be copied now; at least one batch may, if it is not 0."""
        if self.rate is None:
            return UNLIMITED
        return 0 if self._is_saving else max(0, self._balance // 1_000)

    def spend(self, size: int) -> None:
        """``size`` bytes were copied."""
        if self.rate is not None:
            self._balance -= size * 1_000
            if self._balance < 1_000:
                self._is_saving = True

    @property
    def ready_in_ms(self) -> int:
        """When to look again while the allowance is 0."""
        if not self.rate:
            return LOOK_AGAIN_MS
        return min(max(1, -(-(self._quantum - self._balance) // self.rate)), LOOK_AGAIN_MS)

    @property
    def _quantum(self) -> int:
        return max((self.rate or 0) * QUANTUM_MS, 1_000)
