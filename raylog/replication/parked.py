"""Requests that wait: produces for their records to be complete, fetches for something to read,
deletions for the followers.

Every replica has ``Watchers``: who waits for what at this partition. Each way a wait can end has
one method there, called by the replica at the moment it happens, so nothing is ever polled::

    waits                      ends when
    produce, not appended yet  the partition serves (``awaited``)
    produce, acks=all          the high watermark reaches the end of its records, or the ISR falls below the minimum
    produce, acks=1            a flush that flush.messages demanded covers its records
    fetch of a follower        records are appended, or the log start passes what it was last sent; the high watermark does, and
                               ``high_watermark_news_ms`` are over
    fetch of a consumer        the high watermark rises
    deletion of records        every live replica has moved its log start
    fetch of cold records      they are loaded (cold_reads.py)
    offsets by timestamp       the records or indexes that have to be searched are loaded; only that, so they have no deadline
    all others                 their deadline comes, their client goes away, or the replica can serve no more

A parked request may wait at many partitions. A produce or a deletion is answered when its last
partition is settled; a fetch that wakes is read again in full and answered if it has enough. All
that one event wakes is read once, at the end of the event.

A consumer's fetch that waits for a load may wait a little longer than it asked for, or one that
never waits would ask in a circle. A follower's may not: it also asks for others, and is told which
partitions to ask for again.

Invariants: a parked request has an armed deadline, or lacks a place that is being loaded; it is
known by its token until it is answered; it is answered exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from raylog.replication.awaited import LateAppend
from raylog.replication.context import Deadline, HostContext
from raylog.replication.events import (
    DeleteRecordsPartitionResult,
    DeleteRecordsReply,
    FetchPartition,
    FetchReceived,
    LeaderHint,
    ListOffsetsReceived,
    ProducePartition,
    ProducePartitionResult,
    ProduceReply,
    Reply,
    Token,
)
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.replication.replica import Replica

TOGETHER = 128
"""Into how many parts a consumer's wait is cut. It ends where one of them does, so that the waits
of many end together.
"""
REQUEST_TIMED_OUT = ErrorCode.request_timed_out.value
NOT_ENOUGH_REPLICAS_AFTER_APPEND = ErrorCode.not_enough_replicas_after_append.value


class ParkedProduce:
    """A produce that waits at ``pending`` partitions; ``results`` are already what a success will
    say.

    ``late`` are those of its partitions that do not serve yet. With ``acks`` 0 there is no reply.
    """

    __slots__ = ("acks", "deadline", "late", "parked", "pending", "results", "token", "waits")

    def __init__(self, parked: Parked, token: Token, acks: int, results: list[ProducePartitionResult]) -> None:
        self.parked = parked
        self.token = token
        self.acks = acks
        self.results = results
        self.waits: list[ProduceWait] = []
        self.late: list[LateAppend] = []
        self.pending = 0
        self.deadline: Deadline | None = None

    def wait_for(self, index: int, replica: Replica, required_end: int) -> None:
        """Its records there are appended; they have to be committed, or complete on the leader
        alone.
        """
        wait = ProduceWait(self, index, replica, required_end)
        self.waits.append(wait)
        self.pending += 1
        watchers = replica.watchers
        _insert(watchers.by_high_watermark if self.acks == -1 else watchers.by_completion, wait)

    def was_late(self, late: LateAppend, result: ProducePartitionResult) -> None:
        """The partition of a late append has answered; ``wait_for`` may have come before."""
        assert not late.settled, f"request {self.token} is done with {late.part.id}"
        late.settled = True
        self.results[late.index] = result
        self.pending -= 1
        if self.pending == 0:
            self.parked.answer_produce(self)

    def expired(self, now_ms: int, wall_ms: int) -> None:
        """The deadline came: whatever is not settled timed out, or lacks replicas if that is why."""
        for wait in self.waits:
            if not wait.settled:
                short = wait.replica.lacks_replicas()
                wait.settle(NOT_ENOUGH_REPLICAS_AFTER_APPEND if short else REQUEST_TIMED_OUT)
            wait.replica.watchers.drop_settled()
        for late in self.late:
            if not late.settled:
                self.parked.give_up(late)


class ProduceWait:
    """One partition of a parked produce: complete when the offset it watches reaches
    ``required_end``.
    """

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
    """A fetch that waits for ``min_bytes``; ``replicas`` are those it watches.

    ``due_ms`` is when its own wait ends, ``load_due_ms`` how long it may wait while it lacks places
    (path, position) that are being loaded; ``loads`` counts those that it has waited for. ``unled``
    are the partitions of which it could not be said whether this process leads them.
    """

    __slots__ = (
        "deadline",
        "deadline_ms",
        "due_ms",
        "expire",
        "lacks",
        "load_due_ms",
        "loads",
        "replicas",
        "request",
        "unled",
    )

    def __init__(
        self, request: FetchReceived, replicas: list[Replica], expire: Callable[[ParkedFetch, int], None]
    ) -> None:
        self.request = request
        self.replicas = replicas
        self.expire = expire
        self.deadline: Deadline | None = None
        self.deadline_ms = self.due_ms = 0
        self.load_due_ms: int | None = None
        self.lacks: frozenset[tuple[str, int]] = frozenset()
        self.loads = 0
        self.unled = frozenset(replica.id for replica in replicas if replica.is_unled and replica.may_lead_soon)

    @property
    def token(self) -> Token:
        return self.request.token

    def wanted(self) -> Iterable[FetchPartition]:
        """The partitions to read now."""
        return self.request.partitions

    def watch(self) -> None:
        """Hear of news, once parked."""
        is_follower = self.request.replica_id >= 0
        for replica in self.replicas:
            (replica.watchers.followers if is_follower else replica.watchers.consumers)[self] = None

    def unwatch(self) -> None:
        """Hear of none, once answered."""
        for replica in self.replicas:
            replica.watchers.followers.pop(self, None)
            replica.watchers.consumers.pop(self, None)

    def hear(self, id: TopicIdPartition, waking: dict[ParkedFetch, None]) -> None:
        """There is news of that partition; ``waking``: where those stand whom it wakes."""
        waking[self] = None

    def expired(self, now_ms: int, wall_ms: int) -> None:
        self.expire(self, now_ms)


class ParkedListOffsets:
    """A search by timestamp whose records have to be loaded; ``lacks`` and ``loads`` as a fetch's."""

    __slots__ = ("lacks", "loads", "request")

    def __init__(self, request: ListOffsetsReceived) -> None:
        self.request = request
        self.lacks: frozenset[tuple[str, int]] = frozenset()
        self.loads = 0

    @property
    def token(self) -> Token:
        return self.request.token


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
    """One partition of a parked deletion: done when every live replica's log starts at or after
    ``required_start``.
    """

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

    __slots__ = ("by_completion", "by_high_watermark", "consumers", "deletions", "followers", "id", "outdated", "woken")

    def __init__(self, id: TopicIdPartition, woken: dict[ParkedFetch, None], outdated: dict[ParkedFetch, None]) -> None:
        self.id = id
        self.woken = woken
        self.outdated = outdated
        self.by_high_watermark: deque[ProduceWait] = deque()
        self.by_completion: deque[ProduceWait] = deque()
        self.followers: dict[ParkedFetch, None] = {}
        self.consumers: dict[ParkedFetch, None] = {}
        self.deletions: list[DeletionWait] = []

    def wake_followers(self) -> None:
        """Records were appended, or the log start moved."""
        for fetch in self.followers:
            fetch.hear(self.id, self.woken)

    def wake_all(self) -> None:
        """The replica's role, epoch or health changed: what was asked may have another answer now."""
        self.wake_followers()
        self.woken.update(self.consumers)

    def high_watermark_rose(self, high_watermark: int) -> None:
        if self.by_high_watermark:
            _settle_up_to(self.by_high_watermark, high_watermark)
        for fetch in self.followers:
            fetch.hear(self.id, self.outdated)
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


