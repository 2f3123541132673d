"""The request by which a Broker lends quotas to the processes of its broker
(``raylog.security.quota_leases``). As those of ``private``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raylog.security.quota_leases import LeaseAsk, QuotaLease
from raylog.wire.private import LEND_QUOTAS, reply_to, request_of


@request_of(LEND_QUOTAS)
@dataclass(frozen=True, slots=True)
class LendQuotas:
    """A Broker lends a host of its own what that asked for in its last answer. The answer waits until
    the host has to ask again, or up to ``wait_ms``. ``processes``: how many share the quotas.
    """

    API_KEY: ClassVar[int]
    processes: int
    wait_ms: int
    leases: tuple[QuotaLease, ...] = ()


@reply_to(LEND_QUOTAS)
@dataclass(frozen=True, slots=True)
class QuotasAsked:
    """One for each client that has a lease or wants one."""

    API_KEY: ClassVar[int]
    asks: tuple[LeaseAsk, ...] = ()
