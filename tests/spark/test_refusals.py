"""What a user of ``raylog.spark`` may get wrong is told in words, with the argument's name, before anything starts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raylog.spark
from raylog.errors import ConfigError, InvalidTopicError, UnknownTopicOrPartitionError
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.spark

_topics = itertools.count()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    return spark.sql("select 'v' value, 'k' key")


@pytest.fixture(scope="module")
def stream(spark: Any) -> Any:
    return spark.readStream.format("rate").load().selectExpr("cast(value as string) value")


class Stopped:
    _jsc = None


# ---------------------------------------------------------------------- without a session


@pytest.mark.parametrize("spark", [None, "local[2]", 5, object()])
def test_what_is_no_session_is_refused(spark: Any) -> None:
    for function in (raylog.spark.read, raylog.spark.table):
        with pytest.raises(ConfigError, match=r"spark=.* is not a Spark session: give what raylog\.spark\.init\(\)"):
            function(spark, "t")
    with pytest.raises(ConfigError, match="is not a Spark session"):
        raylog.spark.read_stream(spark, "t", checkpoint="/never/made")


def test_spark_connect_is_refused_by_name() -> None:
    from pyspark.sql import DataFrame, SparkSession

    session, frame = (
        object.__new__(type(kind.__name__, (kind,), {"__module__": f"pyspark.sql.connect.{kind.__name__.lower()}"}))
        for kind in (SparkSession, DataFrame)
    )
    with pytest.raises(ConfigError, match="this is Spark Connect, whose JVM is in another process"):
        raylog.spark.read(session, "t")
    with pytest.raises(ConfigError, match="this is Spark Connect"):
        raylog.spark.write(frame, "t")


def test_a_session_that_was_stopped_is_refused() -> None:
    from pyspark.sql import DataFrame, SparkSession

    session = object.__new__(SparkSession)
    session._sc = Stopped()  # type: ignore[assignment]
    frame = object.__new__(DataFrame)
    frame._session = session  # type: ignore[misc]
    with pytest.raises(ConfigError, match="spark is a session that was stopped: make another one"):
        raylog.spark.read(session, "t")
    with pytest.raises(ConfigError, match="the session of df was stopped"):
        raylog.spark.write(frame, "t")
    with pytest.raises(ConfigError, match="the session of df was stopped"):
        raylog.spark.write_stream(frame, "t", checkpoint="/never/made")


@pytest.mark.parametrize("df", [None, 5, [("a", 1)], {"value": [1]}])
def test_what_is_no_dataframe_is_refused(df: Any) -> None:
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("write", lambda: raylog.spark.write(df, "t")),
        ("write_stream", lambda: raylog.spark.write_stream(df, "t", checkpoint="/never/made")),
        ("from_json", lambda: raylog.spark.from_json(df, "id bigint")),
    ]
    for name, call in calls:
        with pytest.raises(ConfigError, match=rf"df is a builtins\.\w+: {name} takes a Spark DataFrame"):
            call()
    with pytest.raises(ConfigError, match=r"losses\(\) takes the DataFrame that read\(\)"):
        raylog.spark.losses(df)
    with pytest.raises(ConfigError, match="was not started by write_stream"):
        raylog.spark.write_stream_summary(df)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"app_name": ""}, "app_name='': give the session a name"),
        ({"executor_cores": 0}, "executor_cores=0: give at least 1"),
        ({"executor_cores": 1.5}, "executor_cores=1.5: give a whole number, at least 1"),
        ({"executor_cores": True}, "executor_cores=True: give a whole number"),
        ({"executor_memory": "100m"}, "executor_memory='100m': Spark does not start with less than 512m"),
        ({"driver_memory": "much"}, "driver_memory='much': write it as 1g or 512m"),
        ({"driver_memory": "5"}, "driver_memory='5': Spark does not start with less than 512m"),
        ({"driver_memory": None}, "driver_memory=None: write it as 1g or 512m"),
        ({"timeout_s": None}, "timeout_s=None: give seconds, 0 or more"),
        ({"timeout_s": -1}, "timeout_s=-1: give seconds, 0 or more"),
        ({"configs": [("spark.x", "1")]}, "configs=.*: give Spark's, as"),
        ({"configs": {"sql.shuffle.partitions": "8"}}, r"configs\['sql.shuffle.partitions'\]: Spark's configs begin"),
        ({"configs": {"spark.x": None}}, r"configs\['spark.x'\] is None: give a value"),
        ({"cluster": "127.0.0.1:9092"}, "cluster='127.0.0.1:9092' is not a cluster: give what raylog.init"),
    ],
)
def test_a_session_that_can_not_be_is_refused_before_a_cluster_is_looked_for(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.spark.init(**options)


# ---------------------------------------------------------------------- topics


@pytest.mark.parametrize("topic", ["", "two words", "a/b", "..", "x" * 250])
def test_what_kafka_lets_no_topic_be_called_is_refused(
    spark: Any, rows: Any, stream: Any, kafka: Kafka, checkpoint: str, topic: str
) -> None:
    for call in (
        lambda: raylog.spark.read(spark, topic, cluster=kafka),
        lambda: raylog.spark.read(spark, {topic: [0]}, cluster=kafka),
        lambda: raylog.spark.table(spark, topic, cluster=kafka),
        lambda: raylog.spark.read_stream(spark, [topic], cluster=kafka, checkpoint=checkpoint),
        lambda: raylog.spark.write(rows, topic, cluster=kafka),
        lambda: raylog.spark.write_stream(stream, topic, cluster=kafka, checkpoint=checkpoint),
    ):
        with pytest.raises(InvalidTopicError, match=r"topic name (has|is)|a topic needs a name|cannot name a topic"):
            call()
    assert not Path(checkpoint).exists()


@pytest.mark.parametrize("topic", [5, b"t", ["t"], {"t": [0]}])
def test_rows_go_to_one_topic_by_its_name(rows: Any, stream: Any, kafka: Kafka, checkpoint: str, topic: Any) -> None:
    with pytest.raises(ConfigError, match=r"topic=.*: give the name of one topic"):
        raylog.spark.write(rows, topic, cluster=kafka)
    with pytest.raises(ConfigError, match=r"topic=.*: give the name of one topic"):
        raylog.spark.write_stream(stream, topic, cluster=kafka, checkpoint=checkpoint)


def test_partitions_that_there_are_not_are_refused(spark: Any, kafka: Kafka, checkpoint: str) -> None:
    kafka.create_topic("pair", 2)
    for call in (
        lambda: raylog.spark.read(spark, {"pair": [9]}, cluster=kafka),
        lambda: raylog.spark.read_stream(spark, {"pair": [9]}, cluster=kafka, checkpoint=checkpoint),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match="'pair' has no partition 9: it has 2, from 0 to 1"):
            call()


# ---------------------------------------------------------------------- names of options


def test_an_argument_that_was_misspelt_is_named(spark: Any, rows: Any, stream: Any, checkpoint: str) -> None:
    with pytest.raises(ConfigError, match="unknown option 'clutser': did you mean 'cluster'"):
        raylog.spark.read(spark, "t", clutser=None)
    with pytest.raises(ConfigError, match="unknown option 'nam': did you mean 'name'"):
        raylog.spark.read_stream(spark, "t", checkpoint=checkpoint, nam="x")
    with pytest.raises(ConfigError, match="unknown option 'clustr': did you mean 'cluster'"):
        raylog.spark.write(rows, "t", clustr=None)
    for wrong, right in (("triger", "trigger"), ("outputmode", "output_mode"), ("query_names", "query_name")):
        with pytest.raises(ConfigError, match=f"unknown option '{wrong}': did you mean '{right}'"):
            raylog.spark.write_stream(stream, "t", checkpoint=checkpoint, **{wrong: "x"})
    with pytest.raises(ConfigError, match=r"value\.serializer"):
        raylog.spark.write(rows, "t", value_serializer="nothing")


# ---------------------------------------------------------------------- streams


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (None, "checkpoint=None: give the path of a directory"),
        ("", "checkpoint='': give the path of a directory"),
        (5, "checkpoint=5: give the path of a directory"),
        (b"/x", "checkpoint=b'/x': give the path of a directory"),
        ("a\0b", "give the path of a directory"),
        ("file:", "'file:' names no path"),
        ("//host/x", "'//host/x' names no path"),
        ("s3://bucket/x", "not s3:"),
        ("/proc/nothing", r"checkpoint='/proc/nothing' is not a writable directory \(No such file"),
        (__file__, r"checkpoint='.*' is not a writable directory \(it is a file\): give another"),
        (f"{__file__}/below", r"is not a writable directory \(Not a directory\)"),
    ],
)
def test_what_can_be_no_checkpoint_is_refused(
    spark: Any, stream: Any, kafka: Kafka, checkpoint: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.spark.read_stream(spark, "pair", cluster=kafka, checkpoint=checkpoint)
    kafka.create_topic(topic := f"sink-{next(_topics)}", 1)
    with pytest.raises(ConfigError, match=message):
        raylog.spark.write_stream(stream, topic, cluster=kafka, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trigger": {"processingTime": "soon"}}, r"trigger={'processingTime': 'soon'}: .*unrecognized number 'soon'"),
        ({"trigger": {"processingTime": 5}}, "trigger=.*must be a non empty string"),
        ({"trigger": {"processingTime": None}}, "trigger=.*: give one of Spark's"),
        ({"trigger": {"processingTime": "-5 seconds"}}, "trigger=.*should not be negative"),
        ({"trigger": {"once": False}}, "trigger={'once': False}: .*must be True"),
        ({"trigger": {"continuous": "1 second"}}, "trigger 'continuous' does not work .*: choose from processingTime"),
        ({"trigger": "1 second"}, "trigger='1 second': give one of Spark's"),
        ({"output_mode": "complete"}, "Spark did not start this query: Complete output mode not supported"),
        ({"output_mode": "Append"}, "output_mode='Append': one of append"),
        ({"query_name": 5}, "query_name=5: give the query a name"),
        ({"query_name": ""}, "query_name='': give the query a name"),
        ({"order_by": 5}, "order_by=5: give a column, or a list of columns"),
        ({"order_by": ["nothing"]}, "order_by: there is no column 'nothing', only value"),
    ],
)
def test_a_query_that_can_not_be_is_refused(
    stream: Any, kafka: Kafka, checkpoint: str, options: dict[str, Any], message: str
) -> None:
    kafka.create_topic(topic := f"sink-{next(_topics)}", 1)
    with pytest.raises(ConfigError, match=message):
        raylog.spark.write_stream(stream, topic, cluster=kafka, checkpoint=checkpoint, **options)


def test_a_dataframe_of_the_other_kind_is_refused(rows: Any, stream: Any, kafka: Kafka, checkpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"write takes a DataFrame of a batch: use raylog\.spark\.write_stream"):
        raylog.spark.write(stream, "t", cluster=kafka)
    with pytest.raises(ConfigError, match=r"write_stream takes a streaming DataFrame: use raylog\.spark\.write for"):
        raylog.spark.write_stream(rows, "t", cluster=kafka, checkpoint=checkpoint)


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": 5}, "columns=5: give a list of the columns that stay"),
        ({"corrupt_column": None}, "corrupt_column=None: give the column of broken values a name"),
        ({"corrupt_column": ""}, "corrupt_column='': give"),
        ({"options": "x"}, "options='x': give Spark's for JSON"),
        ({"options": {5: 1}}, r"options\[5\]: Spark has no such option"),
        ({"options": {"timestampFormt": "x"}}, r"options\['timestampFormt'\]: Spark has no such option for JSON"),
        ({"options": {"Mode": "x"}}, r"options\['Mode'\]: use mode= and corrupt_column="),
    ],
)
def test_values_are_decoded_by_options_that_there_are(rows: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.spark.from_json(rows, "id bigint", **options)
