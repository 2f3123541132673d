"""``isolation_level="read_committed"`` in Spark, on handwritten transactions: no row of what was aborted, in batches and in streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_cluster import ScriptedCluster, transactions

import raylog.spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

PATIENCE_S = 180


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    made = ScriptedCluster()
    transactions(made)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("level", "values", "isolation"),
    [("read_committed", ["kept"], 1), ("read_uncommitted", ["gone", "kept"], 0)],
)
def test_rows_of_an_aborted_transaction_are_there_only_where_they_are_asked_for(
    spark: Any, cluster: ScriptedCluster, tmp_path: Path, level: str, values: list[str], isolation: int
) -> None:
    def found(frame: Any) -> list[str]:
        return sorted(bytes(row.value).decode() for row in frame.collect())

    def levels(name: str) -> set[int]:
        asked = {request.isolation_level for request in cluster.requests if hasattr(request, name)}
        cluster.requests.clear()
        return asked

    options = {"cluster": cluster.address, "isolation_level": level}
    assert found(raylog.spark.read(spark, "t", **options)) == values
    assert levels("isolation_level") == {isolation}, "the snapshot and the tasks"
    checkpoint, rows = str(tmp_path / "checkpoint"), []
    stream = raylog.spark.read_stream(
        spark, "t", checkpoint=checkpoint, starting_offsets="earliest", available_now=True, **options
    )
    writer = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.foreachBatch(lambda frame, _: rows.extend(found(frame))).start()
    assert query.awaitTermination(PATIENCE_S), "the query goes on"
    assert rows == values
    assert levels("max_wait") == {isolation}, "the tasks"
