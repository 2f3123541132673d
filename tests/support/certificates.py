"""Certificates for tests of TLS: authorities, and what they sign."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
PEM = serialization.Encoding.PEM


def name(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """In the order of the certificate, which is the reverse of the text's."""
    return x509.Name([x509.NameAttribute(number, value) for number, value in attributes])


def common_name(text: str) -> x509.Name:
    return name((NameOID.COMMON_NAME, text))


class Authority:
    """Signs certificates for brokers at 127.0.0.1 and for clients."""

    def __init__(self, folder: Path, called: str = "an authority", issuer: Authority | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = common_name(called)
        above = issuer or self
        own = above._builder(self._name, self._key, 0).add_extension(x509.BasicConstraints(True, None), True)
        self.certificate = self._folder / "authority.pem"
        self.certificate.write_bytes(own.sign(above._key, hashes.SHA256()).public_bytes(PEM))

    def signed(
        self,
        called: str,
        subject: x509.Name | None = None,
        *,
        expired: bool = False,
        password: str | None = None,
        hosts: Sequence[str] = (),
    ) -> Path:
        """A file of a private key and its certificate; ``hosts`` are its names in place of 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        here = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        names = x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts] or here)
        built = self._builder(subject or common_name(called), key, -3 if expired else 0).add_extension(names, False)
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption)
        path = self._folder / f"{called}.pem"
        path.write_bytes(private + built.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + (days - 1) * DAY)
            .not_valid_after(now + (days + 1) * DAY)
        )


def settings(keystore: Path, truststore: Path | None = None, **others: str) -> dict[str, str]:
    """A listener's, by Kafka's names; ``_`` in others stands for ``.``."""
    found = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
    if truststore is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(truststore)}
    return found | {name.replace("_", "."): value for name, value in others.items()}
