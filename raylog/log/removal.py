"""Deleting the folder of a replica that no log of this process has open: its topic was deleted while nobody held it.

A folder that names another topic id in ``partition.metadata``, or none, is somebody else's and stays.
"""

from __future__ import annotations

import uuid

from raylog.errors import DiskError
from raylog.log.files import Files
from raylog.log.partition_metadata import read_topic_id


def doomed_directory(directory: str, topic_id: uuid.UUID) -> str:
    """What a folder is called while it is being deleted."""
    return f"{directory}.{topic_id.hex}-delete"


def remove_folder(files: Files, directory: str, topic_id: uuid.UUID) -> None:
    """Delete the folder if it is that topic's, and what a deletion that was interrupted has left. OSError if that fails.

    Idempotent. A folder that is locked by a log is not looked at: its owner deletes it.
    """
    doomed = doomed_directory(directory, topic_id)
    if files.exists(directory):
        try:
            is_its = read_topic_id(files, directory) == topic_id
        except DiskError:
            is_its = False
        if is_its:
            files.remove_directory(doomed)
            files.replace(directory, doomed)
    files.remove_directory(doomed)
