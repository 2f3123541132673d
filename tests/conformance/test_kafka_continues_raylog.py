"""A partition's folder that changes hands: Apache Kafka writes it, raylog goes on in place, Apache Kafka opens it again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kafka_peer import apache_kafka

from raylog.log.config import LogConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.log import Log
from raylog.log.partition_metadata import read_topic_id
from raylog.records import codec
from raylog.records.compression import Compression
from raylog.types import Condition

pytestmark = pytest.mark.conformance

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=1024)


def _open(folder: Path) -> Log:
    topic_id = read_topic_id(DiskFiles(), str(folder))
    assert topic_id is not None
    return Log.open(
        str(folder), files=DiskFiles(), config=CONFIG, topic="shared", partition=0, topic_id=topic_id,
        now_ms=int(time.time() * 1000), boot_id="a boot",
    )  # fmt: skip


def _recovery_point(folder: Path) -> int:
    """The end of the partition's log, as Kafka has written it down for the whole disk."""
    lines = (folder.parent / "recovery-point-offset-checkpoint").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("shared 0 "))


def _transactions(bootstrap: str) -> list[bytes]:
    """One committed, one aborted, one committed; returns the values that count."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(60)
    kept: list[bytes] = []
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        values = [b"transaction %d value %d" % (number, n) for n in range(200)]
        for value in values:
            producer.produce("shared", value)
        producer.flush(60)
        if commits:
            producer.commit_transaction(60)
            kept += values
        else:
            producer.abort_transaction(60)
    return kept


def _consumed(bootstrap: str, count: int) -> list[bytes]:
    """The first ``count`` committed values; what came within a minute if there are not as many."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": "read_committed", "log_level": 0}
    )
    consumer.assign([TopicPartition("shared", 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(1000, 1) if message.error() is None]
    consumer.close()
    return found


def test_apache_kafka_opens_and_continues_a_folder_that_raylog_continued(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    kafka = apache_kafka()
    with kafka.ApacheKafka(brokers=1, folder=tmp_path / "kafka") as peer:
        (broker,) = peer.pids
        peer.create_topic("shared", configs={"segment.bytes": "20000", "index.interval.bytes": "1024"})
        kept = _transactions(peer.bootstrap)
        peer.stop_broker(broker)

        folder = peer.data_folder(broker) / "shared-0"
        aborted = {path.name: path.read_bytes() for path in folder.glob("*.txnindex") if path.stat().st_size}
        assert sum(map(len, aborted.values())) == 34, "Kafka's own entry of one aborted transaction"
        log = _open(folder)
        assert log.condition is Condition.SUSPECT, "Kafka keeps its checkpoints beside the folder, not in it"
        assert log.log_end_offset == _recovery_point(folder) > 600
        (state,) = [state for state in log.producers if state.batches]
        assert state.txn_first_offset is None and state.coordinator_epoch >= 0 and state.last_sequence == 599
        for number in range(200):
            values = [b"raylog %d of %d " % (n, number) * 3 for n in range(5)]
            batch = codec.encode_values(
                values, timestamp_ms=int(time.time() * 1000), compression=list(Compression)[number % 5],
                producer_id=5000, producer_epoch=0, base_sequence=5 * number,
            )  # fmt: skip
            log.append_as_leader(batch, leader_epoch=log.leader_epochs.latest_epoch, wall_ms=int(time.time() * 1000))
            kept += values
        assert len(log.segments) > 2
        assert len(log.transactions.aborted(0, log.log_end_offset)) == 1
        end = log.log_end_offset
        log.close()
        (peer.data_folder(broker) / ".kafka_cleanshutdown").unlink()  # its checkpoints do not know of the new records

        peer.start_broker(broker)
        producer = Producer({"bootstrap.servers": peer.bootstrap, "log_level": 0})
        offsets: list[int] = []
        producer.produce("shared", b"kafka again", on_delivery=lambda error, message: offsets.append(message.offset()))
        assert producer.flush(60) == 0
        kept.append(b"kafka again")
        assert offsets == [end]
        assert _consumed(peer.bootstrap, len(kept)) == kept
        complaints = [
            line for line in peer.log_of(broker).read_text().splitlines() if "shared-0" in line and "orrupt" in line
        ]
        assert complaints == []
        peer.kill(broker)

        log = _open(folder)
        log.check()
        assert {path.name: path.read_bytes() for path in folder.glob("*.txnindex") if path.stat().st_size} == aborted
        assert log.condition is Condition.SUSPECT, "the checkpoint that a clean stop left no longer fits the log"
        assert log.log_end_offset == end + 1 and sorted(state.producer_id for state in log.producers)[-1] == 5000
        log.close()
        text = kafka.dump_log(*sorted(folder.glob("*.log")))
        assert "endTxnMarker: ABORT" in text and "isvalid: false" not in text
