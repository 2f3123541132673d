"""Sends what a process measures to a collector of OpenTelemetry, over HTTP (OTLP, ``http/protobuf``).

How it is sent says the environment of the process, as of every program with OpenTelemetry; the names
and meanings are those of OpenTelemetry's specification. Variables of ``OTEL_EXPORTER_OTLP_…`` have a
form for one signal (``…METRICS_…``, ``…TRACES_…``) that counts more. A value that cannot be honoured is
an error, not a default.
"""

from __future__ import annotations

import gzip
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import unquote

from raylog.errors import ConfigError, RaylogError
from raylog.http_questions import HttpServer
from raylog.otlp.endpoints import url_of
from raylog.version import VERSION

EXPORTER: Final = "OTEL_EXPORTER_OTLP_"
TIMEOUT_MS: Final = 10_000
ANSWER_BYTES_MAX: Final = 1 << 20
_MILLISECONDS: Final = re.compile("0*[1-9][0-9]{0,8}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


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


def settings_for(signal: str, endpoint: str, interval_ms: int, environment: Mapping[str, str]) -> OtlpSettings:
    """Of a signal, ``METRICS`` or ``TRACES``. Raises ConfigError for a value that is wrong, or unknown
    here.
    """
    url_of(endpoint)
    one_of(environment, signal, "PROTOCOL", "http/protobuf")
    of = partial(of_signal, environment, signal)
    return OtlpSettings(
        endpoint,
        _headers(of("HEADERS")),
        one_of(environment, signal, "COMPRESSION", "none", "gzip") == "gzip",
        milliseconds(of("TIMEOUT"), f"{EXPORTER}TIMEOUT", TIMEOUT_MS) / 1_000,
        interval_ms,
        _resource(environment),
        ca=of("CERTIFICATE"),
        certificate=of("CLIENT_CERTIFICATE"),
        key=of("CLIENT_KEY"),
    )


class OtlpPost:
    """Raises ConfigError for files of certificates that cannot be read."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._url = url_of(settings.endpoint)
        tls = _tls(settings) if self._url.scheme == "https" else None
        self._server = HttpServer(self._url, tls, ANSWER_BYTES_MAX)

    def send(self, body: bytes) -> bytes:
        """The answer. Blocks. Raises OSError, HTTPException, or RaylogError for one that is no success."""
        headers = {
            **self._settings.headers,
            "Content-Type": "application/x-protobuf",
            "User-Agent": f"raylog/{VERSION}",
        }
        if self._settings.is_compressed:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        answer = self._server.ask("POST", target, headers, body, within_s=self._settings.timeout_s)
        if not 200 <= answer.status < 300:
            raise RaylogError(f"it answers {answer.status} {answer.reason}")
        return answer.body


def _tls(settings: OtlpSettings) -> ssl.SSLContext:
    def password() -> str:  # or OpenSSL would ask whoever sits at the terminal
        raise ConfigError(f"the key of {settings.certificate} is encrypted, and there is no setting for its password")

    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key or None, password)
    except OSError as error:
        raise ConfigError(f"the certificates for {settings.endpoint} cannot be used: {error}") from error
    return context


def of_signal(environment: Mapping[str, str], signal: str, name: str) -> str:
    """The value for the signal, else that for all signals."""
    return environment.get(f"{EXPORTER}{signal}_{name}", "").strip() or environment.get(f"{EXPORTER}{name}", "").strip()


def one_of(environment: Mapping[str, str], signal: str, name: str, default: str, *others: str) -> str:
    found = of_signal(environment, signal, name).lower() or default
    if found not in (default, *others):
        raise ConfigError(f"{EXPORTER}{name}={found}: raylog's brokers know {', '.join((default, *others))}")
    return found


def milliseconds(text: str, name: str, default: int) -> int:
    if not text.strip():
        return default
    if not _MILLISECONDS.fullmatch(text.strip()):
        raise ConfigError(f"{name}={text[:40]!r} is no number of milliseconds from 1 to 999999999")
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


def _headers(text: str) -> dict[str, str]:
    """As ``_pairs``; raises ConfigError for what HTTP cannot carry, too."""
    name = f"{EXPORTER}HEADERS"
    found = _pairs(text, name)
    for key, value in found.items():
        if not _HEADER_NAME.fullmatch(key) or max(value, default="") > "\xff":
            raise ConfigError(f"{name} has an entry that is no header of HTTP")
    return found


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    found = _pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""), "OTEL_RESOURCE_ATTRIBUTES")
    name = environment.get("OTEL_SERVICE_NAME", "").strip() or found.get("service.name", "") or "raylog"
    return {**found, "service.name": name}
