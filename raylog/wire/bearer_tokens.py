"""Whether a token that a client shows by OAUTHBEARER is right, and whose it is: at one listener.

Three kinds count, each where the listener's settings say so (``oauth_config``):

- the token of the Ray cluster, which all its processes know (``RAY_AUTH_TOKEN``). Who shows it is
  ``User:ray``. The listener keeps its hash and compares in constant time;
- a token that the issuer's keys have signed. Who shows it is ``User:`` and its subject;
- a token that nobody has signed, which proves nothing.

A signature is verified in a thread, ``sasl.CHECKS_MAX`` at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from typing import Any, Final

from raylog.clock import MachineClock
from raylog.security.bearer import Bearer, BearerDone
from raylog.security.json_web_tokens import header_of, signed_claims, subject_of_claims, unsecured_claims
from raylog.security.sasl import AuthenticationError
from raylog.wire.oauth_config import AUDIENCE, UNSECURED, OAuthConfig
from raylog.wire.token_keys import TokenKeys

logger = logging.getLogger("raylog.broker")

RAY_USER: Final = "ray"


class BearerTokens:
    """Verifies tokens from ``start`` to ``stop``. ``ray_token`` None: the Ray has none. Raises
    MissingExtraError if signed tokens are to be verified and the packages for it are not there.
    """

    def __init__(self, config: OAuthConfig, *, ray_token: str | None = None, clock: MachineClock | None = None) -> None:
        config.need_extra()
        self._config = config
        self._clock = clock or MachineClock()
        has_ray_token = config.takes_ray_token and bool(ray_token)
        self._ray_token_hash = _hash(ray_token) if has_ray_token and ray_token else None
        self._keys = TokenKeys(config, self._clock) if config.where is not None else None

    @property
    def takes_any(self) -> bool:
        """Whether there is a token that would be right."""
        return self._ray_token_hash is not None or self._keys is not None or self._config.takes_unsecured

    def start(self) -> None:
        """Begin to read the issuer's keys, and warn of settings that let in more than they seem to."""
        listener, rules = self._config.listener, self._config.rules
        if self._config.takes_unsecured:
            logger.warning("listener %s: %s=true: anybody can be any user there", listener, UNSECURED)
        if self._keys is not None:
            if not rules.audiences:
                logger.warning(
                    "listener %s takes tokens that their issuer made for other services: set %s", listener, AUDIENCE
                )
            self._keys.start()

    async def stop(self) -> None:
        """Idempotent."""
        if self._keys is not None:
            await self._keys.stop()

    async def verify(self, bearer: Bearer, checks: asyncio.Semaphore) -> BearerDone:
        """Who shows it. ``checks`` bounds how many are verified at a time. Raises
        AuthenticationError.
        """
        done = self._ray(bearer.token) or await self._of_claims(bearer.token, checks)
        if bearer.authzid not in (None, done.user):
            raise AuthenticationError("it asks for another user's rights")
        return done

    def _ray(self, token: str) -> BearerDone | None:
        expected = self._ray_token_hash
        is_ray = expected is not None and hmac.compare_digest(_hash(token), expected)
        return BearerDone(RAY_USER) if is_ray else None

    async def _of_claims(self, token: str, checks: asyncio.Semaphore) -> BearerDone:
        claims = unsecured_claims(token) if self._config.takes_unsecured else await self._signed(token, checks)
        now = self._clock.wall_ms() / 1_000
        subject = subject_of_claims(claims, self._config.rules, now)
        ends_in_s = subject.expires_at + self._config.rules.clock_skew_s - now
        expires_in_s = subject.expires_at - now if subject.expires_at > now else ends_in_s
        return BearerDone(subject.name, expires_in_s, ends_in_s)

    async def _signed(self, token: str, checks: asyncio.Semaphore) -> dict[str, Any]:
        if self._keys is None:
            raise AuthenticationError("a token that is not the Ray's, and no other is taken")
        header = header_of(token)
        key = await self._keys.key_for(header)
        async with checks:
            return await asyncio.to_thread(signed_claims, token, header, key)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
