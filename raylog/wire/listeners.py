"""Where a Broker listens for Kafka clients, and what it tells them: Kafka's ``listeners``,
``advertised.listeners`` and ``listener.security.protocol.map``.

::

    listeners            = [NAME://]host:port, …      port 0: any free one; an empty host or 0.0.0.0: every address of the machine
                         | none                       no outside listener
    advertised.listeners = [NAME://]host:port, …      what Metadata says; absent: as listened on
    listener.security.protocol.map = NAME:PROTOCOL, … absent: each protocol's name is a listener's name

A listener without a name is PLAINTEXT. Names and protocols are in any case; a name is kept in upper
case. A listener that ``advertised.listeners`` leaves out serves those who find it, and Metadata does
not name it. A port that is taken moves to the next free one, with a notice; an advertised port
stays as it was given.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raylog.errors import ConfigError
from raylog.security.protocols import SecurityProtocol
from raylog.types import Endpoint
from raylog.wire.oauth_config import OAUTH, URL, OAuthConfig
from raylog.wire.tls import TlsConfig
from raylog.wire.token_keys import check_keys

KAFKA_PORT = 9092
NONE = "none"
EVERYWHERE = ("0.0.0.0", "::")
PLAINTEXT = SecurityProtocol.PLAINTEXT.value
PROTOCOLS = "listener.security.protocol.map"
NAME_CHARACTERS_MAX = 100
PLAIN_USERS = "plain.sasl.jaas.config"
_Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NamedListener:
    """One of them. ``advertised`` None: what was bound; ``is_advertised`` False: Metadata leaves it
    out.
    """

    name: str
    protocol: SecurityProtocol
    bind: Endpoint
    advertised: Endpoint | None = None
    is_advertised: bool = True

    def advertised_for(self, bound: Endpoint) -> Endpoint:
        """What clients are told, after that was bound."""
        if self.advertised is not None:
            return self.advertised
        return Endpoint(socket.gethostname(), bound.port) if bound.host in EVERYWHERE else bound


@dataclass(frozen=True, slots=True)
class Listeners:
    """All of one broker; none: no outside listener. ``configs`` are their settings
    (``sasl.*``, ``plain.*``, ``ssl.*``, ``listener.*``) by name, sorted; some are secret.
    """

    each: tuple[NamedListener, ...] = ()
    configs: _Settings = field(default=(), repr=False)

    def __str__(self) -> str:
        return ",".join(_named(each.name, each.bind) for each in self.each) or NONE

    @property
    def advertised_text(self) -> str:
        """As ``advertised.listeners`` is read again; "" where that was not given."""
        if all(each.is_advertised and each.advertised is None for each in self.each):
            return ""
        told = [_named(each.name, each.advertised or each.bind) for each in self.each if each.is_advertised]
        return ",".join(told)

    def tls_of(self, listener: NamedListener) -> TlsConfig | None:
        """What TLS needs on that listener; None where it has none."""
        return TlsConfig.of(dict(self.configs), listener.name) if listener.protocol.has_tls else None

    def oauth_of(self, listener: NamedListener) -> OAuthConfig | None:
        """What OAUTHBEARER needs on that listener; None where it has no SASL."""
        return OAuthConfig.of(dict(self.configs), listener.name) if listener.protocol.has_sasl else None

    def plain_users_of(self, listener: NamedListener) -> tuple[str, str] | None:
        """The setting that names that listener's own users of PLAIN, and its text; None where it has
        none.
        """
        configs, own = dict(self.configs), f"listener.name.{listener.name.lower()}.{PLAIN_USERS}"
        name = own if own in configs else PLAIN_USERS
        return (name, configs[name]) if listener.protocol.has_sasl and name in configs else None


def plaintext(bind: Endpoint, advertised: Endpoint | None = None) -> Listeners:
    """One listener, without TLS and without a name."""
    return Listeners((NamedListener(PLAINTEXT, SecurityProtocol.PLAINTEXT, bind, advertised),))


def listeners_of(
    listeners: str | None, advertised: str | None = None, configs: Mapping[str, str] | None = None
) -> Listeners | None:
    """The value of the settings; None if none is given. Raises ConfigError."""
    configs = configs or {}
    if not listeners:
        if advertised:
            raise ConfigError("advertised.listeners needs listeners")
        if configs:
            raise ConfigError(f"{min(configs)} needs listeners")
        return None
    if listeners.strip().lower() == NONE:
        if advertised:
            raise ConfigError("advertised.listeners makes no sense where listeners is none")
        return Listeners()
    protocols = protocols_of(configs.get(PROTOCOLS))
    bound = {name: _everywhere(each) for name, each in _endpoints("listeners", listeners, lowest_port=0)}
    told = dict(_endpoints("advertised.listeners", advertised, lowest_port=1)) if advertised else None
    _check_ports(listeners, bound.values())
    if told is not None:
        _check_advertised(advertised or "", told, bound)
    found = [
        NamedListener(
            name, _protocol(protocols, name), bind, told.get(name) if told else None, told is None or name in told
        )
        for name, bind in bound.items()
    ]
    made = Listeners(tuple(found), tuple(sorted(configs.items())))
    _check_settings(made)
    return made


def protocols_of(text: str | None) -> dict[str, SecurityProtocol]:
    """By listener's name, as ``listener.security.protocol.map`` says. Raises ConfigError."""
    if text is None or not text.strip():
        return {each.value: each for each in SecurityProtocol}
    found: dict[str, SecurityProtocol] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        name, colon, protocol = (each.strip().upper() for each in entry.rpartition(":"))
        if not colon or not name:
            raise ConfigError(f"{PROTOCOLS}: {entry!r} is not NAME:PROTOCOL")
        if protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(f"{PROTOCOLS}: {entry!r} names no security protocol: these are {known}")
        if name in found:
            raise ConfigError(f"{PROTOCOLS}: {name} is there twice")
        found[name] = SecurityProtocol[protocol]
    return found


