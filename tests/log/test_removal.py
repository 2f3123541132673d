"""Deleting a replica's folder that no log has open."""

from __future__ import annotations

import errno
import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from raylog.errors import DiskLockedError
from raylog.log.config import LogConfig
from raylog.log.disk_files import DiskFiles
from raylog.log.log import Log
from raylog.log.partition_metadata import LOCK_NAME, read_topic_id, write_topic_id
from raylog.log.removal import doomed_directory, remove_folder
from raylog.simulator.simulated_files import SimulatedDisk, WorstLuck

T, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def folder(tmp_path, topic_id):
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(b"records")
    if topic_id is not None:
        write_topic_id(DiskFiles(), str(directory), topic_id)
    return directory


def test_a_deleted_topics_folder_goes(tmp_path):
    directory = folder(tmp_path, T)
    remove_folder(DiskFiles(), str(directory), T)
    assert list(tmp_path.iterdir()) == []
    remove_folder(DiskFiles(), str(directory), T)


def test_another_topics_folder_of_the_same_name_stays(tmp_path):
    for topic_id in (OTHER, None):
        directory = folder(tmp_path, topic_id)
        remove_folder(DiskFiles(), str(directory), T)
        assert (directory / "00000000000000000000.log").exists()
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()


def test_a_folder_whose_metadata_cannot_be_read_stays(tmp_path):
    directory = folder(tmp_path, None)
    (directory / "partition.metadata").write_text("garbage")
    remove_folder(DiskFiles(), str(directory), T)
    assert directory.exists()


def test_what_an_interrupted_deletion_left_goes_too(tmp_path):
    directory = folder(tmp_path, T)
    directory.rename(doomed_directory(str(directory), T))
    remove_folder(DiskFiles(), str(directory), T)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_log_has_open_is_not_deleted(tmp_path):
    directory = folder(tmp_path, T)
    files = DiskFiles()
    lock = files.lock(str(directory / LOCK_NAME))
    with pytest.raises(DiskLockedError):
        remove_folder(files, str(directory), T)
    assert (directory / "00000000000000000000.log").exists()
    lock.close()
    remove_folder(files, str(directory), T)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_log_open", [True, False])
def test_a_deleted_folder_does_not_come_back_when_power_is_lost(has_log_open):
    """The controller forgets a replica whose folder is gone, so nobody would ever free the space of one that comes back."""
    disk = SimulatedDisk()
    files = disk.files()
    files.make_directory("/disk")
    log = Log.open(
        "/disk/t-0",
        files=files,
        config=LogConfig(segment_index_bytes=4096),
        topic="t",
        partition=0,
        topic_id=T,
        now_ms=0,
        boot_id="boot",
    )
    disk.flush_everything()
    if has_log_open:
        log.delete()
    else:
        log.close()
        remove_folder(files, "/disk/t-0", T)
    disk.lose_power(WorstLuck())
    assert disk.files().list_directory("/disk") == []


def test_a_folder_that_was_set_aside_for_the_next_topic_of_its_name_goes_with_its_topic(tmp_path):
    directory = folder(tmp_path, T)
    opened(directory, OTHER).close()
    assert len(list(tmp_path.iterdir())) == 2
    remove_folder(DiskFiles(), str(directory), T)
    assert list(tmp_path.iterdir()) == [directory] and read_topic_id(DiskFiles(), str(directory)) == OTHER


def opened(directory, topic_id):
    return Log.open(
        str(directory),
        files=DiskFiles(),
        config=LogConfig(segment_index_bytes=4096),
        topic="t",
        partition=0,
        topic_id=topic_id,
        now_ms=0,
        boot_id="boot",
    )


def test_a_real_disk_bears_openings_that_race_with_deletions(tmp_path):
    """The interleavings of ``test_interleavings``, as far as the operating system finds them."""
    directory = tmp_path / "t-0"

    def open_anew(topic_id):
        while True:
            try:
                return opened(directory, topic_id)
            except DiskLockedError:
                continue

    with ThreadPoolExecutor(1) as other:
        log = opened(directory, uuid.UUID(int=1))
        for number in range(2, 30):
            opening = other.submit(open_anew, uuid.UUID(int=number))
            log.delete()
            log = opening.result()
            assert read_topic_id(DiskFiles(), str(directory)) == uuid.UUID(int=number)
            with pytest.raises(DiskLockedError):
                DiskFiles().lock(f"{directory}/{LOCK_NAME}")
            assert [path.name for path in tmp_path.iterdir() if "stray" not in path.name] == ["t-0"]
    log.close(clean=False)


def test_a_lock_is_of_the_file_that_its_path_leads_to(tmp_path, monkeypatch):
    """The folder is renamed, and made again, between the opening of the lock file and its locking."""
    import fcntl

    directory = folder(tmp_path, T)
    flock, renamed = fcntl.flock, tmp_path / "doomed"

    def late(descriptor, operation):
        if not renamed.exists():
            directory.rename(renamed)
            folder(tmp_path, OTHER)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    files = DiskFiles()
    lock = files.lock(str(directory / LOCK_NAME))
    with pytest.raises(DiskLockedError):
        files.lock(str(directory / LOCK_NAME))
    files.lock(str(renamed / LOCK_NAME)).close()
    lock.close()


def test_a_full_disk_keeps_no_folder_from_being_deleted(tmp_path, monkeypatch):
    directory = folder(tmp_path, T)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    remove_folder(DiskFiles(), str(directory), T)
    assert list(tmp_path.iterdir()) == []
