"""Deleting the folder of a replica: its topic was deleted, or the replica moved to another broker.

A folder is deleted in two steps. It is renamed to ``<folder>.<topic id>-delete`` while the deleting
process holds its lock, so nobody else ever sees half of it, and a topic of the same name can have
its folder at once. Then the renamed folder is removed. A crash between the steps leaves a renamed
folder, which the next ``remove_folder`` removes.

A deletion ends with a sync of the disk's folder: the controller forgets a replica whose folder is
gone, and nobody would free the space of one that a loss of power brings back.

A folder that names another topic id in ``partition.metadata``, or none, is somebody else's and
stays. One that the opening of a later topic of the same name has set aside (``stray_directory``) is
removed with its own topic.
"""

from __future__ import annotations

import os.path
import uuid
from contextlib import suppress

from raylog.errors import DiskError
from raylog.log.files import Files
from raylog.log.partition_metadata import LOCK_NAME, read_topic_id


def doomed_directory(directory: str, topic_id: uuid.UUID) -> str:
    """What a folder is called while it is being deleted."""
    return f"{directory}.{topic_id.hex}-delete"


def stray_directory(directory: str, topic_id: uuid.UUID) -> str:
    """What a folder of that topic is called once another topic of its name needs the place."""
    return f"{directory}.{topic_id.hex}-stray"


def rename_for_removal(files: Files, directory: str, topic_id: uuid.UUID) -> None:
    """The first step. The caller holds the folder's lock and has seen that it is that topic's."""
    doomed = doomed_directory(directory, topic_id)
    files.remove_directory(doomed)
    files.replace(directory, doomed)


def remove_folder(files: Files, directory: str, topic_id: uuid.UUID) -> None:
    """Delete the folder if it is that topic's, what an interrupted deletion has left, and what was
    set aside.

    It stays away when power is lost after that. OSError if any of it fails.

    Idempotent. DiskLockedError: a log has it open, in a process that is dying or because the
    replica has come back meanwhile; or another process opens or deletes it just now.
    """
    if _is_of(files, directory, topic_id):
        try:
            lock = files.lock(f"{directory}/{LOCK_NAME}")
        except FileNotFoundError:
            lock = None  # another process has renamed it meanwhile
        if lock is not None:
            try:
                # Again, now that nobody else may touch it: until here it could become another
                # topic's.
                if _is_of(files, directory, topic_id):
                    rename_for_removal(files, directory, topic_id)
            finally:
                lock.close()
    files.remove_directory(stray_directory(directory, topic_id))
    finish_removal(files, directory, topic_id)


def finish_removal(files: Files, directory: str, topic_id: uuid.UUID) -> None:
    """The second step, which needs no lock."""
    files.remove_directory(doomed_directory(directory, topic_id))
    with suppress(FileNotFoundError):  # the disk's folder is gone, too
        files.sync_directory(os.path.dirname(directory))


def _is_of(files: Files, directory: str, topic_id: uuid.UUID) -> bool:
    try:
        return read_topic_id(files, directory) == topic_id
    except DiskError:
        return False
