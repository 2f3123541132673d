"""Datasets to Spark and back, on a plain session beside a Ray: types as they are, and nothing left behind."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ray_clusters import eventually

import raylog
from raylog.errors import ClusterError, ConfigError
from raylog.spark import datasets
from raylog.spark.shelf import STORED, ShelfPlace, Shelves, Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Data warns of its own options
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # py4j's
]

MOMENT = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=datetime.UTC)


def test_without_a_ray_it_is_said(spark: Any) -> None:
    with pytest.raises(ClusterError, match="not connected to a Ray"):
        raylog.data.from_spark(spark.range(3))


def test_a_task_that_does_not_reach_the_ray_says_so_and_what_to_do(spark: Any) -> None:
    nowhere = ShelfPlace("127.0.0.1:9", "namespace", "shelf", ("node",), ())
    with pytest.raises(
        Exception, match=r"does not reach the Ray at 127.0.0.1:9, .*raylog.spark.init\(\), or go by files"
    ):
        spark.range(1).mapInArrow(Store(nowhere), STORED).collect()


def shelves(ray: Any) -> set[str]:
    return {each for each in ray.util.list_named_actors() if each.startswith("raylog-shelf")}


@pytest.fixture
def rows() -> pa.Table:
    return pa.table(
        {
            "value": pa.array([b"\x00\xff", None, b""], pa.binary()),
            "name": ["ä", None, ""],
            "at": pa.array([MOMENT, None, MOMENT], pa.timestamp("us", tz="UTC")),
            "local": pa.array([MOMENT.replace(tzinfo=None), None, None], pa.timestamp("us")),
            "count": pa.array([2**53 + 1, None, -1], pa.int64()),
            "ratio": [0.5, None, float("-inf")],
            "price": pa.array([Decimal("1.10"), None, Decimal("-2.20")], pa.decimal128(9, 2)),
            "day": pa.array([MOMENT.date(), None, None], pa.date32()),
            "tags": pa.array([[b"a", None], None, []], pa.list_(pa.binary())),
            "pair": pa.array([{"k": "x", "n": 2**60}, None, {"k": None, "n": None}]),
        }
    )


def test_every_type_is_the_same_there_and_back(spark: Any, ray: Any, rows: pa.Table) -> None:
    frame = raylog.data.to_spark(ray.data.from_arrow([rows, rows]), spark)
    assert dict(frame.dtypes) == {
        "value": "binary", "name": "string", "at": "timestamp", "local": "timestamp_ntz", "count": "bigint",
        "ratio": "double", "price": "decimal(9,2)", "day": "date", "tags": "array<binary>",
        "pair": "struct<k:string,n:bigint>",
    }  # fmt: skip
    assert frame.where("count = 9007199254740993 and hex(value) = '00FF'").count() == 2
    back = raylog.data.from_spark(frame.where("count is null or count > 0"))
    assert back.count() == 4
    expected = rows.slice(0, 2).to_pylist()
    assert sorted(back.take_all(), key=str) == sorted([*expected, *expected], key=str)
    assert back.schema().types == list(rows.schema.types)
    raylog.data.release(back)
    raylog.data.release(frame)
    with pytest.raises(ConfigError, match="released before"):
        raylog.data.release(frame)
    with pytest.raises(Exception, match="it was released"):
        frame.count()


def test_rows_lie_in_ray_until_they_are_released_and_no_attempt_counts_twice(
    spark: Any, ray: Any, tmp_path: Path
) -> None:
    before = shelves(ray)
    once = str(tmp_path / "failed")

    def fails_at_its_end(batches: Any) -> Any:
        yield from batches
        from pyspark import TaskContext

        if TaskContext.get().attemptNumber() == 0:
            Path(once).touch()
            raise RuntimeError("the first attempt fails after its rows are out")

    df = spark.range(0, 30_000, numPartitions=3).mapInArrow(fails_at_its_end, "id bigint")
    ds = raylog.data.from_spark(df)
    assert Path(once).exists()
    assert ds.count() == 30_000 and ds.sum("id") == sum(range(30_000))
    assert len(shelves(ray) - before) == 1
    eventually(lambda: live_drivers(ray) == 1, "Spark's processes leave Ray when their tasks are done")
    raylog.data.release(ds)
    eventually(lambda: shelves(ray) == before, "the shelf ends")


def live_drivers(ray: Any) -> int:
    return sum(not job["IsDead"] for job in ray._private.state.jobs())


def test_rows_that_a_shelf_took_along_are_missed_and_nothing_stays(
    spark: Any, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(Shelves):
        def kept(self, tokens: Any) -> int:
            self.end()
            return super().kept(tokens)

    monkeypatch.setattr(datasets, "Shelves", Dying)
    before = shelves(ray)
    with pytest.raises(ClusterError, match="2 of 2 parts of the DataFrame were lost"):
        raylog.data.from_spark(spark.range(0, 10, numPartitions=2))
    eventually(lambda: shelves(ray) == before, "the shelf ends")


def test_frames_and_datasets_without_rows_keep_their_columns(spark: Any, ray: Any, rows: pa.Table) -> None:
    empty = raylog.data.from_spark(spark.range(5).where("id > 9"))
    assert empty.count() == 0 and empty.schema().names == ["id"]
    raylog.data.release(empty)
    frame = raylog.data.to_spark(ray.data.from_arrow(rows.slice(0, 0)), spark)
    assert frame.columns == rows.column_names and frame.count() == 0
    raylog.data.release(frame)


def test_a_type_that_the_other_side_has_not_is_named(spark: Any, ray: Any) -> None:
    before = shelves(ray)
    times = pa.table({"id": [1], "when": pa.array([5], pa.time64("us"))})
    with pytest.raises(ConfigError, match=r"column 'when' is time64\[us\], which Spark has not"):
        raylog.data.to_spark(ray.data.from_arrow(times), spark)
    with pytest.raises(ConfigError, match="column 'months' is interval month, which Arrow has not"):
        raylog.data.from_spark(spark.sql("SELECT 1 AS id, INTERVAL '3' MONTH AS months"))
    assert shelves(ray) == before
