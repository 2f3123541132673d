"""What a loss of power must not make a log believe, each found by the simulator."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raylog.simulator.simulated_files import WorstLuck
from raylog.types import Condition


def _lose_power(machine: Any, seed: int) -> None:
    machine.disk.lose_power(random.Random(seed))
    machine.files = machine.disk.files()
    machine.boot_id = f"after power loss {seed}"


def test_a_suspect_log_forgets_its_high_watermark(machine: Any) -> None:
    """The high watermark may have been said of other records: those here can be older ones that a lost truncation brought back."""
    log = machine.open()
    machine.append(b"old", b"old")
    log.flush()
    log.truncate_to(0)
    machine.append(b"new", b"new", leader_epoch=1)
    log.high_watermark = 2
    log.checkpoint(flush=True)
    _lose_power(machine, 1)
    log = machine.open()
    assert log.condition is Condition.SUSPECT and log.high_watermark == log.log_start_offset


def test_a_log_that_is_flushed_always_no_more_says_so_before_its_next_append(machine: Any) -> None:
    outcomes = set()
    for seed in range(30):
        machine = type(machine)()
        log = machine.open(flush_messages=1)
        machine.append(b"a")
        log.flush()
        log.update_config(type(machine.config)(segment_index_bytes=4096))
        machine.append(b"b")
        _lose_power(machine, seed)
        log = machine.open()
        outcomes.add((log.condition, log.log_end_offset))
    assert (Condition.WHOLE, 1) not in outcomes and (Condition.SUSPECT, 1) in outcomes, outcomes


def test_a_truncation_that_was_lost_does_not_reach_into_the_next_segment(machine: Any) -> None:
    name = machine.path(f"{0:020d}.log")
    for keep_the_new in (True, False):
        machine = type(machine)()
        log = machine.open()
        for _ in range(3):
            machine.append(b"old", b"old")
        before = machine.files.read_file(name)
        log.truncate_to(2)
        log.roll(machine.wall_ms)
        machine.append(b"new", b"new", leader_epoch=1)
        machine.crash()
        machine.files.write_file(name, before)
        if not keep_the_new:
            machine.files.write_file(machine.path(f"{2:020d}.log"), b"")
        machine.boot_id = "after a power loss"
        log = machine.open()
        log.check()
        assert log.log_end_offset == (4 if keep_the_new else 2)
        assert all(len(log.read(offset, 1 << 20).records) for offset in range(log.log_end_offset))
        assert machine.append(b"next", leader_epoch=2) == log.log_end_offset - 1


@pytest.mark.parametrize("keeps_checkpoint", [True, False])
def test_a_compacted_log_has_no_gap_where_nothing_was_compacted(machine: Any, keeps_checkpoint: bool) -> None:
    """A loss of power took the end of a segment, and with it what is replicated: only a cleaner leaves gaps that are none."""
    log = machine.open()
    for _ in range(3):
        machine.append(b"a", b"b")
        log.roll(machine.wall_ms)
    machine.append(b"last")
    log.checkpoint()
    machine.crash()
    machine.files.write_file(machine.path(f"{2:020d}.log"), b"")
    if not keeps_checkpoint:
        machine.files.remove(machine.path("replica.checkpoint"))
    machine.boot_id = "after a power loss"
    log = machine.open(compacts=True)
    log.check()
    assert (log.log_start_offset, log.log_end_offset) == (0, 2)
    assert log.condition is Condition.SUSPECT


def test_the_gaps_of_a_compacted_folder_that_kafka_wrote_are_kept(machine: Any) -> None:
    log = machine.open()
    for _ in range(3):
        machine.append(b"a", b"b")
        log.roll(machine.wall_ms)
    machine.append(b"last")
    machine.crash()
    machine.files.write_file(machine.path(f"{2:020d}.log"), b"")
    for name in ("replica.checkpoint", "replica.lock"):
        machine.files.remove(machine.path(name))
    log = machine.open(compacts=True)
    assert (log.log_start_offset, log.log_end_offset) == (0, 7)


def test_old_records_never_come_back_in_front_of_newer_segments(machine: Any) -> None:
    """The leader's epochs could not tell: what follows them is of the newest epoch."""
    for seed in range(200):
        machine = type(machine)()
        log = machine.open()
        machine.append(b"kept", b"kept")
        machine.append(b"old", b"old")
        log.flush()
        log.truncate_to(2)
        machine.append(b"new", b"new", leader_epoch=1)
        log.roll(machine.wall_ms)
        machine.append(b"new", b"new", leader_epoch=1)
        machine.files.sync_directory(machine.directory)
        _lose_power(machine, seed)
        log = machine.open()
        epochs = [log.leader_epochs.epoch_at(offset) for offset in range(log.log_end_offset)]
        assert epochs in ([0, 0, 1, 1, 1, 1], [0, 0, 1, 1], [0, 0], [0, 0, 0, 0]), (seed, epochs)


def test_a_segment_that_was_cut_off_does_not_come_back_behind_newer_records(machine: Any) -> None:
    """The new records reached the disk by themselves; the removal of the old file had to be there before them."""
    log = machine.open()
    machine.append(b"kept")
    machine.append(b"old")
    log.roll(machine.wall_ms)
    machine.append(b"old, in the next segment")
    log.flush()
    log.truncate_to(1)
    machine.append(b"new", leader_epoch=1)
    machine.files.open(machine.path(f"{0:020d}.log")).flush()
    machine.disk.lose_power(WorstLuck())
    machine.files = machine.disk.files()
    machine.boot_id = "after a loss of power"
    log = machine.open()
    epochs = [log.leader_epochs.epoch_at(offset) for offset in range(log.log_end_offset)]
    assert epochs == [0, 1], epochs


def test_the_snapshot_of_records_that_were_cut_off_is_not_believed_when_it_comes_back(machine: Any) -> None:
    """The one of a clean stop: it lies amid the segment, where no scan would miss it, and its removal was not synced."""
    log = machine.open()
    for sequence in range(3):
        machine.append(b"old", producer_id=1, producer_epoch=0, base_sequence=sequence)
    log.close()
    machine.disk.flush_everything()
    log = machine.open()
    log.truncate_to(1)
    for sequence in range(3):
        machine.append(b"new", leader_epoch=1, producer_id=2, producer_epoch=0, base_sequence=sequence)
    machine.files.open(machine.path(f"{0:020d}.log")).flush()
    machine.disk.lose_power(WorstLuck())
    machine.files = machine.disk.files()
    machine.boot_id = "after a loss of power"
    assert f"{3:020d}.snapshot" in machine.names()
    log = machine.open()
    assert log.log_end_offset == 4
    states = {state.producer_id: (state.last_sequence, len(state.batches)) for state in log.producers}
    assert states == {1: (0, 1), 2: (2, 3)}
