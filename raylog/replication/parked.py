"""Requests that wait: produces for their records to be complete, fetches for something to read, deletions for the
followers.

Every replica has ``Watchers``: who waits for what at this partition. Each way a wait can end has one method there,
called by the replica at the moment it happens, so nothing is ever polled::

    waits                      ends when
    produce, acks=all          the high watermark reaches the end of its records, or the ISR falls below the minimum
    produce, acks=1            a flush that flush.messages demanded covers its records
    fetch of a follower        records are appended, the high watermark or the log start passes what it was last sent
    fetch of a consumer        the high watermark rises
    deletion of records        every live replica has moved its log start
    all                        their deadline comes, their client goes away, or the replica can serve no more

A parked request may wait at many partitions. A produce or a deletion is answered when its last partition is settled; a
fetch that wakes is read again in full and answered if it has enough. All that one event wakes is read once, at the end
of the event.

Invariants: a parked request has an armed deadline; it is known by its token until it is answered; it is answered
exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.replication.context import Deadline, HostContext
from raylog.replication.events import (
    DeleteRecordsPartitionResult,
    DeleteRecordsReply,
    FetchReceived,
    LeaderHint,
    ProducePartitionResult,
    ProduceReply,
    Reply,
    Token,
)

if TYPE_CHECKING:
    from raylog.replication.replica import Replica

REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
NOT_ENOUGH_REPLICAS_AFTER_APPEND = ErrorCode.not_enough_replicas_after_append.value


class ParkedProduce:
    """A produce that waits at ``pending`` partitions; ``results`` are already what a success will say."""

    __slots__ = ("deadline", "parked", "pending", "results", "token", "waits")

    def __init__(self, parked: Parked, token: Token, results: list[ProducePartitionResult]) -> None:
        self.parked = parked
        self.token = token
        self.results = results
        self.waits: list[ProduceWait] = []
        self.pending = 0
        self.deadline: Deadline | None = None

    def expired(self, now_ms: int, wall_ms: int) -> None:
        """The deadline came: whatever is not settled timed out, or lacks replicas if that is why."""
        for wait in self.waits:
            if not wait.settled:
                short = wait.replica.lacks_replicas()
                wait.settle(NOT_ENOUGH_REPLICAS_AFTER_APPEND if short else REQUEST_TIMED_OUT)
            wait.replica.watchers.drop_settled()


class ProduceWait:
    """One partition of a parked produce: complete when the offset it watches reaches ``required_end``."""

    __slots__ = ("index", "produce", "replica", "required_end", "settled")

    def __init__(self, produce: ParkedProduce, index: int, replica: Replica, required_end: int) -> None:
        self.produce = produce
        self.index = index
        self.replica = replica
        self.required_end = required_end
        self.settled = False

    def settle(self, error: int = 0, message: str | None = None, hint: LeaderHint | None = None) -> None:
        """Done, well or badly; a second time is ignored."""
        if self.settled:
            return
        self.settled = True
        produce = self.produce
        if error:
            produce.results[self.index] = replace(
                produce.results[self.index],
                error=error,
                base_offset=-1,
                log_append_time_ms=-1,
                message=message,
                hint=hint,
            )
        produce.pending -= 1
        if produce.pending == 0:
            produce.parked.answer_produce(produce)


class ParkedFetch:
    """A fetch that waits for ``min_bytes``; ``replicas`` are those it watches."""

    __slots__ = ("deadline", "expire", "replicas", "request")

    def __init__(self, request: FetchReceived, replicas: list[Replica], expire: Callable[[ParkedFetch], None]) -> None:
        self.request = request
        self.replicas = replicas
        self.expire = expire
        self.deadline: Deadline | None = None

    def expired(self, now_ms: int, wall_ms: int) -> None:
        self.expire(self)


class ParkedDeletion:
    """A DeleteRecords that waits at ``pending`` partitions for the low watermark."""

    __slots__ = ("deadline", "parked", "pending", "results", "token", "waits")

    def __init__(self, parked: Parked, token: Token, results: list[DeleteRecordsPartitionResult]) -> None:
        self.parked = parked
        self.token = token
        self.results = results
        self.waits: list[DeletionWait] = []
        self.pending = 0
        self.deadline: Deadline | None = None

    def expired(self, now_ms: int, wall_ms: int) -> None:
        for wait in self.waits:
            wait.settle(error=REQUEST_TIMED_OUT)


class DeletionWait:
    """One partition of a parked deletion: done when every live replica's log starts at or after ``required_start``."""

    __slots__ = ("deletion", "index", "replica", "required_start", "settled")

    def __init__(self, deletion: ParkedDeletion, index: int, replica: Replica, required_start: int) -> None:
        self.deletion = deletion
        self.index = index
        self.replica = replica
        self.required_start = required_start
        self.settled = False

    def settle(self, *, error: int = 0, low_watermark: int = -1) -> None:
        if self.settled:
            return
        self.settled = True
        deletion = self.deletion
        result = deletion.results[self.index]
        deletion.results[self.index] = replace(result, error=error, low_watermark=low_watermark)
        deletion.pending -= 1
        if deletion.pending == 0:
            deletion.parked.answer_deletion(deletion)


