"""Whether the links between a cluster's own processes have TLS, under Kafka's names: a start takes
``security.inter.broker.protocol`` and the ``ssl.*`` that go with it. The disks keep them, for their
owner's eyes only, and they are not among the configs that clients see.

The links have the settings of a listener whose name is INTERNAL. So ``listener.name.internal.ssl.*``
go before ``ssl.*``.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.configs.listener_configs import LISTENER_CONFIGS, PREFIX, ListenerConfig
from raylog.errors import ConfigError

PROTOCOL = "security.inter.broker.protocol"
IDENTIFICATION = "ssl.endpoint.identification.algorithm"
OF_LINKS = f"{PREFIX}internal."

LINK_CONFIGS: Mapping[str, ListenerConfig] = {
    PROTOCOL: ListenerConfig("PLAINTEXT", "`SSL`: links between the cluster's own processes have TLS"),
    IDENTIFICATION: ListenerConfig(
        "https", "of these links: whether a certificate has to name the host that is connected to; empty: it need not"
    ),
}


def take_link_configs(said: dict[str, str], *, has_such_listener: bool) -> dict[str, str] | None:
    """What a start says of links, by name without the protocol: empty for plain ones, None if it says
    nothing. What is of links alone is taken out of ``said``. ``has_such_listener``: a listener of
    clients has the name INTERNAL, too. Raises ConfigError, which begins with the name.
    """
    if PROTOCOL not in said:
        return None
    protocol = said.pop(PROTOCOL).strip().upper()
    if protocol == "PLAINTEXT":
        return {}
    if protocol != "SSL":
        raise ConfigError(
            f"{PROTOCOL}={protocol} is refused: links inside have PLAINTEXT or SSL, and processes prove inside of either "
            "that they know cluster.secret"
        )
    known = {name for name in LISTENER_CONFIGS if name.startswith("ssl.")} | {IDENTIFICATION}
    found = {name: value for name, value in said.items() if name.removeprefix(OF_LINKS) in known}
    for name in found:
        if name.endswith(IDENTIFICATION) or (name.startswith(OF_LINKS) and not has_such_listener):
            del said[name]
    if not found:
        raise ConfigError(f"{PROTOCOL}={protocol} needs ssl.keystore.location and ssl.truststore.location")
    return found
