"""What the checkers make of a log that bit rot has struck: records that are hidden are not missing, and missing ones are not hidden."""

from __future__ import annotations

import uuid

import pytest

from raylog.log.config import LogConfig
from raylog.log.log import Log
from raylog.records.batch import BatchView, batches
from raylog.records.codec import encode_values
from raylog.simulator.checkers import Checkers, ReplicaMemory, Violation
from raylog.simulator.simulated_files import DamagedBytes, SimulatedDisk
from raylog.types import TopicIdPartition

ID = TopicIdPartition(uuid.UUID(int=1), 0)
PATH = f"/disk/t-0/{0:020d}.log"


def log_of_three_batches() -> tuple[SimulatedDisk, Log]:
    disk = SimulatedDisk()
    files = disk.files()
    files.make_directory("/disk")
    log = Log.open(
        "/disk/t-0",
        files=files,
        config=LogConfig(segment_index_bytes=4096),
        topic="t",
        partition=0,
        topic_id=ID.topic_id,
        now_ms=1_000,
        boot_id="boot",
    )
    for _ in range(3):
        log.append_as_leader(encode_values([b"x" * 100], timestamp_ms=1_000), leader_epoch=5, wall_ms=1_000)
    log.high_watermark = log.log_end_offset
    return disk, log


def flip(disk: SimulatedDisk, log: Log) -> DamagedBytes:
    """A bit of the second batch."""
    place = log.segments.active.locate(1)
    assert place is not None
    position, _, size = place
    before = bytes(disk.inode(PATH).cached[position : position + size])
    disk.flip_bit(PATH, position + 80)
    after = bytes(disk.inode(PATH).cached[position : position + size])
    return DamagedBytes(PATH, position, 1, before, after)


def lead(checkers: Checkers, log: Log) -> None:
    """The log's replica leads since an unclean election."""
    checkers.decided(ID, "t", leader=2, leader_incarnation=7, leader_epoch=5, partition_epoch=9, unclean_elections=1)
    checkers.replica(
        ReplicaMemory(),
        ID,
        "t",
        log,
        broker=2,
        incarnation=7,
        is_leader=True,
        leader_epoch=5,
        partition_epoch=9,
    )


def test_what_damage_hides_in_the_log_of_an_unclean_leader_belongs_to_its_history() -> None:
    disk, log = log_of_three_batches()
    damaged = flip(disk, log)
    disk.damaged.append(damaged)
    checkers = Checkers(lambda: 1_000)
    lead(checkers, log)
    known = checkers.history(ID).batches
    assert sorted(known) == [0, 1, 2]
    assert known[1].crc == BatchView(damaged.before).crc


def test_a_gap_that_no_known_damage_explains_is_a_violation() -> None:
    disk, log = log_of_three_batches()
    flip(disk, log)
    with pytest.raises(Violation, match="a gap, 2 follows 1"):
        lead(Checkers(lambda: 1_000), log)


def test_a_batch_that_straddles_the_start_of_an_unclean_leaders_log_belongs_to_its_history() -> None:
    _, log = log_of_three_batches()
    log.append_as_leader(encode_values([b"a", b"b", b"c"], timestamp_ms=1_000), leader_epoch=5, wall_ms=1_000)
    log.high_watermark = log.log_end_offset
    log.advance_log_start(4)  # in the midst of the batch at 3
    checkers = Checkers(lambda: 1_000)
    checkers.deleting(ID, 4)
    lead(checkers, log)
    history = checkers.history(ID)
    assert (history.start, history.end, sorted(history.batches)) == (3, 6, [3])
    checkers.consumed(ID, 1, list(batches(log.read(4, 1 << 20).records)))
