"""A producer against a cluster that loses requests, answers and leaders on demand."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import eventually
from scripted_cluster import INIT_PRODUCER_ID, PRODUCE, ScriptedCluster

from raylog.client.sync import Producer
from raylog.errors import BufferFullError, ClientTimeoutError, ClosedError, ClusterError, kafka_error
from raylog.records.batch import BatchView
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

VALUES = [b"%d" % number for number in range(50)]
TICK_S = 0.002
"""A loop's clock is rounded (uvloop's counts milliseconds): what it waits can read that much shorter than it was told to."""


def produced(cluster: ScriptedCluster) -> list[Any]:
    return [body for body in cluster.requests if type(body).__name__ == "ProduceRequest"]


def test_a_lost_answer_is_asked_for_again_and_stored_once(scripted: Any) -> None:
    cluster = scripted()
    cluster.lose_answer(2)
    with Producer(cluster.address) as producer:
        result = producer.send_batch("t", VALUES).result(25)
    assert result.offsets() == [(0, offset) for offset in range(50)]
    assert cluster.values() == VALUES


def test_lost_requests_in_a_full_pipeline_keep_order_and_are_stored_once(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, batch_size=200) as producer:
        producer.send("t", b"first").result(25)
        for round_number in range(6):
            (cluster.lose_request if round_number % 2 else cluster.lose_answer)()
            for value in VALUES:
                producer.send("t", value)
        assert producer.flush(25) == 0
    assert cluster.values() == [b"first"] + VALUES * 6


@pytest.fixture
def a_leader_is_awaited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a leader's news to time out waits for longer than the test does."""
    monkeypatch.setattr("raylog.client.links.metadata.AWAIT_LEADER_MS", 60_000)


@pytest.mark.usefixtures("a_leader_is_awaited_for_long")
def test_a_moved_leader_is_followed_at_once(scripted: Any) -> None:
    cluster = scripted(nodes=3)
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        for epoch in range(1, 6):
            cluster.move_leader(("t", 0), epoch % 3)
            producer.send("t", b"%d" % epoch).result(25)
    assert cluster.values() == [b"%d" % epoch for epoch in range(6)]


def test_without_a_controller_a_producer_goes_on_at_the_leader_that_the_old_one_names(scripted: Any) -> None:
    cluster = scripted(nodes=3)
    cluster.hints = True
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        cluster.stop(-1)
        for epoch in range(1, 4):
            cluster.move_leader(("t", 0), epoch % 3)
            producer.send("t", b"%d" % epoch).result(25)
    assert cluster.values() == [b"%d" % epoch for epoch in range(4)]


@pytest.mark.usefixtures("a_leader_is_awaited_for_long")
def test_a_dead_leader_is_replaced_as_soon_as_the_controller_says_so(scripted: Any) -> None:
    cluster = scripted(nodes=2)
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        cluster.stop(0)
        waiting = producer.send("t", b"1")
        with pytest.raises(ClientTimeoutError, match="keeps trying"):
            waiting.result(0.2)
        cluster.move_leader(("t", 0), 1)
        assert waiting.result(25).offset == 1