class Watchers:
    """Who waits at one replica. The queues of produces are sorted by the offset that they wait for."""

    __slots__ = ("by_completion", "by_high_watermark", "consumers", "deletions", "followers", "woken")

    def __init__(self, woken: dict[ParkedFetch, None]) -> None:
        self.woken = woken
        self.by_high_watermark: deque[ProduceWait] = deque()
        self.by_completion: deque[ProduceWait] = deque()
        self.followers: dict[ParkedFetch, None] = {}
        self.consumers: dict[ParkedFetch, None] = {}
        self.deletions: list[DeletionWait] = []

    def wake_followers(self) -> None:
        """Records were appended, or the log start moved."""
        if self.followers:
            self.woken.update(self.followers)

    def wake_all(self) -> None:
        """The replica's role, epoch or health changed: what was asked may have another answer now."""
        self.woken.update(self.followers)
        self.woken.update(self.consumers)

    def high_watermark_rose(self, high_watermark: int) -> None:
        if self.by_high_watermark:
            _settle_up_to(self.by_high_watermark, high_watermark)
        if self.followers:
            self.woken.update(self.followers)
        if self.consumers:
            self.woken.update(self.consumers)

    def completed(self, completed_end: int) -> None:
        """Appends below ``completed_end`` are complete (flushed where that is demanded)."""
        if self.by_completion:
            _settle_up_to(self.by_completion, completed_end)

    def low_watermark_rose(self, low_watermark: int) -> None:
        if self.deletions:
            for wait in self.deletions:
                if wait.required_start <= low_watermark:
                    wait.settle(low_watermark=low_watermark)
            self.deletions = [wait for wait in self.deletions if not wait.settled]

    def drop_settled(self) -> None:
        """Forget produces that timed out or whose client left: the oldest, so they stand in front."""
        for queue in (self.by_high_watermark, self.by_completion):
            while queue and queue[0].settled:
                queue.popleft()

    def refuse_uncommitted(self, error: int) -> None:
        """The ISR fell below the minimum: nobody's acks=all can be kept now."""
        while self.by_high_watermark:
            self.by_high_watermark.popleft().settle(error)

    def refuse_all(self, error: int, message: str | None = None, hint: LeaderHint | None = None) -> None:
        """The replica leads no more: produces and deletions end with ``error``."""
        for queue in (self.by_high_watermark, self.by_completion):
            while queue:
                queue.popleft().settle(error, message, hint)
        deletions, self.deletions = self.deletions, []
        for wait in deletions:
            wait.settle(error=error)


def _insert(queue: deque[ProduceWait], wait: ProduceWait) -> None:
    position = len(queue)
    while position and queue[position - 1].required_end > wait.required_end:  # only for a duplicate of an earlier batch
        position -= 1
    queue.insert(position, wait)


def _settle_up_to(queue: deque[ProduceWait], end: int) -> None:
    while queue and (queue[0].settled or queue[0].required_end <= end):
        queue.popleft().settle()


