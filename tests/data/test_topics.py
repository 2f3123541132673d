"""Topics as Ray Datasets and back."""

from __future__ import annotations

from typing import Any

import pytest

import raylog
from raylog.errors import ConfigError, UnknownTopicOrPartitionError
from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions
from raylog.ranges.snapshot import TopicsSnapshot, take
from raylog.ranges.splitting import OffsetRange
from raylog.records.arrow_columns import ALL_COLUMNS
from raylog.types import TopicPartition

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # Ray Data warns of its own options


@pytest.fixture(scope="module")
def filled(cluster: raylog.Cluster) -> str:
    """A topic of two partitions with a thousand records."""
    cluster.admin().create_topics([raylog.NewTopic("filled", 2, 1)])
    with cluster.producer() as producer:
        for partition in range(2):
            values = [b"%d-%d" % (partition, n) for n in range(500)]
            producer.send_batch("filled", values, partition=partition).result()
    return "filled"


def read(cluster: raylog.Cluster, topic: Any, **options: Any) -> Any:
    return raylog.data.read_topic(topic, cluster=cluster, **options)


def test_a_topic_is_a_dataset_with_every_record_once(cluster: raylog.Cluster, filled: str) -> None:
    ds = read(cluster, filled, min_tasks=5)
    assert ds.schema().names == list(ALL_COLUMNS)
    rows = ds.take_all()
    assert len(rows) == 1000
    assert {row["value"] for row in rows} == {b"%d-%d" % (p, n) for p in range(2) for n in range(500)}
    assert {(row["partition"], row["offset"]) for row in rows} == {(p, n) for p in range(2) for n in range(500)}


def test_rows_are_counted_by_reading(cluster: raylog.Cluster, filled: str) -> None:
    snapshot = take(cluster.address, filled, bound("starting", offsets={filled: {0: 400, 1: 450}}), bound("ending"))
    source = raylog.data.TopicSource(cluster.address, snapshot, ReadOptions(ALL_COLUMNS), records_max=30)
    tasks = source.get_read_tasks(1)
    assert [task.metadata.num_rows for task in tasks] == [None] * 6, "some offsets may be no records"
    assert (source.estimate_inmemory_data_size() or 0) > 150
    assert read(cluster, filled, starting_offsets={filled: {0: 400, 1: 450}}).count() == 150


def test_there_are_as_many_tasks_as_there_is_work(cluster: raylog.Cluster, filled: str) -> None:
    def blocks(records: int) -> int | None:
        snapshot = TopicsSnapshot((OffsetRange(filled, 0, 0, records),), {TopicPartition(filled, 0): 1024.0})
        return raylog.data.TopicSource(cluster.address, snapshot, ReadOptions(ALL_COLUMNS)).blocks()

    assert blocks(0) is None
    assert blocks(100) == 1
    assert blocks(100 << 20) == 1600


def test_a_row_limit_is_kept(cluster: raylog.Cluster, filled: str) -> None:
    assert len(read(cluster, filled).limit(7).take_all()) == 7


def test_only_the_columns_that_are_used_are_read(cluster: raylog.Cluster, filled: str) -> None:
    assert read(cluster, filled, columns=["offset"]).schema().names == ["offset"]
    ds = read(cluster, filled).select_columns(["partition"])
    assert {tuple(row) for row in ds.take(3)} == {("partition",)}
    assert ds.sum("partition") == 500


def test_a_dataset_is_written_as_records(cluster: raylog.Cluster, filled: str) -> None:
    cluster.admin().create_topics([raylog.NewTopic("copies", 2, 1)])
    ds = read(cluster, filled, columns=["value", "partition", "timestamp"], ending_offsets={filled: {0: 100, 1: 50}})
    summary = raylog.data.write_topic(ds, "copies", cluster=cluster, compression_type="zstd")
    assert summary.records == 150
    back = read(cluster, "copies", columns=["partition", "value"]).take_all()
    assert {(row["partition"], row["value"]) for row in back} == {
        (p, b"%d-%d" % (p, n)) for p, end in ((0, 100), (1, 50)) for n in range(end)
    }


def test_bad_input_is_refused_on_the_driver(cluster: raylog.Cluster, filled: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'nothing' does not exist"):
        read(cluster, "nothing")
    with pytest.raises(ConfigError, match="no column 'valeu'"):
        read(cluster, filled, columns=["valeu"])
    with pytest.raises(UnknownTopicOrPartitionError, match="'nothing' does not exist"):
        raylog.data.write_topic(read(cluster, filled), "nothing", cluster=cluster)


def test_rows_that_are_no_records_are_refused(cluster: raylog.Cluster, filled: str) -> None:
    ds = read(cluster, filled, columns=["offset"])
    with pytest.raises(Exception, match="there is no column named value, only offset"):
        raylog.data.write_topic(ds, filled, cluster=cluster)
