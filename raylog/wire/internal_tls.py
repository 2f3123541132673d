"""TLS on the links between a cluster's own processes: its Brokers, hosts of replicas, controllers and
the native clients inside of it.

Such a link has TLS if the secret that is proven on it is a ``SecretInsideTls``. Both ends go by that
value: a ``Server`` that has it speaks nothing but TLS, and ``Connection.open`` and ``dial`` speak TLS
before they shake hands. So a link cannot have TLS at one end only by mistake, and a certificate never
takes the place of the secret.

The settings are those of a listener whose name is INTERNAL: ``ssl.*``, or
``listener.name.internal.ssl.*``, which go before. A process that dials trusts ``ssl.truststore.*``,
as Kafka's brokers do among themselves. It shows its own certificate where ``ssl.client.auth`` asks
for one.

A process of the cluster reads the files, and reads them again where they have changed. A value that is
pickled, inside the address of a cluster, holds their texts instead: the authorities, and the
certificate and key only where links ask for certificates.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from raylog.errors import ConfigError
from raylog.kafka.context import INTERNAL
from raylog.security.protocols import SecurityProtocol
from raylog.wire.client_security import ClientSecurity
from raylog.wire.file_watch import Stamp, stamp_of
from raylog.wire.tls import TlsConfig, TlsSettings, tidy

logger = logging.getLogger("raylog.wire")

IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_CERTIFICATE: Final = re.compile(
    r"-----BEGIN ((?:X509 |TRUSTED )?CERTIFICATE)-----[A-Za-z0-9+/=\s]+-----END \1-----", re.ASCII
)
_Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SecretInsideTls:
    """The cluster's secret, and how its links have TLS: ``configs``, the settings of a process that
    has the files, or ``carried``, what they said.
    """

    secret: bytes = field(repr=False)
    configs: _Settings = field(default=(), repr=False)
    carried: ClientSecurity | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        assert bool(self.configs) != (self.carried is not None), "either the settings or what they said"

    def __reduce__(self) -> Any:
        return SecretInsideTls, (self.secret, (), self.security())

    def without_files(self) -> SecretInsideTls:
        """The same for a process that cannot read the files. Raises ConfigError."""
        return SecretInsideTls(self.secret, (), self.security())

    def server(self) -> TlsConfig:
        """What TLS needs at the end that listens. Raises ConfigError."""
        assert self.configs, "only a process that has the files listens"
        return TlsConfig.of(dict(self.configs), INTERNAL)

    def security(self) -> ClientSecurity:
        """What TLS needs at the end that dials. Files that have changed are read again; if they do
        not fit, the log says so and what they said before holds. Raises ConfigError if nothing does.
        """
        return self.carried if self.carried is not None else _security(self.configs)


Secret = str | bytes | SecretInsideTls
"""What the two ends of a link prove to each other."""


def secret_inside(secret: str, configs: Mapping[str, str] | _Settings) -> bytes | SecretInsideTls:
    """The secret of a cluster whose links have TLS by these settings; without any, plain ones."""
    settings = tuple(sorted(dict(configs).items()))
    return SecretInsideTls(secret.encode(), settings) if settings else secret.encode()


def secret_bytes(secret: Secret) -> bytes:
    """The secret itself."""
    if isinstance(secret, SecretInsideTls):
        return secret.secret
    return secret.encode() if isinstance(secret, str) else secret


def security_of_link(secret: Secret | None) -> ClientSecurity | None:
    """The dialing end's TLS; None for a plain link. Raises ConfigError."""
    return secret.security() if isinstance(secret, SecretInsideTls) else None


# ------------------------------------------------------------------ reading

_read: Final[dict[_Settings, tuple[Stamp, ClientSecurity]]] = {}
"""What the files said last, by the settings that name them."""


def _security(configs: _Settings) -> ClientSecurity:
    tls = TlsConfig.of(dict(configs), INTERNAL)
    found, known = stamp_of(tls.files), _read.get(configs)
    if known is not None and known[0] == found:
        return known[1]
    try:
        said = _said(dict(configs), tls)
    except ConfigError as error:
        if known is None:
            raise
        logger.error("links inside the cluster keep their certificates: %s", error)
        said = known[1]
    _read[configs] = (found, said)
    return said


def _said(configs: Mapping[str, str], tls: TlsConfig) -> ClientSecurity:
    settings = TlsSettings(configs, INTERNAL)
    if tls.truststore is None and tls.trusted is None:
        raise ConfigError(
            "links inside the cluster have no authorities: set ssl.truststore.location, or "
            "ssl.truststore.certificates, to who signs the certificates of the cluster's own processes"
        )
    trusted = _certificates(_text(tls.truststore) if tls.truststore is not None else tls.trusted or "")
    if not trusted:
        raise ConfigError(f"{tls.truststore or 'ssl.truststore.certificates'} does not hold certificates in PEM")
    checked = configs.get(settings.name(IDENTIFICATION), "https").strip().lower()
    if checked not in ("https", "", "none"):
        raise ConfigError(f'{settings.name(IDENTIFICATION)}={checked} is neither https nor ""')
    chain = key = None
    if tls.client_auth != "none":
        both = _text(tls.keystore) if tls.keystore is not None else None
        chain = _certificates(both if both is not None else tls.chain or "")
        key = both if both is not None else tidy(tls.key)
    security = ClientSecurity(
        SecurityProtocol.SSL,
        trusted=trusted,
        chain=chain,
        key=key,
        key_password=tls.key_password if key is not None else None,
        checks_host_name=checked == "https",
        versions=tuple(sorted(tls.versions)),
        suites=tls.suites,
    )
    security.context()  # refuses what does not fit
    return security


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"links inside the cluster: {path} cannot be read: {error.strerror}") from None


def _certificates(text: str) -> str:
    """The certificates in a text, and nothing else of it, as PEM."""
    return "".join(tidy(found.group(0)) for found in _CERTIFICATE.finditer(text))


# ------------------------------------------------------------------ checking


def check_links(configs: _Settings, host: str | None) -> None:
    """Whether two processes at ``host`` that have these settings trust each other; None: whatever the
    host. Reads the files. Raises ConfigError.
    """
    if not configs:
        return
    inside = SecretInsideTls(b"", configs)
    security = inside.security()
    if host is None:
        security = replace(security, checks_host_name=False)
    listening, dialing = inside.server().context(), security.context()
    assert dialing is not None, "links inside have TLS"
    answers, questions = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        dialing.wrap_bio(answers, questions, server_hostname=host),
        listening.wrap_bio(questions, answers, server_side=True),
    ]
    try:
        for _ in range(4):  # more than the handshake has flights
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error.reason or str(error)
        raise ConfigError(
            f"links inside the cluster would fail{f' at {host}' if host else ''}: {why}: ssl.truststore has to hold the "
            f"authority that signed the certificate of ssl.keystore"
            f"{f', and that certificate has to name {host}' if host else ''}"
        ) from None
