"""What a leader takes, refuses and changes; when a log rolls; what a follower takes."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error
from raylog.log.config import NEVER, LogConfig
from raylog.log.log import Log
from raylog.records.batch import BatchView, TimestampType, batches, set_log_append_time, stamped_header
from raylog.records.codec import decode, encode, encode_values
from raylog.records.compression import Compression

HEADER_FIELDS = {"record_count": (57, 4), "last_offset_delta": (23, 4)}


def _refused(machine: Any, code: ErrorCode, batch: bytes, match: str = "t-0") -> None:
    end, size = machine.log.log_end_offset, machine.log.size_bytes
    with pytest.raises(kafka_error(code), match=match):
        machine.log.append_as_leader(batch, leader_epoch=0, wall_ms=machine.wall_ms)
    assert (machine.log.log_end_offset, machine.log.size_bytes) == (end, size)
    machine.log.check()


def _with_valid_crc(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def test_appended_bytes_differ_from_the_producers_only_in_the_stamp(machine: Any) -> None:
    log = machine.open()
    machine.append(b"a", b"b")
    batch = encode_values([b"c", b"d", b"e"], timestamp_ms=5, compression=Compression.NONE)
    result = log.append_as_leader(batch, leader_epoch=4, wall_ms=9)
    assert (result.base_offset, result.last_offset, result.log_append_time_ms) == (2, 4, -1)
    stored = bytes(log.read(2, 1 << 20).records)
    assert stored[16:] == batch[16:] and stored[:16] == stamped_header(BatchView(batch), 2, 4)
    assert log.leader_epochs.entries == ((0, 0), (4, 2))


def test_several_batches_are_appended_together_or_not_at_all(machine: Any) -> None:
    log = machine.open()
    good, bad = encode_values([b"a"] * 3, timestamp_ms=1), bytearray(encode_values([b"b"], timestamp_ms=1))
    bad[-1] ^= 1
    _refused(machine, ErrorCode.corrupt_message, good + bytes(bad), "CRC")
    assert log.append_as_leader(good + good, leader_epoch=0, wall_ms=1).last_offset == 5
    assert [view.base_offset for view in batches(log.read(0, 1 << 20).records)] == [0, 3]


def test_damaged_batches_are_refused(machine: Any) -> None:
    machine.open()
    batch = encode_values([b"a"], timestamp_ms=1)
    _refused(machine, ErrorCode.corrupt_message, batch[:-1], "byte 0")
    _refused(machine, ErrorCode.corrupt_message, batch[:30], "byte 0")
    _refused(machine, ErrorCode.corrupt_message, batch + b"\x00" * 5, "byte")
    _refused(machine, ErrorCode.invalid_record, batch[:16] + b"\x01" + batch[17:], "format 1")
    _refused(machine, ErrorCode.invalid_record, b"", "no record batch")


@pytest.mark.parametrize(("field", "value"), [("record_count", 0), ("record_count", 3), ("last_offset_delta", -1)])
def test_a_header_whose_counts_disagree_is_refused(machine: Any, field: str, value: int) -> None:
    machine.open()
    batch = bytearray(encode_values([b"a", b"b"], timestamp_ms=1))
    position, size = HEADER_FIELDS[field]
    batch[position : position + size] = value.to_bytes(size, "big", signed=True)
    _refused(machine, ErrorCode.invalid_record, _with_valid_crc(batch))


def test_a_batch_above_max_message_bytes_is_refused(machine: Any) -> None:
    machine.open(max_message_bytes=1000)
    batch = encode_values([b"x" * 900], timestamp_ms=1)
    machine.log.append_as_leader(batch + batch, leader_epoch=0, wall_ms=1)  # the limit is each batch's
    _refused(
        machine, ErrorCode.message_too_large, encode_values([b"x" * 1000], timestamp_ms=1), "max.message.bytes is 1000"
    )


def test_more_than_a_segment_at_once_is_refused(machine: Any) -> None:
    machine.open(segment_bytes=1000)
    _refused(
        machine, ErrorCode.record_list_too_large, encode_values([b"x" * 1000], timestamp_ms=1), "segment.bytes is 1000"
    )


def test_an_unknown_codec_is_refused(machine: Any) -> None:
    machine.open()
    batch = bytearray(encode_values([b"a"], timestamp_ms=1))
    batch[22] |= 5
    _refused(machine, ErrorCode.unsupported_compression_type, _with_valid_crc(batch))


def test_a_producer_id_needs_epoch_and_sequence(machine: Any) -> None:
    machine.open()
    _refused(machine, ErrorCode.invalid_record, encode_values([b"a"], timestamp_ms=1, producer_id=3, producer_epoch=0))
    _refused(machine, ErrorCode.invalid_record, encode_values([b"a"], timestamp_ms=1, is_transactional=True))


def test_a_transactional_batch_of_no_transaction_is_refused(machine: Any) -> None:
    """Nobody would ever end it, so it would hold back the last stable offset and compaction for good."""
    machine.open()
    batch = encode_values(
        [b"a"], timestamp_ms=1, producer_id=3, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    _refused(machine, ErrorCode.invalid_txn_state, batch, "no transaction of epoch 0 open here")
    assert machine.log.stable_end_offset == machine.log.high_watermark and machine.log.producers.get(3) is None


def test_a_compacted_topic_takes_no_record_without_a_key(machine: Any) -> None:
    machine.open(compacts=True)
    keyed, keyless = (1, b"k", b"v", ()), (1, None, b"v", ())
    for codec in Compression:
        _refused(machine, ErrorCode.invalid_record, encode([keyed, keyless], compression=codec), "without a key")
        machine.log.append_as_leader(encode([keyed], compression=codec), leader_epoch=0, wall_ms=1)


def test_timestamps_outside_the_bounds_are_refused(machine: Any) -> None:
    machine.wall_ms = 10_000
    machine.open(timestamp_before_max_ms=1000, timestamp_after_max_ms=500)
    for timestamp in (8_999, 10_501):
        _refused(machine, ErrorCode.invalid_timestamp, encode_values([b"a"], timestamp_ms=timestamp), str(timestamp))
    for timestamp in (9_000, 10_500):
        machine.append(b"a", timestamp_ms=timestamp)
    hidden = encode([(9_500, None, b"a", ()), (8_000, None, b"b", ()), (9_900, None, b"c", ())])
    _refused(machine, ErrorCode.invalid_timestamp, hidden, "8000")


def test_log_append_time_replaces_every_timestamp(machine: Any) -> None:
    log = machine.open(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_after_max_ms=1)
    batch = encode([(5, None, b"a", ()), (9_999_999_999, None, b"b", ())])
    result = log.append_as_leader(batch, leader_epoch=0, wall_ms=777)
    assert result.log_append_time_ms == 777
    (view,) = batches(log.read(0, 1 << 20).records)
    assert view.has_valid_crc() and view.timestamp_type == 1
    assert [record.timestamp for record in decode(view)] == [777, 777]
    assert bytes(batch) == batch, "the request's buffer is left alone"


def test_a_producer_may_not_claim_log_append_time(machine: Any) -> None:
    machine.open()
    batch = bytearray(encode_values([b"a"], timestamp_ms=1))
    set_log_append_time(batch, 5)
    _refused(machine, ErrorCode.invalid_timestamp, bytes(batch), "LogAppendTime")


@pytest.mark.parametrize(
    "target", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
)
def test_compression_type_recompresses_and_producer_keeps(machine: Any, target: Compression) -> None:
    log = machine.open(compression=target)
    values = [b"abc" * 50] * 20
    for codec in Compression:
        log.append_as_leader(encode_values(values, timestamp_ms=1, compression=codec), leader_epoch=0, wall_ms=1)
    stored = list(batches(log.read(0, 1 << 20).records))
    assert [view.compression for view in stored] == [target] * 5 and all(view.has_valid_crc() for view in stored)
    assert [[record.value for record in decode(view)] for view in stored] == [values] * 5
    assert [view.base_offset for view in stored] == [0, 20, 40, 60, 80]
    log = machine.reopen(compression=None)
    log.append_as_leader(encode_values(values, timestamp_ms=1, compression=Compression.GZIP), leader_epoch=0, wall_ms=1)
    assert next(batches(log.read(100, 1 << 20).records)).compression == Compression.GZIP


# ------------------------------------------------------------------ rolling


def test_the_log_rolls_before_a_segment_outgrows_its_size(machine: Any) -> None:
    size = len(encode_values([b"x" * 100], timestamp_ms=1))
    log = machine.open(segment_bytes=3 * size)
    for _ in range(7):
        machine.append(b"x" * 100)
    assert log.segments.base_offsets == [0, 3, 6]
    assert [segment.size for segment in log.segments] == [3 * size, 3 * size, size]
    log.check()


def test_the_log_rolls_by_the_age_of_the_segments_first_batch(machine: Any) -> None:
    log = machine.open(segment_ms=1000)
    for timestamp in (5000, 5400, 6000, 6001, 6500):
        machine.append(b"x", timestamp_ms=timestamp)
    assert log.segments.base_offsets == [0, 3], (
        "6,001 is more than 1,000 ms after 5,000; late records do not count backwards"
    )
    machine.append(b"late", timestamp_ms=1)
    assert log.segments.base_offsets == [0, 3]
    log = machine.reopen()
    machine.append(b"x", timestamp_ms=7002)
    assert log.segments.base_offsets == [0, 3, 6], "the first timestamp is read again after a restart"


def test_the_wall_clock_decides_where_records_have_no_timestamps(machine: Any) -> None:
    log = machine.open(segment_ms=1000)
    machine.append(b"x", timestamp_ms=-1)
    machine.wall_ms += 1000
    machine.append(b"x", timestamp_ms=-1)
    machine.wall_ms += 1
    machine.append(b"x", timestamp_ms=-1)
    assert log.segments.base_offsets == [0, 2]


def test_jitter_shortens_the_roll_time_by_what_was_drawn(machine: Any) -> None:
    machine.open().close()
    drawn: list[int] = []

    def draw(bound: int) -> int:
        drawn.append(bound)
        return 300

    config = LogConfig(segment_ms=1000, segment_jitter_ms=400, segment_index_bytes=4096)
    log = Log.open(
        machine.directory, files=machine.files, config=config, topic="t", partition=0, topic_id=machine.log.topic_id,
        now_ms=0, boot_id="b", roll_jitter=draw,
    )  # fmt: skip
    machine.log = log
    for timestamp in (0, 700, 701):
        machine.append(b"x", timestamp_ms=timestamp)
    assert log.segments.base_offsets == [0, 2] and drawn == [400, 400]


def test_a_full_index_rolls(machine: Any) -> None:
    log = machine.open(segment_index_bytes=24, index_interval_bytes=100)
    for number in range(6):
        machine.append(b"x" * 100, timestamp_ms=number)
    assert len(log.segments.base_offsets) > 2
    machine.recover()
    assert machine.log.log_end_offset == 6


# ------------------------------------------------------------------ followers


def test_a_follower_keeps_offsets_epochs_and_bytes(machine: Any) -> None:
    leader = machine.open()
    for epoch in (0, 0, 3):
        machine.append(b"a", b"b", leader_epoch=epoch)
    sent = bytes(leader.read(0, 1 << 20).records)
    follower = type(machine)(directory="/disk/f-0").open()
    result = follower.append_as_follower(sent, wall_ms=1)
    assert (result.base_offset, result.last_offset, follower.log_end_offset) == (0, 5, 6)
    assert bytes(follower.read(0, 1 << 20).records) == sent
    assert follower.leader_epochs.entries == leader.leader_epochs.entries == ((0, 0), (3, 4))
    follower.check()


def test_a_follower_refuses_what_does_not_go_on_at_its_end(machine: Any) -> None:
    leader = machine.open()
    machine.append(b"a", b"b")
    sent = bytes(leader.read(0, 1 << 20).records)
    follower = type(machine)(directory="/disk/f-0").open()
    follower.append_as_follower(sent, wall_ms=1)
    with pytest.raises(kafka_error(ErrorCode.corrupt_message), match="offset 0 where 2 is next"):
        follower.append_as_follower(sent, wall_ms=1)
    broken = bytearray(sent)
    broken[3] = 9
    broken[-1] ^= 1
    with pytest.raises(kafka_error(ErrorCode.corrupt_message), match="CRC"):
        follower.append_as_follower(bytes(broken), wall_ms=1)
    assert follower.append_as_follower(b"", wall_ms=1).base_offset == 2
    follower.check()


def test_an_empty_follower_that_starts_inside_a_batch_takes_the_whole_batch(machine: Any) -> None:
    leader = machine.open()
    machine.append(b"a", b"b", b"c")
    leader.high_watermark = 3
    leader.advance_log_start(2)
    sent = bytes(leader.read(2, 1 << 20).records)
    follower = type(machine)(directory="/disk/f-0").open()
    follower.truncate_fully_and_start_at(2)
    follower.append_as_follower(sent, wall_ms=1)
    follower.check()
    assert (follower.log_start_offset, follower.log_end_offset) == (2, 3)
    assert follower.segments.base_offsets == [0]
    with pytest.raises(kafka_error(ErrorCode.offset_out_of_range)):
        follower.read(1, 100)
    assert bytes(follower.read(2, 100).records) == sent


def test_a_gap_too_wide_for_a_segment_starts_a_new_one(machine: Any) -> None:
    log = machine.open()
    far = 1 << 40
    batch = encode_values([b"a"], timestamp_ms=1)
    log.append_as_follower(stamped_header(BatchView(batch), far, 0) + batch[16:], wall_ms=1)
    assert log.segments.base_offsets == [0, far] and log.log_end_offset == far + 1
    log.append_as_follower(stamped_header(BatchView(batch), 2 * far, 0) + batch[16:], wall_ms=1)
    assert log.segments.base_offsets == [0, far, 2 * far]
    log.check()
    assert log.read(0, 1000).base_offset == far
    assert machine.recover().log_end_offset == 2 * far + 1
    assert machine.log.read(far + 1, 1000).base_offset == 2 * far, "reading goes on behind the gap"


# ------------------------------------------------------------------ a disk in trouble


def test_a_full_disk_leaves_the_log_as_it_was(machine: Any) -> None:
    log = machine.open()
    machine.append(b"a" * 100)
    epochs, size, names = log.leader_epochs.entries, log.size_bytes, machine.names()
    machine.disk.capacity_bytes = machine.disk.capacity_bytes - machine.disk.free_bytes + 500
    with pytest.raises(OSError) as caught:
        machine.append(b"b" * 1000)
    assert caught.value.errno == errno.ENOSPC
    assert (log.log_end_offset, log.size_bytes, log.leader_epochs.entries) == (1, size, epochs)
    assert machine.files.size(machine.path(f"{0:020d}.log")) == size and machine.names() == names
    log.check()
    machine.disk.capacity_bytes = 1 << 40
    assert machine.append(b"c") == 1, "room again: the log goes on"
    assert machine.recover().log_end_offset == 2 and machine.log.condition.value == "whole"


@pytest.mark.parametrize("operation", ["open", "write", "truncate"])
def test_a_failing_roll_leaves_the_log_as_it_was(machine: Any, operation: str) -> None:
    log = machine.open(segment_bytes=400)
    for _ in range(2):
        machine.append(b"x" * 100)

    def fault(name: str, path: str) -> None:
        if name == operation and path.endswith((".log", ".index", ".snapshot.tmp")):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    machine.disk.fault = fault
    with pytest.raises(OSError):
        machine.append(b"x" * 100)
    machine.disk.fault = None
    log.check()
    assert log.segments.base_offsets == [0] and log.log_end_offset == 2
    assert machine.append(b"x" * 100) == 2 and log.segments.base_offsets == [0, 2]
    assert machine.recover().log_end_offset == 3


def test_configs_are_taken_from_kafkas_names() -> None:
    assert LogConfig.from_topic_configs({}) == LogConfig()
    config = LogConfig.from_topic_configs(
        {
            "cleanup.policy": "compact, delete", "compression.type": "uncompressed", "segment.bytes": "14", "retention.ms": "-1",
            "message.timestamp.type": "LogAppendTime", "message.timestamp.difference.max.ms": "5",
            "message.timestamp.after.max.ms": "7", "preallocate": "true", "flush.messages": "1", "unknown": "passed over",
        }
    )  # fmt: skip
    assert (config.deletes, config.compacts, config.compression, config.segment_bytes) == (
        True,
        True,
        Compression.NONE,
        14,
    )
    assert (config.retention_ms, config.timestamp_type, config.preallocate, config.flush_messages) == (-1, 1, True, 1)
    assert (config.timestamp_before_max_ms, config.timestamp_after_max_ms, config.flush_ms) == (5, 7, NEVER)
    with pytest.raises(ValueError):
        LogConfig.from_topic_configs({"message.timestamp.type": "Never"})
