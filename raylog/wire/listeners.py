"""Where a Broker listens for Kafka clients, and what it tells them: Kafka's ``listeners`` and
``advertised.listeners``.

::

    listeners            = [PLAINTEXT://]host:port    port 0: any free one; an empty host or 0.0.0.0: every address of the machine
                         | none                       no outside listener
    advertised.listeners = [PLAINTEXT://]host:port    what Metadata says; absent: as listened on

A port that is taken moves to the next free one, with a notice; an advertised port stays as it was
given. TLS and SASL are not there yet: another protocol than PLAINTEXT, or a second listener, is
refused.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from raylog.errors import ConfigError
from raylog.types import Endpoint

KAFKA_PORT = 9092
NONE = "none"
EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Listeners:
    """``bind`` None: no outside listener. ``advertised`` None: what was bound."""

    bind: Endpoint | None
    advertised: Endpoint | None = None

    def __str__(self) -> str:
        return NONE if self.bind is None else endpoint_text(self.bind)

    @property
    def advertised_text(self) -> str:
        return "" if self.advertised is None else endpoint_text(self.advertised)

    def advertised_for(self, bound: Endpoint) -> Endpoint:
        """What clients are told, after that was bound."""
        if self.advertised is not None:
            return self.advertised
        return Endpoint(socket.gethostname(), bound.port) if bound.host in EVERYWHERE else bound


def default_listeners(host: str) -> Listeners:
    """Kafka's port on the address that the Broker's other listener has."""
    return Listeners(Endpoint(host, KAFKA_PORT))


def listeners_of(listeners: str | None, advertised: str | None = None) -> Listeners | None:
    """The value of the two settings; None if neither is given. Raises ConfigError."""
    if not listeners:
        if advertised:
            raise ConfigError("advertised.listeners needs listeners")
        return None
    if listeners.strip() == NONE:
        if advertised:
            raise ConfigError("advertised.listeners makes no sense where listeners is none")
        return Listeners(None)
    bind = parse_endpoint("listeners", listeners, lowest_port=0)
    if not bind.host:
        bind = Endpoint(EVERYWHERE[0], bind.port)
    told = parse_endpoint("advertised.listeners", advertised, lowest_port=1) if advertised else None
    if told is not None and told.host in ("", *EVERYWHERE):
        raise ConfigError(f"advertised.listeners={advertised!r}: clients need an address that they can reach")
    return Listeners(bind, told)


def listeners_of_brokers(
    brokers: int, listeners: Sequence[str] | None, advertised: Sequence[str] | None
) -> list[Listeners | None]:
    """What each of so many brokers is given, as a launcher takes it: one value for all, or one for
    each. None: what it had.

    One value for all is where each of them looks for a free port, so it cannot be advertised.
    Raises ConfigError.
    """
    given, told = list(listeners or ()), list(advertised or ())
    if len(given) == 1 and brokers > 1 and not told:
        given *= brokers
    for name, values in (("listeners", given), ("advertised.listeners", told)):
        if values and len(values) != brokers:
            raise ConfigError(f"{len(values)} {name} for {brokers} brokers: give one each")
    if told and not given:
        raise ConfigError("advertised.listeners needs listeners")
    return [listeners_of(given[broker] if given else None, told[broker] if told else None) for broker in range(brokers)]


def parse_endpoint(name: str, text: str, *, lowest_port: int) -> Endpoint:
    """The ``host:port`` that an option of that name gives. Raises ConfigError."""
    protocol, has_protocol, address = text.strip().rpartition("://")
    if has_protocol and protocol.upper() != "PLAINTEXT":
        raise ConfigError(f"{name}={text!r}: {protocol} is not spoken in this version, only PLAINTEXT")
    if "," in text:
        raise ConfigError(f"{name}={text!r}: one listener per broker in this version")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not lowest_port <= int(port) < 65_536:
        raise ConfigError(f"{name}={text!r} is no host:port")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))


def endpoint_text(endpoint: Endpoint) -> str:
    """``host:port``, as it is read again."""
    return f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else str(endpoint)
