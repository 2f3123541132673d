"""``partition.metadata``: which topic a partition's folder belongs to. Apache Kafka's file, text::

    version: 0
    topic_id: <16 bytes as URL-safe base64 without padding>

A topic that is deleted and created again has another id, so a folder with another id than the
metadata's is a stray.
"""

from __future__ import annotations

import base64
import uuid

from raylog.errors import DiskError
from raylog.log.files import Files

FILE_NAME = "partition.metadata"
LOCK_NAME = "replica.lock"
"""Beside it; held for as long as a log of the folder is open, and while the folder is being
deleted.
"""


def read_topic_id(files: Files, directory: str) -> uuid.UUID | None:
    """The topic id that a folder names, None if it has no such file. DiskError if the file cannot
    be understood.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        text = files.read_file(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    version = fields.get("version", "")
    if version.isdigit() and int(version) > 0:
        raise DiskError(f"{path} has version {version}, newer than this raylog reads (0). Upgrade raylog.")
    try:
        assert version == "0"
        return uuid.UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except (AssertionError, KeyError, ValueError):
        raise DiskError(
            f"{path} is damaged: {text[:80]!r}. Move the folder away; the replica is fetched again."
        ) from None


def write_topic_id(files: Files, directory: str, topic_id: uuid.UUID) -> None:
    """Write the file. Its bytes are on the disk afterwards, its name once the directory is synced."""
    encoded = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    path = f"{directory}/{FILE_NAME}"
    file = files.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        file.write_at(0, f"version: 0\ntopic_id: {encoded}\n".encode())
        file.flush()
    finally:
        file.close()
    files.replace(path + ".tmp", path)
