"""A consumer against a cluster whose logs, leaders and epochs a script controls."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import eventually
from scripted_cluster import FETCH, LIST_OFFSETS, ScriptedCluster

from raylog.client.background import background
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.sync import Consumer
from raylog.errors import ClosedError, ConfigError, SerializationError, kafka_error
from raylog.records.batch import BatchView, stamp
from raylog.records.codec import encode, encode_values
from raylog.records.control import Marker, control_batch
from raylog.records.record import Record
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

TICK_S = 0.002
"""A loop's clock is rounded (uvloop's counts milliseconds): what it waits can read that much shorter than it was told to."""


def fill(
    cluster: ScriptedCluster,
    values: list[bytes],
    key: tuple[str, int] = ("t", 0),
    *,
    per_batch: int = 5,
    start_ms: int = 1000,
) -> None:
    """Put values straight into a log; the timestamp of the n-th is start_ms + n."""
    log = cluster.logs[key]
    for start in range(0, len(values), per_batch):
        part = [
            (start_ms + log.end + index, None, value, ())
            for index, value in enumerate(values[start : start + per_batch])
        ]
        log.append(encode(part))


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + 25
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.consume(count - len(records), timeout=0.2)
    return records


def from_start(cluster: ScriptedCluster, *keys: tuple[str, int], **options: Any) -> Consumer:
    consumer = Consumer(cluster.address, auto_offset_reset="earliest", **options)
    consumer.assign(keys or [("t", 0)])
    return consumer


def test_polls_of_a_silent_topic_leave_nothing_behind(scripted: Any) -> None:
    """A consumer that polls ten times a second for a day may not gather a million callbacks."""
    cluster = scripted()
    with from_start(cluster, ("t", 0)) as consumer:
        for _ in range(20):
            assert consumer.poll(0.002) is None
        assert not consumer._core().fetcher._waiters
    coroutine_consumer = AsyncConsumer(cluster.address, auto_offset_reset="earliest")

    async def poll() -> None:
        coroutine_consumer.assign([TopicPartition("t", 0)])
        for _ in range(20):
            assert await coroutine_consumer.poll(0.002) is None
        assert not coroutine_consumer._opened().fetcher._waiters
        await coroutine_consumer.close()

    asyncio.run(poll())


def test_a_fetch_that_a_quota_held_back_is_no_fault_of_the_leader(scripted: Any) -> None:
    """As in Kafka, such an answer names no partition. The consumer waits as long as it says, and not longer."""
    cluster = scripted()
    fill(cluster, values(5))

    def hold_back(cluster: ScriptedCluster, request: Any) -> bool:
        answer = import_module(type(request.body).__module__.replace(".request", ".response"))
        fields = {"throttle_time": timedelta(milliseconds=20), "error_code": ErrorCode.none, "session_id": 0}
        request.reply(answer.FetchResponse(responses=(), **fields))
        return True

    cluster.fail_next(FETCH, hold_back, times=5)
    with from_start(cluster, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as consumer:
        assert [record.value for record in read(consumer, 5)] == values(5)


def test_without_a_controller_a_consumer_goes_on_at_the_leader_that_the_old_one_names(scripted: Any) -> None:
    cluster = scripted()
    cluster.hints = True
    fill(cluster, values(10))
    with from_start(cluster) as consumer:
        assert [record.value for record in read(consumer, 10)] == values(10)
        cluster.stop(-1)
        cluster.move_leader(("t", 0), 1)
        cluster.call(lambda: fill(cluster, values(10, 10)))
        assert [record.value for record in read(consumer, 10)] == values(10, 10)


def test_a_moved_leader_is_followed_without_loss_or_repetition(scripted: Any) -> None:
    cluster = scripted(nodes=3)
    with from_start(cluster) as consumer:
        for epoch in range(4):
            fill(cluster, values(20, 20 * epoch))
            assert [r.value for r in read(consumer, 20)] == values(20, 20 * epoch)
            cluster.move_leader(("t", 0), (epoch + 1) % 3)


def test_a_dead_leader_is_replaced(scripted: Any) -> None:
    cluster = scripted(nodes=2)
    fill(cluster, values(10))
    with from_start(cluster) as consumer:
        assert len(read(consumer, 10)) == 10
        cluster.stop(0)
        fill(cluster, values(10, 10))
        cluster.move_leader(("t", 0), 1)
        assert [r.value for r in read(consumer, 10)] == values(10, 10)


def test_a_broken_fetch_is_made_again(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(10))
    cluster.fail_next(FETCH, lambda cluster, request: request.connection.abort() or True, 3)
    with from_start(cluster) as consumer:
        assert [r.value for r in read(consumer, 10)] == values(10)


def test_a_consumer_waits_as_long_as_a_leader_tells_it_to(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(5))
    times: list[float] = []

    def throttle(cluster: ScriptedCluster, request: Any) -> bool:
        answer = cluster._fetch_answers(request, cluster.node_of(request))
        times.append(cluster.loop.time())
        request.reply(
            import_module(type(request.body).__module__.replace(".request", ".response")).FetchResponse(
                throttle_time=timedelta(milliseconds=300), error_code=ErrorCode.none, session_id=0, responses=answer
            )
        )
        return True

    def note(cluster: ScriptedCluster, request: Any) -> bool:
        times.append(cluster.loop.time())
        return False

    cluster.fail_next(FETCH, throttle)
    cluster.fail_next(FETCH, note)
    with from_start(cluster) as consumer:
        assert [r.value for r in read(consumer, 5)] == values(5), "what came with it is there at once"
        fill(cluster, values(5, 5))
        assert [r.value for r in read(consumer, 5)] == values(5, 5)
    assert times[1] - times[0] >= 0.3 - TICK_S


def test_an_unclean_cut_moves_the_position_to_the_cut(scripted: Any) -> None:
    cluster = scripted(nodes=2)
    fill(cluster, values(20))
    with from_start(cluster) as consumer:
        assert len(read(consumer, 20)) == 20
        cut(cluster, 10)
        fill(cluster, values(20, 100))
        assert [(r.offset, r.value) for r in read(consumer, 20)] == [(10 + n, b"%d" % (100 + n)) for n in range(20)]


def test_an_unclean_cut_is_told_where_nothing_may_be_reset(scripted: Any) -> None:
    cluster = scripted(nodes=2)
    fill(cluster, values(20))
    with Consumer(cluster.address, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(
            kafka_error(ErrorCode.offset_out_of_range),
            match=r"has no position and auto.offset.reset=none: seek\(\) first",
        ):
            consumer.poll(25)
        consumer.seek(("t", 0), 0)
        assert len(read(consumer, 20)) == 20
        cut(cluster, 10)
        with pytest.raises(
            kafka_error(ErrorCode.offset_out_of_range), match="was cut at offset 10 by an unclean election"
        ):
            consumer.poll(25)
        consumer.seek(("t", 0), 10)
        fill(cluster, values(5, 100))
        assert read(consumer, 5)[0].offset == 10


def cut(cluster: ScriptedCluster, end: int) -> None:
    """Another node leads; it never had the records from ``end`` on."""

    def truncate() -> None:
        log = cluster.logs[("t", 0)]
        log.batches = [batch for batch in log.batches if BatchView(batch).next_offset <= end]
        log.end = end

    cluster.call(truncate)
    cluster.move_leader(("t", 0), 1)


def test_an_offset_outside_the_log_goes_by_the_reset_policy(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(20))
    with from_start(cluster) as consumer:
        consumer.seek(("t", 0), 1000)
        assert read(consumer, 1)[0].offset == 0
    with Consumer(cluster.address, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 1000)
        with pytest.raises(kafka_error(ErrorCode.offset_out_of_range), match=r"offset 1000 of t-0 is not in the log"):
            consumer.poll(25)
        consumer.seek(("t", 0), 3)
        assert read(consumer, 1)[0].offset == 3


def test_records_deleted_under_a_reader_do_not_stop_it(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(20))
    with from_start(cluster) as consumer:
        read(consumer, 20)

        def delete() -> None:
            log = cluster.logs[("t", 0)]
            log.end = 40
            log.start = 30
            log.batches = []

        cluster.call(delete)
        consumer.seek(("t", 0), 20)
        fill(cluster, values(5, 40))
        assert read(consumer, 1)[0].offset == 40


def test_a_wrong_crc_is_an_error_at_its_offset_and_can_be_jumped(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(15))
    log = cluster.logs[("t", 0)]
    broken = bytearray(log.batches[1])
    broken[-2] ^= 1
    log.batches[1] = bytes(broken)
    with from_start(cluster) as consumer:
        assert len(read(consumer, 5)) == 5
        for _ in range(2):
            with pytest.raises(
                kafka_error(ErrorCode.corrupt_message), match=r"offsets 5–9 of t-0 has a wrong CRC: seek\(\) to 10"
            ):
                consumer.poll(25)
        assert consumer.position(("t", 0)) == 5
        consumer.seek(("t", 0), 10)
        assert [r.offset for r in read(consumer, 5)] == [10, 11, 12, 13, 14]
    with from_start(cluster, check_crcs=False) as consumer:
        assert len(read(consumer, 15)) == 15


def test_control_batches_are_not_shown_and_the_position_passes_them(scripted: Any) -> None:
    cluster = scripted()
    log = cluster.logs[("t", 0)]
    fill(cluster, values(5))

    def add_marker() -> None:
        marker = bytearray(
            control_batch(Marker.COMMIT, producer_id=9, producer_epoch=0, timestamp_ms=1, coordinator_epoch=0)
        )
        stamp(marker, log.end, log.epoch)
        log.batches.append(bytes(marker))
        log.end += 1

    cluster.call(add_marker)
    fill(cluster, values(5, 5))
    cluster.call(add_marker)
    with from_start(cluster) as consumer:
        assert [r.offset for r in read(consumer, 10)] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
        shown: list[Record] = []

        def is_passed() -> bool:
            shown.extend(consumer.consume(timeout=0.2))
            return consumer.position(("t", 0)) == 12

        eventually(is_passed, "the last marker is passed")
        assert shown == []
        consumer.seek_to_beginning()
        assert consumer.poll_batch(25).num_rows == 10


def test_a_seek_into_a_batch_starts_at_its_record(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(10), per_batch=10)
    with from_start(cluster) as consumer:
        consumer.seek(("t", 0), 7)
        assert [r.offset for r in read(consumer, 3)] == [7, 8, 9]
        consumer.seek(("t", 0), 4)
        assert consumer.poll_batch(25).column("offset").to_pylist() == [4, 5, 6, 7, 8, 9]
        consumer.seek(("t", 0), 2)
        first = consumer.poll(25)
        assert first is not None and first.offset == 2
        assert consumer.poll_batch(25).column("offset").to_pylist() == [3, 4, 5, 6, 7, 8, 9]


def test_seeks_by_name_and_by_moment(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(10), start_ms=1_000_000)
    with Consumer(cluster.address) as consumer:
        consumer.assign([("t", 0)])
        assert consumer.position(("t", 0)) == 10  # latest
        consumer.seek_to_beginning()
        assert consumer.position(("t", 0)) == 0
        consumer.seek(("t", 0), datetime.fromtimestamp(1000.004, UTC))
        assert read(consumer, 1)[0].offset == 4
        consumer.seek(("t", 0), datetime.fromtimestamp(5000, UTC))
        assert consumer.position(("t", 0)) == 10  # nothing is that late: the end
        consumer.seek_to_end(("t", 0))
        assert consumer.position(("t", 0)) == 10
        assert consumer.offsets_for_times({("t", 0): 1_000_003}) == {("t", 0): 3}
        assert consumer.offsets_for_times({("t", 0): 9_000_000}) == {("t", 0): None}
        assert consumer.beginning_offsets([("t", 0)]) == {("t", 0): 0}
        assert consumer.end_offsets([("t", 0)]) == {("t", 0): 10}
        for place in (-1, "middle", 1.5):
            with pytest.raises(ConfigError, match="cannot seek to"):
                consumer.seek(("t", 0), place)


def test_a_paused_partition_is_silent_and_loses_nothing(scripted: Any) -> None:
    cluster = scripted(topics={"t": 2})
    fill(cluster, values(10), ("t", 0))
    fill(cluster, values(10), ("t", 1))
    with from_start(cluster, ("t", 0), ("t", 1)) as consumer:
        first = consumer.poll(25)
        assert first is not None
        consumer.pause((first.topic, first.partition))
        others = read(consumer, 10)
        assert {r.partition for r in others} == {1 - first.partition} and len(others) == 10
        assert consumer.poll(0.1) is None
        assert consumer.paused() == [("t", first.partition)]
        consumer.resume()
        assert [r.offset for r in read(consumer, 9)] == list(range(1, 10))


def test_an_assignment_replaces_the_former_and_keeps_places(scripted: Any) -> None:
    cluster = scripted(topics={"t": 2})
    fill(cluster, values(10), ("t", 0))
    fill(cluster, values(10), ("t", 1))
    with from_start(cluster, ("t", 0)) as consumer:
        assert len(read(consumer, 4)) == 4
        consumer.assign([("t", 0), ("t", 1)])
        both = read(consumer, 16)
        assert sorted((r.partition, r.offset) for r in both) == [(0, n) for n in range(4, 10)] + [
            (1, n) for n in range(10)
        ]
        consumer.assign([("t", 1)])
        assert consumer.assignment() == [("t", 1)]
        with pytest.raises(ConfigError, match="t-0 is not assigned"):
            consumer.position(("t", 0))


def test_unknown_topics_and_partitions_are_named_when_polled(scripted: Any) -> None:
    cluster = scripted()
    with from_start(cluster, ("nope", 0)) as consumer:
        with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition), match="topic 'nope' does not exist"):
            consumer.poll(25)
        consumer.assign([("t", 7)])
        with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition), match="has no partition 7"):
            consumer.poll(25)
        consumer.seek_to_beginning()
        with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition)):
            consumer.position(("t", 7))


def test_offsets_are_asked_again_until_a_leader_knows_them(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(3))

    def not_yet(cluster: ScriptedCluster, request: Any) -> bool:
        import dataclasses

        original = request.reply

        class Refusing:
            body, connection = request.body, request.connection

            @staticmethod
            def reply(entity: Any) -> None:
                parts = tuple(
                    dataclasses.replace(part, error_code=ErrorCode.offset_not_available)
                    for part in entity.topics[0].partitions
                )
                original(dataclasses.replace(entity, topics=(dataclasses.replace(entity.topics[0], partitions=parts),)))

        cluster._list_offsets(Refusing)
        return True

    cluster.fail_next(LIST_OFFSETS, not_yet, 3)
    with from_start(cluster, retry_backoff_ms=10) as consumer:
        assert len(read(consumer, 3)) == 3


def test_deserializers_and_interceptors_see_every_record(scripted: Any) -> None:
    class Shout:
        def on_consume(self, records: list[Record]) -> list[Record]:
            return [record._replace(value=record.value + 1) for record in records]  # type: ignore[operator]

    cluster = scripted()
    fill(cluster, values(3))
    with from_start(cluster, value_deserializer=int, interceptor_classes=[Shout]) as consumer:
        assert [r.value for r in read(consumer, 3)] == [1, 2, 3]
        with pytest.raises(ConfigError, match="as they are stored"):
            consumer.poll_batch(0.1)
    with (
        from_start(cluster, value_deserializer="long") as consumer,
        pytest.raises(SerializationError, match=r"value.deserializer failed"),
    ):
        consumer.poll(25)


def test_an_interceptor_may_drop_records(scripted: Any) -> None:
    class Odd:
        def on_consume(self, records: list[Record]) -> list[Record]:
            return [record for record in records if record.offset % 2]

    cluster = scripted()
    fill(cluster, values(6))
    with from_start(cluster, interceptor_classes=[Odd]) as consumer:
        polled = [consumer.poll(25) for _ in range(3)]
        assert [record and record.offset for record in polled] == [1, 3, 5]
        consumer.seek_to_beginning()
        assert [r.offset for r in read(consumer, 3)] == [1, 3, 5]


def test_what_is_fetched_ahead_is_bounded(scripted: Any) -> None:
    cluster = scripted()
    for _ in range(100):
        cluster.logs[("t", 0)].append(encode_values([bytes(1000)] * 10, timestamp_ms=1))
    original = cluster.logs[("t", 0)].read
    cluster.logs[("t", 0)].read = lambda offset: original(offset)[: 20_000 // 10_111 * 10_111 + 10_111]  # type: ignore[method-assign]
    with from_start(cluster, max_partition_fetch_bytes=20_000) as consumer:
        assert consumer.poll(25) is not None
        assert consumer._live is not None
        fetcher = consumer._live.fetcher

        async def rests() -> (
            bool
        ):  # asked on the fetcher's own loop, which sees no state between an answer and the next fetch
            return fetcher._buffered_bytes > 3 * 20_000 or not fetcher.partitions[TopicPartition("t", 0)].fetching

        eventually(lambda: background().run(rests()), "nothing more is fetched")
        assert 20_000 <= fetcher._buffered_bytes <= 3 * 20_000
        assert len(read(consumer, 999)) == 999
        assert consumer.lag() == {("t", 0): 0}


def test_close_wakes_a_poll_in_another_thread_and_iteration_ends(scripted: Any) -> None:
    cluster = scripted()
    fill(cluster, values(2))
    consumer = from_start(cluster)
    seen: list[bytes | None] = []
    thread = threading.Thread(target=lambda: seen.extend(record.value for record in consumer))
    thread.start()
    eventually(lambda: len(seen) == 2, "both records are seen")
    consumer.close()
    thread.join(60)
    assert not thread.is_alive() and seen == values(2)
    with pytest.raises(ClosedError):
        consumer.poll(0)
