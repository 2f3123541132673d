"""Idempotence [P7, P8]: repeats, gaps, fencing, wrap-around, snapshots, expiry. On the log, as a producer sees it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.errors import DiskError, KafkaError, kafka_error
from raylog.log.producers import ProducerStates
from raylog.log.results import AppendResult
from raylog.records.batch import BatchView, TimestampType
from raylog.records.codec import encode_values
from raylog.records.compression import Compression
from raylog.records.control import Marker, control_batch

LAST_SEQUENCE = (1 << 31) - 1
OutOfOrder = kafka_error(ErrorCode.out_of_order_sequence_number)
Fenced = kafka_error(ErrorCode.invalid_producer_epoch)


def _batch(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7, timestamp: int = 1, **more: Any
) -> bytes:
    return encode_values(
        [b"v"] * count,
        timestamp_ms=timestamp,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        **more,
    )


def _append(machine: Any, *args: Any, **kwargs: Any) -> AppendResult:
    result: AppendResult = machine.log.append_as_leader(
        _batch(*args, **kwargs), leader_epoch=0, wall_ms=machine.wall_ms
    )
    machine.log.check()
    return result


def test_a_repeat_is_acknowledged_with_its_first_offset_and_not_appended(machine: Any) -> None:
    machine.open()
    machine.append(b"before")
    first = _append(machine, 0, 3)
    _append(machine, 3, 2)
    again = _append(machine, 0, 3)
    assert (first.base_offset, again.base_offset, again.last_offset, again.duplicate) == (1, 1, 3, True)
    assert machine.log.log_end_offset == 6


@pytest.mark.parametrize(
    "limits",
    [
        {"max_message_bytes": 50},
        {"timestamp_before_max_ms": 1_000},
        {"compacts": True},
        {"compression": Compression.ZSTD, "max_message_bytes": 50},
        {"segment_bytes": 60},
    ],
)
def test_a_repeat_is_recognised_before_limits_that_came_later_can_refuse_it(machine: Any, limits: Any) -> None:
    """A producer that is refused gives the batch up, and takes it that its records are not in the log."""
    log = machine.open()
    assert _append(machine, 0, 3).base_offset == 0
    log.update_config(replace(log.config, **limits))
    again = _append(machine, 0, 3)
    assert (again.base_offset, again.last_offset, again.duplicate) == (0, 2, True)
    with pytest.raises(KafkaError):
        _append(machine, 3, 3)


def test_damaged_bytes_are_no_repeat(machine: Any) -> None:
    log = machine.open()
    _append(machine, 0, 3)
    damaged = bytearray(_batch(0, 3))
    damaged[-1] ^= 1
    for data in (damaged, _batch(0, 3) + damaged, _batch(0, 3)[:-1], b""):
        with pytest.raises(KafkaError):
            log.append_as_leader(data, leader_epoch=0, wall_ms=machine.wall_ms)


def test_a_gap_is_refused_and_nothing_is_appended(machine: Any) -> None:
    machine.open()
    _append(machine, 0, 3)
    for sequence in (4, 2, LAST_SEQUENCE):
        with pytest.raises(OutOfOrder, match="t-0: producer 7"):
            _append(machine, sequence, 1)
    assert machine.log.log_end_offset == 3
    _append(machine, 3, 1)


def test_the_last_five_batches_are_remembered_and_no_more(machine: Any) -> None:
    machine.open()
    for sequence in range(6):
        _append(machine, sequence)
    assert [_append(machine, sequence).base_offset for sequence in range(1, 6)] == [1, 2, 3, 4, 5]
    with pytest.raises(OutOfOrder):
        _append(machine, 0)


def test_a_batch_with_other_bounds_is_no_repeat(machine: Any) -> None:
    machine.open()
    _append(machine, 0, 3)
    with pytest.raises(OutOfOrder):
        _append(machine, 0, 2)


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero(machine: Any) -> None:
    machine.open()
    _append(machine, 0, 2, epoch=3)
    with pytest.raises(Fenced):
        _append(machine, 2, epoch=2)
    with pytest.raises(OutOfOrder):
        _append(machine, 2, epoch=4)
    assert _append(machine, 0, epoch=4).base_offset == 2
    with pytest.raises(Fenced):
        _append(machine, 0, 2, epoch=3)


def test_an_unknown_producer_may_start_anywhere(machine: Any) -> None:
    machine.open()
    assert _append(machine, 42).base_offset == 0
    assert _append(machine, 43).base_offset == 1


def test_sequences_wrap_from_the_largest_to_zero(machine: Any) -> None:
    machine.open()
    _append(machine, LAST_SEQUENCE - 1, 4)  # takes max−1, max, 0, 1
    assert _append(machine, 2).base_offset == 4
    assert _append(machine, LAST_SEQUENCE - 1, 4).base_offset == 0
    _append(machine, LAST_SEQUENCE, producer=8)
    assert _append(machine, 0, producer=8).duplicate is False


def test_several_batches_in_one_request_are_judged_as_if_one_by_one(machine: Any) -> None:
    log = machine.open()
    both = _batch(0, 2) + _batch(2, 2)
    assert log.append_as_leader(both, leader_epoch=0, wall_ms=1).base_offset == 0
    again = log.append_as_leader(both, leader_epoch=0, wall_ms=1)
    assert again.duplicate and again.base_offset == 0
    with pytest.raises(OutOfOrder):
        log.append_as_leader(_batch(4) + _batch(6), leader_epoch=0, wall_ms=1)
    with pytest.raises(kafka_error(ErrorCode.invalid_record)):
        log.append_as_leader(_batch(2, 2) + _batch(4), leader_epoch=0, wall_ms=1)
    assert log.log_end_offset == 4


@pytest.mark.parametrize("way", ["reopen", "recover"])
def test_repeats_are_known_after_a_restart(machine: Any, way: str) -> None:
    machine.open(segment_bytes=400)
    for sequence in range(20):
        _append(machine, sequence)
    getattr(machine, way)()
    assert [_append(machine, sequence).base_offset for sequence in range(15, 20)] == [15, 16, 17, 18, 19]
    with pytest.raises(OutOfOrder):
        _append(machine, 21)
    assert _append(machine, 20).base_offset == 20


def test_a_follower_takes_over_the_leaders_knowledge_without_judging(machine: Any) -> None:
    log = machine.open()
    _append(machine, 0, 2)
    _append(machine, 2, 2)
    copied = bytes(log.read(0, 1 << 20).records)
    other = type(machine)(directory="/disk/u-0")
    follower = other.open()
    follower.append_as_follower(copied, wall_ms=1)
    follower.check()
    assert follower.append_as_leader(_batch(2, 2), leader_epoch=1, wall_ms=1).base_offset == 2
    assert follower.append_as_leader(_batch(0, 2), leader_epoch=1, wall_ms=1).duplicate


def test_truncation_forgets_what_was_cut(machine: Any) -> None:
    log = machine.open(segment_bytes=400)
    for sequence in range(20):
        _append(machine, sequence)
    log.truncate_to(13)
    log.check()
    assert _append(machine, 12).duplicate
    with pytest.raises(OutOfOrder):
        _append(machine, 14)
    assert _append(machine, 13).base_offset == 13


def test_snapshots_lie_at_segment_starts_and_old_ones_go(machine: Any) -> None:
    log = machine.open(segment_bytes=400)
    for sequence in range(20):
        _append(machine, sequence)
    assert set(log.segments.base_offsets[1:]) == set(log.snapshots.offsets())
    machine.reopen()
    log = machine.log
    assert 20 in log.snapshots.offsets()
    log.high_watermark = 20
    log.advance_log_start(13)
    gone = log.delete_old_segments(machine.wall_ms)
    assert gone and set(log.snapshots.offsets()) <= {*log.segments.base_offsets, 20}


def test_a_damaged_snapshot_is_passed_over(machine: Any) -> None:
    machine.open(segment_bytes=400)
    for sequence in range(20):
        _append(machine, sequence)
    machine.log.close()
    latest = machine.names()[[name.endswith(".snapshot") for name in machine.names()].index(True) :]
    name = [name for name in latest if name.endswith(".snapshot")][-1]
    machine.damage(name, lambda data: data[:-1] + b"\xff")
    machine.open()
    assert _append(machine, 19).duplicate and not _append(machine, 20).duplicate


def test_a_newer_snapshot_is_refused_by_name() -> None:
    data = b"\x00\x02" + ProducerStates().encode_snapshot()[2:]
    with pytest.raises(DiskError, match="version 2"):
        ProducerStates().load_snapshot(data, end_offset=0, path="x")


def _seen(machine: Any, wall_ms: int, *args: Any, **kwargs: Any) -> AppendResult:
    machine.wall_ms = wall_ms
    return _append(machine, *args, **kwargs)


def test_silent_producers_expire_but_not_those_with_an_open_transaction(machine: Any) -> None:
    log = machine.open(producer_id_expiration_ms=1000)
    _seen(machine, 5000, 0, producer=1)
    machine.copy(_batch(0, producer=3, is_transactional=True))
    _seen(machine, 5600, 0, producer=2)
    assert log.expire_producers(5999) == 0
    assert log.expire_producers(6000) == 1
    assert sorted(state.producer_id for state in log.producers) == [2, 3]
    assert _append(machine, 77, producer=1).duplicate is False


DAY_MS = 24 * 3_600_000


@pytest.mark.parametrize("timestamp", [1, 3 * DAY_MS, 400 * DAY_MS])
def test_what_counts_for_expiry_is_when_a_batch_was_appended_not_what_its_records_say(
    machine: Any, timestamp: int
) -> None:
    """Backfills, mirrors and events of last year keep their deduplication; records of the future do not keep it for ever."""
    log = machine.open()
    _seen(machine, 300 * DAY_MS, 0, timestamp=timestamp)
    assert log.expire_producers(301 * DAY_MS - 1) == 0
    assert _append(machine, 0, timestamp=timestamp).duplicate
    assert log.expire_producers(301 * DAY_MS) == 1


def test_a_follower_counts_from_when_it_copied_a_batch(machine: Any, make_machine: Any) -> None:
    log = machine.open()
    _seen(machine, 10 * DAY_MS, 0)
    copied = bytes(log.read(0, 1 << 20).records)
    follower = make_machine(directory="/disk/u-0").open()
    follower.append_as_follower(copied, wall_ms=20 * DAY_MS)
    assert follower.expire_producers(21 * DAY_MS - 1) == 0
    assert follower.append_as_leader(_batch(0), leader_epoch=1, wall_ms=1).duplicate
    assert follower.expire_producers(21 * DAY_MS) == 1


@pytest.mark.parametrize("way", ["reopen", "recover"])
def test_a_restart_ends_no_producer_early(machine: Any, way: str) -> None:
    machine.open(segment_bytes=400)
    for sequence in range(20):
        _seen(machine, 10 * DAY_MS + sequence, sequence, timestamp=1)
    machine.wall_ms = 11 * DAY_MS
    log = getattr(machine, way)()
    assert log.expire_producers(11 * DAY_MS + 18) == 0
    assert _append(machine, 19, timestamp=1).duplicate
    assert log.expire_producers(12 * DAY_MS + 1) == 1


def test_a_clean_restart_prolongs_no_producers_life(machine: Any) -> None:
    machine.open()
    _seen(machine, 10 * DAY_MS, 0)
    for hour in range(1, 24):
        machine.wall_ms = 10 * DAY_MS + hour * 3_600_000
        log = machine.reopen()
    assert log.expire_producers(11 * DAY_MS - 1) == 0
    assert log.expire_producers(11 * DAY_MS) == 1


@pytest.mark.parametrize("timestamp", [1, 400 * DAY_MS])
def test_times_of_a_snapshot_that_cannot_be_appends_are_taken_for_now(machine: Any, timestamp: int) -> None:
    """Kafka's snapshots have the records' timestamps; and clocks are set back."""
    machine.open()
    _append(machine, 0)
    machine.log.close()
    states = ProducerStates()
    states.note(BatchView(_batch(0)), wall_ms=timestamp)
    machine.files.write_file(machine.path(f"{1:020d}.snapshot"), states.encode_snapshot(), flush=False)
    machine.wall_ms = 300 * DAY_MS
    log = machine.open()
    assert log.expire_producers(301 * DAY_MS - 1) == 0
    assert _append(machine, 0).duplicate
    assert log.expire_producers(301 * DAY_MS) == 1


def test_truncation_changes_no_time_of_a_producer_that_stays(machine: Any) -> None:
    log = machine.open(segment_bytes=400)
    for sequence in range(20):
        _seen(machine, 10 * DAY_MS + sequence, sequence, timestamp=1)
    _seen(machine, 10 * DAY_MS + 100, 0, producer=8, timestamp=1)
    log.truncate_to(13)
    assert log.expire_producers(11 * DAY_MS + 18) == 0
    assert log.expire_producers(11 * DAY_MS + 19) == 1


def test_the_time_of_a_repeat_is_the_first_appends_after_a_restart_too(machine: Any, make_machine: Any) -> None:
    log = machine.open(timestamp_type=TimestampType.LOG_APPEND_TIME)
    _seen(machine, 5_000, 0)
    copied = bytes(log.read(0, 1 << 20).records)
    follower = make_machine(directory="/disk/u-0", wall_ms=9_000)
    follower.open(timestamp_type=TimestampType.LOG_APPEND_TIME).append_as_follower(copied, wall_ms=9_000)
    again = follower.reopen().append_as_leader(_batch(0), leader_epoch=1, wall_ms=9_000)
    assert (again.duplicate, again.log_append_time_ms) == (True, 5_000)


def test_a_control_batch_ends_the_transaction(machine: Any) -> None:
    log = machine.open()
    machine.copy(_batch(0, producer=3, is_transactional=True))
    machine.copy(_batch(1, producer=3, is_transactional=True))
    assert log.producers.first_open_transaction_offset == 0
    marker = control_batch(Marker.COMMIT, producer_id=3, producer_epoch=0, coordinator_epoch=9, timestamp_ms=1)
    with pytest.raises(kafka_error(ErrorCode.invalid_record), match="control"):
        log.append_as_leader(marker, leader_epoch=0, wall_ms=1)
    log.append_as_leader(marker, leader_epoch=0, wall_ms=1, from_coordinator=True)
    log.check()
    assert log.producers.first_open_transaction_offset is None
    states = ProducerStates()
    states.load_snapshot(log.producers.encode_snapshot(), end_offset=3, path="x")
    state = states.get(3)
    assert state is not None and (state.coordinator_epoch, state.last_sequence, state.txn_first_offset) == (9, 1, None)


def test_snapshots_read_back_every_field() -> None:
    states = ProducerStates()
    for producer, sequence in [(1, 5), (1 << 40, LAST_SEQUENCE)]:
        data = bytearray(_batch(sequence, 2, producer=producer, epoch=3, timestamp=123, is_transactional=True))
        data[:8] = (1000 + producer % 7).to_bytes(8, "big")
        states.note(BatchView(data), wall_ms=456)
    again = ProducerStates()
    again.load_snapshot(states.encode_snapshot(), end_offset=2000, path="x")
    assert again.encode_snapshot() == states.encode_snapshot() and len(again) == 2
    state = again.get(1 << 40)
    assert state is not None and state.last_sequence == 0 and state.batches[0].base_sequence == LAST_SEQUENCE
    assert len(states.encode_snapshot()) == 10 + 2 * 46


@pytest.mark.parametrize("how", ["reopen", "recover", "power"])
def test_producers_whose_records_were_deleted_are_remembered_over_restarts(make_machine: Any, how: str) -> None:
    """As Apache Kafka's: by the snapshot at the base of the first segment that is left."""
    for seed in range(200):
        rng = random.Random(seed)
        machine = make_machine()
        log = machine.open()
        appended: list[tuple[int, int]] = []  # producer and sequence, by offset
        for _ in range(rng.randrange(5, 40)):
            kind = rng.choice(("append", "append", "append", "roll", "delete", "retain", "flush", "restart"))
            if kind == "append":
                producer = rng.randrange(3)
                known = log.producers.get(producer)
                sequence = known.last_sequence + 1 if known is not None else 0
                machine.append(b"v", producer_id=producer, producer_epoch=0, base_sequence=sequence)
                appended.append((producer, sequence))
                log.high_watermark = log.log_end_offset
            elif kind == "roll":
                log.roll(machine.wall_ms)
            elif kind == "delete":
                log.advance_log_start(rng.randrange(log.log_start_offset, log.log_end_offset + 1))
            elif kind == "retain":
                log.delete_old_segments(machine.wall_ms)
            elif kind == "flush":
                log.flush()
            else:
                safe_end = log.recovery_point if how == "power" else log.log_end_offset
                if how == "power":
                    machine.disk.lose_power(rng)
                    machine.files, machine.boot_id = machine.disk.files(), machine.boot_id + "+"
                    log = machine.open()
                else:
                    log = getattr(machine, how)()
                log.high_watermark = log.log_end_offset
                del appended[log.log_end_offset :]
                found = {each.producer_id: each.last_sequence for each in log.producers}
                assert all(found.get(who, -1) >= sequence for who, sequence in appended[:safe_end]), (seed, found)
                assert found.items() <= set(appended), (seed, found)


def test_a_deletion_waits_for_the_disk_only_where_no_flush_has_come_by_since_the_roll(machine: Any) -> None:
    """It happens where the log is written, and would hold up everybody else there."""
    log = machine.open(segment_bytes=200)
    flushed = []
    for is_flushed in (False, True):
        for sequence in range(3):
            machine.append(b"v" * 50, producer_id=int(is_flushed), producer_epoch=0, base_sequence=sequence)
        log.high_watermark = log.log_end_offset
        log.advance_log_start(log.segments.active.base_offset)
        if is_flushed:
            log.flush_rolled()
        flushed.clear()
        machine.disk.fault = lambda operation, path: flushed.append(path) if operation == "flush" else None
        assert log.delete_old_segments(machine.wall_ms)
        machine.disk.fault = None
        assert [path for path in flushed if path.endswith(".snapshot")] == flushed and (flushed == []) == is_flushed
