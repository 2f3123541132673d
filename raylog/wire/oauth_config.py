"""What a listener is told about OAUTHBEARER, by Kafka's names ``sasl.oauthbearer.*`` (KIP-768).

A setting ``listener.name.<name>.sasl.oauthbearer.…`` goes before ``sasl.oauthbearer.…``, with the
listener's name in lower case. ``configs.listener_configs`` has the table of all settings.

A listener takes the tokens of one issuer, whose keys are at ``sasl.oauthbearer.jwks.endpoint.url``,
or tokens that nobody has signed, never both; and the Ray's own token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from raylog.errors import ConfigError
from raylog.extras import need
from raylog.security.json_web_tokens import TokenRules

OAUTH: Final = "sasl.oauthbearer."
URL: Final = OAUTH + "jwks.endpoint.url"
REFRESH: Final = OAUTH + "jwks.endpoint.refresh.ms"
BACKOFF: Final = OAUTH + "jwks.endpoint.retry.backoff.ms"
BACKOFF_MAX: Final = OAUTH + "jwks.endpoint.retry.backoff.max.ms"
TRUSTSTORE: Final = OAUTH + "jwks.endpoint.truststore.location"
AUDIENCE: Final = OAUTH + "expected.audience"
ISSUER: Final = OAUTH + "expected.issuer"
CLOCK_SKEW: Final = OAUTH + "clock.skew.seconds"
SCOPE_CLAIM: Final = OAUTH + "scope.claim.name"
SUBJECT_CLAIM: Final = OAUTH + "sub.claim.name"
RAY_TOKEN: Final = OAUTH + "ray.token.enable"
UNSECURED: Final = OAUTH + "unsecured.jwt.enable"

_NUMBERS: Final = {REFRESH: (3_600_000, 1_000), BACKOFF: (100, 1), BACKOFF_MAX: (10_000, 1), CLOCK_SKEW: (30, 0)}
"""Default and smallest value."""
_NUMBER_MAX: Final = (1 << 31) - 1
_OF_SIGNED: Final = (REFRESH, BACKOFF, BACKOFF_MAX, TRUSTSTORE)


@dataclass(frozen=True, slots=True)
class OAuthConfig:
    """Of one listener. ``jwks_url``: ``https://…``, or ``jwks_file``; both None: no token that is
    signed is taken. ``truststore``: a PEM file of authorities for that URL; None: the system's.
    """

    listener: str
    jwks_url: str | None
    jwks_file: Path | None
    truststore: Path | None
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_ms_max: int
    rules: TokenRules
    takes_ray_token: bool
    takes_unsecured: bool

    @classmethod
    def of(cls, configs: Mapping[str, str], listener: str) -> OAuthConfig:
        """By settings' names. Raises ConfigError that names what is wrong."""
        settings = _OAuthSettings(configs, listener)
        url, file = settings.endpoint()
        has_keys = url is not None or file is not None
        takes_unsecured = settings.flag(UNSECURED, default=False)
        if has_keys and takes_unsecured:
            raise ConfigError(
                f"{settings.name(UNSECURED)}=true excludes {settings.name(URL)}: anybody can make a token that is not "
                "signed, so none that is signed would prove anything"
            )
        for name in _OF_SIGNED:
            if not has_keys and settings.text(name) is not None:
                raise ConfigError(f"{settings.name(name)} has no effect without {URL}")
        truststore = settings.text(TRUSTSTORE)
        if truststore is not None and url is None:
            raise ConfigError(f"{settings.name(TRUSTSTORE)} has no effect without a URL that begins with https://")
        return cls(
            listener=listener,
            jwks_url=url,
            jwks_file=file,
            truststore=None if truststore is None else Path(truststore),
            refresh_ms=settings.number(REFRESH),
            retry_backoff_ms=settings.number(BACKOFF),
            retry_backoff_ms_max=settings.backoff_max(),
            rules=TokenRules(
                audiences=frozenset(settings.listed(AUDIENCE)),
                issuer=settings.text(ISSUER),
                clock_skew_s=settings.number(CLOCK_SKEW),
                scope_claim=settings.text(SCOPE_CLAIM) or "scope",
                subject_claim=settings.text(SUBJECT_CLAIM) or "sub",
            ),
            takes_ray_token=settings.flag(RAY_TOKEN, default=True),
            takes_unsecured=takes_unsecured,
        )

    @property
    def where(self) -> str | None:
        """Where the keys of signed tokens are; None if none is taken."""
        return self.jwks_url if self.jwks_file is None else str(self.jwks_file)

    def need_extra(self) -> None:
        """Raises MissingExtraError if signed tokens are taken and cannot be verified here."""
        if self.where is not None:
            for package in ("jwt", "cryptography"):
                need(package, URL, "oauth")


class _OAuthSettings:
    """The settings of one listener, as texts."""

    def __init__(self, configs: Mapping[str, str], listener: str) -> None:
        self._configs = configs
        self._prefix = f"listener.name.{listener.lower()}."

    def name(self, name: str) -> str:
        """Under which the value stands."""
        return self._prefix + name if self._prefix + name in self._configs else name

    def text(self, name: str) -> str | None:
        return self._configs.get(self.name(name), "").strip() or None

    def listed(self, name: str) -> list[str]:
        return [each.strip() for each in (self.text(name) or "").split(",") if each.strip()]

    def flag(self, name: str, *, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise ConfigError(f"{self.name(name)}={value} is neither true nor false")
        return value == "true"

    def number(self, name: str) -> int:
        default, smallest = _NUMBERS[name]
        text = self.text(name) or str(default)
        if not (text.isascii() and text.isdecimal() and smallest <= int(text[:20]) <= _NUMBER_MAX):
            raise ConfigError(f"{self.name(name)}={text}: must be from {smallest} to {_NUMBER_MAX}")
        return int(text)

    def backoff_max(self) -> int:
        least, most = self.number(BACKOFF), self.number(BACKOFF_MAX)
        if most < least:
            raise ConfigError(f"{self.name(BACKOFF_MAX)}={most} is less than {self.name(BACKOFF)}={least}")
        return most

    def endpoint(self) -> tuple[str | None, Path | None]:
        """The URL of the keys or their file, or neither."""
        text = self.text(URL)
        if text is None:
            return None, None
        try:
            url = urlsplit(text)
            has_host = bool(url.hostname) and (url.port is None or url.port > 0)
        except ValueError:
            raise ConfigError(f"{self.name(URL)} is no URL") from None
        if url.username is not None or url.password is not None:
            raise ConfigError(f"{self.name(URL)} holds a user's name or password, which logs would show")
        if url.scheme == "https" and has_host:
            return text, None
        if url.scheme == "file" and url.netloc in ("", "localhost") and url.path.startswith("/"):
            return None, Path(unquote(url.path))
        if url.scheme == "http":
            raise ConfigError(f"{self.name(URL)}={text}: use https://, since whoever can change the keys on the way is "
                              "anybody he wants to be")  # fmt: skip
        raise ConfigError(f"{self.name(URL)}={text} is neither https://HOST/PATH nor file:///PATH")
