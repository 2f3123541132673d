"""A test broker with TLS, passwords and ACLs, with clients that nobody here wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient as ConfluentAdmin

import raylog
import raylog.testing
from raylog import extras
from raylog.errors import ConfigError, MissingExtraError
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core

USERS = {"alice": "her password", "bob": 'a "quoted"; one'}
PROTOCOLS = ("SASL_SSL", "SASL_PLAINTEXT", "SSL")


def users_of(protocol: str) -> Any:
    return list(USERS) if protocol == "SSL" else USERS


def written(kafka: Kafka, user: str, topic: str = "t", **more: str) -> int | None:
    """The error's code, if there is one."""
    errors: list[KafkaError | None] = []
    producer = Producer(kafka.client_options(user) | {"message.timeout.ms": 20_000} | more)
    producer.produce(topic, user.encode(), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return None if errors[0] is None else errors[0].code()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_confluent_kafka_writes_and_reads_as_a_user(protocol: str) -> None:
    with raylog.testing.broker(topics=["t"], brokers=2, security=protocol, users=users_of(protocol)) as kafka:
        assert written(kafka, "alice") is None and written(kafka, "bob") is None
        options = kafka.client_options("bob")
        consumer = Consumer(options | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found = {message.value() for message in consumer.consume(2, timeout=30)}
        consumer.close()
        assert found == {b"alice", b"bob"}
        handle = raylog.connect(bootstrap_servers=options.pop("bootstrap.servers"), options=options)
        assert len(handle.admin().describe_cluster().brokers) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kafka_python_writes_as_a_user(protocol: str) -> None:
    from kafka import KafkaProducer

    with raylog.testing.broker(topics=["t"], security=protocol, users=users_of(protocol)) as kafka:
        producer = KafkaProducer(**kafka.client_options("alice", client="kafka-python"))
        producer.send("t", b"from kafka-python").get(timeout=30)
        producer.close()
        (record,) = kafka.records("t", count=1)
        assert record.value == b"from kafka-python"


def test_a_wrong_password_and_a_missing_certificate_do_not_get_in() -> None:
    with raylog.testing.broker(security="SASL_PLAINTEXT", users=USERS) as kafka:
        errors: list[str] = []
        wrong = kafka.client_options("alice") | {
            "sasl.password": "wrong",
            "error_cb": lambda error: errors.append(str(error)),
        }
        admin = ConfluentAdmin(wrong)
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3)
        admin.poll(0)
        assert any("invalid credentials" in each for each in errors), errors
    with raylog.testing.broker(security="SSL", users=["alice"]) as kafka:
        nobody = {name: value for name, value in kafka.client_options("alice").items() if "certificate" not in name}
        nobody.pop("ssl.key.location")
        with pytest.raises(KafkaException):
            ConfluentAdmin(nobody).list_topics(timeout=3)
        assert len(ConfluentAdmin(kafka.client_options("alice")).list_topics(timeout=20).brokers) == 1


def test_an_ssl_broker_without_users_takes_anybody_who_trusts_it() -> None:
    with raylog.testing.broker(security="ssl") as kafka:
        options = kafka.client_options()
        assert len(ConfluentAdmin(options).list_topics(timeout=20).brokers) == 1
        folder = Path(options["ssl.ca.location"]).parent
        assert sorted(each.name for each in folder.iterdir()) == ["authority.pem"]
    assert not folder.exists(), "the files are gone"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_an_authorizer_a_user_may_do_what_is_allowed_and_nothing_else(protocol: str) -> None:
    with raylog.testing.broker(
        topics=["t", "team-1"], brokers=2, security=protocol, users=users_of(protocol), authorizer=True
    ) as kafka:
        assert written(kafka, "alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        kafka.allow("alice", "Write", topic="t")
        kafka.allow("bob", "all", topic="team-", prefixed=True)
        assert written(kafka, "alice") is None
        assert written(kafka, "bob") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert written(kafka, "bob", "team-1") is None
        assert [record.value for record in kafka.records("t")] == [b"alice"]


def test_coroutines_have_the_same() -> None:
    async def work() -> None:
        async with raylog.testing.broker(
            topics=["t"], security="SASL_PLAINTEXT", users=USERS, authorizer=True
        ) as kafka:
            await kafka.allow("alice", "Describe", topic="t")
            admin = ConfluentAdmin(kafka.client_options("alice"))
            assert "t" in (await asyncio.to_thread(admin.list_topics, timeout=20)).topics

    asyncio.run(work())


def test_names_alone_get_passwords_and_none_is_shown() -> None:
    with raylog.testing.broker(security="SASL_PLAINTEXT", users=["alice"]) as kafka:
        password = kafka.client_options("alice")["sasl.password"]
        assert len(password) >= 16 and password not in repr(kafka)
        assert password not in repr(kafka._security)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"security": "TLS"}, "choose from PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security": "SASL_SSL"}, "needs users"),
        ({"users": ["alice"]}, "users need security"),
        ({"users": "alice", "security": "SASL_SSL"}, "give names and passwords"),
        ({"users": {"alice": "x"}, "security": "SSL"}, "have certificates and no passwords"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        raylog.testing.broker(**options)


def test_who_asks_for_what_is_not_there_is_told() -> None:
    with raylog.testing.broker(topics=["t"], security="SASL_PLAINTEXT", users=["alice"]) as kafka:
        for call, why in (
            (lambda: kafka.client_options(), "needs a user: alice"),
            (lambda: kafka.client_options("carol"), "no user 'carol'"),
            (lambda: kafka.client_options("alice", client="sarama"), "choose from confluent-kafka, kafka-python"),
            (lambda: kafka.allow("alice", "Fly", topic="t"), "no operation 'Fly'"),
            (lambda: kafka.allow("alice", "Read"), "a topic or a group"),
        ):
            with pytest.raises(ConfigError, match=why):
                call()


def test_tls_without_the_package_for_certificates_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda package: package != "cryptography")
    with pytest.raises(MissingExtraError, match=r"a test broker with SASL_SSL needs cryptography.*raylog\[secure\]"):
        raylog.testing.broker(security="SASL_SSL", users=USERS)
    with raylog.testing.broker(security="SASL_PLAINTEXT", users=USERS) as kafka:
        assert kafka.bootstrap
