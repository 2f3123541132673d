"""The small files beside a log: replica.checkpoint, partition.metadata, Kafka's checkpoints of a disk."""

from __future__ import annotations

import uuid

import pytest

from raylog.errors import DiskError
from raylog.log import checkpoint as checkpoints
from raylog.log.checkpoint import ReplicaCheckpoint
from raylog.log.partition_metadata import read_topic_id, write_topic_id
from raylog.testing.simulated_files import SimulatedFiles

CHECKPOINT = ReplicaCheckpoint(
    recovery_point=5,
    high_watermark=4,
    log_start_offset=3,
    cleaner_point=2,
    boot_id="b-1",
    flushed_always=True,
    clean=True,
)


@pytest.fixture
def files() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_directory("/d/t-0")
    return files


def test_a_checkpoint_reads_back(files: SimulatedFiles) -> None:
    assert checkpoints.read(files, "/d/t-0") is None
    checkpoints.write(files, "/d/t-0", CHECKPOINT, flush=True)
    assert checkpoints.read(files, "/d/t-0") == CHECKPOINT
    assert checkpoints.encode(CHECKPOINT).startswith(b"raylog-replica-checkpoint 1\nrecovery_point 5\n")


def test_every_damaged_byte_of_a_checkpoint_is_noticed(files: SimulatedFiles) -> None:
    data = checkpoints.encode(CHECKPOINT)
    for position in range(len(data) - 1):
        damaged = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(ValueError):
            checkpoints.decode(damaged)
    for length in range(len(data) - 1):
        with pytest.raises(ValueError):
            checkpoints.decode(data[:length])


def test_partition_metadata_is_kafkas(files: SimulatedFiles) -> None:
    assert read_topic_id(files, "/d/t-0") is None
    topic_id = uuid.UUID("8a21e81f-7d5c-4c26-9bd6-f0f0b1d09c3f")
    write_topic_id(files, "/d/t-0", topic_id)
    assert files.read_file("/d/t-0/partition.metadata") == b"version: 0\ntopic_id: iiHoH31cTCab1vDwsdCcPw\n"
    assert read_topic_id(files, "/d/t-0") == topic_id
    files.write_file("/d/t-0/partition.metadata", b"version: 0\ntopic_id: short\n")
    with pytest.raises(DiskError, match="damaged"):
        read_topic_id(files, "/d/t-0")


def test_kafkas_checkpoints_of_a_disk_are_read_for_one_partition(files: SimulatedFiles) -> None:
    assert checkpoints.read_kafka_checkpoints(files, "/d/my-topic-0") == ReplicaCheckpoint()
    files.write_file("/d/recovery-point-offset-checkpoint", b"0\n2\nmy-topic 1 11\nmy-topic 0 7\n")
    files.write_file("/d/replication-offset-checkpoint", b"0\n1\nmy-topic 0 6\n")
    files.write_file("/d/log-start-offset-checkpoint", b"0\n1\nmy-topic 0 2\n")
    files.write_file("/d/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":5}')
    assert checkpoints.read_kafka_checkpoints(files, "/d/my-topic-0") == ReplicaCheckpoint(
        recovery_point=7, high_watermark=6, log_start_offset=2, clean=True
    )
