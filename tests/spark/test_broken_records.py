"""Broken bytes in a topic that Spark reads: the query fails, or keeps them where it was told to, and nothing is left out in silence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raylog.spark
import raylog.testing
from raylog.client.background import background
from raylog.ranges import links, near_files
from raylog.records.batch import BatchView
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

PATIENCE_S = 180
RECORDS, PER_BATCH, BROKEN = 60, 5, 20
_names = (f"broken-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kafka, Path]]:
    folder = tmp_path_factory.mktemp("broken")
    with raylog.testing.broker(folder=folder, brokers=1) as found:
        yield found, folder


@pytest.fixture
def topic(on_disk: tuple[Kafka, Path]) -> str:
    """Twelve batches of five records; in the file a bit is wrong of the one that begins at offset 20."""
    kafka, folder = on_disk
    name = next(_names)
    kafka.create_topic(name)
    for start in range(0, RECORDS, PER_BATCH):
        kafka.write(name, *[b"value %d" % n for n in range(start, start + PER_BATCH)])
    (segment,) = folder.glob(f"**/{name}-0/*.log")
    data, position = segment.read_bytes(), 0
    while (view := BatchView(data[position:])).base_offset < BROKEN:
        position += view.size
    assert view.base_offset == BROKEN
    with segment.open("r+b") as file:
        file.seek(position + view.size - 3)
        file.write(bytes([data[position + view.size - 3] ^ 0x10]))
    return name


def reads_files(kafka: Kafka, topic: str) -> bool:
    """Whether a reader on this machine, as Spark's workers are here, takes the records out of the replica's files."""

    async def located() -> near_files.NearRecords | None:
        try:
            return await near_files.located(await links.acquire(kafka.address), TopicPartition(topic, 0), 0, RECORDS)
        finally:
            await links.release(kafka.address)

    found = background().run(located())
    if found is not None:
        found.close()
    return found is not None


SAID = r"the batch at offset 20 of {topic}-0 is broken .*read up to 20 and from behind that batch on to go without it"


@pytest.mark.parametrize(
    "options", [{}, {"isolation_level": "read_committed"}], ids=["out of files", "over the network"]
)
def test_a_corrupt_batch_fails_the_query_and_is_named(
    spark: Any, on_disk: tuple[Kafka, Path], topic: str, options: dict[str, Any]
) -> None:
    kafka, _ = on_disk
    assert reads_files(kafka, topic)  # and a committed read is fetched
    frame = raylog.spark.read(spark, topic, cluster=kafka, fail_on_data_loss=False, **options)
    with pytest.raises(Exception, match=SAID.format(topic=topic)):
        frame.count()
    assert raylog.spark.losses(frame) == (), "it is no loss that one could go on from"
    rows = [
        row.offset
        for bounds in ({"ending_offsets": {topic: {0: 20}}}, {"starting_offsets": {topic: {0: 25}}})
        for row in raylog.spark.read(spark, topic, cluster=kafka, **bounds, **options).collect()
    ]
    assert sorted(rows) == [*range(20), *range(25, RECORDS)]


def test_a_corrupt_batch_fails_a_stream_before_anything_of_its_batch_is_written(
    spark: Any, on_disk: tuple[Kafka, Path], topic: str, tmp_path: Path
) -> None:
    kafka, _ = on_disk
    checkpoint, out = str(tmp_path / "checkpoint"), tmp_path / "out"
    options = {"starting_offsets": "earliest", "available_now": True, "max_offsets_per_trigger": 15}
    frame = raylog.spark.read_stream(spark, topic, cluster=kafka, checkpoint=checkpoint, columns=["offset"], **options)
    writer = frame.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    with pytest.raises(Exception, match=SAID.format(topic=topic)):
        writer.format("parquet").start(str(out)).awaitTermination(PATIENCE_S)
    rows = spark.read.parquet(str(out)).collect()
    assert sorted(row.offset for row in rows) == [*range(15)], "the batch before"


def test_values_of_a_stream_that_do_not_decode_are_kept_or_fail_the_query(
    spark: Any, kafka: Kafka, tmp_path: Path
) -> None:
    name = next(_names)
    kafka.create_topic(name)
    kafka.write(name, b'{"id": 1}', b'{"id": ', None, b'{"id": 4}')

    def run(mode: str) -> tuple[Any, dict[int, Any]]:
        checkpoint, rows = str(tmp_path / mode), {}
        stream = raylog.spark.read_stream(
            spark, name, cluster=kafka, checkpoint=checkpoint, available_now=True, starting_offsets="earliest"
        )
        decoded = raylog.spark.from_json(stream, "id bigint", mode=mode, columns=["offset"])

        def keep(frame: Any, _: int) -> None:
            rows.update({row.offset: tuple(row)[1:] for row in frame.collect()})

        writer = decoded.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.foreachBatch(keep).start()
        try:
            query.awaitTermination(PATIENCE_S)
            return None, rows
        except Exception as error:
            return error, rows

    assert run("permissive") == (None, {0: (1, None), 1: (None, '{"id": '), 2: (None, None), 3: (4, None)})
    error, rows = run("failfast")
    assert f"the value at offset 1 of {name}-0 does not decode" in str(error) and rows == {}