Request = ParkedProduce | ParkedFetch | ParkedDeletion | ParkedListOffsets


class Parked:
    """All parked requests of one host, by token. ``give_up`` ends a late append whose request has
    no time left.
    """

    __slots__ = ("by_token", "context", "give_up")

    def __init__(self, context: HostContext, give_up: Callable[[LateAppend], None]) -> None:
        self.context = context
        self.give_up = give_up
        self.by_token: dict[Token, Request] = {}

    def park_produce(
        self,
        token: Token,
        timeout_ms: int,
        results: list[ProducePartitionResult],
        waits: list[tuple[int, Replica, int]],
        late: list[tuple[int, ProducePartition]] | None = None,
        *,
        acks: int,
        now_ms: int,
    ) -> ParkedProduce:
        """Wait until each (index, replica, required end) of ``waits`` is committed, or complete on
        the leader alone.

        The caller sees to each (index, partition) of ``late``, which is to be appended.
        """
        produce = ParkedProduce(self, token, acks, results)
        for index, replica, required_end in waits:
            produce.wait_for(index, replica, required_end)
        produce.late = [LateAppend(produce, index, part) for index, part in late or ()]
        produce.pending += len(produce.late)
        produce.deadline = self.context.wheel.add(now_ms + timeout_ms, produce.expired)
        self.by_token[token] = produce
        return produce

    def park_fetch(self, fetch: ParkedFetch, now_ms: int) -> None:
        """Wait for news of what it asks for, for ``max_wait_ms`` at most.

        A consumer is answered by up to a ``TOGETHER``-th of its wait sooner, at the same time as
        others: a thousand idle ones would else wake the process a thousand times in one wait.
        """
        fetch.watch()
        due_ms = now_ms + fetch.request.max_wait_ms
        if fetch.request.replica_id < 0 and fetch.request.max_wait_ms >= TOGETHER:
            due_ms -= due_ms % (fetch.request.max_wait_ms // TOGETHER)
        fetch.due_ms = fetch.deadline_ms = due_ms
        fetch.deadline = self.context.wheel.add(fetch.due_ms, fetch.expired)
        self.by_token[fetch.token] = fetch

    def put_off(self, fetch: ParkedFetch, now_ms: int) -> None:
        """Set a consumer's deadline by whether it waits for a load. It is put off once, by the
        first, not by each.
        """
        deadline_ms = fetch.due_ms
        if fetch.lacks and fetch.request.replica_id < 0:
            if fetch.load_due_ms is None:
                fetch.load_due_ms = max(fetch.due_ms, now_ms + self.context.config.cold_read_wait_ms)
            deadline_ms = fetch.load_due_ms
        if deadline_ms != fetch.deadline_ms and fetch.deadline is not None:
            fetch.deadline.cancel()
            fetch.deadline_ms = deadline_ms
            fetch.deadline = self.context.wheel.add(deadline_ms, fetch.expired)

    def hasten(self, fetch: ParkedFetch, due_ms: int) -> None:
        """Answer it at ``due_ms`` at the latest."""
        assert fetch.deadline is not None, f"fetch {fetch.token} is answered already"
        if due_ms < fetch.due_ms:
            fetch.deadline.cancel()
            fetch.due_ms = fetch.deadline_ms = due_ms
            fetch.deadline = self.context.wheel.add(due_ms, fetch.expired)

    def park_list_offsets(self, search: ParkedListOffsets) -> None:
        self.by_token[search.token] = search

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
        if self._forget(produce.token, produce) and produce.acks:
            self.context.effects.append(Reply(produce.token, ProduceReply(tuple(produce.results))))
        produce.waits, produce.late = [], []  # they name the request, too

    def answer_deletion(self, deletion: ParkedDeletion) -> None:
        if self._forget(deletion.token, deletion):
            deletion.waits = []
            self.context.effects.append(Reply(deletion.token, DeleteRecordsReply(tuple(deletion.results))))

    def unpark_fetch(self, fetch: ParkedFetch) -> None:
        """Stop watching. The caller answers."""
        self._forget(fetch.request.token, fetch)
        fetch.unwatch()

    def unpark_list_offsets(self, search: ParkedListOffsets) -> None:
        self._forget(search.token, search)

    def cancel(self, token: Token) -> Request | None:
        """The client went away: forget its request and return it. Records that it produced stay
        produced.
        """
        request = self.by_token.get(token)
        if isinstance(request, ParkedFetch):
            self.unpark_fetch(request)
            self.context.woken.pop(request, None)
        elif isinstance(request, ParkedListOffsets):
            self.unpark_list_offsets(request)
        elif request is not None:
            self._forget(token, request)
            for wait in request.waits:
                wait.settled = True
                wait.replica.watchers.drop_settled()
            if isinstance(request, ParkedProduce):
                for late in request.late:
                    late.settled = True  # and never appended
        return request

    def _forget(self, token: Token, request: Request) -> bool:
        if self.by_token.get(token) is not request:
            return False
        del self.by_token[token]
        if not isinstance(request, ParkedListOffsets) and request.deadline is not None:
            request.deadline.cancel()
            request.deadline = None  # which names the request: a cycle would wait for the garbage collector
        return True

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for token, request in self.by_token.items():
            if isinstance(request, ParkedListOffsets):
                assert token == request.token and request.lacks, f"search {token} waits for nothing"
                continue
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
                    waits = [*request.waits, *(request.late if isinstance(request, ParkedProduce) else ())]
                    unsettled = sum(not wait.settled for wait in waits)
                    assert request.pending == unsettled > 0, (token, request.pending, unsettled)
