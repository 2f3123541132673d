"""TLS on a listener, by Kafka's ``ssl.*`` settings with stores of type PEM.

A setting ``listener.name.<name>.ssl.…`` goes before ``ssl.…``, with the listener's name in lower
case. ``configs.listener_configs`` has the table of all settings.

Differences from Kafka, which runs on Java's TLS:

- A store is PEM. JKS and PKCS12 are refused by a sentence that says how to convert.
- Client certificates need a truststore; there are no built-in authorities.
- Python cannot choose among the three suites of TLS 1.3. ``ssl.cipher.suites`` names all of them, or
  none, which leaves TLS 1.2.
- With client certificates, sessions of TLS 1.3 are not resumed: a client shows its certificate in
  every handshake. Those of TLS 1.2 are, by their ids, because Python cannot turn that off. A session
  ends when the listener reloads its certificates, after two hours at the latest.

Keys and passwords never appear in a ``repr``, a message or a log.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from raylog.errors import ConfigError, ProtocolError
from raylog.kafka.context import ANONYMOUS, PRINCIPAL_CHARACTERS_MAX
from raylog.security.distinguished_names import alternative_names_of, subject_of
from raylog.security.principal_mapping import DEFAULT, RULES, PrincipalMapping
from raylog.wire.tls_alerts import ListenerContext

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
ALLOWED: Final = {"false": False, "true": True}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
SUITES_OF_1_3: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"})
_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([A-Za-z0-9+/=\s]+)-----END \1-----")
_SUITE: Final = re.compile(
    r"TLS_(?:(ECDHE|DHE)_)?(RSA|ECDSA)_WITH_(AES_128|AES_256|CHACHA20)_(GCM|CBC|POLY1305)_(SHA(?:256|384)?)"
)
CONVERT: Final = (
    "only PEM is supported: set it to PEM, and convert the store with `keytool -importkeystore -srckeystore STORE "
    "-destkeystore store.p12 -deststoretype PKCS12` and `openssl pkcs12 -in store.p12 -out store.pem`"
)

PrincipalOf = Callable[[ssl.SSLObject], str]


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """What TLS needs on one listener. A store is a file or its text, in PEM; None: there is none."""

    listener: str
    keystore: Path | None
    key: str | None = field(repr=False)
    chain: str | None
    key_password: str | None = field(repr=False)
    truststore: Path | None
    trusted: str | None
    versions: frozenset[str]
    suites: tuple[str, ...]
    client_auth: str
    mapping: PrincipalMapping = field(compare=False)
    allows_subject_changes: bool = False
    allows_name_changes: bool = False

    @classmethod
    def of(cls, configs: Mapping[str, str], listener: str) -> TlsConfig:
        """By settings' names. Raises ConfigError that names what is wrong."""
        settings = TlsSettings(configs, listener)
        keystore, truststore = settings.text("ssl.keystore.location"), settings.text("ssl.truststore.location")
        key, chain = settings.text("ssl.keystore.key"), settings.text("ssl.keystore.certificate.chain")
        trusted = settings.text("ssl.truststore.certificates")
        for store, is_there in (("keystore", keystore or key or chain), ("truststore", truststore or trusted)):
            if is_there:
                settings.check_type(store)
        if keystore and (key or chain):
            raise ConfigError(
                f"{settings.name('ssl.keystore.location')} excludes ssl.keystore.key and .certificate.chain"
            )
        if not keystore and not (key and chain):
            raise ConfigError(
                f"listener {listener} has no certificate: set ssl.keystore.location, or ssl.keystore.key and "
                "ssl.keystore.certificate.chain"
            )
        if truststore and trusted:
            raise ConfigError(f"{settings.name('ssl.truststore.location')} excludes ssl.truststore.certificates")
        client_auth = settings.choice("ssl.client.auth", "none", CLIENT_AUTH)
        if client_auth != "none" and not (truststore or trusted):
            raise ConfigError(
                f"{settings.name('ssl.client.auth')}={client_auth} needs ssl.truststore.location or "
                "ssl.truststore.certificates: who signs clients' certificates"
            )
        suites, versions = settings.suites_and_versions()
        return cls(
            listener=listener,
            keystore=Path(keystore) if keystore else None,
            key=key,
            chain=chain,
            key_password=settings.text("ssl.key.password"),
            truststore=Path(truststore) if truststore else None,
            trusted=trusted,
            versions=versions,
            suites=suites,
            client_auth=client_auth,
            mapping=PrincipalMapping(settings.text(RULES) or DEFAULT),
            allows_subject_changes=ALLOWED[settings.choice("ssl.allow.dn.changes", "false", ALLOWED)],
            allows_name_changes=ALLOWED[settings.choice("ssl.allow.san.changes", "false", ALLOWED)],
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """What ``context`` reads."""
        return tuple(path for path in (self.keystore, self.truststore) if path is not None)

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises ConfigError for one that cannot be read or does not fit."""
        context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
        context.listener = self.listener
        context.minimum_version = min(VERSIONS[each] for each in self.versions)
        context.maximum_version = max(VERSIONS[each] for each in self.versions)
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.suites:
            context.set_ciphers(":".join(self.suites))
        self._load_keystore(context)
        self._load_truststore(context)
        return context

    def check_change(self, before: TlsConfig) -> None:
        """Whether this certificate may take the other one's place while the Broker runs, by Kafka's rules
        (KIP-978): it has the same subject, and all of its alternative names. Reads files, which
        ``context`` has checked. Raises ConfigError.
        """
        old, new = before._certificate(), self._certificate()
        if old is None or new is None:
            return  # the file of before is gone: nothing tells what the certificate was
        if not self.allows_subject_changes and subject_of(new) != subject_of(old):
            raise ConfigError(
                f"listener {self.listener}: Keystore DistinguishedName does not match: existing={subject_of(old)}, "
                f"new={subject_of(new)}; ssl.allow.dn.changes=true of the start allows it"
            )
        if not self.allows_name_changes and not alternative_names_of(new) >= alternative_names_of(old):
            raise ConfigError(
                f"listener {self.listener}: Keystore SubjectAltNames do not match: the new certificate lacks some of "
                "the existing one; ssl.allow.san.changes=true of the start allows it"
            )

    def _certificate(self) -> bytes | None:
        """The listener's own, in DER; None if its file cannot be read."""
        try:
            text = self.chain if self.keystore is None else self.keystore.read_text(encoding="latin-1")
        except OSError:
            return None
        for label, encoded in _PEM.findall(text or ""):
            if label == "CERTIFICATE":  # the first one
                return base64.b64decode(encoded)
        return None

    def _load_keystore(self, context: ssl.SSLContext) -> None:
        where = f"listener {self.listener}: {self.keystore or 'ssl.keystore.key'}"
        asked = []

        def password() -> str:
            asked.append(True)
            if self.key_password is None:
                raise ConfigError(f"{where}: the private key is encrypted: set ssl.key.password")
            return self.key_password

        try:
            if self.keystore is not None:
                context.load_cert_chain(self.keystore, password=password)
            else:
                with in_memory(tidy(self.chain)) as chain, in_memory(tidy(self.key)) as key:
                    context.load_cert_chain(chain, key, password=password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(f"{where}: the private key is not that of the certificate") from None
            if asked:
                raise ConfigError(f"{where}: ssl.key.password does not open the private key") from None
            raise ConfigError(f"{where} does not hold a private key and its certificates in PEM") from None
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror}") from None

    def _load_truststore(self, context: ssl.SSLContext) -> None:
        if self.client_auth == "none":
            return
        where = f"listener {self.listener}: {self.truststore or 'ssl.truststore.certificates'}"
        try:
            if self.truststore is not None:
                context.load_verify_locations(self.truststore)
            else:
                context.load_verify_locations(cadata=tidy(self.trusted))
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"{where} does not hold certificates in PEM") from None
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
        context.verify_mode = CLIENT_AUTH[self.client_auth]
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # as Java: all of the store is trusted
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET

    def principal_of(self, connection: ssl.SSLObject) -> str:
        """Who is at the other end. Raises ProtocolError if its certificate cannot be a principal."""
        certificate = connection.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            subject = subject_of(certificate)
        except ValueError as error:
            raise ProtocolError(f"a certificate whose subject cannot be read: {error}") from None
        principal = f"User:{self.mapping.name_of(subject)}"
        if len(principal) > PRINCIPAL_CHARACTERS_MAX:
            raise ProtocolError(f"a certificate that gives a principal of {len(principal)} characters")
        return principal


