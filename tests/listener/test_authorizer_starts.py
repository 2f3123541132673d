"""A cluster that gets an authorizer while clients are there: none of them goes on unasked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from acl_cases import OF_TOPIC, TOPIC, topic
from authorized import EVERYTHING, Clients, set_configs
from first_leaders import preferred_leaders_are_awaited
from kio.schema.errors import ErrorCode
from outside import Client, fetch, metadata, parts, produce, request
from raw_requests import at_doors, batch, eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.security.permissions import Operation
from raylog.server.broker_server import BrokerServer
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.core
BROKERS = (0, 1)


@pytest.fixture
def running() -> Iterator[InProcessCluster]:
    with preferred_leaders_are_awaited(), cluster(brokers=2) as found:
        with AdminClient(found.address) as admin:
            admin.create_topics([NewTopic(TOPIC, replica_assignment={0: (0, 1), 1: (1, 0)})])
        yield found


def handlers(running: InProcessCluster, broker: int) -> tuple[Any, Any]:
    """Those in force, and those without an authorizer."""
    server = running.launcher.servers[node_id(broker, BROKER_SLOT)]
    assert isinstance(server, BrokerServer) and server.router is not None
    return server.router.server.handlers, server.router._guard._plain


def write(client: Client, number: int = 0) -> ErrorCode:
    (answer,) = client.ask(produce(TOPIC, {number: batch(b"v")})).responses[0].partition_responses
    return ErrorCode(answer.error_code)


def test_connections_come_back_from_the_hosts_to_be_asked_about(running: InProcessCluster) -> None:
    for broker in BROKERS:
        in_force, plain = handlers(running, broker)
        assert in_force is plain, "without an authorizer nothing stands before a handler"
    moved = Client(running, 0)
    eventually(lambda: write(moved) is ErrorCode.none and at_doors(running), "the connection to move")
    set_configs(running)
    eventually(lambda: write(moved) is OF_TOPIC, "the Broker asks the authorizer")
    assert not at_doors(running) and moved.connection.is_open
    moved.close()


def test_an_acl_is_in_force_on_every_broker(running: InProcessCluster) -> None:
    set_configs(running)
    clients = [Client(running, broker) for broker in BROKERS]
    of_first = Clients(running)
    try:
        for broker, each in zip(BROKERS, clients, strict=True):
            eventually(lambda each=each, broker=broker: write(each, broker) is OF_TOPIC, "it is denied")
        of_first.grant(topic(Operation.WRITE), topic(Operation.READ))
        for broker, each in zip(BROKERS, clients, strict=True):
            eventually(lambda each=each, broker=broker: write(each, broker) is ErrorCode.none, "it is allowed")
            assert parts(each.ask(fetch(TOPIC, {broker: 0})))[broker].records
        of_first.grant()
        for broker, each in zip(BROKERS, clients, strict=True):
            eventually(lambda each=each, broker=broker: write(each, broker) is OF_TOPIC, "it is denied again")
            assert [each.name for each in each.ask(metadata()).topics] == []
    finally:
        for each in (*clients, of_first):
            each.close()


def test_without_an_authorizer_acls_are_disabled(running: InProcessCluster) -> None:
    client = Client(running, 0)
    described = client.ask(request(29, 3, **EVERYTHING))
    assert (described.error_code, described.error_message) == (
        ErrorCode.security_disabled,
        "No Authorizer is configured.",
    )
    deleted = client.ask(request(31, 3, filters=lambda module: (module.DeleteAclsFilter(**EVERYTHING),)))
    assert deleted.filter_results[0].error_code is ErrorCode.security_disabled
    groups = client.ask(request(60, 0, include_cluster_authorized_operations=True))
    assert groups.cluster_authorized_operations == sum(1 << each for each in (5, 7, 8, 9, 10, 11, 12))
    client.close()
