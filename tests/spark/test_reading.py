"""Topics as DataFrames: the columns and options of Spark's kafka source, every record once, and what is said of bad input."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import raylog.spark
from raylog.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from raylog.ranges.snapshot import TopicsSnapshot
from raylog.ranges.splitting import OffsetRange
from raylog.records.codec import encode
from raylog.spark.reading import columns_of, task_bytes
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

_numbers = itertools.count()
NOON_MS = 1_767_355_200_000


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic of two partitions with ten records each, the n-th of partition p at noon + n seconds, with key kp and value p-n."""
    name = f"read-{next(_numbers)}"
    kafka.create_topic(name, 2)
    for partition in range(2):
        records = [
            (NOON_MS + 1000 * n, b"k%d" % partition, b"%d-%d" % (partition, n), [("h", b"%d" % n)] if n % 2 else ())
            for n in range(10)
        ]
        kafka._run(kafka._inside.write(TopicPartition(name, partition), encode(records), 10))
    return name


def values(frame: Any) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.collect())


def expected(*ranges: tuple[int, int]) -> list[str]:
    return sorted(f"{partition}-{n}" for partition, (start, end) in enumerate(ranges) for n in range(start, end))


# ---------------------------------------------------------------------- columns


def test_the_schema_is_that_of_sparks_kafka_source(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = raylog.spark.read(spark, topic, cluster=kafka, include_headers=True)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert raylog.spark.read(spark, topic, cluster=kafka).columns == frame.columns[:-1]


def test_a_record_has_everything_it_was_written_with(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = raylog.spark.read(spark, topic, cluster=kafka, include_headers=True)
    row = frame.where("partition = 1 and offset = 3").collect()[0]
    assert (bytes(row.key), bytes(row.value), row.topic, row.timestampType) == (b"k1", b"1-3", topic, 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"3")]
    assert frame.selectExpr("min(unix_millis(timestamp))", "max(unix_millis(timestamp))").collect()[0][:] == (
        NOON_MS,
        NOON_MS + 9000,
    )
    assert frame.where("size(headers) = 0").count() == 10


def test_only_the_columns_asked_for_reach_spark(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = raylog.spark.read(spark, topic, cluster=kafka, columns=["offset", "key"])
    assert frame.columns == ["offset", "key"]
    assert frame.selectExpr("count(distinct key)", "sum(offset)").collect()[0][:] == (2, 90)
    with pytest.raises(ConfigError, match="unknown column 'vlaue'"):
        raylog.spark.read(spark, topic, cluster=kafka, columns=["vlaue"])


def test_bytes_that_are_no_text_arrive_as_they_were_written(spark: Any, kafka: Kafka) -> None:
    name = f"read-{next(_numbers)}"
    kafka.create_topic(name)
    written = [(b"\xff\x00\xc3(", b"\x80"), (b"", None), (None, b""), ("\ud7ff".encode(), bytes(range(256)))]
    records = [(NOON_MS, key, value, ()) for key, value in written]
    kafka._run(kafka._inside.write(TopicPartition(name, 0), encode(records), len(records)))
    frame = raylog.spark.read(spark, name, cluster=kafka)
    rows = frame.orderBy("offset").collect()
    assert [tuple(each if each is None else bytes(each) for each in (row.key, row.value)) for row in rows] == written
    assert frame.where("key = X'FF00C328' and value = X'80'").count() == 1
    assert frame.where("value is null").count() == frame.where("key is null").count() == 1
    assert frame.selectExpr("sum(length(value))").collect()[0][0] == 257


# ---------------------------------------------------------------------- tasks


def test_tasks_are_two_for_each_core_of_bounded_sizes() -> None:
    def tasks(gigabytes: float, cores: int) -> float:
        total = gigabytes * (1 << 30)
        ranges = tuple(OffsetRange("t", number, 0, 1000) for number in range(4))
        snapshot = TopicsSnapshot(ranges, {each.key: total / 4000 for each in ranges})
        return total / task_bytes(snapshot, cores)

    assert tasks(1, 2) == pytest.approx(4) and tasks(8, 16) == pytest.approx(32)
    assert tasks(8, 2) == 16 and tasks(0.25, 16) == 8


def test_more_tasks_than_partitions_read_every_record_once(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = raylog.spark.read(spark, topic, cluster=kafka, min_partitions=7)
    assert frame.rdd.getNumPartitions() == 7
    assert values(frame) == expected((0, 10), (0, 10))
    small = raylog.spark.read(spark, topic, cluster=kafka, maxRecordsPerPartition="3")
    assert small.rdd.getNumPartitions() == 8
    assert values(small) == expected((0, 10), (0, 10))


def test_every_action_on_a_frame_reads_the_same_cut(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = raylog.spark.read(spark, topic, cluster=kafka)
    assert frame.count() == 20
    kafka.write(topic, b"later")
    assert frame.count() == 20
    assert raylog.spark.read(spark, topic, cluster=kafka).count() == 21


def test_tasks_prefer_the_hosts_of_replicas(spark: Any, kafka: Kafka, topic: str) -> None:
    rdd = raylog.spark.read(spark, topic, cluster=kafka, min_partitions=4)._jdf.queryExecution().toRdd()
    scheduler = spark.sparkContext._jsc.sc()
    preferred = [scheduler.getPreferredLocs(rdd, index).mkString(",") for index in range(rdd.getNumPartitions())]
    assert preferred == ["127.0.0.1"] * 4


def test_the_plan_shows_no_secret(spark: Any, kafka: Kafka, topic: str) -> None:
    plan = raylog.spark.read(spark, topic, cluster=kafka)._jdf.queryExecution().toString()
    assert kafka.address.secret.decode() not in plan


# ---------------------------------------------------------------------- beginnings and ends


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({"starting_offsets": {0: 3, 1: "earliest"}}, ((3, 10), (0, 10))),
        ({"startingOffsets": '{"T":{"0":-2,"1":8}}', "endingOffsets": '{"T":{"0":2,"1":-1}}'}, ((0, 2), (8, 10))),
        ({"ending_offsets": {0: 10, 1: 0}}, ((0, 10), (0, 0))),
        ({"starting_timestamp": NOON_MS + 4500, "endingTimestamp": str(NOON_MS + 7000)}, ((5, 7), (5, 7))),
        ({"starting_timestamp": datetime.fromtimestamp(NOON_MS / 1000 + 9, UTC)}, ((9, 10), (9, 10))),
        ({"ending_timestamp": NOON_MS + 10**6}, ((0, 10), (0, 10))),
        (
            {"starting_offsets_by_timestamp": {0: NOON_MS + 10**6, 1: NOON_MS + 5000},
             "startingOffsetsByTimestampStrategy": "latest"},
            ((10, 10), (5, 10)),
        ),
    ],
)  # fmt: skip
def test_a_read_begins_and_ends_where_it_is_told(
    spark: Any, kafka: Kafka, topic: str, options: dict[str, Any], ranges: tuple[tuple[int, int], ...]
) -> None:
    def of_topic(value: Any) -> Any:
        return {topic: value} if isinstance(value, dict) else str(value).replace('"T"', f'"{topic}"')

    given = {
        name: of_topic(value) if isinstance(value, dict) or (isinstance(value, str) and '"T"' in value) else value
        for name, value in options.items()
    }
    assert values(raylog.spark.read(spark, topic, cluster=kafka, **given)) == expected(*ranges)


def test_some_partitions_and_several_topics_are_read(spark: Any, kafka: Kafka, topic: str) -> None:
    other = f"{topic}-other"
    kafka.create_topic(other, 1)
    kafka.write(other, b"x")
    assert values(raylog.spark.read(spark, {topic: [1]}, cluster=kafka)) == [f"1-{n}" for n in range(10)]
    both = raylog.spark.read(spark, [topic, other], cluster=kafka)
    assert {row.topic: row["count"] for row in both.groupBy("topic").count().collect()} == {topic: 20, other: 1}


def test_an_empty_topic_is_an_empty_frame(spark: Any, kafka: Kafka) -> None:
    kafka.create_topic("empty", 2)
    frame = raylog.spark.read(spark, "empty", cluster=kafka)
    assert frame.count() == 0 and "value" in frame.columns


# ---------------------------------------------------------------------- bad input


def test_a_topic_that_is_not_there_is_refused_at_once(spark: Any, kafka: Kafka) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'nothing' does not exist"):
        raylog.spark.read(spark, "nothing", cluster=kafka)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic matches 'nothing\.\*' as a whole"):
        raylog.spark.read(spark, re.compile("nothing.*"), cluster=kafka)


def test_offsets_beyond_the_log_are_refused_or_reported(
    spark: Any, kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"ending_offsets": {topic: {0: 10, 1: 12}}}
    with pytest.raises(OffsetOutOfRangeError, match="-1 ends at 10, before offset 12"):
        raylog.spark.read(spark, topic, cluster=kafka, **options)
    frame = raylog.spark.read(spark, topic, cluster=kafka, fail_on_data_loss=False, **options)
    assert frame.count() == 20
    assert "ends at 10, before offset 12" in caplog.text


def test_deleted_offsets_are_refused_or_reported(
    spark: Any, kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    frame = raylog.spark.read(spark, topic, cluster=kafka)
    late = raylog.spark.read(spark, topic, cluster=kafka, failOnDataLoss="false")
    with raylog.AdminClient(kafka.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 1 to 3 of .*-0 are deleted"):
        raylog.spark.read(spark, topic, cluster=kafka, starting_offsets={topic: {0: 1, 1: 0}})
    raylog.spark.read(spark, topic, cluster=kafka, starting_offsets={topic: {0: 1, 1: 0}}, fail_on_data_loss=False)
    assert "offsets 1 to 3" in caplog.text
    with pytest.raises(Exception, match=r"offsets 0 to 3 of .*-0 were deleted before they were read"):
        frame.count()
    caplog.clear()
    assert raylog.spark.losses(late) == ()
    assert late.count() == late.select("offset").count() == 16
    (lost,) = raylog.spark.losses(late)
    assert f"offsets 0 to 3 of {topic}-0 were deleted before they were read" in lost
    assert caplog.text.count(lost) == 1, "told in the driver, once"
    known = raylog.spark.table(
        spark, topic, cluster=kafka, ending_offsets={topic: {0: 10, 1: 12}}, failOnDataLoss=False
    )
    assert [f"{topic}-1 ends at 10, before offset 12" in loss for loss in raylog.spark.losses(known)] == [True]
    with pytest.raises(ConfigError, match="not one made from it"):
        raylog.spark.losses(known.select("key"))


def test_an_unknown_option_suggests_the_right_one(spark: Any, kafka: Kafka, topic: str) -> None:
    with pytest.raises(ConfigError, match="did you mean 'starting_offsets'"):
        raylog.spark.read(spark, topic, cluster=kafka, startingOffset="earliest")


@pytest.mark.parametrize("columns", ["value", 5, [], ["valeu"], ["value", "value"]])
def test_columns_that_can_not_be_are_refused(columns: Any) -> None:
    with pytest.raises(ConfigError, match=r"columns|unknown column 'valeu'"):
        columns_of({"columns": columns})


def test_every_call_that_looks_for_a_cluster_takes_a_time_out(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(b"a",)], "value binary")
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as binary) as value")
    calls: list[Callable[[], Any]] = [
        lambda: raylog.spark.read(spark, "t", timeout_s=-1),
        lambda: raylog.spark.table(spark, "t", timeout_s=-1),
        lambda: raylog.spark.write(frame, "t", timeout_s=-1),
        lambda: raylog.spark.read_stream(spark, "t", checkpoint=str(tmp_path), timeout_s=-1),
        lambda: raylog.spark.write_stream(stream, "t", checkpoint=str(tmp_path), timeout_s=-1),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"timeout_s=-1: give seconds, 0 or more"):
            call()
