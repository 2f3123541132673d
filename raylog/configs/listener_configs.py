"""The settings of a broker's listeners, under Kafka's names. A start takes them; they are kept on the
disks of the broker, for its owner's eyes only, and are not among the configs that clients see.

Each of ``plain.*``, ``sasl.oauthbearer.*`` and ``ssl.*`` may have ``listener.name.<name>.`` in front, with the listener's name in
lower case; it then goes before the plain one for that listener. ``raylog.wire.oauth_config``, ``raylog.wire.tls`` and
``plain_users`` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.configs.properties import resolved
from raylog.errors import ConfigError
from raylog.security.jaas import JaasError
from raylog.security.plain_users import PlainUsers

PROTOCOLS = "listener.security.protocol.map"
PREFIX = "listener.name."
PLAIN_USERS = "plain.sasl.jaas.config"


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
    PLAIN_USERS: ListenerConfig(
        "those of `raylog users`",
        'users of PLAIN as Kafka\'s PlainLoginModule has them, `user_NAME="PASSWORD"`; files that `${file:…}` names are read '
        "again when they change",
        is_secret=True,
    ),
    "sasl.oauthbearer.clock.skew.seconds": ListenerConfig(
        "30", "how far the clocks of the issuer and of the broker may differ"
    ),
    "sasl.oauthbearer.expected.audience": ListenerConfig(
        "", "whom a token has to be for, one of a comma list; empty: anybody, with a warning"
    ),
    "sasl.oauthbearer.expected.issuer": ListenerConfig("", "who has to have issued a token; empty: any issuer"),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ListenerConfig("3600000", "how often the keys are read"),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ListenerConfig(
        "10000", "the longest wait after keys could not be read"
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ListenerConfig(
        "100", "the first wait after keys could not be read; it doubles each time"
    ),
    "sasl.oauthbearer.jwks.endpoint.truststore.location": ListenerConfig(
        "the system's authorities", "a PEM file of the authorities that the URL of the keys is trusted by"
    ),
    "sasl.oauthbearer.jwks.endpoint.url": ListenerConfig(
        "", "where the issuer's keys are: `https://…` or `file:///…`; needs `raylog[oauth]`"
    ),
    "sasl.oauthbearer.ray.token.enable": ListenerConfig(
        "true", "whether a client that shows the Ray cluster's own token is `User:ray`"
    ),
    "sasl.oauthbearer.scope.claim.name": ListenerConfig(
        "scope", "the claim that holds a token's scopes, which have to be texts, none of them empty or repeated"
    ),
    "sasl.oauthbearer.sub.claim.name": ListenerConfig("sub", "the claim that holds the user's name"),
    "sasl.oauthbearer.unsecured.jwt.enable": ListenerConfig(
        "false", "whether tokens that nobody has signed are taken: **anybody can be any user**; for tests"
    ),
    "ssl.allow.dn.changes": ListenerConfig(
        "false", "whether a certificate that is set while the broker runs may have another subject (KIP-978)"
    ),
    "ssl.allow.san.changes": ListenerConfig(
        "false", "whether one that is set while the broker runs may lack alternative names of the one before"
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


def names_plain_users(name: str) -> bool:
    """Whether it is the setting of a listener's own users of PLAIN."""
    return is_listener_config(name) and (name == PLAIN_USERS or name.endswith(f".{PLAIN_USERS}"))


def plain_users(name: str, text: str) -> PlainUsers:
    """The users that the setting of that name and text says now. Reads the files that it refers to.
    Raises ConfigError, which holds no password.
    """
    try:
        return PlainUsers.of(resolved(name, text))
    except JaasError as error:
        raise ConfigError(f"{name}: {error}") from None


def check_plain_users(settings: Mapping[str, str]) -> None:
    """Whether the settings that name users of PLAIN do. Raises ConfigError."""
    for name, text in settings.items():
        if names_plain_users(name):
            plain_users(name, text)
