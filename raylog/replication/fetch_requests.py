"""Fetches of consumers and followers: read what there is, answer what has enough, park the rest.

A fetch reads the partitions in the order asked, sharing ``max_bytes``; the first batch found is
returned whole even if it is larger. A follower's answer leaves out partitions that have no news for
it, a consumer's names them all. Most fetches of followers belong to sessions (``follower_sessions``).

Records, errors and a risen log start answer a follower at once. A high watermark that alone has
risen waits a few milliseconds for records that it can go with: else each record would cost every
follower two answers and two fetches.

Reading never waits for the disk: records that are not in memory count as not there yet while they
are loaded (``cold_reads.py``). A follower takes it for the end of the log when an answer without
any records leaves a partition out; so such an answer names a partition whose records are being
loaded with REQUEST_TIMED_OUT, and one whose records the throttle holds back with
THROTTLING_QUOTA_EXCEEDED, and the follower asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from raylog.log.files import NotInMemory
from raylog.replication.cold_reads import Lacking, Loads, is_patient
from raylog.replication.context import HostContext
from raylog.replication.events import FetchPartition, FetchPartitionResult, FetchReceived, FetchReply, Reply
from raylog.replication.follower_sessions import FollowerSession, FollowerSessions
from raylog.replication.leader import FollowerProgress
from raylog.replication.parked import Parked, ParkedFetch
from raylog.replication.replica import UNKNOWN_LEADER_EPOCH, Replica
from raylog.replication.replication_quota import CopyingOut, is_throttled
from raylog.types import TopicIdPartition

THROTTLED = ErrorCode.throttling_quota_exceeded.value
REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
FETCH_SESSION_ID_NOT_FOUND = ErrorCode.fetch_session_id_not_found.value


class _Reading(NamedTuple):
    """What a fetch would be answered now, and whether that is worth sending before its time is up.

    ``lacking`` has to be loaded to say more. ``is_outdated``: all that is new is the high watermark
    of a follower's partition. ``waiting`` are partitions with more than ``results`` says.
    """

    results: list[FetchPartitionResult]
    is_enough: bool
    lacking: Lacking
    is_outdated: bool
    waiting: list[TopicIdPartition]


class FetchRequests:
    __slots__ = ("_context", "_copying_out", "_loads", "_parked", "_replicas", "_sessions")

    def __init__(
        self,
        context: HostContext,
        replicas: Mapping[TopicIdPartition, Replica],
        parked: Parked,
        loads: Loads,
        copying_out: CopyingOut,
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._parked = parked
        self._loads = loads
        self._copying_out = copying_out
        self._sessions = FollowerSessions(replicas)

    def at_once(self, part: FetchPartition, terms: FetchReceived) -> FetchPartitionResult | None:
        """What a consumer's fetch from one partition finds in memory, if it is enough; None where
        anything is otherwise.
        """
        replica = self._replicas.get(part.id)
        if replica is None or replica.leader is None or part.fetch_offset >= replica.open_log().high_watermark:
            return None
        if replica.validate_fetch(part, follower=False) is not None:
            return None
        limit = min(part.max_bytes, terms.max_bytes, self._context.config.fetch_max_bytes)
        try:
            result = replica.read(part, limit, terms, at_least_one=True, in_memory=True)
        except NotInMemory:
            return None
        size = len(result.records)
        if size < terms.min_bytes and not result.error:
            return None
        if size:
            self._context.traffic.read(part.id, size)
            replica.counts.bytes_out += size
        return result

    def received(self, event: FetchReceived, now_ms: int) -> None:
        if event.replica_id < 0:
            self._answer_or_park(event, None, now_ms)
        elif not event.session_epoch:
            self._supersede(event, now_ms)
            session = self._sessions.begun(event, now_ms, self._expired) if event.wants_all else None
            self._count_follower(event, session, event.partitions, now_ms)
            self._answer_or_park(event, session, now_ms)
        else:
            session = self._sessions.of(event)
            if session is None:
                self._context.effects.append(Reply(event.token, FetchReply((), error=FETCH_SESSION_ID_NOT_FOUND)))
                return
            session.fetched_at_ms = now_ms
            self._count_follower(event, session, session.goes_on(event, now_ms), now_ms)
            self._answer_or_park(event, session, now_ms)

    def _answer_or_park(self, event: FetchReceived, session: FollowerSession | None, now_ms: int) -> None:
        found = self._read(event, now_ms, session)
        places = self._loads.order(found.lacking)
        if found.is_enough or (event.max_wait_ms <= 0 and (not places or event.replica_id >= 0)):
            self._reply_fetch(event, found, session)
            return
        fetch = session if session is not None else self._fetch_of(event)
        self._parked.park_fetch(fetch, now_ms)
        self._unanswered(found, session)
        if places:
            self._loads.wait(fetch, places)
            self._parked.put_off(fetch, now_ms)
        if found.is_outdated:
            self._context.outdated[fetch] = None

    def _fetch_of(self, event: FetchReceived) -> ParkedFetch:
        watched = [replica for part in event.partitions if (replica := self._replicas.get(part.id)) is not None]
        return ParkedFetch(event, watched, self._expired)

    def _supersede(self, event: FetchReceived, now_ms: int) -> None:
        """End the sessions that this fetch takes the place of, and those of followers that have gone."""
        for session in self._sessions.superseded(event):
            if session.is_parked:
                self._unpark_fetch(session)
                self._context.effects.append(Reply(session.token, FetchReply(())))
            self._end(session)
        for session in self._sessions.idle(now_ms):
            self._end(session)

    def _end(self, session: FollowerSession) -> None:
        self._sessions.end(session)
        self._context.woken.pop(session, None)
        self._context.outdated.pop(session, None)

    def cancelled(self, fetch: ParkedFetch) -> None:
        """Its client has gone, and with a follower its session."""
        self._loads.forget(fetch)
        if isinstance(fetch, FollowerSession):
            self._end(fetch)

    def _count_follower(
        self, event: FetchReceived, session: FollowerSession | None, parts: Iterable[FetchPartition], now_ms: int
    ) -> None:
        """Note how far the follower is before anything is read, so that the answer has the newest
        high watermark.
        """
        for part in parts:
            replica = self._replicas.get(part.id)
            if replica is None or replica.leader is None:
                continue
            progress = replica.follower_progress(event)
            if progress is None:
                continue
            progress.newest_fetch = event.token
            progress.session = session
            if event.wants_all:
                progress.forget_sent()
            if replica.validate_fetch(part, follower=True) is None:
                replica.leader.count_fetch(progress, part, now_ms)
            if session is not None:
                session.note_isr(part.id, is_member=progress.broker_id in replica.leader.isr.maximal)

    def _read(
        self,
        event: FetchReceived,
        now_ms: int,
        session: FollowerSession | None,
        *,
        in_memory: bool = True,
        unled: Collection[TopicIdPartition] = (),
    ) -> _Reading:
        """The answer as of now. ``unled`` are partitions that a consumer asked for as their leader's, before there was one."""
        parts = event.partitions if session is None else session.wanted()
        follower = event.replica_id >= 0
        budget = min(event.max_bytes, self._context.config.fetch_max_bytes) if not follower else event.max_bytes
        results: list[FetchPartitionResult] = []
        size, news, is_outdated = 0, False, False
        lacking: Lacking = []
        held_back: list[TopicIdPartition] = []
        waiting: list[TopicIdPartition] = []
        allowance = self._context.copying_out.allowance
        for part in parts:
            replica = self._replicas.get(part.id)
            if replica is None:
                results.append(self._absent(part.id))
                news = True
                continue
            if replica.log is None and not follower and replica.may_lead_soon:
                results.append(FetchPartitionResult(part.id, 0))  # it counts as empty
                continue
            refused, progress = self._judged(part, replica, event, unled)
            if refused is not None:
                results.append(refused)
                news = True
                continue
            throttled = follower and is_throttled(replica, event.replica_id)
            if throttled and allowance <= 0 and replica.has_records_behind(part.fetch_offset):
                held_back.append(part.id)
                self._copying_out.hold_back(replica, now_ms)
                continue
            limit = min(part.max_bytes, budget - size, allowance if throttled else budget)
            try:
                result = replica.read(part, limit, event, at_least_one=size == 0, in_memory=in_memory)
            except NotInMemory as missing:
                lacking.append((part.id, missing))
                result = replica.read(part, 0, event, at_least_one=False, in_memory=True)
            got = len(result.records)
            if session is not None and not got and replica.has_records_behind(part.fetch_offset):
                waiting.append(part.id)
            size += got
            allowance -= got if throttled else 0
            if result.error or (progress is not None and result.log_start_offset > progress.sent_log_start_offset):
                news = True
            elif progress is not None and result.high_watermark > progress.sent_high_watermark:
                is_outdated = True
            elif follower and not got:
                continue  # nothing that it does not know
            results.append(result)
        if follower and not size and (lacking or held_back):
            results = self._naming(parts, results, held_back, lacking)
        is_enough = news or (size >= event.min_bytes and not (lacking and not size))
        return _Reading(results, is_enough, lacking, is_outdated, held_back + waiting)

    def _judged(
        self, part: FetchPartition, replica: Replica, event: FetchReceived, unled: Collection[TopicIdPartition]
    ) -> tuple[FetchPartitionResult | None, FollowerProgress | None]:
        """What is wrong with the question; else the follower that asks it, if it is one that counts."""
        follower = event.replica_id >= 0
        refused = replica.validate_fetch(part, follower=follower)
        if refused is not None:
            return refused, None
        if part.id in unled and replica.leader is None and not replica.may_lead_soon:
            return replica.refused_fetch(replica.refusal()), None  # another one leads
        if not follower or replica.leader is None:
            return None, None
        progress = replica.follower_progress(event)
        if progress is None and event.replica_id not in replica.leader.followers:
            return replica.refused_fetch(UNKNOWN_LEADER_EPOCH), None
        return None, progress

    def _absent(self, id: TopicIdPartition) -> FetchPartitionResult:
        error, hint = self._context.absence(id)
        return FetchPartitionResult(id, error, hint=hint)

    def _naming(
        self,
        parts: Iterable[FetchPartition],
        results: list[FetchPartitionResult],
        held_back: Iterable[TopicIdPartition],
        lacking: Lacking,
    ) -> list[FetchPartitionResult]:
        """The results of a follower's fetch in the order asked, with an error for each partition
        whose records have to wait.
        """
        errors = dict.fromkeys(held_back, THROTTLED) | {id: REQUEST_TIMED_OUT for id, _ in lacking}
        by_id = {result.id: result for result in results}
        by_id |= {id: self._replicas[id].refused_fetch(error) for id, error in errors.items()}
        return [by_id[part.id] for part in parts if part.id in by_id]

    def _unanswered(self, found: _Reading, session: FollowerSession | None) -> None:
        """What was found is not enough: the fetch waits."""
        if session is not None:
            session.told(found.waiting, (result.id for result in found.results))

    def _reply_fetch(self, event: FetchReceived, found: _Reading, session: FollowerSession | None) -> None:
        results = found.results
        if session is not None:
            session.told(found.waiting)
        for result in results:
            if size := len(result.records):
                self._context.traffic.read(result.id, size)
                counts = self._replicas[result.id].counts
                if event.replica_id >= 0:
                    counts.replication_bytes_out += size
                else:
                    counts.bytes_out += size
        if event.replica_id >= 0:
            for result in results:
                replica = self._replicas.get(result.id)
                if replica is None or replica.leader is None or result.error:
                    continue
                if is_throttled(replica, event.replica_id):
                    self._context.copying_out.spend(len(result.records))
                progress = replica.follower_progress(event)
                if progress is None or result.diverging_epoch is not None:
                    continue
                if progress.newest_fetch == event.token or (session is not None and progress.session is session):
                    progress.sent_high_watermark = result.high_watermark
                    progress.sent_log_start_offset = result.log_start_offset
        session_id = session.id if session is not None else 0
        self._context.effects.append(Reply(event.token, FetchReply(tuple(results), session_id)))

    def answer_woken(self, now_ms: int) -> None:
        """Read the woken fetches again; those with enough are answered."""
        woken = self._context.woken
        while woken:  # a failing disk wakes more
            fetches = list(woken)
            woken.clear()
            for fetch in fetches:
                if self._parked.by_token.get(fetch.token) is fetch:
                    session = fetch if isinstance(fetch, FollowerSession) else None
                    found = self._read_parked(fetch, session, now_ms)
                    places = self._loads.order(found.lacking)
                    if found.is_enough or (not places and now_ms >= fetch.due_ms):
                        self._unpark_fetch(fetch)
                        self._reply_fetch(fetch.request, found, session)
                    else:
                        self._unanswered(found, session)
                        self._loads.wait(fetch, places)
                        self._parked.put_off(fetch, now_ms)

    def tell_soon(self, now_ms: int) -> None:
        """Have followers whose fetches stay parked know the high watermark soon. The records behind
        it mostly come before.
        """
        due_ms = now_ms + self._context.config.high_watermark_news_ms
        for fetch in self._context.outdated:
            self._parked.hasten(fetch, due_ms)
        self._context.outdated.clear()

    def _read_parked(self, fetch: ParkedFetch, session: FollowerSession | None, now_ms: int) -> _Reading:
        return self._read(fetch.request, now_ms, session, in_memory=is_patient(fetch), unled=fetch.unled)

    def _expired(self, fetch: ParkedFetch, now_ms: int) -> None:
        self._unpark_fetch(fetch)
        session = fetch if isinstance(fetch, FollowerSession) else None
        if session is not None:
            session.looked(now_ms)
        found = self._read_parked(fetch, session, now_ms)
        self._loads.order(found.lacking)  # whoever asks next finds it
        self._reply_fetch(fetch.request, found, session)

    def _unpark_fetch(self, fetch: ParkedFetch) -> None:
        self._loads.forget(fetch)
        self._parked.unpark_fetch(fetch)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self._sessions.check()
