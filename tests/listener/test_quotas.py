"""A Broker's listener holds clients to their quotas: throttle times, connections that are not read, neighbours that notice nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, fetch, metadata, milliseconds, parts, produce, request
from raw_requests import batch, eventually

from raylog.client.sync import AdminClient
from raylog.errors import DisconnectedError
from raylog.server.broker_server import BrokerServer
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.core

NewTopicOf = Callable[..., str]
Open = Callable[..., Client]
KIB = 1_024
VALUE = b"v" * (23 * KIB // 2)
"""Two of them are what a quota of 2 KiB allows in 11.5 s. They may be sent within ten: the wait is 1.5 s, less what has passed."""


def revision(running: InProcessCluster, broker: int) -> dict[Any, Any]:
    server = running.launcher.servers[node_id(broker, BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.image is not None
    return server.image.quotas.values


@pytest.fixture
def quota(running: InProcessCluster) -> Iterator[Callable[..., None]]:
    """Sets quotas, and waits until all Brokers have them; removes them at the end."""
    entities: list[dict[str, str | None]] = []

    def alter(entity: dict[str, str | None], changes: dict[str, float | None]) -> None:
        with AdminClient(running.address) as admin:
            admin.alter_quotas(entity, changes)
        decided = running.controller.image.quotas.values
        eventually(lambda: all(revision(running, each) == decided for each in range(3)), "the Brokers know the quotas")

    def set_(entity: dict[str, str | None], **values: float) -> None:
        entities.append(entity)
        alter(entity, dict(values))

    yield set_
    for entity in entities:
        everything = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
        alter(entity, dict.fromkeys(("connection_creation_rate",) if "ip" in entity else everything))


@pytest.fixture
def as_client(running: InProcessCluster) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def open_(client_id: str | None, broker: int = 0) -> Client:
        opened.append(Client(running, broker, client_id))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def sessions_of(running: InProcessCluster) -> int:
    server = running.launcher.servers[node_id(0, BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.router is not None
    return len(server.router.sessions)


def write(client: Client, topic: str, value: bytes = VALUE, *, acks: int = 1) -> int:
    """The throttle time, in milliseconds."""
    reply = client.ask(produce(topic, {0: batch(value)}, acks=acks))
    (answer,) = reply.responses[0].partition_responses
    assert answer.error_code is ErrorCode.none, answer
    return round(reply.throttle_time.total_seconds() * 1_000)


def read(client: Client, topic: str, offset: int = 0, **values: Any) -> tuple[int, int]:
    """The bytes of records, and the throttle time in milliseconds."""
    reply = client.ask(fetch(topic, {0: offset}, **values))
    assert reply.error_code is ErrorCode.none
    size = sum(len(part.records or b"") for part in parts(reply).values())
    return size, round(reply.throttle_time.total_seconds() * 1_000)


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began >= seconds


@pytest.mark.parametrize("acks", [1, -1])
def test_a_producer_above_its_quota_is_answered_and_then_not_read(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None], acks: int
) -> None:
    topic = new_topic((0,))
    noisy, neighbour = f"noisy-{acks}", as_client("neighbour")
    quota({"client-id": noisy}, producer_byte_rate=2 * KIB)
    one = as_client(noisy)
    assert write(one, topic, acks=acks) == 0, "ten windows may be used at once"
    told_ms = write(one, topic, acks=acks)
    assert 400 <= told_ms <= 1_700
    with at_least(told_ms / 1_000 - 0.05):
        assert write(neighbour, topic) == 0
        assert one.ask(metadata(topic)).topics, "any request waits until its connection is read again"
    assert write(neighbour, topic, VALUE * 10) == 0


def test_a_producer_that_wants_no_answer_is_held_back_too(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None]
) -> None:
    topic = new_topic((0,))
    quota({"client-id": "silent"}, producer_byte_rate=2 * KIB)
    one = as_client("silent")
    with at_least(0.3):
        for _ in range(2):
            one.send(produce(topic, {0: batch(VALUE)}, acks=0))
        assert one.ask(metadata(topic)).topics


def test_connections_of_one_client_id_share_its_quota_and_users_do_not(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None]
) -> None:
    topic = new_topic((0,))
    quota({"client-id": None}, producer_byte_rate=2 * KIB)
    first, second, other = as_client("shared"), as_client("shared"), as_client("not-shared")
    assert write(first, topic) == 0
    assert write(second, topic) > 0
    assert write(other, topic) == 0, "the default is each client id's own"


def test_a_quota_of_the_user_beats_one_of_the_client_id(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None]
) -> None:
    topic = new_topic((0,))
    quota({"client-id": "app"}, producer_byte_rate=1)
    quota({"user": "ANONYMOUS", "client-id": "app"}, producer_byte_rate=1 << 30)
    assert write(as_client("app"), topic) == 0
    quota({"user": "somebody"}, producer_byte_rate=1)
    assert write(as_client("app"), topic) == 0


@pytest.mark.parametrize("with_session", [False, True])
def test_a_consumer_above_its_quota_gets_nothing_and_waits(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None], with_session: bool, running: InProcessCluster
) -> None:
    topic, slow = new_topic((0,)), f"slow-{with_session}"
    for _ in range(3):
        write(as_client("writer"), topic)
    quota({"client-id": slow}, consumer_byte_rate=2 * KIB)
    one = as_client(slow)
    opening = {"session": (0, 0)} if with_session else {}
    size, told_ms = read(one, topic, max_bytes=KIB)
    assert size > 10 * KIB and told_ms == 0
    reply = one.ask(fetch(topic, {0: 1}, max_bytes=KIB, **opening))
    told_ms = round(reply.throttle_time.total_seconds() * 1_000)
    assert 400 <= told_ms <= 1_700
    assert not reply.responses and reply.session_id == 0 and not sessions_of(running), "and no session is opened"
    with at_least(told_ms / 1_000 - 0.05):
        assert read(as_client("neighbour"), topic)[0] > 20 * KIB
        assert one.ask(metadata(topic)).topics
    assert read(one, topic, 1, max_bytes=KIB)[1] <= 1_700, "what was withheld does not count"


def test_an_answer_has_no_more_than_the_quota_allows_at_once(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None]
) -> None:
    topic = new_topic((0,))
    for _ in range(4):
        write(as_client("writer"), topic)
    quota({"client-id": "capped"}, consumer_byte_rate=5 * KIB // 2)
    size, told_ms = read(as_client("capped"), topic, min_bytes=1 << 20, max_wait_ms=60_000)
    assert 20 * KIB < size <= 25 * KIB and told_ms == 0, (
        "neither all that is there, nor a wait for more than it may have"
    )


def test_a_batch_that_no_quota_has_room_for_is_read_all_the_same(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None]
) -> None:
    """Kafka withholds it for ever."""
    topic = new_topic((0,))
    write(as_client("writer"), topic, VALUE * 2)
    quota({"client-id": "narrow"}, consumer_byte_rate=2 * KIB)
    size, told_ms = read(as_client("narrow"), topic)
    assert size > 23 * KIB and 400 <= told_ms <= 1_700


def test_a_quota_counts_at_once_and_no_more_when_it_is_removed(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None], running: InProcessCluster
) -> None:
    topic, one = new_topic((0,)), as_client("changing")
    for _ in range(10):
        assert write(one, topic) == 0
    quota({"client-id": "changing"}, producer_byte_rate=2 * KIB)
    told = [write(one, topic) for _ in range(2)]
    assert told[0] == 0 < told[1], "also of a connection that had moved to a host"
    quota({"client-id": "changing"}, producer_byte_rate=1 << 30)
    assert write(one, topic) == 0


def test_connections_come_back_when_quotas_change(
    as_client: Open, new_topic: NewTopicOf, quota: Callable[..., None], running: InProcessCluster
) -> None:
    topic = new_topic((0,))
    server = running.launcher.servers[node_id(0, BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.router is not None
    listener = server.router.server
    moving = as_client("moving")

    def has_moved() -> bool:
        write(moving, topic, b"v")
        return listener.connections_elsewhere == 1

    eventually(has_moved, "the connection to move")
    quota({"client-id": "other"}, request_percentage=1_000)
    eventually(lambda: not has_moved(), "the connection to come back with its next request")
    eventually(has_moved, "it to move again")


def created(client: Client, *names: str, partitions: int = 10, version: int = 7, **values: Any) -> Any:
    def topics(module: Any) -> Any:
        return tuple(
            module.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
            )
            for name in names
        )

    return client.ask(
        request(
            19, version, topics=topics, timeout=milliseconds(30_000), validate_only=values.get("validate_only", False)
        )
    )


def test_topics_are_refused_to_who_has_changed_too_much(as_client: Open, quota: Callable[..., None]) -> None:
    """The bucket holds eleven seconds' worth, and may be overdrawn once."""
    quota({"client-id": "builder"}, controller_mutation_rate=1)
    one = as_client("builder")
    assert not created(one, "v-0", validate_only=True).throttle_time
    assert not created(one, "m-0").throttle_time
    reply = created(one, "m-1", "m-2")
    errors = {each.name: each.error_code for each in reply.topics}
    assert errors == {"m-1": ErrorCode.none, "m-2": ErrorCode.throttling_quota_exceeded}
    assert 0 < reply.throttle_time.total_seconds() <= 9
    assert created(as_client("neighbour"), "m-2").topics[0].error_code is ErrorCode.none
    whole = created(as_client("builder"), "m-3")
    assert whole.topics[0].error_code is ErrorCode.throttling_quota_exceeded
    assert whole.throttle_time.total_seconds() > 0


