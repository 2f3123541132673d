"""Borrows the quotas of the programs and the moved connections that a host serves from its Broker,
which asks what is wanted (``raylog.listener.quota_lender``).

The Broker's request is answered when somebody has spent what is not there, else ``RENEWAL_MS`` after
it came if there are leases, else when it has waited for long enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from raylog.listener.quota_usage import Account, Place, QuotaUsage
from raylog.security.quota_leases import RENEWAL_MS, Holding
from raylog.wire.private_quotas import LendQuotas, QuotasAsked
from raylog.wire.request import Request


class QuotaBorrower:
    """Gives each account of ``usage`` a holding."""

    def __init__(self, usage: QuotaUsage, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._processes = 1  # until a Broker says otherwise
        self._borrowing: dict[tuple[str, str | None, str], Holding] = {}  # those with a lease, or that want one
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        usage.on_opened = self._opened

    def handle(self, request: Request) -> None:
        """Take what is lent; answer when there is something to ask for."""
        body: LendQuotas = request.body
        self._answer()  # a request of the Broker before
        self._request, self._processes, now_ms = request, body.processes, self._now_ms()
        for lease in body.leases:
            asked = (lease.key, lease.user, lease.client_id)
            holding = self._borrowing.get(asked)
            if holding is not None:
                holding.lend(lease, now_ms)
                if lease.is_over and not holding.is_urgent:
                    del self._borrowing[asked]
        for holding in self._borrowing.values():
            holding.processes = body.processes
        wait_ms = RENEWAL_MS if self._borrowing else body.wait_ms
        if any(holding.is_urgent for holding in self._borrowing.values()):
            wait_ms = 0
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1_000, self._answer)

    def _opened(self, place: Place, account: Account) -> None:
        if account.holding is None:
            want = partial(self._want, place, account)
            account.holding = Holding(account.limit, self._processes, want, self._now_ms())
        account.holding.limit_to(account.limit)

    def _want(self, place: Place, account: Account) -> None:
        assert account.holding is not None, "only a holding wants something"
        key, user, client_id = place
        self._borrowing[key, user, client_id or ""] = account.holding
        account.holding.processes = self._processes
        self._answer()

    def _answer(self) -> None:
        request, self._request = self._request, None
        if self._timer is not None:
            self._timer.cancel()
        if request is not None:
            now_ms = self._now_ms()
            asks = [holding.ask(key, name, now_ms, user) for (key, user, name), holding in self._borrowing.items()]
            request.reply(QuotasAsked(tuple(asks)))
