"""Kafka's security protocols, and a broker's listeners as other brokers and clients see them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raylog.types import Endpoint


class SecurityProtocol(Enum):
    """What is spoken on a listener: TLS or not, and whether clients authenticate by SASL."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class AdvertisedListener:
    """Where clients of one listener reach a broker. ``name`` is in upper case."""

    name: str
    protocol: SecurityProtocol
    endpoint: Endpoint
