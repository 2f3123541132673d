"""With an authorizer, too, a connection moves to the host that it asks, with what it was allowed and no more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from acl_cases import OF_TOPIC, OF_TRANSACTION, TOPIC, TRANSACTION, acl, topic, transaction
from authorized import Clients, authorized_cluster, set_configs
from kio.schema.errors import ErrorCode
from outside import Client, fetch, parts, produce, request
from raw_requests import batch, eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.listener.moves import GRANTS_MAX, PATIENCE, ConnectionMoves
from raylog.records.batch import ATTRIBUTES_LOW_POSITION, TRANSACTIONAL_MASK
from raylog.records.codec import encode_values
from raylog.security.permissions import Operation, Resource
from raylog.server.broker_server import BrokerServer
from raylog.server.replica_server import ReplicaServer
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.core
OTHER = "other"
MAY_WRITE = topic(Operation.WRITE)
BROKER = node_id(0, BROKER_SLOT)


@pytest.fixture(scope="module")
def site() -> Iterator[Clients]:
    with authorized_cluster() as found:
        with AdminClient(found.running.address) as admin:
            admin.create_topics([NewTopic(OTHER, replica_assignment={0: (0,)})])
        yield found


@pytest.fixture
def client(site: Clients) -> Iterator[Callable[[], Client]]:
    opened: list[Client] = []

    def one() -> Client:
        opened.append(Client(site.running, 0))
        return opened[-1]

    yield one
    for each in opened:
        each.close()
    eventually(lambda: not at_doors(site), "nobody is at a door")


def at_doors(site: Clients) -> list[Any]:
    hosts = [server for server in site.running.launcher.servers.values() if isinstance(server, ReplicaServer)]
    return [each for host in hosts for each in host.door.server.connections]


def moves(site: Clients) -> ConnectionMoves:
    server = site.running.launcher.servers[BROKER]
    assert isinstance(server, BrokerServer) and server.router is not None
    return server.router._moves


def write(client: Client, name: str = TOPIC, records: bytes | None = None, **options: Any) -> ErrorCode:
    found = client.ask(produce(name, {0: batch(b"v") if records is None else records}, **options))
    return ErrorCode(found.responses[0].partition_responses[0].error_code)


def read(client: Client, name: str = TOPIC) -> ErrorCode:
    return ErrorCode(parts(client.ask(fetch(name, {0: 0})))[0].error_code)


def settle(site: Clients, one: Client) -> Any:
    """Writes until the connection is at the door; its end there."""
    eventually(lambda: write(one) is ErrorCode.none and at_doors(site), "the connection to move")
    (there,) = at_doors(site)
    assert write(one) is ErrorCode.none  # what comes now begins like one that the door has seen
    return there


def test_it_is_served_there_what_it_was_allowed(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(MAY_WRITE)
    one = client()
    there = settle(site, one)
    served = there.requests
    for _ in range(5):
        assert write(one) is ErrorCode.none
    assert there.requests == served + 5


@pytest.mark.parametrize(
    ("asks", "answer"),
    [
        (lambda one: write(one, OTHER), OF_TOPIC),
        (lambda one: read(one), OF_TOPIC),
        (lambda one: write(one, transactional_id="another"), ErrorCode.transactional_id_authorization_failed),
    ],
    ids=["another topic", "another operation", "a transactional id"],
)
def test_it_comes_back_for_anything_else_and_is_denied(
    site: Clients, client: Callable[[], Client], asks: Callable[[Client], ErrorCode], answer: ErrorCode
) -> None:
    site.grant(MAY_WRITE)
    one = client()
    settle(site, one)
    assert asks(one) is answer
    assert not at_doors(site)
    assert write(one) is ErrorCode.none, "and goes on"


def test_what_is_allowed_later_on_the_way_is_granted_as_well(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(MAY_WRITE, topic(Operation.READ))
    one = client()

    def both() -> bool:
        return write(one) is ErrorCode.none and read(one) is ErrorCode.none

    eventually(lambda: both() and at_doors(site), "the connection to move")
    (there,) = at_doors(site)
    served = there.requests
    assert both() and both()
    assert there.requests == served + 4


def test_a_transactional_batch_without_a_transactional_id_is_denied(
    site: Clients, client: Callable[[], Client]
) -> None:
    site.grant(MAY_WRITE)
    one = client()
    settle(site, one)
    records = bytearray(batch(b"v"))
    records[ATTRIBUTES_LOW_POSITION] |= TRANSACTIONAL_MASK
    assert write(one, records=bytes(records)) is ErrorCode.transactional_id_authorization_failed


def test_a_grant_for_one_transactional_id_is_none_for_another(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(MAY_WRITE, transaction(Operation.WRITE))
    one = client()
    records = encode_values([b"v"], timestamp_ms=1)

    def written(transactional_id: str) -> ErrorCode:
        return write(one, records=records, transactional_id=transactional_id)

    eventually(lambda: written(TRANSACTION) is ErrorCode.none and at_doors(site), "the connection to move")
    assert written(TRANSACTION) is ErrorCode.none and at_doors(site)
    assert written("another") is ErrorCode.transactional_id_authorization_failed


def test_an_acl_that_is_removed_is_removed_there_too(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(MAY_WRITE)
    one = client()
    settle(site, one)
    site.grant(topic(Operation.READ))
    eventually(lambda: write(one) is OF_TOPIC, "the host has heard of it")
    assert read(one) is ErrorCode.none
    site.grant(MAY_WRITE)
    assert settle(site, one).came_back == 0, "that it came back was none of its doing"


def test_a_grant_that_is_revoked_on_the_way_is_not_taken_along(site: Clients, client: Callable[[], Client]) -> None:
    """The connection is to move once its last request is answered, and the ACL goes before that."""
    site.grant(MAY_WRITE)
    one = client()
    settle(site, one)  # so that there is a channel
    second = client()
    found = moves(site)
    for _ in range(PATIENCE - 1):
        assert write(second) is ErrorCode.none
    handed_over = found._hand_over

    def late(*args: Any) -> bool:
        found.revoke()
        return handed_over(*args)

    found._hand_over = late  # type: ignore[method-assign]
    try:
        assert write(second) is ErrorCode.none
        eventually(lambda: _came_back(site) == 1, "it has stayed")
    finally:
        del found._hand_over
    assert write(second) is ErrorCode.none


def _came_back(site: Clients) -> int:
    return max((each.came_back for each in moves(site).server.connections), default=0)


def test_a_host_without_its_broker_serves_nobody_who_needs_grants(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(MAY_WRITE)
    one = client()
    settle(site, one)
    site.running.crash(BROKER)
    eventually(lambda: not one.connection.is_open, "the host closes it")
    site.running.await_true(lambda: BROKER in site.running.controller.live_nodes())


def test_a_host_that_cannot_be_told_closes_what_it_was_granted(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(MAY_WRITE)
    one = client()
    settle(site, one)
    found = moves(site)
    (host,) = found._hosts.values()
    assert host.channel is not None
    host.channel.send = lambda *_: False  # type: ignore[method-assign] # its socket's buffer is full
    site.grant()
    eventually(lambda: not one.connection.is_open, "the host closes it")


def test_who_needs_too_many_grants_stays(site: Clients, client: Callable[[], Client], monkeypatch: Any) -> None:
    assert GRANTS_MAX * 600 < 64 * 1024, "they fit into a message beside what is pending"
    monkeypatch.setattr("raylog.listener.moves.GRANTS_MAX", 1)
    site.grant(MAY_WRITE, topic(Operation.READ))
    one = client()
    for _ in range(2 * PATIENCE):
        assert write(one) is ErrorCode.none
        assert read(one) is ErrorCode.none
    assert not at_doors(site)


def test_who_needs_grants_that_are_too_long_for_a_message_stays(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(topic(Operation.READ), topic(Operation.WRITE), acl(Operation.WRITE, Resource.TRANSACTIONAL_ID, "*"))
    one = client()
    for number in range(5 * PATIENCE):
        write(one, transactional_id=f"{number}" + "x" * 32_000)
    assert not at_doors(site)
    (connection,) = moves(site).server.connections
    assert len(connection.route.grants) <= 3, "what is kept of them is bounded, too"
    assert write(one, transactional_id="y") is ErrorCode.none


def test_where_permissions_are_logged_every_request_passes_the_broker(
    site: Clients, client: Callable[[], Client]
) -> None:
    logger = logging.getLogger("raylog.authorizer")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        site.grant(topic(Operation.READ))
        site.grant(MAY_WRITE)
        one = client()
        for _ in range(3 * PATIENCE):
            assert write(one) is ErrorCode.none
        assert not at_doors(site)
    finally:
        logger.setLevel(level)
        site.grant()


def test_a_super_user_moves_without_grants_and_is_asked_about_when_it_is_none_any_more(
    site: Clients, client: Callable[[], Client]
) -> None:
    site.grant()
    set_configs(site.running, super_users="User:ANONYMOUS")
    one = client()
    eventually(lambda: write(one) is ErrorCode.none and at_doors(site), "the connection to move")
    assert read(one) is ErrorCode.none and at_doors(site), "it may do everything"
    set_configs(site.running, super_users="User:somebody")
    eventually(lambda: write(one) is OF_TOPIC, "the Broker asks the authorizer")


def end(client: Client) -> ErrorCode:
    """Of a transaction that nobody has begun."""
    asked = request(26, 4, transactional_id=TRANSACTION, producer_id=1, producer_epoch=0, committed=True)
    return ErrorCode(client.ask(asked).error_code)


def test_who_asks_a_coordinator_stays_where_an_authorizer_is_asked(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(transaction(Operation.WRITE))
    one = client()
    for _ in range(3 * PATIENCE):
        assert end(one) is ErrorCode.invalid_producer_id_mapping
    assert not at_doors(site)


def test_a_super_users_connection_to_a_coordinator_moves_until_it_is_one_no_more(
    site: Clients, client: Callable[[], Client]
) -> None:
    site.grant()
    set_configs(site.running, super_users="User:ANONYMOUS")
    one = client()
    eventually(lambda: end(one) is ErrorCode.invalid_producer_id_mapping and at_doors(site), "the connection to move")
    set_configs(site.running, super_users="User:somebody")
    eventually(lambda: end(one) is OF_TRANSACTION, "the Broker asks the authorizer")
    assert not at_doors(site)


def test_a_grant_to_write_is_none_to_end_a_transaction(site: Clients, client: Callable[[], Client]) -> None:
    site.grant(MAY_WRITE)
    one = client()
    settle(site, one)
    assert end(one) is OF_TRANSACTION
    assert not at_doors(site)


def test_an_authorizer_that_comes_while_the_broker_is_away_lets_nobody_go_on() -> None:
    with authorized_cluster() as site:
        set_configs(site.running, authorizer_class_name="")
        one = Client(site.running, 0)
        eventually(lambda: write(one) is ErrorCode.none and at_doors(site), "the connection to move")
        found = moves(site)

        async def lose_the_broker() -> None:
            found.close()

        site.running.run(lose_the_broker())
        for _ in range(3):
            assert write(one) is ErrorCode.none, "the host goes on without its Broker"
        set_configs(site.running)
        eventually(lambda: not one.connection.is_open, "the host closes it")
        one.close()