class Parked:
    """All parked requests of one host, by token."""

    __slots__ = ("by_token", "context")

    def __init__(self, context: HostContext) -> None:
        self.context = context
        self.by_token: dict[Token, ParkedProduce | ParkedFetch | ParkedDeletion] = {}

    def park_produce(
        self,
        token: Token,
        timeout_ms: int,
        results: list[ProducePartitionResult],
        waits: list[tuple[int, Replica, int]],
        *,
        committed: bool,
        now_ms: int,
    ) -> None:
        """Wait until each (index, replica, required end) of ``waits`` is committed, or complete on the leader alone."""
        produce = ParkedProduce(self, token, results)
        produce.pending = len(waits)
        for index, replica, required_end in waits:
            wait = ProduceWait(produce, index, replica, required_end)
            produce.waits.append(wait)
            watchers = replica.watchers
            queue = watchers.by_high_watermark if committed else watchers.by_completion
            _insert(queue, wait)
        produce.deadline = self.context.wheel.add(now_ms + timeout_ms, produce.expired)
        self.by_token[token] = produce

    def park_fetch(self, fetch: ParkedFetch, *, follower: bool, now_ms: int) -> None:
        for replica in fetch.replicas:
            (replica.watchers.followers if follower else replica.watchers.consumers)[fetch] = None
        fetch.deadline = self.context.wheel.add(now_ms + fetch.request.max_wait_ms, fetch.expired)
        self.by_token[fetch.request.token] = fetch

    def park_deletion(
        self,
        token: Token,
        timeout_ms: int,
        results: list[DeleteRecordsPartitionResult],
        waits: list[tuple[int, Replica, int]],
        *,
        now_ms: int,
    ) -> None:
        deletion = ParkedDeletion(self, token, results)
        deletion.pending = len(waits)
        for index, replica, required_start in waits:
            wait = DeletionWait(deletion, index, replica, required_start)
            deletion.waits.append(wait)
            replica.watchers.deletions.append(wait)
        deletion.deadline = self.context.wheel.add(now_ms + timeout_ms, deletion.expired)
        self.by_token[token] = deletion

    def answer_produce(self, produce: ParkedProduce) -> None:
        if self._forget(produce.token, produce):
            self.context.effects.append(Reply(produce.token, ProduceReply(tuple(produce.results))))

    def answer_deletion(self, deletion: ParkedDeletion) -> None:
        if self._forget(deletion.token, deletion):
            self.context.effects.append(Reply(deletion.token, DeleteRecordsReply(tuple(deletion.results))))

    def unpark_fetch(self, fetch: ParkedFetch) -> None:
        """Stop watching. The caller answers."""
        self._forget(fetch.request.token, fetch)
        for replica in fetch.replicas:
            replica.watchers.followers.pop(fetch, None)
            replica.watchers.consumers.pop(fetch, None)

    def cancel(self, token: Token) -> None:
        """The client went away: forget its request. Records that it produced stay produced."""
        request = self.by_token.get(token)
        if isinstance(request, ParkedFetch):
            self.unpark_fetch(request)
            self.context.woken.pop(request, None)
        elif request is not None:
            self._forget(token, request)
            for wait in request.waits:
                wait.settled = True
                wait.replica.watchers.drop_settled()

    def _forget(self, token: Token, request: ParkedProduce | ParkedFetch | ParkedDeletion) -> bool:
        if self.by_token.get(token) is not request:
            return False
        del self.by_token[token]
        if request.deadline is not None:
            request.deadline.cancel()
        return True

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for token, request in self.by_token.items():
            assert request.deadline is not None and request.deadline.bucket is not None, (
                f"request {token} has no deadline"
            )
            match request:
                case ParkedFetch():
                    assert token == request.request.token
                    for replica in request.replicas:
                        watchers = replica.watchers
                        assert request in watchers.followers or request in watchers.consumers, (
                            f"fetch {token} is not watched"
                        )
                case ParkedProduce() | ParkedDeletion():
                    unsettled = sum(not wait.settled for wait in request.waits)
                    assert request.pending == unsettled > 0, (token, request.pending, unsettled)
