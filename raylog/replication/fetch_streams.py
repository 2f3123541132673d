"""The fetches of this process's followers: one stream per leading process, at most one fetch in
flight in each.

A fetch asks for every partition followed there, except those that pause after an error and those
whose last append waits for a flush. Where two in a row leave none out, the leader keeps what was
asked (``follower_sessions``), and the next fetches name only the partitions of the answer before.
Whatever else changes ends the session. While any are held back the fetch asks the leader to answer
sooner, so that they are not kept waiting by a long poll of the others. Throttled partitions share
what the process may copy now; while that is nothing they are held back, too. A follower answers
nobody until its first fetch, and acks=all waits for it; so a partition that is newly followed does
not wait for the fetch in flight: that one is given up (its answer will be dropped by its id) and
another leaves at once. Assignments come in bursts, hence one millisecond to collect them.

The leader answers as soon as there is news of any partition, so how long a fetch may wait only says
how often a quiet stream asks in vain. The wait doubles with each answer that brings
nothing, up to sixteen times ``replica.fetch.wait.max.ms``, and stays well below
what makes a follower lag; with the first news, a new assignment or a failure it is the short one
again.

A stream whose fetch failed pauses, longer each time up to ``replica.fetch.backoff.ms``; a new
assignment ends the pause.

Invariants (``check``): a replica is in one stream at most, in that of the leader it knows; a stream
without a fetch in flight has a timer or nothing to ask; ids of fetches never repeat; in a session
the leader knows the question of every partition.
"""

from __future__ import annotations

from raylog.replication.context import Deadline, HostContext
from raylog.replication.events import FetchAnswered, FetchFailed, FetchPartition, FetchPartitionResult, SendFetch
from raylog.replication.follower import Step
from raylog.replication.follower_sessions import next_epoch
from raylog.replication.replica import Replica
from raylog.replication.throttle import UNLIMITED
from raylog.types import Endpoint, TopicIdPartition

COLLECT_MS = 1
LONGER_WAITS_MAX = 4  # doublings
WAITS_PER_LAG = 4  # so many fit into replica.lag.time.max.ms
HELD_BACK_WAIT_MS = 5