def listeners_of_brokers(
    brokers: int,
    listeners: Sequence[str] | None,
    advertised: Sequence[str] | None,
    configs: Mapping[str, str] | None = None,
) -> list[Listeners | None]:
    """What each of so many brokers is given, as a launcher takes it: one value for all, or one for
    each. None: what it had. ``configs`` hold for all.

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
    return [
        listeners_of(given[broker] if given else None, told[broker] if told else None, configs)
        for broker in range(brokers)
    ]


def has_tls(texts: Sequence[str], configs: Mapping[str, str]) -> bool:
    """Whether one of these listeners has TLS. Raises ConfigError."""
    protocols = protocols_of(configs.get(PROTOCOLS))
    named = (
        name
        for text in texts
        if text.strip().lower() != NONE
        for name, _ in _endpoints("listeners", text, lowest_port=0)
    )
    return any(name in protocols and protocols[name].has_tls for name in named)


def checked(found: list[Listeners | None]) -> list[Listeners | None]:
    """The same, after their certificates and keys were read, which are files of this machine.
    Raises ConfigError, or MissingExtraError where a package is missing that they need.
    """
    for listeners in filter(None, found):
        for each in listeners.each:
            tls = listeners.tls_of(each)
            if tls is not None:
                tls.context()
            oauth = listeners.oauth_of(each)
            if oauth is not None:
                check_keys(oauth)
    return found


def check_tokens(listeners: Listeners) -> None:
    """Whether each listener with SASL takes tokens of some kind. Raises ConfigError."""
    for each in listeners.each:
        oauth = listeners.oauth_of(each)
        if oauth is not None and not (oauth.where or oauth.takes_ray_token or oauth.takes_unsecured):
            raise ConfigError(f"listener {each.name} takes no tokens for OAUTHBEARER: set {URL}")


def parse_endpoint(name: str, text: str, *, lowest_port: int) -> Endpoint:
    """The ``host:port`` that an option of that name gives. Raises ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or not lowest_port <= int(port) < 65_536 or "/" in host or "," in host:
        raise ConfigError(f"{name}={text!r} is no host:port")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))


