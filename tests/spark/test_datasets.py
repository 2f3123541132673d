"""Datasets to Spark and back, on a plain session beside a Ray: types as they are, and nothing left behind."""

from __future__ import annotations

import datetime
import os
import time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from ray_clusters import eventually

import raylog
from raylog.errors import ClusterError, ConfigError
from raylog.spark import datasets, table_store
from raylog.spark.datasets import Part
from raylog.spark.table_store import StoreTables, TableStoreLocation, TableStores

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


def test_a_task_that_does_not_reach_the_ray_says_so_and_what_to_do_and_neither_tells_nor_keeps_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    token = "a-token-that-is-long-enough-to-be-one"
    nowhere = TableStoreLocation(
        "127.0.0.1:9", "n", "s", ("node",), (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", token))
    )
    why = r"does not reach the Ray at 127.0.0.1:9, .*raylog.spark.init\(\), or use files"
    with pytest.raises(ConnectionError, match=why) as raised, nowhere.connected():
        pass
    assert token not in repr((nowhere, StoreTables(nowhere), raised.value))
    assert (os.environ["RAY_AUTH_MODE"], os.environ.get("RAY_AUTH_TOKEN")) == ("disabled", None)


def test_tables_for_a_table_store_are_no_larger_than_it_takes_and_small_batches_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_store, "TABLE_BYTES", 800)
    sizes = [0, 10, 20, 1000, 0, 3]
    numbers = iter(range(sum(sizes)))
    batches = [pa.record_batch({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes]
    tables = list(table_store._tables(batches))
    assert [table.num_rows for table in tables] == [30, *[100] * 10, 3]
    assert pa.concat_tables(tables)["n"].to_pylist() == list(range(sum(sizes)))


def test_blocks_that_follow_each_other_on_one_host_share_a_task() -> None:
    parts = [Part(f"n/{n}", 1, size, place) for n, (size, place) in enumerate([(4, "a"), (5, "a"), (2, "a"), (1, "b")])]
    assert [[part.token for part in run] for run in datasets._runs(parts, 9)] == [["n/0", "n/1"], ["n/2"], ["n/3"]]


UNIQUE = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012)


def test_a_block_gets_the_columns_and_types_that_spark_was_told() -> None:
    nanoseconds = pa.array([pd.Timestamp(UNIQUE).value + 7, None], pa.timestamp("ns"))
    given = pa.table(
        {
            "small": pa.array([255, None], pa.uint8()),
            "half": pa.array([np.float16(1.5), None], pa.float16()),
            "word": pa.array(["x", None]).dictionary_encode(),
            "words": pa.array([["x"], None], pa.large_list(pa.large_string())),
            "pixel": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
            "code": pa.array([b"ab", None], pa.binary(2)),
            "at": pa.StructArray.from_arrays([nanoseconds], ["at"]),
            "price": pa.array([Decimal("1.10"), None], pa.decimal256(20, 2)),
            "day": pa.array([UNIQUE.date(), None], pa.date64()),
        }
    )
    wanted = pa.schema([(field.name, datasets._sparks(field.type, field.name)) for field in given.schema])
    assert [str(kind) for kind in wanted.types] == [
        "int16", "float", "string", "list<item: string>", "list<item: int32>", "binary", "struct<at: timestamp[us]>",
        "decimal128(20, 2)", "date32[day]",
    ]  # fmt: skip
    wanted = wanted.append(pa.field("another", pa.int64()))
    [batch] = table_store.conformed(given, wanted)
    assert batch.schema == wanted
    assert batch.to_pylist() == [
        {
            "small": 255, "half": 1.5, "word": "x", "words": ["x"], "pixel": [1, 2], "code": b"ab", "at": {"at": UNIQUE},
            "price": Decimal("1.10"), "day": UNIQUE.date(), "another": None,
        },
        dict.fromkeys(wanted.names) | {"at": {"at": None}},
    ]  # fmt: skip
    large = pa.table({"n": pa.array([b"x" * 1000] * 50_000)})
    assert max(batch.nbytes for batch in table_store.conformed(large, large.schema)) <= table_store.BATCH_BYTES
    with pytest.raises(ValueError, match="column 'n' does not go into int8"):
        list(table_store.conformed(pa.table({"n": [300]}), pa.schema([("n", pa.int8())])))


def test_table_stores_of_a_session_that_has_ended_are_ended() -> None:
    ended: list[str] = []

    def kept(name: str, context: Any) -> Any:
        session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context))
        made = SimpleNamespace()
        table_store.keep_for(made, SimpleNamespace(end=lambda: ended.append(name)), session)  # type: ignore[arg-type]
        return made

    kept("of the ended one", None)
    other = kept("of a live one", object())
    table_store.release_of_ended_sessions()
    assert ended == ["of the ended one"]
    raylog.data.release(other)


def stores(ray: Any) -> set[str]:
    return {each for each in ray.util.list_named_actors() if each.startswith("raylog-table-store")}


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
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "took": pa.array([datetime.timedelta(hours=1, microseconds=1), None, None], pa.duration("us")),
            "nothing": pa.nulls(3),
        }
    )