@pytest.mark.usefixtures("a_leader_is_awaited_for_long")
def test_a_leader_that_was_only_cut_off_goes_on_without_waiting_for_another(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        cluster.lose_request()
        producer.send("t", b"1").result(25)
    assert cluster.logs[("t", 0)].epoch == 0


@pytest.mark.parametrize(
    "code", [ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas_after_append, ErrorCode.request_timed_out]
)
def test_what_time_may_heal_is_tried_again_after_a_pause(scripted: Any, code: ErrorCode) -> None:
    cluster = scripted()
    cluster.refuse_produce(code, 2)
    with Producer(cluster.address, retry_backoff_ms=30) as producer:
        started = time.perf_counter()
        producer.send_batch("t", VALUES).result(25)
        assert time.perf_counter() - started > 0.045, "two pauses, each four fifths of 30 ms at least"
    assert cluster.values() == VALUES


def test_what_time_cannot_heal_fails_at_once_with_a_remedy(scripted: Any) -> None:
    cluster = scripted()
    cluster.refuse_produce(ErrorCode.invalid_record)
    with Producer(cluster.address) as producer:
        refused = producer.send("t", b"poison")
        with pytest.raises(
            kafka_error(ErrorCode.invalid_record),
            match=r"t-0 refused 1 records: INVALID_RECORD; the topic does not take",
        ):
            refused.result(25)
        assert producer.send("t", b"good").result(25).offset == 0
    assert cluster.values() == [b"good"]


def test_a_refusal_in_a_full_pipeline_leaves_no_gap(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, batch_size=1) as producer:
        producer.send("t", b"first").result(25)
        cluster.refuse_produce(ErrorCode.invalid_record)
        deliveries = [producer.send("t", value) for value in VALUES]
        producer.flush(25)
    failed = [delivery for delivery in deliveries if _fails(delivery)]
    assert len(failed) == 1
    lost = deliveries.index(failed[0])
    assert cluster.values() == [b"first", *VALUES[:lost], *VALUES[lost + 1 :]]


def _fails(delivery: Any) -> bool:
    try:
        delivery.result(0)
    except kafka_error(ErrorCode.invalid_record):
        return True
    return False


def test_what_a_deposed_leader_has_appended_takes_nobody_elses_place(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says NOT_LEADER_OR_FOLLOWER of a batch that the next leader has. The producer gives it up and sends another."""
    cluster = scripted()

    def deposed(cluster: ScriptedCluster, request: Any) -> bool:
        def decide(key: Any, records: bytes) -> tuple[ErrorCode, int]:
            cluster.logs[key].append(records)
            return ErrorCode.not_leader_or_follower, -1

        cluster._reply_produce(request, decide)
        return True

    with Producer(cluster.address) as producer:
        producer.send("t", b"first").result(25)
        cluster.fail_next(PRODUCE, deposed, 10_000)
        assert producer._live is not None
        with monkeypatch.context() as patch:  # the others have all the time of a busy machine
            patch.setattr(producer._live.accumulator, "_delivery_timeout_ms", 400)
            given_up = producer.send("t", b"given up")
        with pytest.raises(ClientTimeoutError, match="were not acknowledged"):
            given_up.result(25)
        cluster.call(cluster.faults[PRODUCE].clear)
        found = producer.send("t", b"after").result(25)
    assert cluster.values() == [b"first", b"given up", b"after"]
    assert found.offset == 2


def test_batches_in_doubt_fail_when_their_topic_is_gone_and_the_producer_goes_on(
    scripted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Giving the last of them up orphans the others: each of them ends once."""
    cluster = scripted(topics={"t": 1, "other": 1})
    held: list[Any] = []

    def delete_topic(cluster: ScriptedCluster, request: Any) -> bool:
        held.append(request)
        if len(held) == 3:
            del cluster.logs[TopicPartition("t", 0)]
            request.connection.abort()
        return True

    with Producer(cluster.address, batch_size=1) as producer:
        producer.send("t", b"first").result(25)
        cluster.fail_next(PRODUCE, delete_topic, 3)
        deliveries = [producer.send("t", value) for value in VALUES[:3]]
        for delivery in deliveries:
            with pytest.raises((ClientTimeoutError, kafka_error(ErrorCode.unknown_topic_or_partition))):
                delivery.result(25)
        assert producer.send("other", b"after").result(25).offset == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_batch_that_the_leader_finds_too_large_is_split_until_it_fits(scripted: Any) -> None:
    cluster = scripted()
    limit = 900

    def refuse_large(cluster: ScriptedCluster, request: Any) -> bool:
        def decide(key: Any, records: bytes) -> tuple[ErrorCode, int]:
            return (ErrorCode.message_too_large, -1) if len(records) > limit else cluster.logs[key].append(records)

        cluster._reply_produce(request, decide)
        return True

    cluster.fail_next(PRODUCE, refuse_large, 1000)
    with Producer(cluster.address) as producer:
        values = [bytes([number]) * 100 for number in range(50)]
        result = producer.send_batch("t", values).result(25)
        assert producer._live is not None and producer._live.sender.splits > 3
        with pytest.raises(kafka_error(ErrorCode.message_too_large), match=r"raise the topic's max.message.bytes"):
            producer.send("t", bytes(1000)).result(25)
        assert producer.send("t", b"after").result(25).offset == 50
    assert result.offsets() == [(0, offset) for offset in range(50)]
    assert cluster.values() == [*values, b"after"]
    assert all(len(batch) <= limit for batch in cluster.logs[("t", 0)].batches)


def test_a_leader_that_lost_its_sequences_gets_the_next_epoch(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        cluster.call(cluster.logs[("t", 0)].producers.clear)  # as after an unclean election
        producer.send("t", b"1").result(25)
    epochs = [BatchView(batch).producer_epoch for batch in cluster.logs[("t", 0)].batches]
    assert cluster.values() == [b"0", b"1"] and epochs == [0, 1]


def test_a_fenced_producer_takes_a_new_id_and_goes_on(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        cluster.refuse_produce(ErrorCode.invalid_producer_epoch)
        producer.send("t", b"1").result(25)
    assert [BatchView(batch).producer_id for batch in cluster.logs[("t", 0)].batches] == [1, 2]


def test_delivery_timeout_ends_the_wait_and_says_why(scripted: Any) -> None:
    cluster = scripted()
    cluster.stop(0)
    with Producer(cluster.address, delivery_timeout_ms=400, request_timeout_ms=300) as producer:
        with pytest.raises(ClientTimeoutError, match=r"t-0 were not acknowledged within delivery.timeout.ms=400"):
            producer.send("t", b"0").result(25)
        assert producer.buffered_bytes == 0


def test_a_leader_that_does_not_answer_is_left_after_request_timeout(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        assert producer._live is not None
        sender = producer._live.sender  # metadata and the producer's id may take longer
        sender._config = sender._config.model_copy(update={"request_timeout_ms": 300})
        cluster.fail_next(PRODUCE, lambda cluster, request: True)  # swallowed
        assert producer.send("t", b"1").result(25).offset == 1
    assert cluster.values() == [b"0", b"1"]


def test_a_full_buffer_blocks_and_then_says_what_to_do(scripted: Any) -> None:
    cluster = scripted()
    held: list[Any] = []
    cluster.fail_next(PRODUCE, lambda cluster, request: held.append(request) or True)
    with Producer(cluster.address, buffer_memory=1000, batch_size=1) as producer:
        producer.send("t", bytes(900))
        assert producer._live is not None
        producer._live.config = producer._live.config.model_copy(
            update={"max_block_ms": 150}
        )  # metadata may take longer
        started = time.perf_counter()
        with pytest.raises(BufferFullError, match=r"buffer.memory=1000 stayed full for max.block.ms=150"):
            producer.send("t", bytes(900))
        assert time.perf_counter() - started > 0.14
        with pytest.raises(BufferFullError, match=r"larger than buffer.memory"):
            producer.send("t", bytes(2000))
        eventually(lambda: held, "the first record was sent")
        cluster.call(lambda: cluster._produce(held[0]))
    assert len(cluster.values()) == 1


def test_a_blocked_send_goes_on_when_room_is_made(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, buffer_memory=5000) as producer:
        for number in range(200):
            producer.send("t", b"%d" % number + bytes(900))
    assert len(cluster.values()) == 200


def test_close_with_zero_drops_what_waits_and_fails_it(scripted: Any) -> None:
    cluster = scripted()
    producer = Producer(cluster.address, linger_ms=600_000, delivery_timeout_ms=1_200_000)
    waiting = producer.send("t", b"0")
    producer.close(0)
    with pytest.raises(ClosedError, match="closed before this was acknowledged"):
        waiting.result(25)
    with pytest.raises(ClosedError, match="make another one"):
        producer.send("t", b"1")
    assert cluster.values() == []


def test_linger_gathers_and_a_flush_does_not_wait_for_it(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, linger_ms=600_000, delivery_timeout_ms=1_200_000) as producer:
        for value in VALUES:
            producer.send("t", value)
        assert producer.flush(60) == 0
        assert len(cluster.logs[("t", 0)].batches) == 1
    with Producer(cluster.address, linger_ms=50) as producer:
        started = time.perf_counter()
        producer.send("t", b"late").result(25)
        assert time.perf_counter() - started > 0.045


def test_without_linger_a_record_leaves_at_once_whatever_the_clocks_say(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        assert producer._live is not None
        producer._live.accumulator._clock = lambda: time.monotonic() + 100  # a thread's clock ahead of the loop's
        producer.send("t", b"1").result(60)


def test_acks_0_asks_for_no_answer_and_knows_no_offset(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, acks=0) as producer:
        assert producer.send("t", b"0").result(25).offset == -1
        result = producer.send_batch("t", VALUES).result(25)
    assert {offset for _, offset in result.offsets()} == {-1}
    eventually(lambda: cluster.values() == [b"0", *VALUES], "all is stored")
    assert produced(cluster)[0].acks == 0


def test_a_throttled_producer_pauses(scripted: Any) -> None:
    from datetime import timedelta

    cluster = scripted()
    came: list[float] = []

    def note(cluster: ScriptedCluster, request: Any) -> bool:
        came.append(cluster.loop.time())
        return False

    def throttle(cluster: ScriptedCluster, request: Any) -> bool:
        came.append(cluster.loop.time())
        original = request.reply
        import dataclasses

        class Throttled:
            body, connection = request.body, request.connection

            @staticmethod
            def reply(entity: Any) -> None:
                original(dataclasses.replace(entity, throttle_time=timedelta(milliseconds=250)))

        cluster._reply_produce(Throttled, lambda key, records: cluster.logs[key].append(records))
        return True

    cluster.fail_next(PRODUCE, throttle)
    cluster.fail_next(PRODUCE, note)
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        producer.send("t", b"1").result(25)
    told, went_on = came
    assert went_on - told >= 0.25 - TICK_S


def test_unknown_topics_and_partitions_are_refused_by_name(scripted: Any) -> None:
    cluster = scripted(topics={"t": 2})
    with Producer(cluster.address) as producer:
        with pytest.raises(
            kafka_error(ErrorCode.unknown_topic_or_partition), match="topic 'nope' does not exist: create it"
        ):
            producer.send("nope", b"x")
        for send in (
            producer.send,
            lambda topic, value, partition: producer.send_batch(topic, [value], partition=partition),
        ):
            with pytest.raises(
                kafka_error(ErrorCode.unknown_topic_or_partition), match="has no partition 2: it has 2, from 0 to 1"
            ):
                send("t", b"x", partition=2)
        with pytest.raises(kafka_error(ErrorCode.message_too_large), match=r"exceeds max.request.size"):
            producer.send_batch("t", [b"small", bytes(2_000_000)])
        assert producer.buffered_bytes == 0
    assert cluster.values() == [] and cluster.values(("t", 1)) == []


def test_a_cluster_that_is_not_there_is_named_with_what_to_do(scripted: Any) -> None:
    cluster = scripted()
    cluster.stop(-1)
    with (
        Producer(cluster.address, request_timeout_ms=2_000) as producer,
        pytest.raises(ClusterError, match=r"no controller of cluster 'scripted' answers at 127.0.0.1:\d+ .*raylog up"),
    ):
        producer.send("t", b"x")


def test_a_producer_id_is_waited_for_while_the_controller_stumbles(scripted: Any) -> None:
    cluster = scripted()
    cluster.fail_next(INIT_PRODUCER_ID, lambda cluster, request: request.connection.abort() or True, 2)
    with Producer(cluster.address) as producer:
        assert producer.send("t", b"x").result(25).offset == 0


def test_callbacks_come_in_send_order_with_exactly_one_of_metadata_and_error(scripted: Any) -> None:
    cluster = scripted()
    seen: list[Any] = []
    with Producer(cluster.address, batch_size=100) as producer:
        for number, value in enumerate(VALUES):
            producer.send(
                "t",
                value,
                on_delivery=lambda metadata, error, number=number: seen.append((number, metadata.offset, error)),
            )
        producer.send("t", b"", on_delivery=lambda metadata, error: 1 / 0)  # logged, harms nobody
    assert seen == [(number, number, None) for number in range(50)]


class Prepend:
    def on_send(self, record: Any) -> Any:
        return record._replace(value=b"%d,%b" % (time.time_ns() // 1_000_000, record.value))


class Count:
    sent = failed = 0
    closed = False

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        if error is None:
            self.sent += 1
        else:
            self.failed += 1

    def close(self) -> None:
        self.closed = True


class Broken:
    def on_send(self, record: Any) -> Any:
        raise RuntimeError("harms nobody")


def test_tv_10_a_chain_of_interceptors_prepends_the_time_and_counts(scripted: Any) -> None:
    cluster = scripted()
    count = Count()
    before = time.time_ns() // 1_000_000
    with Producer(cluster.address, interceptor_classes=[Prepend, Broken, count]) as producer:
        for number in range(10):
            producer.send("t", b"message%d" % number)
    parts = [value.split(b",") for value in cluster.values() if value is not None]
    assert [text for _, text in parts] == [b"message%d" % number for number in range(10)]
    assert all(before <= int(millis) <= time.time_ns() // 1_000_000 for millis, _ in parts)
    assert (count.sent, count.failed, count.closed) == (10, 0, True)


def test_a_batchs_callback_comes_once_with_where_all_of_it_landed(scripted: Any) -> None:
    cluster = scripted()
    seen: list[Any] = []
    with Producer(cluster.address, batch_size=200) as producer:
        producer.send_batch(
            "t", VALUES, on_delivery=lambda result, error: seen.append((result and result.count, error))
        )
        producer.flush()
        cluster.refuse_produce(ErrorCode.invalid_record)
        producer.send_batch("t", [b"x"], on_delivery=lambda result, error: seen.append((result, type(error))))
        producer.send_batch("t", [], on_delivery=lambda result, error: seen.append((result, error)))
    assert seen == [(50, None), (None, kafka_error(ErrorCode.invalid_record))]


def test_connections_to_possible_next_leaders_are_open_before_they_are_needed(scripted: Any) -> None:
    cluster = scripted(nodes=3)
    cluster.isr = (0, 1, 2)
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        eventually(lambda: cluster.call(lambda: connected(cluster)) == [1, 1, 1], "a connection to each")


def connected(cluster: ScriptedCluster) -> list[int]:
    return [len(cluster.servers[node].connections) for node in range(3)]


def test_a_program_that_ends_without_close_leaves_nothing_behind(scripted: Any) -> None:
    import base64
    import pickle
    import subprocess
    import sys

    cluster = scripted()
    address = base64.b64encode(pickle.dumps(cluster.address)).decode()
    program = f"""
import base64, pickle
from raylog.client.sync import Producer
producer = Producer(pickle.loads(base64.b64decode("{address}")), linger_ms=60_000)
for number in range(100):
    producer.send("t", b"%d" % number)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    assert cluster.values() == [b"%d" % number for number in range(100)]
