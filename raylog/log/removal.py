"""Deleting the folder of a replica that no log of this process has open: its topic was deleted, or it moved, while nobody held it.

A folder that names another topic id in ``partition.metadata``, or none, is somebody else's and stays.
"""

from __future__ import annotations

import uuid

from raylog.errors import DiskError
from raylog.log.files import Files
from raylog.log.partition_metadata import LOCK_NAME, read_topic_id


def doomed_directory(directory: str, topic_id: uuid.UUID) -> str:
    """What a folder is called while it is being deleted."""
    return f"{directory}.{topic_id.hex}-delete"


def remove_folder(files: Files, directory: str, topic_id: uuid.UUID) -> None:
    """Delete the folder if it is that topic's, and what a deletion that was interrupted has left. OSError if that fails.

    Idempotent. DiskLockedError: a log has it open, in a process that is dying or because the replica has come back meanwhile.
    """
    doomed = doomed_directory(directory, topic_id)
    if files.exists(directory):
        try:
            is_its = read_topic_id(files, directory) == topic_id
        except DiskError:
            is_its = False
        if is_its:
            lock = files.lock(f"{directory}/{LOCK_NAME}")
            try:
                files.remove_directory(doomed)
                files.replace(directory, doomed)
            finally:
                lock.close()
    files.remove_directory(doomed)
