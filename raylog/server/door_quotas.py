"""A quota of a moved connection's client, at the host that serves it.

The connection brought the quota from its Broker (``raylog.wire.moved_connections``). What the host
serves is counted by the account that the programs have there which share the quota
(``raylog.server.program_quotas``), and is borrowed from the Broker as theirs
(``raylog.server.quota_borrower``). Nobody waits here: who has exceeded the quota is for the Broker
again.
"""

from __future__ import annotations

from typing import Final

from raylog.listener.quota_usage import NOTICED_MS, QuotaUsage
from raylog.security.quotas import REQUEST_PERCENTAGE, AppliedQuota
from raylog.wire.moved_connections import Moved, MovedQuota

NOTICED_PART: Final = 1_000


class DoorQuota:
    """``most``: of bytes, that a Fetch may return at once. ``owed``: what is to be charged yet; from
    ``noticed`` on that is much.
    """

    __slots__ = ("_applied", "_place", "_usage", "key", "most", "noticed", "owed")

    def __init__(self, usage: QuotaUsage, quota: MovedQuota, moved: Moved) -> None:
        user = moved.principal.partition(":")[2] if quota.is_of_user else None
        client_id = moved.client_id or "" if quota.is_of_client_id else None
        self.key = quota.key
        self.most = quota.burst
        self.noticed = quota.burst / NOTICED_PART
        self.owed = 0.0
        self._usage = usage
        self._applied = AppliedQuota(quota.limit, user, client_id)
        self._place = (quota.key, user, client_id)
        usage.open(self.key, self._applied)

    def charge(self, amount: float) -> int:
        """Count what was used. Returns for how many milliseconds the client has to wait; 0 also for a
        wait that is too short to tell an exceeded quota from a lease that comes a moment late. What the
        client owes then is not forgotten. For the time of requests nobody waits longer than a window at
        once.
        """
        account = self._usage.opened(self._place) or self._usage.open(self.key, self._applied)
        delay_ms = account.use(amount, self._usage.now_ms())
        if self.key == REQUEST_PERCENTAGE:
            delay_ms = min(delay_ms, account.rate.window_ms)
        return delay_ms if delay_ms >= NOTICED_MS else 0
