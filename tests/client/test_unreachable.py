"""Addresses at which nothing useful answers: every way into raylog ends in its time-out, with an error that names the address.

Before ``ray.init`` is called the address is asked; so no Ray runs here, and none is started. Real sockets play what is there instead.
"""

from __future__ import annotations

import logging
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray
import typer

import raylog
from raylog import TopicPartition
from raylog.cli.main import app, main
from raylog.client import bootstrap
from raylog.client.links.address import ClusterAddress
from raylog.cluster import arrange, find
from raylog.disks.disk import format_disk, with_controllers
from raylog.errors import ClientTimeoutError, ClusterError, DiskError, RayError
from raylog.placement import ray_connection
from raylog.placement.ray_connection import Deadline, RayTarget
from raylog.types import Endpoint

pytestmark = pytest.mark.core

TIMEOUT_S = 0.3
AMPLE_S = 20.0
LIMITS = {"request_timeout_ms": 300, "default_api_timeout_ms": 300}


# ------------------------------------------------------------------ what is there instead


@contextmanager
def listening(backlog: int = 16) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        yield listener


def endpoint_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


@contextmanager
def unresolved() -> Iterator[str]:
    yield "no-such-host.invalid:6379"


@contextmanager
def closed() -> Iterator[str]:
    with socket.socket() as held:  # bound, and so nobody else's, but nothing listens
        held.bind(("127.0.0.1", 0))
        yield endpoint_of(held)


@contextmanager
def mute() -> Iterator[str]:
    with listening() as listener:
        yield endpoint_of(listener)


@contextmanager
def full() -> Iterator[str]:
    """A port whose backlog is full: the kernel drops each further SYN, as a firewall does."""
    with listening(backlog=0) as listener, ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield endpoint_of(listener)


