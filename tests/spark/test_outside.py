"""Spark and Ray Data on machines that reach nothing but the brokers' listeners: no secret, no private request, no file of a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raylog
import raylog.data
import raylog.spark
import raylog.testing
from raylog.testing.kafka import Kafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data warns of its own options
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

ROWS = 2_000
VALUES = sorted(b"%d" % number for number in range(ROWS))


@pytest.fixture(scope="module")
def three() -> Iterator[Kafka]:
    topics = {"given": 3, "written": 3, "streamed": 2, "from-ray": 2}
    with raylog.testing.broker(topics=topics, brokers=3, configs={"log.cleaner.backoff.ms": 1_000}) as kafka:
        kafka.write("given", *VALUES, key=b"k")
        yield kafka


@pytest.fixture(scope="module")
def outside(three: Kafka) -> raylog.Cluster:
    cluster = raylog.connect(bootstrap_servers=three.bootstrap)
    assert cluster.address.is_outside
    return cluster


def held(kafka: Kafka, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in kafka.records(topic, count=ROWS))


def test_spark_reads_and_writes_a_batch(spark: Any, three: Kafka, outside: raylog.Cluster) -> None:
    df = raylog.spark.read(spark, "given", cluster=outside)
    assert sorted(bytes(row.value) for row in df.select("value").collect()) == VALUES
    written = raylog.spark.write(df.select("value"), "written", cluster=outside)
    assert written.records == ROWS and held(three, "written") == VALUES
    assert raylog.spark.table(spark, "given", cluster=outside).count() == 1, "one key"


def test_spark_streams_in_and_out(spark: Any, three: Kafka, outside: raylog.Cluster, tmp_path: Path) -> None:
    checkpoint = str(tmp_path)
    df = raylog.spark.read_stream(
        spark, "given", checkpoint=checkpoint, cluster=outside, starting_offsets="earliest", available_now=True
    )
    query = raylog.spark.write_stream(
        df.select("value"), "streamed", cluster=outside, checkpoint=checkpoint, trigger={"availableNow": True}
    )
    assert query.awaitTermination(60)
    assert held(three, "streamed") == VALUES


def test_ray_data_reads_and_writes(ray: Any, three: Kafka, outside: raylog.Cluster) -> None:
    ds = raylog.data.read_topic("given", cluster=outside, columns=["value"])
    assert sorted(row["value"] for row in ds.take_all()) == VALUES
    raylog.data.write_topic(ds, "from-ray", cluster=outside)
    assert held(three, "from-ray") == VALUES
