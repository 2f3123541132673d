"""Connections of a process that holds replicas to those that lead what it follows: one to each, opened by the first fetch for it.

A process is its node id and its incarnation: the handshake proves both, and a link to an earlier incarnation is closed when a fetch for a
later one comes. Decides nothing: a ``SendFetch`` goes out as a frame, and what comes of it, an answer or none, goes back to the machine
as an event. The machine gives up a fetch when it sends a newer one to the same leader. On an open link both travel; while the link is
being opened the newer one takes the place of the older.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.actors.apis import fetch
from raylog.errors import RaylogError
from raylog.replication.events import FetchAnswered, FetchFailed, SendFetch
from raylog.types import Endpoint
from raylog.wire.connection import Connection
from raylog.wire.handshake import Peer

logger = logging.getLogger("raylog.replica")

ANSWER_GRACE_MS = 30_000
"""How long beyond the wait that a fetch allows its answer may take."""


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who fetches, and what proves it."""

    peer: Peer
    secret: bytes
    cluster_id: str
    on_event: Callable[[FetchAnswered | FetchFailed], None]


class LeaderLinks:
    """On the event loop. ``on_event`` hears of each fetch once, unless its link is closed before or a newer fetch has taken its place."""

    def __init__(
        self,
        peer: Peer,
        *,
        secret: bytes,
        cluster_id: str,
        on_event: Callable[[FetchAnswered | FetchFailed], None],
    ) -> None:
        self._caller = _Caller(peer, secret, cluster_id, on_event)
        self._links: dict[tuple[int, int], _LeaderLink] = {}

    def send(self, effect: SendFetch) -> None:
        """Fetch from the process that the effect names."""
        key = (effect.leader_node, effect.leader_incarnation)
        link = self._links.get(key)
        if link is None:
            for old in [each for each in self._links if each[0] == effect.leader_node]:
                self._links.pop(old).close()
            link = self._links[key] = _LeaderLink(self._caller, effect.endpoint, key)
        link.send(effect)

    def close(self) -> None:
        """Close all of them."""
        for link in self._links.values():
            link.close()


class _LeaderLink:
    def __init__(self, caller: _Caller, endpoint: Endpoint, key: tuple[int, int]) -> None:
        self._caller = caller
        self._endpoint = endpoint
        self._key = key
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: SendFetch | None = None  # while the connection is being opened

    def send(self, effect: SendFetch) -> None:
        if self._connection is not None and self._connection.is_open:
            self._call(self._connection, effect)
            return
        is_opening = self._waiting is not None
        self._waiting = effect
        if not is_opening:
            self._opening = asyncio.get_running_loop().create_task(self._open(f"replica-{effect.replica_id}"))

    async def _open(self, client_id: str) -> None:
        caller = self._caller
        connection: Connection | None = None
        try:
            connection = await Connection.open(
                self._endpoint,
                secret=caller.secret,
                cluster_id=caller.cluster_id,
                expect=self._key,
                caller=caller.peer,
                client_id=client_id,
                borrows_records=True,
            )
        except RaylogError as error:
            logger.info("cannot fetch from node %d at %s: %s", self._key[0], self._endpoint, error)
        finally:
            effect, self._waiting = self._waiting, None
        assert effect is not None, "a link was opened for nothing"
        if connection is None:
            caller.on_event(FetchFailed(*self._key, effect.fetch_id))
        else:
            self._connection = connection
            self._call(connection, effect)

    def _call(self, connection: Connection, effect: SendFetch) -> None:
        def answered(reply: Any, error: Exception | None) -> None:
            if error is None and int(getattr(reply, "error_code", 0)) == ErrorCode.none:
                results = fetch.follower_results(reply)
                self._caller.on_event(FetchAnswered(*self._key, effect.fetch_id, results))
            else:
                self._caller.on_event(FetchFailed(*self._key, effect.fetch_id))

        timeout_ms = effect.max_wait_ms + ANSWER_GRACE_MS
        connection.call(fetch.follower_request(effect), answered, timeout_ms=timeout_ms)

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close()
