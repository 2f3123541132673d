"""Pushes a Broker's metrics to a collector of OpenTelemetry, over HTTP (OTLP, ``http/protobuf``).

It is set up as every program with OpenTelemetry is, by the environment of the process; the names and
meanings are those of OpenTelemetry's specification. Without an endpoint nothing is pushed. A value that
cannot be honoured is an error, not a default.

A push that fails is not repeated: counters are cumulative, so the next one makes up for it.
"""

from __future__ import annotations

import gzip
import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from raylog.errors import ConfigError, RaylogError
from raylog.listener.metrics_pushes import PushTarget
from raylog.metrics.otlp import rejected_of
from raylog.metrics.otlp_writing import export_request
from raylog.metrics.registry import Samples
from raylog.version import VERSION

SIGNALS_PATH: Final = "/v1/metrics"
DEFAULT_ENDPOINT: Final = "http://localhost:4318"
INTERVAL_MS: Final = 60_000
TIMEOUT_MS: Final = 10_000
ANSWER_BYTES_MAX: Final = 1 << 20
_EXPORTER = "OTEL_EXPORTER_OTLP_"
_METRICS = f"{_EXPORTER}METRICS_"


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """``ca``, ``certificate`` and ``key`` are PEM files; "": none."""

    endpoint: str
    headers: Mapping[str, str]
    is_compressed: bool
    timeout_s: float
    interval_ms: int
    resource: Mapping[str, str]
    ca: str = ""
    certificate: str = ""
    key: str = ""


def settings_of(environment: Mapping[str, str]) -> OtlpSettings | None:
    """None: nothing is to be pushed. Raises ConfigError for a value that is wrong, or unknown here."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = [each.strip() for each in environment.get("OTEL_METRICS_EXPORTER", "").split(",") if each.strip()]
    if exporters and "otlp" not in exporters:
        return None
    endpoint = environment.get(f"{_METRICS}ENDPOINT", "").strip()
    if not endpoint:
        base = environment.get(f"{_EXPORTER}ENDPOINT", "").strip() or (DEFAULT_ENDPOINT if exporters else "")
        if not base:
            return None
        endpoint = base.rstrip("/") + SIGNALS_PATH
    _url(endpoint)
    _one_of(environment, "PROTOCOL", "http/protobuf")
    _one_of(environment, "TEMPORALITY_PREFERENCE", "cumulative")
    _one_of(environment, "DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram")
    return OtlpSettings(
        endpoint,
        _pairs(_of_signal(environment, "HEADERS"), f"{_EXPORTER}HEADERS"),
        _one_of(environment, "COMPRESSION", "none", "gzip") == "gzip",
        _milliseconds(_of_signal(environment, "TIMEOUT"), f"{_EXPORTER}TIMEOUT", TIMEOUT_MS) / 1_000,
        _milliseconds(environment.get("OTEL_METRIC_EXPORT_INTERVAL", ""), "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_MS),
        _resource(environment),
        ca=_of_signal(environment, "CERTIFICATE"),
        certificate=_of_signal(environment, "CLIENT_CERTIFICATE"),
        key=_of_signal(environment, "CLIENT_KEY"),
    )


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
        self._settings = settings
        self._resource = {**own, **settings.resource}
        self._url = _url(settings.endpoint)
        self._tls = _tls(settings) if self._url.scheme == "https" else None
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
        headers = {
            **self._settings.headers,
            "Content-Type": "application/x-protobuf",
            "User-Agent": f"raylog/{VERSION}",
        }
        if self._settings.is_compressed:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        host, port, timeout_s = self._url.hostname or "", self._url.port, self._settings.timeout_s
        connection = (
            http.client.HTTPConnection(host, port, timeout=timeout_s)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
        )
        try:
            target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
            connection.request("POST", target, body, headers)
            answer = connection.getresponse()
            content = answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise RaylogError(f"it answers {answer.status} {answer.reason}")
        rejected, reason = rejected_of(content)
        if rejected:
            raise RaylogError(f"it has refused {rejected} values: {reason}")


def _tls(settings: OtlpSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key or None)
    except OSError as error:
        raise ConfigError(f"the certificates for {settings.endpoint} cannot be used: {error}") from error
    return context


def _url(endpoint: str) -> SplitResult:
    try:
        url = urlsplit(endpoint)
        if url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port):
            return url
    except ValueError:
        pass  # a port that is none
    raise ConfigError(f"OpenTelemetry's endpoint {endpoint!r} is no http:// or https:// address")


def _of_signal(environment: Mapping[str, str], name: str) -> str:
    """The value for metrics, else that for all signals."""
    return environment.get(f"{_METRICS}{name}", "").strip() or environment.get(f"{_EXPORTER}{name}", "").strip()


def _one_of(environment: Mapping[str, str], name: str, default: str, *others: str) -> str:
    found = _of_signal(environment, name).lower() or default
    if found not in (default, *others):
        raise ConfigError(f"{_EXPORTER}{name}={found}: raylog's brokers know {', '.join((default, *others))}")
    return found


def _milliseconds(text: str, name: str, default: int) -> int:
    if not text.strip():
        return default
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) == 0:
        raise ConfigError(f"{name}={text!r} is no number of milliseconds")
    return int(text)


def _pairs(text: str, name: str) -> dict[str, str]:
    """``key=value,key=value``, percent-encoded."""
    found: dict[str, str] = {}
    for each in filter(None, map(str.strip, text.split(","))):
        key, equals, value = each.partition("=")
        key, value = unquote(key.strip()), unquote(value.strip())
        if not key or not equals or not (key + value).isprintable():
            raise ConfigError(f"{name} has an entry that is no key=value")
        found[key] = value
    return found


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    found = _pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""), "OTEL_RESOURCE_ATTRIBUTES")
    name = environment.get("OTEL_SERVICE_NAME", "").strip() or found.get("service.name", "") or "raylog"
    return {**found, "service.name": name}
