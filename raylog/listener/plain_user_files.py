"""Users of PLAIN whose names and passwords stand in files of the broker's machine:
``listener.name.NAME.plain.sasl.jaas.config`` with ``${file:PATH:NAME}``.

Every ``LOOK_S`` seconds a thread reads the files. When they name other users or passwords, these
count. Files that cannot be read or do not fit are reported in the log, once, and the users of before
count until they change again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from raylog.configs.listener_configs import plain_users
from raylog.errors import ConfigError
from raylog.wire.listeners import Listeners, NamedListener
from raylog.wire.plain_logins import PlainLogins

logger = logging.getLogger("raylog.broker")

LOOK_S: Final = 1.0


class PlainUserFiles:
    """Reads the files of all listeners from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._watched: list[tuple[PlainLogins, str, str]] = []

    def logins(self, listeners: Listeners, listener: NamedListener) -> PlainLogins | None:
        """The users of that listener; None if its settings name none. Raises ConfigError."""
        said = listeners.plain_users_of(listener)
        if said is None:
            return None
        logins = PlainLogins(listener.name, plain_users(*said))
        self._watched.append((logins, *said))
        return logins

    def start(self) -> None:
        """Begin to look."""
        if self._watched:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        faults: dict[str, str] = {}  # that the log has, by listener
        while True:
            await asyncio.sleep(LOOK_S)
            for logins, name, text in self._watched:
                try:
                    users = await asyncio.to_thread(plain_users, name, text)
                except ConfigError as error:
                    if faults.get(logins.listener) != str(error):
                        faults[logins.listener] = str(error)
                        logger.error("listener %s keeps its users of PLAIN: %s", logins.listener, error)
                    continue
                faults.pop(logins.listener, None)
                if users != logins.users:
                    logins.use(users)
                    logger.info("listener %s has %d users of PLAIN now", logins.listener, len(users))
