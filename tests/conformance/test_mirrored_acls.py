"""MirrorMaker 2 copies the ACLs of a topic from a raylog to another one (``sync.topic.acls.enabled``): who may read there may read here.

Two clusters with SASL and an authorizer. The connector comes in as a super user of both. Each cluster has a user alice, and only the
source says what she may do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from authorized import set_configs
from confluent_kafka import Consumer, KafkaError, Producer
from connect_worker import PATIENCE_S, Worker
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.security.acl import AclBinding, AclFilter
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.conformance

LISTENER = "SASL_PLAINTEXT"
TOPIC, COPY = "orders", "here.orders"
RECORDS = [f"order {number}" for number in range(20)]


def of_java(user: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "security.protocol": LISTENER,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="{user}" password="{user}-secret";',
    }


def of_librdkafka(running: InProcessCluster, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": running.bootstrap_servers(LISTENER),
        "security.protocol": LISTENER,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": f"{user}-secret",
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def binding(
    topic: str, principal: str, operation: Operation, permission: PermissionType = PermissionType.ALLOW
) -> AclBinding:
    return AclBinding(Resource.TOPIC, topic, PatternType.LITERAL, principal, "*", operation, permission)


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[InProcessCluster, InProcessCluster]]:
    """The source and the target."""
    with ExitStack() as stack:
        both = [
            stack.enter_context(cluster(brokers=1, listeners=listeners_of(f"{LISTENER}://127.0.0.1:0")))
            for _ in range(2)
        ]
        for each in both:
            with AdminClient(each.address) as admin:
                for user in ("mirror", "alice"):
                    admin.set_user(user, f"{user}-secret")
            set_configs(each, super_users="User:mirror")
            broker = each.launcher.servers[node_id(0, BROKER_SLOT)]
            eventually(
                lambda: broker.router._guard.is_on and len(broker.image.credentials) == 4,  # noqa: B023
                "the broker knows the users and the authorizer",
            )
        yield both[0], both[1]


def acls_of(running: InProcessCluster, topic: str) -> set[AclBinding]:
    with AdminClient(running.address) as admin:
        return {each for each in admin.describe_acls(AclFilter(resource=Resource.TOPIC)) if each.name == topic}


def read(running: InProcessCluster, topic: str, user: str) -> list[str] | int:
    """The values, or the code of the error that comes instead."""
    consumer = Consumer(of_librdkafka(running, user, group_id=f"of-{user}", auto_offset_reset="earliest"))
    found: list[str] = []
    try:
        consumer.subscribe([topic])
        while len(found) < len(RECORDS):
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} records"
            if message.error() is not None:
                return int(message.error().code())
            found.append(message.value().decode())
        return found
    finally:
        consumer.close()


def written(running: InProcessCluster, topic: str, user: str) -> int | None:
    """The code of a record's error."""
    told: list[KafkaError | None] = []
    producer = Producer(of_librdkafka(running, user, message_timeout_ms=20_000))
    producer.produce(topic, b"forged", partition=0, on_delivery=lambda error, _: told.append(error))
    producer.flush(30)
    return told[0].code() if told[0] is not None else None


def test_mirrormaker_copies_who_may_read_a_topic_and_not_who_may_write_it(
    clusters: tuple[InProcessCluster, InProcessCluster], tmp_path: Path
) -> None:
    source, target = clusters
    denied = binding(TOPIC, "User:bob", Operation.READ, PermissionType.DENY)
    given = [binding(TOPIC, "User:alice", Operation.READ), binding(TOPIC, "User:alice", Operation.WRITE), denied]
    with AdminClient(source.address) as admin:
        admin.create_topics([NewTopic(TOPIC, 1, 1)])
        admin.create_acls(given)
    with AdminClient(target.address) as admin:
        group = AclBinding(
            Resource.GROUP, "of-alice", PatternType.LITERAL, "User:alice", "*", Operation.READ, PermissionType.ALLOW
        )
        admin.create_acls([group])
    producer = Producer(of_librdkafka(source, "mirror"))
    for value in RECORDS:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(60) == 0
    worker = Worker(target.bootstrap_servers(LISTENER), tmp_path, replicas=1, security=of_java("mirror"))
    sides = {"source": source, "target": target}
    security = {
        f"{side}.cluster.{name}": value
        for side, running in sides.items()
        for name, value in {"bootstrap.servers": running.bootstrap_servers(LISTENER), **of_java("mirror")}.items()
    }
    with worker.running():
        worker.connect(
            "mirror", "org.apache.kafka.connect.mirror.MirrorSourceConnector", topics=TOPIC,
            **{
                "source.cluster.alias": "here", "target.cluster.alias": "there", "replication.factor": "1",
                "offset-syncs.topic.replication.factor": "1", "sync.topic.acls.enabled": "true",
                "sync.topic.acls.interval.seconds": "1", "consumer.poll.timeout.ms": "200",
                "source.consumer.isolation.level": "read_committed",
                "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
                "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
                **security,
            },
        )  # fmt: skip
        wanted = {
            binding(COPY, "User:alice", Operation.READ),
            binding(COPY, "User:bob", Operation.READ, PermissionType.DENY),
        }
        eventually(lambda: acls_of(target, COPY) == wanted, f"the copied ACLs: {worker.told()}", PATIENCE_S)
        assert read(target, COPY, "alice") == RECORDS
        assert written(target, COPY, "alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert acls_of(source, TOPIC) == set(given)
