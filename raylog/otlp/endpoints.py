"""Addresses of collectors of OpenTelemetry."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

from raylog.errors import ConfigError

TRACES_PATH: Final = "/v1/traces"


def url_of(endpoint: str) -> SplitResult:
    """Raises ConfigError for what is no address of a collector."""
    try:
        url = urlsplit(endpoint)
        if url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port):
            return url
    except ValueError:
        pass  # a port that is none
    raise ConfigError(f"OpenTelemetry's endpoint {endpoint!r} is no http:// or https:// address")


def traces_endpoint(text: str) -> str:
    """Where traces go, by a config that may leave out the path; "": nowhere. Raises ConfigError for
    what is no address, and for a password in it, which everybody could read who reads configs.
    """
    endpoint = text.strip()
    if not endpoint:
        return ""
    url = url_of(endpoint)
    if "@" in url.netloc:
        raise ConfigError("an endpoint of traces has no user; OTEL_EXPORTER_OTLP_TRACES_HEADERS can hold a token")
    return url._replace(path=TRACES_PATH).geturl() if url.path in ("", "/") else endpoint
