"""Brokers with two listeners, one of them with TLS: what clients of each are told, and what happens to their connections."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import itertools
import logging
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from first_leaders import preferred_leaders_are_awaited
from kio.schema.errors import ErrorCode
from outside import fetch, metadata, parts, produce, request
from raw_requests import batch, eventually, isr_is_whole
from wire_ends import read_frame

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.kafka.chain import Verdict
from raylog.listener.moves import PATIENCE
from raylog.server.broker_server import BrokerServer
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire.frames import api_of, client_id_field, decode_response, encode_request
from raylog.wire.listeners import Listeners, listeners_of

pytestmark = pytest.mark.core

SECRET = "hidden-42"
_topics = itertools.count()


class Site:
    """A cluster of three brokers, and the certificates of its listener OUT."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.keystore = self.authority.signed("broker", password=SECRET)
        mapped = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUT:SSL"}
        rules = {"ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"}
        trusting = settings(
            self.keystore, self.authority.certificate, ssl_client_auth="requested", ssl_key_password=SECRET
        )
        found = listeners_of("PLAINTEXT://127.0.0.1:0,OUT://127.0.0.1:0", None, mapped | rules | trusting)
        assert found is not None
        self.listeners: Listeners = found
        self.running: InProcessCluster
        self.address: Any

    def broker(self, broker: int) -> BrokerServer:
        server = self.running.launcher.servers[node_id(broker, BROKER_SLOT)]
        assert isinstance(server, BrokerServer)
        return server

    def endpoint(self, broker: int, listener: str) -> Endpoint:
        return next(each.endpoint for each in self.broker(broker).advertised_listeners if each.name == listener)

    def endpoints(self, listener: str) -> dict[int, tuple[str, int]]:
        found = {broker: self.endpoint(broker, listener) for broker in range(3)}
        return {broker: (each.host, each.port) for broker, each in found.items()}

    def new_topic(self, *brokers: int) -> str:
        name = f"topic-{next(_topics)}"
        with AdminClient(self.running.address) as admin:
            admin.create_topics([NewTopic(name, replica_assignment={0: brokers})])
        eventually(lambda: isr_is_whole(self.running, name), f"all replicas of {name} in sync")
        return name


class Client:
    """One connection to a listener; with TLS to OUT."""

    def __init__(self, site: Site, broker: int, listener: str, own: Path | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        context = ssl.create_default_context(cafile=str(site.authority.certificate))
        if own is not None:
            context.load_cert_chain(own)
        at = site.endpoint(broker, listener)
        opened = asyncio.open_connection(at.host, at.port, ssl=context if listener == "OUT" else None)
        self._reader, self._writer = self._run(opened)
        self._number = 0

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, 60))

    def ask(self, entity: Any) -> Any:
        self._number += 1
        self._writer.writelines(encode_request(entity, self._number, client_id_field("c")))
        key, version = api_of(entity)
        return decode_response(key, version, self._run(read_frame(self._reader)))

    @property
    def port(self) -> int:
        return int(self._writer.get_extra_info("sockname")[1])

    @property
    def certificate(self) -> str:
        return hashlib.sha256(self._writer.get_extra_info("ssl_object").getpeercert(True)).hexdigest()

    def close(self) -> None:
        async def end() -> None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

        self._run(end())
        self._loop.close()


