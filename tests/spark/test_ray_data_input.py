"""Bad input of Ray Data: broken batches, offsets that are gone, rows that are no records, each told where the program sees it."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest
from compacted_topics import Cleaning, await_compacted, create, eager_cleaner, fill
from scripted_cluster import ScriptedCluster

import raylog
from raylog.client.sync import AdminClient
from raylog.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from raylog.ranges.reading import ReadOptions
from raylog.ranges.snapshot import TopicsSnapshot
from raylog.ranges.splitting import OffsetRange
from raylog.records.batch import stamp
from raylog.records.codec import encode

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # Ray Data warns of its own options


def test_a_corrupt_batch_fails_the_dataset_and_is_named(ray: Any) -> None:
    cluster = ScriptedCluster()
    try:
        log = cluster.logs[("t", 0)]
        for _ in range(3):
            data = bytearray(encode([(1000, None, b"v", ())] * 5))
            stamp(data, log.end, log.epoch)
            log.batches.append(bytes(data))
            log.end += 5
        broken = bytearray(log.batches[1])
        broken[-1] ^= 0x40
        log.batches[1] = bytes(broken)
        snapshot = TopicsSnapshot((OffsetRange("t", 0, 0, 15),), {})
        ds = ray.data.read_datasource(raylog.data.TopicSource(cluster.address, snapshot, ReadOptions(("value",))))
        with pytest.raises(Exception, match=r"offsets 5–9 of t-0 is broken .*up to 5 and from 10 on"):
            ds.take_all()
    finally:
        cluster.close()


def test_offsets_that_are_not_there_are_an_error_or_a_warning_on_the_driver(
    ray: Any, kafka: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create_topic("deleted", 1)
    kafka.write("deleted", *(b"%d" % n for n in range(10)))
    with AdminClient(kafka.address) as admin:
        admin.delete_records({raylog.TopicPartition("deleted", 0): 4})
    options = {
        "cluster": kafka.address,
        "starting_offsets": {"deleted": {0: 1}},
        "ending_offsets": {"deleted": {0: 30}},
    }
    with pytest.raises(
        OffsetOutOfRangeError, match=r"offsets 1 to 3 of deleted-0 are deleted.*ends at 10, before offset 30"
    ):
        raylog.data.read_topic("deleted", **options)
    with caplog.at_level(logging.WARNING, "raylog.ranges"):
        ds = raylog.data.read_topic("deleted", fail_on_data_loss=False, **options)
    assert "offsets 1 to 3 of deleted-0 are deleted" in caplog.text
    assert ds.count() == 6
    with pytest.raises(UnknownTopicOrPartitionError, match="'nothing' does not exist"):
        raylog.data.read_topic("nothing", cluster=kafka.address)


def test_what_tasks_found_to_be_lost_is_a_warning_on_the_driver(
    ray: Any, kafka: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create_topic("vanishing", 1)
    kafka.write("vanishing", *(b"%d" % n for n in range(10)))
    strict = raylog.data.read_topic("vanishing", cluster=kafka.address)
    lenient = raylog.data.read_topic("vanishing", cluster=kafka.address, fail_on_data_loss=False)
    with AdminClient(kafka.address) as admin:
        admin.delete_records({raylog.TopicPartition("vanishing", 0): 4})
    with pytest.raises(Exception, match=r"offsets 0 to \d of vanishing-0 were deleted before they were read"):
        strict.take_all()
    with caplog.at_level(logging.WARNING, "raylog.data"):
        assert len(lenient.take_all()) == 6
        told = [record.getMessage() for record in caplog.records if record.name == "raylog.data"]
    assert any("of vanishing-0 were deleted before they were read" in message for message in told), told


def test_a_compacted_topic_is_a_dataset_of_what_the_cleaner_left(ray: Any) -> None:
    with eager_cleaner() as kafka:
        create(kafka, "accounts")
        latest = fill(kafka, "accounts", 0, 120)
        await_compacted(kafka, "accounts", below=100)
        cleaning = Cleaning(kafka, "accounts")
        ds = raylog.data.read_topic("accounts", cluster=kafka.address, min_tasks=7)
        assert 3 <= ds.count() < 21, "nobody takes offsets for records"
        rows = sorted(ds.take_all(), key=lambda row: row["offset"])
        assert cleaning.allows([row["offset"] for row in rows])
        assert {row["key"]: row["value"] for row in rows} == latest
        hole = raylog.data.read_topic("accounts", cluster=kafka.address, ending_offsets={"accounts": {0: 90}})
        assert hole.count() == 0 and hole.take_all() == []


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("value", [1, 2], "column value is int64: it has to be binary or string"),
        ("partition", ["0", "1"], "column partition is string: it has to be an integer"),
        ("colour", ["red", "blue"], "column 'colour' can't be written"),
    ],
)
def test_rows_that_do_not_fit_a_topic_are_refused_by_column(
    ray: Any, kafka: Any, column: str, values: list[Any], words: str
) -> None:
    if "refused" not in kafka_topics(kafka):
        kafka.create_topic("refused", 1)
    ds = ray.data.from_arrow(pa.table({"value": [b"a", b"b"]} | {column: values}))
    with pytest.raises(Exception, match=words):
        raylog.data.write_topic(ds, "refused", cluster=kafka.address)
    assert kafka.records("refused") == []


def kafka_topics(kafka: Any) -> list[str]:
    with AdminClient(kafka.address) as admin:
        return [each if isinstance(each, str) else each.name for each in admin.list_topics()]
