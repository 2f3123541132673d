"""``/metrics`` of a Broker as a scraper sees it, and the config that opens it."""

from __future__ import annotations

import socket
from urllib.error import HTTPError, URLError

import pytest
from raw_requests import eventually
from scraping import get, parsed

from raylog.client.sync import AdminClient
from raylog.configs.metrics_configs import METRICS_LISTENER, metrics_endpoint
from raylog.errors import ConfigError, RaylogError
from raylog.metrics import table
from raylog.metrics.endpoint import CONNECTIONS_MAX, REQUEST_BYTES_MAX
from raylog.metrics.exposition import OPENMETRICS, PROMETHEUS
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id

pytestmark = pytest.mark.core


def test_a_scraper_gets_the_format_that_it_asks_for(at: dict[int, Endpoint]) -> None:
    kind, text = get(at[0])
    assert kind == PROMETHEUS and parsed(text)[table.LEADERS.name]
    kind, text = get(at[0], accept="application/openmetrics-text;version=1.0.0")
    assert kind == OPENMETRICS and text.endswith("# EOF\n")
    assert get(at[0], "/metrics?of=all")[0] == PROMETHEUS
    assert get(at[0], method="HEAD") == (PROMETHEUS, "")


@pytest.mark.parametrize(
    ("path", "method", "code"), [("/", "GET", 404), ("/metric", "GET", 404), ("/metrics", "POST", 405)]
)
def test_everything_else_is_refused(at: dict[int, Endpoint], path: str, method: str, code: int) -> None:
    with pytest.raises(HTTPError) as refused:
        get(at[0], path, method=method)
    assert refused.value.code == code
    refused.value.close()


def said(at: Endpoint, data: bytes) -> bytes:
    with socket.create_connection((at.host, at.port), timeout=60) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        answer = b""
        while more := stranger.recv(65_536):
            answer += more
        return answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics SMTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nx: " + bytes(40 * REQUEST_BYTES_MAX) + b"\r\n\r\n", b"431"),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\nAccept\xff: \xff;;;,=;q=x\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_what_no_scraper_sends_is_answered_too(at: dict[int, Endpoint], data: bytes, status: bytes) -> None:
    assert said(at[0], data).split(b" ")[1] == status


def test_half_a_request_is_no_request(at: dict[int, Endpoint]) -> None:
    assert said(at[0], b"GET /metrics HTTP/1.1\r\n") == b""
    assert get(at[0])[1]


def test_more_connections_than_are_allowed_are_turned_away_and_the_port_serves_on(at: dict[int, Endpoint]) -> None:
    idle = [socket.create_connection((at[0].host, at[0].port), timeout=60) for _ in range(CONNECTIONS_MAX)]
    try:

        def is_full() -> bool:
            try:
                get(at[0])
            except HTTPError as error:
                error.close()
                return error.code == 503
            return False

        eventually(is_full, "the port to be full")
    finally:
        for each in idle:
            each.close()

    def serves() -> bool:
        try:
            return bool(get(at[0])[1])
        except HTTPError as error:
            error.close()
            return False

    eventually(serves, "the port to serve again")


def test_the_config_opens_moves_and_closes_the_port(running: InProcessCluster, at: dict[int, Endpoint]) -> None:
    broker = running.launcher.servers[node_id(1, BROKER_SLOT)]
    with AdminClient(running.address) as admin:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            admin.alter_configs(broker=1, set={METRICS_LISTENER: f"127.0.0.1:{port}"})
            eventually(lambda: broker.metrics.endpoint is None, "a port that another one has can't be had")
        admin.alter_configs(broker=1, set={METRICS_LISTENER: "localhost:0"})
        moved = eventually(lambda: broker.metrics.endpoint, "another port")
        assert get(moved)[1]
        admin.alter_configs(broker=1, set={METRICS_LISTENER: ""})
        eventually(lambda: broker.metrics.endpoint is None, "the port to be closed")
        with pytest.raises(URLError):
            get(moved)
        admin.alter_configs(broker=1, delete=[METRICS_LISTENER])
        at[1] = eventually(lambda: broker.metrics.endpoint, "that of all brokers")
        assert get(at[1])[1]


def test_connections_that_are_open_when_the_port_closes_end_without_an_error(
    running: InProcessCluster, at: dict[int, Endpoint], caplog: pytest.LogCaptureFixture
) -> None:
    broker = running.launcher.servers[node_id(0, BROKER_SLOT)]
    with (
        socket.create_connection((at[0].host, at[0].port), timeout=60) as idle,
        AdminClient(running.address) as admin,
    ):
        assert get(at[0])[1], "the idle connection is there"
        admin.alter_configs(broker=0, set={METRICS_LISTENER: ""})
        assert idle.recv(1) == b""
        eventually(lambda: broker.metrics.endpoint is None, "the port to be closed")
        admin.alter_configs(broker=0, delete=[METRICS_LISTENER])
        at[0] = eventually(lambda: broker.metrics.endpoint, "another port")
    assert [each.message for each in caplog.records if each.name == "asyncio"] == []


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("", None),
        (" ", None),
        ("127.0.0.1:9404", Endpoint("127.0.0.1", 9404)),
        ("127.9.9.9:0", Endpoint("127.9.9.9", 0)),
        ("localhost:9404", Endpoint("localhost", 9404)),
        ("[::1]:9404", Endpoint("::1", 9404)),
        ("insecure://0.0.0.0:9404", Endpoint("0.0.0.0", 9404)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, endpoint: Endpoint | None) -> None:
    assert metrics_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    ["9404", ":9404", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "http://127.0.0.1:9404", "[]:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no HOST:PORT"):
        metrics_endpoint(text)


@pytest.mark.parametrize("text", ["0.0.0.0:9404", "10.0.0.7:9404", "[::]:9404", "some-node:9404"])
def test_an_address_that_others_reach_has_to_be_meant(text: str) -> None:
    with pytest.raises(ConfigError, match=f"give insecure://{text}".replace("[", r"\[").replace("]", r"\]")):
        metrics_endpoint(text)


def test_a_running_cluster_refuses_it_too(running: InProcessCluster) -> None:
    with AdminClient(running.address) as admin, pytest.raises(RaylogError, match="insecure://"):
        admin.alter_configs(broker="all", set={METRICS_LISTENER: "0.0.0.0:0"})
