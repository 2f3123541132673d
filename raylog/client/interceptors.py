"""User code around every record: chains of interceptors in the order of ``interceptor.classes``.

A producer's ``on_send`` runs on the caller's thread before serializing and may replace the record;
``on_acknowledgement`` runs on the sender's thread, in send order, before the user's own callback. A
consumer's ``on_consume`` may replace the records that a poll returns. What an interceptor raises is
logged and goes no further: the chain goes on with what the one before gave (TV-10).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from raylog.client.config import instance_of, listed
from raylog.client.producer.deliveries import RecordMetadata
from raylog.errors import ConfigError, RaylogError
from raylog.records.record import Header, Record

logger = logging.getLogger("raylog.client")


class ProducerRecord(NamedTuple):
    """A record before it is serialized. ``partition`` None: the partitioner decides;
    ``timestamp_ms`` None: now.

    An interceptor changes it by ``record._replace(value=…)``.
    """

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[Header] = ()


class ProducerInterceptor:
    """What an interceptor may do; subclass it and override what is wanted."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send instead."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: RaylogError | None) -> None:
        """The record is settled; one of the two is None."""

    def close(self) -> None:
        """The producer is closed."""


class ConsumerInterceptor:
    """The consumer's side."""

    def on_consume(self, records: list[Record]) -> list[Record]:
        """The records to hand out instead."""
        return records

    def close(self) -> None:
        """The consumer is closed."""


class InterceptorChain:
    """The interceptors of one client; objects with any of the methods will do."""

    def __init__(self, option: Any) -> None:
        self._links = [instance_of(link, {}, "interceptor.classes") for link in listed(option)]
        for link in self._links:
            if not any(hasattr(link, name) for name in ("on_send", "on_acknowledgement", "on_consume")):
                raise ConfigError(f"interceptor.classes: {link!r} has none of on_send, on_acknowledgement, on_consume")

    def __bool__(self) -> bool:
        return bool(self._links)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return self._fold("on_send", record)  # type: ignore[no-any-return]

    def on_consume(self, records: list[Record]) -> list[Record]:
        return self._fold("on_consume", records)  # type: ignore[no-any-return]

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: RaylogError | None) -> None:
        for link in self._links:
            self._call(link, "on_acknowledgement", metadata, error)

    def close(self) -> None:
        for link in self._links:
            self._call(link, "close")

    def _fold(self, method: str, value: Any) -> Any:
        for link in self._links:
            try:
                if hasattr(link, method):
                    value = getattr(link, method)(value)
            except Exception:
                logger.exception("%s of interceptor %r failed; its record goes on unchanged", method, link)
        return value

    def _call(self, link: Any, method: str, *arguments: Any) -> None:
        try:
            if hasattr(link, method):
                getattr(link, method)(*arguments)
        except Exception:
            logger.exception("%s of interceptor %r failed", method, link)
