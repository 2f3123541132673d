"""What Kafka's ``kafka-configs`` sets for all brokers and for one holds at once; an order with one wrong value changes nothing."""

from __future__ import annotations

import pytest
from kafka_peer import apache_kafka
from one_fetch import fetched_bytes
from outside import listener
from raw_requests import eventually

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.testing.in_process import cluster

pytestmark = pytest.mark.conformance

VALUE = bytes(3_000)
EVERYBODY = ("--entity-default",)
ONE = ("--entity-name", "0")


def test_kafka_configs_sets_what_a_broker_goes_by_and_nothing_of_a_wrong_order() -> None:
    kafka = apache_kafka()
    with cluster(brokers=1) as running, AdminClient(running.address) as admin:

        def alter(whom: tuple[str, ...], *order: str) -> None:
            where = ("--bootstrap-server", running.bootstrap_servers(), "--entity-type", "brokers")
            kafka.tool("kafka.admin.ConfigCommand", *where, *whom, "--alter", *order)

        def returns_one_batch() -> bool:
            return len(VALUE) < fetched_bytes(listener(running, 0), "t") < 2 * len(VALUE)

        admin.create_topics([NewTopic("t", 1, 1)])
        with Producer(running.address, linger_ms=0) as producer:
            for _ in range(2):  # two batches
                producer.send("t", VALUE, partition=0).result(60)
        assert not returns_one_batch()
        alter(EVERYBODY, "--add-config", "fetch.max.bytes=4000")
        eventually(returns_one_batch, "a fetch returns what all brokers may")
        with pytest.raises(kafka.PeerError, match=r"InvalidRequestException: log\.retention\.ms=-7: must be at"):
            alter(ONE, "--add-config", "fetch.max.bytes=1000000,log.retention.ms=-7")
        assert admin.describe_configs(broker=0)["fetch.max.bytes"].value == "4000" and returns_one_batch()
        alter(ONE, "--add-config", "fetch.max.bytes=1000000")
        eventually(lambda: not returns_one_batch(), "a fetch returns what this broker may")
        alter(ONE, "--delete-config", "fetch.max.bytes")
        eventually(returns_one_batch, "the value for all brokers holds again")
