"""How the processes of one broker share the quota of one client: one of them, the lender, has a
``Pool``, and each that serves the client has a ``Holding``.

The pool is a bucket that fills by the quota and holds as much as a client may send at once
(``quota_rates.burst_of``). A process that spends asks every ``RENEWAL_MS``, and at once when it has
nothing left but the pool has. It says what it has (``level``), what it spent, and whether somebody
waits; it is lent a part of the quota's rate for ``LEASE_MS``, and gets some of what is in the pool::

    wanted      everything, if clients wait there or it is new; else twice what it spent, and its debt
    share       each gets what it wants, but for those that want more than an even part of what is left
    rate        its share, or what the leases of the others leave of the quota
    change      all that is in the pool, if nobody else has a lease. Else what brings its level up to
                a renewal's worth, or to what a client waits for, as far as the pool has it; what it
                has above that goes back
    the pool    gets the rest of the quota's rate

So whoever asks alone has the whole quota, and a quota moves where its client goes in two renewals.
Who has not spent for ``IDLE_MS`` has its lease ended.

A process spends first and asks behind it: below zero, nobody waits while the pool may have
more and the answer is out, ``GRACE_MS`` at most; else the client waits until the debt would be paid. Without a
lease, such as after the lender's death, debts are paid by a safe share, quota / processes, and
nothing is saved.

Invariants: at the lender, the rates of leases that have not run out are never above the quota in
sum, once a lower quota is ``LEASE_MS`` old. A lease runs out at its process no later than there. The
processes together spend no more than a full pool, the quota for the time, and one request each, but
for changes: while a lower rate is on its way, and after a restart of the lender, which does not know
the leases before, there may be more, at most the quota for one ``LEASE_MS``; and where a link breaks
between two that live, what was to go back may be spent there, too. A lender that is asked by somebody
with a lease of another begins with an empty pool.

Rates are per second; times are milliseconds of a clock that does not go back, each process's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

LEASE_MS: Final = 1_000
RENEWAL_MS: Final = 250
IDLE_MS: Final = 1_000
GRACE_MS: Final = 100


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """``key``, ``user`` and ``client_id``: whose quota; None and the empty text: whoever it is.
    ``level``: what may still be spent, below zero what is owed. ``reserve``: the level that a client
    waits for. ``has_lease``: one that has not run out.
    """

    key: str
    client_id: str
    level: float = 0.0
    spent: float = 0.0
    reserve: float = 0.0
    is_hungry: bool = False
    has_lease: bool = False
    user: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaLease:
    """``change``: of the level. ``free``: the rate that it may have besides,
    from its next renewals on. ``has_more``: the pool has a
    renewal's worth and more. ``is_over``: no lease; ask again when something was spent.
    """

    key: str
    client_id: str
    rate: float = 0.0
    change: float = 0.0
    free: float = 0.0
    has_more: bool = True
    is_over: bool = False
    user: str | None = None


class Holding:
    """What one process may spend. ``limit``: the quota; ``processes``: how many the broker has.
    ``want`` is called when it has to ask at once, and may have it renewed before it returns.
    """

    __slots__ = (
        "_asked_ms",
        "_asking_ms",
        "_free",
        "_has_more",
        "_hungry_until_ms",
        "_rate",
        "_reserve",
        "_reserved_until_ms",
        "_spent",
        "_until_ms",
        "_updated_ms",
        "_want",
        "level",
        "limit",
        "processes",
    )

    def __init__(self, limit: float, processes: int, want: Callable[[], None], now_ms: int) -> None:
        self.limit = limit
        self.processes = processes
        self.level = 0.0
        self._want = want
        self._spent = self._rate = self._free = self._reserve = 0.0
        self._has_more = True
        self._asking_ms: int | None = None  # since when it has to ask at once
        self._asked_ms = self._until_ms = self._updated_ms = now_ms
        self._hungry_until_ms = self._reserved_until_ms = now_ms

    @property
    def safe_rate(self) -> float:
        return self.limit / self.processes

    @property
    def is_urgent(self) -> bool:
        return self._asking_ms is not None

    def is_used(self, now_ms: int) -> bool:
        """Whether it has a lease, or owes something."""
        return now_ms < self._until_ms or self.level < 0

    def rate(self, now_ms: int) -> float:
        """What is lent now; 0 without a lease."""
        return self._rate if now_ms < self._until_ms else 0.0

    def limit_to(self, limit: float) -> None:
        """The quota from now on. Of what was saved and lent by a higher one, its part is left."""
        if limit < self.limit:
            self.level = min(self.level, self.level * limit / self.limit)
            self._rate = min(self._rate, limit)
        self.limit = limit

    def spend(self, amount: float, now_ms: int) -> int:
        """How long the client has to wait after it, in milliseconds."""
        self._fill(now_ms)
        self.level -= amount
        self._spent += amount
        self._reserve = 0.0
        if self.level >= 0:
            return 0
        if self._has_more and self._asking_ms is None:
            self._asking_ms = now_ms
            self._want()
        if self.level >= 0 or (self._asking_ms is not None and now_ms - self._asking_ms < GRACE_MS):
            return 0
        fastest = self._rate + self._free if now_ms < self._until_ms else 0.0
        delay_ms = max(1, round(-self.level / max(fastest, self.safe_rate) * 1_000))
        self._hungry_until_ms = now_ms + min(delay_ms, LEASE_MS) + RENEWAL_MS
        self._reserved_until_ms = now_ms + delay_ms + RENEWAL_MS
        return delay_ms

    def take_back(self, amount: float, now_ms: int) -> None:
        """It was not spent; the client that waits comes for it again."""
        self._fill(now_ms)
        self.level += amount
        self._spent = max(0.0, self._spent - amount)
        self._reserve = float(amount)

    def ask(self, key: str, client_id: str, now_ms: int, user: str | None = None) -> LeaseAsk:
        self._fill(now_ms)
        reserve = self._reserve if now_ms < self._reserved_until_ms else 0.0
        spent, self._spent, self._asked_ms = self._spent, 0.0, now_ms
        has_lease, is_hungry = now_ms < self._until_ms, now_ms < self._hungry_until_ms
        return LeaseAsk(key, client_id, self.level, spent, reserve, is_hungry, has_lease, user)

    def lend(self, lease: QuotaLease, now_ms: int) -> None:
        """The answer to what was asked last."""
        self._fill(now_ms)
        self.level += lease.change
        self._rate, self._free, self._has_more = lease.rate, lease.free, lease.has_more
        if self.level >= 0 or not lease.has_more:
            self._asking_ms = None
        elif self._asking_ms is None:
            self._asking_ms = now_ms
        self._until_ms = now_ms if lease.is_over else self._asked_ms + LEASE_MS

    def _fill(self, now_ms: int) -> None:
        since, self._updated_ms = self._updated_ms, now_ms
        lent_ms = max(0, min(now_ms, self._until_ms) - since)
        self.level += self._rate * lent_ms / 1_000
        if self.level < 0:
            self.level = min(0.0, self.level + self.safe_rate * (now_ms - since - lent_ms) / 1_000)


class _Borrower:
    """``wanted``: a rate. ``level``: what it had when it was answered last."""

    __slots__ = ("asked_ms", "level", "rate", "until_ms", "used_ms", "wanted")

    def __init__(self, now_ms: int) -> None:
        self.asked_ms = self.until_ms = self.used_ms = now_ms
        self.rate = self.level = 0.0
        self.wanted = math.inf


class Pool:
    """What the lender has of one client's quota. ``burst_s``: for how many seconds it fills.
    ``is_full``: at the start.
    """

    __slots__ = ("_borrowers", "_updated_ms", "burst_s", "level", "limit")

    def __init__(self, limit: float, burst_s: float, now_ms: int, *, is_full: bool = True) -> None:
        self.limit = limit
        self.burst_s = burst_s
        self.level = limit * burst_s if is_full else 0.0
        self._updated_ms = now_ms
        self._borrowers: dict[Hashable, _Borrower] = {}

    def ask(self, name: Hashable, ask: LeaseAsk, now_ms: int) -> QuotaLease:
        self._fill(now_ms)
        borrower = self._borrowers.get(name)
        if borrower is None:
            borrower = self._borrowers[name] = _Borrower(now_ms)
        elif ask.is_hungry or ask.level < ask.reserve:
            borrower.wanted = math.inf
        else:
            spent = 2_000 * ask.spent / max(now_ms - borrower.asked_ms, RENEWAL_MS)
            borrower.wanted = spent + max(0.0, -ask.level)
        borrower.asked_ms = now_ms
        if ask.spent or ask.is_hungry or ask.level < ask.reserve or ask.level < 0:
            borrower.used_ms = now_ms
        elif now_ms - borrower.used_ms >= IDLE_MS:
            del self._borrowers[name]
            self.level = min(self._room(), self.level + ask.level)
            return QuotaLease(ask.key, ask.client_id, change=-ask.level, is_over=True, user=ask.user)
        worth = self.limit * RENEWAL_MS / 1_000
        most = max(worth, ask.reserve) if len(self._borrowers) > 1 else self.limit * self.burst_s
        change = min(most - ask.level, self.level)
        self.level -= change
        borrower.level = ask.level + change
        share = self._share(borrower)
        borrower.rate = max(0.0, min(share, self.limit - self._lent(without=borrower)))
        borrower.until_ms = now_ms + LEASE_MS
        free = max(self.limit - self._lent(), share - borrower.rate, 0.0)
        return QuotaLease(ask.key, ask.client_id, borrower.rate, change, free, self.level > worth, user=ask.user)

    def lent(self, now_ms: int) -> float:
        """The rates of all leases that have not run out, in sum."""
        return sum(each.rate for each in self._borrowers.values() if now_ms < each.until_ms)

    def _lent(self, without: _Borrower | None = None) -> float:
        return sum(each.rate for each in self._borrowers.values() if each is not without)

    def _share(self, borrower: _Borrower) -> float:
        """As much as it wants, or an even part of what those that want less leave."""
        left, others = self.limit, len(self._borrowers)
        for wanted in sorted(each.wanted for each in self._borrowers.values()):
            even = left / others
            if wanted >= min(even, borrower.wanted):
                return min(even, borrower.wanted)
            left, others = left - wanted, others - 1
        raise AssertionError("the borrower is among them")

    def _fill(self, now_ms: int) -> None:
        since_ms, self._updated_ms = self._updated_ms, now_ms
        lent = 0.0
        for name, each in list(self._borrowers.items()):
            lent += each.rate * (min(now_ms, each.until_ms) - since_ms) / 1_000
            if now_ms >= each.until_ms:
                del self._borrowers[name]  # what it has left is lost
        gained = self.limit * (now_ms - since_ms) / 1_000 - lent
        self.level = min(self._room(), self.level + max(0.0, gained))

    def _room(self) -> float:
        return max(0.0, self.limit * self.burst_s - sum(max(0.0, each.level) for each in self._borrowers.values()))
