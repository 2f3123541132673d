"""From ``bootstrap.servers`` to the address of a cluster: what a program outside of it knows, as any
Kafka client does.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import call
from raylog.errors import ConfigError
from raylog.types import Endpoint

_PORT_MAX = 65_535


def endpoints_of(bootstrap_servers: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """``"host:9092,host:9093"``, or a list of such, as endpoints. Raises ConfigError."""
    texts = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
    endpoints = []
    for text in filter(None, map(str.strip, texts)):
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            raise ConfigError(f"bootstrap.servers={text!r} is no host:port, as 127.0.0.1:9092")
        endpoints.append(Endpoint(host.removeprefix("[").removesuffix("]"), int(port)))
    if not endpoints:
        raise ConfigError("bootstrap.servers names no broker: give host:port of one or more")
    return tuple(endpoints)


def outside_address(bootstrap_servers: str | Sequence[str], name: str, *, timeout_s: float) -> ClusterAddress:
    """The address of the cluster whose brokers listen there. The first that answers is believed.

    Raises ConfigError for what is no list of brokers, ClusterError and ClientTimeoutError if none
    answers.
    """
    endpoints = endpoints_of(bootstrap_servers)
    unknown = ClusterAddress(name, "", "", endpoints, None)
    reply = call(unknown, requests.metadata([]), timeout_s=timeout_s)
    return ClusterAddress(name, "", str(reply.cluster_id or ""), endpoints, None)
