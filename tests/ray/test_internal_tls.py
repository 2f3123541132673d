"""An embedded cluster on real Ray processes whose links inside have TLS: a leader's process is killed, and handles travel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_clusters import PATIENCE_S, eventually, isr_is_whole, kill, partition_of, pid_of

import raylog
from raylog import NewTopic
from raylog.errors import ClusterError, DisconnectedError
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.internal_tls import SecretInsideTls, secret_bytes

pytestmark = pytest.mark.ray

VALUES = [b"%d" % number for number in range(2_000)]


@pytest.fixture(scope="module")
def configs(short_folder: Path) -> dict[str, Any]:
    from certificates import Authority, settings

    authority = Authority(short_folder / "authority")
    return {
        "security.inter.broker.protocol": "SSL",
        **settings(authority.signed("node"), authority.certificate),
    }


@pytest.fixture(scope="module")
def running(short_folder: Path, configs: dict[str, Any]) -> Iterator[raylog.Cluster]:
    cluster = raylog.init(
        short_folder / "data", ray_address="local", controllers=3, configs=configs, timeout_s=PATIENCE_S
    )
    yield cluster
    cluster.shutdown()


def test_a_killed_leader_loses_nothing_and_a_task_needs_no_setting(running: raylog.Cluster) -> None:
    assert isinstance(running.address.secret, SecretInsideTls)
    running.admin().create_topics([NewTopic("events", 1, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(running, "events"), "all replicas in sync")
    with running.producer(acks="all") as producer:
        producer.send_batch("events", VALUES).result(PATIENCE_S)
        kill(pid_of(running, partition_of(running, "events")["leader"]))
        producer.send("events", b"after").result(PATIENCE_S)

    @ray.remote
    def write(cluster: raylog.Cluster) -> None:
        with cluster.producer(acks="all") as producer:
            producer.send("events", b"by a task").result(60)

    ray.get(write.remote(running))
    found = raylog.connect()
    assert found.address.secret == running.address.secret, "through Ray, too"
    with found.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["events"])
        read: list[bytes | None] = []
        wanted = [*VALUES, b"after", b"by a task"]
        eventually(
            lambda: (
                read.extend(each.value for each in consumer.consume(5_000, timeout=1.0)) or len(read) >= len(wanted)
            ),
            "all records",
        )
        assert read == wanted
        consumer.commit()


def test_no_process_takes_a_plain_connection(running: raylog.Cluster) -> None:
    secret = running.address.secret
    assert secret is not None
    endpoints = [*running.address.bootstrap, *(Endpoint.of(each["endpoint"]) for each in running.status()["actors"])]
    assert len(set(endpoints)) > 6

    async def work() -> None:
        for endpoint in endpoints:
            with pytest.raises(DisconnectedError):
                await Connection.open(endpoint, secret=secret_bytes(secret), cluster_id=running.address.cluster_id)
            (await Connection.open(endpoint, secret=secret, cluster_id=running.address.cluster_id)).abort()

    asyncio.run(work())


def test_a_running_cluster_keeps_its_tls(running: raylog.Cluster, configs: dict[str, Any]) -> None:
    assert running.folder is not None
    assert raylog.init(running.folder) is running
    with pytest.raises(ClusterError, match="runs with other TLS inside: shut it down before"):
        raylog.init(running.folder, configs={"security.inter.broker.protocol": "PLAINTEXT"})
