"""Spark's own ``format("kafka")``, the Java client inside, through the Brokers' listeners: batch and stream, read and written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raylog.testing
from raylog.client.partitioners import partition_for_key
from raylog.client.sync import AdminClient
from raylog.records.codec import encode
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

NOON_MS = 1_767_355_200_000
PATIENCE_S = 180
_numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """Three brokers, so that a leader can die."""
    with raylog.testing.broker(brokers=3) as found:
        yield found


@pytest.fixture
def spark(spark: Any, connector: Any) -> Any:
    """The session of all tests, if it has the connector's jars."""
    if connector.missing is not None:
        pytest.skip(connector.missing)
    return spark


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic of two partitions with ten records each, the n-th of partition p at noon + n seconds, with key kp and value p-n."""
    name = f"connector-{next(_numbers)}"
    kafka.create_topic(name, 2)
    fill(kafka, name, 0, 10)
    return name


def fill(kafka: Kafka, topic: str, start: int, end: int) -> None:
    for partition in range(2):
        records = [
            (NOON_MS + 1000 * n, b"k%d" % partition, b"%d-%d" % (partition, n), [("h", b"%d" % n)] if n % 2 else ())
            for n in range(start, end)
        ]
        kafka._run(kafka._inside.write(TopicPartition(topic, partition), encode(records), 10))


def options(kafka: Kafka, topic: str | None = None, **more: Any) -> dict[str, str]:
    named = {"subscribe": topic} if topic is not None else {}
    return {"kafka.bootstrap.servers": kafka.bootstrap, **named, **{key: str(value) for key, value in more.items()}}


def read(spark: Any, kafka: Kafka, topic: str | None, **more: Any) -> Any:
    return spark.read.format("kafka").options(**options(kafka, topic, **more)).load()


def values(frame: Any) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect())


def expected(*ranges: tuple[int, int]) -> list[str]:
    return sorted(f"{partition}-{n}" for partition, (start, end) in enumerate(ranges) for n in range(start, end))


# ---------------------------------------------------------------------- batch


def test_a_topic_is_read_with_all_that_a_record_has(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = read(spark, kafka, topic, includeHeaders="true", minPartitions=6)
    assert values(frame) == expected((0, 10), (0, 10))
    row = frame.where("partition = 1 and offset = 3").selectExpr("*", "unix_millis(timestamp) as ms").collect()[0]
    assert (bytes(row.key), bytes(row.value), row.topic, row.timestampType) == (b"k1", b"1-3", topic, 0)
    assert row.ms == NOON_MS + 3000
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"3")]


def test_beginnings_and_ends_are_offsets_and_moments(spark: Any, kafka: Kafka, topic: str) -> None:
    offsets = {"startingOffsets": {topic: {"0": 3, "1": -2}}, "endingOffsets": {topic: {"0": -1, "1": 4}}}
    named = {name: json.dumps(value) for name, value in offsets.items()}
    assert values(read(spark, kafka, topic, **named)) == expected((3, 10), (0, 4))
    moments = read(spark, kafka, topic, startingTimestamp=NOON_MS + 4500, endingTimestamp=NOON_MS + 7000)
    assert values(moments) == expected((5, 7), (5, 7))


def test_partitions_and_patterns_are_read(spark: Any, kafka: Kafka, topic: str) -> None:
    assert values(read(spark, kafka, None, assign=json.dumps({topic: [1]}))) == [f"1-{n}" for n in range(10)]
    assert read(spark, kafka, None, subscribePattern=f"{topic}|nothing").count() == 20


def test_deleted_offsets_fail_a_read_unless_it_may_go_on(spark: Any, kafka: Kafka, topic: str) -> None:
    frame, lenient = (read(spark, kafka, topic, failOnDataLoss=flag) for flag in ("true", "false"))
    starts = {"startingOffsets": json.dumps({topic: {"0": 1, "1": 0}})}
    with AdminClient(kafka.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    assert values(frame) == values(lenient) == expected((4, 10), (0, 10)), (
        "the source looks where logs begin at each action"
    )
    with pytest.raises(Exception, match=r"(?s)Cannot fetch offset 1 .*may have been lost"):
        read(spark, kafka, topic, failOnDataLoss="true", **starts).count()
    assert values(read(spark, kafka, topic, failOnDataLoss="false", **starts)) == expected((4, 10), (0, 10))


def test_rows_are_written_with_keys_headers_partitions_and_topics(spark: Any, kafka: Kafka, topic: str) -> None:
    other = f"{topic}-other"
    kafka.create_topic(other, 3)
    rows = spark.range(0, 200, 1, 3).selectExpr(
        "cast(id % 7 as string) key", "cast(id as string) value",
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) headers",
    )  # fmt: skip
    rows.write.format("kafka").options(**options(kafka), topic=other, includeHeaders="true").save()
    records = kafka.records(other, count=200)
    assert sorted(int(record.value or b"") for record in records) == list(range(200))
    assert all(record.partition == partition_for_key(record.key or b"", 3) for record in records)
    assert all([tuple(each) for each in record.headers] == [("n", record.value)] for record in records)
    named = spark.createDataFrame([("a", other, 2), ("b", topic, 1)], "value string, topic string, partition int")
    named.write.format("kafka").options(**options(kafka)).save()
    assert [record.value for record in kafka.records(other, count=201) if record.partition == 2][-1] == b"a"
    assert [record.value for record in kafka.records(topic, count=21) if record.partition == 1][-1] == b"b"


# ---------------------------------------------------------------------- streams


def copy(spark: Any, kafka: Kafka, source: str, target: str, checkpoint: Path, **more: Any) -> Any:
    """A query from a topic to another, both by the connector, that takes what is there and ends."""
    frame = (
        spark.readStream.format("kafka").options(**options(kafka, source, startingOffsets="earliest", **more)).load()
    )
    sink = frame.select("key", "value").writeStream.format("kafka").options(**options(kafka), topic=target)
    return sink.option("checkpointLocation", str(checkpoint))


def test_a_stream_goes_on_from_its_checkpoint(spark: Any, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    target = f"{topic}-copy"
    kafka.create_topic(target, 2)

    def run() -> Any:
        query = copy(spark, kafka, topic, target, tmp_path, maxOffsetsPerTrigger=12).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S) and query.exception() is None
        return query.lastProgress

    progress = run()
    assert progress["sources"][0]["endOffset"] == {topic: {"0": 10, "1": 10}}
    fill(kafka, topic, 10, 15)
    assert run()["numInputRows"] == 10, "what was read before is not read again"
    copied = [(record.value or b"").decode() for record in kafka.records(target, count=30)]
    assert sorted(copied) == expected((0, 15), (0, 15))


def test_a_stream_goes_on_over_a_killed_leader(spark: Any, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    target = f"{topic}-copy"
    kafka.create_topic(target, 1)
    query = copy(spark, kafka, topic, target, tmp_path).start()
    try:
        kafka.records(target, count=20, timeout=PATIENCE_S)
        for killed in (topic, target):
            before = kafka.leader(killed)
            assert kafka.crash_leader(killed) != before
        fill(kafka, topic, 10, 20)
        records = kafka.records(target, count=40, timeout=PATIENCE_S)
        assert sorted({(record.value or b"").decode() for record in records}) == expected((0, 20), (0, 20))
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()


def test_a_stream_whose_unread_records_were_deleted_says_so(
    spark: Any, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-copy"
    kafka.create_topic(target, 1)
    query = copy(spark, kafka, topic, target, tmp_path).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)
    fill(kafka, topic, 10, 15)
    with AdminClient(kafka.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 12})
    query = copy(spark, kafka, topic, target, tmp_path).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="data may have been lost"):
        query.awaitTermination(PATIENCE_S)
