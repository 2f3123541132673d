"""The file system in memory answers as the operating system's does; a disk that is full refuses what would take room, and nothing else."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import pytest

from raylog.errors import DiskLockedError
from raylog.log.disk_files import DiskFiles
from raylog.log.files import Files
from raylog.testing.full_disk import FillableDisk
from raylog.testing.memory_files import MemoryFiles


@pytest.fixture(params=["memory", "disk", "fillable"])
def files(request: pytest.FixtureRequest) -> Files:
    if request.param == "fillable":
        return FillableDisk(MemoryFiles()).files()
    return DiskFiles() if request.param == "disk" else MemoryFiles()


@pytest.fixture
def home(files: Files, tmp_path: Path) -> str:
    path = str(tmp_path / "a" / "b")
    files.make_directory(path)
    return path


def test_files_are_written_read_cut_and_extended(files: Files, home: str) -> None:
    file = files.open(f"{home}/f", create=True)
    assert file.write_at(0, b"abc", memoryview(b"def")) == 6
    assert file.write_at(8, b"xyz") == 3  # behind its end: zeros between
    assert file.read_at(4, 100) == b"ef\0\0xyz"
    assert file.read_at(50, 1) == b""
    file.write_at(1, b"BC")
    file.truncate(4)
    assert (file.size(), files.size(f"{home}/f"), file.read_at(0, 9)) == (4, 4, b"aBCd")
    file.truncate(6)
    assert file.read_at(0, 9) == b"aBCd\0\0"
    file.flush()
    file.close()
    file.close()
    assert files.read_file(f"{home}/f") == b"aBCd\0\0"
    again = files.open(f"{home}/f")
    assert again.read_at(0, 2, in_memory=False) == b"aB"
    assert files.modified_ms(f"{home}/f") > 1_600_000_000_000


def test_zeros_that_nobody_wrote_take_no_memory(files: Files, home: str) -> None:
    file = files.open(f"{home}/index", create=True)
    tracemalloc.start()
    try:
        file.truncate(1 << 30)
        file.write_at(0, b"entry")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (file.size(), file.read_at(3, 4), file.read_at((1 << 30) - 2, 9)) == (1 << 30, b"ry\0\0", b"\0\0")
    file.truncate(5)
    assert files.read_file(f"{home}/index") == b"entry"


def test_names_come_go_and_move(files: Files, home: str) -> None:
    files.write_file(f"{home}/one", b"1")
    files.make_directory(f"{home}/sub/deep")
    files.write_file(f"{home}/sub/deep/two", b"2")
    assert files.list_directory(home) == ["one", "sub"]
    files.replace(f"{home}/one", f"{home}/uno")
    files.replace(f"{home}/sub", f"{home}/moved")
    assert files.list_directory(home) == ["moved", "uno"]
    assert files.read_file(f"{home}/moved/deep/two") == b"2"
    assert not files.exists(f"{home}/sub")
    files.remove(f"{home}/uno")
    files.remove(f"{home}/uno")
    files.remove_directory(f"{home}/moved")
    files.remove_directory(f"{home}/moved")
    files.sync_directory(home)
    assert files.exists(home) and files.list_directory(home) == []


def test_what_is_missing_is_said_to_be(files: Files, home: str) -> None:
    for attempt in (
        lambda: files.open(f"{home}/no"),
        lambda: files.open(f"{home}/no/no", create=True),
        lambda: files.list_directory(f"{home}/no"),
        lambda: files.read_file(f"{home}/no"),
        lambda: files.size(f"{home}/no"),
        lambda: files.replace(f"{home}/no", f"{home}/yes"),
        lambda: files.write_file(f"{home}/no/no", b""),
    ):
        with pytest.raises(FileNotFoundError):
            attempt()
    files.load(f"{home}/no", 0, 1)


def test_a_lock_has_one_holder(files: Files, home: str) -> None:
    held = files.lock(f"{home}/.lock")
    with pytest.raises(DiskLockedError):
        files.lock(f"{home}/.lock")
    held.close()
    files.lock(f"{home}/.lock").close()


def test_a_file_that_was_replaced_stays_what_it_was_for_who_has_it_open(files: Files, home: str) -> None:
    files.write_file(f"{home}/f", b"old")
    old = files.open(f"{home}/f")
    files.write_file(f"{home}/f", b"new")
    assert (old.read_at(0, 3), files.read_file(f"{home}/f")) == (b"old", b"new")


def test_a_full_disk_takes_no_byte_more_and_gives_all_that_it_has() -> None:
    disk = FillableDisk(MemoryFiles())
    files, other = disk.files(), disk.files()
    files.make_directory("/d")
    file = files.open("/d/f", create=True)
    file.write_at(0, b"here")
    disk.is_full = True
    for attempt in (
        lambda: file.write_at(4, b"more"),
        lambda: file.truncate(10),
        lambda: files.open("/d/g", create=True),
        lambda: files.write_file("/d/h", b""),
        lambda: files.make_directory("/d/e"),
    ):
        with pytest.raises(OSError) as failed:
            attempt()
        assert failed.value.errno == errno.ENOSPC
    assert (files.read_file("/d/f"), files.list_directory("/d"), files.free_bytes("/d")) == (b"here", ["f"], 0)
    files.make_directory("/d")
    file.truncate(2)
    files.remove("/d/f")
    assert (files.has_refused, other.has_refused) == (True, False)
    disk.is_full = False
    files.write_file("/d/h", b"room")
