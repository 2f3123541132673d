"""The configs of metrics. Kafka has only the last one: its metrics leave by JMX."""

from __future__ import annotations

import ipaddress
from typing import Final

from raylog.configs.broker_config import BrokerConfig, ReadBy
from raylog.configs.topic_configs import INT_MAX, ConfigValueType
from raylog.errors import ConfigError
from raylog.types import Endpoint

METRICS_LISTENER: Final = "metrics.listener"
METRICS_SERIES: Final = "metrics.series.max"
SERIES_MAX: Final = 1_000
METRICS_RAY_INTERVAL: Final = "metrics.ray.interval.ms"
RAY_INTERVAL_MS: Final = 8_000
TELEMETRY_BYTES: Final = "telemetry.max.bytes"
TELEMETRY_BYTES_MAX: Final = 1 << 20
INSECURE: Final = "insecure://"

METRICS_CONFIGS = (
    BrokerConfig(METRICS_LISTENER, ConfigValueType.STRING, "",
                 "where a broker answers `GET /metrics`: `HOST:PORT`, port 0 for any free one; empty: nowhere. Whoever connects may "
                 "read, so an address that other machines reach needs `insecure://` in front", read_by=ReadBy.LISTENER),
    BrokerConfig(METRICS_SERIES, ConfigValueType.INT, str(SERIES_MAX),
                 "series of one metric that a broker shows", 1, INT_MAX, read_by=ReadBy.LISTENER),
    BrokerConfig(METRICS_RAY_INTERVAL, ConfigValueType.INT, str(RAY_INTERVAL_MS),
                 "how often a broker gives its metrics to its Ray, which shows them beside its own; 0: never", 0, INT_MAX,
                 read_by=ReadBy.LISTENER),
    BrokerConfig(TELEMETRY_BYTES, ConfigValueType.INT, str(TELEMETRY_BYTES_MAX),
                 "the most bytes, compressed, of metrics that a client pushes at once", 1, INT_MAX, read_by=ReadBy.LISTENER),
)  # fmt: skip


def metrics_endpoint(text: str) -> Endpoint | None:
    """Where to answer; None: nowhere. Raises ConfigError for what is no address, and for one that
    other machines may reach, unless the value says that this is meant.
    """
    if not text.strip():
        return None
    is_insecure, given = text.strip().startswith(INSECURE), text.strip().removeprefix(INSECURE)
    host, _, port = given.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535 or "/" in host:
        raise ConfigError(f"{METRICS_LISTENER}={text!r} is no HOST:PORT, such as 127.0.0.1:9404")
    if not is_insecure and not _is_loopback(host):
        raise ConfigError(
            f"{METRICS_LISTENER}={text!r}: everyone who can connect there could read the names of topics and groups. Bind it to "
            f"127.0.0.1, or, if the network itself keeps strangers out, give {INSECURE}{given}"
        )
    return Endpoint(host, int(port))


def _is_loopback(host: str) -> bool:
    """Whether that is sure without a resolver."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
