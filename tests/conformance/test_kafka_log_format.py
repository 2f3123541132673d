"""The format on disk, judged by Apache Kafka: its dump tool reads what raylog wrote, raylog goes on with what its broker wrote."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka_peer import apache_kafka

from raylog.log.config import LogConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.log import Log
from raylog.log.partition_metadata import read_topic_id
from raylog.records import codec
from raylog.records.batch import batches, stamp
from raylog.records.compression import Compression
from raylog.records.control import Marker, control_batch
from raylog.types import Condition

pytestmark = pytest.mark.conformance

WALL_MS = 1_700_000_000_000
TROUBLE = re.compile(r"mismatch|corrupt|invalid[^:]|isvalid: false|out of order|Exception|Non-monotonic", re.IGNORECASE)


@pytest.fixture(scope="module")
def kafka() -> ModuleType:
    return apache_kafka()


def open_log(folder: Path, topic_id: uuid.UUID, **config: Any) -> Log:
    return Log.open(
        str(folder),
        files=DiskFiles(),
        config=LogConfig(**config),
        topic=folder.name.rpartition("-")[0],
        partition=0,
        topic_id=topic_id,
        now_ms=WALL_MS,
        boot_id="a boot",
    )


def records_of(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Every record as (offset, key, value), read as a consumer would; control batches left out."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for view in batches(log.read(offset, 1 << 20).records):
            if not view.is_control:
                found += [(record.offset, record.key, record.value) for record in codec.decode(view)]
            offset = view.next_offset
    return found


def dumped_offsets(text: str) -> list[int]:
    """The offsets of the records that the dump tool listed."""
    return [int(each) for each in re.findall(r"^\| offset: (\d+)", text, re.MULTILINE)]


def assert_kafka_reads(kafka: ModuleType, folder: Path, offsets: list[int]) -> None:
    """Each segment, index and snapshot in the folder is read without complaint, and the segments hold these offsets."""
    logs = sorted(folder.glob("*.log"))
    text = kafka.dump_log(*logs)
    assert not TROUBLE.search(text), text[:2000]
    assert dumped_offsets(text) == offsets
    others = [each for pattern in ("*.index", "*.timeindex", "*.snapshot") for each in sorted(folder.glob(pattern))]
    assert others
    text = kafka.dump_log(*others, deep=False)
    assert not TROUBLE.search(text), text[:2000]
    assert "producerId: 7" in text or not list(folder.glob("*.snapshot"))


def test_kafkas_dump_tool_reads_every_file_that_raylog_writes(kafka: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "written-0"
    log = open_log(folder, uuid.uuid4(), segment_bytes=64 * 1024, index_interval_bytes=1024)
    sequence = 0
    for number in range(120):
        epoch = number // 40
        records = [
            (WALL_MS + 1000 * number + n, b"key-%d" % n, b"value %d of batch %d " % (n, number) * 5, [("header", b"h")])
            for n in range(number % 17 + 1)
        ]
        batch = codec.encode(
            records,
            compression=list(Compression)[number % 5],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        sequence += len(records)
        log.append_as_leader(batch, leader_epoch=epoch, wall_ms=WALL_MS + 1000 * number)
    plain = codec.encode_values([b"x" * 100] * 400, timestamp_ms=WALL_MS + 200_000)
    for _ in range(5):
        log.append_as_leader(plain, leader_epoch=3, wall_ms=WALL_MS + 200_000)
    expected = [offset for offset, _, _ in records_of(log)]
    assert len(log.segments.all) > 2
    log.close()
    assert_kafka_reads(kafka, folder, expected)


def test_kafkas_dump_tool_reads_control_batches_and_log_append_time(kafka: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "marked-0"
    log = open_log(folder, uuid.uuid4())
    log.append_as_leader(codec.encode_values([b"a", b"b"], timestamp_ms=5), leader_epoch=0, wall_ms=WALL_MS)
    marker = bytearray(
        control_batch(Marker.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp_ms=WALL_MS)
    )
    stamp(marker, log.log_end_offset, 0)
    log.append_as_follower(bytes(marker), wall_ms=WALL_MS)
    log.close()
    text = kafka.dump_log(*sorted(folder.glob("*.log")))
    assert not TROUBLE.search(text), text
    assert "endTxnMarker: COMMIT" in text


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_raylog_goes_on_with_a_folder_that_apache_kafka_wrote(kafka: ModuleType, tmp_path: Path, ending: str) -> None:
    from confluent_kafka import Producer

    sent: dict[int, tuple[bytes | None, bytes]] = {}
    with kafka.ApacheKafka(brokers=1) as peer:
        peer.create_topic("adopted", configs={"segment.bytes": "100000", "index.interval.bytes": "1024"})
        for name in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = Producer(
                {
                    "bootstrap.servers": peer.bootstrap,
                    "enable.idempotence": True,
                    "compression.type": name,
                    "batch.size": 20_000,
                    "log_level": 0,
                }
            )
            for n in range(2_000):
                key, value = b"%d" % n, b"%s value %d " % (name.encode(), n) * 6

                def delivered(error: Any, message: Any, pair: tuple[bytes, bytes] = (key, value)) -> None:
                    assert error is None, error
                    sent[message.offset()] = pair

                producer.produce("adopted", value, key, on_delivery=delivered)
                producer.poll(0)
            assert producer.flush(60) == 0
        broker = next(iter(peer.pids))
        folder = tmp_path / "adopted-0"
        if ending == "killed":
            peer.kill(broker)
            shutil.copytree(peer.data_folder(broker) / "adopted-0", folder)
        else:
            peer.stop_broker(broker)
            shutil.copytree(peer.data_folder(broker) / "adopted-0", folder)
    assert len(sent) == 10_000 and len(list(folder.glob("*.log"))) > 2

    topic_id = read_topic_id(DiskFiles(), str(folder))
    assert topic_id is not None
    log = open_log(folder, topic_id, segment_bytes=100_000)
    assert log.condition is Condition.SUSPECT  # nobody says how complete it is: the controller decides
    assert (log.log_start_offset, log.log_end_offset) == (0, 10_000)
    assert {offset: (key, value) for offset, key, value in records_of(log)} == sent
    found = log.offset_for_timestamp(0)
    assert found is not None and found[1] == 0
    log.trust()
    epoch = log.leader_epochs.latest_epoch + 1
    more = codec.encode_values([b"raylog goes on"] * 3_000, timestamp_ms=WALL_MS)
    assert log.append_as_leader(more, leader_epoch=epoch, wall_ms=WALL_MS).base_offset == 10_000
    expected = [offset for offset, _, _ in records_of(log)]
    log.close()
    again = open_log(folder, topic_id, segment_bytes=100_000)
    assert again.condition is Condition.CLEAN and again.log_end_offset == 13_000
    assert [offset for offset, _, _ in records_of(again)] == expected
    again.close()
    text = kafka.dump_log(*sorted(folder.glob("*.log")))
    assert not TROUBLE.search(text), text[:2000]
    assert dumped_offsets(text) == expected == list(range(13_000))


def test_kafkas_dump_tool_reads_a_log_that_was_compacted(kafka: ModuleType, tmp_path: Path) -> None:
    """Batches of fewer records, empty ones, delete horizons, and their indexes."""
    config = {"compacts": True, "deletes": False, "segment_bytes": 3_000, "index_interval_bytes": 100}
    log = open_log(tmp_path / "compacted-0", uuid.uuid4(), **config)
    for number in range(120):
        pairs = [(b"k%d" % (number % 7), b"v" * 40), (b"k%d" % (number % 5), None if number % 11 == 0 else b"w")]
        batch = codec.encode(
            [(WALL_MS, key, value, ()) for key, value in pairs],
            compression=Compression(number % 5),
            producer_id=7,
            producer_epoch=0,
            base_sequence=2 * number,
        )
        log.append_as_leader(batch, leader_epoch=number // 50, wall_ms=WALL_MS)
    log.high_watermark = log.log_end_offset
    part = log.compaction.cleanable(WALL_MS)
    assert part is not None
    cleaning = log.compaction.begin(part, WALL_MS)
    while cleaning.step() is not None:
        pass
    assert cleaning.report.records_after < 20
    offsets = [offset for offset, _, _ in records_of(log)]
    log.close()
    assert_kafka_reads(kafka, tmp_path / "compacted-0", offsets)
