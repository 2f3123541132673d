"""What the servers refuse, asked by hand: each with Kafka's code, and the log as it was."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.produce.v10.request import PartitionProduceData, ProduceRequest, TopicProduceData
from raw_requests import (
    actor,
    ask,
    batch,
    end_of,
    endpoint_of,
    eventually,
    fetch,
    isr_is_whole,
    nodes_of,
    part,
    produce,
    status,
    throw,
)

from raylog.client.admin.admin import NewTopic
from raylog.client.links import requests
from raylog.client.sync import AdminClient, Producer
from raylog.errors import ConfigError, KafkaError, kafka_error
from raylog.records.batch import write_crc
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, Endpoint, TopicPartition, slot_of
from raylog.wire.connection import Connection
from raylog.wire.frames import client_id_field, encode_request

pytestmark = pytest.mark.core

_names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3) as found:
        yield found


@pytest.fixture(scope="module")
def topic(running: InProcessCluster) -> str:
    """A topic of one partition on all brokers, in sync; tests leave it serving."""
    return make_topic(running)


def make_topic(running: InProcessCluster, **configs: str) -> str:
    name = next(_names)
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, 1, 3, configs=settings)])
    eventually(lambda: isr_is_whole(running, name), f"{name} in sync")
    answer = produce(running, leader_of(running, name), name, batch(b"first"))
    assert answer.error_code is ErrorCode.none
    return name


def leader_of(running: InProcessCluster, topic: str) -> int:
    node: int = part(running, topic)["leader_node"]
    return node


def assert_refused(running: InProcessCluster, topic: str, records: bytes, code: ErrorCode) -> Any:
    """Refused with that code; nothing was appended, and the partition takes records as before."""
    before = end_of(running, topic)
    answer = produce(running, leader_of(running, topic), topic, records)
    assert answer.error_code is code
    assert answer.base_offset == -1
    after = produce(running, leader_of(running, topic), topic, batch(b"good"))
    assert (after.error_code, after.base_offset) == (ErrorCode.none, before)
    return answer


# ------------------------------------------------------------------ produce


def test_an_oversized_batch_is_too_large(running: InProcessCluster) -> None:
    topic = make_topic(running, max_message_bytes="1000")
    answer = assert_refused(running, topic, batch(b"x" * 2000), ErrorCode.message_too_large)
    assert "1000" in answer.error_message


@pytest.mark.parametrize("position", [17, 40, 65, -1], ids=["the crc", "the header", "a record", "the last byte"])
def test_a_batch_that_was_damaged_on_its_way_is_corrupt(running: InProcessCluster, topic: str, position: int) -> None:
    damaged = bytearray(batch(b"a value of some length"))
    damaged[position] ^= 0x40
    assert_refused(running, topic, bytes(damaged), ErrorCode.corrupt_message)


@pytest.mark.parametrize("cut", [1, 30, 61], ids=["one byte short", "half", "a header only"])
def test_a_batch_that_ends_early_is_corrupt(running: InProcessCluster, topic: str, cut: int) -> None:
    whole = batch(b"0123456789" * 4)
    assert_refused(running, topic, whole[: 61 if cut == 61 else -cut], ErrorCode.corrupt_message)


def test_several_batches_for_one_partition_are_refused(running: InProcessCluster, topic: str) -> None:
    answer = assert_refused(running, topic, batch(b"one") + batch(b"another"), ErrorCode.invalid_record)
    assert "one record batch for each of its partitions" in answer.error_message


def test_garbage_under_a_valid_crc_is_refused_and_its_first_record_named(running: InProcessCluster, topic: str) -> None:
    garbage = bytearray(batch(b"a value of some length"))
    garbage[61:] = b"\xff" * (len(garbage) - 61)
    write_crc(garbage)
    answer = assert_refused(running, topic, bytes(garbage), ErrorCode.invalid_record)
    assert [error.batch_index for error in answer.record_errors] == [0]


def test_a_gap_in_the_sequence_is_refused_and_a_repetition_gets_its_first_offset(
    running: InProcessCluster, topic: str
) -> None:
    leader = leader_of(running, topic)
    first = produce(running, leader, topic, batch(b"a", b"b", producer_id=77, sequence=0))
    assert first.error_code is ErrorCode.none
    gap = produce(running, leader, topic, batch(b"d", producer_id=77, sequence=3))
    assert gap.error_code is ErrorCode.out_of_order_sequence_number
    again = produce(running, leader, topic, batch(b"a", b"b", producer_id=77, sequence=0))
    assert (again.error_code, again.base_offset) == (ErrorCode.none, first.base_offset)
    then = produce(running, leader, topic, batch(b"c", producer_id=77, sequence=2))
    assert (then.error_code, then.base_offset) == (ErrorCode.none, first.base_offset + 2)


def test_acks_that_do_not_exist_are_refused(running: InProcessCluster, topic: str) -> None:
    before = end_of(running, topic)
    answer = produce(running, leader_of(running, topic), topic, batch(b"x"), acks=2)
    assert answer.error_code is ErrorCode.invalid_required_acks
    assert end_of(running, topic) == before


# ------------------------------------------------------------------ names and places


def test_an_unknown_topic_is_named_by_code_and_by_the_clients_words(running: InProcessCluster, topic: str) -> None:
    answer = produce(running, leader_of(running, topic), "no-such-topic", batch(b"x"))
    assert answer.error_code is ErrorCode.unknown_topic_or_partition
    with (
        Producer(running.address) as producer,
        pytest.raises(
            kafka_error(ErrorCode.unknown_topic_or_partition), match=r"'no-such-topic' does not exist: create"
        ),
    ):
        producer.send("no-such-topic", b"x").result(60)


def test_a_partition_that_does_not_exist_is_named(running: InProcessCluster, topic: str) -> None:
    with (
        Producer(running.address) as producer,
        pytest.raises(KafkaError, match=f"{topic!r} has no partition 7: it has 1"),
    ):
        producer.send(topic, b"x", partition=7).result(60)


def test_a_follower_refuses_to_lead_and_hints_at_the_leader(running: InProcessCluster, topic: str) -> None:
    found = part(running, topic)
    leader = found["leader_node"]
    holders = {broker: node for broker, node in nodes_of(running, topic).items() if node != leader}
    assert len(holders) == 2
    plain = requests.produce({TopicPartition(topic, 0): batch(b"x")}, acks=-1, timeout_ms=1000)
    body = ProduceRequest(
        acks=plain.acks,
        timeout=plain.timeout,
        topic_data=(
            TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=batch(b"x")),)),
        ),
    )
    for follower in holders.values():
        answer = ask(running, endpoint_of(running, follower), body)
        refused = answer.responses[0].partition_responses[0]
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert refused.current_leader.leader_id == leader
        assert refused.current_leader.leader_epoch == found["leader_epoch"]
        assert [(node.node_id, Endpoint(node.host, node.port)) for node in answer.node_endpoints] == [
            (leader, endpoint_of(running, leader))
        ]


@pytest.mark.parametrize(
    ("shift", "code"), [(-1, ErrorCode.fenced_leader_epoch), (1, ErrorCode.unknown_leader_epoch)], ids=["old", "future"]
)
def test_a_wrong_leader_epoch_is_fenced(running: InProcessCluster, shift: int, code: ErrorCode) -> None:
    topic = make_topic(running)
    node = leader_of(running, topic)
    running.crash(node)  # so that there is an epoch before the current one
    eventually(lambda: part(running, topic)["leader_epoch"] > 0, f"a new leader of {topic}")
    found = part(running, topic)
    epoch = found["leader_epoch"]
    assert fetch(running, found["leader_node"], topic, leader_epoch=epoch).error_code is ErrorCode.none
    assert fetch(running, found["leader_node"], topic, leader_epoch=epoch + shift).error_code is code
    asked = requests.list_offsets({TopicPartition(topic, 0): (-1, epoch + shift)})
    answer = ask(running, endpoint_of(running, found["leader_node"]), asked)
    assert answer.topics[0].partitions[0].error_code is code


def test_an_offset_outside_the_log_is_out_of_range(running: InProcessCluster, topic: str) -> None:
    end = end_of(running, topic)
    answer = fetch(running, leader_of(running, topic), topic, end + 1)
    assert answer.error_code is ErrorCode.offset_out_of_range


def test_unknown_configurations_are_refused_by_name(running: InProcessCluster) -> None:
    with (
        AdminClient(running.address) as admin,
        pytest.raises(kafka_error(ErrorCode.invalid_config), match=r"retention\.mss.*retention\.ms"),
    ):
        admin.create_topics([NewTopic("misspelt", 1, 3, configs={"retention.mss": "1"})])
    with pytest.raises(ConfigError, match=r"linger\.mss.*did you mean .linger\.ms"):
        Producer(running.address, linger_mss=5)
    assert "misspelt" not in {each["name"] for each in status(running)["topics"]}


# ------------------------------------------------------------------ garbage


def listeners(running: InProcessCluster, topic: str) -> dict[str, Endpoint]:
    """A listener of each kind of server."""
    host, _, port = status(running)["controller"]["endpoint"].rpartition(":")
    broker = next(each["node_id"] for each in status(running)["actors"] if slot_of(each["node_id"]) == BROKER_SLOT)
    return {
        "controller": Endpoint(host, int(port)),
        "broker": endpoint_of(running, broker),
        "replica": endpoint_of(running, leader_of(running, topic)),
    }


def test_random_bytes_get_nothing_from_any_listener_and_harm_nobody(running: InProcessCluster, topic: str) -> None:
    rng = random.Random(4711)
    epochs = {each["node_id"]: each["incarnation"] for each in status(running)["actors"]}
    for name, endpoint in listeners(running, topic).items():
        for _ in range(20):
            garbage = rng.randbytes(rng.choice((1, 3, 4, 60, 4_000)))
            assert throw(endpoint, garbage) == b"", f"the {name} answered {garbage[:20]!r}"
        framed = struct.pack(">i", 100) + rng.randbytes(100)
        assert throw(endpoint, framed) == b"", f"the {name} answered a frame of garbage"
        http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert throw(endpoint, http) == b"", f"the {name} answered a browser"
    answer = produce(running, leader_of(running, topic), topic, batch(b"still here"))
    assert answer.error_code is ErrorCode.none
    assert {each["node_id"]: each["incarnation"] for each in status(running)["actors"]} == epochs


def test_requests_without_the_secret_get_nothing(running: InProcessCluster, topic: str) -> None:
    body = requests.produce({TopicPartition(topic, 0): batch(b"stranger")}, acks=1, timeout_ms=1000)
    before = end_of(running, topic)
    sent = b"".join(map(bytes, encode_request(body, 1, client_id_field("stranger"))))
    assert throw(endpoint_of(running, leader_of(running, topic)), sent) == b""
    assert end_of(running, topic) == before


def test_a_client_that_leaves_in_the_middle_of_a_frame_leaves_nothing(running: InProcessCluster, topic: str) -> None:
    node = leader_of(running, topic)
    endpoint, before = endpoint_of(running, node), end_of(running, topic)
    body = requests.produce({TopicPartition(topic, 0): batch(b"x" * 100_000)}, acks=1, timeout_ms=1000)
    whole = b"".join(map(bytes, encode_request(body, 1, client_id_field("leaver"))))
    server = running.launcher.servers[node]._server

    async def connections() -> frozenset[Any]:
        return frozenset(server.connections)

    async def leave() -> None:
        connection = await Connection.open(
            endpoint, secret=running.address.secret, cluster_id=running.address.cluster_id
        )
        assert connection.transport is not None
        connection.transport.write(whole[: len(whole) // 2])
        while connection.transport.get_write_buffer_size():
            await asyncio.sleep(0)
        connection.abort()
        await connection.wait_closed()

    others = running.run(connections())
    for _ in range(5):
        running.run(leave())
    running.await_true(lambda: server.connections <= others)
    running.await_true(lambda: server.in_flight_bytes == sum(each.in_flight_bytes for each in server.connections))
    assert end_of(running, topic) == before
    assert produce(running, node, topic, batch(b"good")).base_offset == before
    assert actor(running, node)["state"] == "live"
