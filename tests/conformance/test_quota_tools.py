"""Client quotas by Apache Kafka's own tool, that is Java's AdminClient."""

from __future__ import annotations

import pytest
from kafka_peer import apache_kafka

from raylog.client.sync import AdminClient
from raylog.testing.in_process import InProcessCluster

pytestmark = pytest.mark.conformance

CONFIGS = "kafka.admin.ConfigCommand"


def test_kafka_configs_alters_and_describes_quotas_of_users_clients_and_ips(
    running: InProcessCluster, bootstrap: str
) -> None:
    kafka = apache_kafka()

    def configs(*arguments: str) -> str:
        return str(kafka.tool(CONFIGS, "--bootstrap-server", bootstrap, *arguments))

    alice, anybody = (
        ("--entity-type", "users", "--entity-name", "alice"),
        ("--entity-type", "users", "--entity-default"),
    )
    app, local = (
        ("--entity-type", "clients", "--entity-name", "app"),
        ("--entity-type", "ips", "--entity-name", "127.0.0.9"),
    )
    configs("--alter", *alice, "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048")
    configs("--alter", *alice, *app, "--add-config", "request_percentage=12.5")
    configs("--alter", *anybody, "--add-config", "controller_mutation_rate=3")
    configs("--alter", *app, "--add-config", "producer_byte_rate=77")
    configs("--alter", *local, "--add-config", "connection_creation_rate=9")
    with AdminClient(running.address) as admin:
        told = {tuple(sorted(each.entity.items())): each.values for each in admin.describe_quotas()}
        assert told == {
            (("user", "alice"),): {"producer_byte_rate": 1024.0, "consumer_byte_rate": 2048.0},
            (("client-id", "app"), ("user", "alice")): {"request_percentage": 12.5},
            (("user", None),): {"controller_mutation_rate": 3.0},
            (("client-id", "app"),): {"producer_byte_rate": 77.0},
            (("ip", "127.0.0.9"),): {"connection_creation_rate": 9.0},
        }
        printed = configs("--describe", *alice)
        assert "Quota configs for user-principal 'alice' are " in printed
        assert "producer_byte_rate=1024.0" in printed and "consumer_byte_rate=2048.0" in printed
        assert "request_percentage=12.5" in configs("--describe", *alice, *app)
        assert "controller_mutation_rate=3.0" in configs("--describe", "--entity-type", "users")
        assert "producer_byte_rate=77.0" in configs("--describe", "--entity-type", "clients")
        assert "connection_creation_rate=9.0" in configs("--describe", *local)
        with pytest.raises(kafka.PeerError, match="connection_creation_rate"):
            configs("--alter", *alice, "--add-config", "connection_creation_rate=9")
        configs("--alter", *alice, "--delete-config", "producer_byte_rate,consumer_byte_rate")
        configs("--alter", *alice, *app, "--delete-config", "request_percentage")
        configs("--alter", *anybody, "--delete-config", "controller_mutation_rate")
        configs("--alter", *app, "--delete-config", "producer_byte_rate")
        configs("--alter", *local, "--delete-config", "connection_creation_rate")
        assert admin.describe_quotas() == []
