"""An opening that fails is tried again and again, in a process that serves other logs: it may keep nothing of the process."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from old_messages import entry
from open_descriptors import open_files_below

from raylog.log.disk_files import DiskFiles
from raylog.log.log import Log
from raylog.log.open_files import OpenFiles
from raylog.log.partition_metadata import LOCK_NAME
from raylog.records.codec import encode_values
from raylog.records.control import Marker, control_batch
from raylog.types import Condition

TOPIC_ID = uuid.UUID(int=7)
OTHER_ID = uuid.UUID(int=8)
LOG = "00000000000000000000.log"


def filled(machine: Any, **config: Any) -> None:
    """Several segments, a producer, two leader epochs and an aborted transaction."""
    machine.open(topic_id=TOPIC_ID, segment_bytes=400, index_interval_bytes=1, **config)
    for number in range(8):
        machine.append(b"a" * 60, leader_epoch=number // 4, producer_id=5, producer_epoch=0, base_sequence=number)
    machine.copy(
        bytes(
            encode_values(
                [b"b"], timestamp_ms=1, producer_id=6, producer_epoch=0, base_sequence=0, is_transactional=True
            )
        ),
        leader_epoch=1,
    )
    machine.copy(
        bytes(control_batch(Marker.ABORT, producer_id=6, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1)),
        leader_epoch=1,
    )
    machine.log.high_watermark = 4


def new(machine: Any) -> None:
    """Nothing is there."""


def closed(machine: Any) -> None:
    filled(machine)
    machine.log.close()


def killed(machine: Any) -> None:
    filled(machine)
    machine.crash()


def killed_and_torn(machine: Any) -> None:
    filled(machine)
    path = machine.log.segments.active.path + ".log"
    content = machine.files.read_file(path)
    machine.log.flush()
    machine.crash()
    machine.files.write_file(path, content[: machine.log.segments.active.size] + b"torn")
    machine.boot_id += "+"


def killed_after_a_failed_flush(machine: Any) -> None:
    filled(machine)

    def fault(operation: str, path: str) -> None:
        if operation == "flush":
            raise OSError(errno.EIO, "broken", path)

    machine.disk.fault = fault
    with pytest.raises(OSError, match="broken"):
        machine.log.flush()
    machine.disk.fault = None
    machine.crash()


def without_indexes(machine: Any) -> None:
    closed(machine)
    for name in machine.names():
        if name.endswith(("index", "snapshot")):
            machine.files.remove(machine.path(name))


def cut_at_rest(machine: Any) -> None:
    closed(machine)
    first = machine.log.segments.all[0]
    machine.damage(LOG, lambda content: content[: first.size - 10])


def preallocated(machine: Any) -> None:
    filled(machine, preallocate=True)
    machine.log.close()


def swapped(machine: Any) -> None:
    closed(machine)
    machine.files.replace(machine.path(LOG), machine.path(LOG + ".swap"))


def of_old_formats(machine: Any) -> None:
    machine.files.make_directory(machine.directory)
    machine.files.write_file(machine.path(LOG), b"".join(entry(1, (n, n, b"k", b"v")) for n in range(4)))


def of_another_topic(machine: Any) -> None:
    machine.open(topic_id=OTHER_ID).close()


FOLDERS = [
    new,
    closed,
    killed,
    killed_and_torn,
    killed_after_a_failed_flush,
    without_indexes,
    cut_at_rest,
    preallocated,
    swapped,
    of_old_formats,
    of_another_topic,
]


def fails_at(step: int) -> Callable[[str, str], None]:
    """The disk works, but for one operation: the one with that number."""
    left = step

    def fault(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(errno.EIO, f"broken at step {step}, {operation}", path)

    return fault


def opening(machine: Any, open_files: OpenFiles) -> Log:
    return Log.open(
        machine.directory,
        files=machine.files,
        config=machine.config,
        topic="t",
        partition=0,
        topic_id=TOPIC_ID,
        now_ms=machine.wall_ms,
        boot_id=machine.boot_id,
        open_files=open_files,
    )


@pytest.mark.parametrize("prepare", FOLDERS, ids=lambda prepare: prepare.__name__)
def test_an_opening_that_fails_leaves_no_file_open(make_machine: Any, prepare: Callable[[Any], None]) -> None:
    step, is_open = 0, False
    while not is_open:
        machine, open_files = make_machine(), OpenFiles(4)
        prepare(machine)
        machine.files = machine.disk.files()
        machine.disk.fault = fails_at(step)
        try:
            opening(machine, open_files)
            is_open = True
        except OSError as error:
            assert f"broken at step {step}," in str(error)
            assert machine.files.open_handles == 0, str(error)
            assert open_files.logs == 0, str(error)
            machine.disk.fault = None
            other_process = machine.disk.files()
            other_process.make_directory(machine.directory)
            other_process.lock(machine.path(LOCK_NAME))
        step += 1
    assert step > 10


def test_a_roll_that_fails_leaves_no_file_of_a_new_segment_open_and_can_be_tried_again(make_machine: Any) -> None:
    step, has_rolled = 0, False
    while not has_rolled:
        machine = make_machine()
        machine.open(topic_id=TOPIC_ID)
        machine.append(b"a" * 300)
        machine.disk.fault = fails_at(step)
        try:
            machine.log.roll(machine.wall_ms)
            has_rolled = True
        except OSError as error:
            assert len(machine.log.segments) == 1
            machine.disk.fault = None
            machine.append(b"b")
            machine.log.roll(machine.wall_ms)
            machine.log.close()
            assert machine.files.open_handles == 0, str(error)
            log = machine.open(topic_id=TOPIC_ID)
            assert (log.condition, log.log_end_offset, len(log.segments)) == (Condition.CLEAN, 2, 2), str(error)
        step += 1
    assert step > 5


@pytest.mark.parametrize("call", ["ftruncate", "pwrite", "stat"])
def test_a_lock_that_cannot_be_taken_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = str(tmp_path / "lock")
    DiskFiles().lock(path).close()

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        with pytest.raises(OSError, match="broken"):
            DiskFiles().lock(path)
    assert open_files_below(tmp_path) == 0
    DiskFiles().lock(path).close()
