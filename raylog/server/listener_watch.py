"""Whether the disk of a Broker that runs names other listeners than it was started with.

Every ``LOOK_S`` seconds a thread looks at the disk's two files that name them. Once they name others
that can be used, ``changed`` is called and the watch is over. Listeners that cannot be used, such as
ones whose certificates cannot be read, are reported in the log, and the Broker keeps what it has
until the files change again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raylog.disks.disk import META_FILE, read_disk
from raylog.disks.listener_file import LISTENERS_FILE
from raylog.errors import RaylogError
from raylog.wire.certificates import Stamp, stamp_of
from raylog.wire.listeners import Listeners, checked

logger = logging.getLogger("raylog.broker")

LOOK_S: Final = 1.0


class ListenerWatch:
    """Looks at the disk in the folder ``path`` from ``start`` to ``stop``, or until it calls
    ``changed``. ``started``: the listeners that the disk named at the Broker's start.
    """

    def __init__(self, path: Path, started: Listeners | None, changed: Callable[[], None]) -> None:
        self._path = path
        self._files = (path / META_FILE, path / LISTENERS_FILE)
        self._started = started
        self._changed = changed
        self._seen: Stamp | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while not await asyncio.to_thread(self._names_others):
            await asyncio.sleep(LOOK_S)
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
