"""Incremental fetch sessions (KIP-227): a client names its partitions once and then only the
changes; answers hold only partitions with news.

Pure: ``now_ms`` and new ids are arguments. A session belongs to the Broker, not to a connection, so
a client may continue it after reconnecting. Sessions are a cache: a client whose session was
dropped sends its whole list again.

==================  =========================  ==========================================================================
session id, epoch   the request is             it is answered
==================  =========================  ==========================================================================
any, −1             full, ends the session     everything asked for, session 0
any, 0              full, opens a session      everything asked for, with the new session's id; 0 if there is no room for one
a session, its      incremental                what has news; unknown id: FETCH_SESSION_ID_NOT_FOUND, another epoch than the next:
next epoch                                     INVALID_FETCH_SESSION_EPOCH
==================  =========================  ==========================================================================

The cache holds ``slots`` sessions (Kafka's ``max.incremental.fetch.session.cache.slots``) and
``PARTITIONS_MAX`` partitions in all. When it is full a new session takes the place of the one that
was used least recently, if that one was not used for ``EVICTION_MS``; otherwise it is not kept.

Invariants: sessions stand in the order of their last use; a session's partitions stand in the order
in which they are asked for next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

SLOTS: Final = 1_000
PARTITIONS_MAX: Final = 1_000_000
EVICTION_MS: Final = 120_000
NO_SESSION: Final = 0
OPENING_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = (1 << 31) - 1

Key = tuple[Any, int]
"""A partition as the client names it: the topic's name or id, and the number."""


@dataclass(slots=True)
class SessionPartition:
    """A partition of a session: what the client asks for, and what it last got."""

    request: Any  # the FetchPartition of its last request
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """``next_epoch`` is the epoch that the next request must have. ``version`` is the Fetch version
    of the stored partitions.
    """

    session_id: int
    version: int
    partitions: dict[Key, SessionPartition] = field(default_factory=dict)
    next_epoch: int = 1
    used_ms: int = 0


@dataclass(frozen=True, slots=True)
class Fetching:
    """One request with its session resolved. ``session`` None: the request is full and has none."""

    partitions: list[tuple[Key, Any]]
    session: FetchSession | None
    is_full: bool


class FetchSessions:
    """``draw_id`` returns a random positive number below 2**31."""

    def __init__(self, draw_id: Callable[[], int], *, slots: int = SLOTS) -> None:
        self._draw_id = draw_id
        self.slots = slots
        self._sessions: dict[int, FetchSession] = {}  # the least recently used first
        self._partitions = 0  # in all sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        version: int,
        session_id: int,
        epoch: int,
        asked: Iterable[tuple[Key, Any]],
        forgotten: Iterable[Key],
        now_ms: int,
    ) -> Fetching | ErrorCode:
        """Resolve a request. ``asked``: the partitions that it names, as (key, entity)."""
        if epoch in (FINAL_EPOCH, OPENING_EPOCH):
            self.drop(session_id)
            partitions = list(asked)
            session = self._open(version, partitions, now_ms) if epoch == OPENING_EPOCH else None
            return Fetching(partitions, session, is_full=True)
        session = self._sessions.get(session_id)
        if session is None or session.version != version:
            return ErrorCode.fetch_session_id_not_found
        if epoch != session.next_epoch:
            return ErrorCode.invalid_fetch_session_epoch
        session.next_epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        self._partitions -= len(session.partitions)
        for key, request in asked:
            known = session.partitions.get(key)
            if known is None:
                session.partitions[key] = SessionPartition(request)
            else:
                known.request = request
        for key in forgotten:
            session.partitions.pop(key, None)
        self._partitions += len(session.partitions)
        if not session.partitions:
            self.drop(session_id)
            return Fetching([], None, is_full=True)
        return Fetching([(key, each.request) for key, each in session.partitions.items()], session, is_full=False)

    def answered(self, fetching: Fetching, results: dict[Key, Any]) -> dict[Key, Any]:
        """Return the results to send: all for a full request, otherwise those with news."""
        session = fetching.session
        if session is None:
            return results
        news = {}
        for key, result in results.items():
            asked = session.partitions.get(key)
            if asked is None:
                continue  # another request has dropped it meanwhile
            told = (result.high_watermark, result.last_stable_offset, getattr(result, "log_start_offset", -1))
            if fetching.is_full or _has_news(asked, result, told):
                news[key] = result
            asked.high_watermark, asked.last_stable_offset, asked.log_start_offset = told
            if result.error_code is not ErrorCode.none:
                asked.high_watermark = -1  # its end is news, too
            if result.records:  # a partition that got records goes last next time, so that none starves
                session.partitions[key] = session.partitions.pop(key)
        return news

    def _open(self, version: int, partitions: list[tuple[Key, Any]], now_ms: int) -> FetchSession | None:
        if not partitions or not self._has_room(len(partitions), now_ms):
            return None
        session_id = self._draw_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._draw_id()
        session = FetchSession(
            session_id, version, {key: SessionPartition(each) for key, each in partitions}, used_ms=now_ms
        )
        self._sessions[session_id] = session
        self._partitions += len(session.partitions)
        return session

    def _has_room(self, count: int, now_ms: int) -> bool:
        while self._sessions and (len(self._sessions) >= self.slots or self._partitions + count > PARTITIONS_MAX):
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms < EVICTION_MS:
                return False
            self.drop(oldest.session_id)
        return self.slots > 0 and count <= PARTITIONS_MAX

    def drop(self, session_id: int) -> None:
        """Forget a session, if it is there."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def check(self) -> None:
        """Assert the invariants that hold between two requests."""
        assert self._partitions == sum(len(each.partitions) for each in self._sessions.values()), self._partitions
        used = [each.used_ms for each in self._sessions.values()]
        assert used == sorted(used), "sessions are out of order"
        assert all(each.partitions and each.next_epoch >= 1 for each in self._sessions.values())


def _has_news(asked: SessionPartition, result: Any, told: tuple[int, int, int]) -> bool:
    if result.records or result.error_code is not ErrorCode.none:
        return True
    if told != (asked.high_watermark, asked.last_stable_offset, asked.log_start_offset):
        return True
    diverging = getattr(result, "diverging_epoch", None)
    return (diverging is not None and diverging.end_offset >= 0) or getattr(result, "preferred_read_replica", -1) >= 0
