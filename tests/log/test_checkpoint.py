"""The small files beside a log: replica.checkpoint, partition.metadata, Kafka's checkpoints of a disk."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from raylog.errors import DiskError
from raylog.log import checkpoint as checkpoints
from raylog.log.checkpoint import ReplicaCheckpoint
from raylog.log.partition_metadata import read_topic_id, write_topic_id
from raylog.simulator.simulated_files import SimulatedFiles, WorstLuck

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


@pytest.mark.parametrize("name", ["recovery_point", "high_watermark", "log_start_offset", "cleaner_point"])
def test_a_checkpoint_claims_whatever_offset_it_names(name: str) -> None:
    assert ReplicaCheckpoint().claims_at_most(0)
    named = replace(ReplicaCheckpoint(), **{name: 5})
    assert named.claims_at_most(5) and not named.claims_at_most(4)


def writes_of_checkpoints(machine: Any) -> list[str]:
    """The names of what is written to the disk from now on, where it is a checkpoint."""
    writes: list[str] = []

    def watch(operation: str, path: str) -> None:
        if operation == "replace" and path.endswith(checkpoints.FILE_NAME + ".tmp"):
            writes.append(path)

    machine.disk.fault = watch
    return writes


def test_a_cut_writes_no_checkpoint_where_the_last_one_claims_no_more(machine: Any) -> None:
    log = machine.open()
    for value in (b"a", b"b", b"c"):
        machine.append(value)
    log.high_watermark = 1
    log.checkpoint()
    writes = writes_of_checkpoints(machine)
    log.high_watermark = 2
    log.truncate_to(2)
    assert writes == []
    log.truncate_to(0)
    assert len(writes) == 1
    assert checkpoints.read(machine.files, machine.directory) == log.checkpoint_file.written
    assert log.checkpoint_file.written.high_watermark == 0


def test_a_cut_below_what_a_lost_checkpoint_claimed_is_followed_by_a_flushed_one_before_the_next_segment(
    machine: Any,
) -> None:
    """Nothing that is written after the first cut is flushed: until something is, what was flushed before may come back."""
    log = machine.open()
    for value in (b"a", b"b", b"c"):
        machine.append(value)
    log.flush()
    log.checkpoint(flush=True)
    log.truncate_to(1)
    machine.append(b"d")
    log.truncate_to(1)
    log.high_watermark = 1
    log.checkpoint_in_thread()
    machine.append(b"e")
    log.roll(machine.wall_ms)
    machine.append(b"f")
    machine.disk.lose_power(WorstLuck())
    claimed = checkpoints.read(machine.disk.files(), machine.directory)
    assert claimed is not None and claimed.recovery_point <= 1


def test_a_checkpoint_in_a_thread_says_nothing_once_the_log_is_closed(machine: Any) -> None:
    log = machine.open()
    machine.append(b"a")
    log.close()
    writes = writes_of_checkpoints(machine)
    log.high_watermark = 1
    log.checkpoint_in_thread()
    assert writes == []
