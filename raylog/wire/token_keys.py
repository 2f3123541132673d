"""The keys with which an issuer signs tokens, as a listener knows them: read from a file or over
https, kept, and read again.

A thread reads them, when a listener starts and every ``refresh_ms`` from then on. A try that fails
is repeated after ``retry_backoff_ms``, twice that, and so on up to ``retry_backoff_ms_max``, until
one succeeds. Meanwhile the keys of the last one count; before the first, no token is right.

A token that names an unknown key makes the listener read them at once, and waits for that, as its
issuer may have a new key. Anybody can show such tokens, so this happens at most every
``UNKNOWN_KEY_INTERVAL_S`` seconds.

Only https is spoken, on every redirect, too. An answer has ``READING_S`` seconds and at most
``SET_BYTES_MAX`` bytes.

Invariant: a set takes the place of the one before as a whole, so a key that an issuer has taken away
is unknown from then on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import Any, Final

from raylog.clock import MachineClock
from raylog.errors import ConfigError
from raylog.security.json_web_tokens import KeySet, PublicKey, TokenHeader, UnknownKeyError
from raylog.security.sasl import AuthenticationError
from raylog.wire.oauth_config import OAuthConfig

logger = logging.getLogger("raylog.broker")

UNKNOWN_KEY_INTERVAL_S: Final = 10
READING_S: Final = 10
SET_BYTES_MAX: Final = 1 << 20


class TokenKeys:
    """Of one listener, from ``start`` to ``stop``. Belongs to the event loop."""

    def __init__(self, config: OAuthConfig, clock: MachineClock) -> None:
        self._config = config
        self._clock = clock
        self._keys: KeySet | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[bool] | None = None
        self._begun_at = 0.0  # the last read

    def start(self) -> None:
        """Begin to read them."""
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh())

    async def stop(self) -> None:
        """Idempotent. Does not wait for a thread that reads."""
        tasks = [task for task in (self._refreshing, self._reading) if task is not None]
        self._refreshing = self._reading = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def key_for(self, header: TokenHeader) -> PublicKey:
        """The key that a token names. Raises AuthenticationError."""
        if self._keys is None and self._reading is not None:
            await asyncio.shield(self._reading)
        if self._keys is None:
            raise AuthenticationError("the keys of tokens could not be read yet")
        try:
            return self._keys.key_for(header)
        except UnknownKeyError:
            is_soon = self._clock.monotonic_s() - self._begun_at < UNKNOWN_KEY_INTERVAL_S
            if is_soon and (self._reading is None or self._reading.done()):
                raise
        await asyncio.shield(self._read())
        return self._keys.key_for(header)

    async def _refresh(self) -> None:
        backoff_ms = self._config.retry_backoff_ms
        while True:
            if await asyncio.shield(self._read()):
                wait_ms, backoff_ms = self._config.refresh_ms, self._config.retry_backoff_ms
            else:
                wait_ms, backoff_ms = backoff_ms, min(2 * backoff_ms, self._config.retry_backoff_ms_max)
            await asyncio.sleep(wait_ms / 1000)

    def _read(self) -> asyncio.Task[bool]:
        """The read that is under way, or a new one. Whether it succeeds; it raises nothing."""
        if self._reading is None or self._reading.done():
            self._begun_at = self._clock.monotonic_s()
            self._reading = asyncio.get_running_loop().create_task(self._read_once())
        return self._reading

    async def _read_once(self) -> bool:
        where = f"listener {self._config.listener}: {self._config.where}"
        try:
            found = await asyncio.to_thread(read_keys, self._config)
        except Exception as error:  # whatever a library says of what an issuer sent: the next try is due all the same
            kept = "no token can be verified" if self._keys is None else "the keys of before count"
            logger.error("%s: the keys of tokens cannot be read, and %s: %s", where, kept, _reason(error))
            return False
        before = set() if self._keys is None else _ids(self._keys)
        self._keys = found
        if before != _ids(found):
            logger.info("%s: %d keys of tokens, %d ignored", where, len(found.keys), found.ignored)
        return True


def check_keys(config: OAuthConfig) -> None:
    """Whether this machine could take tokens by these settings, as far as can be seen without a
    network. Raises ConfigError for a file that holds no keys, and MissingExtraError.
    """
    config.need_extra()
    try:
        if config.jwks_file is not None:
            read_keys(config)
        if config.truststore is not None:
            ssl.create_default_context(cafile=config.truststore)
    except (OSError, ValueError) as error:
        file = config.jwks_file or config.truststore
        raise ConfigError(f"listener {config.listener}: {file} cannot be used: {_reason(error)}") from None


def read_keys(config: OAuthConfig) -> KeySet:
    """Read them; blocks for up to ``READING_S``. Raises OSError or ValueError."""
    if config.jwks_file is not None:
        with open(config.jwks_file, "rb") as file:
            return KeySet.parse(_bounded(file.read(SET_BYTES_MAX + 1)))
    assert config.jwks_url is not None, "signed tokens are taken"
    return KeySet.parse(_get(config))


def _get(config: OAuthConfig) -> bytes:
    import time
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class OnlySecure(HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if not newurl.lower().startswith("https://"):
                raise OSError("it redirects to a place without TLS")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    until = time.monotonic() + READING_S
    context = ssl.create_default_context(cafile=config.truststore)
    request = Request(str(config.jwks_url), headers={"Accept": "application/json"})
    try:
        with build_opener(OnlySecure, HTTPSHandler(context=context)).open(request, timeout=READING_S) as answer:
            got = b""
            while more := answer.read1(1 << 16):
                got = _bounded(got + more)
                if time.monotonic() > until:
                    raise OSError(f"its answer takes longer than {READING_S} s")
            return got
    except HTTPException as error:
        raise OSError(f"its answer is not HTTP's: {type(error).__name__}") from None


def _bounded(text: bytes) -> bytes:
    if len(text) > SET_BYTES_MAX:
        raise ValueError(f"a key set may have {SET_BYTES_MAX} bytes")
    return text


def _reason(error: Exception) -> str:
    with suppress(AttributeError):
        return str(error.reason)  # type: ignore[attr-defined]  # urllib's
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


def _ids(keys: KeySet) -> set[tuple[str | None, tuple[str, ...]]]:
    return {(key.key_id, key.algorithms) for key in keys.keys}
