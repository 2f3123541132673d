"""What followers ask of this process, kept between their fetches: a fetch of a *session* names only what has changed
since the one before (KIP-227), and only that is read, with what there is news of. So a record costs its followers the
same however many other partitions they follow here.

A session is one following process's (one broker may have several). It begins with a fetch that names all partitions and
says that it wants all; the answer holds the session's number. Each further fetch counts one up, and is sent when the
answer to the one before has come: another one belongs to no session, and is refused. A fetch outside of sessions from
the same process ends its session. So does the loss of a connection on which a fetch waits; a session that nobody has
asked in for ``IDLE_MS`` ends with the beginning of another one.

The session watches its partitions (``parked.Watchers``) all the time, whether a fetch waits or not, and notes those of
which there is news. What nobody announces (retention moves a log's start outside of the machine) is found by the look at
all of them that each ``LOOK_MS`` one fetch takes.

Invariants (``check``): a session that waits is parked; each of its replicas knows it; news is of its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from raylog.replication.events import FetchPartition, FetchReceived
from raylog.replication.parked import ParkedFetch
from raylog.replication.replica import Replica
from raylog.types import TopicIdPartition

LOOK_MS: Final = 5_000
IDLE_MS: Final = 60_000
SESSIONS_MAX: Final = 1_000
NUMBER_MAX: Final = 0x7FFFFFFF


def next_epoch(epoch: int) -> int:
    """The one that follows in the session; after the largest comes 1."""
    return epoch + 1 if epoch < NUMBER_MAX else 1


def _process(event: FetchReceived) -> tuple[int, int]:
    return event.replica_id, event.replica_incarnation


class FollowerSession(ParkedFetch):
    """One follower's. ``request`` is its newest fetch, ``parts`` what it asks of each partition.

    ``news``: the partitions to be read for the next answer, in order. ``outside``: those in whose ISR the follower is
    not; each fetch counts for them again.
    """

    __slots__ = ("epoch", "fetched_at_ms", "id", "looked_at_ms", "news", "outside", "parts")

    def __init__(
        self, id: int, request: FetchReceived, replicas: list[Replica], expire: Callable[[ParkedFetch, int], None]
    ) -> None:
        super().__init__(request, replicas, expire)
        self.id = id
        self.epoch = 0
        self.parts: dict[TopicIdPartition, FetchPartition] = {part.id: part for part in request.partitions}
        self.news: dict[TopicIdPartition, None] = dict.fromkeys(self.parts)
        self.outside: dict[TopicIdPartition, None] = {}
        self.fetched_at_ms = 0
        self.looked_at_ms = 0

    @property
    def is_parked(self) -> bool:
        """Whether a fetch waits for its answer."""
        return self.deadline is not None

    def wanted(self) -> Iterable[FetchPartition]:
        return [self.parts[id] for id in self.news]

    def watch(self) -> None:
        """It does, as long as it lives."""

    def unwatch(self) -> None:
        """Not before it ends."""

    def hear(self, id: TopicIdPartition, waking: dict[ParkedFetch, None]) -> None:
        if id in self.parts:
            self.news[id] = None
            if self.is_parked:
                waking[self] = None

    def note_isr(self, id: TopicIdPartition, *, is_member: bool) -> None:
        """Whether the follower is in the ISR of that partition."""
        if is_member:
            self.outside.pop(id, None)
        elif id in self.parts:
            self.outside[id] = None

    def goes_on(self, request: FetchReceived, now_ms: int) -> Iterable[FetchPartition]:
        """Its next fetch has come; returns the questions that it counts for."""
        self.request = request
        self.epoch = request.session_epoch
        self.load_due_ms, self.loads, self.lacks = None, 0, frozenset()
        for part in request.partitions:
            self.parts[part.id] = part
            self.news[part.id] = None
        return self.looked(now_ms) or [*request.partitions, *(self.parts[id] for id in self.outside)]

    def looked(self, now_ms: int) -> Iterable[FetchPartition]:
        """All of its questions, if it is time to look at all of them, which are to be read then; else none."""
        if now_ms - self.looked_at_ms < LOOK_MS:
            return ()
        self.looked_at_ms = now_ms
        self.news |= dict.fromkeys(self.parts)
        return self.parts.values()

    def told(self, waiting: Iterable[TopicIdPartition], unsent: Iterable[TopicIdPartition] = ()) -> None:
        """What there was news of has been read: there is more of ``waiting``, and ``unsent`` was not answered."""
        self.news = dict.fromkeys(unsent) | dict.fromkeys(waiting)


class FollowerSessions:
    """Those of one host, by number."""

    def __init__(self, replicas: Mapping[TopicIdPartition, Replica]) -> None:
        self._replicas = replicas
        self._sessions: dict[int, FollowerSession] = {}
        self._last_id = 0

    def superseded(self, event: FetchReceived) -> list[FollowerSession]:
        """The sessions that a fetch outside of them ends: those of the same process, which follows a
        partition in one of them only. (Processes of one broker may have the same incarnation.)
        """
        same = [each for each in self._sessions.values() if _process(each.request) == _process(event)]
        return [each for each in same if any(part.id in each.parts for part in event.partitions)]

    def idle(self, now_ms: int) -> list[FollowerSession]:
        """Those in which nobody has asked for long."""
        return [
            each for each in self._sessions.values() if not each.is_parked and now_ms - each.fetched_at_ms > IDLE_MS
        ]

    def begun(
        self, event: FetchReceived, now_ms: int, expire: Callable[[ParkedFetch, int], None]
    ) -> FollowerSession | None:
        """A session that begins with this fetch; None while there are too many."""
        if len(self._sessions) >= SESSIONS_MAX:
            return None
        self._last_id = next_epoch(self._last_id)
        replicas = [replica for part in event.partitions if (replica := self._replicas.get(part.id)) is not None]
        session = self._sessions[self._last_id] = FollowerSession(self._last_id, event, replicas, expire)
        session.looked_at_ms = session.fetched_at_ms = now_ms
        for replica in replicas:
            replica.watchers.followers[session] = None
        return session

    def of(self, event: FetchReceived) -> FollowerSession | None:
        """The session whose next fetch this is; None if there is none."""
        session = self._sessions.get(event.session_id)
        if session is None or session.is_parked or event.session_epoch != next_epoch(session.epoch):
            return None
        is_its = _process(event) == _process(session.request)
        return session if is_its and all(part.id in session.parts for part in event.partitions) else None

    def end(self, session: FollowerSession) -> None:
        """Watch nothing more for it."""
        self._sessions.pop(session.id, None)
        for replica in session.replicas:
            replica.watchers.followers.pop(session, None)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for id, session in self._sessions.items():
            assert id == session.id
            assert session.news.keys() <= session.parts.keys(), f"session {id} has news of others' partitions"
            for replica in session.replicas:
                assert session in replica.watchers.followers, f"session {id} hears nothing of {replica.id}"
