"""Holds the programs that know the cluster's secret to the quotas of their client ids, at one process
that holds replicas.

Such a program, as any client of raylog's own inside the cluster, sends to this process what a Broker
would count (``raylog.listener.quotas``): here its Produce and Fetch requests are counted the same way.
What servers of the cluster send is not: followers copy, and Brokers have counted what they pass on.
The broker's processes share each quota (``raylog.server.quota_borrower``), and programs share it with
the Kafka clients whose connections have moved to this process (``raylog.server.door_quotas``): ``usage``
has the accounts of both.

An answer that exceeds a quota has its records left out. Its client asks again after the throttle
time.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from raylog.kafka import table
from raylog.listener.quotas import FetchQuota, Quotas
from raylog.metadata.image import MetadataImage
from raylog.security.quota_rates import WINDOW_MS, WINDOWS
from raylog.security.quotas import ClientQuotas
from raylog.security.told_quotas import SETTING, ToldQuotas, from_text
from raylog.server.quota_borrower import QuotaBorrower
from raylog.wire.private import LEND_QUOTAS
from raylog.wire.request import Handler, Request
from raylog.wire.server import Server

_NONE = ToldQuotas(ClientQuotas(), WINDOWS, WINDOW_MS)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ProgramQuotas:
    """The process's server has its plain handlers until some quota is told."""

    def __init__(self) -> None:
        self._plain: dict[int, Handler] | None = None
        self._told = _NONE
        self._text: str | None = None
        self._quotas = Quotas(self._image, _now_ms)
        self.usage = self._quotas.usage
        self._borrower = QuotaBorrower(self.usage, _now_ms)

    def handlers(self) -> dict[int, Handler]:
        return {LEND_QUOTAS: self._borrower.handle}

    def follow(self, settings: Iterable[tuple[str, str]], server: Server) -> None:
        """Go by what the controller says now, and stand before the handlers of the process's server."""
        text = dict(settings).get(SETTING)
        if text == self._text:
            return
        self._text, self._told = text, _NONE if text is None else from_text(text)
        plain = self._plain = self._plain or server.handlers
        server.handlers = plain
        self._quotas.follow(server, windows=self._told.windows, window_ms=self._told.window_ms)
        if text is None:
            return
        limited = server.handlers
        server.handlers = plain | {
            table.PRODUCE.key: self._of_programs(limited[table.PRODUCE.key], plain[table.PRODUCE.key]),
            table.FETCH.key: self._of_programs(partial(self._fetch, plain[table.FETCH.key]), plain[table.FETCH.key]),
        }

    def _image(self) -> MetadataImage:
        return cast(
            MetadataImage, self._told
        )  # only its quotas are asked for: none of them limits changes of the cluster

    def _of_programs(self, limited: Handler, plain: Handler) -> Handler:
        return lambda request: (plain if request.peer.node_id >= 0 else limited)(request)

    def _fetch(self, plain: Handler, request: Request) -> Any:
        quota = self._quotas.of_fetch(request)
        if quota is not None:
            request.replace_body(quota.capped(request.body))
            request.amend_reply(partial(self._charged, request, quota))
        return plain(request)

    def _charged(self, request: Request, quota: FetchQuota, reply: Any) -> Any:
        size = sum(len(part.records or b"") for topic in reply.responses for part in topic.partitions)
        delay_ms, is_withheld = quota.charge(size) if size else (0, False)
        if not delay_ms:
            return reply
        request.connection.mute(delay_ms / 1_000)
        throttle_time = max(reply.throttle_time, datetime.timedelta(milliseconds=delay_ms))
        if not is_withheld:
            return dataclasses.replace(reply, throttle_time=throttle_time)
        emptied = tuple(
            dataclasses.replace(
                topic, partitions=tuple(dataclasses.replace(part, records=b"") for part in topic.partitions)
            )
            for topic in reply.responses
        )
        return dataclasses.replace(reply, throttle_time=throttle_time, responses=emptied)
