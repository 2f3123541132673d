"""What a listener is told about tokens, and what it refuses to be told."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokens import Issuer

from raylog import extras
from raylog.configs.server_properties import merged
from raylog.disks.listener_file import wanted_listeners
from raylog.errors import ConfigError, MissingExtraError
from raylog.security.json_web_tokens import TokenRules
from raylog.wire.listeners import Listeners, checked, listeners_of
from raylog.wire.oauth_config import OAuthConfig

OAUTH = "sasl.oauthbearer."
ENDPOINT = OAUTH + "jwks.endpoint."
HTTPS = {ENDPOINT + "url": "https://issuer:8443/jwks?x=1"}


def test_a_listener_that_is_told_nothing_has_kafkas_defaults_and_takes_the_rays_token() -> None:
    assert OAuthConfig.of({}, "OUT") == OAuthConfig(
        "OUT", None, None, None, 3_600_000, 100, 10_000, TokenRules(), takes_ray_token=True, takes_unsecured=False
    )
    assert TokenRules() == TokenRules(frozenset(), None, 30, "scope", "sub")


def test_all_that_can_be_told_is_heard() -> None:
    told = {
        **HTTPS,
        ENDPOINT + "refresh.ms": "60000",
        ENDPOINT + "retry.backoff.ms": "7",
        ENDPOINT + "retry.backoff.max.ms": "70",
        ENDPOINT + "truststore.location": "/ca.pem",
        OAUTH + "expected.audience": "a, b",
        OAUTH + "expected.issuer": "https://issuer",
        OAUTH + "clock.skew.seconds": "0",
        OAUTH + "scope.claim.name": "scp",
        OAUTH + "sub.claim.name": "email",
        OAUTH + "ray.token.enable": "False",
    }
    rules = TokenRules(frozenset({"a", "b"}), "https://issuer", 0, "scp", "email")
    assert OAuthConfig.of(told, "OUT") == OAuthConfig(
        "OUT", HTTPS[ENDPOINT + "url"], None, Path("/ca.pem"), 60_000, 7, 70, rules, False, False
    )


@pytest.mark.parametrize(
    "url", ["file:///a%20b/jwks.json", "file://localhost/a%20b/jwks.json", " FILE:/a%20b/jwks.json "]
)
def test_keys_may_be_in_a_file(url: str) -> None:
    found = OAuthConfig.of({ENDPOINT + "url": url}, "OUT")
    assert (found.jwks_file, found.jwks_url, found.where) == (Path("/a b/jwks.json"), None, "/a b/jwks.json")


def test_a_listeners_own_setting_goes_before_that_of_all() -> None:
    told = {OAUTH + "sub.claim.name": "x", f"listener.name.out.{OAUTH}sub.claim.name": "y"}
    assert OAuthConfig.of(told, "OUT").rules.subject_claim == "y"
    assert OAuthConfig.of(told, "IN").rules.subject_claim == "x"
    none = {**HTTPS, f"listener.name.out.{ENDPOINT}url": ""}
    assert (OAuthConfig.of(none, "OUT").where, OAuthConfig.of(none, "IN").where) == (None, HTTPS[ENDPOINT + "url"])


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({ENDPOINT + "url": "http://issuer/jwks"}, "use https://"),
        ({ENDPOINT + "url": "/etc/jwks.json"}, "neither https://HOST/PATH nor file:///PATH"),
        ({ENDPOINT + "url": "https:///jwks"}, "neither https://"),
        ({ENDPOINT + "url": "https://issuer:0x/jwks"}, "is no URL"),
        ({ENDPOINT + "url": "file://host/jwks"}, "neither https://"),
        ({ENDPOINT + "url": "file:jwks"}, "neither https://"),
        ({ENDPOINT + "url": "https://me:hidden-42@issuer/jwks"}, "which logs would show"),
        ({**HTTPS, ENDPOINT + "refresh.ms": "999"}, "must be from 1000 to 2147483647"),
        ({**HTTPS, ENDPOINT + "refresh.ms": "1e9"}, "must be from 1000"),
        ({**HTTPS, ENDPOINT + "retry.backoff.ms": "0"}, "must be from 1"),
        ({**HTTPS, ENDPOINT + "retry.backoff.max.ms": "99"}, "is less than"),
        ({OAUTH + "clock.skew.seconds": "-1"}, "must be from 0"),
        ({OAUTH + "clock.skew.seconds": "9" * 5_000}, "must be from 0"),
        ({OAUTH + "ray.token.enable": "yes"}, "neither true nor false"),
        ({OAUTH + "unsecured.jwt.enable": "1"}, "neither true nor false"),
        ({**HTTPS, OAUTH + "unsecured.jwt.enable": "true"}, "anybody can make a token"),
        ({ENDPOINT + "refresh.ms": "60000"}, "has no effect without sasl.oauthbearer.jwks.endpoint.url"),
        ({ENDPOINT + "url": "file:///x", ENDPOINT + "truststore.location": "/ca.pem"}, "begins with https://"),
        ({"listener.name.in." + OAUTH + "clock.skew.seconds": "1"}, "a listener that is not there"),
        ({"listener.name.plain." + OAUTH + "clock.skew.seconds": "1"}, "for listeners with SASL, and this one has it"),
        ({"ssl.client.auth": "none"}, "for listeners with TLS, and none has it"),
    ],
)
def test_what_a_listener_cannot_go_by_is_refused(told: dict[str, str], why: str) -> None:
    names = {"listener.security.protocol.map": "PLAIN:PLAINTEXT,OUT:SASL_PLAINTEXT"}
    with pytest.raises(ConfigError) as raised:
        listeners_of("PLAIN://:1,OUT://:2", None, {**names, **told})
    assert why in str(raised.value)
    assert "hidden-42" not in str(raised.value)


def test_settings_of_tokens_need_a_listener_with_sasl() -> None:
    with pytest.raises(ConfigError, match="for listeners with SASL, and none has it: name one SASL_SSL"):
        listeners_of("PLAINTEXT://:1", None, HTTPS)


# ------------------------------------------------------------------ a start


def start(**said: str) -> list[Listeners | None]:
    values = {"listeners": "SASL_PLAINTEXT://:1", **{name.replace("_", "."): value for name, value in said.items()}}
    return wanted_listeners(1, None, None, merged((), values))


def test_a_start_reads_the_keys_of_a_file(tmp_path: Path) -> None:
    url = Issuer().write(tmp_path / "jwks.json")
    assert start(sasl_enabled_mechanisms="OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=url)
    (tmp_path / "jwks.json").write_text('{"keys":[]}')
    for file in (url, url + "x"):
        with pytest.raises(ConfigError, match=r"listener SASL_PLAINTEXT: /.*jwks\.jsonx? cannot be used: "):
            start(sasl_oauthbearer_jwks_endpoint_url=file)


def test_a_start_reads_the_authorities_of_a_url(tmp_path: Path) -> None:
    listeners = listeners_of(
        "SASL_PLAINTEXT://:1", None, {**HTTPS, ENDPOINT + "truststore.location": str(tmp_path / "x")}
    )
    with pytest.raises(ConfigError, match="x cannot be used: No such file"):
        checked([listeners])


def test_a_start_whose_listener_could_take_no_token_is_refused() -> None:
    assert start(sasl_enabled_mechanisms="OAUTHBEARER"), "the Ray may have a token"
    assert start(sasl_oauthbearer_ray_token_enable="false"), "OAUTHBEARER is not enabled"
    with pytest.raises(
        ConfigError, match=r"takes no tokens for OAUTHBEARER: set sasl\.oauthbearer\.jwks\.endpoint\.url"
    ):
        start(sasl_enabled_mechanisms="PLAIN,OAUTHBEARER", sasl_oauthbearer_ray_token_enable="false")


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_a_start_that_takes_signed_tokens_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda package: package != missing)
    with pytest.raises(MissingExtraError) as raised:
        start(sasl_oauthbearer_jwks_endpoint_url="https://issuer/jwks")
    assert str(raised.value) == (
        f"sasl.oauthbearer.jwks.endpoint.url needs {missing}, which is not installed: pip install 'raylog[oauth]'"
    )
    assert start(sasl_enabled_mechanisms="OAUTHBEARER"), "the Ray's token needs nothing"
