"""Whether the disk of a Broker that runs names other listeners than it was started with.

A thread looks again and again at the disk's two files that name them. Once they name others
that can be used, ``changed`` is called and the watch is over. Listeners that cannot be used, such as
ones whose certificates cannot be read, are reported in the log, and the Broker keeps what it has
until the files change again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from raylog.disks.disk import META_FILE, read_disk
from raylog.disks.listener_file import LISTENERS_FILE
from raylog.errors import RaylogError
from raylog.wire.file_watch import FileWatch, Stamp, stamp_of
from raylog.wire.listeners import Listeners, checked

logger = logging.getLogger("raylog.broker")


class ListenerWatch(FileWatch):
    """Looks at the disk in the folder ``path``, until it calls ``changed``. ``started``: the
    listeners that the disk named at the Broker's start.
    """

    def __init__(self, path: Path, started: Listeners | None, changed: Callable[[], None]) -> None:
        super().__init__()
        self._path = path
        self._files = (path / META_FILE, path / LISTENERS_FILE)
        self._started = started
        self._changed = changed
        self._seen: Stamp | None = None
        self._is_over = False

    async def look(self) -> None:
        if not self._is_over and await asyncio.to_thread(self._names_others):
            self._is_over = True
            self._changed()

    def _names_others(self) -> bool:
        found = stamp_of(self._files)
        if found == self._seen:
            return False
        self._seen = found
        try:
            disk = read_disk(self._path)
            if disk is None or disk.listeners is None or disk.listeners == self._started:
                return False
            checked([disk.listeners])
        except (RaylogError, OSError) as error:
            logger.error("the broker keeps its listeners: %s", error)
            return False
        return True
