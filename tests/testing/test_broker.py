"""Kafka inside a test's process: what its handle promises, with clients that nobody here wrote."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as KafkaPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kio.schema.errors import ErrorCode
from outside import Client, fetch, metadata, milliseconds, parts, produce, request
from raw_requests import batch, eventually

import raylog.testing
from raylog.errors import ClientTimeoutError, ClosedError, ConfigError, DisconnectedError, KafkaError, RaylogError
from raylog.kafka import chain
from raylog.testing.kafka import Kafka
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.core

NOT_LEADER = ErrorCode.not_leader_or_follower


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker(topics=["t"]) as found:
        yield found


@pytest.fixture
def three() -> Iterator[Kafka]:
    with raylog.testing.broker(topics=["t"], brokers=3) as found:
        yield found


@pytest.fixture
def ask(kafka: Kafka) -> Iterator[Callable[[Any], Any]]:
    """A request on one connection that is made anew where it broke."""
    opened: list[Client] = []

    def work(entity: Any) -> Any:
        if not opened or not opened[-1].connection.is_open:
            opened.append(Client(kafka._running, 0))
        return opened[-1].ask(entity)

    yield work
    for each in opened:
        each.close()


def values(kafka: Kafka, topic: str = "t", count: int | None = None) -> list[bytes | None]:
    return [record.value for record in kafka.records(topic, count=count)]


def sent(kafka: Kafka, *messages: bytes, **config: Any) -> list[Any]:
    """Errors of confluent-kafka's deliveries, message by message."""
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "retry.backoff.ms": 10, "log_level": 0, **config}
    )
    errors: list[Any] = []
    for message in messages:
        producer.produce("t", message, on_delivery=lambda error, _: errors.append(error))
        producer.flush(60)
    return errors


def produced(ask: Callable[[Any], Any], *messages: bytes) -> ErrorCode:
    found: ErrorCode = ask(produce("t", {0: batch(*messages)})).responses[0].partition_responses[0].error_code
    return found


# ---------------------------------------------------------------------- a cluster for a test


def test_confluent_kafka_writes_and_reads(kafka: Kafka) -> None:
    assert sent(kafka, b"a", b"b") == [None, None]
    assert values(kafka) == [b"a", b"b"]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([ConfluentPartition("t", 0, 0)])
    try:
        assert [message.value() for message in consumer.consume(2, 60)] == [b"a", b"b"]
    finally:
        consumer.close()


def test_a_group_commits_goes_on_and_survives_what_is_ordered_for_it(kafka: Kafka) -> None:
    assert sent(kafka, b"a", b"b") == [None, None]
    orders = [
        kafka.fail("FindCoordinator", code="COORDINATOR_NOT_AVAILABLE"),
        kafka.fail("JoinGroup", code="COORDINATOR_LOAD_IN_PROGRESS"),
        kafka.drop("SyncGroup", lost="reply"),
        kafka.delay("OffsetCommit", ms=20),
    ]
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    quick = {"enable.auto.commit": False, "session.timeout.ms": 6_000, "retry.backoff.ms": 10, "log_level": 0}
    for value in (b"a", b"b"):
        consumer = Consumer({**settings, **quick})
        consumer.subscribe(["t"])
        (message,) = consumer.consume(1, 60)
        assert message.value() == value
        consumer.commit(message, asynchronous=False)
        consumer.close()
    assert [order.hits for order in orders] == [1, 1, 1, 1]


def test_aiokafka_writes_and_reads_on_the_tests_own_loop() -> None:
    async def work() -> None:
        async with raylog.testing.broker(topics={"orders": 3}) as kafka:
            async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
                waiting = asyncio.create_task(kafka.records("orders", count=3))
                for partition in range(3):
                    await producer.send_and_wait("orders", b"%d" % partition, partition=partition)
                assert [(each.partition, each.value) for each in await waiting] == [(0, b"0"), (1, b"1"), (2, b"2")]
                assert await kafka.move_leader("orders", 1) == 0
                with kafka.fail("Produce", code="NOT_LEADER_OR_FOLLOWER") as refused:
                    await producer.send_and_wait("orders", b"again", partition=1)
                assert refused.hits == 1
            consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
            await consumer.start()
            try:
                consumer.assign([KafkaPartition("orders", 1)])
                assert [(await consumer.getone()).value for _ in range(2)] == [b"1", b"again"]
            finally:
                await consumer.stop()

    asyncio.run(work())


