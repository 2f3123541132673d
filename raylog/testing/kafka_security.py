"""How clients get in at a test broker that is secure: its listeners, its users, and what each client
has to be told.

With TLS there is an authority for this one broker. Its certificate, and those of clients, are files in
a temporary folder, because clients take them as paths; they last a day and are gone at the end. What
the brokers need stays in memory.
"""

from __future__ import annotations

import datetime
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from raylog.disks.certificate_authority import CertificateAuthority
from raylog.errors import ConfigError
from raylog.extras import need
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.security.protocols import SecurityProtocol
from raylog.wire.listeners import Listeners, listeners_of

CLIENTS: Final = ("confluent-kafka", "kafka-python")
MECHANISM: Final = "SCRAM-SHA-256"
_DAYS: Final = 1
_KAFKA_PYTHON: Final = {
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
"""Its names for what librdkafka calls so; the others have _ for the dot."""


class KafkaSecurity:
    """``users`` are names with passwords, or names alone, which get generated ones. Where the
    protocol is SSL each has a certificate instead, and no password. ``close`` removes the files.

    Raises ConfigError, and MissingExtraError for TLS without the package that makes certificates.
    """

    def __init__(self, protocol: str, users: Mapping[str, str] | Iterable[str] = ()) -> None:
        if protocol.upper() not in SecurityProtocol.__members__:
            raise ConfigError(f"security={protocol!r}: choose from {', '.join(SecurityProtocol.__members__)}")
        if isinstance(users, str):
            raise ConfigError(f'users={users!r}: give names and passwords: {{"{users}": "a password"}}')
        self.protocol = SecurityProtocol[protocol.upper()]
        names = list(users)
        if self.protocol.has_sasl and not names:
            raise ConfigError(f"security={protocol!r} needs users, who may get in")
        if self.protocol is SecurityProtocol.PLAINTEXT and names:
            raise ConfigError("users need security: SASL_SSL, SASL_PLAINTEXT or SSL")
        if self.protocol is SecurityProtocol.SSL and isinstance(users, Mapping):
            raise ConfigError(f"users of SSL have certificates and no passwords: give names, {names}")
        if self.protocol.has_tls:
            need("cryptography", f"a test broker with {self.protocol.value}")
        given = users if isinstance(users, Mapping) else {}
        self.passwords = {name: given.get(name) or secrets.token_urlsafe(16) for name in names}
        self._folder: Path | None = None
        self._now = datetime.datetime.now(datetime.UTC)

    def __repr__(self) -> str:
        return f"<{self.protocol.value} for {', '.join(self.passwords) or 'anybody'}>"

    def listeners(self) -> Listeners:
        """Those of each broker, on any free port of 127.0.0.1. Makes the files that clients need."""
        settings = self._tls() if self.protocol.has_tls else {}
        found = listeners_of(f"{self.protocol.value}://127.0.0.1:0", None, settings)
        assert found is not None, "a listener is given"
        return found

    def _tls(self) -> dict[str, str]:
        self._folder = Path(tempfile.mkdtemp(prefix="raylog-"))
        authority = CertificateAuthority.new(self._now, days=_DAYS)
        (self._folder / "authority.pem").write_text(authority.certificate)
        made = authority.server("raylog test broker", ["localhost", "127.0.0.1"], self._now, days=_DAYS)
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": made.key,
            "ssl.keystore.certificate.chain": made.certificate,
        }
        if self.protocol.has_sasl or not self.passwords:
            return settings
        for number, name in enumerate(self.passwords):
            of_client = authority.client(name, self._now, days=_DAYS)
            (self._folder / f"client-{number}.pem").write_text(of_client.certificate)
            (self._folder / f"client-{number}.key").write_text(of_client.key)
        return settings | {
            "ssl.client.auth": "required",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.certificate,
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        }

    def options(self, bootstrap: str, user: str | None, client: str) -> dict[str, str]:
        """What a client is told. Raises ConfigError for a user, or a client, that is none."""
        if client not in CLIENTS:
            raise ConfigError(f"client={client!r}: choose from {', '.join(CLIENTS)}")
        if user is None and self.passwords:
            raise ConfigError(f"client_options() needs a user: {', '.join(self.passwords)}")
        if user is not None and user not in self.passwords:
            raise ConfigError(f"there is no user {user!r}; broker(users=…) says who there is")
        options = {"bootstrap.servers": bootstrap, "security.protocol": self.protocol.value}
        if self._folder is not None:
            options["ssl.ca.location"] = str(self._folder / "authority.pem")
        if user is not None and self.protocol.has_sasl:
            options |= {"sasl.mechanism": MECHANISM, "sasl.username": user, "sasl.password": self.passwords[user]}
        elif user is not None:
            number = list(self.passwords).index(user)
            options["ssl.certificate.location"] = str(self._folder_of_files / f"client-{number}.pem")
            options["ssl.key.location"] = str(self._folder_of_files / f"client-{number}.key")
        if client == "confluent-kafka":
            return options
        return {_KAFKA_PYTHON.get(name, name.replace(".", "_")): value for name, value in options.items()}

    @property
    def _folder_of_files(self) -> Path:
        assert self._folder is not None, "clients have certificates where there is TLS"
        return self._folder

    def close(self) -> None:
        """Idempotent."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def allowed(user: str, operation: str, *, topic: str | None, group: str | None, prefixed: bool) -> AclBinding:
    """The ACL by which the user may do that. Raises ConfigError."""
    found = {each.name.replace("_", ""): each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)}
    wanted = found.get(operation.upper().replace("_", ""))
    if wanted is None:
        raise ConfigError(f"there is no operation {operation!r}: choose from {', '.join(found)}")
    if (topic is None) == (group is None):
        raise ConfigError("allow() is about a topic or a group: give one of them")
    resource, name = (Resource.GROUP, group) if topic is None else (Resource.TOPIC, topic)
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return AclBinding(resource, name or "", pattern, f"User:{user}", "*", wanted, PermissionType.ALLOW)
