"""The simulated disk keeps what was flushed, and loses or tears the rest."""

from __future__ import annotations

import errno
import random

import pytest

from raylog.errors import DiskError
from raylog.simulator.simulated_files import SimulatedDisk, SimulatedFiles, TornWrite


def disk_with_folder() -> SimulatedDisk:
    disk = SimulatedDisk()
    files = disk.files()
    files.make_directory("/d")
    files.sync_directory("/")
    return disk


def test_flushed_bytes_and_synced_names_survive_every_power_loss() -> None:
    for seed in range(100):
        disk = disk_with_folder()
        files = disk.files()
        file = files.open("/d/f", create=True)
        file.write_at(0, b"kept", b"!")
        file.flush()
        files.sync_directory("/d")
        file.write_at(5, b"unflushed")
        disk.lose_power(random.Random(seed))
        assert disk.files().read_file("/d/f")[:5] == b"kept!"


def test_unflushed_bytes_are_lost_kept_and_torn_over_many_seeds() -> None:
    seen = set()
    for seed in range(200):
        disk = disk_with_folder()
        files = disk.files()
        file = files.open("/d/f", create=True)
        files.sync_directory("/d")
        file.write_at(0, b"0123456789")
        disk.lose_power(random.Random(seed))
        seen.add(len(disk.files().read_file("/d/f")))
    assert {0, 10} < seen, seen


def test_an_unsynced_new_file_may_be_gone_and_a_process_crash_keeps_it() -> None:
    outcomes = set()
    for seed in range(50):
        disk = disk_with_folder()
        files = disk.files()
        files.open("/d/f", create=True).flush()
        files.crash()
        assert disk.files().exists("/d/f")
        disk.lose_power(random.Random(seed))
        outcomes.add(disk.files().exists("/d/f"))
    assert outcomes == {False, True}


def test_a_renamed_file_whose_bytes_were_not_flushed_may_be_empty_under_its_new_name() -> None:
    contents = set()
    for seed in range(100):
        disk = disk_with_folder()
        files = disk.files()
        files.write_file("/d/f", b"old")
        files.write_file("/d/f", b"new", flush=False)
        files.sync_directory("/d")
        disk.lose_power(random.Random(seed))
        contents.add(disk.files().read_file("/d/f"))
    assert b"" in contents and b"new" in contents and b"old" not in contents


def test_a_flushed_write_file_is_old_or_new_but_never_mixed() -> None:
    for seed in range(50):
        disk = disk_with_folder()
        files = disk.files()
        files.write_file("/d/f", b"old")
        files.write_file("/d/f", b"brand new")
        disk.lose_power(random.Random(seed))
        assert disk.files().read_file("/d/f") == b"brand new"


def test_an_unflushed_truncation_may_be_undone() -> None:
    contents = set()
    for seed in range(50):
        disk = disk_with_folder()
        files = disk.files()
        files.write_file("/d/f", b"0123")
        files.open("/d/f").truncate(1)
        disk.lose_power(random.Random(seed))
        contents.add(disk.files().read_file("/d/f"))
    assert contents == {b"0123", b"0"}


def test_a_lock_is_held_by_one_process_until_it_crashes() -> None:
    disk = disk_with_folder()
    first, second = disk.files(), disk.files()
    first.lock("/d/.lock")
    with pytest.raises(DiskError):
        second.lock("/d/.lock")
    first.crash()
    second.lock("/d/.lock").close()
    disk.files().lock("/d/.lock")


def test_handles_of_a_crashed_process_are_dead() -> None:
    files = SimulatedFiles()
    file = files.open("/f", create=True)
    files.crash()
    with pytest.raises(OSError) as raised:
        file.write_at(0, b"x")
    assert raised.value.errno == errno.EBADF


def test_a_full_disk_takes_what_fits_and_then_refuses() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    files = disk.files()
    file = files.open("/f", create=True)
    assert file.write_at(0, b"0123456") == 7
    with pytest.raises(OSError) as raised:
        file.write_at(7, b"789abc")
    assert raised.value.errno == errno.ENOSPC
    assert files.read_file("/f") == b"0123456789"
    file.truncate(4)
    assert files.free_bytes("/") == 6


def test_an_injected_fault_strikes_the_operation_it_names() -> None:
    def fault(operation: str, path: str) -> None:
        if operation == "flush" and path.endswith(".log"):
            raise OSError(errno.EIO, "injected", path)

    files = SimulatedDisk(fault=fault).files()
    files.open("/f.index", create=True).flush()
    with pytest.raises(OSError, match="injected"):
        files.open("/f.log", create=True).flush()


def test_a_torn_write_leaves_a_part_and_raises_its_cause() -> None:
    def fault(operation: str, path: str) -> None:
        if operation == "write":
            raise TornWrite(0.5, OSError(errno.EIO, "injected", path))

    files = SimulatedDisk(fault=fault).files()
    with pytest.raises(OSError, match="injected"):
        files.open("/f", create=True).write_at(0, b"0123", b"4567")
    assert files.read_file("/f") == b"0123"


def test_modification_time_is_the_disks_clock() -> None:
    now = 1000
    files = SimulatedDisk(clock_ms=lambda: now).files()
    file = files.open("/f", create=True)
    now = 2000
    file.write_at(0, b"x")
    assert files.modified_ms("/f") == 2000


def test_a_renamed_folder_takes_its_files_along() -> None:
    files = SimulatedFiles()
    files.make_directory("/a/b")
    files.write_file("/a/b/f", b"x")
    files.replace("/a/b", "/a/c-delete")
    assert files.list_directory("/a") == ["c-delete"] and files.read_file("/a/c-delete/f") == b"x"
    files.remove_directory("/a/c-delete")
    assert not files.exists("/a/c-delete/f") and files.free_bytes("/") == files.disk.capacity_bytes
