"""Links with TLS between the nodes of a running Ray, each of which has a certificate for its own address alone."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray_clusters import PATIENCE_S, eventually, kept_environment

import raylog
from raylog import NewTopic
from raylog.disks.certificate_authority import CertificateAuthority
from raylog.errors import DisconnectedError, DiskError
from raylog.placement.ray_start import started
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.internal_tls import SecretInsideTls, secret_bytes

pytestmark = pytest.mark.ray

SMALL: dict[str, Any] = {"object_store_memory": 80 * 1024 * 1024, "num_cpus": 1}
ADVERTISES, LENDS = "127.0.0.2", "127.0.0.3"


class Site:
    """An authority, and the folder that a node has of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority.new(datetime.datetime.now(datetime.UTC), days=1)

    def disk(self, host: str) -> Path:
        path = self.folder / f"disk-{host}"
        path.mkdir(exist_ok=True)
        return path

    def configs(self, host: str) -> dict[str, str]:
        """What a node at that address says; its files are made."""
        made = self.authority.server("node", [host], datetime.datetime.now(datetime.UTC), days=1)
        keystore, truststore = self.folder / f"{host}.pem", self.folder / "authority.pem"
        keystore.write_text(made.key + made.certificate)
        truststore.write_text(self.authority.certificate)
        return {
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(truststore),
        }


@pytest.fixture(scope="module")
def site(short_folder: Path) -> Site:
    return Site(short_folder)


@pytest.fixture(scope="module")
def ray_cluster(site: Site) -> Iterator[Any]:
    """A head and two nodes, each at an address of its own. One of them says at its start which disk it has."""
    with kept_environment("RAY_AUTH_MODE", "RAY_ADDRESS"):
        os.environ.pop("RAY_ADDRESS", None)
        head = {**SMALL, "include_dashboard": False}
        found = started(lambda: RayCluster(initialize_head=True, head_node_args=head))
        resources = json.loads(command("node", "resources", site.disk(ADVERTISES), configs=site.configs(ADVERTISES)))
        started(lambda: found.add_node(**SMALL, node_ip_address=ADVERTISES, resources=resources))
        started(lambda: found.add_node(**SMALL, node_ip_address=LENDS))
        ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
        yield found
        ray.shutdown()
        found.shutdown()


def command(*arguments: object, configs: dict[str, str]) -> str:
    options = [text for name, value in configs.items() for text in ("--config", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "raylog.cli.main", *map(str, arguments), *options],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def servers(cluster: raylog.Cluster) -> list[Endpoint]:
    def live() -> list[int]:
        return [each["id"] for each in cluster.status()["brokers"] if each["live"]]

    eventually(lambda: live() == [0, 1, 2], "three brokers")  # init waits for those of its own disks
    status = cluster.status()
    told = [Endpoint.of(each["endpoint"]) for each in status["actors"] if each["endpoint"] is not None]
    return list({*cluster.address.bootstrap, *told})


def answering(cluster: raylog.Cluster) -> list[Endpoint]:
    """The same, once all of them answer: for a while after a start, the metadata name some of before."""
    found: list[Endpoint] = []

    def do_answer() -> bool:
        found[:] = servers(cluster)
        return all(answers(cluster, endpoint) for endpoint in found)

    eventually(do_answer, "all servers")
    return found


def answers(cluster: raylog.Cluster, endpoint: Endpoint) -> bool:
    async def work() -> None:
        secret, cluster_id = cluster.address.secret, cluster.address.cluster_id
        (await Connection.open(endpoint, secret=secret, cluster_id=cluster_id)).abort()

    try:
        asyncio.run(work())
    except DisconnectedError:
        return False
    return True


def test_all_links_between_nodes_have_tls_and_no_client_inside_needs_a_setting(ray_cluster: Any, site: Site) -> None:
    head = str(ray.util.get_node_ip_address())
    command("node", "lend", site.disk(head), "--address", ray_cluster.address, configs=site.configs(head))
    disks = {LENDS: site.disk(LENDS)}
    with raylog.init(disks=disks, configs=site.configs(LENDS), timeout_s=PATIENCE_S) as cluster:
        secret = cluster.address.secret
        assert isinstance(secret, SecretInsideTls) and secret.security().trusted == site.authority.certificate
        assert secret.security().key is None, "a handle holds no node's key"
        endpoints = servers(cluster)
        assert {each.host for each in endpoints} == {head, ADVERTISES, LENDS}
        refuse_plain_connections(cluster, endpoints)

        cluster.admin().create_topics([NewTopic("t", 1, 3, configs={"min.insync.replicas": "3"})])

        @ray.remote(num_cpus=0)
        def write(found: raylog.Cluster | None) -> None:
            with (found or raylog.connect()).producer(acks="all") as producer:
                producer.send("t", b"by a task").result(PATIENCE_S)

        ray.get([write.options(resources={f"node:{LENDS}": 0.001}).remote(each) for each in (cluster, None)])
        assert values(cluster, 2) == [b"by a task"] * 2


def refuse_plain_connections(cluster: raylog.Cluster, endpoints: list[Endpoint]) -> None:
    secret, cluster_id = cluster.address.secret, cluster.address.cluster_id
    assert secret is not None

    async def work() -> None:
        for endpoint in endpoints:
            with pytest.raises(DisconnectedError):
                await Connection.open(endpoint, secret=secret_bytes(secret), cluster_id=cluster_id)
            (await Connection.open(endpoint, secret=secret, cluster_id=cluster_id)).abort()

    asyncio.run(work())


def values(cluster: raylog.Cluster, count: int, topic: str = "t") -> list[bytes | None]:
    read: list[bytes | None] = []
    with cluster.consumer() as consumer:
        consumer.assign([raylog.TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        eventually(
            lambda: read.extend(each.value for each in consumer.consume(count, timeout=1.0)) or len(read) >= count,
            "all records",
        )
    return read


def test_another_init_finds_the_cluster_and_a_later_one_starts_it_again_with_tls(ray_cluster: Any, site: Site) -> None:
    head = str(ray.util.get_node_ip_address())
    command("node", "lend", site.disk(head), "--address", ray_cluster.address, configs=site.configs(head))
    disks, configs = {LENDS: site.disk(LENDS)}, site.configs(LENDS)
    with raylog.init(disks=disks, configs=configs, timeout_s=PATIENCE_S) as first:
        servers(first)
        first.admin().create_topics([NewTopic("again", 1, 3, configs={"min.insync.replicas": "3"})])
        for told in (configs, None):  # another one, which need not say it again
            found = raylog.init(disks=disks, configs=told, timeout_s=PATIENCE_S)
            assert found.address.cluster_id == first.address.cluster_id
            assert found.address.secret == first.address.secret and isinstance(found.address.secret, SecretInsideTls)
            with found:  # it has not started the cluster, so it leaves it running
                send(found, "again", b"by another")
        with pytest.raises(DiskError, match="the cluster runs with other TLS inside: shut it down"):
            raylog.init(disks=disks, configs={"security.inter.broker.protocol": "PLAINTEXT"}, timeout_s=PATIENCE_S)
        send(first, "again", b"by the first")
    site.configs(LENDS)  # renewed meanwhile
    with raylog.init(disks=disks, timeout_s=PATIENCE_S) as later:
        assert later.address.cluster_id == first.address.cluster_id
        refuse_plain_connections(later, answering(later))
        assert values(later, 3, "again") == [b"by another"] * 2 + [b"by the first"]


def send(cluster: raylog.Cluster, topic: str, value: bytes) -> None:
    with cluster.producer(acks="all") as producer:
        producer.send(topic, value).result(PATIENCE_S)
