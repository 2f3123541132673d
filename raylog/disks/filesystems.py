"""What kind of file system a folder is on, by the machine's table of mounts, and what a log cannot
rely on there.

The table is Linux's (``/proc/self/mounts``). Where there is none, nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
_IN_MEMORY = frozenset({"ramfs", "tmpfs"})
_OF_OTHER_MACHINES = frozenset({"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "nfs", "nfs4", "smb3"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: str) -> str | None:
    """The type of the file system of an absolute path without links; None if the table lacks it. A
    later mount hides an earlier one at the same place.
    """
    places = {path, *path.parents}
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split(" ")
        mounted = Path(_ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), place))
        if mounted in places and (found is None or len(mounted.parts) >= found[0]):
            found = len(mounted.parts), kind
    return None if found is None else found[1]


def doubt_about(kind: str | None) -> str | None:
    """What a log cannot rely on with that type of file system; None for a disk of the machine."""
    if kind in _IN_MEMORY:
        return f"{kind}: its files are gone when the machine restarts. Give a folder on a disk"
    if kind in _OF_OTHER_MACHINES:
        return f"{kind}: raylog is not tried with locks and flushes over a network. Give a folder on a disk of this machine"
    return None


def doubts(folders: Iterable[Path]) -> list[str]:
    """A line for each of these folders that is on a file system to doubt."""
    try:
        mounts = MOUNTS.read_text()
    except OSError:
        return []
    told = [(folder, doubt_about(file_system(folder.resolve(), mounts))) for folder in folders]
    return [f"{folder} is on {doubt}" for folder, doubt in told if doubt is not None]