def test_every_type_is_the_same_there_and_back(spark: Any, ray: Any, rows: pa.Table) -> None:
    frame = raylog.data.to_spark(ray.data.from_arrow([rows, rows.slice(0, 0), rows]), spark)
    assert dict(frame.dtypes) == {
        "value": "binary", "name": "string", "at": "timestamp", "local": "timestamp_ntz", "count": "bigint",
        "ratio": "double", "price": "decimal(9,2)", "day": "date", "tags": "array<binary>",
        "pair": "struct<k:string,n:bigint>", "map": "map<string,bigint>", "took": "interval day to second", "nothing": "void",
    }  # fmt: skip
    assert frame.where("count = 9007199254740993 and hex(value) = '00FF'").count() == 2
    back = raylog.data.from_spark(frame.where("count is null or count > 0"))
    assert back.count() == 4
    expected = rows.slice(0, 2).to_pylist()
    assert sorted(back.take_all(), key=str) == sorted([*expected, *expected], key=str)
    assert back.schema().types == list(rows.schema.types)
    for made in (back, frame):
        raylog.data.release(made)
        with pytest.raises(ConfigError, match="already released"):
            raylog.data.release(made)
    eventually(lambda: fails(frame.count, "it was released"), "what the DataFrame is made of is gone")
    eventually(lambda: fails(back.take_all, "it was released"), "what the Dataset is made of is gone")


def fails(compute: Any, why: str) -> bool:
    """Whether it fails and says that; stores go on for a moment after they were ended."""
    try:
        compute()
    except Exception as error:
        return why in str(error)
    return False


def test_blocks_that_differ_go_together_where_they_can(spark: Any, ray: Any) -> None:
    never_null = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    blocks = [
        pa.table({"id": pa.array([], pa.string())}),
        pa.table({"id": [1]}, schema=never_null),
        pa.table({"name": ["x"], "size": pa.nulls(1)}),
        pa.table({"name": ["y"], "size": [0.5]}),
    ]
    ds = ray.data.from_arrow(blocks).union(ray.data.from_pandas(pd.DataFrame({"name": ["z"], "size": [2]}, index=[7])))
    for each in (ds, ds.materialize()):  # of which Ray itself tells the columns of the first block only
        frame = raylog.data.to_spark(each, spark)
        rows = [tuple(row) for row in frame.where("id IS NULL OR id > 0").select("id", "name", "size").collect()]
        assert sorted(rows, key=str) == [(1, None, None), (None, "x", None), (None, "y", 0.5), (None, "z", 2.0)]
        raylog.data.release(frame)
    texts = ray.data.from_arrow([pa.table({"id": [1]}), pa.table({"id": ["x"]})])
    with pytest.raises(ConfigError, match=r"do not fit together: .*Field id has incompatible types: int64 vs string"):
        raylog.data.to_spark(texts, spark)


def test_rows_lie_in_ray_until_they_are_released_and_no_attempt_counts_twice(
    spark: Any, ray: Any, tmp_path: Path
) -> None:
    before = stores(ray)
    once = str(tmp_path / "failed")

    def fails_at_its_end(batches: Any) -> Any:
        yield from batches
        from pyspark import TaskContext

        if TaskContext.get().attemptNumber() == 0:
            Path(once).touch()
            raise RuntimeError("the first attempt fails after its rows are out")

    df = spark.range(0, 3000, numPartitions=3).mapInArrow(fails_at_its_end, "id bigint")
    ds = raylog.data.from_spark(df)
    assert Path(once).exists()
    assert ds.count() == 3000 and sorted(row["id"] for row in ds.take_all()) == list(range(3000))
    assert len(stores(ray) - before) == 1
    raylog.data.release(ds)
    eventually(lambda: stores(ray) <= before, "the store ends")


def test_nothing_of_ray_is_left_in_sparks_processes_when_their_tasks_are_done(spark: Any, ray: Any) -> None:
    context = ray.get_runtime_context()
    location = TableStoreLocation(context.gcs_address, context.namespace, "none", (), table_store._authentication())

    def join_often(batches: Any) -> Any:
        threads = []
        for _ in batches:
            for _ in range(7):
                with location.connected() as joined:
                    assert joined.is_initialized()
                assert not joined.is_initialized()
                threads.append(len(os.listdir("/proc/self/task")))
            deadline = time.monotonic() + 60  # some of a library of Ray's come and go
            while threads[-1] - threads[1] >= 4 and time.monotonic() < deadline:
                time.sleep(0.1)
                threads.append(len(os.listdir("/proc/self/task")))
            yield pa.RecordBatch.from_pylist([{"names": list(os.environ), "threads": threads}])

    [row] = spark.range(1).mapInArrow(join_often, "names array<string>, threads array<bigint>").collect()
    assert not [name for name in row.names if name.startswith(("RAY_AUTH", "RAY_enable"))]
    assert row.threads[-1] - row.threads[1] < 4, row.threads
    eventually(lambda: live_drivers(ray) == 1, "they leave Ray")


