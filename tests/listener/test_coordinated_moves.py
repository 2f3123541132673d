"""A connection on which a client asks only in its transactions moves to the process that coordinates them; the client notices nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, metadata, produce, request
from outside_producer import Producer
from raw_requests import at_doors, eventually

from raylog.client.sync import AdminClient
from raylog.listener.moves import PATIENCE
from raylog.log.log import Log
from raylog.offsets_topic import TRANSACTIONS_TOPIC, partition_for
from raylog.records.codec import encode_values
from raylog.server.broker_server import BrokerServer
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, TopicPartition, broker_of, node_id
from raylog.wire.server_counts import VERSION_BITS

pytestmark = pytest.mark.core

NONE = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition
NewTopicOf = Callable[..., str]


@pytest.fixture
def producer(running: InProcessCluster, client: Callable[[int], Client]) -> Iterator[Callable[[str], Producer]]:
    """Opens producers whose ids are initialised, while nobody else is at a door."""
    eventually(lambda: not at_doors(running), "nobody at a door")

    def open_(transactional_id: str) -> Producer:
        one = Producer(client, transactional_id)
        one.initialised()
        return one

    yield open_


def commit(one: Producer, topic: str) -> None:
    """A transaction of version 1 that writes nothing."""
    eventually(lambda: one.add(topic, 0) == {0: NONE}, "the transaction before to be complete")
    assert one.end().error_code is NONE


def settle(running: InProcessCluster, one: Producer, topic: str) -> Any:
    """Commits until the connection is at the door; its end there."""

    def is_there() -> bool:
        commit(one, topic)
        return bool(at_doors(running))

    eventually(is_there, "the connection to move")
    (there,) = at_doors(running)
    return there


def coordinator_of(running: InProcessCluster, one: Producer) -> tuple[int, ReplicaServer]:
    """The broker that coordinates its id, and the process that does so."""
    number = partition_for(one.id)
    hosts = [(node, each) for node, each in running.launcher.servers.items() if isinstance(each, ReplicaServer)]
    ((node, found),) = [(node, each) for node, each in hosts if each._hosted.transactions.coordinates(number)]
    return broker_of(node), found


def test_a_connection_moves_to_the_coordinator_and_its_transactions_are_carried_out_there(
    running: InProcessCluster,
    producer: Callable[[str], Producer],
    new_topic: NewTopicOf,
    client: Callable[[int], Client],
) -> None:
    found = client(0).ask(request(10, 4, key_type=0, coordinator_keys=("g",)))  # makes __consumer_offsets
    assert found.coordinators[0].error_code is NONE
    topic, one = new_topic((0, 1)), producer("moves")
    there = settle(running, one, topic)
    assert there.server is coordinator_of(running, one)[1].door.server
    served, counted = there.requests, requests_of_ends(there)
    for commits in (True, False):
        eventually(lambda: one.add(topic, 0) == {0: NONE}, "the transaction before to be complete")
        assert one.end(commits=commits).error_code is NONE
    offsets = request(
        25, 3, transactional_id=one.id, producer_id=one.producer_id, producer_epoch=one.epoch, group_id="g"
    )
    eventually(lambda: one.client.ask(offsets).error_code is NONE, "the transaction before to be complete")
    assert one.end().error_code is NONE
    assert at_doors(running) == [there] and there.requests >= served + 6
    assert requests_of_ends(there) == counted + 3
    eventually(lambda: one.state().transaction_state == "CompleteCommit", "the transaction to be complete")
    assert not at_doors(running), "DescribeTransactions is the Broker's"


def requests_of_ends(there: Any) -> int:
    """How many EndTxn (version 4) its door has counted."""
    return int(there.server.counts.requests[26 << VERSION_BITS | 4])


def test_what_was_written_is_committed_by_an_end_at_the_door(
    running: InProcessCluster,
    producer: Callable[[str], Producer],
    new_topic: NewTopicOf,
    client: Callable[[int], Client],
) -> None:
    topic, one = new_topic((0, 1)), producer("writes")
    there, writer = settle(running, one, topic), client(0)
    eventually(lambda: one.add(topic, 0) == {0: NONE}, "the transaction before to be complete")
    records = encode_values(
        [b"v"],
        timestamp_ms=1,
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        base_sequence=0,
        is_transactional=True,
    )
    (answer,) = (
        writer.ask(produce(topic, {0: records}, acks=-1, transactional_id=one.id)).responses[0].partition_responses
    )
    assert answer.error_code is NONE
    assert one.end().error_code is NONE and at_doors(running) == [there]
    log = log_of(running, topic)
    eventually(lambda: log.stable_end_offset == log.high_watermark == 2 + answer.base_offset, "a marker")


def log_of(running: InProcessCluster, topic: str) -> Log:
    """That of the leader of its partition 0."""
    hosts = [each for each in running.launcher.servers.values() if isinstance(each, ReplicaServer)]
    led = [(host, id) for host in hosts if (id := host.led(topic, 0)) is not None]
    ((host, id),) = led
    log = host.log(id)
    assert log is not None
    return log


def test_errors_of_the_coordinator_are_answered_at_the_door(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), producer("errs")
    there = settle(running, one, topic)
    eventually(lambda: one.add(topic, 0) == {0: NONE}, "the transaction before to be complete")
    assert one.add(topic, 0, epoch=one.epoch - 1) == {0: ErrorCode.producer_fenced}
    assert one.end(epoch=one.epoch - 1).error_code is ErrorCode.producer_fenced
    assert one.end().error_code is NONE and at_doors(running) == [there]


def test_a_partition_that_does_not_exist_is_for_the_broker_to_refuse(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), producer("names")
    settle(running, one, topic)
    assert one.add(topic, 0, 7) == {0: ErrorCode.operation_not_attempted, 7: UNKNOWN}
    assert not at_doors(running)
    assert one.end(commits=False).error_code is ErrorCode.invalid_txn_state, "none was added"


def test_what_another_process_coordinates_goes_back_to_the_broker(
    running: InProcessCluster,
    producer: Callable[[str], Producer],
    new_topic: NewTopicOf,
    client: Callable[[int], Client],
) -> None:
    topic, one = new_topic((0, 1)), producer("mine")
    settle(running, one, topic)
    others = (Producer(client, f"other-{number}") for number in range(100))
    other = next(each for each in others if coordinator_of(running, each) != coordinator_of(running, one))
    other.client = one.client
    assert other.end().error_code is ErrorCode.not_coordinator
    assert not at_doors(running)


def test_what_leaders_ask_about_transactions_goes_back_to_the_broker(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), producer("verified")
    settle(running, one, topic)
    assert one.add_as_leader(topic, 0, verify_only=True) == [ErrorCode.transaction_abortable]
    assert not at_doors(running)


def test_who_asks_for_other_things_in_between_stays(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), producer("mixed")
    for _ in range(PATIENCE):
        commit(one, topic)
        one.client.ask(metadata(topic))
    assert not at_doors(running)


@pytest.mark.parametrize("key", ["request_percentage", "producer_byte_rate"])
def test_the_connection_of_a_client_within_its_quota_moves(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf, key: str
) -> None:
    topic, one = new_topic((0, 1)), producer(f"limited by {key}")
    with AdminClient(running.address) as admin:
        admin.alter_quotas({"client-id": "raylog"}, {key: 1 << 30})
        try:
            eventually(lambda: is_known(running, one, key), "its Broker to know the quota")
            eventually(lambda: commit(one, topic) or at_doors(running), "the connection to move")
        finally:
            admin.alter_quotas({"client-id": "raylog"}, {key: None})
    eventually(lambda: not is_known(running, one, key), "its Broker to know the quota's end")


def is_known(running: InProcessCluster, one: Producer, key: str) -> bool:
    server = running.launcher.servers[node_id(coordinator_of(running, one)[0], BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.router is not None
    return server.router.quotas.usage.has(key)


def test_it_comes_back_when_its_host_coordinates_no_more(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), producer("led elsewhere")
    settle(running, one, topic)
    number, here = partition_for(one.id), coordinator_of(running, one)[0]
    others = tuple(each for each in range(3) if each != here)
    with AdminClient(running.address) as admin:
        admin.reassign({TopicPartition(TRANSACTIONS_TOPIC, number): (*others, here)})
        admin.elect_leaders()
    eventually(lambda: one.end().error_code is ErrorCode.not_coordinator, "the Broker to say so")
    eventually(lambda: not at_doors(running), "the connection to be back")
    again = producer(one.id)
    assert coordinator_of(running, again)[0] == others[0] and again.epoch == one.epoch + 1


def test_what_is_in_flight_over_a_move_is_answered_in_its_order(
    running: InProcessCluster, producer: Callable[[str], Producer], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), producer("in flight")
    settle(running, one, topic)
    sent = [one.send_end(epoch=7) for _ in range(40)]
    asked = one.client.send(metadata(topic))
    more = [one.send_end(epoch=7) for _ in range(PATIENCE << 5)]
    assert all(each.result().error_code is ErrorCode.producer_fenced for each in sent)
    assert asked.result().topics[0].name == topic
    assert all(each.result().error_code is ErrorCode.producer_fenced for each in more)
    assert at_doors(running), "it has moved again"
