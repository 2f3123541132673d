"""What the clients of one Broker have used of their quotas.

An ``Account`` is one client's, or that of all who share a quota. It outlives changes of the quota's
value, which count at once. Those that nobody has used for as long as all windows last are forgotten
when there are many, because client ids are the clients' own words.

Where several processes share a quota, an account has a ``Holding``, and who exceeds the rate waits as
that says (``raylog.security.quota_leases``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from raylog.kafka.context import RequestContext
from raylog.security.quota_leases import Holding
from raylog.security.quota_rates import WINDOW_MS, WINDOWS, Rate, TokenBucket, burst_of
from raylog.security.quotas import CONNECTION_CREATION_RATE, CONTROLLER_MUTATION_RATE, AppliedQuota, ClientQuotas

ACCOUNTS_KEPT: Final = 4_096
CLIENTS_KNOWN_MAX: Final = 4_096


class HasQuotas(Protocol):
    """Such as a ``MetadataImage``."""

    @property
    def quotas(self) -> ClientQuotas: ...


Place = tuple[str, str | None, str | None]
"""Whose an account is: key, user, client id."""
Kept = TypeVar("Kept")


class Account:
    """``limit`` per second. ``holding``: its part of a quota that is shared; None: it has all of it."""

    __slots__ = ("holding", "limit", "rate")

    def __init__(self, rate: Rate) -> None:
        self.limit = 0.0
        self.rate = rate
        self.holding: Holding | None = None

    @property
    def burst(self) -> float:
        """The most that can be used at once without a wait."""
        return burst_of(self.limit, self.rate.windows, self.rate.window_ms)

    def use(self, amount: float, now_ms: int) -> int:
        """How long to wait after it, in milliseconds."""
        self.rate.record(amount, now_ms)
        if self.holding is not None:
            return self.holding.spend(amount, now_ms)
        return self.rate.throttle_ms(self.limit, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long to wait because of what was used before."""
        return self.rate.throttle_ms(self.limit, now_ms)

    def take_back(self, amount: float, now_ms: int) -> None:
        self.rate.record(-amount, now_ms)
        if self.holding is not None:
            self.holding.take_back(amount, now_ms)

    def is_idle(self, now_ms: int) -> bool:
        return self.rate.is_idle(now_ms)


def _alone(place: Place, account: Account) -> None:
    """The default where nobody shares quotas."""


class QuotaUsage:
    """``image`` returns the current copy; ``now_ms`` a clock that does not go back. ``on_opened`` may
    be set; it is given each account of a rate that is new, or whose limit may have changed.
    """

    def __init__(self, image: Callable[[], HasQuotas], now_ms: Callable[[], int]) -> None:
        self._image = image
        self.now_ms = now_ms
        self._quotas = ClientQuotas()
        self._revision = 0
        self._windows = (WINDOWS, WINDOW_MS)
        self._known: dict[
            tuple[str, str, str | None], Account | TokenBucket | None
        ] = {}  # by key, principal, client id
        self._accounts: dict[Place, Account] = {}
        self._buckets: dict[Place, TokenBucket] = {}
        self.on_opened: Callable[[Place, Account], None] = _alone

    def follow(self, windows: int, window_ms: int) -> bool:
        """Go by the image as it is now; whether the quotas have changed."""
        quotas = self._image().quotas
        if (windows, window_ms) != self._windows:
            self._windows = (windows, window_ms)
            for kept in (self._known, self._accounts, self._buckets):
                kept.clear()
        has_changed = quotas.revision != self._revision if quotas is self._quotas else quotas != self._quotas
        self._quotas, self._revision = quotas, quotas.revision
        if has_changed:
            self._known.clear()
        return has_changed

    def has(self, *keys: str) -> bool:
        """Whether there is a quota for one of them."""
        return self._quotas.has(*keys)

    def opened(self, place: Place) -> Account | None:
        """The account, if there is one already."""
        return self._accounts.get(place)

    def open(self, key: str, applied: AppliedQuota) -> Account:
        """The account of a quota of bytes that another process has found."""
        account = self._opened(key, applied)
        assert isinstance(account, Account), f"{key} is counted by a bucket"
        return account

    def account_of_address(self, address: str) -> Account | None:
        """The account of an address's connections; None if it may open as many as it likes."""
        limit = self._quotas.of_address(address)
        if limit is None:
            return None
        found = self._opened(CONNECTION_CREATION_RATE, AppliedQuota(limit, address, None))
        assert isinstance(found, Account), "connections are counted by an account"
        return found

    def account(self, key: str, context: RequestContext) -> Account | None:
        """The account of a request's client; None if no quota limits it."""
        found = self._found(key, context)
        assert not isinstance(found, TokenBucket), f"{key} is counted by a bucket"
        return found

    def bucket(self, context: RequestContext) -> TokenBucket | None:
        """The same for ``controller_mutation_rate``."""
        found = self._found(CONTROLLER_MUTATION_RATE, context)
        assert not isinstance(found, Account), "changes of the cluster are counted by a bucket"
        return found

    def _found(self, key: str, context: RequestContext) -> Account | TokenBucket | None:
        asked = (key, context.principal, context.client_id)
        try:
            return self._known[asked]
        except KeyError:
            pass
        user = context.principal.partition(":")[2]
        applied = self._quotas.of_client(key, user, context.client_id or "")
        if len(self._known) >= CLIENTS_KNOWN_MAX:
            self._known.clear()
        found = self._known[asked] = None if applied is None else self._opened(key, applied)
        return found

    def _opened(self, key: str, applied: AppliedQuota) -> Account | TokenBucket:
        place = (key, applied.user, applied.client_id)
        now_ms = self.now_ms()
        if key == CONTROLLER_MUTATION_RATE:
            bucket = self._buckets.get(place)
            if bucket is None:
                _forget_idle(self._buckets, lambda each: each.is_full(now_ms))
                bucket = self._buckets[place] = TokenBucket(applied.limit, now_ms, *self._windows)
            bucket.limit_to(applied.limit, now_ms)
            return bucket
        account = self._accounts.get(place)
        if account is None:
            _forget_idle(self._accounts, lambda each: each.is_idle(now_ms))
            account = self._accounts[place] = Account(Rate(*self._windows))
        account.limit = applied.limit
        self.on_opened(place, account)
        return account


def _forget_idle(kept: dict[Place, Kept], is_idle: Callable[[Kept], bool]) -> None:
    """Make room where there are many."""
    if len(kept) >= ACCOUNTS_KEPT:
        for place in [place for place, each in kept.items() if is_idle(each)]:
            del kept[place]
