"""Users and their credentials by Apache Kafka's own tool, that is Java's AdminClient."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from kafka_peer import apache_kafka

from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

CONFIGS = "kafka.admin.ConfigCommand"


def test_kafka_configs_sets_and_deletes_users(running: InProcessCluster, bootstrap: str) -> None:
    kafka = apache_kafka()

    def configs(*arguments: str) -> str:
        printed: str = kafka.tool(
            CONFIGS, "--bootstrap-server", bootstrap, "--entity-type", "users", "--entity-name", "alice", *arguments
        )
        return printed

    both = "SCRAM-SHA-256=[iterations=8192,password=x],SCRAM-SHA-512=[password=x]"
    assert "Completed updating config for user alice" in configs("--alter", "--add-config", both)
    with AdminClient(running.address) as admin:
        (described,) = admin.describe_users()
        assert (described.user, described.iterations) == ("alice", {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096})
        configs("--alter", "--delete-config", "SCRAM-SHA-256")
        assert list(admin.describe_users(["alice"])[0].iterations) == ["SCRAM-SHA-512"]
        with pytest.raises(kafka.PeerError, match="less than the minimum 4096"):
            configs("--alter", "--add-config", "SCRAM-SHA-256=[iterations=4095,password=x]")
        configs("--alter", "--delete-config", "SCRAM-SHA-512")
        assert admin.describe_users() == []


def test_confluent_kafka_sets_describes_and_deletes_users(bootstrap: str) -> None:
    from confluent_kafka import admin

    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 8_192)
    changes = [admin.UserScramCredentialUpsertion("bob", info, b"a secret", b"some salt")]
    client.alter_user_scram_credentials(changes)["bob"].result(30)
    described = client.describe_user_scram_credentials(["bob"])["bob"].result(30)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (admin.ScramMechanism.SCRAM_SHA_512, 8_192)
    ]
    assert list(client.describe_user_scram_credentials().result(30)) == ["bob"]
    gone = [admin.UserScramCredentialDeletion("bob", admin.ScramMechanism.SCRAM_SHA_512)]
    client.alter_user_scram_credentials(gone)["bob"].result(30)
    with pytest.raises(KafkaException, match="does not exist"):
        client.describe_user_scram_credentials(["bob"])["bob"].result(30)
