"""The options by which a client says how it proves who it is, under Kafka's names: ``security.protocol``,
``ssl.*`` and ``sasl.*``.

``split`` takes them out of the options of ``raylog.connect()`` and makes a ``ClientSecurity`` of
them. Each is honoured or refused, and none is ignored: an option of TLS or SASL that the protocol
does not use is an error. The names that librdkafka and kafka-python have for what Kafka's own
clients say otherwise are taken, too (``ALIASES``).

Files are read here, once. What they hold travels with the handle, so the machines of workers need
no files. Errors name the option and never its value, unless that is a path or a choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from raylog.errors import ConfigError
from raylog.security.jaas import PLAIN_MODULE, SCRAM_MODULE, JaasError, login_module
from raylog.security.protocols import SecurityProtocol
from raylog.security.sasl import MECHANISMS
from raylog.wire.client_security import ClientSecurity
from raylog.wire.tls import CONVERT, TlsSettings, tidy

ALIASES: Final = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.cafile": "ssl.truststore.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.password": "ssl.key.password",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
}
"""Other clients' names, by librdkafka and kafka-python."""
TLS_OPTIONS: Final = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
)
SASL_OPTIONS: Final = ("sasl.mechanism", "sasl.jaas.config", "sasl.username", "sasl.password")
_REFUSED: Final = {
    "ssl.truststore.password": "a PEM file has no password",
    "ssl.keystore.password": "only the key in a PEM file has a password, ssl.key.password",
    "ssl.provider": "TLS is Python's own",
    "security.providers": "TLS is Python's own",
    "ssl.engine.factory.class": "TLS is Python's own",
    "ssl.trustmanager.algorithm": "TLS is Python's own",
    "ssl.keymanager.algorithm": "TLS is Python's own",
    "ssl.secure.random.implementation": "TLS is Python's own",
    "ssl.check.hostname": 'set ssl.endpoint.identification.algorithm="" for false',
    "enable.ssl.certificate.verification": "certificates are always verified",
}
_PREFIXES: Final = ("security.", "sasl.", "ssl.", "enable.ssl.")
_JAAS_MODULES: Final = {
    SCRAM_MODULE: "SCRAM-",
    PLAIN_MODULE: "PLAIN",
}


def is_of_security(name: str) -> bool:
    """Whether an option, with dots or ``_``, says how to connect and not what to do then."""
    return name.replace("_", ".").startswith(_PREFIXES)


