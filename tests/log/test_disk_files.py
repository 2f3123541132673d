"""The real disk keeps the promises of ``Files``, and a log on it those of a log."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from raylog.errors import DiskError
from raylog.log import disk_files
from raylog.log.config import LogConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.files import NotInMemory
from raylog.log.log import Log
from raylog.records.codec import encode_values
from raylog.types import Condition

FILES = DiskFiles()


def _open(directory: Path, boot_id: str = "b", **config: int) -> Log:
    log = Log.open(
        str(directory), files=FILES, config=LogConfig(**config), topic="t", partition=0, topic_id=uuid.UUID(int=5), now_ms=1,
        boot_id=boot_id,
    )  # fmt: skip
    log.trust()
    return log


def test_positioned_writes_take_any_number_of_buffers(tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "f"), create=True)
    parts = [bytes([number % 256]) * (number % 3) for number in range(5000)]
    assert file.write_at(10, *parts) == sum(map(len, parts)) == file.size() - 10
    assert file.read_at(10, 1 << 20) == b"".join(parts) and file.read_at(0, 10) == bytes(10)
    file.truncate(20)
    assert file.size() == 20
    file.close()
    file.close()


def test_a_short_write_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(
        disk_files.os, "pwritev", lambda fd, buffers, at: real(fd, [bytes(memoryview(buffers[0])[:3])], at)
    )
    file = FILES.open(str(tmp_path / "f"), create=True)
    assert file.write_at(0, b"abcdefgh", b"", b"ijklm") == 13
    assert file.read_at(0, 100) == b"abcdefghijklm"
    file.close()


def test_a_missing_file_is_an_error_to_open_but_not_to_remove(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FILES.open(str(tmp_path / "f"))
    FILES.remove(str(tmp_path / "f"))
    FILES.remove_directory(str(tmp_path / "d"))


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    FILES.write_file(path, b"a longer text", flush=True)
    FILES.write_file(path, b"short", flush=False)
    assert FILES.read_file(path) == b"short" and FILES.list_directory(str(tmp_path)) == ["f"]
    assert FILES.size(path) == 5 and FILES.modified_ms(path) > 1_600_000_000_000
    assert FILES.free_bytes(str(tmp_path)) > 0


def test_a_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = FILES.lock(path)
    with pytest.raises(DiskError, match=f"locked by process {os.getpid()}"):
        FILES.lock(path)
    held.close()
    program = f"from raylog.log.disk_files import DiskFiles; DiskFiles().lock({path!r}); import os; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    FILES.lock(path).close()


def test_a_log_on_a_real_disk_survives_close_and_crash(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = _open(directory)
    assert log.condition is Condition.MISSING
    batch = encode_values([b"x" * 1000] * 500, timestamp_ms=1)
    for _ in range(5):
        log.append_as_leader(batch, leader_epoch=0, wall_ms=1)
    with pytest.raises(DiskError, match="locked by process"):
        _open(directory)
    log.close()
    log = _open(directory, "other boot")
    assert (log.condition, log.log_end_offset) == (Condition.CLEAN, 2500)
    log.append_as_leader(batch, leader_epoch=0, wall_ms=1)
    assert log.flush() == 3000
    log.close(clean=False)
    log = _open(directory, "other boot")
    assert (log.condition, log.log_end_offset, log.recovery.scanned_bytes) == (Condition.WHOLE, 3000, 6 * len(batch))
    log.check()
    log.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskError, match="Give"):
        _open(tmp_path / "file" / "t-0")


def test_a_vanished_folder_is_an_os_error(tmp_path: Path) -> None:
    log = _open(tmp_path / "t-0")
    log.append_as_leader(encode_values([b"x"], timestamp_ms=1), leader_epoch=0, wall_ms=1)
    log.high_watermark = 1  # so that the checkpoint has something new to say
    FILES.remove_directory(str(tmp_path / "t-0"))
    with pytest.raises(OSError) as caught:
        log.checkpoint()
    assert caught.value.errno == errno.ENOENT
    log.close(clean=False)


def test_flushes_in_other_threads_run_beside_appends_rolls_and_cuts(tmp_path: Path) -> None:
    log = _open(tmp_path / "t-0", segment_bytes=3000, retention_ms=0, file_delete_delay_ms=0)
    stop, failures = threading.Event(), []

    def flush_on() -> None:
        while not stop.is_set():
            try:
                assert log.flush() >= 0 and log.flush_rolled() >= 0 and log.delete_renamed_files(1 << 40) >= 0
            except Exception as error:  # whatever it is, the test shall see it
                failures.append(error)
                return

    threads = [threading.Thread(target=flush_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    batch = encode_values([b"x" * 200] * 3, timestamp_ms=1)
    for number in range(300):
        log.append_as_leader(batch, leader_epoch=0, wall_ms=1)
        if number % 50 == 20:
            log.truncate_to(max(log.log_start_offset, log.log_end_offset - 25))
        if number % 50 == 40:
            log.high_watermark = log.log_end_offset - 30
            log.delete_old_segments(1 << 40)
        log.check()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert log.flush() == log.log_end_offset == log.recovery_point
    log.close(clean=False)
    assert _open(tmp_path / "t-0").condition is Condition.WHOLE


def _evicted(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _asks_the_disk(path: Path) -> bool:
    """Whether the kernel says that a byte of the file's end is not in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, (bytearray(1),), os.fstat(descriptor).st_size - 1, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(descriptor)
    return False


