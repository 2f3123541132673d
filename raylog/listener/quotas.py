"""Holds the clients of one Broker to their quotas (``raylog.security.quotas``), as Kafka does
(KIP-13, KIP-219).

Without quotas the listener has its plain handlers, and no request is looked at. Nobody is refused
for bytes: who has exceeded a quota is answered, with a throttle time, and its connection is not
read for so long, whether the client waits or not.

Produce     its bytes are counted when the request arrives. From then on the connection is not read,
            and the answer tells what is left of the wait.
Fetch       the bytes of the records are counted when the answer is about to leave
            (``FetchQuota``). One that exceeds the quota is not sent but an empty one, and its bytes
            do not count. An answer has at most what could be sent at once after a silence.

any         the time that its handler takes counts for ``request_percentage``, in percent of an
            event loop. Who has used more is throttled from the next request on, each time for one
            window at most.
topics      see ``mutation_quotas``.

An address that opens connections faster than ``connection_creation_rate`` has the further ones
closed after a while, at most a window (KIP-612).

A first batch that is larger than that is sent if nothing else counts at that time. Kafka would
withhold it for ever.

Follower fetches, and raylog's own clients inside the cluster, do not come through a listener and are
not counted here (``raylog.server.program_quotas`` counts the latter, and ``quota_lender`` has them
share quotas with clients here). A connection whose client has a quota moves to a host like others
while the client is within it (``raylog.listener.moves``). It takes the quota along, the host
counts, and the connection comes back when the client exceeds the quota: only a Broker throttles.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from raylog.kafka import table
from raylog.kafka.context import RequestContext
from raylog.listener import mutation_quotas
from raylog.listener.quota_usage import BYTE_RATE_OF, Account, QuotaUsage
from raylog.metadata.image import MetadataImage
from raylog.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    OF_REQUESTS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from raylog.wire.moved_connections import MovedQuota
from raylog.wire.request import Handler, Request
from raylog.wire.server import Server

_EXEMPT: Final = frozenset(each.key for each in (table.API_VERSIONS, table.SASL_HANDSHAKE, table.SASL_AUTHENTICATE))
PERCENT_OF_NANOSECONDS: Final = 1e-7
"""How much of ``request_percentage`` a nanosecond uses: that is per second."""


class FetchQuota:
    """What one Fetch has to do with its client's quota."""

    __slots__ = ("_account", "_now_ms")

    def __init__(self, account: Account, now_ms: Callable[[], int]) -> None:
        self._account = account
        self._now_ms = now_ms

    def capped(self, body: Any) -> Any:
        """The request, asking for no more than the quota allows at once, nor waiting for more."""
        most = max(1, int(min(body.max_bytes, self._account.burst)))
        if body.min_bytes < most:
            return dataclasses.replace(body, max_bytes=most)
        return dataclasses.replace(body, max_bytes=most, min_bytes=1)  # whole batches seldom fill it

    def charge(self, size: int) -> tuple[int, bool]:
        """How many milliseconds the client has to wait, and whether it gets nothing until then."""
        account, now_ms = self._account, self._now_ms()
        delay_ms = account.use(size, now_ms)
        is_withheld = delay_ms > 0 and account.rate.total(now_ms) > size
        if is_withheld:
            account.take_back(size, now_ms)
        return delay_ms, is_withheld


