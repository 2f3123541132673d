"""Pushes a Broker's metrics to a collector of OpenTelemetry (``raylog.otlp.sending``).

Where to, and how often, says the environment of the process. Without an endpoint nothing is pushed.

A push that fails is not repeated: counters are cumulative, so the next one makes up for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from raylog.errors import RaylogError
from raylog.listener.metrics_pushes import PushTarget
from raylog.metrics.otlp_writing import export_request
from raylog.metrics.registry import Samples
from raylog.otlp.reading import rejected_of
from raylog.otlp.sending import EXPORTER, OtlpPost, OtlpSettings, milliseconds, one_of, settings_for
from raylog.version import VERSION

SIGNALS_PATH: Final = "/v1/metrics"
DEFAULT_ENDPOINT: Final = "http://localhost:4318"
INTERVAL_MS: Final = 60_000
METRICS: Final = "METRICS"


def settings_of(environment: Mapping[str, str]) -> OtlpSettings | None:
    """None: nothing is to be pushed. Raises ConfigError for a value that is wrong, or unknown here."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = [each.strip() for each in environment.get("OTEL_METRICS_EXPORTER", "").split(",") if each.strip()]
    if exporters and "otlp" not in exporters:
        return None
    endpoint = environment.get(f"{EXPORTER}{METRICS}_ENDPOINT", "").strip()
    if not endpoint:
        base = environment.get(f"{EXPORTER}ENDPOINT", "").strip() or (DEFAULT_ENDPOINT if exporters else "")
        if not base:
            return None
        endpoint = base.rstrip("/") + SIGNALS_PATH
    one_of(environment, METRICS, "TEMPORALITY_PREFERENCE", "cumulative")
    one_of(environment, METRICS, "DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram")
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    return settings_for(METRICS, endpoint, milliseconds(environment.get(name, ""), name, INTERVAL_MS), environment)


def otlp_push(environment: Mapping[str, str], *, cluster_id: str, broker_id: int) -> PushTarget | None:
    """For ``BrokerServer``; None and ConfigError as ``settings_of``, which also has to do with files of
    certificates that cannot be read.
    """
    settings = settings_of(environment)
    if settings is None:
        return None
    own = {"raylog.cluster.id": cluster_id, "raylog.broker.id": str(broker_id)}
    own["service.instance.id"] = f"{cluster_id}-broker-{broker_id}"
    return PushTarget(settings.endpoint, OtlpSender(settings, own).send, settings.interval_ms)


class OtlpSender:
    """``own``: attributes of the resource, behind those that the environment gives."""

    def __init__(self, settings: OtlpSettings, own: Mapping[str, str]) -> None:
        self._resource = {**own, **settings.resource}
        self._post = OtlpPost(settings)
        self._start_time_ns = time.time_ns()

    def send(self, samples: Samples) -> None:
        """Blocks. Raises OSError, HTTPException, or RaylogError for an answer that is no success."""
        body = export_request(
            samples,
            self._resource,
            version=VERSION,
            start_time_ns=self._start_time_ns,
            time_ns=time.time_ns(),
        )
        rejected, reason = rejected_of(self._post.send(body))
        if rejected:
            raise RaylogError(f"it has refused {rejected} values: {reason}")
