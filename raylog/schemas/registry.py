"""A schema registry: its address, and one question to it over HTTP.

The address comes from the command line and from nowhere else. Questions differ in a whole number (an
id) or in a subject that the registry itself has named, quoted, and ``http_questions`` connects to nobody
else, so a message cannot make this process connect to any other host.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

from raylog.errors import ConfigError
from raylog.http_questions import HttpAnswer, HttpAnswerTooLongError, HttpServer
from raylog.schemas.wire_format import NotDecodedError
from raylog.version import VERSION

ANSWER_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 4 << 20
REASON_LENGTH_MAX: Final = 200
VERSION_MAX: Final = 2**31 - 1
_OK, _UNAUTHORISED, _FORBIDDEN, _NOT_FOUND, _NOT_IMPLEMENTED = 200, 401, 403, 404, 501


class RegistryAwayError(NotDecodedError):
    """The registry answers nobody now, or not this user: there is no point in asking for another schema."""


class UnknownFormatError(NotDecodedError):
    """The registry does not take the question; maybe it does without ``format``."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """``url`` may have a path. ``ca``: a file in PEM, for https; None takes the machine's."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None

    def checked(self) -> list[str]:
        """Lines to say before the start. Raises ConfigError."""
        parts = _parts(self.url)
        if (self.user is None) != (self.password is None):
            raise ConfigError("--schema-registry-user and --schema-registry-password-file go together: give both")
        if self.user is not None and ":" in self.user:
            raise ConfigError("--schema-registry-user: a user's name has no colon")
        if self.ca is not None and parts.scheme != "https":
            raise ConfigError("--schema-registry-ca is for a registry with https")
        if self.ca is not None:
            _trusting(self.ca)
        if self.password is not None and parts.scheme == "http" and not _is_on_loopback(parts.hostname or ""):
            return [f"Without https, the password for {self.url} can be read on the network"]
        return []


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """Another schema that one needs. ``name``: how it calls that one; in Protobuf, the import."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """``kind``: AVRO, PROTOBUF, JSON or one that is not known here. ``text`` of PROTOBUF: a
    descriptor in base64, or the text of a .proto file where the registry gives no descriptors.
    """

    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()


class SchemaRegistry:
    """Usable from any thread. Every question has a connection of its own."""

    def __init__(self, settings: RegistrySettings) -> None:
        parts = _parts(settings.url)
        self._base = parts.path.rstrip("/")
        tls = _trusting(settings.ca) if parts.scheme == "https" else None
        self._server = HttpServer(parts, tls, ANSWER_BYTES_MAX)
        self._headers = {
            "Accept": "application/vnd.schemaregistry.v1+json, application/json",
            "User-Agent": f"raylog/{VERSION}",
        }
        if settings.user is not None:
            pair = f"{settings.user}:{settings.password}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Blocks for up to twice ``ANSWER_S``. Raises NotDecodedError, RegistryAwayError."""
        return self._schema(f"/schemas/ids/{schema_id:d}", f"schema {schema_id}")

    def referenced(self, reference: SchemaReference) -> RegisteredSchema:
        """As ``schema``."""
        subject = quote(reference.subject, safe="")
        path = f"/subjects/{subject}/versions/{reference.version:d}"
        return self._schema(path, f"version {reference.version} of {reference.subject!r}")

    def _schema(self, path: str, name: str) -> RegisteredSchema:
        found = _registered(self._get(path, name), name)
        if found.kind == "PROTOBUF":  # as text it would need protoc
            with suppress(UnknownFormatError):
                return _registered(self._get(f"{path}?format=serialized", name), name)
        return found

    def _get(self, path: str, name: str) -> Any:
        try:
            answer = self._server.ask("GET", self._base + path, self._headers, within_s=ANSWER_S)
        except HttpAnswerTooLongError:
            raise NotDecodedError(f"the schema registry's answer has more than {ANSWER_BYTES_MAX >> 20} MiB") from None
        except (OSError, http.client.HTTPException) as error:
            raise RegistryAwayError(f"the schema registry does not answer: {_reason(error)}") from None
        _check_status(answer, name)
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise NotDecodedError(f"the schema registry's answer for {name} is no JSON") from None


def _check_status(answer: HttpAnswer, name: str) -> None:
    match answer.status:
        case status if status == _OK:
            return
        case status if status == _NOT_FOUND:
            raise NotDecodedError(f"the schema registry has no {name}")
        case status if status == _FORBIDDEN:
            raise NotDecodedError(f"the schema registry does not show {name} to this user")
        case status if status == _UNAUTHORISED:
            raise RegistryAwayError("the schema registry wants a user and a password that it knows")
        case status if 300 <= status < 400:
            raise RegistryAwayError("the schema registry redirects elsewhere, which is not followed: give that URL")
        case status if status >= 500 and status != _NOT_IMPLEMENTED:
            raise RegistryAwayError(f"the schema registry answers {status}{_words(answer.body)}")
        case status:
            raise UnknownFormatError(f"the schema registry answers {status} for {name}{_words(answer.body)}")


def _words(body: bytes) -> str:
    """What the registry says of an error, for a reader."""
    try:
        said = json.loads(body)["message"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return f": {shortened(said)}" if isinstance(said, str) else ""


def shortened(text: str) -> str:
    """One line that is not too long, without control characters."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: REASON_LENGTH_MAX + 1])
    return line if len(line) <= REASON_LENGTH_MAX else line[:REASON_LENGTH_MAX] + "…"


def _registered(found: Any, name: str) -> RegisteredSchema:
    try:
        kind, text = found.get("schemaType") or "AVRO", found["schema"]
        references = tuple(
            SchemaReference(each["name"], each["subject"], each["version"]) for each in found.get("references") or ()
        )
        texts = [kind, text, *(part for each in references for part in (each.name, each.subject))]
        is_right = all(isinstance(each, str) for each in texts) and all(
            type(each.version) is int and 0 < each.version <= VERSION_MAX for each in references
        )
    except (KeyError, TypeError, AttributeError):
        is_right = False
    if not is_right:
        raise NotDecodedError(f"the schema registry's answer for {name} is no schema")
    return RegisteredSchema(kind, text, references)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:  # a port that is none
        is_right = False
    if not is_right or not url.isprintable() or not url.isascii() or " " in url:
        raise ConfigError(f"--schema-registry: {shortened(url)!r} is no http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "--schema-registry: a password in a URL can be read in the list of processes: "
            "give --schema-registry-user and --schema-registry-password-file"
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"--schema-registry: {shortened(url)!r} has more than an address and a path")
    return parts


def _trusting(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"--schema-registry-ca {ca}: {error.strerror or error}") from None


def _is_on_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"not within {ANSWER_S:.0f} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): --schema-registry-ca names its authority"
    return shortened(str(getattr(error, "strerror", None) or error) or type(error).__name__)