def test_old_clients_that_have_changed_too_much_wait(as_client: Open, quota: Callable[..., None]) -> None:
    quota({"client-id": "old"}, controller_mutation_rate=1)
    one = as_client("old")
    assert not created(one, "o-0", version=5).throttle_time
    reply = created(one, "o-1", partitions=4, version=5)
    assert reply.topics[0].error_code is ErrorCode.none
    told_s = reply.throttle_time.total_seconds()
    assert 0 < told_s <= 3
    with at_least(told_s - 0.05):
        deleted = one.ask(request(20, 4, topic_names=("o-0",), timeout=milliseconds(30_000)))
    assert deleted.throttle_time.total_seconds() > 5, "a topic that is deleted counts its partitions"


def test_partitions_that_are_added_count(as_client: Open, quota: Callable[..., None], new_topic: NewTopicOf) -> None:
    topic = new_topic((0,))
    quota({"client-id": "grower"}, controller_mutation_rate=1)

    def grown(count: int) -> Any:
        def topics(module: Any) -> Any:
            return (module.CreatePartitionsTopic(name=topic, count=count, assignments=None),)

        return as_client("grower").ask(request(37, 3, topics=topics, timeout=milliseconds(30_000), validate_only=False))

    assert grown(14).results[0].error_code is ErrorCode.none
    assert grown(15).results[0].error_code is ErrorCode.throttling_quota_exceeded


