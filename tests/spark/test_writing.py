"""DataFrames as records, and topics as tables."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import raylog.spark
from raylog.client.partitioners import partition_for_key
from raylog.errors import ConfigError, UnknownTopicOrPartitionError
from raylog.records.codec import encode
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

_numbers = itertools.count()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"write-{next(_numbers)}"
    kafka.create_topic(name, 3)
    return name


def test_rows_become_records_with_all_that_a_record_has(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = spark.sql(
        "select cast('k' as binary) key, 'v' value, 2 partition, timestamp_millis(1234) timestamp, "
        "array(named_struct('key', 'h', 'value', cast('1' as binary))) headers"
    )
    assert raylog.spark.write(frame, topic, cluster=kafka) == raylog.spark.WriteSummary(1, 1, 0)
    (record,) = kafka.records(topic)
    assert (record.partition, record.timestamp, record.key, record.value) == (2, 1234, b"k", b"v")
    assert [tuple(header) for header in record.headers] == [("h", b"1")]


def test_keys_choose_partitions_as_kafkas_clients_do_and_order_is_kept(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = spark.range(0, 300, 1, 3).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")
    assert raylog.spark.write(frame, topic, cluster=kafka, compression_type="lz4").records == 300
    records = kafka.records(topic, count=300)
    assert len(records) == 300 and {int(record.value or b"") for record in records} == set(range(300))
    assert all(record.partition == partition_for_key(record.key or b"", 3) for record in records)


def test_rows_name_their_topics_and_may_leave_the_partition_open(spark: Any, kafka: Kafka, topic: str) -> None:
    other = f"{topic}-other"
    kafka.create_topic(other, 2)
    rows = [("a", topic, 2), ("b", other, None), ("c", topic, 0), ("d", other, 1)]
    frame = spark.createDataFrame(rows, "value string, topic string, partition int")
    assert raylog.spark.write(frame, cluster=kafka).records == 4
    assert [(record.value, record.partition) for record in kafka.records(topic)] == [(b"c", 0), (b"a", 2)]
    assert sorted(record.value or b"" for record in kafka.records(other, count=2)) == [b"b", b"d"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("select 'v' valu", "there is no column named value, only valu"),
        ("select 5 value", "column value is int32: it has to be binary or string"),
        ("select 'v' value, 'x' partition", "column partition is string: it has to be an integer"),
        ("select 'v' value, array('x') headers", "column headers is"),
        ("select 'v' value, 1L offset", "column 'offset' can't be written"),
    ],
)
def test_rows_that_are_no_records_are_refused_before_any_is_written(
    spark: Any, kafka: Kafka, topic: str, rows: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.spark.write(spark.sql(rows), topic, cluster=kafka)
    assert kafka.records(topic) == []


def test_a_target_that_is_not_there_is_refused(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = spark.sql("select 'v' value")
    with pytest.raises(UnknownTopicOrPartitionError, match="'nothing' does not exist"):
        raylog.spark.write(frame, "nothing", cluster=kafka)
    with pytest.raises(ConfigError, match="name the topic"):
        raylog.spark.write(frame, cluster=kafka)
    with pytest.raises(ConfigError, match=r"did you mean 'linger\.ms'"):
        raylog.spark.write(frame, topic, cluster=kafka, linger_mss=5)
    with pytest.raises(Exception, match="has no partition 7: it has 3"):
        raylog.spark.write(spark.sql("select 'v' value, 7 partition"), topic, cluster=kafka)


def test_without_transactions_a_rerun_is_counted_and_no_row_is_missing(
    spark: Any, kafka: Kafka, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = tmp_path / "failed"

    def fail_once(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if 25 in batch.column(0).to_pylist() and not once.exists():
                once.touch()
                raise RuntimeError("this attempt fails, after its rows were handed over")

    rows = spark.range(0, 30, 1, 3).mapInArrow(fail_once, "id bigint").selectExpr("cast(id as string) value")
    summary = raylog.spark.write(rows, topic, cluster=kafka, exactly_once=False)
    assert summary == raylog.spark.WriteSummary(30, 3, 1)
    assert "1 tasks of the write" in caplog.text
    assert {int(record.value or b"") for record in kafka.records(topic, count=30)} == set(range(30))


# ---------------------------------------------------------------------- tables


def rows_of(frame: Any) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in frame.collect()}


def test_a_table_has_the_latest_value_of_each_key_and_no_tombstones(spark: Any, kafka: Kafka, topic: str) -> None:
    kafka.write(topic, b"1", b"2", key=b"a")
    kafka.write(topic, b"1", key=b"b", partition=1)
    kafka.write(topic, b"1", None, key=b"c", partition=1)
    kafka.write(topic, b"2", key=b"b", partition=1)
    kafka.write(topic, None, b"back", key=b"d", partition=2)
    kafka.write(topic, b"no key")
    frame = raylog.spark.table(spark, topic, cluster=kafka, min_partitions=6)
    assert rows_of(frame) == {b"a": b"2", b"b": b"2", b"d": b"back"}
    row = frame.where("key = cast('b' as binary)").collect()[0]
    assert (row.partition, row.offset) == (1, 3)
    before = raylog.spark.table(spark, topic, cluster=kafka, ending_offsets={topic: {0: 1, 1: 2, 2: 1}})
    assert rows_of(before) == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_of_a_key_in_several_partitions_the_latest_timestamp_counts(spark: Any, kafka: Kafka, topic: str) -> None:
    def put(partition: int, *records: tuple[int, bytes, bytes | None]) -> None:
        batch = encode([(timestamp, key, value, ()) for timestamp, key, value in records])
        kafka._run(kafka._inside.write(TopicPartition(topic, partition), batch, len(records)))

    put(0, (9000, b"a", b"new"), (1000, b"b", b"old"), (2000, b"gone", b"was"), (3000, b"back", None))
    put(1, (1000, b"a", b"old"), (9000, b"b", b"new"), (4000, b"gone", None), (5000, b"back", b"is"))
    put(2, (5000, b"a", b"between"), (5000, b"b", b"between"))
    frame = raylog.spark.table(spark, topic, cluster=kafka)
    assert rows_of(frame) == {b"a": b"new", b"b": b"new", b"back": b"is"}


def test_what_is_written_with_keys_is_read_as_a_table_however_often_it_is_written(
    spark: Any, kafka: Kafka, topic: str
) -> None:
    frame = spark.range(50).selectExpr("cast(id as string) key", "cast(id * id as string) value")
    for _ in range(2):
        raylog.spark.write(frame, topic, cluster=kafka)
    assert rows_of(raylog.spark.table(spark, topic, cluster=kafka)) == {
        str(n).encode(): str(n * n).encode() for n in range(50)
    }


def test_a_table_refuses_options_that_would_make_it_none(spark: Any, kafka: Kafka, topic: str) -> None:
    for name, value in (("startingOffsets", "earliest"), ("columns", ["key"]), ("include_headers", True)):
        with pytest.raises(ConfigError, match="is not an option of a table"):
            raylog.spark.table(spark, topic, cluster=kafka, **{name: value})
