"""Folders that are not on a disk: a table from the beginning of a path to the ``Files`` that hold
what lies there.

Servers are told where their data is by a path. Where that begins with a folder which was mounted,
its files are those of a file system in memory, and nothing below it is ever looked for on a disk.
The table is the process's own: who makes a cluster in memory mounts a name that no disk has, and
takes it off again.
"""

from __future__ import annotations

import os

from raylog.log.disk_files import DiskFiles
from raylog.log.files import Files

_mounted: dict[str, Files] = {}


def mount(folder: str | os.PathLike[str], files: Files) -> None:
    """From now on everything in that folder is in ``files``, under the same paths."""
    path = os.fspath(folder)
    assert os.path.isabs(path) and path not in _mounted, path
    files.make_directory(path)
    _mounted[path] = files


def unmount(folder: str | os.PathLike[str]) -> None:
    """Idempotent."""
    _mounted.pop(os.fspath(folder), None)


def mounted_at(path: str | os.PathLike[str]) -> Files | None:
    """The files of a folder that was mounted; None for a path on a disk."""
    if not _mounted:
        return None
    text = os.fspath(path)
    return next(
        (files for folder, files in _mounted.items() if text == folder or text.startswith(folder + os.sep)), None
    )


def files_at(path: str | os.PathLike[str]) -> Files:
    """Whatever holds that path."""
    return mounted_at(path) or DiskFiles()
