"""JSON values as columns of a DataFrame, and what becomes of those that are none."""

from __future__ import annotations

from typing import Any

import pytest

import raylog.spark
from raylog.errors import ConfigError
from raylog.testing.kafka import Kafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

GOOD = (b'{"id": 1, "at": "2024-01-02T03:04:05Z", "more": 0}', None, b"{}")
BROKEN = (b"", b"  ", b'{"id": 1', b"[]", b'{"id": "x"}')


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    kafka.create_topic("json", 1)
    kafka.write("json", *GOOD, *BROKEN)
    return "json"


def decoded(spark: Any, kafka: Kafka, topic: str, end: int, **options: Any) -> Any:
    frame = raylog.spark.read(spark, topic, cluster=kafka, ending_offsets={topic: {0: end}})
    return raylog.spark.from_json(frame, "id bigint, at timestamp", **options)


def test_fields_are_columns_and_broken_values_are_kept(spark: Any, kafka: Kafka, topic: str) -> None:
    frame = decoded(spark, kafka, topic, len(GOOD + BROKEN), columns=["offset"])
    assert frame.columns == ["offset", "id", "at", "_corrupt_record"]
    rows = frame.selectExpr("offset", "id", "unix_millis(at) as ms", "_corrupt_record as bad").sort("offset").collect()
    assert [tuple(row) for row in rows[:3]] == [
        (0, 1, 1_704_164_645_000, None),
        (1, None, None, None),
        (2, None, None, None),
    ]
    assert [(row.id, row.bad.encode()) for row in rows[3:]] == [(None, value) for value in BROKEN]
    assert frame.where("_corrupt_record is null").count() == 3


def test_a_broken_value_fails_the_query_and_is_named(spark: Any, kafka: Kafka, topic: str) -> None:
    good = decoded(spark, kafka, topic, len(GOOD), mode="failfast")
    assert good.columns[-2:] == ["id", "at"] and good.agg({"id": "sum"}).collect()[0][0] == 1
    for end, shown in ((4, ""), (6, r'\{"id": 1')):
        frame = decoded(spark, kafka, topic, end, mode="failfast").where(f"offset < 3 or offset = {end - 1}")
        with pytest.raises(Exception, match=rf"the value at offset {end - 1} of json-0 does not decode .*: {shown}"):
            frame.select("id").collect()


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("id bigint", {"mode": "dropmalformed"}, "one of permissive, failfast"),
        ("offset bigint", {}, "'offset' would appear twice"),
        ("id bigint", {"column": "offset"}, "column offset is bigint: it has to be binary or string"),
        ("id bigint", {"columns": ["valeu"]}, "there is no column 'valeu'"),
        ("id bigint", {"options": {"mode": "FAILFAST"}}, "use mode= and corrupt_column= instead"),
        ("id bigits", {}, "can't be parsed by Spark"),
        ("bigint", {}, "give a StructType"),
    ],
)
def test_what_can_not_be_is_refused(
    spark: Any, kafka: Kafka, topic: str, schema: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        raylog.spark.from_json(raylog.spark.read(spark, topic, cluster=kafka), schema, **options)
