"""What the clients of one Broker have used of their quotas.

An ``Account`` is one client's, or that of all who share a quota. It outlives changes of the quota's
value, which count at once. Those that nobody has used for as long as all windows last are forgotten
when there are many, because client ids are the clients' own words.

Where several processes share a quota, an account has a ``Holding``, and who exceeds the rate waits as
that says (``raylog.security.quota_leases``).

An account remembers that its client has exceeded the quota for as long as a rate counts what was
used (``Account.is_exceeded``). A wait shorter than ``NOTICED_MS`` is no sign of that, since a lease may
come a moment late; but it prolongs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from raylog.kafka import table
from raylog.kafka.context import RequestContext
from raylog.security.quota_leases import Holding
from raylog.security.quota_rates import WINDOW_MS, WINDOWS, Rate, TokenBucket, burst_of
from raylog.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    AppliedQuota,
    ClientQuotas,
)

ACCOUNTS_KEPT: Final = 4_096
CLIENTS_KNOWN_MAX: Final = 4_096
NOTICED_MS: Final = 10
BYTE_RATE_OF: Final[Mapping[int, str]] = {table.PRODUCE.key: PRODUCER_BYTE_RATE, table.FETCH.key: CONSUMER_BYTE_RATE}
"""Which quota the bytes of an API count for."""


class HasQuotas(Protocol):
    """Such as a ``MetadataImage``."""

    @property
    def quotas(self) -> ClientQuotas: ...


Place = tuple[str, str | None, str | None]
"""Whose an account is: key, user, client id."""
Kept = TypeVar("Kept")


class Account:
    """``limit`` per second. ``holding``: its part of a quota that is shared; None: it has all of it."""

    __slots__ = ("_exceeded_until_ms", "holding", "limit", "rate")

    def __init__(self, rate: Rate) -> None:
        self.limit = 0.0
        self.rate = rate
        self.holding: Holding | None = None
        self._exceeded_until_ms: int | None = None

    @property
    def burst(self) -> float:
        """The most that can be used at once without a wait."""
        return burst_of(self.limit, self.rate.windows, self.rate.window_ms)

    def use(self, amount: float, now_ms: int) -> int:
        """How long to wait after it, in milliseconds."""
        self.rate.record(amount, now_ms)
        if self.holding is not None:
            delay_ms = self.holding.spend(amount, now_ms)
        else:
            delay_ms = self.rate.throttle_ms(self.limit, now_ms)
        if delay_ms >= NOTICED_MS or (delay_ms and self.is_exceeded(now_ms)):
            self.exceed(now_ms)
        return delay_ms

    def exceed(self, now_ms: int) -> None:
        """Remember that the client has exceeded the quota, here or elsewhere."""
        self._exceeded_until_ms = now_ms + self.rate.windows * self.rate.window_ms

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the client has exceeded the quota lately."""
        return self._exceeded_until_ms is not None and now_ms < self._exceeded_until_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long to wait because of what was used before."""
        if self.holding is not None:
            return self.holding.spend(0.0, now_ms)
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
        """Go by the image as it is now; whether the quotas have changed, or what they let a client use
        at once.
        """
        quotas = self._image().quotas
        are_other_windows = (windows, window_ms) != self._windows
        if are_other_windows:
            self._windows = (windows, window_ms)
            for kept in (self._known, self._accounts, self._buckets):
                kept.clear()
        has_changed = quotas.revision != self._revision if quotas is self._quotas else quotas != self._quotas
        self._quotas, self._revision = quotas, quotas.revision
        if has_changed:
            self._known.clear()
        return has_changed or are_other_windows

    def has(self, *keys: str) -> bool:
        """Whether there is a quota for one of them."""
        return self._quotas.has(*keys)

    def opened(self, place: Place) -> Account | None:
        """The account, if there is one already."""
        return self._accounts.get(place)

    def open(self, key: str, applied: AppliedQuota) -> Account:
        """The account of a quota that another process has found."""
        account = self._opened(key, applied)
        assert isinstance(account, Account), f"{key} is counted by a bucket"
        return account

    def applied(self, key: str, context: RequestContext) -> AppliedQuota | None:
        """The quota that limits a request's client; None if there is none."""
        return self._quotas.of_client(key, _user_of(context), context.client_id or "")

    def at_once(self, limit: float) -> float:
        """The most that such a quota lets a client use at once."""
        return burst_of(limit, *self._windows)

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
        applied = self.applied(key, context)
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
                self._forget(self._buckets, lambda each: each.is_full(now_ms))
                bucket = self._buckets[place] = TokenBucket(applied.limit, now_ms, *self._windows)
            bucket.limit_to(applied.limit, now_ms)
            return bucket
        account = self._accounts.get(place)
        if account is None:
            self._forget(self._accounts, lambda each: each.is_idle(now_ms))
            account = self._accounts[place] = Account(Rate(*self._windows))
        account.limit = applied.limit
        self.on_opened(place, account)
        return account

    def _forget(self, kept: dict[Place, Kept], is_idle: Callable[[Kept], bool]) -> None:
        """Make room where there are many."""
        if len(kept) < ACCOUNTS_KEPT:
            return
        for place in [place for place, each in kept.items() if is_idle(each)]:
            del kept[place]
        self._known.clear()


def _user_of(context: RequestContext) -> str:
    return context.principal.partition(":")[2]
