"""Which listeners are open: whoever can connect to one may do everything, unless ACLs say otherwise.

A listener is open if its clients need not authenticate: PLAINTEXT, and SSL without required
certificates. On a loopback address it is open to the programs of its machine, which is what a
developer wants. Anywhere else a start refuses it, unless it is told that this is meant.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import replace

from raylog.errors import ConfigError
from raylog.types import Endpoint
from raylog.wire.listeners import KAFKA_PORT, Listeners, NamedListener, endpoint_text, plaintext

FLAG = "--insecure (insecure=True of raylog.init)"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach that address, or all addresses of that name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)


def default_listeners(host: str) -> Listeners:
    """Those of a Broker that was given none: Kafka's port on a loopback address, and none on any
    other.
    """
    return plaintext(Endpoint(host, KAFKA_PORT)) if is_loopback(host) else Listeners()


def is_open(listeners: Listeners, listener: NamedListener) -> bool:
    """Whether its clients need not authenticate."""
    if listener.protocol.has_sasl:
        return False
    tls = listeners.tls_of(listener)
    return tls is None or tls.client_auth != "required"


def open_listeners(listeners: Listeners, *, on_loopback: bool) -> list[str]:
    """The open ones that are bound to a loopback address, or to any other, as ``NAME://HOST:PORT``."""
    return [
        f"{each.name}://{endpoint_text(each.bind)}"
        for each in listeners.each
        if is_open(listeners, each) and is_loopback(each.bind.host) == on_loopback
    ]


def as_bound(listeners: Listeners, told: Iterable[str]) -> Listeners:
    """These with the ports that they got. ``told``: where clients reach them, each as
    ``NAME://HOST:PORT``; a listener that is not among them, or is advertised elsewhere, stays as it is.
    """
    ports = {each.partition("://")[0]: int(each.rpartition(":")[2]) for each in told}
    each = (
        replace(one, bind=Endpoint(one.bind.host, ports.get(one.name, one.bind.port)))
        if one.advertised is None
        else one
        for one in listeners.each
    )
    return replace(listeners, each=tuple(each))


def refuse_open(each: Iterable[Listeners], *, is_insecure: bool) -> list[str]:
    """What to say of listeners that are to be started.

    Raises ConfigError for one that others than this machine's programs reach, unless that is said.
    """
    each = list(each)
    outside = sorted({name for listeners in each for name in open_listeners(listeners, on_loopback=False)})
    if outside and not is_insecure:
        raise ConfigError(
            f"{', '.join(outside)}: everyone who can connect there could do everything, because clients need not authenticate. "
            "Bind it to 127.0.0.1; or use SASL_SSL (`raylog up --secure` sets it up) or SSL with ssl.client.auth=required; "
            f"or, if the network itself keeps strangers out, give {FLAG}"
        )
    if outside:
        return [f"--insecure: everyone who can connect to {', '.join(outside)} may read, write and delete everything"]
    here = sorted({name for listeners in each for name in open_listeners(listeners, on_loopback=True)})
    return [f"Every program of this machine may do everything at {', '.join(here)}"] if here else []
