"""Delegation tokens by Apache Kafka's own tool, and its clients that authenticate by one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_peer import apache_kafka
from raw_requests import eventually, isr_is_whole

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.configs.token_configs import SECRET_KEY
from raylog.server.start_configs import set_static
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.listeners import listeners_of
from raylog.wire.sasl import SaslAuthenticator

pytestmark = pytest.mark.conformance

TOOL = "org.apache.kafka.tools.DelegationTokenCommand"
USERS = ("alice", "bob", "carol")
PASSWORD = "a secret"
COUNT = 10


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3, listeners=listeners_of("SASL_PLAINTEXT://127.0.0.1:0")) as found:
        set_static(found.address, {SECRET_KEY: "the key of tokens"}, timeout_s=60)
        with AdminClient(found.address) as admin:
            for user in USERS:
                admin.set_user(user, PASSWORD)
        eventually(lambda: all(_sasl(found, broker).tokens.key for broker in range(3)), "the brokers have the key")
        eventually(lambda: all(len(_sasl(found, broker)._credentials()) == 6 for broker in range(3)), "users")
        yield found


def _sasl(running: InProcessCluster, broker: int) -> SaslAuthenticator:
    found: SaslAuthenticator = running.launcher.servers[broker << 16].router._sasl
    return found


@pytest.fixture
def bootstrap(running: InProcessCluster) -> str:
    return running.bootstrap_servers("SASL_PLAINTEXT")


def properties(folder: Path, user: str, password: str, more: str = "") -> str:
    """A file for Kafka's tools."""
    file = folder / f"{user}.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f'sasl.jaas.config={module} required username="{user}" password="{password}"{more};\n'
    )
    return str(file)


def of_token(folder: Path, token_id: str, mac: str) -> str:
    return properties(folder, token_id, mac, ' tokenauth="true"')


def known(running: InProcessCluster, token_id: str) -> None:
    eventually(
        lambda: all(token_id in _sasl(running, broker).tokens.tokens for broker in range(3)), "the brokers know it"
    )


def new_topic(running: InProcessCluster) -> str:
    name = f"topic-{uuid.uuid4()}"
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic(name, 1, 3)])
    eventually(lambda: isr_is_whole(running, name, 1), "all in sync")
    return name


def test_kafka_delegation_tokens_and_a_java_client_with_one(
    running: InProcessCluster, bootstrap: str, tmp_path: Path
) -> None:
    kafka = apache_kafka()

    def tool(user: str, *arguments: str) -> str:
        config = user if user.endswith(".properties") else properties(tmp_path, user, PASSWORD)
        printed: str = kafka.tool(TOOL, "--bootstrap-server", bootstrap, "--command-config", config, *arguments)
        return printed

    printed = tool("alice", "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    assert "Created delegation token with tokenId :" in printed
    row = printed.strip().splitlines()[-1].split()
    token_id, mac = row[0], row[1]
    assert row[2:5] == ["User:alice", "User:alice", "[User:bob]"], printed
    known(running, token_id)
    assert token_id in tool("bob", "--describe", "--owner-principal", "User:bob"), "a renewer's, too"
    assert token_id not in tool("bob", "--describe", "--owner-principal", "User:carol")
    assert token_id not in tool("alice", "--describe"), (
        "the tool asks for no owner's tokens then; Kafka has none either"
    )
    assert "Completed renew operation" in tool("bob", "--renew", "--renew-time-period", "-1", "--hmac", mac)
    with pytest.raises(kafka.PeerError, match="is not valid Owner/Renewer"):
        tool("carol", "--renew", "--renew-time-period", "-1", "--hmac", mac)
    by_token = of_token(tmp_path, token_id, mac)
    with pytest.raises(kafka.PeerError, match="not allowed"):
        tool(by_token, "--create", "--max-life-time-period", "-1")
    topic = new_topic(running)
    kafka.tool(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(COUNT), "--record-size", "9",
        "--throughput", "-1", "--producer.config", by_token, "--producer-props", f"bootstrap.servers={bootstrap}",
    )  # fmt: skip
    offsets = kafka.tool(
        "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", bootstrap, "--command-config", by_token,
        "--topic", topic,
    )  # fmt: skip
    assert offsets.strip().endswith(f"{topic}:0:{COUNT}")
    assert "Completed expire operation" in tool("bob", "--expire", "--expiry-time-period", "-1", "--hmac", mac)
    with pytest.raises(kafka.PeerError, match="Authentication failed"):
        tool(by_token, "--describe")