def test_a_client_that_takes_too_much_of_a_brokers_time_waits(
    as_client: Open, quota: Callable[..., None], new_topic: NewTopicOf
) -> None:
    topic = new_topic((0,))
    quota({"client-id": "busy"}, request_percentage=0.0001)
    one, told = as_client("busy"), []

    def is_told() -> bool:
        reply = one.ask(metadata(topic))
        told.append(reply.throttle_time.total_seconds())
        return told[-1] > 0

    eventually(is_told, "the client is told to wait")
    assert told[-1] <= 1, "for one window at most"
    with at_least(told[-1] - 0.05):
        assert not as_client("neighbour").ask(metadata(topic)).throttle_time
        assert write(one, topic) > 0, "any API counts"


def test_an_address_that_opens_too_many_connections_is_turned_away(
    running: InProcessCluster, quota: Callable[..., None], as_client: Open
) -> None:
    server = running.launcher.servers[node_id(0, BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.router is not None
    listener = server.router.server
    quota({"ip": "127.0.0.1"}, connection_creation_rate=1)
    early = as_client("first")

    def is_turned_away() -> bool:
        one = as_client("another")
        try:
            one.ask(metadata())
        except DisconnectedError:
            return True
        return False

    eventually(is_turned_away, "a connection is closed")
    assert early.ask(metadata()) is not None
    quota({"ip": "127.0.0.1"}, connection_creation_rate=1_000)
    assert as_client("later").ask(metadata()) is not None

    def is_counted() -> bool:
        open_ = len(listener.connections) + listener.connections_elsewhere + listener.acceptor.at_the_door
        return listener.connections_of_host["127.0.0.1"] == open_

    eventually(is_counted, "the address has as many connections as there are")


@pytest.mark.parametrize("when", ["before it leaves", "while it is on its way"])
def test_a_connection_that_is_moving_when_quotas_change_is_with_its_broker_in_the_end(
    running: InProcessCluster, as_client: Open, new_topic: NewTopicOf, when: str
) -> None:
    topic = new_topic((0,))
    server = running.launcher.servers[node_id(0, BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.router is not None
    listener, moves = server.router.server, server.router._moves
    first = as_client("first")

    def has_moved() -> bool:
        write(first, topic, b"v")
        return bool(listener.connections_elsewhere)

    eventually(has_moved, "a host takes connections")
    (host,) = (each for each in moves._hosts.values() if each.there)
    known = set(listener.connections)
    second = as_client("second")
    write(second, topic, b"v")
    (connection,) = set(listener.connections) - known
    outcomes: list[bool] = []

    async def leave() -> None:
        def hand_over(sock: socket.socket, pending: bytes) -> bool:
            outcomes.append(moves._hand_over(host, connection, sock, pending))
            if when == "while it is on its way":
                moves.revoke()
            return outcomes[-1]

        connection.leave(hand_over)
        if when == "before it leaves":
            moves.revoke()

    def are_back() -> bool:
        assert write(first, topic, b"v") == write(second, topic, b"v") == 0
        return not listener.connections_elsewhere

    running.run(leave())
    eventually(lambda: bool(outcomes), "the connection to leave, or not")
    assert outcomes == [when == "while it is on its way"]
    eventually(are_back, "both connections are at the Broker")
