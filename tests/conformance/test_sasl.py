"""Real clients that authenticate by SASL at three brokers: they write, read and commit, and are kept out without the password."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kafka_peer import apache_kafka
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.conformance

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
USER, PASSWORD = "alice", 'a "secret", = ü'
COUNT = 30
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3, listeners=listeners_of("SASL_PLAINTEXT://127.0.0.1:0")) as found:
        with AdminClient(found.address) as admin:
            admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": ",".join(MECHANISMS)})
            admin.set_user(USER, PASSWORD)
        routers = [found.launcher.servers[broker << 16].router for broker in range(3)]
        eventually(
            lambda: all("PLAIN" in each._sasl.mechanisms and each._sasl._credentials() for each in routers),
            "the brokers know the user",
        )
        yield found


@pytest.fixture
def bootstrap(running: InProcessCluster) -> str:
    return running.bootstrap_servers("SASL_PLAINTEXT")


@pytest.fixture
def topic(running: InProcessCluster) -> str:
    name = f"topic-{uuid.uuid4()}"
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, 3, 3)])
    eventually(lambda: isr_is_whole(running, name, 3), "all in sync")
    return name


def of_librdkafka(bootstrap: str, mechanism: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@each_mechanism
def test_confluent_kafka(bootstrap: str, topic: str, mechanism: str) -> None:
    from confluent_kafka import Consumer, Producer

    producer = Producer(of_librdkafka(bootstrap, mechanism))
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0
    consumer = Consumer(of_librdkafka(bootstrap, mechanism, group_id=topic, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    found: set[bytes] = set()
    while len(found) < COUNT:
        found |= {each.value() for each in consumer.consume(COUNT, 1.0) if each.error() is None}
    consumer.commit(asynchronous=False)
    consumer.close()
    assert found == {b"%d" % number for number in range(COUNT)}


@each_mechanism
def test_kafka_python(bootstrap: str, topic: str, mechanism: str, closed_sockets: None) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    common = {
        "bootstrap_servers": bootstrap.split(","),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**common)
    for number in range(COUNT):
        producer.send(topic, b"%d" % number, partition=number % 3)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **common)
    found = set()
    for record in consumer:
        found.add(record.value)
        if len(found) == COUNT:
            break
    consumer.close()
    assert found == {b"%d" % number for number in range(COUNT)}


@each_mechanism
def test_aiokafka(bootstrap: str, topic: str, mechanism: str) -> None:
    import asyncio

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    common = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }

    async def work() -> set[bytes]:
        async with AIOKafkaProducer(**common) as producer:
            for number in range(COUNT):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 3)
        found: set[bytes] = set()
        async with AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **common) as consumer:
            while len(found) < COUNT:
                found.add((await consumer.getone()).value)
        return found

    assert asyncio.run(asyncio.wait_for(work(), 120)) == {b"%d" % number for number in range(COUNT)}


@each_mechanism
def test_java_tools(bootstrap: str, topic: str, mechanism: str, tmp_path: Any) -> None:
    kafka = apache_kafka()
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    quoted = PASSWORD.replace('"', '\\\\"').replace("ü", "\\u00fc")
    config = tmp_path / "client.properties"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config="
        f'org.apache.kafka.common.security.{module} required username="{USER}" password="{quoted}";\n'
    )
    throughput = ("--throughput", "-1", "--record-size", "10", "--num-records", "300", "--topic", topic)
    servers = ("--producer-props", f"bootstrap.servers={bootstrap}")
    kafka.tool("org.apache.kafka.tools.ProducerPerformance", *throughput, *servers, "--producer.config", str(config))
    reading = ("--bootstrap-server", bootstrap, "--topic", topic, "--messages", "300", "--timeout", "60000")
    said = kafka.tool("org.apache.kafka.tools.ConsumerPerformance", *reading, "--consumer.config", str(config))
    titles, values = (line.split(", ") for line in said.splitlines() if ", " in line)
    assert int(dict(zip(titles, values, strict=True))["data.consumed.in.nMsg"]) == 300


@each_mechanism
def test_without_the_password_nothing_is_read(bootstrap: str, topic: str, mechanism: str) -> None:
    from confluent_kafka.admin import AdminClient as Admin

    errors: list[Any] = []
    wrong = of_librdkafka(bootstrap, mechanism) | {"sasl.password": "wrong", "error_cb": errors.append}
    admin = Admin(wrong, logger=logging.getLogger("quiet"))
    eventually(lambda: admin.poll(0.1) or errors, "the client is told why")
    assert "SASL authentication error: Authentication failed during authentication due to invalid" in str(errors[0])


def test_librdkafka_authenticates_again_before_its_session_ends(
    running: InProcessCluster, bootstrap: str, topic: str
) -> None:
    from confluent_kafka import Producer

    routers = [running.launcher.servers[broker << 16].router for broker in range(3)]

    def set_session(milliseconds: int) -> None:
        with AdminClient(running.address) as admin:
            admin.alter_configs(broker="all", set={"connections.max.reauth.ms": milliseconds})
        eventually(lambda: all(each._sasl.reauth_ms == milliseconds for each in routers), "the brokers know")

    def times_again() -> int:
        """How many connections have authenticated for a third time; a session is a second long."""
        connections = [each for router in routers for each in list(router.server.connections)]
        return sum(each._begun_at - each.opened_at > 1.5 for each in connections)

    set_session(1_000)
    try:
        lost: list[Any] = []
        producer = Producer(of_librdkafka(bootstrap, "SCRAM-SHA-256") | {"error_cb": lost.append})
        sent = 0
        while not times_again():
            producer.produce(topic, b"x", partition=sent % 3)
            sent += 1
            assert producer.flush(60) == 0
    finally:
        set_session(0)
    with AdminClient(running.address) as admin:
        ends = admin.list_offsets({TopicPartition(topic, number): "latest" for number in range(3)})
    assert sum(each.offset for each in ends.values()) == sent, "nothing was sent twice over a broken connection"
    assert not lost, lost
