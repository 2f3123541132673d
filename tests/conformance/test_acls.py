"""Real clients of a cluster with an authorizer, and Kafka's own tool for ACLs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from acl_cases import TOPIC, cluster, group, topic
from authorized import Clients, authorized_cluster
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka_peer import apache_kafka

from raylog.security.acl import CLUSTER_NAME
from raylog.security.permissions import Operation, PatternType, Resource

pytestmark = pytest.mark.conformance

ACLS = "kafka.admin.AclCommand"


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with authorized_cluster(brokers=1) as found:
        yield found


@pytest.fixture
def server(clients: Clients) -> dict[str, Any]:
    return {"bootstrap.servers": clients.running.bootstrap_servers()}


def produce(server: dict[str, Any], **options: Any) -> KafkaError | None:
    """A record's error."""
    told: list[KafkaError | None] = []
    producer = Producer({**server, "linger.ms": 0, "message.timeout.ms": 20_000, **options})
    producer.produce(TOPIC, b"v", partition=0, on_delivery=lambda error, _: told.append(error))
    producer.flush(30)
    return told[0]


def consume(server: dict[str, Any]) -> bytes | int:
    """A record's value, or the code of the error that comes instead."""
    consumer = Consumer({**server, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        while True:
            found = consumer.poll(30)
            assert found is not None, "neither a record nor an error"
            if found.error() is None:
                value: bytes = found.value()
                return value
            return int(found.error().code())
    finally:
        consumer.close()


def test_a_producer_writes_with_write_and_not_without(clients: Clients, server: dict[str, Any]) -> None:
    clients.grant(topic(Operation.DESCRIBE))
    denied = produce(server)
    assert denied is not None and denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    clients.grant(topic(Operation.WRITE))
    assert produce(server) is None
    assert produce(server, **{"enable.idempotence": True}) is None


def test_a_consumer_reads_with_read_of_topic_and_group(clients: Clients, server: dict[str, Any]) -> None:
    clients.grant(topic(Operation.WRITE))
    assert produce(server) is None
    clients.grant(topic(Operation.READ))
    assert consume(server) == KafkaError.GROUP_AUTHORIZATION_FAILED
    clients.grant(group(Operation.READ))
    assert consume(server) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    clients.grant(topic(Operation.READ), group(Operation.READ))
    assert consume(server) == b"v"


def test_librdkafkas_admin_client_creates_and_finds_acls(clients: Clients, server: dict[str, Any]) -> None:
    admin = AdminClient(server)
    bound = AclBinding(
        ResourceType.GROUP,
        "mine-",
        ResourcePatternType.PREFIXED,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    clients.grant()
    with pytest.raises(KafkaException, match="Cluster authorization failed"):
        admin.create_acls([bound])[bound].result(30)
    clients.grant(cluster(Operation.ALTER))
    admin.create_acls([bound])[bound].result(30)
    asked = AclBindingFilter(
        ResourceType.GROUP,
        "mine-1",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(asked).result(30) == [bound]
    assert admin.delete_acls([asked])[asked].result(30) == [bound]


@pytest.fixture(scope="module")
def tool(clients: Clients) -> Callable[..., str]:
    kafka = apache_kafka()

    def run(*arguments: str) -> str:
        printed: str = kafka.tool(ACLS, "--bootstrap-server", clients.running.bootstrap_servers(), *arguments)
        return printed

    return run


def test_kafka_acls_adds_lists_and_removes(clients: Clients, tool: Callable[..., str]) -> None:
    clients.grant(cluster(Operation.ALTER))
    added = tool("--add", "--allow-principal", "User:bob", "--producer", "--topic", "orders", "--idempotent")
    assert "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)`" in added
    consumer = ("--allow-principal", "User:bob", "--consumer", "--topic", "or", "--group", "g")
    tool("--add", *consumer, "--resource-pattern-type", "prefixed")
    found = {
        (acl.resource, acl.name, acl.pattern, acl.operation)
        for acl in clients.image().acls.ids
        if acl.principal == "User:bob"
    }
    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    assert found == {
        *(
            (Resource.TOPIC, "orders", literal, each)
            for each in (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
        ),
        (Resource.CLUSTER, CLUSTER_NAME, literal, Operation.IDEMPOTENT_WRITE),
        *((Resource.TOPIC, "or", prefixed, each) for each in (Operation.READ, Operation.DESCRIBE)),
        (Resource.GROUP, "g", prefixed, Operation.READ),
    }
    listed = tool("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "(principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    assert "name=or, patternType=PREFIXED" in listed
    tool("--remove", "--force", "--topic", "orders")
    tool("--remove", "--force", *consumer, "--resource-pattern-type", "prefixed")
    left = tool("--list", "--principal", "User:bob")
    assert "IDEMPOTENT_WRITE" in left and "operation=READ" not in left and "operation=WRITE" not in left
