"""All at once: TLS, a user's password and ACLs, for a client of librdkafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authorized import set_configs
from certificates import Authority, settings
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.conformance

TOPIC = "orders"


class SecureSite:
    """Alice may write and read; bob is a user without an ACL."""

    def __init__(self, running: InProcessCluster, authority: Authority) -> None:
        self.running = running
        self.authority = authority

    def options(self, user: str, password: str, **others: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.running.bootstrap_servers("SASL_SSL"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        } | others


def allowed(resource: Resource, name: str, operation: Operation) -> AclBinding:
    return AclBinding(resource, name, PatternType.LITERAL, "User:alice", "*", operation, PermissionType.ALLOW)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureSite]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    # Certificates are asked for, and shown by nobody: who somebody is says SASL.
    configs = settings(authority.signed("broker"), authority.certificate, ssl_client_auth="requested")
    with cluster(brokers=1, listeners=listeners_of("SASL_SSL://127.0.0.1:0", None, configs)) as running:
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic(TOPIC, 1)])
            for user in ("alice", "bob"):
                admin.set_user(user, f"{user}'s password")
            set_configs(running)
            admin.create_acls(
                [
                    allowed(Resource.TOPIC, TOPIC, Operation.WRITE),
                    allowed(Resource.TOPIC, TOPIC, Operation.READ),
                    allowed(Resource.GROUP, "readers", Operation.READ),
                ]
            )
        broker = running.launcher.servers[node_id(0, BROKER_SLOT)]
        eventually(lambda: len(broker.image.acls.ids) == 3, "the broker knows the ACLs")
        yield SecureSite(running, authority)


def sent(options: dict[str, Any]) -> KafkaError | None:
    """The error of a record."""
    told: list[KafkaError | None] = []
    producer = Producer({**options, "message.timeout.ms": 20_000})
    producer.produce(TOPIC, b"of alice", partition=0, on_delivery=lambda error, _: told.append(error))
    producer.flush(30)
    return told[0]


def test_a_user_with_password_and_acls_writes_and_reads_by_tls(site: SecureSite) -> None:
    alice = site.options("alice", "alice's password")
    assert sent(alice) is None
    consumer = Consumer({**alice, "group.id": "readers", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        found = consumer.poll(60)
        assert found is not None and found.error() is None and found.value() == b"of alice"
    finally:
        consumer.close()


def test_a_user_without_an_acl_is_denied_what_its_password_does_not_give(site: SecureSite) -> None:
    error = sent(site.options("bob", "bob's password"))
    assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sasl.password": "guessed"}, KafkaError._AUTHENTICATION),
        ({"security.protocol": "SASL_PLAINTEXT"}, KafkaError._TRANSPORT),
        ({"ssl.ca.location": None}, KafkaError._SSL),
    ],
    ids=["password", "without TLS", "authority"],
)
def test_a_client_without_password_tls_or_the_authority_gets_nowhere(
    site: SecureSite, wrong: dict[str, Any], why: int, tmp_path: Path
) -> None:
    if "ssl.ca.location" in wrong:
        wrong = {"ssl.ca.location": str(Authority(tmp_path / "another").certificate)}
    told: set[int] = set()
    options = {**site.options("alice", "alice's password"), **wrong}
    producer = Producer({**options, "error_cb": lambda error: told.add(error.code())})
    eventually(lambda: producer.poll(0.1) or why in told, f"error {why}")
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=1)
