"""Real clients at a listener with TLS that requires their certificates: three brokers, topics of three replicas."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from certificates import Authority, settings
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka_peer import apache_kafka
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.conformance

VALUES = [b"value %d" % number for number in range(200)]


class Site:
    """The cluster, and what a client needs."""

    def __init__(self, running: InProcessCluster, authority: Authority) -> None:
        self.running = running
        self.bootstrap = running.bootstrap_servers("SSL")
        self.trusted, self.own = str(authority.certificate), str(authority.signed("alice"))

    def new_topic(self, name: str) -> str:
        with AdminClient(self.running.address) as admin:
            admin.create_topics([NewTopic(name, 3, replication_factor=3)])
        eventually(lambda: isr_is_whole(self.running, name, 3), f"all replicas of {name} in sync")
        return name

    @property
    def context(self) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=self.trusted)
        found.load_cert_chain(self.own)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    configs = settings(authority.signed("broker"), authority.certificate, ssl_client_auth="required")
    listeners = listeners_of("SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", None, configs)
    with cluster(brokers=3, listeners=listeners) as running:
        yield Site(running, authority)


def test_confluent_kafka_writes_and_reads_in_a_group_with_tls(site: Site) -> None:
    topic = site.new_topic("confluent")
    config = {
        "bootstrap.servers": site.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": site.trusted,
        "ssl.certificate.location": site.own,
        "ssl.key.location": site.own,
    }
    producer = Producer(config)
    for number, value in enumerate(VALUES):
        producer.produce(topic, value, partition=number % 3)
    assert producer.flush(60) == 0
    consumer = Consumer(config | {"group.id": "confluent", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found: list[bytes] = []
        eventually(lambda: found.extend(_values(consumer)) or len(found) >= len(VALUES), "all records")
        assert sorted(found) == sorted(VALUES)
    finally:
        consumer.close()


def _values(consumer: Consumer) -> list[bytes]:
    return [bytes(message.value() or b"") for message in consumer.consume(100, 1.0) if message.error() is None]


def test_kafka_python_writes_and_reads_with_tls(site: Site) -> None:
    topic = site.new_topic("kafka-python")
    config = {"bootstrap_servers": site.bootstrap.split(","), "security_protocol": "SSL", "ssl_context": site.context}
    producer = KafkaProducer(**config)
    try:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush(60)
    finally:
        producer.close()
    consumer = KafkaConsumer(topic, **config, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    try:
        assert sorted(record.value for record, _ in zip(consumer, VALUES, strict=False)) == sorted(VALUES)
    finally:
        consumer.close()


def test_aiokafka_writes_and_reads_with_tls(site: Site) -> None:
    topic = site.new_topic("aiokafka")

    async def work() -> list[bytes]:
        config = {"bootstrap_servers": site.bootstrap, "security_protocol": "SSL", "ssl_context": site.context}
        async with AIOKafkaProducer(**config) as producer:
            for value in VALUES:
                await producer.send(topic, value)
        async with AIOKafkaConsumer(topic, **config, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert sorted(asyncio.run(asyncio.wait_for(work(), 120))) == sorted(VALUES)


def test_kafkas_own_tools_write_and_read_with_tls(site: Site, tmp_path: Path) -> None:
    kafka, topic, file = apache_kafka(), site.new_topic("java"), tmp_path / "client.properties"
    stores = settings(Path(site.own), Path(site.trusted))
    file.write_text("".join(f"{name}={value}\n" for name, value in {"security.protocol": "SSL", **stores}.items()))
    lines = "".join(f"line {number}\n" for number in range(200))
    where = ("--bootstrap-server", site.bootstrap, "--topic", topic)
    writing = kafka.java_command("kafka.tools.ConsoleProducer", *where, "--producer.config", str(file))
    done = subprocess.run(writing, input=lines, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    options = ("--from-beginning", "--max-messages", "200", "--timeout-ms", "120000", "--consumer.config", str(file))
    reading = kafka.java_command("org.apache.kafka.tools.consumer.ConsoleConsumer", *where, *options)
    done = subprocess.run(reading, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(lines.splitlines())


def test_who_shows_no_certificate_reaches_nothing(site: Site) -> None:
    async def work() -> None:
        without = ssl.create_default_context(cafile=site.trusted)
        producer = AIOKafkaProducer(bootstrap_servers=site.bootstrap, security_protocol="SSL", ssl_context=without)
        try:
            with pytest.raises(KafkaConnectionError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(work(), 120))