class Quotas:
    """``image`` returns the current copy; ``now_ms`` a clock that does not go back."""

    def __init__(self, image: Callable[[], MetadataImage], now_ms: Callable[[], int]) -> None:
        self._image = image
        self.usage = QuotaUsage(image, now_ms)
        self._now_ms = now_ms
        self._is_on = False
        self._plain: dict[int, Handler] = {}
        self._limited: dict[int, Handler] = {}

    def follow(self, server: Server, *, windows: int, window_ms: int) -> bool:
        """Go by the image as it is now, and stand before the handlers of that server, which are
        the plain ones. Returns whether the quotas have changed.
        """
        has_changed = self.usage.follow(windows, window_ms)
        self._is_on = self.usage.has(*OF_REQUESTS)
        if self._is_on or self.usage.has(CONTROLLER_MUTATION_RATE):
            if has_changed or server.handlers is not self._plain:
                self._plain = server.handlers
                self._limited = self._behind_quotas(self._plain)
            server.handlers = self._limited
        server.turned_away_s = self._turned_away_s if self.usage.has(CONNECTION_CREATION_RATE) else None
        return has_changed

    def _behind_quotas(self, plain: Mapping[int, Handler]) -> dict[int, Handler]:
        limited = dict(plain)
        if self.usage.has(REQUEST_PERCENTAGE):
            limited |= {key: self._timed(handler) for key, handler in plain.items() if key not in _EXEMPT}
        if self.usage.has(PRODUCER_BYTE_RATE):
            limited[table.PRODUCE.key] = self._produce(limited[table.PRODUCE.key])
        if self.usage.has(CONTROLLER_MUTATION_RATE):
            for mutation in mutation_quotas.MUTATIONS:
                limited[mutation.spec.key] = mutation_quotas.behind(
                    mutation,
                    limited[mutation.spec.key],
                    bucket_of=self.usage.bucket,
                    image=self._image,
                    now_ms=self._now_ms,
                    throttle=self._throttle,
                )
        return limited

    def holds(self, request: Request, bytes_max: int = 0) -> bool:
        """Whether the request's connection has to stay at the Broker for now: its client has exceeded
        a quota lately. ``bytes_max``: of a Fetch; one that may exceed the quota at once has to be
        capped here.
        """
        if not self._is_on:
            return False
        now_ms, busy = self._now_ms(), self.usage.account(REQUEST_PERCENTAGE, request.context)
        if busy is not None and busy.is_exceeded(now_ms):
            return True
        key = BYTE_RATE_OF.get(request.api_key)
        account = None if key is None else self.usage.account(key, request.context)
        return account is not None and (account.is_exceeded(now_ms) or bytes_max > account.burst)

    def limits(self, context: RequestContext) -> tuple[MovedQuota, ...]:
        """The quotas that a client's connection takes along to a host."""
        found = [(key, self.usage.applied(key, context)) for key in OF_REQUESTS] if self._is_on else []
        return tuple(
            MovedQuota(
                key,
                each.limit,
                self.usage.at_once(each.limit),
                is_of_user=each.user is not None,
                is_of_client_id=each.client_id is not None,
            )
            for key, each in found
            if each is not None
        )

    def exceeded(self, key: str, context: RequestContext) -> None:
        """That client has exceeded the quota at a host."""
        account = self.usage.account(key, context) if self._is_on else None
        if account is not None:
            account.exceed(self._now_ms())

    def of_fetch(self, request: Request) -> FetchQuota | None:
        """The quota that counts for a Fetch; None if there is none."""
        if not self._is_on:
            return None
        account = self.usage.account(CONSUMER_BYTE_RATE, request.context)
        return None if account is None else FetchQuota(account, self._now_ms)

    def _produce(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Any:
            account = self.usage.account(PRODUCER_BYTE_RATE, request.context)
            if account is not None:
                delay_ms = account.use(request.held_bytes, self._now_ms())
                if delay_ms:
                    self._throttle(request, delay_ms)
            return handler(request)

        return handle

    def _timed(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Any:
            account = self.usage.account(REQUEST_PERCENTAGE, request.context)
            if account is None:
                return handler(request)
            delay_ms = min(account.wait_ms(self._now_ms()), account.rate.window_ms)
            if delay_ms:
                self._throttle(request, delay_ms)
            began = time.perf_counter_ns()
            try:
                return handler(request)
            finally:
                account.use((time.perf_counter_ns() - began) * PERCENT_OF_NANOSECONDS, self._now_ms())

        return handle

    def _turned_away_s(self, address: str) -> float:
        """In how many seconds a new connection of that address is to be closed; 0 if it may stay."""
        account = self.usage.account_of_address(address)
        if account is None:
            return 0.0
        now_ms = self._now_ms()
        delay_ms = account.use(1, now_ms)
        if delay_ms:
            account.take_back(1, now_ms)
        return min(delay_ms, account.rate.window_ms) / 1_000

    def _throttle(self, request: Request, delay_ms: int) -> None:
        """Read nothing more for so long, and have the answer say so."""
        until_ms = self._now_ms() + delay_ms
        request.connection.mute(delay_ms / 1_000)
        if request.api_key == table.PRODUCE.key and request.body.acks == 0:
            return
        request.replace_body(request.body)  # nobody passes its bytes on, whose answer would say nothing

        def told(reply: Any) -> Any:
            left = datetime.timedelta(milliseconds=max(0, until_ms - self._now_ms()))
            known = getattr(reply, "throttle_time", None)  # old versions have none
            return reply if known is None else dataclasses.replace(reply, throttle_time=max(known, left))

        request.amend_reply(told)
