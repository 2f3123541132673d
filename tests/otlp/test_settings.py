"""How a collector is reached, by the environment: which variable counts, and what is refused by its name."""

from __future__ import annotations

import pytest

from raylog.errors import ConfigError
from raylog.otlp.sending import OtlpSettings, settings_for

EXPORTER = "OTEL_EXPORTER_OTLP_"


def settings(signal: str = "TRACES", **environment: str) -> OtlpSettings:
    return settings_for(signal, "http://a", 1, environment)


def of_exporter(**environment: str) -> OtlpSettings:
    return settings(**{EXPORTER + name: value for name, value in environment.items()})


@pytest.mark.parametrize("text", ["secret:=1", "n%C3%A4me=secret", "a b=secret", "a=%E2%82%ACsecret"])
def test_a_header_that_http_cannot_carry_is_refused_and_not_shown(text: str) -> None:
    assert of_exporter(HEADERS="x-a_1.b=%C3%A4").headers == {"x-a_1.b": "ä"}
    with pytest.raises(ConfigError, match=r"^OTEL_EXPORTER_OTLP_HEADERS has an entry") as refused:
        of_exporter(HEADERS=text)
    assert "secret" not in str(refused.value)
