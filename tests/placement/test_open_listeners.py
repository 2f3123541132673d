"""A listener that lets everyone in is open on a loopback address, and needs a word on any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import Authority, settings

from raylog.disks.disk import format_disk, with_listeners
from raylog.disks.started_listeners import checked_openness, openness
from raylog.errors import ConfigError
from raylog.server.broker_server import BrokerServer
from raylog.server.spec import ServerSpec
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire.listeners import Listeners, listeners_of, plaintext
from raylog.wire.open_listeners import default_listeners, is_loopback, refuse_open

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    return settings(authority.signed("broker"), authority.certificate)


def made(text: str, configs: dict[str, str] | None = None) -> Listeners:
    found = listeners_of(text, None, configs)
    assert found is not None
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_addresses_that_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)
    assert default_listeners(host) == plaintext(Endpoint(host, 9092))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "8.8.8.8", "no-such-host.invalid", "::ffff:10.0.0.7"])
def test_addresses_that_others_may_reach(host: str) -> None:
    assert not is_loopback(host)
    assert default_listeners(host) == Listeners(), "a Broker that was given no listener has none there"


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9092", "PLAINTEXT://:9092", "10.0.0.7:9092", "127.0.0.1:9092,SSL://:9093", "SSL://[::]:9093"]
)
def test_what_others_may_reach_without_authentication_is_refused(text: str, stores: dict[str, str]) -> None:
    listeners = made(text, stores if "SSL" in text else None)
    with pytest.raises(ConfigError) as raised:
        refuse_open([listeners], is_insecure=False)
    said = str(raised.value)
    for way in ("Bind it to 127.0.0.1", "SASL_SSL", "ssl.client.auth=required", "give --insecure"):
        assert way in said and "\n" not in said
    (warned,) = refuse_open([listeners], is_insecure=True)
    assert "may read, write and delete everything" in warned and "127.0.0.1" not in warned


def test_authentication_is_enough_on_any_address(stores: dict[str, str]) -> None:
    listeners = made("SASL_SSL://:9093,SASL_PLAINTEXT://:9092", stores)
    assert refuse_open([listeners], is_insecure=False) == []
    assert refuse_open([made("SSL://:9093", stores | {"ssl.client.auth": "required"})], is_insecure=False) == []
    with pytest.raises(ConfigError):
        refuse_open([made("SSL://:9093", stores | {"ssl.client.auth": "requested"})], is_insecure=False)
    mapped = {"listener.security.protocol.map": "SASL_SSL:PLAINTEXT"}
    with pytest.raises(ConfigError, match=r"SASL_SSL://0\.0\.0\.0:9093"):  # the protocol counts, and not the name
        refuse_open([made("SASL_SSL://:9093", mapped)], is_insecure=False)


def test_a_loopback_address_is_open_and_says_so_once() -> None:
    each = [made("127.0.0.1:9092"), made("127.0.0.1:9092"), Listeners()]
    assert refuse_open(each, is_insecure=False) == [
        "Every program of this machine may do everything at PLAINTEXT://127.0.0.1:9092"
    ]


def test_the_ports_that_were_bound_are_named_unless_clients_come_in_elsewhere(tmp_path: Path) -> None:
    texts = ["127.0.0.1:9092", "OTHER://127.0.0.1:9092", "127.0.0.1:9092"]
    folders = [tmp_path / f"broker-{number}" for number in range(3)]
    disks = [
        format_disk(each, cluster_id="c", broker_id=number, rack=None, controllers=[], secret="s")
        for number, each in enumerate(folders)
    ]
    mapped = {"listener.security.protocol.map": "OTHER:PLAINTEXT"}
    advertised = [None, None, "kafka.example:7"]
    given = [
        listeners_of(text, told, mapped if "OTHER" in text else {})
        for text, told in zip(texts, advertised, strict=True)
    ]
    disks = [with_listeners(disk, each) for disk, each in zip(disks, given, strict=True)]
    told = ["PLAINTEXT://127.0.0.1:9093", "OTHER://[::1]:9094", "PLAINTEXT://kafka.example:7"]
    brokers = [{"id": number, "listeners": [text]} for number, text in enumerate(told)]
    where = "OTHER://127.0.0.1:9094, PLAINTEXT://127.0.0.1:9092, PLAINTEXT://127.0.0.1:9093"
    assert openness(disks, brokers) == [f"Every program of this machine may do everything at {where}"]
    (of_none,) = openness(disks[:1], [])
    assert of_none.endswith("at PLAINTEXT://127.0.0.1:9092")


def test_a_broker_whose_port_is_taken_names_the_one_that_it_got(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio
    import socket

    async def told(taken: int) -> int:
        disk = format_disk(tmp_path / "disk", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
        spec = ServerSpec(node_id(0, BROKER_SLOT), disk.directory_id, str(disk.path), "127.0.0.1", 1)
        server = BrokerServer(spec, listeners=made(f"127.0.0.1:{taken}"))
        await server.start()
        try:
            assert server.advertised is not None
            return server.advertised.port
        finally:
            await server.stop()

    with socket.socket() as other, caplog.at_level("INFO", "raylog.broker"):
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        port = asyncio.run(told(taken))
    assert port != taken
    assert f"every program of this machine may do everything at PLAINTEXT://127.0.0.1:{port}" in caplog.messages


def test_what_the_disks_say_counts_where_nothing_is_wanted(tmp_path: Path) -> None:
    disk = format_disk(tmp_path / "broker-0", cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
    assert checked_openness([None], tmp_path, "127.0.0.1", is_insecure=False) == [None]
    with_listeners(disk, made("0.0.0.0:9092"))
    with pytest.raises(ConfigError):
        checked_openness([None], tmp_path, "127.0.0.1", is_insecure=False)
    assert checked_openness([None], tmp_path, "127.0.0.1", is_insecure=True) == [None]
    inside = made("127.0.0.1:9092")
    assert checked_openness([inside], tmp_path, "127.0.0.1", is_insecure=False) == [inside]


def test_an_address_of_the_servers_that_others_reach_needs_the_word_and_is_then_listened_on() -> None:
    with pytest.raises(ConfigError, match=r"PLAINTEXT://10\.0\.0\.7:9092"):
        checked_openness([None, None], None, "10.0.0.7", is_insecure=False)
    found = checked_openness([None, None], None, "10.0.0.7", is_insecure=True)
    assert found == [plaintext(Endpoint("10.0.0.7", 9092))] * 2
    assert checked_openness([Listeners()], None, "10.0.0.7", is_insecure=False) == [Listeners()]


def test_a_broker_that_was_given_none_listens_on_a_loopback_address_only(tmp_path: Path) -> None:
    import asyncio

    async def has_listeners(host: str) -> bool:
        disk = format_disk(tmp_path / host, cluster_id="c", broker_id=0, rack=None, controllers=[], secret="s")
        server = BrokerServer(ServerSpec(node_id(0, BROKER_SLOT), disk.directory_id, str(disk.path), host, 1))
        return bool(server.listeners.each)

    assert asyncio.run(has_listeners("127.0.0.1"))
    assert not asyncio.run(has_listeners("10.0.0.7"))


def test_init_refuses_before_it_starts_anything(tmp_path: Path) -> None:
    import raylog

    for options in ({"listeners": ["0.0.0.0:0"]}, {"host": "10.0.0.7"}):
        with pytest.raises(ConfigError, match=r"insecure=True of raylog\.init"):
            raylog.init(tmp_path / "cluster", brokers=1, ray_address="local", **options)
        assert not list(tmp_path.rglob("meta.properties"))


def test_cluster_yaml_opens_no_listener_as_it_comes() -> None:
    lines = (Path(__file__).resolve().parents[2] / "cluster.yaml").read_text().splitlines()
    told = [line for line in lines if "raylog " in line and not line.lstrip().startswith("#")]
    assert sum("raylog node resources" in line for line in told) == 2
    assert not any("--listeners" in line or "--insecure" in line or "--config" in line for line in told)
    (up,) = [line for line in told if "raylog up" in line]
    assert "--console-port 8900" in up, "on loopback, read-only, with a password: there is no option for anything else"
