"""Looking at files again and again, for as long as somebody serves by what they say."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LOOK_S: Final = 1.0

Stamp = tuple[tuple[int, int, int] | None, ...]


class FileWatch(ABC):
    """Looks every ``LOOK_S`` seconds from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._watching: asyncio.Task[None] | None = None

    @property
    def has_files(self) -> bool:
        """Whether there is something to look at. ``start`` does nothing otherwise."""
        return True

    def start(self) -> None:
        """Begin to look."""
        if self.has_files:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @abstractmethod
    async def look(self) -> None:
        """Once, now. Reports what is wrong with the files in the log, and raises nothing of it."""

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()


def stamp_of(files: Sequence[Path]) -> Stamp:
    """What tells whether a file is another one than before."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