def split(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The other options, and those of security by Kafka's names. Raises ConfigError."""
    others: dict[str, Any] = {}
    found: dict[str, str] = {}
    for given, value in (options or {}).items():
        if not is_of_security(given):
            others[given] = value
            continue
        dotted = given.replace("_", ".")
        name = ALIASES.get(dotted, dotted)
        if name in _REFUSED:
            raise ConfigError(f"a client does not accept {dotted}: {_REFUSED[name]}")
        if name not in (*TLS_OPTIONS, *SASL_OPTIONS, "security.protocol"):
            known = ", ".join(("security.protocol", *TLS_OPTIONS, *SASL_OPTIONS))
            raise ConfigError(f"a client does not accept {dotted}: of security there are {known}")
        if name in found:
            raise ConfigError(f"{name} is given twice: give it once")
        if value is not None:
            found[name] = str(value)
    return others, found


def security_of(options: Mapping[str, str]) -> ClientSecurity | None:
    """What these options say, by Kafka's names; None for PLAINTEXT. Raises ConfigError."""
    text = options.get("security.protocol", "PLAINTEXT").strip().upper()
    if text not in SecurityProtocol.__members__:
        raise ConfigError(f"security.protocol={text} is none of {', '.join(SecurityProtocol.__members__)}")
    protocol = SecurityProtocol[text]
    for prefix, is_used, needed in (
        ("ssl.", protocol.has_tls, "SSL or SASL_SSL"),
        ("sasl.", protocol.has_sasl, "SASL_SSL or SASL_PLAINTEXT"),
    ):
        unused = next((name for name in options if name.startswith(prefix)), None)
        if unused is not None and not is_used:
            raise ConfigError(f"{unused} needs security.protocol={needed}, which is {text}")
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    tls = _tls(options) if protocol.has_tls else {}
    sasl = _sasl(options) if protocol.has_sasl else {}
    security = ClientSecurity(protocol, **tls, **sasl)
    security.context()  # refuses what does not fit
    return security


# ------------------------------------------------------------------ TLS


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    suites, versions = TlsSettings(options).suites_and_versions()
    checked = options.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if checked not in ("https", "", "none"):
        raise ConfigError(
            f'ssl.endpoint.identification.algorithm={checked} is neither https nor "": whether the host name is checked'
        )
    chain, key = _own(options)
    return {
        "trusted": _trusted(options),
        "chain": chain,
        "key": key,
        "key_password": options.get("ssl.key.password"),
        "checks_host_name": checked == "https",
        "versions": tuple(sorted(versions)),
        "suites": suites,
    }


def _trusted(options: Mapping[str, str]) -> str | None:
    text = options.get("ssl.truststore.certificates")
    if "ssl.truststore.location" in options:
        if text is not None:
            raise ConfigError("ssl.truststore.location excludes ssl.truststore.certificates")
        text = _pem_of(options, "ssl.truststore.location", "ssl.truststore.type")
    elif text is not None:
        _check_type(options, "ssl.truststore.type")
    if text is None:
        return None
    found = _blocks(text, of_keys=False)
    if not found:
        raise ConfigError(f"{_said('ssl.truststore', options)} does not hold certificates in PEM")
    return found


def _own(options: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The client's certificate with its signers', and its private key."""
    ways = [
        [name for name in names if name in options]
        for names in (
            ("ssl.keystore.location",),
            ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
            ("ssl.certificate.location", "ssl.key.location"),
        )
    ]
    given = [way for way in ways if way]
    if not given:
        return None, None
    if len(given) > 1:
        raise ConfigError(f"{given[0][0]} excludes {given[1][0]}: give the client's certificate once")
    if ways[0]:
        text = _pem_of(options, "ssl.keystore.location", "ssl.keystore.type")
        chain, key = _blocks(text, of_keys=False), _blocks(text, of_keys=True)
    elif ways[1]:
        _check_type(options, "ssl.keystore.type")
        chain = _blocks(options.get("ssl.keystore.certificate.chain", ""), of_keys=False)
        key = _blocks(options.get("ssl.keystore.key", ""), of_keys=True)
    else:
        certificate = "ssl.certificate.location" if "ssl.certificate.location" in options else "ssl.key.location"
        key_file = "ssl.key.location" if "ssl.key.location" in options else certificate
        chain = _blocks(_pem_of(options, certificate, "ssl.keystore.type"), of_keys=False)
        key = _blocks(_pem_of(options, key_file, "ssl.keystore.type"), of_keys=True)
    if not chain or not key:
        missing = "certificate" if not chain else "private key"
        raise ConfigError(f"{given[0][0]}: there is no {missing} in PEM")
    return chain, key


def _blocks(text: str, *, of_keys: bool) -> str:
    """The keys or the certificates in a text, as PEM."""
    if re.search(r"Proc-Type:\s*4,\s*ENCRYPTED", text):  # an encrypted key of the old form is more than its base64
        return text
    blocks = re.findall(r"-----BEGIN [A-Z0-9 ]+-----[^-]+-----END [A-Z0-9 ]+-----", text)
    return "".join(tidy(block) for block in blocks if ("PRIVATE KEY-----" in block) == of_keys)


def _pem_of(options: Mapping[str, str], name: str, type_name: str) -> str:
    """The text of the file that an option names."""
    path = Path(options[name]).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read: {error.strerror}") from None
    _check_type(options, type_name)
    if b"-----BEGIN " not in data:
        raise ConfigError(f"{name}: {path} is not PEM, and {CONVERT}")
    return data.decode("utf-8", "replace")


def _check_type(options: Mapping[str, str], name: str) -> None:
    given = options.get(name, "PEM").strip().upper()
    if given != "PEM":
        raise ConfigError(f"{name} is {given}, and {CONVERT}")


def _said(store: str, options: Mapping[str, str]) -> str:
    return f"{store}.location" if f"{store}.location" in options else f"{store}.certificates"


# ------------------------------------------------------------------ SASL


def _sasl(options: Mapping[str, str]) -> dict[str, Any]:
    mechanism = options.get("sasl.mechanism", "").strip().upper()
    if mechanism not in MECHANISMS:
        told = f"sasl.mechanism={mechanism} is not spoken" if mechanism else "SASL needs sasl.mechanism"
        raise ConfigError(f"{told}: set one of {', '.join(sorted(MECHANISMS, reverse=True))}")
    user, password = options.get("sasl.username"), options.get("sasl.password")
    if "sasl.jaas.config" in options:
        if user is not None or password is not None:
            raise ConfigError("sasl.jaas.config excludes sasl.username and sasl.password")
        user, password = _of_jaas(options["sasl.jaas.config"], mechanism)
    if not user or not password:
        raise ConfigError("SASL needs sasl.username and sasl.password, or sasl.jaas.config with both")
    if "\0" in user + password:
        raise ConfigError("sasl.username and sasl.password cannot hold NUL")
    return {"mechanism": mechanism, "user": user, "password": password}


def _of_jaas(text: str, mechanism: str) -> tuple[str | None, str | None]:
    """Name and password of a JAAS configuration: ``MODULE required username="…" password="…";``."""
    try:
        found = login_module(text, tuple(_JAAS_MODULES))
    except JaasError as error:
        raise _no_jaas(str(error)) from None
    if not mechanism.startswith(_JAAS_MODULES[found.name]):
        raise _no_jaas(f"its login module is not that of sasl.mechanism={mechanism}")
    if unknown := sorted(found.options.keys() - {"username", "password"}):
        raise _no_jaas(f"{unknown[0]} is not supported, only username and password")
    return found.options.get("username"), found.options.get("password")


def _no_jaas(why: str) -> ConfigError:
    return ConfigError(f"sasl.jaas.config: {why}")
