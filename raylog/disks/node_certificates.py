"""Certificates for the nodes of a Ray, and for clients, by an authority of their own: what
``raylog certificates`` makes.

::

    authority.key                 the authority's private key: it stays in this folder
    authority.pem                 its certificate: what all nodes trust, and clients
    nodes/HOST/node.pem           a node's private key and certificate, for its names and addresses
    nodes/HOST/authority.pem      the authority's certificate once more, so that the folder is all a node needs
    nodes/HOST/server.properties  what the node says: TLS on links inside, by these two files
    clients/NAME/…                the same for a client: ``client.pem``, ``authority.pem``, ``client.properties``

Only their owner can read these folders and files; ``authority.pem`` may be read by others. A
certificate is made anew, by a new key, where it ends within ``RENEWED_DAYS``, where this authority has
not signed it, and where it shall name other hosts. Else it is kept. The authority's own certificate is
made anew, by the same key, before it would end earlier than what it signs. A ``server.properties`` is
kept as it is, since somebody may have added to it, unless told where the node has its folder.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from raylog.disks.certificate_authority import CertificateAuthority, Signed, general_name
from raylog.disks.small_files import replace_file
from raylog.errors import ConfigError
from raylog.wire.listeners import EVERYWHERE

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY_DAYS: Final = 3_650
DAYS: Final = 397
RENEWED_DAYS: Final = 30  # before the end
_PRIVATE: Final = 0o600
_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
Change = Literal["new", "renewed", "kept"]


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """The certificate of a node or a client. ``names``: the node's hosts, or the client's name."""

    names: tuple[str, ...]
    folder: Path
    pem: Path
    properties: Path
    ends: datetime.datetime
    change: Change


@dataclass(frozen=True, slots=True)
class CertificateFolder:
    """Where they are."""

    folder: Path

    @property
    def authority_key(self) -> Path:
        return self.folder / "authority.key"

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    def make(
        self,
        nodes: Sequence[Sequence[str]],
        clients: Sequence[str],
        now: datetime.datetime,
        *,
        days: int = DAYS,
        placed_at: Path | None = None,
    ) -> tuple[list[HeldCertificate], list[HeldCertificate]]:
        """Those of these nodes, each with its hosts, and of these clients, if they are missing; and all
        that were made before anew, if they end soon. Returns the nodes and the clients, by name.

        ``placed_at``: where a node has the files of its own folder; None: here. Raises ConfigError.
        """
        told = {node[0]: tuple(dict.fromkeys(node)) for node in (_checked_hosts(each) for each in nodes)}
        for client in clients:
            if not _NAME.fullmatch(client):
                raise ConfigError(f"{client!r} is no name of a client: letters, digits, '.', '_' and '-' make one")
        known = self._known("nodes")
        wanted = {name: told.get(name) or self._hosts_of(name) for name in sorted({*known, *told})}
        of_clients = sorted({*self._known("clients"), *clients})
        if not wanted and not of_clients:
            raise ConfigError(f"{self.folder} has no certificates yet: name its nodes by --node HOST")
        try:
            for folder in (self.folder, self.folder / "nodes", self.folder / "clients"):
                _private_folder(folder)
            authority = self._authority(now, days)
            return (
                [self._node(authority, name, hosts, now, days, placed_at) for name, hosts in wanted.items()],
                [self._client(authority, name, now, days) for name in of_clients],
            )
        except OSError as error:
            raise ConfigError(f"{error.filename or self.folder}: {error.strerror}") from None
        except ValueError as error:  # cryptography's, of a file
            raise ConfigError(
                f"{self.folder}: {error}: remove the file that is damaged, and the same command makes it anew"
            ) from None

    def authority_ends(self) -> datetime.datetime:
        return _certificate(self.authority).not_valid_after_utc

    # ------------------------------------------------------------------ one each

    def _authority(self, now: datetime.datetime, days: int) -> CertificateAuthority:
        has_key, has_certificate = self.authority_key.exists(), self.authority.exists()
        if not has_key and not has_certificate and not self._known("nodes") and not self._known("clients"):
            made = CertificateAuthority.new(now, days=AUTHORITY_DAYS)
            replace_file(self.authority_key, made.key, mode=_PRIVATE)
            replace_file(self.authority, made.certificate, mode=0o644)
            return made
        if not has_key or not has_certificate:
            missing = self.authority if has_key else self.authority_key
            raise ConfigError(f"{missing} is missing: put it back, since all nodes trust what it belongs to")
        found = CertificateAuthority(self.authority_key.read_text(), self.authority.read_text())
        if self.authority_ends() < now + datetime.timedelta(days=days + RENEWED_DAYS):
            found = found.renewed(now, days=AUTHORITY_DAYS)
            replace_file(self.authority, found.certificate, mode=0o644)
        return found

    def _node(
        self,
        authority: CertificateAuthority,
        name: str,
        hosts: Sequence[str],
        now: datetime.datetime,
        days: int,
        placed_at: Path | None,
    ) -> HeldCertificate:
        folder = self.folder / "nodes" / name
        pem, properties = folder / "node.pem", folder / "server.properties"
        _private_folder(folder)
        change = self._change(pem, now, hosts)
        if change != "kept":
            _write(pem, authority.node(f"raylog node {name}"[:64], hosts, now, days=days))
        self._copy_authority(folder)
        if placed_at is not None or not properties.exists():
            at = placed_at or folder
            _write_properties(properties, {"security.inter.broker.protocol": "SSL", **_stores(at / pem.name, at)})
        return HeldCertificate(tuple(hosts), folder, pem, properties, _certificate(pem).not_valid_after_utc, change)

    def _client(self, authority: CertificateAuthority, name: str, now: datetime.datetime, days: int) -> HeldCertificate:
        folder = self.folder / "clients" / name
        pem, properties = folder / "client.pem", folder / "client.properties"
        _private_folder(folder)
        change = self._change(pem, now, ())
        if change != "kept":
            _write(pem, authority.client(name, now, days=days))
        self._copy_authority(folder)
        if not properties.exists():
            _write_properties(properties, {"security.protocol": "SSL", **_stores(pem, folder)})
        return HeldCertificate((name,), folder, pem, properties, _certificate(pem).not_valid_after_utc, change)

    def _copy_authority(self, folder: Path) -> None:
        text, copy = self.authority.read_text(), folder / "authority.pem"
        if not copy.exists() or copy.read_text() != text:
            replace_file(copy, text, mode=0o644)

    def _change(self, pem: Path, now: datetime.datetime, hosts: Sequence[str]) -> Change:
        """What has to become of a certificate."""
        from cryptography import x509

        if not pem.exists():
            return "new"
        certificate = _certificate(pem)
        if certificate.not_valid_after_utc < now + datetime.timedelta(days=RENEWED_DAYS):
            return "renewed"
        if set(_hosts_named(certificate)) != set(map(general_name, hosts)):
            return "renewed"
        authority = x509.load_pem_x509_certificate(self.authority.read_bytes())
        return "kept" if _has_signed(authority, certificate) else "renewed"

    def _known(self, kind: str) -> list[str]:
        """The names of those that were made before."""
        return sorted(each.parent.name for each in (self.folder / kind).glob("*/*.properties"))

    def _hosts_of(self, name: str) -> tuple[str, ...]:
        """What a node's certificate names."""
        pem = self.folder / "nodes" / name / "node.pem"
        try:
            return tuple(str(each.value) for each in _hosts_named(_certificate(pem)))
        except (OSError, ValueError):
            raise ConfigError(f"{pem} cannot be read: say by --node what the node is called") from None


def _checked_hosts(hosts: Sequence[str]) -> list[str]:
    """As certificates name them. Raises ConfigError."""
    found = []
    for host in hosts:
        try:
            found.append(str(ipaddress.ip_address(host)))
        except ValueError:
            if not _NAME.fullmatch(host):
                raise ConfigError(f"{host!r} is no name and no address of a node") from None
            found.append(host.lower())
        if found[-1] in EVERYWHERE:
            raise ConfigError(f"{host} is every address: name those that the node is reached by")
    if not found:
        raise ConfigError("--node names a node by one or more hosts, with commas between them")
    return found


def _hosts_named(certificate: x509.Certificate) -> list[x509.GeneralName]:
    from cryptography import x509

    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificate(pem: Path) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem.read_bytes())


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _write(pem: Path, made: Signed) -> None:
    replace_file(pem, made.key + made.certificate, mode=_PRIVATE)


def _stores(pem: Path, folder: Path) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "authority.pem"),
    }


def _write_properties(file: Path, settings: Mapping[str, str]) -> None:
    replace_file(file, "".join(f"{name}={value}\n" for name, value in settings.items()), mode=_PRIVATE)
