"""Streams as records: keyed topics exact as tables, repeats counted, whatever can't be written refused at the call."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import raylog.spark
from raylog.client.sync import Producer
from raylog.errors import ConfigError, UnknownTopicOrPartitionError
from raylog.testing.kafka import Kafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

_numbers = itertools.count()
NOW = {"availableNow": True}


@pytest.fixture
def topics(kafka: Kafka) -> tuple[str, str]:
    """One to read and one to write."""
    names = [f"stream-write-{next(_numbers)}-{name}" for name in ("a", "b")]
    for name in names:
        kafka.create_topic(name, 2)
    return names[0], names[1]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "a checkpoint"


def stream_of(spark: Any, kafka: Kafka, topic: str, checkpoint: Path, **options: Any) -> Any:
    """What a topic holds now."""
    return raylog.spark.read_stream(
        spark,
        topic,
        checkpoint=str(checkpoint),
        cluster=kafka,
        starting_offsets="earliest",
        available_now=True,
        **options,
    )


def run(
    frame: Any, topic: str | None, kafka: Kafka, checkpoint: Path, **options: Any
) -> raylog.spark.StreamWriteSummary:
    """Write what there is, to the end."""
    query = raylog.spark.write_stream(
        frame, topic, cluster=kafka, checkpoint=str(checkpoint), **({"trigger": NOW} | options)
    )
    try:
        assert query.awaitTermination(180), "the query goes on"
    finally:
        query.stop()
    return raylog.spark.write_stream_summary(query)


def table_of(spark: Any, kafka: Kafka, topic: str) -> dict[bytes, bytes]:
    rows = raylog.spark.table(spark, topic, cluster=kafka).select("key", "value").collect()
    return {bytes(row.key): bytes(row.value) for row in rows}


def test_rows_of_a_stream_are_written_once_over_a_restart(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path
) -> None:
    a, b = topics
    for value in (b"1", b"2"):
        kafka.write(a, value, key=b"k" + value)
        frame = stream_of(spark, kafka, a, checkpoint).selectExpr("key", "concat(value, value) value", f"'{b}' topic")
        assert run(frame, None, kafka, checkpoint, compression_type="lz4") == raylog.spark.StreamWriteSummary(
            1, 1, 0, 0
        )
    assert sorted((record.key, record.value) for record in kafka.records(b, count=2)) == [
        (b"k1", b"11"),
        (b"k2", b"22"),
    ]


def test_a_table_written_at_least_once_is_exact_and_a_batch_that_failed_is_repeated_and_told(
    spark: Any,
    kafka: Kafka,
    topics: tuple[str, str],
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = topics
    fuse = tmp_path / "fuse"
    for number in range(40):
        kafka.write(a, b"%d" % (number % 7), partition=number % 2)

    def broken(batches: Any) -> Any:
        yield from batches  # which is written
        if fuse.exists():
            raise RuntimeError("the power is gone")

    def counted() -> raylog.spark.StreamWriteSummary:
        frame = stream_of(spark, kafka, a, checkpoint, max_offsets_per_trigger=20)
        counts = frame.groupBy("value").count().selectExpr("value key", "cast(count as string) value")
        return run(
            counts.mapInArrow(broken, counts.schema), b, kafka, checkpoint,
            output_mode="update", query_name="counts", exactly_once=False,
        )  # fmt: skip

    fuse.touch()
    with pytest.raises(Exception, match="the power is gone"):
        counted()
    assert "had begun before" not in caplog.text
    fuse.unlink()
    summary = counted()
    assert (summary.batches, summary.repeated_batches, summary.records) == (2, 1, 7 * 2)
    assert "batch 0 of the stream to" in caplog.text and "had begun before and is repeated" in caplog.text
    assert table_of(spark, kafka, b) == {b"%d" % n: b"%d" % (6 if n < 5 else 5) for n in range(7)}


def test_the_rows_of_a_key_are_written_in_the_order_that_is_asked_for(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path
) -> None:
    a, b = topics
    keys = [b"%d" % (number % 5) for number in range(200)]
    with Producer(kafka.address) as producer:
        producer.send_batch(a, [b"%d" % n for n in range(200)], keys=keys, partition=0).result(60)
    frame = stream_of(spark, kafka, a, checkpoint, max_records_per_partition=7)  # in 29 ranges, dealt out to tasks
    run(frame.select("key", "value", "offset"), b, kafka, checkpoint, order_by="offset")
    records = kafka.records(b, count=200)
    for key in sorted(set(keys)):
        assert [int(each.value or b"") for each in records if each.key == key] == list(range(int(key), 200, 5))


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["key", "offset as value"], {}, "column value is int64: it has to be binary or string"),
        (["value", "offset"], {}, "column 'offset' can't be written"),
        (["value"], {"order_by": "offset"}, "there is no column 'offset'"),
        (["value", "offset"], {"order_by": "offset"}, "there is no column named key"),
        (["value"], {"output_mode": "replace"}, "one of append, update, complete"),
        (["value"], {"trigger": {"continuous": "1 second"}}, "trigger 'continuous' does not work"),
        (["value"], {"trigger": "1 second"}, "give one of Spark's"),
        (["value"], {"linger_mss": 5}, r"did you mean 'linger\.ms'"),
    ],
)
def test_what_can_not_be_written_is_refused_at_the_call(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path, columns: Any, options: Any, message: str
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("'k' as key", "'v' as value", "value as offset")
    with pytest.raises(ConfigError, match=message):
        run(rows.selectExpr(*columns), topics[1], kafka, checkpoint, **options)
    assert not checkpoint.exists() and spark.streams.active == []


def test_a_missing_topic_and_a_batch_are_refused_at_the_call(spark: Any, kafka: Kafka, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"use raylog\.spark\.write for this one"):
        run(spark.sql("select 'v' value"), "nowhere", kafka, checkpoint)
    rows = spark.readStream.format("rate").load().selectExpr("'v' as value")
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        run(rows, "nowhere", kafka, checkpoint)
    with pytest.raises(ConfigError, match=r"use raylog\.spark\.write_stream for this one"):
        raylog.spark.write(rows, "nowhere", cluster=kafka)


def test_the_checkpoint_of_a_query_for_another_topic_or_sink_is_refused(
    spark: Any, kafka: Kafka, topics: tuple[str, str], checkpoint: Path, tmp_path: Path
) -> None:
    a, b = topics
    kafka.write(a, b"1")
    run(stream_of(spark, kafka, a, checkpoint).select("value"), b, kafka, checkpoint)
    rows = stream_of(spark, kafka, a, checkpoint).select("value")
    with pytest.raises(ConfigError, match=f"belongs to a query that writes to topic='{b}': give this one"):
        run(rows, a, kafka, checkpoint)
    with pytest.raises(ConfigError, match=f"belongs to a query that reads {a}: give {b} a checkpoint of its own"):
        stream_of(spark, kafka, b, checkpoint)
    (tmp_path / "other" / "offsets").mkdir(parents=True)
    (tmp_path / "other" / "offsets" / "0").write_text("v1")
    with pytest.raises(ConfigError, match="belongs to a query with another sink"):
        run(rows, b, kafka, tmp_path / "other")
    with pytest.raises(ConfigError, match="belongs to a query that has no stream of raylog's"):
        stream_of(spark, kafka, a, tmp_path / "other")
