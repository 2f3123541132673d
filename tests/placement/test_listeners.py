"""``listeners`` and ``advertised.listeners``: what they mean, and what is refused."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from raylog.client.bootstrap import endpoints_of
from raylog.disks.disk import (
    Reservation,
    differs,
    format_disk,
    open_disk,
    read_reservation,
    reserve_disk,
    set_listeners,
    with_listeners,
)
from raylog.errors import ConfigError, DiskError
from raylog.placement.resources import advertisement
from raylog.security.protocols import SecurityProtocol
from raylog.server.disk_work import format_folder, promise
from raylog.types import Endpoint
from raylog.wire.listeners import Listeners, checked, listeners_of, listeners_of_brokers, plaintext
from raylog.wire.open_listeners import default_listeners

TLS = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/nowhere/broker.pem"}


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("127.0.0.1:9092", Endpoint("127.0.0.1", 9092)),
        ("PLAINTEXT://kafka.example:19092", Endpoint("kafka.example", 19092)),
        ("[::1]:9092", Endpoint("::1", 9092)),
        (":0", Endpoint("0.0.0.0", 0)),
        ("none", None),
    ],
)
def test_what_is_listened_on(text: str, bind: Endpoint | None) -> None:
    found = listeners_of(text)
    assert found is not None and [each.bind for each in found.each] == ([bind] if bind else [])


@pytest.mark.parametrize(
    ("listeners", "advertised"),
    [
        ("a:1,b:2", None),
        ("a:1", "OUTSIDE://b:1"),
        ("a", None),
        ("a:x", None),
        ("a:70000", None),
        ("a:1", "b:0"),
        ("a:1", "0.0.0.0:9"),
        (None, "b:1"),
        ("none", "b:1"),
    ],
)
def test_what_cannot_be_is_refused(listeners: str | None, advertised: str | None) -> None:
    with pytest.raises(ConfigError, match="listener"):
        listeners_of(listeners, advertised)


def test_a_protocol_is_an_option_of_clients_and_no_part_of_an_address() -> None:
    with pytest.raises(ConfigError, match=r"give host:port, and security\.protocol=SASL_PLAINTEXT beside it"):
        endpoints_of("SASL_PLAINTEXT://a:9092")


def test_clients_are_told_what_was_bound_unless_something_else_is_advertised() -> None:
    bound = Endpoint("127.0.0.1", 9093)
    assert default_listeners("127.0.0.1").each[0].advertised_for(bound) == bound
    assert plaintext(bound, Endpoint("outside", 1)).each[0].advertised_for(bound) == Endpoint("outside", 1)
    everywhere = Endpoint("0.0.0.0", 9092)
    assert plaintext(everywhere).each[0].advertised_for(everywhere) == Endpoint(socket.gethostname(), 9092)


def test_a_disk_keeps_its_brokers_listeners(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "d", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    assert disk.listeners is None
    listeners = listeners_of("PLAINTEXT://[::1]:9092", "kafka.example:19092")
    assert with_listeners(disk, listeners).listeners == open_disk(disk.path).listeners == listeners
    assert with_listeners(disk, Listeners()).listeners == Listeners()
    with_sasl = listeners_of("sasl_plaintext://:9092", "sasl_plaintext://kafka.example:19092")
    assert with_sasl is not None and with_sasl.each[0].protocol is SecurityProtocol.SASL_PLAINTEXT
    assert with_listeners(disk, with_sasl).listeners == open_disk(disk.path).listeners == with_sasl
    assert with_listeners(disk, None).listeners is None


def test_each_broker_is_given_its_own_or_all_look_from_one_port_on() -> None:
    assert listeners_of_brokers(2, None, None) == [None, None]
    assert listeners_of_brokers(2, ["a:1"], None) == [plaintext(Endpoint("a", 1))] * 2
    assert listeners_of_brokers(2, ["a:1", "a:2"], ["b:3", "b:4"]) == [
        plaintext(Endpoint("a", 1), Endpoint("b", 3)),
        plaintext(Endpoint("a", 2), Endpoint("b", 4)),
    ]


@pytest.mark.parametrize(("listeners", "advertised"), [(["a:1"] * 3, None), (["a:1"], ["b:1"]), (None, ["b:1", "b:2"])])
def test_numbers_that_do_not_fit_are_refused(listeners: list[str] | None, advertised: list[str] | None) -> None:
    with pytest.raises(ConfigError, match="listener"):
        listeners_of_brokers(2, listeners, advertised)


def test_what_is_wanted_is_written_to_all_disks_of_a_broker_and_nothing_else(tmp_path: Path) -> None:
    disks = [
        format_disk(tmp_path / str(at), cluster_id="c", broker_id=broker, rack=None, controllers=[], secret="s")
        for at, broker in enumerate((0, 0, 1, 2))
    ]
    wanted = [plaintext(Endpoint("a", 1)), None]
    assert [differs(disk, wanted) for disk in disks] == [True, True, False, False]
    changed = set_listeners(disks, wanted)
    assert [disk.listeners for disk in changed] == [wanted[0], wanted[0], None, None]
    assert not any(differs(disk, wanted) for disk in changed)


def test_what_a_node_says_of_a_blank_folder_is_kept_when_it_is_formatted(tmp_path: Path) -> None:
    listeners = listeners_of("0.0.0.0:9092", "kafka.example:19092")
    advertisement([tmp_path], listeners=listeners)
    reserved = reserve_disk(tmp_path)
    assert reserved.listeners == listeners
    promised = promise(tmp_path, Reservation(reserved.directory_id, None, "c", 0), [])
    assert promised.listeners is None and read_reservation(tmp_path) == replace(promised, listeners=listeners)
    format_folder(tmp_path, promised, secret="s", controllers=[])
    assert open_disk(tmp_path).listeners == listeners
    advertisement([tmp_path], listeners=Listeners())
    assert open_disk(tmp_path).listeners == Listeners(), "a formatted one takes them over, too"
    advertisement([tmp_path])
    assert open_disk(tmp_path).listeners == Listeners()


def test_a_disk_whose_listeners_make_no_sense_is_damaged(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "d", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    properties = disk.path / "meta.properties"
    properties.write_text(properties.read_text() + "listeners=SASL_SSL://a:1\n")
    with pytest.raises(DiskError, match="has no certificate"):
        open_disk(disk.path)


def test_a_listener_has_the_protocol_that_the_map_gives_its_name() -> None:
    found = listeners_of(
        "in://:9091, Ssl://[::1]:9092", None, {"listener.security.protocol.map": "IN:plaintext,ssl:ssl"} | TLS
    )
    assert found is not None
    assert [(each.name, each.protocol.value, str(each.bind)) for each in found.each] == [
        ("IN", "PLAINTEXT", "0.0.0.0:9091"),
        ("SSL", "SSL", "::1:9092"),
    ]
    both = listeners_of(
        "A://127.0.0.1:9092,B://[::1]:9092", None, {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
    )
    assert both is not None and len(both.each) == 2, "one port of IPv4 and IPv6"
    assert listeners_of(str(both), None, dict(both.configs)) == both


def test_a_listener_that_is_left_out_of_those_advertised_is_not_told() -> None:
    found = listeners_of("PLAINTEXT://a:1,SSL://a:2", "SSL://b:3", TLS)
    assert found is not None
    assert [(each.is_advertised, each.advertised) for each in found.each] == [(False, None), (True, Endpoint("b", 3))]
    assert listeners_of(str(found), found.advertised_text, TLS) == found


@pytest.mark.parametrize(
    ("listeners", "configs", "why"),
    [
        ("OUT://a:1", {}, "no security protocol is defined for listener OUT"),
        (
            "a:1",
            {"listener.security.protocol.map": "OUT:PLAINTEXT"},
            "no security protocol is defined for listener PLAINTEXT",
        ),
        ("a:1", {"listener.security.protocol.map": "PLAINTEXT"}, "'PLAINTEXT' is not NAME:PROTOCOL"),
        ("a:1", {"listener.security.protocol.map": "PLAINTEXT:TLS"}, "names no security protocol"),
        ("a:1", {"listener.security.protocol.map": "A:SSL,a:SSL"}, "A is there twice"),
        ("SASL_SSL://a:1", {}, "SASL_SSL has no certificate"),
        ("A://a:1,a://a:2", {}, "A is there twice"),
        ("PLAINTEXT://a:1,SSL://b:1", {}, "each listener must have a different port"),
        ("SSL://a:1", {}, "listener SSL has no certificate"),
        ("a:1", {"ssl.client.auth": "none"}, "is for listeners with TLS, and none has it"),
        ("a:1,SSL://a:2", {"listener.name.plaintext.ssl.client.auth": "none"}, "and this one has it"),
        ("SSL://a:1", {"listener.name.out.ssl.client.auth": "none"}, "is for a listener that is not there: SSL"),
        (None, {"ssl.client.auth": "none"}, "ssl.client.auth needs listeners"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(listeners: str | None, configs: dict[str, str], why: str) -> None:
    tls = TLS if "SSL" in str(listeners) and "no certificate" not in why else {}
    with pytest.raises(ConfigError) as raised:
        listeners_of(listeners, None, tls | configs)
    assert why in str(raised.value)


def test_a_disk_keeps_settings_of_listeners_in_a_file_that_only_its_owner_may_read(tmp_path: Path) -> None:
    listeners = listeners_of("PLAINTEXT://a:1,SSL://a:2", None, TLS | {"ssl.key.password": "hidden-42"})
    advertisement([tmp_path], listeners=listeners)
    reserved = reserve_disk(tmp_path)
    assert reserved.listeners == listeners
    format_folder(
        tmp_path, promise(tmp_path, Reservation(reserved.directory_id, None, "c", 0), []), secret="s", controllers=[]
    )
    disk = open_disk(tmp_path)
    assert disk.listeners == listeners and "hidden-42" not in repr(disk)
    holding = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if "hidden-42" in path.read_text()}
    assert holding == {"listeners.json": 0o600}
    (tmp_path / "meta.properties").write_text(
        (tmp_path / "meta.properties").read_text().replace("SSL://a:2", "SSL://a:3")
    )
    assert open_disk(tmp_path).listeners == listeners, "whose settings these are"
    assert with_listeners(disk, plaintext(Endpoint("a", 1))).listeners == open_disk(tmp_path).listeners
    assert not (tmp_path / "listeners.json").exists()


def test_certificates_are_read_before_a_start_goes_on(tmp_path: Path) -> None:
    found = listeners_of_brokers(2, ["SSL://a:1"], None, TLS)
    with pytest.raises(ConfigError, match=r"listener SSL: /nowhere/broker\.pem cannot be read"):
        checked(found)
