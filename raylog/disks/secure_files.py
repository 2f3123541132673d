"""The files by which ``raylog up --secure`` makes a cluster secure, in the folder ``security`` beside its
disks::

    authority.key      the private key of the cluster's own certificate authority
    authority.pem      its certificate: what clients trust
    broker.pem         the brokers' private key and certificate, for the names and addresses of this machine
    admin.password     the password of the super user
    client.properties  all that a client needs, as Java's clients and ``--command-config`` read it

With ``is_mutual`` clients authenticate by certificates of the same authority. Then there is no password,
and the super user has a certificate instead, as ``raylog.disks.node_certificates`` makes it::

    clients/admin/client.pem   the super user's private key and certificate

``raylog certificates`` makes those of other clients in this folder.

All of them but ``authority.pem`` can be read by their owner only. What is there is kept. The brokers'
certificate is made anew where it does not name every host, or ends soon; running brokers notice.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.disks.certificate_authority import CertificateAuthority, general_name
from raylog.disks.node_certificates import CertificateFolder
from raylog.disks.small_files import replace_file
from raylog.errors import ConfigError

USER: Final = "admin"
AUTHORITY_DAYS: Final = 3_650
BROKER_DAYS: Final = 397
RENEWED_DAYS: Final = 90  # before the end
_PRIVATE: Final = 0o600


@dataclass(frozen=True, slots=True)
class SecureFiles:
    """Where they are. ``is_mutual``: clients show certificates instead of passwords."""

    folder: Path
    is_mutual: bool = False

    @property
    def protocol(self) -> str:
        """The security protocol of the listeners."""
        return "SSL" if self.is_mutual else "SASL_SSL"

    @property
    def authority_key(self) -> Path:
        return self.folder / "authority.key"

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def broker(self) -> Path:
        return self.folder / "broker.pem"

    @property
    def password(self) -> Path:
        return self.folder / "admin.password"

    @property
    def client(self) -> Path:
        return self.folder / "client.properties"

    @property
    def client_certificate(self) -> Path:
        """The super user's, with its private key."""
        return self.folder / "clients" / USER / "client.pem"

    def make(self, hosts: Sequence[str], now: datetime.datetime) -> None:
        """Those that are missing, for brokers at these names and addresses. Raises ConfigError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            if not self.authority.exists() or not self.authority_key.exists():
                self._make_authority(now)
            if not self._broker_serves(hosts, now):
                self._make_broker(hosts, now)
            if self.is_mutual:
                CertificateFolder(self.folder).make([], [USER], now)
            elif not self.password.exists():
                replace_file(self.password, secrets.token_urlsafe(24) + "\n", mode=_PRIVATE)
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}") from None
        except ValueError as error:  # cryptography's, of a file
            raise ConfigError(
                f"{self.folder}: {error}: remove what is damaged, and `raylog up --secure` makes it anew"
            ) from None

    def read_password(self) -> str:
        """Raises ConfigError."""
        try:
            return self.password.read_text(encoding="utf-8").removesuffix("\n")
        except OSError as error:
            raise ConfigError(f"{self.password}: {error.strerror}") from None

    def write_client(self, bootstrap_servers: str) -> None:
        """The file of a client that is the super user."""
        lines = {
            "bootstrap.servers": bootstrap_servers,
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
        }
        if self.is_mutual:
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.client_certificate)}
        else:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
            proof = f'{module} required username="{USER}" password="{self.read_password()}";'
            lines |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": proof}
        replace_file(self.client, "".join(f"{name}={value}\n" for name, value in lines.items()), mode=_PRIVATE)

    # ------------------------------------------------------------------ certificates

    def _make_authority(self, now: datetime.datetime) -> None:
        made = CertificateAuthority.new(now, days=AUTHORITY_DAYS)
        replace_file(self.authority_key, made.key, mode=_PRIVATE)
        replace_file(self.authority, made.certificate, mode=0o644)

    def _make_broker(self, hosts: Sequence[str], now: datetime.datetime) -> None:
        authority = CertificateAuthority(self.authority_key.read_text(), self.authority.read_text())
        made = authority.server("raylog broker", hosts, now, days=BROKER_DAYS)
        replace_file(self.broker, made.key + made.certificate, mode=_PRIVATE)

    def _broker_serves(self, hosts: Sequence[str], now: datetime.datetime) -> bool:
        """Whether there is a certificate that the authority signed, names these hosts and lasts."""
        from cryptography import x509

        if not self.broker.exists():
            return False
        authority = x509.load_pem_x509_certificate(self.authority.read_bytes())
        certificate = x509.load_pem_x509_certificate(self.broker.read_bytes())
        if certificate.not_valid_after_utc < now + datetime.timedelta(days=RENEWED_DAYS):
            return False
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if any(general_name(host) not in names for host in hosts):
            return False
        return authority.subject == certificate.issuer
