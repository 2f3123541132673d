"""Fetches of consumers and followers: read what there is, answer what has enough, park the rest.

A fetch reads the partitions in the order asked, sharing ``max_bytes``; the first batch found is
returned whole even if it is larger. A follower's answer leaves out partitions that have no news for
it, a consumer's names them all.

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
from raylog.replication.leader import FollowerProgress
from raylog.replication.parked import Parked, ParkedFetch
from raylog.replication.replica import UNKNOWN_LEADER_EPOCH, Replica
from raylog.replication.replication_quota import CopyingOut, is_throttled
from raylog.types import TopicIdPartition

THROTTLED = ErrorCode.throttling_quota_exceeded.value
REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value


class _Reading(NamedTuple):
    """What a fetch would be answered now, and whether that is worth sending before its time is up.

    ``lacking`` has to be loaded to say more. ``is_outdated``: all that is new is the high watermark
    of a follower's partition.
    """

    results: list[FetchPartitionResult]
    is_enough: bool
    lacking: Lacking
    is_outdated: bool


class FetchRequests:
    __slots__ = ("_context", "_copying_out", "_loads", "_parked", "_replicas")

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
        if event.replica_id >= 0:
            self._count_follower(event, now_ms)
        found = self._read(event, now_ms)
        places = self._loads.order(found.lacking)
        if found.is_enough or (event.max_wait_ms <= 0 and (not places or event.replica_id >= 0)):
            self._reply_fetch(event, found.results)
            return
        watched = [replica for part in event.partitions if (replica := self._replicas.get(part.id)) is not None]
        fetch = ParkedFetch(event, watched, self._expired)
        self._parked.park_fetch(fetch, follower=event.replica_id >= 0, now_ms=now_ms)
        if places:
            self._loads.wait(fetch, places)
            self._parked.put_off(fetch, now_ms)
        if found.is_outdated:
            self._context.outdated[fetch] = None

    def _count_follower(self, event: FetchReceived, now_ms: int) -> None:
        """Note how far the follower is before anything is read, so that the answer has the newest
        high watermark.
        """
        for part in event.partitions:
            replica = self._replicas.get(part.id)
            if replica is not None and replica.leader is not None:
                progress = replica.follower_progress(event)
                if progress is not None:
                    progress.newest_fetch = event.token
                    if event.wants_all:
                        progress.forget_sent()
                if progress is not None and replica.validate_fetch(part, follower=True) is None:
                    replica.leader.count_fetch(progress, part, now_ms)

    def _read(
        self, event: FetchReceived, now_ms: int, *, in_memory: bool = True, unled: Collection[TopicIdPartition] = ()
    ) -> _Reading:
        """The answer as of now. ``unled`` are partitions that a consumer asked for as their leader's, before there was one."""
        follower = event.replica_id >= 0
        budget = min(event.max_bytes, self._context.config.fetch_max_bytes) if not follower else event.max_bytes
        results: list[FetchPartitionResult] = []
        size, news, is_outdated = 0, False, False
        lacking: Lacking = []
        held_back: list[TopicIdPartition] = []
        allowance = self._context.copying_out.allowance
        for part in event.partitions:
            replica = self._replicas.get(part.id)
            if replica is None:
                results.append(self._absent(part.id))
                news = True
                continue
            if replica.log is None and not follower and replica.may_lead_soon:
                results.append(FetchPartitionResult(part.id, 0))  # it counts as empty
                continue
            refused = replica.validate_fetch(part, follower=follower)
            if refused is None and part.id in unled and replica.leader is None and not replica.may_lead_soon:
                refused = replica.refused_fetch(replica.refusal())  # another one leads
            progress: FollowerProgress | None = None
            if refused is None and follower and replica.leader is not None:
                progress = replica.follower_progress(event)
                if progress is None and event.replica_id not in replica.leader.followers:
                    refused = replica.refused_fetch(UNKNOWN_LEADER_EPOCH)
            if refused is not None:
                results.append(refused)
                news = True
                continue
            limit = min(part.max_bytes, budget - size)
            throttled = follower and is_throttled(replica, event.replica_id)
            if throttled:
                limit = min(limit, allowance)
                if allowance <= 0 and replica.has_records_behind(part.fetch_offset):
                    held_back.append(part.id)
                    self._copying_out.hold_back(replica, now_ms)
                    continue
            try:
                result = replica.read(part, limit, event, at_least_one=size == 0, in_memory=in_memory)
            except NotInMemory as missing:
                lacking.append((part.id, missing))
                result = replica.read(part, 0, event, at_least_one=False, in_memory=True)
            got = len(result.records)
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
            results = self._naming(event, results, held_back, lacking)
        is_enough = news or (size >= event.min_bytes and not (lacking and not size))
        return _Reading(results, is_enough, lacking, is_outdated)

    def _absent(self, id: TopicIdPartition) -> FetchPartitionResult:
        error, hint = self._context.absence(id)
        return FetchPartitionResult(id, error, hint=hint)

    def _naming(
        self,
        event: FetchReceived,
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
        return [by_id[part.id] for part in event.partitions if part.id in by_id]

    def _reply_fetch(self, event: FetchReceived, results: list[FetchPartitionResult]) -> None:
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
                is_newest = progress is not None and progress.newest_fetch == event.token
                if progress is not None and is_newest and result.diverging_epoch is None:
                    progress.sent_high_watermark = result.high_watermark
                    progress.sent_log_start_offset = result.log_start_offset
        self._context.effects.append(Reply(event.token, FetchReply(tuple(results))))

    def answer_woken(self, now_ms: int) -> None:
        """Read the woken fetches again; those with enough are answered."""
        woken = self._context.woken
        while woken:  # a failing disk wakes more
            fetches = list(woken)
            woken.clear()
            for fetch in fetches:
                if self._parked.by_token.get(fetch.token) is fetch:
                    found = self._read(fetch.request, now_ms, in_memory=is_patient(fetch), unled=fetch.unled)
                    places = self._loads.order(found.lacking)
                    if found.is_enough or (not places and now_ms >= fetch.due_ms):
                        self._unpark_fetch(fetch)
                        self._reply_fetch(fetch.request, found.results)
                    else:
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

    def _expired(self, fetch: ParkedFetch, now_ms: int) -> None:
        self._unpark_fetch(fetch)
        found = self._read(fetch.request, now_ms, in_memory=is_patient(fetch), unled=fetch.unled)
        self._loads.order(found.lacking)  # whoever asks next finds it
        self._reply_fetch(fetch.request, found.results)

    def _unpark_fetch(self, fetch: ParkedFetch) -> None:
        self._loads.forget(fetch)
        self._parked.unpark_fetch(fetch)