@pytest.mark.core
def test_evicted_bytes_are_refused_until_they_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "f"
    content = os.urandom(3 << 20)
    file = FILES.open(str(path), create=True)
    file.write_at(0, content)
    assert file.read_at(0, len(content), in_memory=True) == content
    assert file.read_at(len(content) - 5, 100, in_memory=True) == content[-5:], "short only where the file ends"
    _evicted(path)
    if not _asks_the_disk(path):
        pytest.skip("this file system keeps everything in memory, or cannot tell")
    with pytest.raises(NotInMemory) as caught:
        file.read_at(100, 1 << 20, in_memory=True)
    missing = caught.value
    assert (missing.path, missing.position, missing.size) == (str(path), 100, 1 << 20)
    FILES.load(str(path), 100, 1 << 20)
    assert file.read_at(100, 1 << 20, in_memory=True) == content[100 : 100 + (1 << 20)]
    file.close()


def test_loading_a_file_that_is_gone_or_short_is_no_error(tmp_path: Path) -> None:
    FILES.load(str(tmp_path / "gone"), 0, 100)
    FILES.write_file(str(tmp_path / "short"), b"x")
    FILES.load(str(tmp_path / "short"), 1 << 30, 100)


def test_a_file_system_that_cannot_tell_what_is_in_memory_is_read_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unsupported(*arguments: object) -> int:
        asked.append(arguments)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    file = FILES.open(str(tmp_path / "f"), create=True)
    file.write_at(0, b"0123456789")
    monkeypatch.setattr(disk_files.os, "preadv", unsupported)
    assert [file.read_at(2, 3, in_memory=True) for _ in range(2)] == [b"234", b"234"] and len(asked) == 1
    file.close()


def test_a_checkpoint_is_written_again_only_when_it_says_something_new(tmp_path: Path) -> None:
    log = _open(tmp_path / "t-0")
    log.append_as_leader(encode_values([b"x"], timestamp_ms=1), leader_epoch=0, wall_ms=1)
    log.checkpoint()
    path = next((tmp_path / "t-0").glob("replica.checkpoint"))
    written = path.stat().st_mtime_ns, path.stat().st_ino
    log.checkpoint()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == written
    log.high_watermark = 1
    log.checkpoint()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) != written
    log.close(clean=False)