class TlsSettings:
    """The settings of one listener, or of a client (None)."""

    def __init__(self, configs: Mapping[str, str], listener: str | None = None) -> None:
        self._configs = configs
        self._prefix = f"listener.name.{listener.lower()}." if listener is not None else ""

    def name(self, name: str) -> str:
        """Under which the value stands."""
        return self._prefix + name if self._prefix + name in self._configs else name

    def text(self, name: str) -> str | None:
        value = self._configs.get(self.name(name))
        return value if value and value.strip() else None

    def choice(self, name: str, default: str, known: Mapping[str, Any]) -> str:
        value = (self.text(name) or default).strip()
        if value not in known:
            raise ConfigError(f"{self.name(name)}={value} is none of {', '.join(known)}")
        return value

    def check_type(self, store: str) -> None:
        name = f"ssl.{store}.type"
        given = (self.text(name) or "JKS").strip().upper()
        if given != "PEM":
            stated = "is" if self.text(name) else "is not given, which in Kafka means"
            raise ConfigError(f"{self.name(name)} {stated} {given}, and {CONVERT}")
        if self.text(f"ssl.{store}.password"):
            raise ConfigError(
                f"{self.name(f'ssl.{store}.password')} cannot be given for PEM: only a key has a password"
            )

    def suites_and_versions(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """OpenSSL's names of the suites of TLS 1.2 (none: its own choice), and the versions spoken."""
        highest = self.choice("ssl.protocol", "TLSv1.3", VERSIONS)
        name = "ssl.enabled.protocols"
        named = [each.strip() for each in (self.text(name) or ",".join(VERSIONS)).split(",")]
        for each in named:
            if each not in VERSIONS:
                raise ConfigError(f"{self.name(name)}: {each} is none of {', '.join(VERSIONS)}")
        versions = {each for each in named if VERSIONS[each] <= VERSIONS[highest]}
        if not versions:
            raise ConfigError(
                f"{self.name('ssl.protocol')}={highest} leaves none of {self.name(name)}={','.join(named)}"
            )
        name = "ssl.cipher.suites"
        suites = [each.strip() for each in (self.text(name) or "").split(",") if each.strip()]
        if not suites:
            return (), frozenset(versions)
        of_1_3 = SUITES_OF_1_3.intersection(suites)
        if of_1_3 and of_1_3 != SUITES_OF_1_3 and "TLSv1.3" in versions:
            raise ConfigError(
                f"{self.name(name)}: Python cannot choose among the suites of TLS 1.3: name all of "
                f"{', '.join(sorted(SUITES_OF_1_3))}, or none of them"
            )
        of_1_2 = tuple(_suite(self.name(name), each) for each in suites if each not in SUITES_OF_1_3)
        left = versions - (set() if of_1_3 else {"TLSv1.3"}) - (set() if of_1_2 else {"TLSv1.2"})
        if not left:
            raise ConfigError(f"{self.name(name)} has no suite of {', '.join(sorted(versions))}")
        return of_1_2, frozenset(left)


def _suite(name: str, suite: str) -> str:
    """OpenSSL's name of one of TLS 1.2."""
    found = _SUITE.fullmatch(suite)
    written = suite
    if found is not None:
        exchange, signature, cipher, mode, digest = found.groups()
        ways = [exchange, signature] if exchange else []
        cipher = cipher.replace("_", "")
        parts = {
            "GCM": [*ways, cipher, "GCM", digest],
            "CBC": [*ways, cipher, digest],
            "POLY1305": [*ways, cipher, "POLY1305"],
        }
        written = "-".join(parts[mode])
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers(written)
        known = {each["name"] for each in context.get_ciphers()}
    except ssl.SSLError:
        known = set()
    if found is None or written not in known:
        raise ConfigError(f"{name}: {suite} is no suite of TLS 1.2 that OpenSSL has here")
    return written


@contextmanager
def in_memory(text: str) -> Iterator[str]:
    """The path of a file in memory: Python's ``ssl`` reads keys from files only."""
    descriptor = os.memfd_create("raylog-pem", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def tidy(text: str | None) -> str:
    """PEM with its lines, which a properties file that goes on behind a backslash has lost."""
    blocks = []
    for label, encoded in _PEM.findall(text or ""):
        joined = "".join(encoded.split())
        lines = [joined[start : start + 64] for start in range(0, len(joined), 64)]
        blocks.append("\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]))
    return "".join(blocks)
