"""The settings of a broker's listeners, under Kafka's names. A start takes them; they are kept on the
disks of the broker, for its owner's eyes only, and are not among the configs that clients see.

Each of ``ssl.*`` may have ``listener.name.<name>.`` in front, with the listener's name in lower case;
it then goes before the plain one for that listener. ``raylog.wire.tls`` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROTOCOLS = "listener.security.protocol.map"
PREFIX = "listener.name."


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One of them. ``is_secret``: its value appears nowhere."""

    default: str
    meaning: str
    is_secret: bool = False


LISTENER_CONFIGS: Mapping[str, ListenerConfig] = {
    PROTOCOLS: ListenerConfig(
        "each protocol by its own name", "the security protocol of each listener: `NAME:PROTOCOL`, a comma list"
    ),
    "ssl.cipher.suites": ListenerConfig(
        "OpenSSL's", "suites by their standard names; those of TLS 1.3 all three or none, which leaves TLS 1.2"
    ),
    "ssl.client.auth": ListenerConfig(
        "none", "whether clients show a certificate: `none`, `requested` or `required`; both need a truststore"
    ),
    "ssl.enabled.protocols": ListenerConfig("TLSv1.2,TLSv1.3", "the versions that are spoken"),
    "ssl.key.password": ListenerConfig("", "the password of an encrypted private key", is_secret=True),
    "ssl.keystore.certificate.chain": ListenerConfig(
        "", "the certificate and those of its signers in PEM, instead of a file"
    ),
    "ssl.keystore.key": ListenerConfig("", "the private key in PEM, instead of a file", is_secret=True),
    "ssl.keystore.location": ListenerConfig(
        "", "a PEM file of the private key, the certificate and those of its signers; reloaded when it changes"
    ),
    "ssl.keystore.password": ListenerConfig("", "**refused**: a PEM file has none", is_secret=True),
    "ssl.keystore.type": ListenerConfig(
        "JKS", "`PEM`; JKS and PKCS12 are refused, with the commands that convert them"
    ),
    "ssl.principal.mapping.rules": ListenerConfig(
        "DEFAULT",
        "from a certificate's subject to the principal: `RULE:pattern/replacement/[LU]`, `DEFAULT`, a comma list",
    ),
    "ssl.protocol": ListenerConfig("TLSv1.3", "the highest version that is spoken"),
    "ssl.truststore.certificates": ListenerConfig("", "certificates in PEM that sign clients' ones, instead of a file"),
    "ssl.truststore.location": ListenerConfig(
        "", "a PEM file of the certificates that sign clients' ones; reloaded when it changes"
    ),
    "ssl.truststore.password": ListenerConfig("", "**refused**: a PEM file has none", is_secret=True),
    "ssl.truststore.type": ListenerConfig("JKS", "`PEM`"),
}


def is_listener_config(name: str) -> bool:
    """Whether the name is one of these, for all listeners or for one."""
    if name.startswith(PREFIX):
        _, _, rest = name.removeprefix(PREFIX).partition(".")
        return rest != PROTOCOLS and rest in LISTENER_CONFIGS
    return name in LISTENER_CONFIGS
