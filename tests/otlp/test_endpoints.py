"""Where spans go, by the config: what is an address, and what is added to it."""

from __future__ import annotations

import pytest

from raylog.errors import ConfigError
from raylog.otlp.endpoints import traces_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("", ""),
        ("  ", ""),
        ("http://a:4318", "http://a:4318/v1/traces"),
        (" https://a/ ", "https://a/v1/traces"),
        ("http://[::1]:4318?key=1", "http://[::1]:4318/v1/traces?key=1"),
        ("http://a/as/it/is", "http://a/as/it/is"),
    ],
)
def test_an_address_without_a_path_has_that_of_traces(text: str, endpoint: str) -> None:
    assert traces_endpoint(text) == endpoint


@pytest.mark.parametrize("text", ["a:4318", "grpc://a", "http://", "http://a:0", "http://a:many", "http://me:word@a"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        traces_endpoint(text)
