"""Deleting a replica's folder that no log has open."""

from __future__ import annotations

import uuid

import pytest

from raylog.errors import DiskLockedError
from raylog.log.disk_files import DiskFiles
from raylog.log.partition_metadata import LOCK_NAME, write_topic_id
from raylog.log.removal import doomed_directory, remove_folder

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
