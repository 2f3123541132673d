"""How a collector is reached, by the environment: which variable counts, and what is refused by its name."""

from __future__ import annotations

import pytest

from raylog.errors import ConfigError
from raylog.otlp.sending import OtlpSettings, settings_for

EXPORTER = "OTEL_EXPORTER_OTLP_"
RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"


def settings(signal: str = "TRACES", **environment: str) -> OtlpSettings:
    return settings_for(signal, "http://a", 1, environment)


def of_exporter(**environment: str) -> OtlpSettings:
    return settings(**{EXPORTER + name: value for name, value in environment.items()})


@pytest.mark.parametrize(("signal", "timeout_s"), [("TRACES", 1.0), ("METRICS", 2.0), ("LOGS", 3.0)])
def test_a_signal_has_its_own_value_else_that_of_all_signals(signal: str, timeout_s: float) -> None:
    names = {"TRACES_TIMEOUT": " 1000 ", "METRICS_TIMEOUT": "2000", "LOGS_TIMEOUT": " ", "TIMEOUT": " 3000 "}
    assert settings(signal, **{EXPORTER + name: value for name, value in names.items()}).timeout_s == timeout_s


def test_blanks_around_a_value_do_not_count() -> None:
    found = of_exporter(CERTIFICATE=" /ca.pem ", TRACES_CLIENT_KEY=" /key.pem ", TIMEOUT=" ", COMPRESSION=" ")
    assert (found.ca, found.key, found.timeout_s, found.is_compressed) == ("/ca.pem", "/key.pem", 10.0, False)


@pytest.mark.parametrize(("compression", "is_compressed"), [("none", False), ("None", False), ("GZIP", True)])
def test_a_value_that_is_known_may_be_given_in_whatever_case(compression: str, is_compressed: bool) -> None:
    assert of_exporter(COMPRESSION=compression, PROTOCOL="HTTP/protobuf").is_compressed is is_compressed


@pytest.mark.parametrize("timeout", ["0", "-1", "1.5", "10s", "²", "٣"])
def test_a_timeout_is_a_number_of_milliseconds_and_at_least_one(timeout: str) -> None:
    assert of_exporter(TIMEOUT="1").timeout_s == 0.001
    with pytest.raises(ConfigError, match=f"OTEL_EXPORTER_OTLP_TIMEOUT='{timeout}' is no number"):
        of_exporter(TIMEOUT=timeout)


def test_a_value_that_is_unknown_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_COMPRESSION=zstd: raylog's brokers know none, gzip"):
        of_exporter(COMPRESSION="zstd")


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("authorization=Basic bWU6d29yZA==", {"authorization": "Basic bWU6d29yZA=="}),
        (",a=1, ,b=2,", {"a": "1", "b": "2"}),
        ("a=1,a=2", {"a": "2"}),
        ("a=", {"a": ""}),
        ("a=1+1", {"a": "1+1"}),
        ("a=%20b%20", {"a": " b "}),
    ],
)
def test_headers_are_pairs_between_commas(text: str, headers: dict[str, str]) -> None:
    assert of_exporter(HEADERS=text).headers == headers


@pytest.mark.parametrize("text", ["secret", "=secret", "%0a=secret", "a=secret%00"])
def test_an_entry_that_is_no_pair_is_refused_by_the_name_of_its_variable_and_not_shown(text: str) -> None:
    for name in (f"{EXPORTER}HEADERS", RESOURCE):
        with pytest.raises(ConfigError, match=f"^{name} has an entry") as refused:
            settings(**{name: text})
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["secret:=1", "n%C3%A4me=secret", "a b=secret", "a=%E2%82%ACsecret"])
def test_a_header_that_http_cannot_carry_is_refused_and_not_shown(text: str) -> None:
    assert of_exporter(HEADERS="x-a_1.b=%C3%A4").headers == {"x-a_1.b": "ä"}
    with pytest.raises(ConfigError, match=r"^OTEL_EXPORTER_OTLP_HEADERS has an entry") as refused:
        of_exporter(HEADERS=text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "raylog"),
        ({RESOURCE: "service.name="}, "raylog"),
        ({RESOURCE: "service.name=other", "OTEL_SERVICE_NAME": " "}, "other"),
        ({RESOURCE: "service.name=other", "OTEL_SERVICE_NAME": " named "}, "named"),
    ],
)
def test_a_service_has_a_name(environment: dict[str, str], name: str) -> None:
    assert settings(**environment).resource == {"service.name": name}


def test_a_resource_may_have_any_letters() -> None:
    assert settings(**{RESOURCE: "region=K%C3%B6ln %E2%82%AC"}).resource["region"] == "Köln €"
