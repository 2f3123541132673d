"""Apache Kafka's tools beside transactions: one that nobody ends any more is ended, and what is in the log is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_peer import apache_kafka
from outside import Client, request
from raw_requests import eventually
from transactional_folders import COMMITTED, STABLE_END, TOPIC, cluster_over_transactions

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Consumer
from raylog.kafka import table
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.replication.transaction_events import TransactionVerified, VerifyTransaction
from raylog.server.transaction_links import TransactionLinks
from raylog.testing.in_process import cluster
from raylog.types import TopicPartition

pytestmark = pytest.mark.conformance

TRANSACTIONS, DUMP_LOG = "org.apache.kafka.tools.TransactionsCommand", "kafka.tools.DumpLogSegments"
T0 = TopicPartition(TOPIC, 0)


def test_kafka_transactions_aborts_a_hanging_transaction(tmp_path: Path) -> None:
    """With DescribeProducers and WriteTxnMarkers: the one that was open when Kafka stopped."""
    kafka = apache_kafka()
    with cluster_over_transactions(tmp_path) as running:
        where = ("--topic", TOPIC, "--partition", "0", "--start-offset", str(STABLE_END))
        kafka.tool(TRANSACTIONS, "--bootstrap-server", running.bootstrap_servers(), "abort", *where)
        options = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        with Consumer(running.address, options) as consumer, AdminClient(running.address) as admin:
            found: list[bytes] = []
            consumer.assign([T0])

            def is_over() -> bool:
                found.extend(bytes(record.value or b"") for record in consumer.consume(timeout=0.1))
                return consumer.position(T0) >= STABLE_END + 3  # the undecided record, one behind it, the marker

            eventually(is_over, "nothing is undecided")
            assert found == [*COMMITTED, b"behind"]
            producers = admin.describe_producers([T0])[T0]
            assert all(each.transaction_start_offset is None for each in producers)


def test_kafkas_dump_log_reads_offsets_of_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def agree(links: TransactionLinks, order: VerifyTransaction) -> None:
        links._on_event(TransactionVerified(order.question, 0))

    monkeypatch.setattr(TransactionLinks, "ask", agree)  # in the coordinator's place
    number = partition_for("g")
    with cluster(brokers=1, folder=tmp_path) as running, AdminClient(running.address) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
        client = Client(running, 0)
        client.ask(request(table.FIND_COORDINATOR.key, 4, key_type=0, coordinator_keys=("g",)))
        body = request(
            table.TXN_OFFSET_COMMIT.key,
            5,
            transactional_id="x",
            group_id="g",
            producer_id=77,
            producer_epoch=3,
            topics=lambda module: (
                module.TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=(
                        module.TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=42, committed_metadata="m"
                        ),
                    ),
                ),
            ),
        )
        client.ask(body)
        body = request(
            table.WRITE_TXN_MARKERS.key,
            2,
            markers=lambda module: (
                module.WritableTxnMarker(
                    producer_id=77,
                    producer_epoch=4,
                    transaction_result=True,
                    coordinator_epoch=5,
                    transaction_version=2,
                    topics=(module.WritableTxnMarkerTopic(name=OFFSETS_TOPIC, partition_indexes=(number,)),),
                ),
            ),
        )
        assert client.ask(body).markers[0].topics[0].partitions[0].error_code == 0
        client.close()
    (log,) = tmp_path.glob(f"**/{OFFSETS_TOPIC}-{number}/{0:020d}.log")
    printed = apache_kafka().tool(DUMP_LOG, "--files", str(log), "--offsets-decoder", "--print-data-log")
    batches = [line for line in printed.splitlines() if line.startswith("baseOffset")]
    assert "producerId: 77 producerEpoch: 3" in batches[0] and "isTransactional: true isControl: false" in batches[0]
    assert "producerId: 77 producerEpoch: 4" in batches[1] and "isControl: true" in batches[1]
    assert '"group":"g"' in printed and '"offset":42' in printed
    assert "endTxnMarker: COMMIT coordinatorEpoch: 5" in printed
