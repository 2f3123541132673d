"""Prometheus scrapes a cluster: it understands all that brokers show, every panel of the dashboards has data, and alert rules hold."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from prometheus import Prometheus, prometheus
from raw_requests import eventually, nodes_of
from scraping import open_metrics

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, call
from raylog.errors import RaylogError
from raylog.metrics import table
from raylog.metrics.dashboards import ALERTS, RATE, as_rules, expressions
from raylog.metrics.table import METRICS
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.private import ClusterStatusRequest

pytestmark = pytest.mark.conformance

RATES_OVER = "10s"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def watched(running: InProcessCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """All brokers of the cluster, scraped."""
    at = open_metrics(running, 3)
    with prometheus(tmp_path_factory.mktemp("prometheus"), list(at.values()), as_rules(), free_port()) as found:
        yield found


@pytest.fixture
def load(running: InProcessCluster, bootstrap: str, new_topic: Callable[..., str]) -> Iterator[str]:
    """A topic that is written to, in transactions and beyond a quota too, and read from by a group, until the test is over."""
    topic, over = new_topic(2, flush_messages="1"), threading.Event()
    quota = {"client-id": "beyond its quota"}

    def work() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        greedy = Producer({"bootstrap.servers": bootstrap, "client.id": quota["client-id"]})
        transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{topic}"})
        transactional.init_transactions(60)
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"of-{topic}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe([topic])
        while not over.is_set():
            transactional.begin_transaction()
            transactional.produce(topic, b"in a transaction")
            for _ in range(20):
                producer.produce(topic, b"x" * 100)
                producer.poll(0)
                consumer.poll(0.01)
            if len(greedy) < 100:
                greedy.produce(topic, b"x" * 10_000)
            greedy.poll(0)
            transactional.commit_transaction(60)
        greedy.purge()
        producer.flush(60)
        consumer.close()

    thread = threading.Thread(target=work, name="load")
    with AdminClient(running.address) as admin:
        admin.alter_quotas(quota, {"producer_byte_rate": 10_000})
        thread.start()
        yield topic
        over.set()
        thread.join(120)
        admin.alter_quotas(quota, {"producer_byte_rate": None})


def test_every_panel_has_data_in_a_cluster_that_is_used(
    watched: Prometheus, running: InProcessCluster, load: str
) -> None:
    wanted = dict(expressions())
    stranger = dataclasses.replace(running.address, secret=b"another secret")

    def without_data() -> list[str]:
        with contextlib.suppress(RaylogError):
            call(stranger, ClusterStatusRequest(), timeout_s=1)
        return [
            name
            for name, expression in wanted.items()
            if not any(
                map(
                    math.isfinite,
                    watched.values(
                        expression.replace(RATE, RATES_OVER).replace("$topic", ".+").replace("$consumergroup", ".+")
                    ),
                )
            )
        ]

    missing: list[str] = []
    try:
        eventually(lambda: not (missing.clear() or missing.extend(without_data()) or missing), "data in all panels")
    except AssertionError:
        pytest.fail(f"without data: {missing}")


def test_prometheus_knows_each_metric_with_its_type_and_help(watched: Prometheus, load: str) -> None:
    def told() -> bool:
        return "kafka_server_brokertopicmetrics_bytesin" in str(watched.get("metadata").keys())

    eventually(told, "the metadata of what was scraped")
    for name, told_of in watched.get("metadata").items():
        metric = METRICS.get(name) or METRICS.get(f"{name}_total")
        if metric is None:
            continue
        assert {each["type"] for each in told_of} == {metric.type.value}, name
        assert all(each["help"] for each in told_of), name


def test_an_alert_fires_where_a_partition_has_no_leader(tmp_path: Path) -> None:
    at_once = [dataclasses.replace(each, for_="0s") for each in ALERTS]
    with cluster(brokers=2) as running, AdminClient(running.address) as admin:
        at = open_metrics(running, 2)
        with prometheus(tmp_path, list(at.values()), as_rules(at_once), free_port()) as watched:
            rules = [each for group in watched.get("rules")["groups"] for each in group["rules"]]
            assert [each["name"] for each in rules] == [each.name for each in ALERTS]
            admin.create_topics([NewTopic("alone", replica_assignment={0: (0,)})])
            eventually(lambda: watched.values(f"sum({table.ALL_PARTITIONS.name})") == [1.0], "the topic to be scraped")
            assert watched.get("alerts")["alerts"] == []
            running.launcher.build_replicas(_fails)
            running.crash(nodes_of(running, "alone")[0])

            def firing() -> set[str]:
                return {each["labels"]["alertname"] for each in watched.get("alerts")["alerts"]}

            eventually(lambda: "RaylogPartitionOffline" in firing(), "the alert")
            rules = [each for group in watched.get("rules")["groups"] for each in group["rules"]]
            assert {each.get("lastError", "") for each in rules} == {""}


def _fails(spec: object) -> None:
    raise OSError("the test has no process for it")
