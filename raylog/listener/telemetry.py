"""GetTelemetrySubscriptions and PushTelemetry at a listener (KIP-714): what clients push becomes
metrics beside the broker's.

``client_instances`` decides what is answered. A push that is taken is decompressed and read in a
thread, both within bounds, and goes into ``ClientSeries``. One that cannot be read is answered
INVALID_RECORD, as Apache Kafka does where its plug-in fails.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from raylog.configs import broker_configs
from raylog.configs.metrics_configs import TELEMETRY_BYTES, TELEMETRY_BYTES_MAX
from raylog.errors import RaylogError
from raylog.kafka import table as apis
from raylog.kafka.spec import ApiSpec
from raylog.listener.client_instances import ACCEPTED, ClientInstances, KnownBy, shown_id
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import ConfiguredKind
from raylog.metrics import table
from raylog.metrics.client_series import ClientSeries
from raylog.metrics.otlp import Point, points_of
from raylog.metrics.registry import Samples
from raylog.records.compression import decompress
from raylog.server.apis.api import answer
from raylog.wire.request import Handler, Request

logger = logging.getLogger("raylog.metrics")

INFLATED_BYTES_MAX: Final = 8 << 20
POINTS_MAX: Final = 10_000
NO_DELAY: Final = timedelta(0)


class Telemetry:
    """``image`` returns the current copy, ``now_ms`` a clock that does not go back, ``random_bits``
    so many random bits.
    """

    def __init__(
        self,
        broker_id: int,
        image: Callable[[], MetadataImage],
        now_ms: Callable[[], int],
        random_bits: Callable[[int], int],
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._now_ms = now_ms
        self._instances = ClientInstances(lambda: uuid.UUID(int=random_bits(128), version=4))
        self._series = ClientSeries()
        self._taken = 0
        self._unreadable = 0

    def handlers(self) -> dict[ApiSpec, Handler]:
        return {apis.GET_TELEMETRY_SUBSCRIPTIONS: self._subscriptions, apis.PUSH_TELEMETRY: self._push}

    def follow(self) -> None:
        """Go by the subscriptions of the image as it is now."""
        self._instances.follow(
            {
                name: tuple(sorted(configs.items()))
                for (kind, name), configs in self._image().resource_configs.items()
                if kind is ConfiguredKind.CLIENT_METRICS
            }
        )

    def add_to(self, samples: Samples, series_max: int) -> None:
        """Add what clients have pushed, and the counts of their requests. Of each metric of clients
        ``series_max`` series are shown.
        """
        samples.pushed, left_out = self._series.pushed(series_max, self._now_ms())
        if left_out:
            samples.add(table.SERIES_LEFT_OUT, left_out, "kafka_client_*")
        samples.add(table.CLIENT_INSTANCES, len(self._instances))
        samples.add(table.CLIENT_PUSHES, self._taken)
        samples.add(table.UNREADABLE_PUSHES, self._unreadable)
        samples.add(table.THROTTLED_TELEMETRY, self._instances.throttled)
        samples.add(table.UNKNOWN_SUBSCRIPTIONS, self._instances.unknown_subscriptions)
        samples.add(table.DROPPED_POINTS, self._series.dropped_points)

    @property
    def _bytes_max(self) -> int:
        configs = self._image().broker_configs
        return broker_configs.number(configs, self._broker_id, TELEMETRY_BYTES, default=TELEMETRY_BYTES_MAX)

    def _subscriptions(self, request: Request) -> None:
        id = request.body.client_instance_id
        instance, error = self._instances.ask(id, _known_by(request), self._now_ms())
        is_told = error is ErrorCode.none
        cls, _ = answer(apis.GET_TELEMETRY_SUBSCRIPTIONS, request.version)
        request.reply(
            cls(
                throttle_time=NO_DELAY,
                error_code=error,
                client_instance_id=instance.id if is_told else None,
                subscription_id=instance.subscription_id if is_told else 0,
                accepted_compression_types=tuple(map(int, ACCEPTED)) if is_told else (),
                push_interval=timedelta(milliseconds=instance.interval_ms if is_told else 0),
                telemetry_max_bytes=self._bytes_max if is_told else 0,
                delta_temporality=is_told,
                requested_metrics=instance.metrics if is_told else (),
            )
        )

    async def _push(self, request: Request) -> Any:
        cls, _ = answer(apis.PUSH_TELEMETRY, request.version)
        body, context, now_ms = request.body, request.context, self._now_ms()
        instance, error = self._instances.push(
            body.client_instance_id,
            _known_by(request),
            now_ms,
            subscription_id=body.subscription_id,
            compression=body.compression_type,
            size=len(body.metrics),
            size_max=self._bytes_max,
            is_terminating=body.terminating,
        )
        if instance is None or error is not ErrorCode.none:
            return cls(throttle_time=NO_DELAY, error_code=error)
        try:
            points, beyond = await asyncio.to_thread(_read, bytes(body.metrics), body.compression_type)
        except RaylogError as failure:
            logger.warning("the metrics of client %r cannot be read: %s", context.client_id, failure)
            self._unreadable += 1
            return cls(throttle_time=NO_DELAY, error_code=ErrorCode.invalid_record)
        self._taken += 1
        self._series.dropped_points += beyond
        self._series.take(
            shown_id(instance.id),
            context.client_id or "",
            points,
            now_ms=now_ms,
            expires_ms=now_ms + instance.kept_ms,
        )
        return cls(throttle_time=NO_DELAY, error_code=ErrorCode.none)


def _read(metrics: bytes, compression: int) -> tuple[list[Point], int]:
    return points_of(decompress(compression, metrics, max_bytes=INFLATED_BYTES_MAX), POINTS_MAX)


def _known_by(request: Request) -> KnownBy:
    connection = request.connection
    name, version = connection.client_software
    return {
        "client_id": request.context.client_id or "",
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": connection.host,
        "client_source_port": connection.peername.rpartition(":")[2],
    }
