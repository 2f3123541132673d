"""A topic that is really compacted as a DataFrame, batch and streaming: no key's latest value is missing, and what is read ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compacted_topics import Cleaning, await_compacted, compact, create, eager_cleaner, fill

import raylog.spark
from raylog.testing.kafka import Kafka

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

PATIENCE_S = 180


@pytest.fixture(scope="module")
def compacting() -> Iterator[Kafka]:
    with eager_cleaner() as found:
        yield found


def records(frame: Any) -> list[tuple[int, bytes, bytes]]:
    return sorted((row.offset, bytes(row.key), bytes(row.value)) for row in frame.collect())


def test_a_read_has_what_the_cleaner_left_and_ends_where_it_left_nothing(spark: Any, compacting: Kafka) -> None:
    create(compacting, "accounts")
    latest = fill(compacting, "accounts", 0, 120)
    await_compacted(compacting, "accounts", below=100)
    cleaning = Cleaning(compacting, "accounts")
    frame = raylog.spark.read(spark, "accounts", cluster=compacting, min_partitions=7)
    assert frame.rdd.getNumPartitions() == 7
    rows = records(frame)
    assert cleaning.allows([offset for offset, _, _ in rows]) and len(rows) < 21
    assert {key: value for _, key, value in rows} == latest
    for start, end in ((0, 90), (0, 118), (37, 83), (95, 120)):
        options = {"starting_offsets": {"accounts": {0: start}}, "ending_offsets": {"accounts": {0: end}}}
        some = records(raylog.spark.read(spark, "accounts", cluster=compacting, **options))
        assert cleaning.allows([offset for offset, _, _ in some], start, end), (start, end)
    table = raylog.spark.table(spark, "accounts", cluster=compacting).collect()
    assert {bytes(row.key): bytes(row.value) for row in table} == latest


def test_a_stream_goes_on_from_a_checkpoint_whose_place_was_compacted_away(
    spark: Any, compacting: Kafka, tmp_path: Path
) -> None:
    create(compacting, "balances", policy="delete")
    checkpoint = str(tmp_path / "checkpoint")
    options = {"starting_offsets": "earliest", "available_now": True, "max_offsets_per_trigger": 35}

    def run() -> list[tuple[int, bytes, bytes]]:
        rows: list[tuple[int, bytes, bytes]] = []
        frame = raylog.spark.read_stream(spark, "balances", cluster=compacting, checkpoint=checkpoint, **options)
        writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.foreachBatch(lambda batch, _: rows.extend(records(batch))).start()
        assert query.awaitTermination(PATIENCE_S), "the query goes on"
        return rows

    fill(compacting, "balances", 0, 60)
    first = run()
    assert [offset for offset, _, _ in first] == list(range(60))
    latest = fill(compacting, "balances", 60, 150)
    compact(compacting, "balances")
    await_compacted(compacting, "balances", below=120)
    cleaning = Cleaning(compacting, "balances")
    second = run()
    assert cleaning.allows([offset for offset, _, _ in second])
    assert {key: value for _, key, value in first + second} == latest
