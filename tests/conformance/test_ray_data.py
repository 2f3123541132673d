"""Ray Data's own Kafka functions against a local cluster: ``ray.data.read_kafka`` and ``Dataset.write_kafka``."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
from ray_clusters import PATIENCE_S, eventually, isr_is_whole, kept_environment, kill, partition_of, pid_of

import raylog
from raylog import NewTopic
from raylog.types import BROKER_SLOT, node_id

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ROWS = 1_000


@pytest.fixture(scope="module")
def embedded() -> Iterator[raylog.Cluster]:
    """Three brokers on a Ray of the module's own, on which Ray Data runs, too."""
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE"):
        os.environ["RAY_TMPDIR"] = str(folder)
        cluster = raylog.init(folder / "data", ray_address="local", timeout_s=120)
        try:
            with cluster.admin() as admin:
                admin.create_topics([NewTopic("numbers", 3, 3), NewTopic("words", 2, 3)])
            eventually(lambda: isr_is_whole(cluster, "numbers") and isr_is_whole(cluster, "words"), "all in sync")
            ray.data.DataContext.get_current().enable_progress_bars = False
            yield cluster
        finally:
            cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def servers(embedded: raylog.Cluster) -> str:
    return embedded.bootstrap_servers()


def test_what_write_kafka_writes_read_kafka_reads(servers: str) -> None:
    rows = [{"id": number, "text": f"row {number}"} for number in range(ROWS)]
    ray.data.from_items(rows, override_num_blocks=4).write_kafka("numbers", servers, key_field="id")
    found = ray.data.read_kafka("numbers", bootstrap_servers=servers).take_all()
    assert sorted(json.loads(each["value"])["id"] for each in found) == list(range(ROWS))
    assert all(each["key"] == b"%d" % json.loads(each["value"])["id"] for each in found)
    places = {(each["partition"], each["offset"]) for each in found}
    assert len(places) == ROWS and {partition for partition, _ in places} == {0, 1, 2}


def test_read_kafka_reads_the_offsets_that_it_is_asked_for(servers: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(100):
        headers = [("n", b"%d" % number)]
        producer.produce(
            "words", b"word %d" % number, key=b"k", partition=number % 2, timestamp=1_000 + number, headers=headers
        )
    assert producer.flush(PATIENCE_S) == 0
    found = ray.data.read_kafka(
        "words",
        bootstrap_servers=servers.split(","),
        start_offset={"words": {0: 40, 1: "earliest"}},
        end_offset={"words": {0: "latest", 1: 5}},
    ).take_all()
    numbers = sorted(int(each["value"].split()[1]) for each in found)
    assert numbers == [*range(1, 10, 2), *range(80, 100, 2)]
    last = max(found, key=lambda each: each["timestamp"])
    assert (last["topic"], last["partition"], last["offset"], last["timestamp"]) == ("words", 0, 49, 1_098)
    assert (last["key"], dict(last["headers"])) == (b"k", {"n": b"98"})


@pytest.mark.parametrize("kind", ["leader", "broker"])
def test_a_killed_process_costs_ray_data_nothing(
    embedded: raylog.Cluster, servers: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no groups, so no coordinator either.

    A reading task asks for a partition's offsets first, and confluent-kafka asks just once: at the moment of a failover the answer may be
    that another broker leads now, as Kafka's is. Ray Data tries such a task again where it is told to.
    """
    topic = f"killed-{kind}"
    with embedded.admin() as admin:
        admin.create_topics([NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2"})])
    eventually(lambda: isr_is_whole(embedded, topic), "all replicas in sync")

    struck = str(tmp_path / "struck")

    def half_waits(row: dict[str, Any]) -> dict[str, Any]:  # in here, or workers would import this module
        while row["id"] == ROWS // 2 and not os.path.exists(struck):
            time.sleep(0.01)
        return row

    def strike() -> None:
        part = partition_of(embedded, topic)
        victim = part["leader_node"] if kind == "leader" else node_id(part["leader"], BROKER_SLOT)
        kill(pid_of(embedded, victim))

    def written() -> int:
        with embedded.consumer() as consumer:
            return int(consumer.end_offsets([(topic, 0)])[(topic, 0)])

    rows = ray.data.range(ROWS, override_num_blocks=10).map(half_waits)
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(
            rows.write_kafka, topic, servers, producer_config={"enable.idempotence": True}, concurrency=1
        )
        try:
            eventually(lambda: written() > 0 or writing.done(), "some rows are there")
            strike()
        finally:
            Path(struck).touch()
        writing.result(2 * PATIENCE_S)
    assert written() == ROWS, "each once"
    eventually(lambda: isr_is_whole(embedded, topic), "all replicas in sync again")
    context = ray.data.DataContext.get_current()
    monkeypatch.setattr(context, "retried_map_errors", ["Not leader for partition", "Leader not available"])
    monkeypatch.setattr(context, "max_map_retries", 5)
    strike()
    found = ray.data.read_kafka(topic, bootstrap_servers=servers).take_all()
    assert sorted(json.loads(each["value"])["id"] for each in found) == list(range(ROWS))
    eventually(lambda: isr_is_whole(embedded, topic), "all replicas in sync again")
