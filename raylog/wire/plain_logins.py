"""The users that one listener's settings name for PLAIN (``raylog.security.plain_users``), and the
connections that they opened.

When a user is gone, its connections end. A new password leaves open ones alone, until they
authenticate again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from raylog.security.plain_users import PlainDone, PlainUsers

logger = logging.getLogger("raylog.broker")


class PlainLogins:
    """``users`` are those that count now; ``use`` replaces them."""

    def __init__(self, listener: str, users: PlainUsers) -> None:
        self.listener = listener
        self.users = users
        self._connections: dict[str, dict[object, Callable[[], None]]] = {}  # what closes each, by user

    def log_in(self, token: bytes) -> PlainDone:
        """Who the client is. Raises AuthenticationError."""
        return self.users.log_in(token)

    def opened(self, user: str, connection: object, close: Callable[[], None]) -> None:
        """The user has opened a connection, which ends with it."""
        self._connections.setdefault(user, {})[connection] = close

    def forget(self, done: PlainDone, connection: object) -> None:
        connections = self._connections.get(done.user, {})
        connections.pop(connection, None)
        if not connections:
            self._connections.pop(done.user, None)

    def use(self, users: PlainUsers) -> None:
        """From now on these count."""
        self.users = users
        for user in [user for user in self._connections if user not in users.names]:
            gone = self._connections.pop(user)
            logger.info("closing %d connections of user %r, whom PLAIN does not know any more", len(gone), user)
            for close in gone.values():
                close()