@contextmanager
def hanging_up() -> Iterator[str]:
    """Accepts and closes at once, as a process that is ending may."""

    def hang_up() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return

    with listening() as listener:
        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            yield endpoint_of(listener)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class _Silent(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Not on stderr."""


@contextmanager
def http() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


Fault = Callable[[], Any]
FAULTS: dict[Fault, str] = {  # patterns
    unresolved: r"does not resolve|no name server said within 0\.3 s",  # the latter on a machine that is busy
    closed: "refused",
    mute: "nothing answered within 0.3 s",
    full: "did not accept a connection within 0.3 s",
    hanging_up: "closed without an answer",
    http: "not the head of a Ray",
}
SAID_AT_ONCE = (closed, hanging_up, http)
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)


@pytest.fixture
def silent_once_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out of what accepts a connection and says nothing begins with the connection, however long that takes."""

    def dial(target: RayTarget, deadline: Deadline) -> None:
        dial_ray(target, Deadline.after(AMPLE_S))
        object.__setattr__(deadline, "at", Deadline.after(deadline.timeout_s).at)

    dial_ray = ray_connection.dial
    monkeypatch.setattr(ray_connection, "dial", dial)


@pytest.fixture
def ample_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers at once has time to, however busy the machine is: only silence is judged by a short time-out."""
    fault = request.getfixturevalue("fault")
    if fault in SAID_AT_ONCE:
        monkeypatch.setattr(f"{__name__}.TIMEOUT_S", AMPLE_S)
    elif fault is mute:
        request.getfixturevalue("silent_once_connected")


# ------------------------------------------------------------------ by the address of a Ray

RAY_ENTRIES: dict[str, Callable[[str, Path], Any]] = {
    "connect": lambda address, _: raylog.connect(ray_address=address, timeout_s=TIMEOUT_S),
    "find": lambda address, _: find(address, timeout_s=TIMEOUT_S),
    "init": lambda address, home: raylog.init(home, ray_address=address, timeout_s=TIMEOUT_S),
    "arrange": lambda address, _: arrange(1, ray_address=address, timeout_s=TIMEOUT_S),
}


@pytest.mark.usefixtures("ample_time")
@each_fault
@pytest.mark.parametrize("entry", RAY_ENTRIES)
def test_a_wrong_address_of_a_ray_ends_in_an_error_that_names_it(
    entry: str, fault: Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with fault() as address, caplog.at_level(logging.INFO, "raylog.connect"):
        with pytest.raises(RayError) as refused:
            RAY_ENTRIES[entry](address, tmp_path)
        said = str(refused.value)
        assert address in said and re.search(FAULTS[fault], said)
        assert ("give a numeric address" if "no name server" in said else "correct the address") in said
    assert caplog.messages == [f"Connecting to Ray at {address} (up to {TIMEOUT_S:g} s)…"]
    assert not ray.is_initialized()


def somewhere() -> raylog.Cluster:
    """A handle that asks for no Ray."""
    return raylog.Cluster(address_at("127.0.0.1:1"))


NAMED_ENTRIES: dict[str, Callable[[], Any]] = {
    "connect": lambda: raylog.connect(timeout_s=TIMEOUT_S),
    "read_topic": lambda: raylog.data.read_topic("events", timeout_s=TIMEOUT_S),
    "Ray Data itself": lambda: raylog.data.read_topic("events", cluster=somewhere(), timeout_s=TIMEOUT_S),
    "stream_topic": lambda: raylog.data.stream_topic("events", batch_size=1, timeout_s=TIMEOUT_S),
}


@pytest.mark.usefixtures("ample_time")
@each_fault
@pytest.mark.parametrize("entry", NAMED_ENTRIES)
def test_a_wrong_ray_address_in_the_environment_is_named_as_such(
    entry: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fault() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RayError, match="RAY_ADDRESS") as refused:
            NAMED_ENTRIES[entry]()
    assert address in str(refused.value) and re.search(FAULTS[fault], str(refused.value))


@pytest.mark.usefixtures("ample_time")
@each_fault
def test_a_spark_session_does_not_wait_for_a_ray_that_is_not_there(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("raydp")
    with fault() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RayError, match=FAULTS[fault]):
            raylog.spark.init(timeout_s=TIMEOUT_S)


@pytest.mark.usefixtures("ample_time")
@each_fault
def test_an_address_where_neither_a_broker_nor_a_ray_answers_names_what_was_tried(
    fault: Fault, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "LISTENER_S", 0.3)
    with fault() as address, caplog.at_level(logging.INFO, "raylog.connect"), pytest.raises(RayError) as refused:
        raylog.connect(address, timeout_s=TIMEOUT_S)
    ray_said, _, broker_said = str(refused.value).partition("; nor is a broker there: ")
    assert re.search(FAULTS[fault], ray_said) and address in broker_said
    asked, connecting = caplog.messages
    assert asked == f"No broker listens at {address} ({broker_said}): it is taken for the head of a Ray"
    assert connecting.startswith(f"Connecting to Ray at {address}")


def test_a_numeric_address_is_dialled_though_no_name_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the time is, and however late the thread begins that would ask one."""
    monkeypatch.setattr(ray_connection.threading.Thread, "start", lambda self: None)
    with closed() as address, pytest.raises(RayError, match="refused"):
        raylog.connect(ray_address=address, timeout_s=AMPLE_S)
    with pytest.raises(RayError, match="no name server said"):
        raylog.connect(ray_address="localhost:1", timeout_s=0.01)


def test_what_is_no_address_of_a_ray_is_refused() -> None:
    with pytest.raises(RayError, match=r"'raylog' is no address of a Ray: give host:port"):
        raylog.connect("raylog")
    with pytest.raises(RayError, match="Ray Client"):
        raylog.connect("ray://127.0.0.1:10001")


# ------------------------------------------------------------------ by the address of a cluster


def address_at(endpoint: str) -> ClusterAddress:
    host, _, port = endpoint.rpartition(":")
    return ClusterAddress("events", "raylog", "AAAAAAAAAAAAAAAAAAAAAA", (Endpoint(host, int(port)),), b"secret")


def consume_assigned(cluster: raylog.Cluster) -> None:
    with cluster.consumer(**LIMITS) as consumer:
        consumer.assign([TopicPartition("events", 0)])
        while True:
            consumer.poll_batch(timeout=0.2)


def produce(cluster: raylog.Cluster) -> None:
    with cluster.producer(max_block_ms=300, linger_ms=0, delivery_timeout_ms=300, request_timeout_ms=300) as producer:
        producer.send_batch("events", [b"a"])


HANDLES: dict[str, Callable[[raylog.Cluster], Any]] = {
    "status": lambda cluster: cluster.status(timeout_s=TIMEOUT_S),
    "quorum": lambda cluster: cluster.quorum(timeout_s=TIMEOUT_S),
    "events": lambda cluster: cluster.events(timeout_s=TIMEOUT_S),
    "bootstrap_servers": lambda cluster: cluster.bootstrap_servers(timeout_s=TIMEOUT_S),
    "producer": produce,
    "consumer": consume_assigned,
    "admin": lambda cluster: cluster.admin(**LIMITS).list_topics(),
}


@each_fault
@pytest.mark.parametrize("entry", HANDLES)
def test_a_handle_that_was_unpickled_where_its_cluster_is_not_ends_in_an_error_that_names_its_address(
    entry: str, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    with fault() as address, caplog.at_level(logging.INFO, "raylog.client"):
        cluster = pickle.loads(pickle.dumps(raylog.Cluster(address_at(address))))
        with pytest.raises((ClusterError, ClientTimeoutError)) as refused:
            HANDLES[entry](cluster)
    assert address in str(refused.value)
    assert any(f"Connecting to cluster 'events' at {address}" in line for line in caplog.messages)


@each_fault
def test_a_folder_whose_cluster_does_not_answer_is_an_error_that_names_its_address(
    fault: Fault, tmp_path: Path
) -> None:
    with fault() as address:
        make_folder(tmp_path, address)
        with pytest.raises(ClusterError, match=str(tmp_path)) as refused:
            raylog.connect(folder=tmp_path, timeout_s=TIMEOUT_S)
    assert address in str(refused.value) and "raylog up" in str(refused.value)
    assert not isinstance(refused.value, DiskError | RayError)


def make_folder(home: Path, controller: str) -> None:
    host, _, port = controller.rpartition(":")
    disk = format_disk(
        home / "broker-0", cluster_id="AAAAAAAAAAAAAAAAAAAAAA", broker_id=0, rack=None, controllers=[], secret="s" * 43
    )
    with_controllers(disk, [Endpoint(host, int(port))])


# ------------------------------------------------------------------ commands


def commands_with_an_address() -> Iterator[tuple[str, ...]]:
    """Every command that connects to a Ray, with arguments for what it must be given."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, each in sorted(getattr(command, "commands", {}).items()):
            yield from walk(each, (*path, name))
        if any("--address" in each.opts for each in command.params):
            yield path

    yield from walk(typer.main.get_command(app), ())


PLAN = '{"version": 1, "partitions": [{"topic": "events", "partition": 0, "replicas": [0]}], "topics": [{"topic": "events"}]}'
GIVEN = {
    "acls add": "--topic events --allow-principal User:alice --operation Read",
    "acls remove": "--topic events --force",
    "brokers drain": "0",
    "brokers remove": "0",
    "actors add": "--broker 0",
    "actors move": "events-0 --broker 0 --to 4",
    "actors retire": "4",
    "brokers undrain": "0",
    "client-metrics delete": "all",
    "client-metrics set": "all --metrics *",
    "configs alter": "--entity-type topics --entity-name events --add-config retention.ms=1",
    "configs describe": "--entity-type topics",
    "consume": "events",
    "consumer-perf": "--topic events --num-records 1",
    "delete-records": "--topic events --partition 0 --offset 1",
    "e2e-latency": "--topic events --num-records 1",
    "groups delete": "--group readers",
    "groups describe": "--group readers",
    "groups reset-offsets": "--group readers --all-topics --to-earliest",
    "leader-election": "--election-type preferred --all-topic-partitions",
    "node lend": "lent",
    "node reclaim": "lent",
    "perf consume": "events",
    "perf produce": "events",
    "produce": "events",
    "producer-perf": "--topic events --num-records 1 --record-size 1",
    "quorum describe": "--status",
    "quorum move": "--brokers 0",
    "quotas remove": "--client-id etl",
    "quotas set": "--client-id etl --producer-byte-rate 1000000",
    "reassign cancel": "--reassignment-json-file plan.json",
    "reassign execute": "--reassignment-json-file plan.json",
    "reassign generate": "--topics-to-move-json-file plan.json --broker-list 0",
    "reassign verify": "--reassignment-json-file plan.json",
    "topics alter": "events --partitions 2",
    "topics create": "events",
    "topics delete": "events",
    "topics describe": "events",
    "tokens expire": "--hmac-file hmac",
    "tokens renew": "--hmac-file hmac",
    "transactions abort": "--topic events --partition 0 --start-offset 0",
    "transactions describe": "--transactional-id t",
    "up": "--disks 1",
    "users delete": "alice",
    "users set": "alice --password-file password",
    "verifiable-consumer": "--topic events --group-id readers",
    "verifiable-producer": "--topic events",
}


@pytest.mark.usefixtures("silent_once_connected")
@pytest.mark.parametrize("path", list(commands_with_an_address()), ids=" ".join)
def test_every_command_with_an_address_says_what_it_tries_and_ends(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(PLAN)
    Path("password").write_text("a password\n")
    Path("hmac").write_text("AAAA\n")
    waits = (
        *(("brokers", each) for each in ("drain", "remove", "rebalance")),
        ("actors", "retire"),
        ("quorum", "move"),
        ("consumer-perf",),
    )
    option = "--connect-timeout" if path in waits else "--timeout"
    with mute() as address, pytest.raises(SystemExit) as end:
        main([*path, *GIVEN.get(" ".join(path), "").split(), "--address", address, option, "0.2"])
    said = capsys.readouterr()
    assert end.value.code == 1, said.err
    first, error = said.err.splitlines()
    assert first == f"Connecting to Ray at {address} (up to 0.2 s)…"
    assert error.startswith("raylog: ") and address in error and "correct the address" in error
    assert said.out == ""


@pytest.mark.usefixtures("ample_time")
@each_fault
def test_a_command_names_what_is_wrong_with_the_address(fault: Fault, capsys: pytest.CaptureFixture[str]) -> None:
    with fault() as address, pytest.raises(SystemExit):
        main(["status", "--address", address, "--timeout", str(TIMEOUT_S)])
    assert re.search(FAULTS[fault], capsys.readouterr().err)
