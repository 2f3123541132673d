"""A flush that failed: the page cache keeps what the disk did not take, and no later flush writes it by itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from raylog.log import checkpoint as checkpoints
from raylog.records.batch import batches
from raylog.records.codec import decode, encode
from raylog.simulator.simulated_files import WorstLuck
from raylog.types import Condition


def lose_power(machine: Any) -> None:
    machine.disk.lose_power(WorstLuck())
    machine.files = machine.disk.files()
    machine.boot_id += "+"


def failing(*operations: str, path: str = "") -> Callable[[str, str], None]:
    def fault(operation: str, where: str) -> None:
        if operation in operations and path in where:
            raise OSError(errno.EIO, os.strerror(errno.EIO), where)

    return fault


def fail_a_flush(machine: Any, *, path: str = ".log") -> None:
    machine.disk.fault = failing("flush", path=path)
    with pytest.raises(OSError, match="Input/output error"):
        machine.log.flush()
    machine.disk.fault = None


def values(log: Any) -> list[bytes]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        for view in batches(log.read(offset, 1 << 20).records):
            found += [record.value for record in decode(view)]
            offset = view.next_offset
    return found


def test_no_later_flush_makes_a_failed_one_good(machine: Any) -> None:
    log = machine.open()
    machine.append(b"safe")
    log.flush()
    machine.append(b"lost")
    fail_a_flush(machine)
    for flush in (log.flush, log.flush_rolled, log.close):
        with pytest.raises(OSError, match="an earlier flush failed"):
            flush()
    assert log.recovery_point == 1


def test_the_next_process_of_the_same_boot_finds_the_log_suspect_and_writes_it_again(machine: Any) -> None:
    log = machine.open()
    machine.append(b"safe")
    log.flush()
    machine.append(b"in the cache only")
    log.roll(machine.wall_ms)
    machine.append(b"in the cache only, too")
    fail_a_flush(machine)
    machine.trusts = False
    log = machine.recover()
    assert log.condition is Condition.SUSPECT and log.recovery_point == 1
    assert log.flush() == log.recovery_point == 3
    machine.disk.evict()
    lose_power(machine)
    log = machine.open()
    assert values(log) == [b"safe", b"in the cache only", b"in the cache only, too"]


def test_what_the_cache_has_dropped_meanwhile_is_cut(machine: Any) -> None:
    log = machine.open()
    machine.append(b"safe")
    log.flush()
    machine.append(b"lost")
    log.high_watermark = 2
    log.checkpoint()
    fail_a_flush(machine)
    machine.disk.evict()
    machine.trusts = False
    log = machine.recover()
    assert log.condition is Condition.SUSPECT and values(log) == [b"safe"]


def test_a_log_whose_flush_failed_is_trusted_by_nobody_in_this_process(machine: Any) -> None:
    log = machine.open()
    machine.append(b"a")
    fail_a_flush(machine)
    log.trust()
    machine.trusts = False
    assert machine.recover().condition is Condition.SUSPECT


@pytest.mark.parametrize("config", [{}, {"flush_messages": 1}])
def test_a_flush_on_the_way_of_a_cut_counts_like_any_other(machine: Any, config: dict[str, int]) -> None:
    log = machine.open(**config)
    machine.append(b"a")
    machine.append(b"b")
    if not config:
        log.truncate_to(1)
    machine.disk.fault = failing("flush", path="0.log")
    with pytest.raises(OSError):
        log.roll(machine.wall_ms) if not config else log.truncate_to(1)
    machine.disk.fault = None
    machine.trusts = False
    assert machine.recover().condition is Condition.SUSPECT


def test_a_flush_of_a_cleaning_counts_like_any_other(machine: Any) -> None:
    log = machine.open(compacts=True, min_cleanable_dirty_ratio=0.0)
    for _ in range(3):
        batch = encode([(0, b"key", b"value", ())])
        log.append_as_leader(batch, leader_epoch=0, wall_ms=machine.wall_ms)
        log.roll(machine.wall_ms)
    log.high_watermark = log.log_end_offset
    part = log.compaction.cleanable(machine.wall_ms)
    cleaning = log.compaction.begin(part, machine.wall_ms)
    machine.disk.fault = failing("flush", path=".log")
    with pytest.raises(OSError, match="Input/output error"):
        while cleaning.step() is not None:
            pass
    machine.disk.fault = None
    machine.trusts = False
    assert machine.recover().condition is Condition.SUSPECT


def test_without_a_checkpoint_nothing_is_trusted_where_the_disk_does_not_take_the_note(machine: Any) -> None:
    log = machine.open()
    machine.append(b"a")
    machine.disk.fault = failing("flush")
    with pytest.raises(OSError):
        log.flush()
    machine.disk.fault = None
    assert checkpoints.FILE_NAME not in machine.names()
    machine.trusts = False
    log = machine.recover()
    assert log.condition is Condition.SUSPECT