def test_several_brokers_have_a_listener_each_and_topics_three_replicas(three: Kafka) -> None:
    client = Client(three._running, 1)
    reply = client.ask(metadata("t"))
    client.close()
    assert ",".join(f"{each.host}:{each.port}" for each in reply.brokers) == three.bootstrap
    assert sorted(reply.topics[0].partitions[0].replica_nodes) == [0, 1, 2]


def test_records_are_in_memory_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(threading.enumerate())
    with raylog.testing.broker(topics=["t"]) as kafka:
        assert sent(kafka, b"a") == [None]
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    assert {
        each.name for each in set(threading.enumerate()) - before if each.name.startswith("raylog-cluster")
    } == set()


def test_a_folder_keeps_records_for_the_next(tmp_path: Path) -> None:
    with raylog.testing.broker(topics=["t"], folder=tmp_path / "kept") as kafka:
        assert sent(kafka, b"a") == [None]
    with raylog.testing.broker(folder=tmp_path / "kept") as kafka:
        assert values(kafka) == [b"a"]


def test_a_folder_that_has_the_topics_already_is_taken_as_it_is(tmp_path: Path) -> None:
    with raylog.testing.broker(topics={"t": 1}, folder=tmp_path / "kept") as kafka:
        assert sent(kafka, b"a") == [None]
    for topics in ({"t": 1, "new": 2}, ["t"]):
        with raylog.testing.broker(topics=topics, folder=tmp_path / "kept") as kafka:
            assert values(kafka) == [b"a"]
    with (
        pytest.raises(ConfigError, match=r"topics=\{'t': 3\}: that topic of the folder has 1"),
        raylog.testing.broker(topics={"t": 3}, folder=tmp_path / "kept"),
    ):
        pass


def test_configs_are_those_of_all_brokers(ask: Callable[[Any], Any]) -> None:
    with raylog.testing.broker(configs={"auto.create.topics.enable": False}) as kafka:
        client = Client(kafka._running, 0)
        reply = client.ask(metadata("new", create=True))
        client.close()
        assert reply.topics[0].error_code is ErrorCode.unknown_topic_or_partition
    assert ask(metadata("new", create=True)).topics[0].error_code is ErrorCode.none


def test_a_topic_has_as_many_partitions_and_replicas_as_the_configs_say(ask: Callable[[Any], Any]) -> None:
    configs = {"num.partitions": 4, "default.replication.factor": 2}
    with raylog.testing.broker(brokers=3, topics=["first"], configs=configs) as kafka:
        client = Client(kafka._running, 0)
        kafka.create_topic("second")
        kafka.create_topic("named", 1, replication_factor=3)
        client.ask(metadata("itself", create=True))
        kafka._await_served("itself")
        shapes = {}
        for name in ("first", "second", "named", "itself"):
            (topic,) = client.ask(metadata(name)).topics
            shapes[name] = (len(topic.partitions), {len(each.replica_nodes) for each in topic.partitions})
        client.close()
    assert shapes == {"first": (4, {2}), "second": (4, {2}), "named": (1, {3}), "itself": (4, {2})}


