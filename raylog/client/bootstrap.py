"""From ``bootstrap.servers`` to the address of a cluster: what a program outside of it knows, as any
Kafka client does.

Who also has the cluster's secret, and reaches the processes of the cluster, may talk to them
directly: ``inside_address``.

An address without a name may be a broker's listener or the head of a Ray: ``why_no_listener`` asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from raylog.client.background import background
from raylog.client.config import AdminConfig
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.links.link import ClusterLink
from raylog.client.sync import call
from raylog.errors import ClientTimeoutError, ConfigError, RaylogError, SslAuthenticationError
from raylog.kafka.context import CONTROLLER_WITH_TLS
from raylog.security.protocols import SecurityProtocol
from raylog.types import Endpoint
from raylog.wire.client_security import ClientSecurity
from raylog.wire.connection import Connection
from raylog.wire.handshake import HandshakeError
from raylog.wire.internal_tls import Secret, SecretInsideTls
from raylog.wire.listeners import parse_endpoint

BOOTSTRAP_SERVERS = "bootstrap.servers"
LISTENER_S = 3.0  # for an address that may be a listener, to answer ApiVersions
_REACHED_S = 3.0  # for a process of the cluster to accept a connection and prove that it belongs there

logger = logging.getLogger("raylog.connect")


def endpoints_of(bootstrap_servers: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """``"host:9092,host:9093"``, or a list of such, as endpoints. Raises ConfigError."""
    texts = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
    endpoints = tuple(map(_endpoint, filter(None, map(str.strip, texts))))
    if any(not each.host for each in endpoints):
        raise ConfigError(f"bootstrap.servers={bootstrap_servers!r} is no host:port: a host is missing")
    if not endpoints:
        raise ConfigError("bootstrap.servers names no broker: give host:port of one or more")
    return endpoints


def _endpoint(text: str) -> Endpoint:
    protocol, has_protocol, address = text.rpartition("://")
    if has_protocol and protocol.upper() not in SecurityProtocol.__members__:
        raise ConfigError(f"{BOOTSTRAP_SERVERS}={text!r}: give host:port")
    if has_protocol and protocol.upper() != "PLAINTEXT":
        raise ConfigError(
            f"{BOOTSTRAP_SERVERS}={text!r}: give host:port, and security.protocol={protocol.upper()} beside it"
        )
    return parse_endpoint(BOOTSTRAP_SERVERS, address, lowest_port=1)


def outside_address(
    bootstrap_servers: str | Sequence[str], name: str, *, timeout_s: float, security: ClientSecurity | None = None
) -> ClusterAddress:
    """The address of the cluster whose brokers listen there. The first that answers is believed.

    Raises ConfigError for what is no list of brokers, ClusterError and ClientTimeoutError if none
    answers; SslAuthenticationError and SaslAuthenticationFailedError.
    """
    endpoints = endpoints_of(bootstrap_servers)
    unknown = ClusterAddress(name, "", "", endpoints, None, security)
    reply = call(unknown, requests.metadata([]), timeout_s=timeout_s)
    return replace(unknown, cluster_id=str(reply.cluster_id or ""))


def inside_address(outside: ClusterAddress, secret: str, *, timeout_s: float) -> ClusterAddress:
    """The address for who has the secret, if every process of the cluster can be reached; else
    ``outside``. The logger "raylog.connect" says which, and why.

    Raises ConfigError for a secret that is not the cluster's.
    """
    quorum = call(outside, requests.describe_quorum(), timeout_s=timeout_s)
    controllers = tuple(Endpoint(each.host, int(each.port)) for node in quorum.nodes for each in node.listeners)
    if not controllers:
        logger.info("Going through the listeners of the brokers: they do not say where the controllers are")
        return outside
    proof: Secret = secret.encode()
    if any(each.name == CONTROLLER_WITH_TLS for node in quorum.nodes for each in node.listeners):
        if outside.security is None or not outside.security.protocol.has_tls:
            logger.info(
                "Going through the listeners of the brokers: the links inside have TLS, and this client has no "
                "authorities to trust"
            )
            return outside
        proof = SecretInsideTls(secret.encode(), (), _without_sasl(outside.security))
    inside = replace(outside, bootstrap=controllers, secret=proof, security=None)
    try:
        background().run(_reach_all(inside), timeout_s + _REACHED_S)
    except HandshakeError as error:
        if isinstance(error.__cause__, SslAuthenticationError):
            logger.info("Going through the listeners of the brokers: %s", error)
            return outside
        raise ConfigError(
            f"the secret is not that of cluster {outside.cluster_id} ({error}): copy the file cluster.secret of one of its disks"
        ) from error
    except RaylogError as error:
        logger.info("Going through the listeners of the brokers: %s", error)
        return outside
    logger.info("Going to the cluster's processes directly")
    return inside


def _without_sasl(security: ClientSecurity) -> ClientSecurity:
    """Its TLS only."""
    return replace(security, protocol=SecurityProtocol.SSL, mechanism=None, user="", password="")


def why_no_listener(endpoint: Endpoint) -> RaylogError | None:
    """None if a listener of Kafka's protocol answers there, else what came instead, within three
    seconds. One with TLS does not answer.
    """
    return background().run(_ask_for_versions(endpoint))


async def _ask_for_versions(endpoint: Endpoint) -> RaylogError | None:
    try:
        async with asyncio.timeout(LISTENER_S):
            connection = await Connection.open(endpoint, secret=None, cluster_id="")
            try:
                await connection.request(requests.api_versions(), timeout_ms=None)
            finally:
                connection.abort()
    except TimeoutError:
        return ClientTimeoutError(f"{endpoint} did not answer Kafka's ApiVersions within {LISTENER_S:g} s")
    except RaylogError as error:
        return error
    return None


async def _reach_all(inside: ClusterAddress) -> None:
    """Connect to the controllers and to every process of which they tell. Raises what the first says
    that cannot be reached.
    """
    config = AdminConfig.parse({"socket.connection.setup.timeout.ms": _REACHED_S * 1000})
    link = ClusterLink(inside, config)
    try:
        await _connect(link, inside.bootstrap)
        await link.metadata.refresh([], timeout_ms=_REACHED_S * 1000)
        await _connect(link, link.metadata.nodes.values())
    finally:
        await link.close()


async def _connect(link: ClusterLink, endpoints: Iterable[Endpoint]) -> None:
    await asyncio.gather(*(link.connections.get(each) for each in endpoints))
