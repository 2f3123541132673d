"""A certificate authority of a cluster's own, and what it signs, as texts in PEM. Needs the package
cryptography, which is imported when something is made.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, slots=True)
class Signed:
    """A private key and its certificate."""

    key: str = field(repr=False)
    certificate: str


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """Its own private key and certificate. Raises ValueError, cryptography's, for damaged ones."""

    key: str = field(repr=False)
    certificate: str

    @classmethod
    def new(cls, now: datetime.datetime, *, days: int) -> CertificateAuthority:
        from cryptography.hazmat.primitives.asymmetric import ec

        return _own(
            ec.generate_private_key(ec.SECP256R1()), _name(f"raylog authority {secrets.token_hex(4)}"), now, days
        )

    def renewed(self, now: datetime.datetime, *, days: int) -> CertificateAuthority:
        """The same authority, by the same key, with a certificate that ends later. Whoever trusts either
        certificate trusts all that the authority has signed and will sign.
        """
        from cryptography import x509

        return _own(self._signer(), x509.load_pem_x509_certificate(self.certificate.encode()).subject, now, days)

    def server(self, name: str, hosts: Sequence[str], now: datetime.datetime, *, days: int) -> Signed:
        """For a server at these names and addresses."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        hosts_named = x509.SubjectAlternativeName([general_name(host) for host in hosts])
        return self._signed(name, [ExtendedKeyUsageOID.SERVER_AUTH], now, days, hosts_named)

    def node(self, name: str, hosts: Sequence[str], now: datetime.datetime, *, days: int) -> Signed:
        """For a node at these names and addresses, whose processes both listen and dial."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        hosts_named = x509.SubjectAlternativeName([general_name(host) for host in hosts])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._signed(name, usages, now, days, hosts_named)

    def client(self, name: str, now: datetime.datetime, *, days: int) -> Signed:
        """For a client whose subject is ``CN=<name>``."""
        from cryptography.x509.oid import ExtendedKeyUsageOID

        return self._signed(name, [ExtendedKeyUsageOID.CLIENT_AUTH], now, days, None)

    def _signed(
        self,
        name: str,
        usages: Sequence[x509.ObjectIdentifier],
        now: datetime.datetime,
        days: int,
        hosts: x509.SubjectAlternativeName | None,
    ) -> Signed:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        authority = x509.load_pem_x509_certificate(self.certificate.encode())
        signer = self._signer()
        key = ec.generate_private_key(ec.SECP256R1())
        built = _builder(_name(name), authority.subject, key.public_key(), now, days)
        if hosts is not None:
            built = built.add_extension(hosts, critical=False)
        built = (
            built.add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        return Signed(_text(key), _pem(built.sign(signer, hashes.SHA256())))

    def _signer(self) -> ec.EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = serialization.load_pem_private_key(self.key.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "the authority's key is made here"
        return key


def _own(key: ec.EllipticCurvePrivateKey, name: x509.Name, now: datetime.datetime, days: int) -> CertificateAuthority:
    """The authority of that name whose key this is."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    built = (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(True, 0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return CertificateAuthority(_text(key), _pem(built.sign(key, hashes.SHA256())))


def general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _text(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()