class Noting:
    """A stage that notes who asks, and by which listener."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def judge(self, request: Any) -> list[Verdict]:
        self.seen.append((request.context.principal, request.context.listener))
        return []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("certificates"))
    with preferred_leaders_are_awaited(), cluster(brokers=3, listeners=found.listeners) as running:
        found.running = running
        yield found


@pytest.fixture
def client(site: Site) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def open_(listener: str, broker: int = 0, own: Path | None = None) -> Client:
        opened.append(Client(site, broker, listener, own))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.mark.parametrize("listener", ["PLAINTEXT", "OUT"])
def test_a_client_is_told_the_endpoints_of_the_listener_that_it_came_in_by(
    site: Site, client: Callable[..., Client], listener: str
) -> None:
    one, wanted = client(listener), site.endpoints(listener)
    seen = {each.node_id: (each.host, each.port) for each in one.ask(metadata()).brokers}
    assert seen == wanted
    described = one.ask(request(60, 1, include_cluster_authorized_operations=False, endpoint_type=1))
    assert {each.broker_id: (each.host, each.port) for each in described.brokers} == wanted
    found = eventually(lambda: coordinator(one), "a coordinator")
    assert (found.host, found.port) == wanted[found.node_id]
    topic = site.new_topic(1, 0)
    refused = one.ask(produce(topic, {0: batch(b"v")}, version=10))
    assert refused.responses[0].partition_responses[0].error_code is ErrorCode.not_leader_or_follower
    assert [(each.node_id, each.host, each.port) for each in refused.node_endpoints] == [(1, *wanted[1])]


def coordinator(one: Client) -> Any:
    (found,) = one.ask(request(10, 4, key_type=0, coordinator_keys=("a group",))).coordinators
    return found if found.error_code is ErrorCode.none else None


def test_a_connection_with_tls_stays_at_the_listener_and_one_without_moves(
    site: Site, client: Callable[..., Client]
) -> None:
    topic, server = site.new_topic(0, 1, 2), site.broker(0).router
    assert server is not None
    secure, plain = client("OUT"), client("PLAINTEXT")
    before = server.server.connections_elsewhere
    for number in range(PATIENCE * 4):
        (answer,) = secure.ask(produce(topic, {0: batch(b"v%d" % number)})).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, number)
    (held,) = [each for each in server.server.connections if each.peername.endswith(f":{secure.port}")]
    assert (held.came_back, held.is_leaving, server.server.connections_elsewhere) == (0, False, before)

    def moves() -> bool:
        plain.ask(produce(topic, {0: batch(b"p")}))
        return server.server.connections_elsewhere > before

    eventually(moves, "the plain connection at the host")
    read = parts(secure.ask(fetch(topic, {0: 0}, max_wait_ms=500)))[0]
    assert read.error_code is ErrorCode.none and b"v15" in bytes(read.records)


def test_the_principal_of_a_certificate_goes_with_the_request_to_the_process_that_leads(
    site: Site, client: Callable[..., Client]
) -> None:
    topic = site.new_topic(0)
    hosts = [
        each
        for node, each in site.running.launcher.servers.items()
        if node >> 16 == 0 and isinstance(each, ReplicaServer)
    ]
    noting = Noting()
    for host in hosts:
        host._server.stages = (noting,)
    try:
        client("OUT", own=site.authority.signed("alice")).ask(produce(topic, {0: batch(b"v")}))
        client("OUT").ask(produce(topic, {0: batch(b"v")}))
        client("PLAINTEXT").ask(produce(topic, {0: batch(b"v")}))
    finally:
        for host in hosts:
            host._server.stages = ()
    outside = [each for each in noting.seen if not each[0].startswith("Cluster:")]
    assert outside == [("User:alice", "OUT"), ("User:ANONYMOUS", "OUT"), ("User:ANONYMOUS", "PLAINTEXT")]


def test_a_certificate_whose_file_changes_is_that_of_new_connections_and_open_ones_stay(
    site: Site, client: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    one, topic = client("OUT"), site.new_topic(0)
    before = one.certificate

    def new_certificate() -> str:
        with_new = Client(site, 0, "OUT")
        try:
            return with_new.certificate
        finally:
            with_new.close()

    assert new_certificate() == before
    with caplog.at_level(logging.ERROR, "raylog.broker"):
        site.keystore.write_text("half a certificate")
        eventually(lambda: "listener OUT keeps its certificates" in caplog.text, "the report of a broken file")
    assert new_certificate() == before and SECRET not in caplog.text
    site.authority.signed("broker", password=SECRET)
    after = eventually(lambda: (found := new_certificate()) != before and found, "the new certificate")
    assert one.ask(produce(topic, {0: batch(b"v")})).responses[0].partition_responses[0].error_code is ErrorCode.none
    assert one.certificate == before != after == client("OUT").certificate


def test_configs_show_names_and_protocols_and_nothing_that_is_secret(site: Site, client: Callable[..., Client]) -> None:
    module_entity = request(32, 4, resources=(), include_synonyms=True, include_documentation=True)
    module = importlib.import_module(type(module_entity).__module__)
    resource = module.DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None)
    (result,) = client("OUT").ask(replace(module_entity, resources=(resource,))).results
    shown = {each.name: each.value for each in result.configs}
    told = {name: "{}:{}".format(*at[0]) for name in ("PLAINTEXT", "OUT") if (at := site.endpoints(name))}
    assert shown["advertised.listeners"] == ",".join(f"{name}://{at}" for name, at in told.items())
    assert shown["listener.security.protocol.map"] == "PLAINTEXT:PLAINTEXT,OUT:SSL"
    assert SECRET not in repr(result) and SECRET not in repr(site.listeners)


def test_a_broker_without_the_clients_listener_is_not_shown_and_what_it_leads_has_an_error(
    site: Site, client: Callable[..., Client]
) -> None:
    topic = site.new_topic(2, 0)
    launcher, node = site.running.launcher, node_id(2, BROKER_SLOT)
    both = launcher._bound[node]
    launcher._bound[node] = replace(both, each=tuple(each for each in both.each if each.name == "PLAINTEXT"))
    again(site, node)
    secure, plain = client("OUT"), client("PLAINTEXT")
    try:
        eventually(lambda: len(secure.ask(metadata()).brokers) == 2, "two brokers at OUT")
        eventually(lambda: len(plain.ask(metadata()).brokers) == 3, "three brokers at PLAINTEXT")
        for version, error in ((6, ErrorCode.listener_not_found), (5, ErrorCode.leader_not_available)):
            (part,) = secure.ask(metadata(topic, version=version)).topics[0].partitions
            assert (part.error_code, part.leader_id) == (error, -1)
        (part,) = plain.ask(metadata(topic)).topics[0].partitions
        assert (part.error_code, part.leader_id) == (ErrorCode.none, 2)
    finally:
        launcher._bound[node] = both
        again(site, node)
    eventually(lambda: len(secure.ask(metadata()).brokers) == 3, "all three again")


def again(site: Site, node: int) -> None:
    before = site.running.launcher.servers[node]
    site.running.crash(node)
    site.running.await_true(lambda: site.running.launcher.servers.get(node, before) is not before)
