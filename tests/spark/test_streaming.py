"""Topics as streaming DataFrames: every record once per batch, batches repeated as they were, Spark's own operators on them."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raylog.spark
import raylog.testing
from raylog.client.sync import AdminClient, Producer
from raylog.errors import ConfigError, UnknownTopicOrPartitionError
from raylog.ranges.ledger import STREAM_FILE
from raylog.spark import streaming
from raylog.spark.spark_private import streaming_batch, tasks_frame
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

PATIENCE_S = 180
_numbers = itertools.count()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"stream-{next(_numbers)}"
    kafka.create_topic(name, 2)
    return name


@pytest.fixture
def produce(kafka: Kafka) -> Iterator[Callable[..., None]]:
    with Producer(kafka.address) as producer:

        def produced(topic: str, *values: str, partition: int = 0, timestamps: list[int] | None = None) -> None:
            encoded = [value.encode() for value in values]
            producer.send_batch(topic, encoded, partition=partition, timestamps_ms=timestamps).result(60)

        yield produced


class Run:
    """A query that collects its batches; ``fails`` makes the batch of that id raise, once collected."""

    def __init__(
        self,
        spark: Any,
        kafka: Kafka,
        topics: Any,
        checkpoint: Path,
        *,
        fails: int | None = None,
        starts: bool = True,
        **options: Any,
    ) -> None:
        self.batches: dict[int, list[tuple[int, int, str]]] = {}
        self.rows: dict[int, list[Any]] = {}
        self._came = threading.Condition()
        self._fails = fails
        self._checkpoint = checkpoint
        self.frame = raylog.spark.read_stream(spark, topics, checkpoint=str(checkpoint), cluster=kafka, **options)
        if starts:
            self.start(**({"availableNow": True} if options.get("available_now") else {}))

    def start(self, **trigger: Any) -> None:
        writer = self.frame.writeStream.option("checkpointLocation", str(self._checkpoint)).foreachBatch(self._collect)
        self.query = (writer.trigger(**trigger) if trigger else writer).start()

    def _collect(self, frame: Any, number: int) -> None:
        found = frame.collect()
        rows = sorted((row.partition, row.offset, bytes(row.value).decode()) for row in found)
        with self._came:
            self.batches[number], self.rows[number] = rows, found
            self._came.notify_all()
        if number == self._fails:
            raise RuntimeError("the sink is down")

    @property
    def values(self) -> list[str]:
        return sorted(value for rows in self.batches.values() for _, _, value in rows)

    def await_values(self, *expected: str) -> None:
        with self._came:
            self._came.wait_for(lambda: len(self.values) >= len(expected) or not self.query.isActive, PATIENCE_S)
        assert self.values == sorted(expected), self.query.exception()

    def await_end(self) -> str:
        """Wait for the query to end by itself; what it failed with."""
        for _ in range(PATIENCE_S * 10):
            if not self.query.isActive:
                return str(self.query.exception() or "")
            threading.Event().wait(0.1)
        raise AssertionError("the query goes on")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.query.stop()


def eventually(condition: Callable[[], bool], what: str) -> None:
    for _ in range(PATIENCE_S * 20):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"not within {PATIENCE_S} s: {what}")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "a checkpoint"


# ---------------------------------------------------------------------- batches


def test_what_is_there_is_read_and_then_what_comes(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b")
    with Run(spark, kafka, topic, checkpoint, starting_offsets="earliest") as run:
        run.await_values("a", "b")
        produce(topic, "c", partition=1)
        run.await_values("a", "b", "c")
    assert sorted(row for rows in run.batches.values() for row in rows) == [(0, 0, "a"), (0, 1, "b"), (1, 0, "c")]


def test_a_new_stream_begins_at_the_end_and_a_restarted_one_where_it_was(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "before")
    with Run(spark, kafka, topic, checkpoint) as run:
        produce(topic, "a")
        run.await_values("a")
    produce(topic, "b")
    with Run(spark, kafka, topic, checkpoint) as again:
        eventually(lambda: "b" in again.values, "what came meanwhile")
    assert "before" not in again.values


def test_a_batch_that_failed_is_repeated_with_its_id_and_its_offsets(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b")
    with Run(spark, kafka, topic, checkpoint, fails=1, starting_offsets="earliest") as run:
        run.await_values("a", "b")
        produce(topic, "c", "d")
        assert "the sink is down" in run.await_end()
    failed = run.batches[1]
    assert failed and set(failed) <= {(0, 2, "c"), (0, 3, "d")}
    produce(topic, "e", partition=1)
    with Run(spark, kafka, topic, checkpoint) as again:
        eventually(lambda: "e" in again.values, "what came after the failure")
        assert again.batches[1] == failed
    assert sorted(run.batches[0] + [row for _, rows in sorted(again.batches.items()) for row in rows]) == [
        (0, 0, "a"),
        (0, 1, "b"),
        (0, 2, "c"),
        (0, 3, "d"),
        (1, 0, "e"),
    ]


def test_no_batch_has_more_than_the_limit(spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path) -> None:
    produce(topic, *(f"{n:02}" for n in range(20)))
    produce(topic, *(f"{n:02}" for n in range(20, 30)), partition=1)
    with Run(spark, kafka, topic, checkpoint, starting_offsets="earliest", max_offsets_per_trigger=12) as run:
        run.await_values(*(f"{n:02}" for n in range(30)))
    assert [len(rows) for _, rows in sorted(run.batches.items()) if rows] == [12, 12, 6]
    assert sum(partition for partition, _, _ in run.batches[0]) == 4, "in proportion to what waits in each"


@pytest.mark.parametrize(
    ("options", "fewest", "most"),
    [({"min_partitions": 6}, 6, 20), ({"max_records_per_partition": "3"}, 7, 3)],
    ids=["min_partitions", "max_records_per_partition"],
)
def test_a_batch_has_the_tasks_that_are_asked_for(
    spark: Any,
    kafka: Kafka,
    topic: str,
    produce: Any,
    checkpoint: Path,
    options: dict[str, Any],
    fewest: int,
    most: int,
) -> None:
    produce(topic, *(f"{n:02}" for n in range(20)))
    frame = raylog.spark.read_stream(
        spark,
        topic,
        cluster=kafka,
        checkpoint=str(checkpoint),
        starting_offsets="earliest",
        available_now=True,
        columns=["offset"],
        **options,
    )
    tasks: dict[int, int] = {}

    def look(batch: Any, _: int) -> None:
        counted = batch.selectExpr("spark_partition_id() AS task").groupBy("task").count()
        tasks.update({row.task: row["count"] for row in counted.collect()})

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    assert writer.foreachBatch(look).start().awaitTermination(PATIENCE_S), "the query goes on"
    assert sum(tasks.values()) == 20 and len(tasks) >= fewest and max(tasks.values()) <= most, tasks


def test_available_now_ends_with_what_was_there(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b", "c")
    options = {"starting_offsets": "earliest", "available_now": True, "max_offsets_per_trigger": 2}
    run = Run(spark, kafka, topic, checkpoint, **options)
    assert run.await_end() == "" and run.values == ["a", "b", "c"] and len(run.batches) == 2
    produce(topic, "d")
    again = Run(spark, kafka, topic, checkpoint, **options)
    assert again.await_end() == "" and again.values == ["d"]


def test_new_partitions_and_topics_of_a_pattern_are_read_from_their_beginnings(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    import re

    with Run(spark, kafka, re.compile(f"{topic}(-more)?"), checkpoint) as run:
        with AdminClient(kafka.address) as admin:
            admin.create_partitions(topic, 3)
            kafka.create_topic(f"{topic}-more", 1)
            produce(topic, "a", partition=2)
            produce(f"{topic}-more", "b")
        run.await_values("a", "b")


def test_a_group_shows_how_far_committed_batches_are(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b")
    group = f"of-{topic}"
    with (
        Run(spark, kafka, topic, checkpoint, starting_offsets="earliest", group_id=group),
        AdminClient(kafka.address) as admin,
    ):

        def committed() -> dict[TopicPartition, int]:
            return {key: each.offset for key, each in admin.list_group_offsets(group).items()}

        eventually(lambda: committed() == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 0}, "the commit")


def test_tasks_of_a_batch_prefer_the_hosts_of_replicas(spark: Any) -> None:
    frame = tasks_frame(spark, ["a", "b"], [["127.0.0.1"], ["one", "another"]])
    batch = streaming_batch(frame.mapInArrow(lambda rows: rows, "task string"))
    assert batch.isStreaming()
    rdd, scheduler = batch.logicalPlan().rdd(), spark.sparkContext._jsc.sc()
    preferred = [scheduler.getPreferredLocs(rdd, index).mkString(",") for index in range(rdd.getNumPartitions())]
    assert preferred == ["127.0.0.1", "one,another"]


def test_progress_says_up_to_which_offsets_a_stream_is_read(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b", "c")
    options = {"starting_offsets": "earliest", "available_now": True, "max_offsets_per_trigger": 2}
    run = Run(spark, kafka, topic, checkpoint, **options)
    assert run.await_end() == ""
    assert [progress["numInputRows"] for progress in run.query.recentProgress[:2]] == [2, 1]
    (source,) = run.query.recentProgress[1]["sources"]
    assert source["description"] == f"raylog[{topic}]" and source["numInputRows"] == 1
    assert source["startOffset"] == {"stream": topic, "entry": 1, "ends": {topic: {"0": 2, "1": 0}}}
    assert source["endOffset"] == {"stream": topic, "entry": 2, "ends": {topic: {"0": 3, "1": 0}}}


def test_the_ledger_names_the_hosts_of_replicas(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a")
    raylog.spark.read_stream(
        spark, topic, checkpoint=str(checkpoint), cluster=kafka, starting_offsets="earliest", available_now=True
    )
    (line,) = (checkpoint / "raylog" / topic / f"{1:020d}.jsonl").read_text().splitlines()[1:]
    assert json.loads(line)["hosts"] == ["127.0.0.1"]


# ---------------------------------------------------------------------- Spark's operators


def test_windows_with_a_watermark_equal_a_batch_over_a_restart(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path, tmp_path: Path
) -> None:
    from pyspark.sql.functions import count, window

    hour_ms = 3_600_000
    times = [n * 600_000 for n in range(18)]  # every ten minutes, three hours

    def start() -> Any:
        frame = raylog.spark.read_stream(
            spark, topic, checkpoint=str(checkpoint), cluster=kafka, starting_offsets="earliest", columns=["timestamp"]
        )
        windows = (
            frame.withWatermark("timestamp", "10 minutes")
            .groupBy(window("timestamp", "1 hour"))
            .agg(count("*").alias("n"))
        )
        return (
            windows.selectExpr("unix_millis(window.start) AS start", "n")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .start(str(tmp_path / "out"))
        )

    def found() -> dict[int, int]:
        if not any((tmp_path / "out").glob("*.parquet")):
            return {}
        rows = spark.read.schema("start long, n long").parquet(str(tmp_path / "out")).collect()
        return {row.start: row.n for row in rows}

    query = start()
    try:
        produce(topic, *map(str, times[:9]), timestamps=times[:9])
        eventually(lambda: found() == {0: 6}, "the first hour")
    finally:
        query.stop()
    query = start()
    try:
        produce(topic, *map(str, times[9:]), partition=1, timestamps=times[9:])
        eventually(lambda: found() == {0: 6, hour_ms: 6}, "the second hour, whose state was kept over the restart")
    finally:
        query.stop()


def test_two_streams_of_one_query_are_joined(spark: Any, kafka: Kafka, produce: Any, checkpoint: Path) -> None:
    names = [f"stream-{next(_numbers)}" for _ in range(2)]
    for name in names:
        kafka.create_topic(name, 1)
    left, right = (
        raylog.spark.read_stream(
            spark, name, checkpoint=str(checkpoint), cluster=kafka, starting_offsets="earliest"
        ).selectExpr(f"CAST(value AS STRING) AS {column}")
        for name, column in zip(names, ("a", "b"), strict=True)
    )
    found: list[str] = []
    joined = left.join(right, left.a == right.b)
    writer = joined.writeStream.option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(lambda frame, _: found.extend(row.a for row in frame.collect())).start()
    try:
        produce(names[0], "x", "y")
        produce(names[1], "y", "z")
        eventually(lambda: found == ["y"], f"the pair, and it is {found}")
    finally:
        query.stop()


# ---------------------------------------------------------------------- bad input


def test_what_was_deleted_before_it_was_read_fails_the_query_or_is_left_out(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b", "c")
    with Run(spark, kafka, topic, checkpoint, starting_offsets="earliest") as run:
        run.await_values("a", "b", "c")
        run.query.processAllAvailable()  # and committed
    produce(topic, "d", "e", "f")
    with AdminClient(kafka.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 5})
    with Run(spark, kafka, topic, checkpoint) as broken:
        said = broken.await_end()
    assert f"the offsets 3 to 4 of {topic}-0 were deleted before they were read" in said
    assert "fail_on_data_loss=False" in said
    with Run(spark, kafka, topic, checkpoint, fail_on_data_loss=False) as again:
        eventually(lambda: "f" in again.values, "what is left")
        assert [
            f"the offsets 3 to 4 of {topic}-0 were deleted" in loss for loss in raylog.spark.losses(again.frame)
        ] == [True]


def test_the_checkpoint_of_another_topic_is_refused(spark: Any, kafka: Kafka, topic: str, checkpoint: Path) -> None:
    with Run(spark, kafka, topic, checkpoint, name="s"):
        pass
    kafka.create_topic(f"{topic}-other", 1)
    with pytest.raises(
        ConfigError, match=rf"belongs to a stream with topics=\['{topic}'\]: give this one a checkpoint of its own"
    ):
        Run(spark, kafka, f"{topic}-other", checkpoint, name="s")


def test_the_checkpoint_of_a_query_of_other_topics_is_refused(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    other = f"{topic}-other"
    kafka.create_topic(other, 2)
    produce(topic, "a")
    options = {"starting_offsets": "earliest", "available_now": True}
    assert Run(spark, kafka, topic, checkpoint, **options).await_end() == ""
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=f"belongs to a query that reads {topic}: give {other} a checkpoint of its own"
        ):
            Run(spark, kafka, other, checkpoint, **options)
    assert not (checkpoint / "raylog" / other).exists()
    with (
        raylog.testing.broker(topics={topic: 2}) as elsewhere,
        pytest.raises(ConfigError, match="belongs to a stream with cluster_id="),
    ):
        Run(spark, elsewhere, topic, checkpoint, **options)


def test_a_checkpoint_whose_half_is_gone_is_refused(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    with Run(spark, kafka, topic, checkpoint, starting_offsets="earliest") as run:
        for value in ("a", "b", "c"):
            produce(topic, value)
            eventually(lambda value=value: value in run.values, "a batch of its own")
        eventually(
            lambda: not (checkpoint / "raylog" / topic / f"{1:020d}.jsonl").exists(), "the first file to be forgotten"
        )
    for name in ("offsets", "commits"):
        shutil.rmtree(checkpoint / name)
    with pytest.raises(ConfigError, match="Spark's part of the checkpoint is gone"):
        Run(spark, kafka, topic, checkpoint)


def test_a_missing_topic_and_a_wrong_option_are_named(spark: Any, kafka: Kafka, checkpoint: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        raylog.spark.read_stream(spark, "nowhere", checkpoint=str(checkpoint), cluster=kafka)
    with pytest.raises(ConfigError, match="did you mean 'max_offsets_per_trigger'"):
        raylog.spark.read_stream(spark, "nowhere", checkpoint=str(checkpoint), cluster=kafka, max_offset_per_trigger=1)
    with pytest.raises(ConfigError, match="a stream has no end"):
        raylog.spark.read_stream(spark, "nowhere", checkpoint=str(checkpoint), cluster=kafka, endingOffsets="latest")
    for name in ("../elsewhere", ".hidden", ""):
        with pytest.raises(ConfigError, match="letters, digits"):
            raylog.spark.read_stream(spark, "nowhere", checkpoint=str(checkpoint), cluster=kafka, name=name)


# ---------------------------------------------------------------------- Spark's ways with a source


def test_a_stream_is_joined_with_itself_and_united_with_itself(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b")

    def rows(query_of: Callable[[Any], Any], place: str, **options: Any) -> list[str]:
        home = checkpoint / place
        frame = raylog.spark.read_stream(
            spark, topic, checkpoint=str(home), cluster=kafka, starting_offsets="earliest", available_now=True
        ).selectExpr("CAST(value AS STRING) AS value", "offset")
        found: list[str] = []
        writer = query_of(frame).writeStream.option("checkpointLocation", str(home)).trigger(availableNow=True)
        query = writer.foreachBatch(lambda batch, _: found.extend(row.value for row in batch.collect())).start()
        assert query.awaitTermination(PATIENCE_S)
        return sorted(found)

    assert rows(lambda frame: frame.union(frame), "united") == ["a", "a", "b", "b"]
    assert rows(lambda frame: frame.alias("one").join(frame.select("offset"), "offset"), "joined") == ["a", "b"]


def test_headers_are_read_and_the_plan_is_explained(
    spark: Any, kafka: Kafka, topic: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Producer(kafka.address) as producer:
        producer.send(topic, b"v", key=b"\xff", headers=[("h", b"\xfe")], partition=0).result(60)
    options = {"include_headers": True, "columns": ["value", "key", "partition", "offset"], "available_now": True}
    run = Run(spark, kafka, topic, checkpoint, starting_offsets="earliest", **options)
    assert run.frame.isStreaming and run.frame.dtypes == [
        ("value", "binary"),
        ("key", "binary"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    run.frame.explain()
    assert f"raylog[{topic}]" in capsys.readouterr().out
    assert run.await_end() == "" and run.rows[0][0] == (b"v", b"\xff", 0, 0, [("h", b"\xfe")])


def test_an_error_of_the_planner_is_the_querys(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    with Run(spark, kafka, topic, checkpoint) as run:
        (planner,) = (each for folder, each in streaming._planners.items() if folder.is_relative_to(checkpoint))
        planner._round = lambda: 1 // 0
        assert "is no longer planned, because of ZeroDivisionError" in run.await_end()
    produce(topic, "a")
    with Run(spark, kafka, topic, checkpoint, starting_offsets="latest") as again:
        again.await_values("a")


def test_a_query_whose_stream_another_call_was_refused_ends_instead_of_waiting(
    spark: Any, kafka: Kafka, topic: str, checkpoint: Path
) -> None:
    kafka.create_topic(f"{topic}-other", 1)
    with Run(spark, kafka, topic, checkpoint, name="s") as run:
        with pytest.raises(ConfigError, match="belongs to a stream with topics="):
            Run(spark, kafka, f"{topic}-other", checkpoint, name="s")
        assert "is no longer planned, because of ConfigError" in run.await_end()


def test_a_stream_is_read_by_one_query(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path, tmp_path: Path
) -> None:
    produce(topic, "a")
    with Run(spark, kafka, topic, checkpoint, starting_offsets="earliest") as run:
        run.await_values("a")
        other = run.frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "other")).start()
        with pytest.raises(Exception, match=r"is not .*, the checkpoint that read_stream was given for"):
            other.awaitTermination(PATIENCE_S)
        produce(topic, "b")
        run.await_values("a", "b")


def test_a_query_is_stopped_and_started_again_with_the_same_frame(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a")
    run = Run(spark, kafka, topic, checkpoint, starting_offsets="earliest")
    run.await_values("a")
    for value in ("b", "c", "d"):
        run.query.stop()
        assert run.query.exception() is None
        produce(topic, value)
        run.start()
    run.await_values("a", "b", "c", "d")
    run.query.stop()
    assert run.query.exception() is None


def test_a_trigger_for_what_is_there_reads_what_the_topic_holds(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a", "b", "c")
    run = Run(spark, kafka, topic, checkpoint, starting_offsets="earliest", max_offsets_per_trigger=2, starts=False)
    run.start(availableNow=True)
    assert run.await_end() == "" and run.values == ["a", "b", "c"] and len(run.batches) == 2
    produce(topic, "d")
    run.start(availableNow=True)
    assert run.await_end() == "" and run.values == ["a", "b", "c", "d"]


def test_the_checkpoint_of_an_earlier_raylog_is_refused(
    spark: Any, kafka: Kafka, topic: str, produce: Any, checkpoint: Path
) -> None:
    produce(topic, "a")
    with Run(spark, kafka, topic, checkpoint, starting_offsets="earliest") as run:
        run.await_values("a")
        run.query.processAllAvailable()
    path = checkpoint / "offsets" / str(max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], '{"logOffset":0}']))
    with Run(spark, kafka, topic, checkpoint) as again:
        assert 'the checkpoint has {"logOffset":0} in the place of stream' in again.await_end()
    path = checkpoint / "raylog" / topic / STREAM_FILE
    path.write_text(path.read_text().replace('"version": 2, ', ""))
    with pytest.raises(ConfigError, match="has version 1, this raylog reads version 2"):
        Run(spark, kafka, topic, checkpoint)
