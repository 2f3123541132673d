"""Users of PLAIN whose names and passwords stand in files of the broker's machine:
``listener.name.NAME.plain.sasl.jaas.config`` with ``${file:PATH:NAME}``.

A thread reads the files again and again. When they name other users or passwords, these
count. Files that cannot be read or do not fit are reported in the log, once, and the users of before
count until they change again.
"""

from __future__ import annotations

import asyncio
import logging

from raylog.configs.listener_configs import plain_users
from raylog.errors import ConfigError
from raylog.wire.file_watch import FileWatch
from raylog.wire.listeners import Listeners, NamedListener
from raylog.wire.plain_logins import PlainLogins

logger = logging.getLogger("raylog.broker")


class PlainUserFiles(FileWatch):
    """Reads the files of all listeners."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: list[tuple[PlainLogins, str, str]] = []
        self._faults: dict[str, str] = {}  # that the log has, by listener

    @property
    def has_files(self) -> bool:
        return bool(self._watched)

    def logins(self, listeners: Listeners, listener: NamedListener) -> PlainLogins | None:
        """The users of that listener; None if its settings name none. Raises ConfigError."""
        said = listeners.plain_users_of(listener)
        if said is None:
            return None
        logins = PlainLogins(listener.name, plain_users(*said))
        self._watched.append((logins, *said))
        return logins

    async def look(self) -> None:
        for logins, name, text in self._watched:
            try:
                users = await asyncio.to_thread(plain_users, name, text)
            except ConfigError as error:
                if self._faults.get(logins.listener) != str(error):
                    self._faults[logins.listener] = str(error)
                    logger.error("listener %s keeps its users of PLAIN: %s", logins.listener, error)
                continue
            self._faults.pop(logins.listener, None)
            if users != logins.users:
                logins.use(users)
                logger.info("listener %s has %d users of PLAIN now", logins.listener, len(users))
