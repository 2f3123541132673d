"""Clients push their metrics by themselves (KIP-714), and Apache Kafka's own tool makes the subscriptions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from kafka_peer import apache_kafka
from raw_requests import eventually
from scraping import open_metrics, scraped

from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster
from raylog.types import Endpoint

pytestmark = pytest.mark.conformance

TOOL = "org.apache.kafka.tools.ClientMetricsCommand"
PREFIX = "kafka_client_"
VERSIONS = ("3.9.1", "4.3.0")


@pytest.fixture(scope="module")
def at(running: InProcessCluster) -> dict[int, Endpoint]:
    return open_metrics(running, 3)


@pytest.fixture
def subscribed(running: InProcessCluster) -> Iterator[None]:
    """To all metrics of all clients."""
    with AdminClient(running.address) as admin:
        admin.alter_client_metrics("all", set={"metrics": "*", "interval.ms": "200"})
        yield
        admin.alter_client_metrics("all", delete=["metrics", "interval.ms"])


def pushed(at: dict[int, Endpoint], client_id: str) -> dict[str, float]:
    """The metrics of one client, at whichever broker it has pushed them to; each metric's series added up."""
    found: dict[str, float] = {}
    for each in at.values():
        for name, series in scraped(each).items():
            for labels, value in series.items():
                if name.startswith(PREFIX) and client_id in labels:
                    found[name] = found.get(name, 0) + value
    return found


def test_librdkafka_pushes_its_metrics(
    bootstrap: str, new_topic: Callable[..., str], at: dict[int, Endpoint], subscribed: None
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "pushing", "enable.metrics.push": True})
    producer.produce(topic, b"v")
    assert producer.flush(60) == 0

    def latency() -> float:
        producer.produce(topic, b"v")
        producer.flush(60)
        return pushed(at, "pushing").get(f"{PREFIX}producer_node_request_latency_avg", 0)

    assert 0 < eventually(latency, "what the producer pushes") < 60_000, "milliseconds"


@pytest.mark.parametrize("version", VERSIONS)
def test_javas_console_producer_pushes_its_metrics(
    bootstrap: str, new_topic: Callable[..., str], at: dict[int, Endpoint], subscribed: None, version: str
) -> None:
    kafka, topic, client_id = apache_kafka(), new_topic(), f"console-{version}"
    options = ("client.id=" + client_id, "enable.metrics.push=true")
    command = kafka.java_command(
        "org.apache.kafka.tools.ConsoleProducer" if version.startswith("4") else "kafka.tools.ConsoleProducer",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *(each for option in options for each in ("--producer-property", option)),
        version=version,
    )
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthree\n")
        process.stdin.flush()
        sent = f"{PREFIX}producer_record_send_total"
        eventually(lambda: pushed(at, client_id).get(sent) == 3, f"three records in {sent} of {client_id}")
    finally:
        process.communicate(timeout=60)
    metrics = pushed(at, client_id)
    assert f"{PREFIX}producer_batch_size_avg" in metrics and metrics[sent] == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_client_metrics_makes_lists_describes_and_deletes_subscriptions(
    running: InProcessCluster, bootstrap: str, version: str
) -> None:
    kafka = apache_kafka()

    def tool(*arguments: str) -> str:
        return str(kafka.tool(TOOL, "--bootstrap-server", bootstrap, *arguments, version=version))

    match = "client_id=orders-.*,client_software_name=librdkafka"
    given = (
        "--metrics",
        "org.apache.kafka.producer.,org.apache.kafka.consumer.",
        "--interval",
        "30000",
        "--match",
        match,
    )
    assert "orders" in tool("--alter", "--name", "orders", *given)
    with AdminClient(running.address) as admin:
        found = {name: entry.value for name, entry in admin.describe_client_metrics("orders").items()}
    assert found == {"metrics": given[1], "interval.ms": "30000", "match": match}
    assert tool("--list").split() == ["orders"]
    described = tool("--describe", "--name", "orders")
    assert all(f"{name}={value}" in described for name, value in found.items())
    with pytest.raises(kafka.PeerError, match="interval"):
        tool("--alter", "--name", "orders", "--interval", "99")
    tool("--delete", "--name", "orders")
    assert tool("--list").split() == []