@pytest.mark.parametrize(
    ("name", "value"), [("num.partitions", 0), ("default.replication.factor", "many"), ("num.partition", 3)]
)
def test_a_config_that_cannot_be_is_refused_by_name_before_anything_starts(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        raylog.testing.broker(configs={name: value})


def test_create_topic_returns_when_every_broker_serves_it(three: Kafka) -> None:
    three.create_topic("made", 4, replication_factor=2, configs={"max_message_bytes": 1_000})
    for broker in range(3):
        client = Client(three._running, broker)
        (topic,) = client.ask(metadata("made")).topics
        client.close()
        assert [each.error_code for each in topic.partitions] == [ErrorCode.none] * 4
        assert {len(each.replica_nodes) for each in topic.partitions} == {2}


def test_create_topic_waits_for_the_slowest_brokers_copy(three: Kafka) -> None:
    slow = three._running.launcher.servers[node_id(2, BROKER_SLOT)]
    fold, held = slow._fold, []
    slow._fold = held.append
    creation = threading.Thread(target=three.create_topic, args=("made",))
    creation.start()
    three._running.await_true(lambda: three._running.controller.image.topic_named("made") is not None)
    three._running.run(three._inside.await_leaders(["made"], 60))
    creation.join(0.3)
    assert creation.is_alive()

    async def go_on() -> None:
        slow._fold = fold
        for frame in held:
            fold(frame)

    three._running.run(go_on())
    creation.join(60)
    assert not creation.is_alive() and slow.image.topic_named("made") is not None


def test_records_begin_where_deleted_ones_end_within_a_batch(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    assert produced(ask, b"0", b"1", b"2") is ErrorCode.none
    body = request(
        21,
        2,
        topics=lambda module: (
            module.DeleteRecordsTopic(
                name="t", partitions=(module.DeleteRecordsPartition(partition_index=0, offset=1),)
            ),
        ),
        timeout=milliseconds(60_000),
    )
    assert ask(body).topics[0].partitions[0].low_watermark == 1
    assert values(kafka) == [b"1", b"2"]


def test_records_wait_for_as_many_as_the_test_wants(kafka: Kafka) -> None:
    late = threading.Timer(0.05, sent, (kafka, b"a", b"b"))
    late.start()
    assert values(kafka, count=2) == [b"a", b"b"]
    late.join()


def test_records_of_compressed_batches_come_one_by_one(kafka: Kafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "zstd", "linger.ms": 50})
    for number in range(500):
        producer.produce("t", b"%d" % number, key=b"k", headers={"h": b"v"})
    assert producer.flush(60) == 0
    found = kafka.records("t")
    assert [(each.offset, each.value) for each in found] == [(number, b"%d" % number) for number in range(500)]
    assert (found[0].key, list(found[0].headers)) == (b"k", [("h", b"v")])


def test_a_consumer_finds_what_the_test_has_written(kafka: Kafka) -> None:
    kafka.create_topic("orders", 2)
    assert kafka.write("orders", b"a", None, key=b"k", partition=1) == 0
    assert kafka.write("orders", b"b", partition=1) == 2
    found = kafka.records("orders")
    assert [(each.partition, each.key, each.value) for each in found] == [
        (1, b"k", b"a"),
        (1, b"k", None),
        (1, None, b"b"),
    ]

    async def consumed() -> list[bytes | None]:
        reader = AIOKafkaConsumer(
            "orders", bootstrap_servers=kafka.bootstrap, group_id="g", auto_offset_reset="earliest"
        )
        async with reader:
            return [(await reader.getone()).value for _ in range(3)]

    assert asyncio.run(consumed()) == [b"a", None, b"b"]
    with pytest.raises(ConfigError, match="values of bytes"):
        kafka.write("orders", "text")  # type: ignore[arg-type]
    with kafka.fill_disk(), pytest.raises(KafkaError, match="No space left"):
        kafka.write("orders", b"too much")


# ---------------------------------------------------------------------- faults of requests


def test_the_second_produce_fails_and_is_not_carried_out(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    order = kafka.fail("Produce", code="NOT_LEADER_OR_FOLLOWER", nth=2)
    assert [produced(ask, b"%d" % number) for number in range(3)] == [ErrorCode.none, NOT_LEADER, ErrorCode.none]
    assert (order.hits, values(kafka)) == (1, [b"0", b"2"])


def test_an_order_ends_when_it_is_cancelled(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    with kafka.fail("produce", code=6, times=None) as order:
        assert {produced(ask, b"x") for _ in range(3)} == {NOT_LEADER}
    assert (order.hits, produced(ask, b"y")) == (3, ErrorCode.none)
    kafka.fail("produce", code="UNKNOWN_SERVER_ERROR", times=None)
    kafka.heal()
    assert produced(ask, b"z") is ErrorCode.none


def test_a_client_repeats_what_failed(kafka: Kafka) -> None:
    order = kafka.fail("Produce", code="NOT_ENOUGH_REPLICAS", times=3)
    assert sent(kafka, b"a", b"b") == [None, None]
    assert (order.hits, values(kafka)) == (3, [b"a", b"b"])


def test_a_failed_fetch_is_an_answer_within_the_fetch_session(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    assert produced(ask, b"a") is ErrorCode.none
    opened = ask(fetch("t", {0: 0}, session=(0, 0)))
    assert opened.session_id
    kafka.fail("Fetch", code="NOT_LEADER_OR_FOLLOWER")
    failed = ask(fetch("t", {}, session=(opened.session_id, 1)))
    assert (failed.error_code, parts(failed)[0].error_code) == (ErrorCode.none, NOT_LEADER)
    again = ask(fetch("t", {0: 0}, session=(opened.session_id, 2)))
    assert parts(again)[0].error_code is ErrorCode.none and parts(again)[0].records


def test_metadata_that_fails_still_names_the_brokers(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    kafka.fail("Metadata", code="TOPIC_AUTHORIZATION_FAILED")
    reply = ask(metadata("t"))
    assert (len(reply.brokers), reply.topics[0].error_code) == (1, ErrorCode.topic_authorization_failed)
    assert ask(metadata("t")).topics[0].error_code is ErrorCode.none


def test_metadata_that_fails_creates_no_topic(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    kafka.fail("Metadata", code="TOPIC_AUTHORIZATION_FAILED")
    assert ask(metadata("wanted", create=True)).topics[0].error_code is ErrorCode.topic_authorization_failed
    assert ask(metadata("wanted")).topics[0].error_code is ErrorCode.unknown_topic_or_partition


def test_a_produce_that_fails_and_wants_no_answer_ends_its_connection(kafka: Kafka) -> None:
    order = kafka.fail("Produce", code="NOT_LEADER_OR_FOLLOWER")
    client = Client(kafka._running, 0)
    loop, unanswered = client.connection.loop, produce("t", {0: batch(b"never")}, acks=0)
    loop.call_soon_threadsafe(lambda: client.connection.send_unanswered(unanswered))
    kafka._running.run(client.connection.wait_closed())
    assert (order.hits, values(kafka)) == (1, [])


def test_what_the_controller_would_answer_fails_too(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    kafka.fail("CreateTopics", code="POLICY_VIOLATION")
    body = request(
        19,
        7,
        topics=lambda module: (
            module.CreatableTopic(name="no", num_partitions=1, replication_factor=1, assignments=(), configs=()),
        ),
        timeout=milliseconds(60_000),
        validate_only=False,
    )
    (result,) = ask(body).topics
    assert (result.name, result.error_code) == ("no", ErrorCode.policy_violation)
    with pytest.raises(KafkaError, match="no topic 'no'"):
        kafka.records("no")


def test_what_follows_a_delayed_request_waits_behind_it(kafka: Kafka) -> None:
    order = kafka.delay("Produce", ms=60)
    client = Client(kafka._running, 0)
    first, second = (client.send(produce("t", {0: batch(value)})) for value in (b"first", b"second"))
    asked = client.send(metadata("t"))
    for pending in (first, second, asked):
        pending.result()
    client.close()
    assert (order.hits, values(kafka)) == (1, [b"first", b"second"])


def test_a_delayed_request_of_a_client_that_hung_up_is_not_carried_out(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delay ends when the Broker knows that the client has hung up, however long that takes."""
    over = asyncio.Event()
    monkeypatch.setattr(chain, "asyncio", SimpleNamespace(sleep=lambda _: over.wait(), wait=asyncio.wait))
    order = kafka.delay("Produce", ms=60)
    client = Client(kafka._running, 0)
    client.send(produce("t", {0: batch(b"never")}))
    eventually(lambda: order.hits == 1, "the request at the Broker")
    client.close()
    server = kafka._running.launcher.servers[node_id(0, BROKER_SLOT)].router.server
    eventually(lambda: not server.connections, "the client's end")
    kafka._running.loop.call_soon_threadsafe(over.set)
    assert sent(kafka, b"a") == [None]
    assert values(kafka) == [b"a"]


def test_a_dropped_request_is_not_carried_out_and_a_lost_reply_is(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    kafka.drop("Produce")
    with pytest.raises(DisconnectedError):
        produced(ask, b"lost")
    assert values(kafka) == []
    kafka.drop("Produce", lost="reply")
    with pytest.raises(DisconnectedError):
        produced(ask, b"written")
    assert values(kafka, count=1) == [b"written"]
    assert produced(ask, b"after") is ErrorCode.none


@pytest.mark.parametrize(("idempotent", "found"), [(True, [b"a"]), (False, [b"a", b"a"])])
def test_a_lost_reply_doubles_what_is_not_idempotent(kafka: Kafka, idempotent: bool, found: list[bytes]) -> None:
    kafka.drop("Produce", lost="reply")
    assert sent(kafka, b"a", **{"enable.idempotence": idempotent}) == [None]
    assert values(kafka) == found


def test_what_the_test_itself_asks_meets_no_fault(kafka: Kafka) -> None:
    orders = [kafka.fail(api, code="UNKNOWN_SERVER_ERROR", times=None) for api in ("Fetch", "Metadata", "CreateTopics")]
    kafka.create_topic("made")
    assert (kafka.records("made"), [order.hits for order in orders]) == ([], [0, 0, 0])


# ---------------------------------------------------------------------- faults of brokers


def test_a_leader_moves_to_whom_the_test_names(three: Kafka) -> None:
    assert sent(three, b"a") == [None]
    for target in (2, 0, 2):
        assert three.move_leader("t", to=target) == target
        assert three.leader("t") == target
    assert sent(three, b"b") == [None]
    assert values(three) == [b"a", b"b"]
    before = three.leader("t")
    assert three.move_leader("t") != before


def test_a_leader_moves_to_a_broker_that_had_no_replica(three: Kafka) -> None:
    three.create_topic("single", replication_factor=1)
    target = (three.leader("single") + 1) % 3
    assert three.move_leader("single", to=target) == target


def test_the_only_broker_leads_on_in_a_new_epoch(kafka: Kafka) -> None:
    assert sent(kafka, b"a") == [None]
    before = kafka._state("t", 0).leader_epoch
    assert kafka.move_leader("t") == 0
    assert kafka._state("t", 0).leader_epoch > before
    assert sent(kafka, b"b") == [None]
    assert values(kafka) == [b"a", b"b"]


def test_a_crashed_leader_is_followed_by_another(three: Kafka) -> None:
    before = three.leader("t")
    producer = Producer({"bootstrap.servers": three.bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(100):
        producer.produce("t", b"%d" % number)
        if number == 50:
            assert three.crash_leader("t") != before
    assert producer.flush(60) == 0
    assert values(three) == [b"%d" % number for number in range(100)]


def test_a_full_disk_refuses_writes_serves_reads_and_is_freed(kafka: Kafka, ask: Callable[[Any], Any]) -> None:
    assert produced(ask, b"a") is ErrorCode.none
    with kafka.fill_disk():
        assert produced(ask, b"no room") is ErrorCode.kafka_storage_error
        assert values_in_memory(kafka) == [b"a"]
    assert produced(ask, b"b") is ErrorCode.none
    assert values(kafka) == [b"a", b"b"]


def values_in_memory(kafka: Kafka) -> list[bytes]:
    """What the disk of the first broker holds of the topic, read past every server."""
    from raylog.records.batch import batches
    from raylog.records.codec import decode

    files = kafka._disks[0].files()
    (name,) = (view for view in _folders(files, str(kafka._running.folder)) if view.endswith("/t-0"))
    data = files.read_file(f"{name}/{0:020d}.log")
    return [record.value or b"" for view in batches(data, allow_partial_tail=True) for record in decode(view)]


def _folders(files: Any, path: str) -> Iterator[str]:
    for name in files.list_directory(path):
        below = f"{path}/{name}"
        yield below
        try:
            yield from _folders(files, below)
        except FileNotFoundError:
            pass


def test_with_a_full_disk_another_broker_leads(three: Kafka) -> None:
    before = three.leader("t")
    with three.fill_disk(broker=before):
        assert sent(three, b"a") == [None]
        assert three.leader("t") != before
    assert values(three) == [b"a"]


# ---------------------------------------------------------------------- errors that say what to do


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda kafka: kafka.fail("Prodcue", code="NOT_CONTROLLER"), "did you mean Produce"),
        (lambda kafka: kafka.fail("Zzz", code="NOT_CONTROLLER"), "those are .*, Produce"),
        (lambda kafka: kafka.fail("Produce", code="NOT_LEADER"), "did you mean NOT_LEADER_OR_FOLLOWER"),
        (lambda kafka: kafka.fail("Produce", code="NONE"), "is no error of Kafka's"),
        (lambda kafka: kafka.fail("Produce", code=6, nth=0), "the next request is number 1"),
        (lambda kafka: kafka.drop("Produce", lost="both"), 'either "request"'),
        (lambda kafka: kafka.delay("Produce", ms=-1), "not negative"),
        (lambda kafka: kafka.move_leader("t", to=3), "the brokers are 0"),
        (lambda kafka: kafka.fill_disk(7), "the brokers are 0"),
        (lambda kafka: kafka.create_topic("bad", configs={"no.such.config": 1}), "no.such.config"),
        (lambda kafka: raylog.testing.broker(topics="orders"), r'\{"orders": 3\}'),
        (lambda kafka: raylog.testing.broker(brokers=0), "from 1 to 100"),
    ],
)
def test_a_mistake_is_told_what_to_write_instead(kafka: Kafka, mistake: Callable[[Kafka], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        mistake(kafka)


def test_missing_records_and_topics_are_explained(kafka: Kafka) -> None:
    assert sent(kafka, b"a") == [None]
    with pytest.raises(ClientTimeoutError, match=r"holds 1 of the 2 records .* has the producer flushed"):
        kafka.records("t", count=2, timeout=0.1)
    kafka.create_topic("orders")
    with pytest.raises(KafkaError, match="did you mean 'orders'"):
        kafka.records("order")
    with pytest.raises(KafkaError, match="partitions 0 to 0, and no 5"):
        kafka.move_leader("orders", 5)


def test_who_asks_too_late_is_told_so() -> None:
    with raylog.testing.broker(topics=["t"]) as kafka:
        pass
    for late in (lambda: kafka.records("t"), lambda: kafka.create_topic("u"), lambda: kafka.move_leader("t")):
        with pytest.raises(ClosedError, match="has ended"):
            late()


def test_a_broker_runs_once(kafka: Kafka) -> None:
    context = raylog.testing.broker()
    with context, pytest.raises(RaylogError, match="call broker"), context:
        pass


WATCHED = """
import os, sys

made = []


def watch(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        made.append((event, arguments))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"):
        made.append((event, arguments))


import raylog.testing
from raylog.client.sync import Producer

sys.addaudithook(watch)
with raylog.testing.broker(topics={"orders": 2}, brokers=3, configs={"log.cleaner.backoff.ms": 10}) as kafka:
    kafka.create_topic("compacted", configs={"cleanup.policy": "compact", "segment.bytes": 500})
    with Producer(kafka.address) as producer:
        for number in range(12):
            producer.send("compacted", b"x" * 100, key=b"k").result(60)
        producer.send("orders", b"two books")
    kafka.crash_leader("orders")
    assert len(kafka.records("orders", count=1)) == 1
print("made:", made)
"""


def test_all_of_it_is_in_memory_and_no_file_is_made_anywhere(tmp_path: Path) -> None:
    """Said by the interpreter itself, which reports each file that is opened for writing, folders and renames; TMPDIR takes nothing."""
    tmp_path.chmod(0o500)
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("made: []")
