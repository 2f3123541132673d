"""``security.inter.broker.protocol`` of a start, and which settings of TLS go with it."""

from __future__ import annotations

import pytest

from raylog.configs.link_configs import IDENTIFICATION, PROTOCOL
from raylog.configs.server_properties import merged
from raylog.errors import ConfigError

STORES = {"ssl.keystore.location": "/broker.pem", "ssl.truststore.location": "/trusted.pem", "ssl.key.password": "x-42"}


def test_nothing_said_leaves_links_as_they_are_and_plaintext_makes_them_plain() -> None:
    assert merged((), STORES).link_configs is None
    told = merged((), {PROTOCOL: "plaintext", **STORES})
    assert (told.link_configs, told.listener_configs, told.configs) == ({}, STORES, {})


def test_links_have_the_settings_of_all_listeners_and_their_own() -> None:
    own = {"listener.name.internal.ssl.client.auth": "required", IDENTIFICATION: ""}
    others = {"listener.name.out.ssl.client.auth": "none"}
    told = merged((), {PROTOCOL: "SSL", **STORES, **own, **others})
    assert told.link_configs == STORES | own
    assert told.listener_configs == STORES | others, "what is of links alone is none of a listener"
    assert told.configs == {} and told.notices == () and "x-42" not in repr(told)


def test_a_listener_that_is_called_internal_keeps_its_settings() -> None:
    own = {"listener.name.internal.ssl.client.auth": "required"}
    mapped = {"listeners": "INTERNAL://:9092", "listener.security.protocol.map": "INTERNAL:SSL"}
    told = merged((), {PROTOCOL: "SSL", **STORES, **own, **mapped})
    assert told.link_configs == STORES | own
    assert told.listener_configs.items() >= own.items()


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT", "TLS"])
def test_other_protocols_are_refused(protocol: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{PROTOCOL}={protocol} is refused"):
        merged((), {PROTOCOL: protocol, **STORES})


def test_tls_needs_stores() -> None:
    with pytest.raises(ConfigError, match=r"needs ssl\.keystore\.location and ssl\.truststore\.location"):
        merged((), {PROTOCOL: "SSL"})
