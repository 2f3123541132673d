"""The keys of an issuer, over https: when they are read, and what a listener does without them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from key_server import KeyServer, body, hanging
from tokens import Issuer, jwk, rsa_key

from raylog.clock import MachineClock
from raylog.security.json_web_tokens import TokenHeader, UnknownKeyError
from raylog.security.sasl import AuthenticationError
from raylog.wire import token_keys
from raylog.wire.oauth_config import OAuthConfig
from raylog.wire.token_keys import UNKNOWN_KEY_INTERVAL_S, TokenKeys

pytestmark = pytest.mark.core
ENDPOINT = "sasl.oauthbearer.jwks.endpoint."
ISSUER = Issuer()
KEYS = ISSUER.jwks()
NEW = jwk(rsa_key(), "new")
OURS = TokenHeader("RS256", "rsa")


def named(key_id: str) -> TokenHeader:
    return TokenHeader("RS256", key_id)


def key_set(*keys: dict[str, Any]) -> Any:
    return body(json.dumps({"keys": keys}))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[KeyServer]:
    with KeyServer(authority.signed("issuer"), key_set(*KEYS)) as found:
        yield found


@pytest.fixture
def config(server: KeyServer, authority: Authority) -> Callable[..., OAuthConfig]:
    def made(**more: str) -> OAuthConfig:
        told = {"url": server.url, "truststore.location": str(authority.certificate)}
        named = {name.replace("_", "."): value for name, value in more.items()}
        return OAuthConfig.of({ENDPOINT + name: value for name, value in {**told, **named}.items()}, "OUT")

    return made


class StandingClock(MachineClock):
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_keys_come_over_https_from_an_issuer_that_the_truststore_vouches_for(
    config: Callable[..., OAuthConfig], server: KeyServer
) -> None:
    async def work() -> None:
        keys = TokenKeys(config(), MachineClock())
        keys.start()
        await asyncio.sleep(0)  # the first read has begun
        assert (await keys.key_for(OURS)).key_id == "rsa"
        assert server.asked == ["/jwks"]
        await keys.stop()
        await keys.stop()

    asyncio.run(work())


def test_keys_that_nobody_vouches_for_are_not_taken(
    config: Callable[..., OAuthConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path / "other")

    async def work() -> None:
        keys = TokenKeys(config(truststore_location=str(other.certificate)), MachineClock())
        keys.start()
        await until(lambda: "cannot be read" in caplog.text)
        with pytest.raises(AuthenticationError, match="could not be read yet"):
            await keys.key_for(OURS)
        await keys.stop()

    asyncio.run(work())
    assert "no token can be verified: [SSL: CERTIFICATE_VERIFY_FAILED]" in caplog.text


def test_a_new_key_is_read_when_a_token_names_it(config: Callable[..., OAuthConfig], server: KeyServer) -> None:
    clock = StandingClock()

    async def work() -> None:
        keys = TokenKeys(config(), clock)
        keys.start()
        await asyncio.sleep(0)
        await keys.key_for(OURS)
        server.answer = key_set(NEW)
        clock.now_s += UNKNOWN_KEY_INTERVAL_S
        found = await asyncio.gather(*(keys.key_for(named("new")) for _ in range(20)))
        assert {each.key_id for each in found} == {"new"}
        assert len(server.asked) == 2, "all wait for one read"
        with pytest.raises(UnknownKeyError):
            await keys.key_for(OURS)  # it was taken away
        await keys.stop()

    asyncio.run(work())


def test_unknown_keys_are_asked_for_only_so_often(config: Callable[..., OAuthConfig], server: KeyServer) -> None:
    clock = StandingClock()

    async def work() -> None:
        keys = TokenKeys(config(), clock)
        keys.start()
        await asyncio.sleep(0)
        await keys.key_for(OURS)
        for number in range(50):
            with pytest.raises(UnknownKeyError):
                await keys.key_for(named(f"guess {number}"))
        assert len(server.asked) == 1
        clock.now_s += UNKNOWN_KEY_INTERVAL_S
        for number in range(50):
            with pytest.raises(UnknownKeyError):
                await keys.key_for(named(f"guess {number}"))
        assert len(server.asked) == 2
        await keys.stop()

    asyncio.run(work())


def test_a_read_holds_up_nobody_who_does_not_wait_for_it(config: Callable[..., OAuthConfig], server: KeyServer) -> None:
    clock, go_on = StandingClock(), threading.Event()

    async def work() -> None:
        keys = TokenKeys(config(), clock)
        keys.start()
        await asyncio.sleep(0)
        await keys.key_for(OURS)
        server.answer = hanging(go_on, key_set(*KEYS, NEW))
        clock.now_s += UNKNOWN_KEY_INTERVAL_S
        waiting = asyncio.create_task(keys.key_for(named("new")))
        await until(lambda: len(server.asked) == 2)
        assert (await keys.key_for(OURS)).key_id == "rsa"
        assert not waiting.done()
        go_on.set()
        assert (await waiting).key_id == "new"
        await keys.stop()

    asyncio.run(work())


def test_keys_are_read_anew_all_the_time(config: Callable[..., OAuthConfig], server: KeyServer) -> None:
    async def work() -> None:
        keys = TokenKeys(config(refresh_ms="1000"), StandingClock())
        keys.start()
        await asyncio.sleep(0)
        await keys.key_for(OURS)
        server.answer = key_set(NEW)
        await until(lambda: keys._keys is not None and keys._keys.keys[0].key_id == "new")
        await keys.stop()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (body("", 500), "HTTP Error|Internal Server Error"),
        (body("<html>"), "Expecting value"),
        (body('{"keys":[]}'), "none of its 0 keys"),
        (body("[" * 100_000), "nested too deeply"),
        (body(" " * (token_keys.SET_BYTES_MAX + 1)), "may have 1048576 bytes"),
        (body("", 302, Location="http://127.0.0.1:1/jwks"), "without TLS"),
        (body("", 302, Location="file:///etc/hostname"), "is not allowed"),
        (lambda request: request.wfile.write(b"SSH-2.0\r\n\r\n"), "not HTTP's"),
        (lambda request: None, "not HTTP's|closed"),
    ],
)
def test_keys_that_cannot_be_read_are_asked_for_until_they_can(
    config: Callable[..., OAuthConfig], server: KeyServer, caplog: pytest.LogCaptureFixture, answer: Any, why: str
) -> None:
    async def work() -> None:
        server.answer = answer
        keys = TokenKeys(config(retry_backoff_ms="1", retry_backoff_max_ms="4"), StandingClock())
        keys.start()
        await until(lambda: caplog.text.count("cannot be read") >= 4)
        server.answer = key_set(*KEYS)
        await until(lambda: keys._keys is not None)
        assert (await keys.key_for(OURS)).key_id == "rsa"
        await keys.stop()

    asyncio.run(work())
    assert re.search(f"no token can be verified: .*({why})", caplog.text), caplog.text


def test_the_keys_of_before_count_while_they_cannot_be_read(
    config: Callable[..., OAuthConfig], server: KeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StandingClock()

    async def work() -> None:
        keys = TokenKeys(config(), clock)
        keys.start()
        await asyncio.sleep(0)
        await keys.key_for(OURS)
        server.answer = body("", 503)
        clock.now_s += UNKNOWN_KEY_INTERVAL_S
        with pytest.raises(UnknownKeyError):
            await keys.key_for(named("new"))
        assert (await keys.key_for(OURS)).key_id == "rsa"
        await keys.stop()

    asyncio.run(work())
    assert "the keys of before count: " in caplog.text


def test_a_redirect_with_tls_is_followed(config: Callable[..., OAuthConfig], server: KeyServer) -> None:
    def answer(request: Any) -> None:
        (key_set(*KEYS) if request.path == "/there" else body("", 302, Location="/there"))(request)

    server.answer = answer
    assert len(token_keys.read_keys(config()).keys) == len(KEYS)
    assert server.asked == ["/jwks", "/there"]


def test_an_answer_that_takes_for_ever_is_given_up(
    config: Callable[..., OAuthConfig], server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def trickle(request: Any) -> None:
        request.send_response(200)
        request.end_headers()
        while not over.wait(0.01):
            request.wfile.write(b" ")

    server.answer = trickle
    monkeypatch.setattr(token_keys, "READING_S", 0.5)
    with pytest.raises(OSError, match=r"longer than 0\.5 s"):
        token_keys.read_keys(config())
    over.set()


def test_keys_of_a_file_are_read_again_when_a_token_names_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = StandingClock(), tmp_path / "jwks.json"
    config = OAuthConfig.of({ENDPOINT + "url": ISSUER.write(file)}, "OUT")

    async def work() -> None:
        keys = TokenKeys(config, clock)
        keys.start()
        await asyncio.sleep(0)
        await keys.key_for(OURS)
        file.write_text(json.dumps({"keys": [NEW]}))
        clock.now_s += UNKNOWN_KEY_INTERVAL_S
        assert (await keys.key_for(named("new"))).key_id == "new"
        await keys.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(work())
    assert f"listener OUT: {file}: 1 keys of tokens, 0 ignored" in caplog.text
