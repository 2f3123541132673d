"""A cluster that has no TLS inside gets it, and gives it up again: ``raylog down``, and ``raylog up`` on the same folder."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import PATIENCE_S, eventually, isr_is_whole

import raylog
from raylog import NewTopic, TopicPartition
from raylog.errors import DisconnectedError
from raylog.extras import is_installed
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.internal_tls import SecretInsideTls, secret_bytes

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed("cryptography"), reason="raylog[secure]"),
]

TOPIC = "kept"
PLAIN = ("--config", "security.inter.broker.protocol=PLAINTEXT", "--listeners", "PLAINTEXT://127.0.0.1:0")
SECURE = ("--secure", "--listeners", "SASL_SSL://127.0.0.1:0")


@pytest.fixture
def folder(short_folder: Path) -> Iterator[Path]:
    """Of a cluster that has run without TLS and is down, with a record in it."""
    data = short_folder / "data"
    try:
        command("up", data, "--brokers", 2, "--listeners", "PLAINTEXT://127.0.0.1:0")
        cluster = raylog.connect(folder=data)
        with cluster.admin() as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 2, configs={"min.insync.replicas": "2"})])
        write(cluster, b"plain")
        yield data
    finally:
        command("down", data, must=False)


def command(*arguments: object, must: bool = True) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAYLOG_FOLDER")}
    done = subprocess.run(
        [sys.executable, "-m", "raylog.cli.main", *map(str, arguments)],
        env=kept,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0 or not must, done.stdout + done.stderr
    return done.stdout


def restarted(folder: Path, *options: str) -> raylog.Cluster:
    command("down", folder)
    brokers = json.loads(command("up", folder, "--brokers", 2, *options, "--json"))["brokers"]
    assert [each["live"] for each in brokers] == [True, True]
    return raylog.connect(folder=folder)


def write(cluster: raylog.Cluster, value: bytes) -> None:
    with cluster.producer(acks="all") as producer:
        producer.send(TOPIC, value).result(PATIENCE_S)


def read(cluster: raylog.Cluster, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with cluster.consumer() as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.seek_to_beginning()
        eventually(
            lambda: found.extend(each.value for each in consumer.consume(count, timeout=1.0)) or len(found) >= count,
            "all records",
        )
    return found


def processes(cluster: raylog.Cluster) -> list[Endpoint]:
    """Where all processes of the cluster listen for each other."""
    told: list[dict[str, Any]] = [each for each in cluster.status()["actors"] if each["state"] == "live"]
    return [*cluster.address.bootstrap, *(Endpoint.of(each["endpoint"]) for each in told)]


def refusal(cluster: raylog.Cluster, endpoint: Endpoint, secret: Any) -> str:
    """Why the process there ends a connection by that secret; empty: it takes it."""

    async def work() -> None:
        (await Connection.open(endpoint, secret=secret, cluster_id=cluster.address.cluster_id)).abort()

    try:
        asyncio.run(work())
    except DisconnectedError as error:
        return str(error)
    return ""


def test_down_and_up_gives_all_links_tls_and_takes_it_away_and_nothing_is_lost(folder: Path) -> None:
    before = raylog.connect(folder=folder)
    assert before.address.secret is not None
    plain = secret_bytes(before.address.secret)

    secured = restarted(folder, *SECURE)
    assert isinstance(secured.address.secret, SecretInsideTls)
    assert secured.address.cluster_id == before.address.cluster_id
    eventually(lambda: isr_is_whole(secured, TOPIC), "all replicas in sync")
    endpoints = processes(secured)
    assert len(set(endpoints)) >= 5, "a controller, and a Broker and a host of each broker"
    for endpoint in endpoints:
        assert not refusal(secured, endpoint, secured.address.secret)
        said = refusal(secured, endpoint, plain)
        assert "a TLS alert" in said and "the same security.inter.broker.protocol" in said, said
    write(secured, b"by TLS")
    assert read(secured, 2) == [b"plain", b"by TLS"]

    again = restarted(folder, *PLAIN)
    eventually(lambda: isr_is_whole(again, TOPIC), "all replicas in sync")
    for endpoint in processes(again):
        assert not refusal(again, endpoint, plain)
        said = refusal(again, endpoint, secured.address.secret)
        assert "if it does not speak TLS" in said and "the same security.inter.broker.protocol" in said, said
    write(again, b"plain again")
    assert read(again, 3) == [b"plain", b"by TLS", b"plain again"]
