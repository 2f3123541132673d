"""The small files of a disk: each is read and replaced as a whole, on a real disk or in memory
(``raylog.log.mounts``).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from raylog.log.mounts import mounted_at


def make_folder(path: Path) -> None:
    """Make the folder, and those above it, where they are not there."""
    files = mounted_at(path)
    if files is not None:
        files.make_directory(str(path))
    else:
        path.mkdir(parents=True, exist_ok=True)


def read_text(path: Path) -> str:
    """The whole file. Raises OSError."""
    files = mounted_at(path)
    return path.read_text(encoding="utf-8") if files is None else files.read_file(str(path)).decode()


def replace_file(path: Path, text: str, *, mode: int) -> None:
    """Write the whole file, durably; whoever reads it sees the old text or the new one."""
    files = mounted_at(path)
    if files is not None:
        files.write_file(str(path), text.encode())
        return
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def mode_of(configs: Collection[object]) -> int:
    """The mode of a file that anybody may read, unless it has configs, some of which are secret."""
    return 0o600 if configs else 0o644


def remove_file(path: Path) -> None:
    """Idempotent."""
    files = mounted_at(path)
    if files is None:
        path.unlink(missing_ok=True)
    elif files.exists(str(path)):
        files.remove(str(path))
