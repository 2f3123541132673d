"""TLS on the links inside, as a node's own start or its lending says it. Each node has files of its own,
so each node says it of its own disks, blank ones included.
"""

from __future__ import annotations

from pathlib import Path

from raylog.disks.disk import lock_disk, read_disk
from raylog.disks.link_file import Links, read_links, write_links
from raylog.errors import ConfigError, DiskError, DiskLockedError


def links_of(path: Path) -> Links:
    """What is noted in a disk's folder or a blank one. Raises DiskError."""
    try:
        return read_links(path)
    except ConfigError as error:
        raise DiskError(f"{path}: {error}") from None


def note_links(path: Path, links: Links | None) -> None:
    """Note in the folder of a disk, or in a blank one, how links have TLS; None: what is noted stays.
    Processes go by it from their next start. Raises DiskError, also if the disk's processes run by something else.
    """
    if links is None or links == links_of(path):
        return
    try:
        lock = lock_disk(path) if read_disk(path) is not None else None
    except DiskLockedError:
        raise DiskError(
            f"{path}: the cluster runs with other TLS inside: shut it down before that is changed"
        ) from None
    try:
        write_links(path, links)
    except OSError as error:
        raise DiskError(f"{path} can't be used: {error.strerror or error}") from error
    finally:
        if lock is not None:
            lock.release()
