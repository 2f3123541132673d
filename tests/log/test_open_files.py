"""What thousands of logs of one process hold open: a lock each, and the files of few segments."""

from __future__ import annotations

import errno
import threading
import uuid
from pathlib import Path

import pytest
from open_descriptors import open_files_below

from raylog.log.config import LogConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.files import Files
from raylog.log.log import Log
from raylog.log.open_files import FILES_PER_SEGMENT, OpenFiles, TooManyLogs, descriptors_for, logs_max_of
from raylog.records.batch import batches
from raylog.records.codec import decode, encode_values
from raylog.simulator.simulated_files import SimulatedDisk, SimulatedFiles, WorstLuck
from raylog.types import Condition

TOPIC_ID = uuid.UUID(int=7)
SMALL = LogConfig(segment_bytes=400, segment_index_bytes=4096, index_interval_bytes=1)


def opened(files: Files, open_files: OpenFiles, number: int = 0, config: LogConfig = SMALL, disk: str = "/disk") -> Log:
    files.make_directory(disk)
    log = Log.open(
        f"{disk}/t-{number}",
        files=files,
        config=config,
        topic="t",
        partition=number,
        topic_id=TOPIC_ID,
        now_ms=1_000,
        boot_id="boot",
        open_files=open_files,
    )
    log.trust()
    return log


def append(log: Log, value: bytes) -> None:
    log.append_as_leader(bytes(encode_values([value], timestamp_ms=log.log_end_offset)), leader_epoch=1, wall_ms=1_000)


def values(log: Log) -> list[bytes]:
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for view in batches(log.read(offset, 1 << 20).records):
            found += [record.value or b"" for record in decode(view) if record.offset >= offset]
            offset = view.next_offset
    return found


def test_a_log_that_nobody_uses_holds_its_lock_and_no_file() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(4)
    new = opened(files, open_files)
    assert files.open_handles == 0
    append(new, b"a")
    assert files.open_handles > 0
    new.close()
    assert files.open_handles == 0
    assert values_after_opening(files, open_files) == [b"a"]


def values_after_opening(files: SimulatedFiles, open_files: OpenFiles) -> list[bytes]:
    log = opened(files, open_files)
    assert files.open_handles == 0, "recovery and opening leave nothing open"
    return values(log)


def test_logs_share_a_bound_and_keep_every_record() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(3)
    logs = [opened(files, open_files, number) for number in range(20)]
    written: list[list[bytes]] = [[] for _ in logs]
    for turn in range(12):
        for number, log in enumerate(logs):
            value = b"%d of %d" % (turn, number)
            append(log, value)
            written[number].append(value)
            assert files.open_handles <= FILES_PER_SEGMENT * 3
            open_files.check()
    assert all(len(log.segments) > 2 for log in logs)
    for number, log in enumerate(logs):
        assert values(log) == written[number]
        assert log.offset_for_timestamp(5) is not None
        assert files.open_handles <= FILES_PER_SEGMENT * 3
        log.check()
    for number, log in enumerate(logs):
        log.truncate_to(5)
        log.high_watermark = log.log_end_offset
        append(log, b"again")
        assert values(log) == [*written[number][:5], b"again"]
        log.advance_log_start(log.high_watermark)
        log.delete_old_segments(2_000)
        assert files.open_handles <= FILES_PER_SEGMENT * 3
    assert open_files.descriptors_max == len(logs) + FILES_PER_SEGMENT * 3
    for log in logs:
        log.close()
    assert (files.open_handles, open_files.logs) == (0, 0)
    reopened = opened(files, open_files, 3)
    assert values(reopened) == [b"again"]


def test_the_segments_used_last_stay_open() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(2)
    logs = [opened(files, open_files, number, LogConfig(segment_index_bytes=4096)) for number in range(3)]
    for log in (logs[0], logs[1], logs[0], logs[2]):
        append(log, b"a")
    assert [log.segments.active.is_resting for log in logs] == [False, True, False]
    logs[1].read(0, 1 << 20)
    assert [log.segments.active.is_resting for log in logs] == [True, False, False]


def test_a_log_that_another_thread_closes_keeps_its_files_from_the_others() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(2)
    logs = [opened(files, open_files, number) for number in range(4)]
    append(logs[0], b"a")
    logs[0].segments.leave()
    for log in logs[1:]:
        append(log, b"b")
    assert not logs[0].segments.active.is_resting, "its own thread is at work on it"
    thread = threading.Thread(target=logs[0].close)
    thread.start()
    thread.join()
    assert logs[0].segments.active.is_resting and open_files.logs == 3