class FetchStream:
    """The stream to one process: ``followed`` in the order of asking, which rotates so that a full
    answer starves nobody.
    """

    __slots__ = (
        "asked",
        "began",
        "bytes_max",
        "changed",
        "context",
        "endpoint",
        "failures",
        "fetch_id",
        "followed",
        "in_flight",
        "incarnation",
        "is_complete",
        "node",
        "nothing_new",
        "paused_until_ms",
        "renewing",
        "session_epoch",
        "session_id",
        "streams",
        "timer",
        "unproven",
        "wants_all",
    )

    def __init__(self, streams: FetchStreams, node: int, incarnation: int, endpoint: Endpoint) -> None:
        self.streams = streams
        self.context = streams.context
        self.node = node
        self.incarnation = incarnation
        self.endpoint = endpoint
        self.followed: dict[TopicIdPartition, Replica] = {}
        self.in_flight = False
        self.asked: dict[TopicIdPartition, FetchPartition] = {}  # by the fetches of the session, or the last one
        self.is_complete = False  # the last list of all left none out, and still holds
        self.began = False  # a session, with the last fetch
        self.bytes_max = 0  # of a partition, in that list
        self.session_id = 0  # the leader's number of it; 0: the next fetch names all
        self.session_epoch = 0  # of the last fetch in it
        self.changed: list[TopicIdPartition] = []  # by the last answer
        self.unproven: dict[TopicIdPartition, None] = {}  # logs that may have less than was committed (``Log.trust``)
        self.fetch_id = 0
        self.failures = 0
        self.nothing_new = 0  # answers that brought nothing, since the last that did
        self.paused_until_ms = 0
        self.wants_all = True  # an answer may have been missed: the next fetch says so
        self.renewing = False  # a fetch was given up; the timer sends the next
        self.timer: Deadline | None = None

    def close(self) -> None:
        self._cancel_timer()
        self.in_flight = False

    def end_session(self) -> None:
        """The next fetch names all partitions, and no session begins with it."""
        self.session_id = 0
        self.is_complete = False

    def renew(self, now_ms: int) -> None:
        """Something new to ask for: end any pause; ask at once, or where a fetch is in flight, give
        it up and ask in a moment.
        """
        self.failures = 0
        self.nothing_new = 0
        self.paused_until_ms = 0
        self.end_session()
        if not self.in_flight:
            if not self.renewing:
                self.fetch(now_ms)
            return
        self.in_flight = False
        self.wants_all = True
        self.renewing = True
        self._arm(now_ms + COLLECT_MS)

    def fetch(self, now_ms: int) -> None:
        """Ask for all that can be asked now; arm a timer if that is nothing but will be something."""
        if self.in_flight or self.renewing:
            return
        if now_ms < self.paused_until_ms:
            self._arm(self.paused_until_ms)
            return
        changes = self._changes(now_ms) if self.session_id else None
        if changes is None:
            self._fetch_all(now_ms)
            return
        self.session_epoch = next_epoch(self.session_epoch)
        self.asked.update((part.id, part) for part in changes)
        self._send(changes, self._wait_max_ms(), wants_all=False)

    def _changes(self, now_ms: int) -> tuple[FetchPartition, ...] | None:
        """The questions that the leader does not know; None where one of them has to wait."""
        if self.bytes_max != self.context.config.replica_fetch_max_bytes:
            return None
        changes = []
        for id in self.changed:
            replica = self.followed[id]
            follower = replica.follower
            assert follower is not None, f"{id} is in the stream to node {self.node} as {replica.role.value}"
            if replica.flushing.held or replica.throttles_copying_in or follower.retry_at_ms > now_ms:
                return None
            changes.append(follower.next_request(UNLIMITED))
        return tuple(changes)

    def _fetch_all(self, now_ms: int) -> None:
        self.session_id = 0
        max_wait_ms = self._wait_max_ms()
        requests: dict[TopicIdPartition, FetchPartition] = {}
        wake_ms: int | None = None
        is_complete = True
        throttled_bytes_max = self._throttled_bytes_max()
        for id, replica in self.followed.items():
            follower = replica.follower
            assert follower is not None, f"{id} is in the stream to node {self.node} as {replica.role.value}"
            bytes_max = UNLIMITED
            if replica.throttles_copying_in:
                bytes_max = throttled_bytes_max
                is_complete = False  # each fetch may ask for another number of bytes
            if replica.flushing.held:
                max_wait_ms = min(max_wait_ms, HELD_BACK_WAIT_MS)
            elif follower.retry_at_ms > now_ms:
                wake_ms = follower.retry_at_ms if wake_ms is None else min(wake_ms, follower.retry_at_ms)
            elif bytes_max <= 0:
                ready_ms = now_ms + self.context.copying_in.ready_in_ms
                wake_ms = ready_ms if wake_ms is None else min(wake_ms, ready_ms)
            else:
                requests[id] = follower.next_request(bytes_max)
        if not requests:
            self._cancel_timer()
            if wake_ms is not None:
                self._arm(wake_ms)
            return
        if wake_ms is not None:
            max_wait_ms = min(max_wait_ms, wake_ms - now_ms)
        was_complete, self.is_complete = self.is_complete, is_complete and len(requests) == len(self.followed)
        self.asked = requests
        self.bytes_max = self.context.config.replica_fetch_max_bytes
        self.unproven = {id: None for id in requests if not self.followed[id].open_log().is_proven}
        self.session_epoch = 0
        self._send(
            tuple(requests.values()), max_wait_ms, wants_all=self.wants_all or (was_complete and self.is_complete)
        )

    def _send(self, partitions: tuple[FetchPartition, ...], max_wait_ms: int, *, wants_all: bool) -> None:
        self._cancel_timer()
        config = self.context.config
        self.in_flight = True
        self.began = wants_all
        self.wants_all = False
        self.fetch_id = self.streams.next_fetch_id()
        self.context.effects.append(
            SendFetch(
                self.node,
                self.incarnation,
                self.endpoint,
                self.fetch_id,
                self.context.broker_id,
                self.context.incarnation,
                max_wait_ms,
                config.replica_fetch_min_bytes,
                config.replica_fetch_response_max_bytes,
                partitions,
                wants_all,
                self.session_id,
                self.session_epoch,
            )
        )

    def _wait_max_ms(self) -> int:
        config = self.context.config
        wait_ms = config.replica_fetch_wait_max_ms
        longest_ms = max(wait_ms, config.replica_lag_time_max_ms // WAITS_PER_LAG)
        return min(wait_ms << min(self.nothing_new, LONGER_WAITS_MAX), longest_ms)

    def _throttled_bytes_max(self) -> int:
        """What each throttled partition may ask for now: each the same part, so that one without
        news leaves the others theirs.
        """
        allowance = self.context.copying_in.allowance
        if not 0 < allowance < UNLIMITED:
            return allowance
        sharing = sum(replica.throttles_copying_in for replica in self.followed.values())
        return max(1, allowance // max(1, sharing))

    def answered(self, results: tuple[FetchPartitionResult, ...], session_id: int, now_ms: int, wall_ms: int) -> None:
        """The fetch in flight was answered. Partitions that the answer leaves out have no news."""
        assert self.in_flight, f"the stream to node {self.node} has asked nothing"
        self.in_flight = False
        self.session_id = session_id if self.is_complete else 0
        if self.began and not session_id:
            self.is_complete = False  # the leader has no room for a session: it is not asked for one each time
        self.changed = []
        self.failures = 0
        self.nothing_new = 0 if results else self.nothing_new + 1
        for result in results:
            replica = self.followed.get(result.id)
            request = self.asked.get(result.id)
            if replica is None or request is None or replica.follower is None:
                continue
            self.changed.append(result.id)
            if replica.throttles_copying_in:
                self.context.copying_in.spend(len(result.records))
            if len(result.records):
                self.context.traffic.wrote(result.id, len(result.records))
                replica.counts.replication_bytes_in += len(result.records)
            step = replica.follower.take(request, result, now_ms, wall_ms)
            if step is Step.FAILED:
                self.streams.drop(result.id)
            elif len(result.records) and len(self.followed) > 1:
                self.followed[result.id] = self.followed.pop(result.id)
        if not any(len(result.records) for result in results):
            self._nothing_more(results)
        self.fetch(now_ms)

    def _nothing_more(self, results: tuple[FetchPartitionResult, ...]) -> None:
        """No records for anybody, so it was not the size of the answer that kept any back."""
        refused = {result.id for result in results if result.error or result.diverging_epoch is not None}
        for id in list(self.unproven):
            replica = self.followed.get(id)
            if replica is None or replica.follower is None or id in refused:
                continue
            if not replica.follower.caught_up(self.asked[id]):
                self.streams.drop(id)
            elif replica.open_log().is_proven:
                del self.unproven[id]

    def failed(self, now_ms: int) -> None:
        config = self.context.config
        self.in_flight = False
        self.end_session()
        self.wants_all = True
        self.nothing_new = 0
        pause_ms = min(config.replica_fetch_backoff_first_ms << min(self.failures, 16), config.replica_fetch_backoff_ms)
        self.failures += 1
        self.paused_until_ms = now_ms + pause_ms
        self.fetch(now_ms)

    def _arm(self, deadline_ms: int) -> None:
        self._cancel_timer()
        self.timer = self.context.wheel.add(deadline_ms, self._timer_expired)

    def _cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _timer_expired(self, now_ms: int, wall_ms: int) -> None:
        self.timer = None
        self.renewing = False
        self.fetch(now_ms)


class FetchStreams:
    """All streams of one host, by the leader's node id."""

    __slots__ = ("by_node", "context", "fetch_ids", "node_of")

    def __init__(self, context: HostContext) -> None:
        self.context = context
        self.by_node: dict[int, FetchStream] = {}
        self.node_of: dict[
            TopicIdPartition, tuple[int, int]
        ] = {}  # the node that a replica fetches from, in which epoch
        self.fetch_ids = 0

    def next_fetch_id(self) -> int:
        self.fetch_ids += 1
        return self.fetch_ids

    def update(self, replica: Replica, now_ms: int) -> None:
        """A replica's role may have changed: put it into the stream where it belongs, out of any
        other.
        """
        follower = replica.follower
        leader = follower.leader if follower is not None else None
        if follower is None or leader is None or leader.endpoint is None:
            self.drop(replica.id)
            return
        stream = self.by_node.get(leader.node_id)
        if (
            stream is not None
            and stream.incarnation == leader.incarnation
            and self.node_of.get(replica.id) == (leader.node_id, follower.leader_epoch)
        ):
            stream.endpoint = leader.endpoint
            stream.end_session()
            stream.fetch(now_ms)  # it may be throttled no more
            return
        self.drop(replica.id)
        stream = self.by_node.get(leader.node_id)
        if stream is None:
            stream = FetchStream(self, leader.node_id, leader.incarnation, leader.endpoint)
            self.by_node[leader.node_id] = stream
        stream.incarnation = leader.incarnation
        stream.endpoint = leader.endpoint
        stream.wants_all = True
        stream.followed[replica.id] = replica
        self.node_of[replica.id] = (leader.node_id, follower.leader_epoch)
        stream.renew(now_ms)

    def drop(self, id: TopicIdPartition) -> None:
        """Stop fetching for a partition; a stream without any ends."""
        known = self.node_of.pop(id, None)
        if known is None:
            return
        stream = self.by_node[known[0]]
        stream.followed.pop(id, None)
        stream.end_session()
        if not stream.followed:
            stream.close()
            del self.by_node[known[0]]

    def rates_changed(self, now_ms: int) -> None:
        """What was held back may be asked for now, or earlier."""
        for stream in list(self.by_node.values()):
            stream.fetch(now_ms)

    def flush_completed(self, replica: Replica, now_ms: int) -> None:
        """A follower's append is complete now, so its next fetch may leave."""
        known = self.node_of.get(replica.id)
        if known is not None:
            self.by_node[known[0]].fetch(now_ms)

    def answered(self, event: FetchAnswered, now_ms: int, wall_ms: int) -> None:
        stream = self._in_flight(event)
        if stream is not None:
            stream.answered(event.partitions, event.session_id, now_ms, wall_ms)

    def failed(self, event: FetchFailed, now_ms: int) -> None:
        stream = self._in_flight(event)
        if stream is not None:
            stream.failed(now_ms)

    def _in_flight(self, event: FetchAnswered | FetchFailed) -> FetchStream | None:
        """The stream that waits for this very answer; a stale one finds none."""
        stream = self.by_node.get(event.leader_node)
        if stream is None or not stream.in_flight or stream.fetch_id != event.fetch_id:
            return None
        return stream

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for node, stream in self.by_node.items():
            assert stream.node == node and stream.followed, f"stream to node {node}"
            armed = stream.timer is not None and stream.timer.bucket is not None
            held = all(replica.flushing.held for replica in stream.followed.values() if replica.log is not None)
            assert stream.in_flight or armed or held, f"the stream to node {node} sleeps"
            assert not stream.session_id or stream.followed.keys() == stream.asked.keys(), f"the session at node {node}"
            for id, replica in stream.followed.items():
                assert self.node_of[id][0] == node, f"{id} is in the stream to {node}, noted for {self.node_of[id]}"
                assert replica.follower is not None and replica.follower.leader is not None, f"{id} follows nobody"
                assert replica.follower.leader.node_id == node
