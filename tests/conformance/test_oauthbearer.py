"""Real clients that authenticate by OAUTHBEARER at three brokers: they write, read and commit, and ACLs know them by their names."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from raw_requests import eventually, isr_is_whole
from tokens import Issuer, claims, rsa_key

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster, cluster
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
        routers = [found.launcher.servers[broker << 16].router for broker in range(3)]
        eventually(lambda: all("OAUTHBEARER" in each._sasl.mechanisms for each in routers), "the brokers know")
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


def principals(running: InProcessCluster) -> set[str]:
    routers = [running.launcher.servers[broker << 16].router for broker in range(3)]
    return {each.principal for router in routers for each in list(router.server.connections)}


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
    assert f"User:{user}" in principals(running)
    consumer.close()
    assert found == EXPECTED


def test_with_a_token_of_somebody_else_nothing_is_read(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient as Admin

    errors: list[Any] = []
    forged = of_librdkafka(bootstrap, ISSUER.token(key=rsa_key()))
    admin = Admin(forged | {"error_cb": errors.append}, logger=logging.getLogger("quiet"))
    eventually(lambda: admin.poll(0.1) or errors, "the client is told why")
    assert "invalid_token" in str(errors[0])
