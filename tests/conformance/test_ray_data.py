"""Ray Data's own Kafka functions against a local cluster: ``ray.data.read_kafka`` and ``Dataset.write_kafka``."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import ray.data
from ray_clusters import eventually, isr_is_whole, kept_environment

import raylog
from raylog import NewTopic

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ROWS = 1_000


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """The bootstrap servers of three brokers on a Ray of the module's own, on which Ray Data runs, too."""
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE"):
        os.environ["RAY_TMPDIR"] = str(folder)
        cluster = raylog.init(folder / "data", ray_address="local", timeout_s=120)
        try:
            with cluster.admin() as admin:
                admin.create_topics([NewTopic("numbers", 3, 3), NewTopic("words", 2, 3)])
            eventually(lambda: isr_is_whole(cluster, "numbers") and isr_is_whole(cluster, "words"), "all in sync")
            ray.data.DataContext.get_current().enable_progress_bars = False
            yield cluster.bootstrap_servers()
        finally:
            cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


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
    assert producer.flush(30) == 0
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
