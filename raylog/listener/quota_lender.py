"""Lends quotas of bytes, and of the time that requests take, from a Broker to the hosts of its
broker. They count what programs with the cluster's secret send to them
(``raylog.server.program_quotas``), and what Kafka clients do whose connections have moved there
(``raylog.server.door``). Who gets how much is decided in ``raylog.security.quota_leases``.

While there are such quotas each host has one request, LendQuotas, in hand; its answer says what the
host asks for, and the next request brings that. A host that serves no such client answers after
``WAIT_MS``. Without such quotas nothing is sent.

A host asks for whom an account is: a client id, a user, or both. A user without a client id, and one
whose clients have no id, look the same there; never do both have an account, because a quota of the
user's clients counts before one of the user.

The listener's own clients share a quota with the hosts from the moment that a host asks for it until
none has for as long as a rate remembers. Meanwhile their account borrows from the same pool, which
begins without what they had spent before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from raylog.errors import RaylogError
from raylog.listener.owners import Owner, Owners
from raylog.listener.quota_usage import Account, Place, QuotaUsage
from raylog.listener.routes import Routes
from raylog.metadata.configuration.effective_configs import quota_windows
from raylog.metadata.image import MetadataImage
from raylog.security.quota_leases import RENEWAL_MS, Holding, LeaseAsk, Pool, QuotaLease
from raylog.security.quota_rates import WINDOW_MS, WINDOWS, burst_of
from raylog.security.quotas import OF_REQUESTS, AppliedQuota
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.private_quotas import LendQuotas, QuotasAsked

WAIT_MS: Final = 10_000
TIMEOUT_MS: Final = 20_000
RETRY_S: Final = 5.0
"""A process that does not answer is another one soon, or an older one that knows no leases."""
_LISTENER: Final = "listener"


class QuotaLender:
    """``usage``: of the clients of the Broker's listener; None: it has none."""

    def __init__(
        self,
        broker_id: int,
        caller: Peer,
        *,
        secret: Secret,
        cluster_id: str,
        image: Callable[[], MetadataImage],
        now_ms: Callable[[], int],
        usage: QuotaUsage | None,
    ) -> None:
        self._routes = Routes(broker_id, image)
        self._owners = Owners(secret=secret, cluster_id=cluster_id, caller=caller)
        self._now_ms = now_ms
        self._usage = usage
        self._windows = (WINDOWS, WINDOW_MS)
        self._is_on = False  # there are quotas to lend
        self._hosts: set[Owner] = set()
        self._asking: set[Owner] = set()
        self._pools: dict[Place, Pool] = {}
        self._asked_ms: dict[Place, int] = {}  # by a host, when last
        self._ticking: asyncio.TimerHandle | None = None
        if usage is not None:
            usage.on_opened = self._opened

    def follow(self) -> None:
        """Go by the image as it is now."""
        image = self._routes.image
        before, self._windows = self._windows, quota_windows(image, self._routes.broker_id)
        self._is_on = image.quotas.has(*OF_REQUESTS)
        if not self._is_on or before != self._windows:
            self._forget(list(self._pools))
        living = set(self._routes.replica_processes()) if self._is_on else set()
        before_hosts, self._hosts = self._hosts, living
        self._owners.keep(living)
        for host in sorted(living - before_hosts):
            self._ask(host)

    def stop(self) -> None:
        self._is_on, self._hosts = False, set()
        self._forget(list(self._pools))
        if self._ticking is not None:
            self._ticking.cancel()
        self._owners.close()

    # ------------------------------------------------------------------ hosts

    def _ask(self, host: Owner, leases: tuple[QuotaLease, ...] = ()) -> None:
        if host in self._hosts and host not in self._asking:
            self._asking.add(host)
            request = LendQuotas(len(self._hosts), WAIT_MS, leases)
            self._owners.call(host, request, partial(self._heard, host), timeout_ms=TIMEOUT_MS)

    def _heard(self, host: Owner, reply: QuotasAsked | None, error: RaylogError | None) -> None:
        self._asking.discard(host)
        if reply is not None:
            self._ask(host, tuple(self._lease(host, each) for each in reply.asks))
        elif host in self._hosts:
            asyncio.get_running_loop().call_later(RETRY_S, self._ask, host)

    def _lease(self, host: Owner, ask: LeaseAsk) -> QuotaLease:
        applied = self._applied(ask)
        if applied is None:
            return QuotaLease(ask.key, ask.client_id, change=-ask.level, is_over=True, user=ask.user)
        place, now_ms = (ask.key, applied.user, applied.client_id), self._now_ms()
        pool = self._pools.get(place)
        if pool is None:
            burst_s = burst_of(1, *self._windows)
            pool = self._pools[place] = Pool(applied.limit, burst_s, now_ms, is_full=not ask.has_lease)
            account = self._usage.opened(place) if self._usage is not None else None
            if account is not None:
                self._opened(place, account)
        pool.limit = applied.limit
        self._asked_ms[place] = now_ms
        if self._ticking is None:
            self._tick_later()
        return pool.ask(host.node_id, ask, now_ms)

    def _applied(self, ask: LeaseAsk) -> AppliedQuota | None:
        """The quota that is asked for; None if there is none any more, or another one counts now."""
        if not self._is_on:
            return None
        quotas = self._routes.image.quotas
        if ask.user is None:
            return quotas.of_client_id(ask.key, ask.client_id)
        applied = quotas.of_client(ask.key, ask.user, ask.client_id)
        if applied is None or (applied.user, applied.client_id or "") != (ask.user, ask.client_id):
            return None
        return applied

    # ------------------------------------------------------------------ the listener's own clients

    def _opened(self, place: Place, account: Account) -> None:
        pool = self._pools.get(place)
        if pool is None:
            return
        if account.holding is None:
            now_ms = self._now_ms()
            pool.level = max(0.0, pool.level - account.rate.total(now_ms))
            renew = partial(self._renew, place, account)
            account.holding = Holding(account.limit, len(self._hosts), renew, now_ms)
        account.holding.limit_to(account.limit)

    def _renew(self, place: Place, account: Account) -> None:
        pool, holding, now_ms = self._pools[place], account.holding, self._now_ms()
        assert holding is not None, "an account without a holding has nothing to renew"
        pool.limit = account.limit
        key, user, client_id = place
        holding.lend(pool.ask(_LISTENER, holding.ask(key, client_id or "", now_ms, user), now_ms), now_ms)

    def _tick(self) -> None:
        self._ticking = None
        if not self._is_on:
            return
        (windows, window_ms), now_ms = self._windows, self._now_ms()
        remembered_ms = windows * window_ms
        self._forget([place for place, asked_ms in self._asked_ms.items() if now_ms - asked_ms >= remembered_ms])
        for place in self._pools:
            account = self._usage.opened(place) if self._usage is not None else None
            if account is not None and account.holding is not None and account.holding.is_used(now_ms):
                self._renew(place, account)
        if self._pools:
            self._tick_later()

    def _tick_later(self) -> None:
        self._ticking = asyncio.get_running_loop().call_later(RENEWAL_MS / 1_000, self._tick)

    def _forget(self, places: list[Place]) -> None:
        for place in places:
            del self._pools[place], self._asked_ms[place]
            account = self._usage.opened(place) if self._usage is not None else None
            if account is not None:
                account.holding = None
