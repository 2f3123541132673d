"""What a log knows of its producers after it was cut: taken back step by step, and the same as what its batches say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raylog.log import cutting
from raylog.log.opening import load_producers
from raylog.log.producers import ProducerStates
from raylog.records.codec import encode_values
from raylog.records.control import Marker, control_batch

HOUR_MS = 3_600_000


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the log's end at each cut for which the batches are read again."""
    found: list[int] = []
    reload = cutting.reload_producers

    def reloaded(producers: Any, snapshots: Any, segments: Any, end_offset: int, **how: Any) -> None:
        found.append(end_offset)
        reload(producers, snapshots, segments, end_offset, **how)

    monkeypatch.setattr(cutting, "reload_producers", reloaded)
    return found


def _data(producer: int, sequence: int, *, count: int = 1, epoch: int = 0, timestamp_ms: int = 1, **more: Any) -> bytes:
    return encode_values(
        [b"v"] * count,
        timestamp_ms=timestamp_ms,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        **more,
    )


def _marker(producer: int, *, epoch: int = 0, coordinator_epoch: int = 0, timestamp_ms: int = 1) -> bytes:
    return control_batch(
        Marker.COMMIT,
        producer_id=producer,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=timestamp_ms,
    )


def _known(states: ProducerStates) -> dict[int, tuple[Any, ...]]:
    """All but the times at which they were seen: where no batch is remembered, a snapshot has that for the last timestamp."""
    return {
        state.producer_id: (
            state.epoch,
            state.batches,
            state.last_timestamp if state.batches else None,
            state.coordinator_epoch,
            state.txn_first_offset,
        )
        for state in states
    }


def _read_again(log: Any, wall_ms: int) -> ProducerStates:
    states = ProducerStates()
    load_producers(
        states, log.snapshots, log.segments.all, log.log_end_offset, wall_ms=wall_ms, expiration_ms=24 * HOUR_MS
    )
    return states


def _write(machine: Any, chance: random.Random) -> None:
    """One batch, as a leader may have sent it."""
    producer = chance.randrange(4)
    known = machine.log.producers.get(producer)
    epoch = max(0, known.epoch if known else 0)
    if chance.random() < 0.15:
        epoch += 1
    sequence = known.last_sequence + 1 if known and known.epoch == epoch else 0
    times = {"timestamp_ms": machine.wall_ms}
    kind = chance.choice(("data", "data", "transactional", "marker", "plain"))
    if kind == "marker":
        machine.copy(_marker(producer, epoch=epoch, coordinator_epoch=chance.randrange(9), **times))
    elif kind == "plain":
        machine.copy(encode_values([b"v"], **times))
    else:
        is_transactional = kind == "transactional"
        batch = _data(
            producer, sequence, count=chance.randint(1, 3), epoch=epoch, is_transactional=is_transactional, **times
        )
        machine.copy(batch)


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_leaves_what_the_batches_that_are_left_say(make_machine: Any, readings: list[int], seed: int) -> None:
    chance = random.Random(seed)
    machine = make_machine()
    machine.open(segment_bytes=chance.choice((500, 2000, 1 << 20)))
    cuts = 0
    for _ in range(150):
        log = machine.log
        machine.wall_ms += 1
        step = chance.choices(("write", "rise", "cut", "cut_committed", "roll", "reopen"), (30, 3, 6, 1, 1, 1))[0]
        if step == "write":
            _write(machine, chance)
        elif step == "rise":
            log.high_watermark = chance.randint(log.high_watermark, log.log_end_offset)
        elif step == "roll":
            log.roll(machine.wall_ms)
        elif step == "reopen":
            machine.reopen()
        else:
            seen = log.producers.last_seen()
            cuts += log.truncate_to(chance.randint(log.high_watermark if step == "cut" else 0, log.log_end_offset))
            assert _known(log.producers) == _known(_read_again(log, machine.wall_ms)), (seed, log.log_end_offset)
            assert log.producers.last_seen().items() <= seen.items()
        machine.log.check()
    assert len(readings) < cuts


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_cut_behind_the_high_watermark_reads_no_batch_again(
    machine: Any, readings: list[int], is_opened_again: bool
) -> None:
    """It would take as long as the segment is, at every replica that follows a new leader at once. What lies below the high
    watermark is hardly ever cut, and not kept in memory for that."""
    log = machine.open()
    for sequence in range(100):
        machine.copy(_data(1, sequence))
        log.high_watermark = max(0, sequence - 9)
    if is_opened_again:
        log.checkpoint()
        machine.recover()
    for end in (99, 95):
        machine.log.truncate_to(end)
    assert readings == [] and machine.log.producers.get(1).last_sequence == 94
    machine.log.truncate_to(80)
    assert readings == [80] and machine.log.producers.get(1).last_sequence == 79


def test_only_so_many_batches_are_taken_back(machine: Any, readings: list[int]) -> None:
    log = machine.open()
    for sequence in range(600):
        machine.copy(_data(1, sequence))
        log.check()
    log.truncate_to(88)
    assert readings == [] and log.producers.get(1).last_sequence == 87
    for sequence in range(88, 600):
        machine.copy(_data(1, sequence))
    log.truncate_to(87)
    assert readings == [87] and log.producers.get(1).last_sequence == 86


def test_a_transaction_is_open_again_where_its_end_was_cut_though_its_producer_was_forgotten(machine: Any) -> None:
    log = machine.open(producer_id_expiration_ms=1000)
    machine.copy(_data(1, 0, is_transactional=True))
    machine.copy(_marker(1))
    assert log.expire_producers(machine.wall_ms + 1000) == 1
    log.truncate_to(1)
    log.check()
    log.high_watermark = 1
    assert log.producers.first_open_transaction_offset == log.stable_end_offset == 0


def test_nothing_is_taken_back_of_a_log_that_was_emptied(machine: Any, readings: list[int]) -> None:
    log = machine.open()
    machine.copy(_data(1, 0))
    log.truncate_fully_and_start_at(50)
    log.check()
    machine.copy(_data(1, 7))
    log.truncate_to(50)
    assert list(log.producers) == [] and readings == []
