"""A client's connection moves to the host that leads what it asks for, and comes back for all else; its client notices nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, fetch, listener, metadata, parts, produce
from raw_requests import batch, eventually, nodes_of

from raylog.client.sync import AdminClient
from raylog.errors import DisconnectedError, RaylogError
from raylog.kafka.chain import Refuse, Verdict
from raylog.kafka.context import RequestContext
from raylog.listener.moves import PATIENCE
from raylog.listener.router import Router
from raylog.records.codec import encode_values
from raylog.server.broker_server import BrokerServer
from raylog.server.door import LONG_STAY
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, TopicPartition, node_id
from raylog.wire.connection import Connection
from raylog.wire.moved_connections import Channel, Ended
from raylog.wire.private import OpenDoor
from raylog.wire.request import Request

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]


def write(client: Client, topic: str, value: bytes = b"v", *, acks: int = 1) -> int:
    """The record's offset."""
    (answer,) = client.ask(produce(topic, {0: batch(value)}, acks=acks)).responses[0].partition_responses
    assert answer.error_code is ErrorCode.none, answer
    return int(answer.base_offset)


def router(running: InProcessCluster, broker: int = 0) -> Router:
    server = running.launcher.servers[node_id(broker, BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.router is not None
    return server.router


def at_doors(running: InProcessCluster, broker: int = 0) -> list[Any]:
    """The connections at the doors of a broker's hosts."""
    servers = [server for node, server in running.launcher.servers.items() if node >> 16 == broker]
    return [each for server in servers if isinstance(server, ReplicaServer) for each in server.door.server.connections]


def elsewhere(running: InProcessCluster, broker: int = 0) -> int:
    return router(running, broker).server.connections_elsewhere


def host_of(running: InProcessCluster, topic: str, broker: int = 0) -> ReplicaServer:
    found = running.launcher.servers[nodes_of(running, topic)[broker]]
    assert isinstance(found, ReplicaServer)
    return found


@pytest.fixture
def calm(running: InProcessCluster) -> None:
    """Connections of earlier tests are gone."""
    for broker in range(3):
        eventually(lambda broker=broker: elsewhere(running, broker) == 0, "nobody at a door")  # type: ignore[misc]


def settle(running: InProcessCluster, client: Client, topic: str, broker: int = 0) -> None:
    """Writes until the connection is at the door."""
    before = len(at_doors(running, broker))

    def is_there() -> bool:
        write(client, topic)
        return len(at_doors(running, broker)) > before

    eventually(is_there, "the connection to move")
    write(client, topic)  # what comes now begins like one that the door has seen


def test_a_connection_moves_after_some_requests_and_is_served_there(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), client()
    for number in range(PATIENCE - 1):
        assert write(one, topic) == number
    assert not at_doors(running)
    eventually(lambda: write(one, topic) >= 0 and len(at_doors(running)) == 1, "the connection to move")
    (there,) = at_doors(running)
    assert there.server is host_of(running, topic).door.server
    served = there.requests
    last = write(one, topic, acks=-1)
    assert [write(one, topic) for _ in range(3)] == [last + 1, last + 2, last + 3]
    assert there.requests == served + 4
    one.close()
    eventually(lambda: elsewhere(running) == 0 and not at_doors(running), "the end to be known")


def test_it_comes_back_with_the_request_that_its_host_does_not_serve(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, other = new_topic((0, 1)), new_topic((0,), (0,))
    for asked, is_answered in (
        (metadata(topic), lambda reply: reply.topics[0].name == topic),
        (
            produce(other, {0: batch(b"a"), 1: batch(b"b")}),
            lambda reply: len(reply.responses[0].partition_responses) == 2,
        ),
        (
            produce(other, {0: batch(b"x" * 300_000)}),
            lambda reply: reply.responses[0].partition_responses[0].base_offset >= 0,
        ),
        (fetch(topic, {0: 0}, rack="r"), lambda reply: parts(reply)[0].error_code is ErrorCode.none),
        (produce("nowhere", {0: batch(b"v")}), lambda reply: reply.responses[0].partition_responses[0].error_code != 0),
    ):
        one = client()
        settle(running, one, topic)
        assert is_answered(one.ask(asked))
        assert not at_doors(running) and elsewhere(running) == 0
        assert write(one, topic) > 0
        one.close()


def test_requests_in_flight_over_moves_keep_their_order(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), client()
    expected = 0
    for _ in range(6):
        sent = [one.send(produce(topic, {0: batch(b"v")}, acks=(1, -1)[each % 2])) for each in range(40)]
        asked = one.send(metadata(topic))
        more = [one.send(produce(topic, {0: batch(b"w")})) for _ in range(10)]
        for each in (*sent, *more):
            (answer,) = each.result().responses[0].partition_responses
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, expected)
            expected += 1
        assert asked.result().topics[0].name == topic


def test_a_return_makes_the_next_move_later_unless_the_stay_was_long(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), client()
    settle(running, one, topic)
    one.ask(metadata(topic))
    for _ in range(4 * PATIENCE):
        write(one, topic)
    assert not at_doors(running)
    for _ in range(13 * PATIENCE):
        write(one, topic)
    eventually(lambda: write(one, topic) >= 0 and len(at_doors(running)) == 1, "the second move")
    (there,) = at_doors(running)
    there.requests = LONG_STAY
    one.ask(metadata(topic))
    settle(running, one, topic)
    (there,) = at_doors(running)
    assert there.came_back == 0


def test_a_fetch_waits_at_the_door_and_is_woken(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, reader, writer = new_topic((0, 1)), client(), client()
    for _ in range(PATIENCE + 5):
        reader.ask(fetch(topic, {0: 0}))
    eventually(lambda: len(at_doors(running)) == 1, "the connection to move")
    waiting = reader.send(fetch(topic, {0: 0}, max_wait_ms=300_000))
    eventually(lambda: bool(host_of(running, topic)._host._parked.by_token), "a parked read")
    write(writer, topic, acks=-1)
    assert parts(waiting.result())[0].records
    assert len(at_doors(running)) == 1


def test_what_could_be_answered_at_once_waits_for_the_answer_of_what_was_asked_before(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), client()
    settle(running, one, topic)
    waiting = one.send(fetch(topic, {0: 0}, max_wait_ms=300, min_bytes=1 << 20))
    appended = one.send(produce(topic, {0: batch(b"v")}, acks=1))
    assert appended.result().responses and waiting.done
    assert len(at_doors(running)) == 1


def test_a_small_batch_that_may_not_follow_is_refused_at_the_door(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), client()
    settle(running, one, topic)
    end = write(one, topic) + 1
    expected = {(0, 1): ErrorCode.none, (1, 2): ErrorCode.none, (7, 1): ErrorCode.out_of_order_sequence_number}
    for (sequence, count), code in expected.items():
        numbered = encode_values(
            [b"v"] * count, timestamp_ms=1, producer_id=9, producer_epoch=0, base_sequence=sequence
        )
        (answer,) = one.ask(produce(topic, {0: numbered}, acks=1)).responses[0].partition_responses
        assert answer.error_code is code
    assert write(one, topic) == end + 3 and len(at_doors(running)) == 1


def test_it_comes_back_when_its_host_leads_no_more(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), client()
    settle(running, one, topic)
    with AdminClient(running.address) as admin:
        admin.reassign({TopicPartition(topic, 0): (1, 0)})
        admin.elect_leaders()
    refused = ErrorCode.not_leader_or_follower

    def is_refused() -> bool:
        (answer,) = one.ask(produce(topic, {0: batch(b"v")}, acks=1)).responses[0].partition_responses
        return answer.error_code is refused and answer.current_leader.leader_id == 1

    eventually(is_refused, "the Broker to say who leads")
    eventually(lambda: not at_doors(running), "the connection to be back")


def test_a_reader_comes_back_when_its_host_leads_no_more_though_a_follower_could_serve_it(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), client()
    settle(running, one, topic)
    for _ in range(2):
        one.ask(fetch(topic, {0: 1_000}))
    assert at_doors(running)
    with AdminClient(running.address) as admin:
        admin.reassign({TopicPartition(topic, 0): (1, 0)})
        admin.elect_leaders()
    host = host_of(running, topic)
    eventually(lambda: host.led(topic, 0) is None, "the new leader to be known")
    one.ask(fetch(topic, {0: 0}))
    assert not at_doors(running)


def test_connections_elsewhere_count_and_may_always_come_back(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), client()
    settle(running, one, topic)
    assert elsewhere(running) == 1
    with connections_max(router(running), len(router(running).server.connections) + 1):
        stranger = client()
        with pytest.raises(DisconnectedError):
            stranger.ask(metadata(topic))
    with connections_max(router(running), 0):
        assert one.ask(metadata(topic)).topics[0].name == topic


def test_an_idle_connection_is_closed_at_the_broker_and_where_it_has_moved_to(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, moved, stays = new_topic((0,)), client(), client()
    settle(running, moved, topic)
    stays.ask(metadata())
    assert elsewhere(running) == 1
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker=0, set={"connections.max.idle.ms": "100"})
        try:
            for each in (stays, moved):
                running.run(each.connection.wait_closed(), 60)
        finally:
            admin.alter_configs(broker=0, delete=["connections.max.idle.ms"])


@contextmanager
def connections_max(found: Router, count: int) -> Iterator[None]:
    limits = found.server.limits
    found.server.limits = dataclasses.replace(limits, connections_max=count)
    yield
    found.server.limits = limits


def test_only_a_broker_of_its_own_opens_a_hosts_door(running: InProcessCluster, new_topic: NewTopicOf) -> None:
    endpoint, address = host_of(running, new_topic((0,)))._endpoint, running.address

    async def open_door() -> None:
        connection = await Connection.open(endpoint, secret=address.secret, cluster_id=address.cluster_id)
        with pytest.raises(RaylogError, match="only this host's Broker"):
            await connection.send(OpenDoor(), timeout_ms=30_000)
        connection.close()

    running.run(open_door())


def test_who_asks_for_other_things_in_between_stays(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), client()
    for _ in range(3 * PATIENCE):
        write(one, topic)
        one.ask(metadata(topic))
    assert not at_doors(running) and one_route(running) < PATIENCE


def one_route(running: InProcessCluster) -> int:
    """The most requests in a row that a connection of broker 0 has sent to one host."""
    return max((each.route.count for each in router(running).server.connections if each.route), default=0)


@pytest.mark.parametrize("finds_records", [False, True])
def test_who_fetches_while_others_leave_too_much_unread_goes_back(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf, finds_records: bool
) -> None:
    topic, reader = new_topic((0, 1)), client()
    if finds_records:
        write(client(), topic, acks=-1)
    for _ in range(PATIENCE + 5):
        reader.ask(fetch(topic, {0: 0}))
    eventually(lambda: len(at_doors(running)) == 1, "the connection to move")
    for _ in range(2):
        assert bool(parts(reader.ask(fetch(topic, {0: 0})))[0].records) is finds_records
    server = host_of(running, topic).door.server
    limits = server.limits
    server.limits = dataclasses.replace(limits, answers_bytes_max=0)
    try:
        assert parts(reader.ask(fetch(topic, {0: 0})))[0].error_code is ErrorCode.none
        assert not at_doors(running)
    finally:
        server.limits = limits


def test_the_stages_of_a_host_run_at_its_door() -> None:
    stage = Recording()
    with cluster(brokers=1, replica_server=lambda spec: ReplicaServer(spec, stages=(stage,))) as small:
        hosts = [each for each in small.launcher.servers.values() if isinstance(each, ReplicaServer)]
        assert hosts and all(each.door.server.stages == (stage,) for each in hosts)


def test_the_death_of_a_host_ends_the_count_of_what_is_there(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((1, 2)), client(1)
    settle(running, one, topic, broker=1)
    assert elsewhere(running, 1) == 1
    running.crash(nodes_of(running, topic)[1])
    eventually(lambda: elsewhere(running, 1) == 0, "nobody there")


def test_who_hangs_up_at_the_door_waits_for_nothing(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, reader = new_topic((0, 1)), client()
    for _ in range(PATIENCE + 5):
        reader.ask(fetch(topic, {0: 0}))
    eventually(lambda: len(at_doors(running)) == 1, "the connection to move")
    reader.send(fetch(topic, {0: 0}, max_wait_ms=300_000))
    host = host_of(running, topic)
    eventually(lambda: any(each < 0 for each in parked_by(host)), "a parked read")
    reader.close()
    eventually(lambda: not any(each < 0 for each in parked_by(host)), "the read to be forgotten")


def parked_by(host: ReplicaServer) -> list[int]:
    """The replica ids of the fetches that are parked there: of consumers they are negative."""
    return [each.request.replica_id for each in list(host._host._parked.by_token.values())]


class Recording:
    """A stage that notes who asks, and refuses if it is told to."""

    def __init__(self) -> None:
        self.seen: list[RequestContext] = []
        self.code: ErrorCode | None = None

    def judge(self, request: Request) -> list[Verdict]:
        self.seen.append(request.context)
        return [Refuse(self.code)] if self.code is not None else []


@pytest.fixture
def recording(running: InProcessCluster) -> Iterator[Callable[[Any], Recording]]:
    """Puts such a stage before a server's handlers until the test ends."""
    watched: list[Any] = []

    def before(server: Any) -> Recording:
        server.stages = (stage := Recording(),)
        watched.append(server)
        return stage

    yield before
    for server in watched:
        server.stages = ()


def test_who_asks_is_known_at_the_door_and_after_the_return(
    running: InProcessCluster,
    calm: None,
    client: Open,
    new_topic: NewTopicOf,
    recording: Callable[[Any], Recording],
) -> None:
    topic, listener_server = new_topic((0,)), router(running).server
    before = set(listener_server.connections)
    one = client()
    write(one, topic)
    (its_own,) = set(listener_server.connections) - before
    its_own.principal = "User:ann"
    its_own._contexts.clear()
    at_broker, at_door = recording(listener_server), recording(host_of(running, topic).door.server)
    settle(running, one, topic)
    write(one, topic)
    assert at_broker.seen and at_door.seen
    assert {(each.principal, each.listener, each.client_host) for each in at_door.seen} == {
        ("User:ann", "PLAINTEXT", "127.0.0.1")
    }
    assert set(at_door.seen) == set(at_broker.seen)
    at_broker.seen.clear()
    one.ask(metadata(topic))
    assert set(at_broker.seen) == set(at_door.seen)


def test_what_a_stage_refuses_at_the_door_is_not_carried_out(
    running: InProcessCluster,
    calm: None,
    client: Open,
    new_topic: NewTopicOf,
    recording: Callable[[Any], Recording],
) -> None:
    topic, one = new_topic((0,)), client()
    settle(running, one, topic)
    end = write(one, topic) + 1
    stage = recording(host_of(running, topic).door.server)
    stage.code = ErrorCode.topic_authorization_failed
    (answer,) = one.ask(produce(topic, {0: batch(b"v")}, acks=1)).responses[0].partition_responses
    assert answer.error_code is ErrorCode.topic_authorization_failed
    stage.code = None
    assert write(one, topic) == end and len(at_doors(running)) == 1


def test_the_death_of_its_host_ends_it_and_that_of_its_broker_does_not(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0, 1))
    one = client()
    settle(running, one, topic)
    running.crash(node_id(0, BROKER_SLOT))
    assert write(one, topic) >= 0
    assert write(one, topic, acks=-1) >= 0
    running.crash(nodes_of(running, topic)[0])
    with pytest.raises(DisconnectedError):
        write(one, topic)
    running.await_true(lambda: node_id(0, BROKER_SLOT) in running.controller.live_nodes())
    eventually(lambda: listener(running, 0) is not None, "the Broker is back")


def test_the_clients_of_a_host_that_stands_still_are_sent_away_once_it_is_declared_dead(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf
) -> None:
    topic, one, other = new_topic((0, 1)), client(), client()
    settle(running, one, topic)
    moves = router(running)._moves

    async def declare_dead() -> None:
        """What the Broker hears of a host whose process goes on."""
        moves.keep(())

    running.run(declare_dead())
    with pytest.raises(DisconnectedError):
        write(one, topic)
    assert elsewhere(running) == 0
    eventually(lambda: not at_doors(running), "the host to see the end, too")
    settle(running, other, topic)


def test_a_client_sees_its_end_at_a_door_although_the_broker_has_a_descriptor_of_it(
    running: InProcessCluster, calm: None, client: Open, new_topic: NewTopicOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, one = new_topic((0, 1)), client()
    settle(running, one, topic)
    (there,) = at_doors(running)
    send, tried = Channel.send, []

    def full_at_first(channel: Channel, message: Any, moving: Any = None) -> bool:
        tried.append(message)
        return len(tried) > 2 and send(channel, message, moving)

    monkeypatch.setattr(Channel, "send", full_at_first)

    async def end() -> None:
        there.close()

    running.run(end())
    with pytest.raises(DisconnectedError):
        write(one, topic)
    assert elsewhere(running) == 0 and tried == [Ended(there._moved.number)] * 3
