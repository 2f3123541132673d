"""The doors of a listener that takes tokens of OAUTHBEARER: before a client has authenticated, and when it does so again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

from authorized import Clients
from fast_feed import Ask, Door
from feed_doors import asked, framed
from hostile_frames import HOSTILE, USER, changed, real_frames
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from tokens import Issuer, claims, message, rsa_key, unsecured

MECHANISM: Final = "OAUTHBEARER"
SHARES: Final = {"bearer": 8, "renewed": 6}
OAUTH: Final = "sasl.oauthbearer."
ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    1 << 70,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x" * 5_000,
    "\0",
    "\ud800",
    [],
    ["raylog"] * 500,
    {},
    {"a": {"b": {}}},
)
"""Values of a token's parts."""


class Tokens:
    """An issuer that the listener trusts, and messages with its tokens: good ones, signed ones with odd claims or headers, broken ones."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.issuer = Issuer()
        self.settings = {
            OAUTH + "jwks.endpoint.url": self.issuer.write(folder / "jwks.json"),
            OAUTH + "expected.audience": "raylog",
            OAUTH + "expected.issuer": "https://issuer",
        }
        self.good = message(self.issuer.token(claims(USER)))
        chance = random.Random(seed)
        self.messages = [self.good, message(unsecured()), message(self.issuer.token(claims(USER), key=rsa_key()))]
        for algorithm in ("RS256", "PS384", "ES256", "ES512"):
            self.messages.append(message(self.issuer.token(claims(USER), algorithm)))
        for name in ("sub", "exp", "iat", "nbf", "iss", "aud", "scope", "jti"):
            self.messages += [message(self.issuer.token({**claims(USER), name: odd}, "ES256")) for odd in ODD]
        for name in ("alg", "kid", "typ", "jku", "jwk", "crit", "b64", "zip"):
            self.messages += [message(self.issuer.token(claims(USER), "ES256", **{name: odd})) for odd in ODD]
        for whole in (b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"a":' * 2_000, b'{"exp":1e999}', b'{"sub":1,"sub":2}'):
            self.messages += [message(self.issuer.token(whole, "ES256")), message(self.issuer.token(header=whole))]
        for text in ("a" * 3, "..", ".", "=.=.=", "é.é.é"):
            self.messages.append(f"n,,\x01auth=Bearer {text}\x01\x01".encode())
        for extensions in ("a=b\x01", "auth=x\x01", "=\x01", "a" * 3_000 + "=b\x01", "a=b\x01a=c\x01"):
            self.messages.append(message(self.issuer.token(claims(USER)), extensions=extensions))
        self.messages += [changed(chance, chance.choice(self.messages), self.messages) for _ in range(200)]
        self.messages += [*HOSTILE, b"", b"\x01", b"n,,\x01\x01"]


def bearer_doors(clients: Clients, tokens: Tokens) -> list[Door]:
    """``bearer`` and ``renewed``."""
    server = clients.running.launcher.servers[0].router.server
    port = next(each for each in server.ports if each.has_sasl)
    hands = [framed(load_request_schema(17, version)(mechanism=MECHANISM)) for version in (0, 1)]
    told = {
        version: [framed(load_request_schema(36, version)(auth_bytes=each)) for each in tokens.messages]
        for version in (0, 1, 2)
    }
    second = framed(load_request_schema(36, 2)(auth_bytes=b"\x01"))
    sessions = [[hands[1], frame] for frames in told.values() for frame in frames]
    sessions += [[hands[1], frame, second] for frame in told[2]]
    again = list(sessions)
    sessions += [[hands[0], each, b"\x01"] for each in tokens.messages]
    others = [*tokens.messages, *told[2]]
    frames = [*real_frames(clients.topic_id), *hands, *told[1]]
    return [
        Door("bearer", server, port, frames, sessions, SHARES["bearer"], is_sequence=True, others=others),
        Door(
            "renewed",
            server,
            port,
            frames,
            again,
            SHARES["renewed"],
            is_sequence=True,
            others=others,
            log_in=_by_token(tokens.good),
        ),
    ]


def _by_token(good: bytes) -> Any:
    async def log_in(ask: Ask) -> None:
        assert (await asked(ask, 17, 1, mechanism=MECHANISM)).error_code is ErrorCode.none
        last = await asked(ask, 36, 2, auth_bytes=good)
        assert last.error_code is ErrorCode.none, last

    return log_in
