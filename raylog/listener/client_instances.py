"""The client instances that push metrics to one Broker, and what it answers them (KIP-714). Pure.

A client instance has the subscriptions that it matches: the union of their metrics, and the
shortest of their intervals. The subscription id is a CRC over these, so that every broker gives the
same one. The rules are those of Apache Kafka's ClientMetricsManager:

- A client asks for its subscriptions again only when an interval is over since it asked or pushed
  last, or after UNKNOWN_SUBSCRIPTION_ID or UNSUPPORTED_COMPRESSION_TYPE.
- It pushes once after it has asked, and then once each interval. The last push, which says that it
  is ``terminating``, may come at any time, and none after it.
- Everything else is THROTTLING_QUOTA_EXCEEDED.

Instances that have been away longest are forgotten where there are more than ``INSTANCES_MAX``.
Their clients need not notice, because the id that they have is still valid.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from raylog.configs.client_metrics_configs import ALL_METRICS, INTERVAL_MS, MetricsSubscription, subscription_of
from raylog.records.compression import Compression

INSTANCES_MAX: Final = 16_384
INTERVALS_KEPT: Final = 3
KEPT_MS_MIN: Final = 60_000
ACCEPTED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
_ASKS_AGAIN: Final = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)
_LONG_AGO: Final = -(1 << 62)

KnownBy = Mapping[str, str]
"""What a client is known by, for each selector but its instance id."""
SetConfigs = Mapping[str, tuple[tuple[str, str], ...]]
"""What is set of each subscription, by its name."""


class ClientInstance:
    """One client instance and what it is subscribed to."""

    __slots__ = (
        "id", "interval_ms", "is_terminating", "last_ask_ms", "last_error", "last_push_ms", "metrics",
        "revision", "subscription_id",
    )  # fmt: skip

    def __init__(self, id: uuid.UUID) -> None:
        self.id = id
        self.revision = -1
        self.metrics: tuple[str, ...] = ()
        self.interval_ms = INTERVAL_MS
        self.subscription_id = 0
        self.last_ask_ms = self.last_push_ms = _LONG_AGO
        self.last_error = ErrorCode.none
        self.is_terminating = False

    def subscribe(self, subscriptions: list[MetricsSubscription], revision: int) -> None:
        """Have these from now on."""
        metrics = {each for subscription in subscriptions for each in subscription.metrics}
        self.metrics = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        self.interval_ms = min((each.interval_ms for each in subscriptions), default=INTERVAL_MS)
        self.subscription_id = subscription_id(self.metrics, self.interval_ms, self.id)
        self.revision = revision

    @property
    def kept_ms(self) -> int:
        """How long what it has pushed is shown without another push."""
        return max(INTERVALS_KEPT * self.interval_ms, KEPT_MS_MIN)


class ClientInstances:
    """``new_id`` makes ids. ``unknown_subscriptions`` and ``throttled`` count refused requests."""

    def __init__(self, new_id: Callable[[], uuid.UUID]) -> None:
        self._new_id = new_id
        self._configs: SetConfigs = {}
        self._subscriptions: list[MetricsSubscription] = []
        self._revision = 0
        self._instances: dict[uuid.UUID, ClientInstance] = {}  # the one that was heard of last is the last
        self.unknown_subscriptions = 0
        self.throttled = 0

    def __len__(self) -> int:
        return len(self._instances)

    def follow(self, configs: SetConfigs) -> None:
        """These are the subscriptions from now on."""
        if configs != self._configs:
            self._configs = configs
            self._subscriptions = [subscription_of(configs[name]) for name in sorted(configs)]
            self._revision += 1

    def ask(self, id: uuid.UUID | None, known_by: KnownBy, now_ms: int) -> tuple[ClientInstance, ErrorCode]:
        """GetTelemetrySubscriptions; ``id`` None: of a client that has none yet."""
        instance = self._instance(id or self._new_id(), known_by)
        is_early = now_ms - max(instance.last_ask_ms, instance.last_push_ms) < instance.interval_ms
        if is_early and instance.last_error not in _ASKS_AGAIN:
            return instance, self._refused(instance, ErrorCode.throttling_quota_exceeded)
        instance.last_ask_ms = now_ms
        instance.last_error = ErrorCode.none
        return instance, ErrorCode.none

    def push(
        self,
        id: uuid.UUID | None,
        known_by: KnownBy,
        now_ms: int,
        *,
        subscription_id: int,
        compression: int,
        size: int,
        size_max: int,
        is_terminating: bool,
    ) -> tuple[ClientInstance | None, ErrorCode]:
        """PushTelemetry, of ``size`` bytes; None is the instance of a client that gave no id."""
        if id is None:
            return None, ErrorCode.invalid_request
        instance = self._instance(id, known_by)
        if instance.is_terminating:
            return instance, self._refused(instance, ErrorCode.invalid_request)
        is_due = instance.last_ask_ms > instance.last_push_ms or now_ms - instance.last_push_ms >= instance.interval_ms
        if not is_due and not is_terminating:
            return instance, self._refused(instance, ErrorCode.throttling_quota_exceeded)
        instance.last_push_ms = now_ms
        if subscription_id != instance.subscription_id:
            return instance, self._refused(instance, ErrorCode.unknown_subscription_id)
        if compression not in (Compression.NONE, *ACCEPTED):
            return instance, self._refused(instance, ErrorCode.unsupported_compression_type)
        if size > size_max:
            return instance, self._refused(instance, ErrorCode.telemetry_too_large)
        instance.is_terminating = is_terminating
        instance.last_error = ErrorCode.none
        return instance, ErrorCode.none

    def _instance(self, id: uuid.UUID, known_by: KnownBy) -> ClientInstance:
        instance = self._instances.pop(id, None) or ClientInstance(id)
        if instance.revision != self._revision:
            client = {**known_by, "client_instance_id": shown_id(id)}
            instance.subscribe([each for each in self._subscriptions if each.matches(client)], self._revision)
        if len(self._instances) >= INSTANCES_MAX:
            del self._instances[next(iter(self._instances))]
        self._instances[id] = instance
        return instance

    def _refused(self, instance: ClientInstance, error: ErrorCode) -> ErrorCode:
        instance.last_error = error
        self.throttled += error is ErrorCode.throttling_quota_exceeded
        self.unknown_subscriptions += error is ErrorCode.unknown_subscription_id
        return error


def shown_id(id: uuid.UUID) -> str:
    """A client instance's id as Kafka's clients and tools write it."""
    return base64.urlsafe_b64encode(id.bytes).rstrip(b"=").decode()


def subscription_id(metrics: tuple[str, ...], interval_ms: int, id: uuid.UUID) -> int:
    """Apache Kafka's: the CRC-32C of what is subscribed to, and the hash code of the id."""
    crc = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    folded = (id.int >> 64) ^ id.int & (1 << 64) - 1
    found = (crc ^ folded >> 32 ^ folded) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found
