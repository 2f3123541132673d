"""Clients against the real controller, brokers and replicas, in one process."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode
from raw_requests import eventually

from raylog.client.admin.admin import ConfigSource, NewTopic
from raylog.client.partitioners import partition_for_key
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.errors import kafka_error
from raylog.records import kernel
from raylog.records.batch import batches
from raylog.records.compression import Compression
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as made:
        yield made


@pytest.fixture
def admin(running: InProcessCluster) -> Iterator[AdminClient]:
    with AdminClient(running.address) as client:
        yield client


def new_topic(admin: AdminClient, partitions: int = 1, replication_factor: int = 3, **configs: Any) -> str:
    name = f"topic-{random.getrandbits(48):x}"
    admin.create_topics(NewTopic(name, partitions, replication_factor, configs))
    return name


def read_all(running: InProcessCluster, topic: str, partitions: int, count: int, **options: Any) -> list[Any]:
    with Consumer(running.address, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([(topic, index) for index in range(partitions)])
        records: list[Any] = []
        deadline = time.monotonic() + 60
        while len(records) < count and time.monotonic() < deadline:
            records += consumer.consume(count, timeout=0.5)
        return records


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_acknowledged_is_read_back_with_key_headers_and_time(
    running: InProcessCluster, admin: AdminClient, compression: str
) -> None:
    topic = new_topic(admin, 2)
    with Producer(running.address, compression_type=compression, linger_ms=5) as producer:
        sent = [
            producer.send(
                topic,
                b"value" * 20 + b"%d" % n,
                key=b"key%d" % (n % 7),
                timestamp_ms=1_000_000 + n,
                headers=[("n", b"%d" % n)],
            )
            for n in range(500)
        ]
        places = [delivery.result(60) for delivery in sent]
    records = {(r.partition, r.offset): r for r in read_all(running, topic, 2, 500)}
    assert len(records) == 500
    for n, place in enumerate(places):
        record = records[(place.partition, place.offset)]
        assert (record.value, record.key, record.timestamp) == (
            b"value" * 20 + b"%d" % n,
            b"key%d" % (n % 7),
            1_000_000 + n,
        )
        assert list(record.headers) == [("n", b"%d" % n)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_batches_of_values_land_as_they_say(running: InProcessCluster, admin: AdminClient, acks: Any) -> None:
    topic = new_topic(admin, 3)
    values = [b"%d" % n * 10 for n in range(20_000)]
    with Producer(running.address, acks=acks, batch_size=50_000) as producer:
        offsets = producer.send_batch(topic, values).result(60).offsets()
    records = {
        (r.partition, r.offset): r.value for r in read_all(running, topic, 3, len(values), max_poll_records=5000)
    }
    assert len(records) == len(values)
    if acks != 0:
        assert [records[place] for place in offsets] == values


def test_an_arrow_table_goes_in_and_comes_out(running: InProcessCluster, admin: AdminClient) -> None:
    topic = new_topic(admin)
    table = pa.table(
        {
            "key": ["a", None, "b"],
            "value": [b"1", b"2", None],
            "timestamp": pa.array([1, 2, 3], pa.timestamp("ms")),
            "unused": [1, 2, 3],
        }
    )
    with Producer(running.address) as producer:
        producer.send_arrow(topic, table).result(60)
    with Consumer(running.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        read = consumer.poll_batch(10)
        assert consumer.position((topic, 0)) == 3 and consumer.poll_batch(0.05).num_rows == 0
    assert read.column("key").to_pylist() == [b"a", None, b"b"]
    assert read.column("value").to_pylist() == [b"1", b"2", None]
    assert read.column("timestamp").to_pylist()[0] == datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)
    assert set(read.column("topic").to_pylist()) == {topic}


@pytest.mark.parametrize("way", ["kernel", "fallback"])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_the_rows_of_a_table_land_where_their_keys_belong_and_as_the_delivery_says(
    running: InProcessCluster, admin: AdminClient, monkeypatch: pytest.MonkeyPatch, way: str, compression: str
) -> None:
    if way == "fallback":
        monkeypatch.setattr(kernel, "loaded", lambda: None)
    topic = new_topic(admin, 3)
    rows = [
        {
            "key": b"%d" % (n % 50),
            "value": b"%d" % n * 20,
            "headers": [{"key": "n", "value": b"%d" % n}],
            "timestamp": n,
        }
        for n in range(5_000)
    ]
    told: list[Any] = []
    with Producer(running.address, batch_size=20_000, compression_type=compression) as producer:
        delivery = producer.send_arrow(
            topic, pa.Table.from_pylist(rows), on_delivery=lambda result, error: told.append((result.count, error))
        )
        offsets = delivery.result(60).offsets()
        assert producer.flush(30) == 0 and producer.buffered_bytes == 0
    assert told == [(len(rows), None)]
    read = {(r.partition, r.offset): r for r in read_all(running, topic, 3, len(rows))}
    assert len(read) == len(rows)
    for row, place in zip(rows, offsets, strict=True):
        record = read[place]
        assert (record.key, record.value, record.timestamp) == (row["key"], row["value"], row["timestamp"])
        assert record.headers == [(pair["key"], pair["value"]) for pair in row["headers"]]
        assert record.partition == partition_for_key(row["key"], 3)


def test_topics_are_created_described_grown_and_deleted(running: InProcessCluster, admin: AdminClient) -> None:
    topic = new_topic(admin, 2)
    with pytest.raises(kafka_error(ErrorCode.topic_already_exists), match=topic):
        admin.create_topics(NewTopic(topic, 2, 3))
    admin.create_topics(NewTopic(topic, 2, 3), if_not_exists=True)
    admin.create_topics(NewTopic(topic + "-dry", 2, 3), validate_only=True)
    assert topic in admin.list_topics() and topic + "-dry" not in admin.list_topics()
    description = admin.describe_topics(topic)[topic]
    assert [sorted(part.replicas) for part in description.partitions] == [[0, 1, 2]] * 2
    admin.create_partitions(topic, 5)
    assert len(admin.describe_topics(topic)[topic].partitions) == 5
    with pytest.raises(kafka_error(ErrorCode.invalid_partitions)):
        admin.create_partitions(topic, 2)
    admin.delete_topics(topic)
    with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition), match="does not exist"):
        admin.describe_topics(topic)
    with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition)):
        admin.delete_topics(topic)
    admin.delete_topics(topic, if_exists=True)


def test_configs_are_described_and_altered_and_unknown_ones_refused(
    running: InProcessCluster, admin: AdminClient
) -> None:
    topic = new_topic(admin, retention_ms=3_600_000)
    configs = admin.describe_configs(topic)
    assert configs["retention.ms"].value == "3600000" and configs["retention.ms"].source is ConfigSource.TOPIC
    assert configs["max.message.bytes"].is_default and len(configs) >= 31
    admin.alter_configs(topic, set={"max.message.bytes": 2000}, delete=["retention.ms"])
    configs = admin.describe_configs(topic, keys=["retention.ms", "max.message.bytes"])
    assert {name: entry.value for name, entry in configs.items()} == {
        "retention.ms": "604800000",
        "max.message.bytes": "2000",
    }
    with pytest.raises(kafka_error(ErrorCode.invalid_config)):
        admin.alter_configs(topic, set={"no.such.config": 1})
    with pytest.raises(kafka_error(ErrorCode.invalid_config)):
        admin.create_topics(NewTopic("bad-config", 1, 1, {"no.such.config": "1"}))


def test_a_topics_limit_splits_batches_and_refuses_single_records(
    running: InProcessCluster, admin: AdminClient
) -> None:
    topic = new_topic(admin, max_message_bytes=1500)
    values = [b"%03d" % n + bytes(300) for n in range(60)]
    with Producer(running.address) as producer:
        assert producer.send_batch(topic, values).result(60).offsets() == [(0, n) for n in range(60)]
        with pytest.raises(kafka_error(ErrorCode.message_too_large), match=r"max\.message\.bytes"):
            producer.send(topic, bytes(3000)).result(60)
        assert producer.send(topic, b"after").result(60).offset == 60
    assert [r.value for r in read_all(running, topic, 1, 61)] == [*values, b"after"]


def test_offsets_by_name_and_time_and_deleted_records(running: InProcessCluster, admin: AdminClient) -> None:
    topic = new_topic(admin)
    key = TopicPartition(topic, 0)
    with Producer(running.address, batch_size=1) as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n, timestamp_ms=5_000 + 10 * n).result(60)
    assert admin.list_offsets({key: "earliest"})[key].offset == 0
    assert admin.list_offsets({key: "latest"})[key].offset == 10
    assert admin.list_offsets({key: "max_timestamp"})[key].offset == 9
    assert admin.list_offsets({key: 5_035})[key].offset == 4
    with Consumer(running.address) as consumer:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=5_050)
        assert consumer.offsets_for_times({key: moment}) == {key: 5}
        assert consumer.offsets_for_times({key: 99_000_000}) == {key: None}
        assert admin.delete_records({key: 4}) == {key: 4}
        assert consumer.beginning_offsets([key]) == {key: 4} and consumer.end_offsets([key]) == {key: 10}
        consumer.assign([key])
        consumer.seek(key, 0)  # deleted: goes by auto.offset.reset=latest
        shown: list[Any] = []

        def is_at_the_end() -> bool:
            shown.extend(consumer.consume(timeout=0.3))
            return consumer.position(key) == 10

        eventually(is_at_the_end, "the position after the reset")
        assert shown == []
    with pytest.raises(kafka_error(ErrorCode.offset_out_of_range)):
        admin.delete_records({key: 1000})


def test_the_cluster_describes_itself_by_broker_ids(running: InProcessCluster, admin: AdminClient) -> None:
    description = admin.describe_cluster()
    assert [info.broker for info in description.brokers] == [0, 1, 2]
    assert description.cluster_id == running.address.cluster_id


def test_a_leaders_death_is_survived_by_producer_and_consumer() -> None:
    """Own cluster: it loses a server. Every acknowledged record is there once, in order."""
    with cluster(brokers=3) as doomed, AdminClient(doomed.address) as admin:
        admin.create_topics(NewTopic("t", 1, 3, {"min.insync.replicas": 2}))
        with Producer(doomed.address) as producer, Consumer(doomed.address, auto_offset_reset="earliest") as consumer:
            producer.send("t", b"first").result(60)
            consumer.assign([("t", 0)])
            stop = threading.Event()
            deliveries: list[Any] = []

            def keep_sending() -> None:
                number = 0
                while not stop.is_set():
                    deliveries.append(producer.send("t", b"%d" % number))
                    number += 1
                    time.sleep(0.0005)  # a slow source: the records spread over the failover

            sender = threading.Thread(target=keep_sending)
            sender.start()
            seen: list[Any] = []
            try:
                while len(seen) < 200:
                    seen += consumer.consume(timeout=30)
                leader = admin.describe_topics("t")["t"].partitions[0].leader_node
                doomed.crash(leader)
                wanted = len(deliveries) + 200
                eventually(lambda: len(deliveries) > wanted and deliveries[wanted].done(), "200 more at the new leader")
            finally:
                stop.set()
                sender.join()
            assert producer.flush(60) == 0
            offsets = [delivery.result(0).offset for delivery in deliveries]
            assert offsets == sorted(set(offsets))
            while len(seen) < len(deliveries) + 1:
                more = consumer.consume(timeout=30)
                assert more, f"{len(seen)} of {len(deliveries) + 1} records came"
                seen += more
            assert [r.value for r in seen] == [b"first"] + [b"%d" % n for n in range(len(deliveries))]
            assert admin.describe_topics("t")["t"].partitions[0].leader_node != leader


def test_a_topic_that_names_a_codec_stores_every_batch_in_it(running: InProcessCluster, admin: AdminClient) -> None:
    topic = new_topic(admin, 1, **{"compression.type": "zstd"})
    values = [b"value" * 20 + b"%d" % n for n in range(200)]
    with Producer(running.address, compression_type="lz4") as producer:
        producer.send_batch(topic, values, partition=0).result(60)
    assert [record.value for record in read_all(running, topic, 1, 200)] == values
    segments = sorted(running.folder.glob(f"broker-*/{topic}-0/*.log"))
    stored = [view.compression for segment in segments for view in batches(segment.read_bytes())]
    assert stored and set(stored) == {Compression.ZSTD}
