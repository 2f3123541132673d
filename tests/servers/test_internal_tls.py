"""A whole cluster whose links inside have TLS: three brokers, three controllers, native clients."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, settings
from raw_requests import eventually, isr_is_whole, part

import raylog
from raylog.client.admin.admin import NewTopic
from raylog.client.consumer.sync_consumer import Consumer
from raylog.client.links.address import ClusterAddress
from raylog.client.sync import AdminClient, Producer
from raylog.errors import ConfigError, DisconnectedError, RaylogError
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.handshake import HandshakeError
from raylog.wire.internal_tls import SecretInsideTls, secret_bytes
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.core

TIMEOUT_S = 60
VALUES = [b"%d" % number for number in range(300)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=["none", "required"])
def running(request: pytest.FixtureRequest, authority: Authority) -> Iterator[InProcessCluster]:
    links = settings(authority.signed("node"), authority.certificate, ssl_client_auth=request.param)
    with cluster(brokers=3, controllers=3, links=tuple(sorted(links.items()))) as found:
        yield found


@pytest.fixture
def address(running: InProcessCluster) -> ClusterAddress:
    """As a handle has it that has travelled."""
    found: ClusterAddress = pickle.loads(pickle.dumps(running.address))
    return found


def endpoints_inside(running: InProcessCluster) -> dict[str, Endpoint]:
    """Where each process listens for the others."""
    servers = {f"{type(each).__name__} {node}": each for node, each in running.launcher.servers.items()}
    controllers = {f"controller {broker}": each for broker, each in running.controllers.items()}
    return {name: each._endpoint for name, each in {**servers, **controllers}.items()}


def read_all(address: ClusterAddress, topic: str, count: int, **options: Any) -> list[bytes]:
    reading = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", "group_id": topic} | options
    with Consumer(address, **reading) as consumer:
        consumer.subscribe([topic])
        found: list[bytes] = []
        eventually(
            lambda: (
                found.extend(each.value or b"" for each in consumer.consume(count, timeout=1.0)) or len(found) >= count
            ),
            f"{count} records of {topic}",
        )
        consumer.commit()
    return found


def test_records_outlive_their_leader_groups_commit_and_transactions_end(
    running: InProcessCluster, address: ClusterAddress
) -> None:
    topic = "events"
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(running, topic), "all replicas in sync")
    with Producer(address, acks="all") as producer:
        producer.send_batch(topic, VALUES).result(TIMEOUT_S)
        leader = part(running, topic, 0)["leader"]
        running.crash(leader)
        producer.send(topic, b"after").result(TIMEOUT_S)
    eventually(lambda: isr_is_whole(running, topic), "the leader's process is there again")
    with Producer(address, transactional_id="a transaction") as producer:
        with producer.transaction():
            producer.send(topic, b"committed")
        with pytest.raises(RuntimeError), producer.transaction():
            producer.send(topic, b"aborted")
            raise RuntimeError("changed its mind")
    assert read_all(address, topic, len(VALUES) + 2) == [*VALUES, b"after", b"committed"]


def test_each_process_refuses_who_does_not_speak_tls_and_who_does_not_know_the_secret(
    running: InProcessCluster, address: ClusterAddress, authority: Authority, tmp_path: Path
) -> None:
    assert isinstance(address.secret, SecretInsideTls)
    found = endpoints_inside(running)
    kinds = {name.partition(" ")[0] for name in found}
    assert kinds == {"controller", "BrokerServer", "ReplicaServer"}, kinds
    other = Authority(tmp_path / "other")
    strange = SecretInsideTls(
        secret_bytes(address.secret), tuple(sorted(settings(other.signed("x"), other.certificate).items()))
    )
    ignorant = SecretInsideTls(b"a guess", (), address.secret.carried)

    async def refusal(endpoint: Endpoint, secret: Any) -> RaylogError | None:
        try:
            connection = await Connection.open(endpoint, secret=secret, cluster_id=address.cluster_id)
        except RaylogError as error:
            return error
        connection.abort()
        return None

    async def certificate(endpoint: Endpoint) -> bool:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        _, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        has_one = bool(writer.get_extra_info("peercert"))
        writer.transport.abort()
        return has_one

    async def work() -> None:
        for name, endpoint in found.items():
            assert await refusal(endpoint, address.secret) is None, name
            plain = await refusal(endpoint, secret_bytes(address.secret))
            assert isinstance(plain, DisconnectedError), (name, plain)
            assert isinstance(await refusal(endpoint, strange), HandshakeError), name
            assert isinstance(await refusal(endpoint, ignorant), HandshakeError), name
            assert await certificate(endpoint), name

    asyncio.run(work())


def test_a_controller_that_is_replaced_finds_the_others(running: InProcessCluster, address: ClusterAddress) -> None:
    before = running.active
    running.crash_controller(before)
    eventually(lambda: running.active not in (-1, before), "another controller is active")
    running.start_controller(before)
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic("later", 1, 3)])
    eventually(lambda: isr_is_whole(running, "later"), "all replicas in sync")


def test_the_disks_keep_it_for_their_owner_and_a_later_start_goes_by_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    links = tuple(sorted(settings(authority.signed("node"), authority.certificate).items()))
    folder = tmp_path / "data"
    for wanted, has_tls in ((links, True), (None, True), ((), False), (None, False)):
        with cluster(brokers=1, folder=folder, links=wanted) as found:
            assert isinstance(found.address.secret, SecretInsideTls) is has_tls
            files = list(folder.glob("*/internal.json"))
            assert [each.stat().st_mode & 0o777 for each in files] == ([0o600] if has_tls else [])


def test_from_another_machine_the_secret_and_the_authority_lead_inside(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    configs = settings(authority.signed("node"), authority.certificate)
    listeners = listeners_of("PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", None, configs)
    with cluster(brokers=1, listeners=listeners, links=tuple(sorted(configs.items()))) as found:
        secret = secret_bytes(found.address.secret or b"").decode()
        trusting = {"security_protocol": "SSL", "ssl_truststore_location": str(authority.certificate)}
        inside = raylog.connect(bootstrap_servers=found.bootstrap_servers("SSL"), secret=secret, **trusting)
        assert isinstance(inside.address.secret, SecretInsideTls)
        assert inside.status()["cluster_id"] == found.address.cluster_id
        plain = raylog.connect(bootstrap_servers=found.bootstrap_servers(), secret=secret)
        assert plain.address.is_outside, "it has no authority to trust"
        with pytest.raises(ConfigError, match="the secret is not that of cluster"):
            raylog.connect(bootstrap_servers=found.bootstrap_servers("SSL"), secret="a guess", **trusting)