def endpoint_text(endpoint: Endpoint) -> str:
    """``host:port``, as it is read again."""
    return f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else str(endpoint)


def _named(name: str, endpoint: Endpoint) -> str:
    return endpoint_text(endpoint) if name == PLAINTEXT else f"{name}://{endpoint_text(endpoint)}"


def _everywhere(endpoint: Endpoint) -> Endpoint:
    return endpoint if endpoint.host else Endpoint(EVERYWHERE[0], endpoint.port)


def _endpoints(name: str, text: str, *, lowest_port: int) -> list[tuple[str, Endpoint]]:
    """The endpoints of a list, by listener."""
    found: list[tuple[str, Endpoint]] = []
    for each in filter(None, (each.strip() for each in text.split(","))):
        listener, has_name, address = each.rpartition("://")
        upper = listener.strip().upper() if has_name else PLAINTEXT
        if not upper or len(upper) > NAME_CHARACTERS_MAX:
            raise ConfigError(
                f"{name}={text!r}: {each!r} has no name of 1 to {NAME_CHARACTERS_MAX} characters before ://"
            )
        if upper in dict(found):
            raise ConfigError(f"{name}={text!r}: each listener must have a different name, and {upper} is there twice")
        found.append((upper, parse_endpoint(name, address, lowest_port=lowest_port)))
    if not found:
        raise ConfigError(f"{name}={text!r} has no listener")
    return found


def _check_ports(text: str, bound: Iterable[Endpoint]) -> None:
    """Two listeners may have one port if one is an IPv4 address and the other an IPv6 address."""
    by_port: dict[int, list[Endpoint]] = {}
    for each in bound:
        if each.port:
            by_port.setdefault(each.port, []).append(each)
    for port, same in by_port.items():
        if len(same) > 2 or (len(same) == 2 and sorted(map(_version, same)) != [4, 6]):
            raise ConfigError(
                f"listeners={text!r}: each listener must have a different port, and {port} is there twice"
            )


def _version(endpoint: Endpoint) -> int:
    try:
        return ipaddress.ip_address(endpoint.host).version
    except ValueError:
        return 0


def _check_advertised(text: str, told: Mapping[str, Endpoint], bound: Mapping[str, Endpoint]) -> None:
    for name, endpoint in told.items():
        if endpoint.host in ("", *EVERYWHERE):
            raise ConfigError(f"advertised.listeners={text!r}: clients need an address that they can reach")
        if name not in bound:
            raise ConfigError(f"advertised.listeners={text!r}: {name} is not among the listeners {', '.join(bound)}")


def _protocol(protocols: Mapping[str, SecurityProtocol], name: str) -> SecurityProtocol:
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(f"no security protocol is defined for listener {name}: name it in {PROTOCOLS}")
    return protocol


def _check_settings(listeners: Listeners) -> None:
    """Whether each setting belongs to a listener that goes by it. Raises ConfigError."""
    with_tls, with_sasl = (
        [each for each in listeners.each if getattr(each.protocol, what)] for what in ("has_tls", "has_sasl")
    )
    for each in listeners.each:
        listeners.tls_of(each)
        listeners.oauth_of(each)
    prefixes = {f"listener.name.{each.name.lower()}.": each.protocol for each in listeners.each}
    for name, _ in listeners.configs:
        if name == PROTOCOLS:
            continue
        prefix = next((each for each in prefixes if name.startswith(each)), None)
        if name.startswith("listener.name.") and prefix is None:
            raise ConfigError(
                f"{name} is for a listener that is not there: {', '.join(each.name for each in listeners.each)}"
            )
        is_sasls = name.removeprefix(prefix or "").startswith((OAUTH, PLAIN_USERS))
        having, what, example = (with_sasl, "SASL", "SASL_SSL") if is_sasls else (with_tls, "TLS", "SSL")
        if not having or (prefix is not None and prefixes[prefix] not in {each.protocol for each in having}):
            raise ConfigError(
                f"{name} is for listeners with {what}, and {'none' if not having else 'this one'} has it: "
                f"name one {example}"
            )
