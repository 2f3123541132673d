"""Real clients that authenticate by OAUTHBEARER at three brokers with ACLs: each writes, reads and commits as its token's user."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authorized import set_configs
from kafka_peer import apache_kafka
from raw_requests import eventually, isr_is_whole
from tokens import Issuer, claims, rsa_key

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.security.acl import AclBinding
from raylog.security.permissions import Operation, PatternType, PermissionType, Resource
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import TopicPartition
from raylog.wire.listeners import listeners_of

pytestmark = pytest.mark.conformance

ISSUER = Issuer()
RAY_TOKEN = "0f" * 32
COUNT = 30
EXPECTED = {b"%d" % number for number in range(COUNT)}
SETTINGS = {
    "listener.security.protocol.map": "SIGNED:SASL_PLAINTEXT,UNSECURED:SASL_PLAINTEXT",
    "sasl.oauthbearer.expected.audience": "raylog",
    "listener.name.unsecured.sasl.oauthbearer.expected.audience": "",
    "listener.name.unsecured.sasl.oauthbearer.unsecured.jwt.enable": "true",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    url = ISSUER.write(tmp_path_factory.mktemp("issuer") / "jwks.json")
    settings = {**SETTINGS, "listener.name.signed.sasl.oauthbearer.jwks.endpoint.url": url}
    listeners = listeners_of("SIGNED://127.0.0.1:0,UNSECURED://127.0.0.1:0", None, settings)
    with cluster(brokers=3, listeners=listeners, ray_token=RAY_TOKEN) as found:
        with AdminClient(found.address) as admin:
            admin.alter_configs(broker="all", set={"sasl.enabled.mechanisms": "OAUTHBEARER"})
        set_configs(found)
        routers = [found.launcher.servers[broker << 16].router for broker in range(3)]
        eventually(
            lambda: all("OAUTHBEARER" in each._sasl.mechanisms and each._guard.is_on for each in routers),
            "the brokers know",
        )
        yield found


@pytest.fixture
def bootstrap(running: InProcessCluster) -> str:
    return running.bootstrap_servers("SIGNED")


@pytest.fixture
def topic(running: InProcessCluster) -> str:
    name = f"topic-{uuid.uuid4()}"
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, 3, 3)])
    eventually(lambda: isr_is_whole(running, name, 3), "all in sync")
    return name


def grant(running: InProcessCluster, user: str, topic: str) -> None:
    """That user, and nobody else, may write to the topic, read it and join the group of its name."""
    made = [
        AclBinding(resource, topic, PatternType.LITERAL, f"User:{user}", "*", operation, PermissionType.ALLOW)
        for resource, operation in (
            (Resource.TOPIC, Operation.WRITE),
            (Resource.TOPIC, Operation.READ),
            (Resource.GROUP, Operation.READ),
        )
    ]
    with AdminClient(running.address) as admin:
        admin.create_acls(made)
    brokers = [running.launcher.servers[broker << 16] for broker in range(3)]
    eventually(lambda: all(each.image.acls.ids.keys() >= set(made) for each in brokers), "all brokers know the ACLs")


def of_librdkafka(bootstrap: str, token: str, **more: Any) -> dict[str, Any]:
    def show(_: str) -> tuple[str, float]:
        import time

        return token, time.time() + 3_600

    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": show,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize("user", ["alice", "ray"])
def test_confluent_kafka(running: InProcessCluster, bootstrap: str, topic: str, user: str) -> None:
    from confluent_kafka import Consumer, Producer

    grant(running, user, topic)
    token = RAY_TOKEN if user == "ray" else ISSUER.token(claims(user))
    producer = Producer(of_librdkafka(bootstrap, token))
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0
    consumer = Consumer(of_librdkafka(bootstrap, token, group_id=topic, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    found: set[bytes] = set()
    while len(found) < COUNT:
        found |= {each.value() for each in consumer.consume(COUNT, 1.0) if each.error() is None}
    consumer.commit(asynchronous=False)
    consumer.close()
    assert found == EXPECTED


def test_kafka_python(running: InProcessCluster, bootstrap: str, topic: str, closed_sockets: None) -> None:
    grant(running, "bob", topic)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Shown(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return ISSUER.token(claims("bob"))

        def extensions(self) -> dict[str, str]:
            return {"logicalCluster": "lkc-1"}

    common = {
        "bootstrap_servers": bootstrap.split(","),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Shown(),
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
    assert found == EXPECTED


def test_aiokafka(running: InProcessCluster, bootstrap: str, topic: str) -> None:
    grant(running, "carol", topic)
    import asyncio

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Shown(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return ISSUER.token(claims("carol"), "ES256")

    common = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Shown(),
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

    assert asyncio.run(asyncio.wait_for(work(), 120)) == EXPECTED


JAVA = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def by_java_tools(kafka: Any, bootstrap: str, topic: str, config: Path, version: str) -> None:
    throughput = ("--throughput", "-1", "--record-size", "10", "--num-records", "300", "--topic", topic)
    writing = (*throughput, "--producer-props", f"bootstrap.servers={bootstrap}", "--producer.config", str(config))
    kafka.tool("org.apache.kafka.tools.ProducerPerformance", *writing, version=version)
    where = ("--bootstrap-server", bootstrap, "--topic", topic, "--group", topic)
    reading = (*where, "--messages", "300", "--timeout", "60000", "--consumer.config", str(config))
    said = kafka.tool("org.apache.kafka.tools.ConsumerPerformance", *reading, version=version)
    titles, values = (line.split(", ") for line in said.splitlines() if line.count(", ") > 5)
    assert int(dict(zip(titles, values, strict=True))["data.consumed.in.nMsg"]) == 300


@pytest.mark.parametrize("is_latest", [False, True], ids=["3.9", "4.3"])
def test_java_tools_with_a_token_in_a_file(
    running: InProcessCluster,
    bootstrap: str,
    topic: str,
    tmp_path: Path,
    is_latest: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grant(running, "dora", topic)
    kafka, file = apache_kafka(), tmp_path / "token.jwt"
    file.write_text(ISSUER.token(claims("dora")))
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{allowed}.urls={file.as_uri()} {allowed}.files={file}")
    package = "org.apache.kafka.common.security.oauthbearer" + ("" if is_latest else ".secured")
    config = tmp_path / "client.properties"
    config.write_text(
        f"{JAVA}sasl.jaas.config={MODULE} ;\n"
        f"sasl.oauthbearer.token.endpoint.url={file.as_uri()}\n"
        f"sasl.login.callback.handler.class={package}.OAuthBearerLoginCallbackHandler\n"
    )
    by_java_tools(kafka, bootstrap, topic, config, kafka.LATEST if is_latest else kafka.VERSION)


def test_java_tools_with_a_token_that_nobody_has_signed(running: InProcessCluster, topic: str, tmp_path: Path) -> None:
    grant(running, "eve", topic)
    kafka, config = apache_kafka(), tmp_path / "client.properties"
    config.write_text(f'{JAVA}sasl.jaas.config={MODULE} unsecuredLoginStringClaim_sub="eve";\n')
    by_java_tools(kafka, running.bootstrap_servers("UNSECURED"), topic, config, kafka.VERSION)


def test_librdkafka_shows_a_new_token_before_its_session_ends(
    running: InProcessCluster, bootstrap: str, topic: str
) -> None:
    from confluent_kafka import Producer

    grant(running, "frank", topic)
    shown: list[float] = []

    def show(_: str) -> tuple[str, float]:
        import time

        shown.append(time.time() + 5)
        return ISSUER.token(claims("frank", exp=shown[-1])), shown[-1]

    def are_renewed() -> bool:
        """A session is at most 5 s long."""
        routers = [running.launcher.servers[broker << 16].router for broker in range(3)]
        connections = [each for router in routers for each in list(router.server.connections)]
        return any(each.principal == "User:frank" and each._begun_at - each.opened_at > 6 for each in connections)

    lost: list[Any] = []
    producer = Producer(of_librdkafka(bootstrap, "") | {"oauth_cb": show, "error_cb": lost.append})
    sent = 0
    while not are_renewed():
        producer.produce(topic, b"x", partition=sent % 3)
        sent += 1
        assert producer.flush(60) == 0
    with AdminClient(running.address) as admin:
        ends = admin.list_offsets({TopicPartition(topic, number): "latest" for number in range(3)})
    assert sum(each.offset for each in ends.values()) == sent, "nothing was sent twice over a broken connection"
    assert not lost and len(shown) > 1, lost


def test_a_user_without_an_acl_is_denied_what_its_token_does_not_give(
    running: InProcessCluster, bootstrap: str, topic: str
) -> None:
    from confluent_kafka import KafkaError, Producer

    grant(running, "alice", topic)
    told: list[Any] = []
    producer = Producer(of_librdkafka(bootstrap, ISSUER.token(claims("mallory")), message_timeout_ms=20_000))
    producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
    producer.flush(30)
    assert told[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_with_a_token_of_somebody_else_nothing_is_read(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient as Admin

    errors: list[Any] = []
    forged = of_librdkafka(bootstrap, ISSUER.token(key=rsa_key()))
    admin = Admin(forged | {"error_cb": errors.append}, logger=logging.getLogger("quiet"))
    eventually(lambda: admin.poll(0.1) or errors, "the client is told why")
    assert "invalid_token" in str(errors[0])