def live_drivers(ray: Any) -> int:
    return sum(not job["IsDead"] for job in ray._private.state.jobs())


def test_rows_that_a_table_store_took_along_are_missed_and_nothing_stays(
    spark: Any, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(TableStores):
        def kept(self, tokens: Any) -> int:
            self.end()
            [handle] = self.handles.values()
            eventually(lambda: fails(lambda: ray.get(handle.ref.remote("none")), "killed"), "the store is gone")
            return super().kept(tokens)

    monkeypatch.setattr(datasets, "TableStores", Dying)
    before = stores(ray)
    with pytest.raises(ClusterError, match="2 of 2 parts of the DataFrame were lost"):
        raylog.data.from_spark(spark.range(0, 10, numPartitions=2))
    eventually(lambda: stores(ray) <= before, "the store ends")


def test_frames_and_datasets_without_rows_keep_their_columns(spark: Any, ray: Any, rows: pa.Table) -> None:
    empty = raylog.data.from_spark(spark.range(5).where("id > 9"))
    assert empty.count() == 0 and empty.materialize().schema().names == ["id"]
    raylog.data.release(empty)
    frame = raylog.data.to_spark(ray.data.from_arrow(rows.slice(0, 0)), spark)
    assert frame.columns == rows.column_names and frame.count() == 0
    raylog.data.release(frame)


def test_what_can_not_go_over_is_refused_by_its_name(spark: Any, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stores(ray)
    ds = ray.data.from_arrow(pa.table({"id": [1]}))
    times = pa.table({"id": [1], "when": pa.array([5], pa.time64("us"))})
    nested = pa.table({"sizes": pa.array([[2**64 - 1]], pa.list_(pa.uint64()))})
    for refused, why in (
        (ray.data.from_arrow(times), r"column 'when' is time64\[us\], which Spark does not have"),
        (ray.data.from_arrow(nested), "column 'sizes' is uint64, which Spark does not have"),
        (ray.data.from_items([]), "no rows and no schema, which Spark needs"),
        (times, "takes a ray.data.Dataset, not a Table"),
    ):
        with pytest.raises(ConfigError, match=why):
            raylog.data.to_spark(refused, spark)
    for df, why in (
        (
            spark.sql("SELECT 1 AS id, INTERVAL '3' MONTH AS months"),
            "column 'months' is interval month, which Arrow does not have",
        ),
        (spark.sql("SELECT 1 AS id, 2 AS id"), "two columns have the name 'id'"),
        (spark.range(3).select(), "there are no columns"),
        (spark.readStream.format("rate").load(), "this one is a stream"),
        (ds, r"df is a ray\.data\..*Dataset: from_spark takes a Spark DataFrame"),
    ):
        with pytest.raises(ConfigError, match=why):
            raylog.data.from_spark(df)
    with pytest.raises(ConfigError, match=r"spark=None is not a Spark session: give what raylog\.spark\.init\(\)"):
        raylog.data.to_spark(ds, None)
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(ClusterError, match="does not work through Ray client"):
        raylog.data.to_spark(ds, spark)
    assert stores(ray) <= before


def test_what_fails_while_it_is_computed_is_told_and_nothing_stays(spark: Any, ray: Any) -> None:
    before = stores(ray)

    def fails(row: Any) -> Any:
        raise ArithmeticError("a row of the Dataset fails")

    with pytest.raises(Exception, match="a row of the Dataset fails"):
        raylog.data.to_spark(ray.data.range(2, override_num_blocks=1).map(fails), spark)
    with pytest.raises(Exception, match="a row of the DataFrame fails") as raised:
        raylog.data.from_spark(spark.sql("SELECT raise_error('a row of the DataFrame fails') AS id"))
    eventually(lambda: stores(ray) <= before, "the store ends, although somebody keeps the error and its frames")
    del raised


def test_what_an_attempt_has_left_that_did_not_count_is_forgotten(ray: Any) -> None:
    node = ray.get_runtime_context().get_node_id()
    found = TableStores([node])
    [handle] = found.handles.values()
    for name in ("counts", "other"):
        ray.get(handle.keep.remote(f"{node}/{name}", pa.table({"id": [1]})))
    assert found.kept([f"{node}/counts", f"{node}/lost"]) == 1
    assert ray.get(ray.get(handle.ref.remote(f"{node}/counts"))[0]).num_rows == 1
    assert fails(lambda: ray.get(handle.ref.remote(f"{node}/other")), "KeyError")
    found.end()


def test_a_table_store_of_a_ray_that_was_left_is_let_be(ray: Any) -> None:
    before = stores(ray)
    found = TableStores([ray.get_runtime_context().get_node_id()])
    of_this, found._job = found._job, ("127.0.0.1:9", found._job[1])
    found.end()
    [handle] = found.handles.values()
    assert ray.get([handle.only.remote([]) for _ in range(2)]) == [0, 0]
    found._job = of_this
    found.end()
    eventually(lambda: stores(ray) <= before, "the store ends")