def test_a_log_beyond_the_bound_is_refused_before_it_opens_anything() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(2, logs_max=2)
    logs = [opened(files, open_files, number) for number in range(2)]
    with pytest.raises(TooManyLogs, match="ulimit -n"):
        opened(files, open_files, 2)
    assert not files.exists("/disk/t-2")
    logs[0].close()
    opened(files, open_files, 2)
    assert open_files.logs == 2


def test_a_log_that_cannot_be_opened_is_not_counted() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(2, logs_max=1)

    def fault(operation: str, path: str) -> None:
        if operation == "lock":
            raise OSError(errno.EIO, "broken", path)

    files.disk.fault = fault
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            opened(files, open_files)
    assert open_files.logs == 0


def test_a_full_table_of_descriptors_makes_others_close_theirs() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(8)
    logs = [opened(files, open_files, number, LogConfig(segment_index_bytes=4096)) for number in range(6)]

    def fault(operation: str, path: str) -> None:
        if operation == "open" and path.endswith(("log", "index")) and files.open_handles >= 3:
            raise OSError(errno.EMFILE, "Too many open files", path)

    files.disk.fault = fault
    for turn in range(3):
        for log in logs:
            append(log, b"%d" % turn)
    assert [values(log) for log in logs] == [[b"0", b"1", b"2"]] * 6


def test_a_flush_that_finds_no_descriptor_is_no_failed_flush() -> None:
    disk = SimulatedDisk()
    files, open_files = disk.files(), OpenFiles(8)
    log = opened(files, open_files)
    append(log, b"a")

    def fault(operation: str, path: str) -> None:
        if operation == "open":
            raise OSError(errno.EMFILE, "Too many open files", path)

    disk.fault = fault
    with pytest.raises(OSError, match="Too many open files"):
        log.flush()
    disk.fault = None
    assert log.flush() == 1 and not log.is_suspect


def test_bounds_follow_the_limit_of_the_process() -> None:
    assert OpenFiles.within(20_000).segments_max == 1_666
    assert logs_max_of(20_000) > 14_000
    assert logs_max_of(1_024) > 500
    for logs in (100, 1_000, 4_000, 20_000):
        wanted = descriptors_for(logs)
        assert logs_max_of(wanted) >= logs > logs_max_of(wanted - 1)
        bound = OpenFiles.within(wanted)
        assert logs + FILES_PER_SEGMENT * bound.segments_max < wanted


def test_descriptors_of_real_files_stay_within_the_bound(tmp_path: Path) -> None:
    open_files, logs = OpenFiles(4), []
    for number in range(60):
        log = opened(DiskFiles(), open_files, number, disk=str(tmp_path))
        for turn in range(5):
            append(log, b"%d" % turn)
        logs.append(log)
    assert 0 < open_files_below(tmp_path) <= open_files.descriptors_max
    assert all(values(log) == [b"0", b"1", b"2", b"3", b"4"] for log in logs)
    assert 0 < open_files_below(tmp_path) <= open_files.descriptors_max
    for log in logs:
        log.close()
    assert open_files_below(tmp_path) == 0


def test_a_new_log_waits_for_the_disk_three_times_and_an_old_one_twice() -> None:
    files, open_files = SimulatedFiles(), OpenFiles(2)
    files.make_directory("/disk")
    waits: list[tuple[str, str]] = []

    def note(operation: str, path: str) -> None:
        if operation in ("flush", "sync_directory"):
            waits.append((operation, path))

    files.disk.fault = note
    log = opened(files, open_files)
    assert waits == [
        ("flush", "/disk/t-0/partition.metadata.tmp"),
        ("sync_directory", "/disk/t-0"),
        ("sync_directory", "/disk"),
    ]
    log.close(clean=False)
    waits.clear()
    opened(files, open_files)
    assert len(waits) == 2


def test_a_new_log_is_there_after_a_loss_of_power_and_nobody_trusts_it() -> None:
    disk = SimulatedDisk()
    files = disk.files()
    files.make_directory("/disk")
    files.sync_directory("/")
    opened(files, OpenFiles(2)).close(clean=False)
    disk.lose_power(WorstLuck())
    found = opened(disk.files(), OpenFiles(2))
    assert found.condition is Condition.SUSPECT and found.log_end_offset == 0
