"""A config of hosts or of their logs, set at the start and changed by IncrementalAlterConfigs, shapes what a running host does.

``tests/ray/test_host_configs.py`` shows the same of processes of their own.
"""

from __future__ import annotations

import pytest
from one_fetch import fetched_bytes
from outside import Client, listener, milliseconds, request
from raw_requests import eventually

import raylog.testing
from raylog.client.sync import AdminClient, Producer
from raylog.types import TopicPartition

pytestmark = pytest.mark.core

VALUE = bytes(3_000)
PARTITION = TopicPartition("t", 0)


def test_a_config_of_hosts_holds_from_the_start_and_changes_while_the_host_runs() -> None:
    with raylog.testing.broker(topics=["t"], configs={"fetch.max.bytes": 4_000}) as kafka:
        for _ in range(2):
            kafka.write("t", VALUE)
        at = listener(kafka._running, 0)
        assert len(VALUE) < fetched_bytes(at, "t") < 2 * len(VALUE)
        with AdminClient(kafka._running.address) as admin:
            admin.alter_configs(broker="all", set={"fetch.max.bytes": "1000000"})
            eventually(lambda: fetched_bytes(at, "t") > 2 * len(VALUE), "a fetch returns both batches")
            admin.alter_configs(broker=0, set={"fetch.max.bytes": "4000"})
            eventually(lambda: fetched_bytes(at, "t") < 2 * len(VALUE), "the broker's own value holds")
            admin.alter_configs(broker=0, delete=["fetch.max.bytes"])
            eventually(lambda: fetched_bytes(at, "t") > 2 * len(VALUE), "the value for all brokers holds again")


def test_a_log_remembers_a_producer_for_as_long_as_is_set_and_forgets_one_when_that_is_shortened() -> None:
    with (
        raylog.testing.broker(topics=["t"], configs={"log.retention.check.interval.ms": 50}) as kafka,
        AdminClient(kafka._running.address) as admin,
    ):

        def remembered() -> int:
            return len(admin.describe_producers([PARTITION])[PARTITION])

        def write() -> None:
            with Producer(kafka._running.address) as producer:
                producer.send("t", b"x").result()

        write()
        assert remembered() == 1
        admin.alter_configs(broker="all", set={"producer.id.expiration.ms": "1"})
        eventually(lambda: remembered() == 0, "the producer is forgotten")
        admin.alter_configs(broker="all", delete=["producer.id.expiration.ms"])
        eventually(lambda: write() or remembered() > 1, "one producer is remembered until another has written")


def test_the_longest_timeout_of_transactions_is_set_at_the_start_and_changes_while_coordinators_run() -> None:
    with (
        raylog.testing.broker(configs={"transaction.max.timeout.ms": 5_000}) as kafka,
        AdminClient(kafka._running.address) as admin,
    ):
        client = Client(kafka._running, 0)

        def error(timeout_ms: int) -> str:
            asked = request(
                22,
                4,
                transactional_id="t",
                transaction_timeout=milliseconds(timeout_ms),
                producer_id=-1,
                producer_epoch=-1,
            )
            return str(client.ask(asked).error_code.name)

        assert client.ask(request(10, 4, key_type=1, coordinator_keys=("t",))).coordinators[0].error_code.value == 0
        assert (error(5_000), error(5_001)) == ("none", "invalid_transaction_timeout")
        admin.alter_configs(broker="all", set={"transaction.max.timeout.ms": "6000"})
        eventually(lambda: error(6_000) == "none", "the longer timeout holds")
        client.close()
