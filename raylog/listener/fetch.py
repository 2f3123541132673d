"""Fetch: reads from all owning processes and waits at each of them while there is too little to
return.

With one owner and nothing to refuse, the request is forwarded with the client's ``max_wait`` and
``min_bytes``, and the owner does the waiting. If such a request is for one partition and has no
session, it is not even decoded (``raw_forward``).

With several owners, the first round asks for what is there now, without waiting. If the sum is less
than ``min_bytes``, each owner is asked to wait until it has its share of the missing bytes
(``missing / owners``, rounded up) more than before. While no owner has reached its share, the sum
must be too small, so no request wakes in vain. The first owner that reaches its share answers; its
answer replaces its earlier one, and the sum is judged again. At the deadline the answer is whatever
has been gathered. Reads that are still waiting when the answer leaves, or when the client
disconnects, are cancelled at their owners.

A client that names its rack is sent to an in-sync replica there if the leader is elsewhere
(KIP-392): the leader's answer names that replica and holds no records.

A partition that cannot be read here (led by another broker, unknown, process gone) makes the answer
leave at once. A partition whose first process is still starting counts as empty. An answer has at
most ``max_bytes`` besides its first batch, and each owner is asked for its share of them. While the
Broker holds too much that clients have not read, it asks for less, and later (``response_budget``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.kafka.chain import Refuse
from raylog.kafka.refusal import refusal, refused_item
from raylog.kafka.table import FETCH
from raylog.listener import raw_forward
from raylog.listener.arrivals import Arrivals
from raylog.listener.fetch_sessions import NO_SESSION, Fetching, FetchSessions, Key
from raylog.listener.owners import Owner, Owners, Routed, unmoved
from raylog.listener.quotas import FetchQuota
from raylog.listener.response_budget import ResponseBudget
from raylog.listener.routes import NO_EPOCH, LeaderStarting, Redirect, Routes
from raylog.server.apis.entities import (
    NO_DELAY,
    build,
    fields_of,
    milliseconds,
    module_of,
    request_class,
    response_class,
)
from raylog.types import NO_LEADER, broker_of
from raylog.wire.frames import decode_response
from raylog.wire.request import Request

logger = logging.getLogger("raylog.broker")

DENIED = Redirect(ErrorCode.topic_authorization_failed)
ALONE = -1  # the session epoch of a request without a session
SLACK_MS = 5_000  # grace for an owner's answer after its deadline: it may be reading from a slow disk
PATIENCE_MS = 2_000  # the same, once other owners have answered


class Fetches:
    """Handles Fetch."""

    def __init__(
        self,
        routes: Routes,
        owners: Owners,
        sessions: FetchSessions,
        now_ms: Callable[[], int],
        budget: ResponseBudget,
        arrivals: Arrivals,
        routed: Routed = unmoved,
    ) -> None:
        """``readable`` and ``quota_of`` may be set. They say which topics a request's client may read,
        None for all, and which quota it has.
        """
        self._routed = routed
        self.readable: Callable[[Request], Callable[[Any], bool] | None] = lambda _: None
        self.quota_of: Callable[[Request], FetchQuota | None] = lambda _: None
        self.arrivals = arrivals
        self.routes = routes
        self.owners = owners
        self.sessions = sessions
        self.now_ms = now_ms
        self.budget = budget

    def handle(self, request: Request) -> None:
        """Begin a fetch; the reply is sent later."""
        if self._pass_on(request):
            return
        fetch_ = self._begun(request)
        if fetch_ is not None:
            self.budget.when_some_is_left(request, milliseconds(request.body.max_wait), fetch_.begin)

    def refuse(self, request: Request, refuse: Refuse) -> None:
        """Answer every partition of the session with that error. The session continues."""
        fetch_ = self._begun(request)
        if fetch_ is not None:
            fetch_.refuse(refuse.code)

    def _begun(self, request: Request) -> _Fetch | None:
        """Return the request within its session; None, with an error sent, if the session is not
        available.
        """
        body, version = request.body, request.version
        asked = _asked(body)
        if version < 7:
            fetching: Fetching | ErrorCode = Fetching(asked, None, is_full=True)
        else:
            forgotten = ((_named(topic), each) for topic in body.forgotten_topics_data for each in topic.partitions)
            fetching = self.sessions.begin(
                version, body.session_id, body.session_epoch, asked, forgotten, self.now_ms()
            )
        if isinstance(fetching, ErrorCode):
            request.reply(refusal(FETCH, version, body, fetching))
            return None
        return _Fetch(self, request, fetching)

    def _pass_on(self, request: Request) -> bool:
        """Forward the raw bytes if this is about one partition that is led here; return whether that
        was done. Where the client has a quota, it is not.
        """
        version = request.version
        asked = raw_forward.fetched(request.frame, version, request.position) if request.frame is not None else None
        owner = self.routes.leader_of(asked.topic, asked.number) if asked is not None else None
        may_read = self.readable(request)
        if asked is not None and may_read is not None and not may_read(asked.topic):
            return False
        if asked is None or not isinstance(owner, Owner) or not self.budget.has(asked.bytes_max):
            return False
        if self.quota_of(request) is not None:
            self._routed(request, owner, asked)
            return False

        def heard(answer: Any, error: Exception | None) -> None:
            if error is None and raw_forward.is_good_news(answer, asked):
                request.pass_on(answer)
                return
            reply = decode_response(FETCH.key, version, answer) if error is None else None
            _Fetch(self, request, Fetching(_asked(request.body), None, is_full=True)).end_with(owner, reply, error)

        timeout_ms = asked.waits_ms + SLACK_MS
        heard = request.guarded(heard)
        self._routed(request, owner, asked)
        cancel = self.owners.pass_on(owner, request, asked.end, heard, timeout_ms=timeout_ms, is_produce=False)
        request.on_close(lambda _: cancel())
        return True


def _asked(body: Any) -> list[tuple[Key, Any]]:
    """Return the partitions that a request names."""
    return [((_named(topic), each.partition), each) for topic in body.topics for each in topic.partitions]


def _named(topic: Any) -> Any:
    """Return a topic as this version names it: by name or by id."""
    return topic.topic_id if hasattr(topic, "topic_id") else topic.topic


@dataclasses.dataclass(slots=True)
class _Share:
    """The partitions of one owner, and its latest answer."""

    keys: list[Key]
    results: dict[Key, Any]
    size: int = 0
    is_heard: bool = False
    cancel: Callable[[], None] | None = None  # what is in flight


class _Fetch:
    """One request, until it is answered."""

    def __init__(self, fetches: Fetches, request: Request, fetching: Fetching) -> None:
        self._fetches = fetches
        self._request = request
        self._quota = fetches.quota_of(request)
        self._body = request.body if self._quota is None else self._quota.capped(request.body)
        self._fetching = fetching
        self._may_read = fetches.readable(request)
        self._asked = dict(fetching.partitions)
        self._cls = response_class(FETCH, request.version)
        self._module = module_of(self._cls)
        self._asking = module_of(request_class(FETCH, request.version))
        self._data_fields = fields_of(self._module.PartitionData)
        self._shares: dict[Owner, _Share] = {}
        self._refused: dict[Key, Any] = {}
        self._starting: dict[Key, Any] = {}  # the empty results of partitions whose process is still being started
        self._nearer: dict[Key, int] = {}  # brokers to which the client is sent
        self._leaders: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._throttle_time = NO_DELAY  # the longest that any owner returned
        self._max_bytes = self._body.max_bytes if hasattr(self._body, "max_bytes") else (1 << 31) - 1
        self._deadline_ms = fetches.now_ms() + milliseconds(self._body.max_wait)

    def begin(self, most_bytes: int) -> None:
        self._max_bytes = min(self._max_bytes, most_bytes)
        routes = self._fetches.routes
        rack = getattr(self._body, "rack_id", "")
        find = routes.reader if rack else routes.leader  # without a rack the leader is the better choice
        topics: dict[Any, Any] = {}
        for key, _ in self._fetching.partitions:
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = self._topic(key[0], ())
            place = find(topic, key[1]) if self._may_read is None or self._may_read(key[0]) else DENIED
            if isinstance(place, Owner):
                share = self._shares.get(place)
                if share is None:
                    share = self._shares[place] = _Share([], {})
                share.keys.append(key)
                if rack and (broker := routes.nearer(topic, key[1], rack)) is not None:
                    self._nearer[key] = broker
            elif isinstance(place, LeaderStarting):
                self._starting[key] = self._refusal(key, Redirect(ErrorCode.none))
            else:
                self._refused[key] = self._refusal(key, place)
        if not self._shares:
            self._end_empty()
            return
        self._request.on_close(lambda _: self._cancel())
        if len(self._shares) > 1:
            wait_s = (milliseconds(self._body.max_wait) + PATIENCE_MS) / 1_000
            self._timer = self._request.connection.loop.call_later(wait_s, self._time_up)
        waits = len(self._shares) == 1 and not self._refused and not self._nearer
        for owner, share in self._shares.items():
            self._ask(owner, share, min_bytes=self._body.min_bytes if waits else 0, waits=waits)

    def refuse(self, error: ErrorCode) -> None:
        """Finish at once, with that error for every partition."""
        self._refused = {key: self._refusal(key, Redirect(error)) for key, _ in self._fetching.partitions}
        self._finish()

    def end_with(self, owner: Owner, reply: Any, error: Exception | None) -> None:
        """Take the result of the only owner, which is already known."""
        share = self._shares[owner] = _Share([key for key, _ in self._fetching.partitions], {})
        self._heard(owner, share, reply, error)

    def _end_empty(self) -> None:
        """Finish without asking an owner: refusals leave at once; an empty request waits for
        ``max_wait`` or a first process.
        """
        left_ms = self._deadline_ms - self._fetches.now_ms()
        if self._refused or left_ms <= 0:
            self._finish()
            return
        if self._starting:
            starting = list(self._starting)
            routes, topics = self._fetches.routes, {key[0]: self._topic(key[0], ()) for key in starting}

            def has_come() -> bool:
                return any(not isinstance(routes.leader(topics[key[0]], key[1]), LeaderStarting) for key in starting)

            give_up = self._fetches.arrivals.wait(has_come, left_ms, self._request.guarded(self._begin_again))
            self._request.on_close(lambda _: give_up())
            return
        loop = self._request.connection.loop
        timer = loop.call_later(milliseconds(self._body.max_wait) / 1_000, self._finish)
        self._request.on_close(lambda _: timer.cancel())

    def _begin_again(self) -> None:
        self._starting.clear()
        self.begin(self._max_bytes)

    # ------------------------------------------------------------------ asking

    def _ask(self, owner: Owner, share: _Share, *, min_bytes: int, waits: bool) -> None:
        wait_ms = max(0, self._deadline_ms - self._fetches.now_ms()) if waits else 0
        part = dataclasses.replace(
            self._body,
            topics=self._topics(share.keys),
            max_wait=datetime.timedelta(milliseconds=wait_ms),
            min_bytes=min_bytes,
            **self._limits(),
        )
        heard = self._request.guarded(lambda reply, error: self._heard(owner, share, reply, error))
        share.cancel = self._fetches.owners.call(
            owner, part, heard, timeout_ms=wait_ms + SLACK_MS, context=self._request.context
        )

    def _limits(self) -> dict[str, Any]:
        version = self._request.version
        limits: dict[str, Any] = {"max_bytes": max(1, self._max_bytes // len(self._shares))}
        if version >= 7:
            limits |= {"session_id": NO_SESSION, "session_epoch": ALONE, "forgotten_topics_data": ()}
        if version >= 15:  # a client is never a follower, even if it claims to be
            limits["replica_state"] = self._asking.ReplicaState(replica_id=-1, replica_epoch=-1)
        return limits

    def _topics(self, keys: list[Key]) -> tuple[Any, ...]:
        grouped: dict[Any, list[Any]] = {}
        for key in keys:
            grouped.setdefault(key[0], []).append(self._asked[key])
        return tuple(self._topic(named, tuple(parts)) for named, parts in grouped.items())

    def _topic(self, named: Any, partitions: tuple[Any, ...]) -> Any:
        module = self._asking
        if self._request.version >= 13:
            return module.FetchTopic(topic_id=named, partitions=partitions)
        return module.FetchTopic(topic=named, partitions=partitions)

    # ------------------------------------------------------------------ answers

    def _heard(self, owner: Owner, share: _Share, reply: Any, error: Exception | None) -> None:
        if self._is_over:
            return
        share.cancel = None
        if error is not None or int(getattr(reply, "error_code", 0)) != 0:
            logger.debug("a fetch from node %d failed: %s", owner.node_id, error or reply.error_code)
            for key in share.keys:
                self._refused[key] = self._refusal(key, self._redirect(key))
            share.results.clear()
            share.size = 0
        else:
            self._throttle_time = max(self._throttle_time, getattr(reply, "throttle_time", NO_DELAY))
            share.results = {}
            for topic in reply.responses:
                for part in topic.partitions:
                    key = (_named(topic), part.partition_index)
                    share.results[key] = self._sent_nearer(key, self._translated(part))
            share.size = sum(len(part.records or b"") for part in share.results.values())
        share.is_heard = True
        if all(each.is_heard for each in self._shares.values()):
            self._judge()

    def _time_up(self) -> None:
        """Give up on an owner that has not answered at all, so that the others' answers can leave."""
        for share in self._shares.values():
            if not share.is_heard:
                self._refused |= {key: self._refusal(key, self._redirect(key)) for key in share.keys}
        self._finish()

    def _judge(self) -> None:
        """Decide, once every owner has answered, whether it is enough."""
        missing = self._body.min_bytes - sum(share.size for share in self._shares.values())
        errors = self._refused or any(
            part.error_code is not ErrorCode.none or _diverges(part)
            for share in self._shares.values()
            for part in share.results.values()
        )
        if missing <= 0 or errors or self._nearer or self._deadline_ms <= self._fetches.now_ms():
            self._finish()
            return
        if len(self._shares) == 1:
            self._finish()  # the owner itself has waited
            return
        step = -(-missing // len(self._shares))
        for owner, share in self._shares.items():
            if share.cancel is not None:
                share.cancel()  # its threshold belongs to an earlier sum
            self._ask(owner, share, min_bytes=share.size + step, waits=True)

    def _redirect(self, key: Key) -> Redirect:
        place = self._fetches.routes.leader(self._topic(key[0], ()), key[1])
        if isinstance(place, Redirect) and place.error is ErrorCode.not_leader_or_follower:
            return place
        return Redirect(ErrorCode.not_leader_or_follower)

    def _sent_nearer(self, key: Key, part: Any) -> Any:
        broker = self._nearer.get(key)
        if broker is None or part.error_code is not ErrorCode.none:
            return part
        return dataclasses.replace(part, records=b"", preferred_read_replica=broker)

    def _translated(self, part: Any) -> Any:
        if "current_leader" not in self._data_fields or part.current_leader.leader_id < 0:
            return part
        stand_in = self._fetches.routes.stand_in_of(broker_of(part.current_leader.leader_id))
        self._leaders.add(stand_in)
        return dataclasses.replace(part, current_leader=dataclasses.replace(part.current_leader, leader_id=stand_in))

    def _refusal(self, key: Key, redirect: Redirect) -> Any:
        module = self._module
        stated: dict[str, Any] = {"partition_index": key[1], "aborted_transactions": None}
        if redirect.leader != NO_LEADER and "current_leader" in self._data_fields:
            epoch = max(redirect.leader_epoch, NO_EPOCH)
            stated["current_leader"] = module.LeaderIdAndEpoch(leader_id=redirect.leader, leader_epoch=epoch)
            self._leaders.add(redirect.leader)
        return refused_item(module.PartitionData, None, redirect.error, **stated)

    # ------------------------------------------------------------------ the end

    def _cancel(self) -> None:
        """Cancel the request: its client is gone."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for share in self._shares.values():
            if share.cancel is not None:
                share.cancel()

    def _finish(self) -> None:
        self._cancel()
        results: dict[Key, Any] = {}
        size = 0
        gathered = self._starting | self._refused
        for share in self._shares.values():
            gathered |= share.results
        for key, _ in self._fetching.partitions:
            part = gathered.get(key)
            if part is None:
                continue
            count = len(part.records or b"")
            if size and size + count > self._max_bytes:
                part = dataclasses.replace(part, records=b"")  # the client will ask for it again
            else:
                size += count
            results[key] = part
        delay_ms, is_withheld = self._quota.charge(size) if self._quota is not None and size else (0, False)
        self._throttle_time = max(self._throttle_time, datetime.timedelta(milliseconds=delay_ms))
        if is_withheld:
            self._withhold()
            return
        sending = self._fetches.sessions.answered(self._fetching, results)
        topics: dict[Any, list[Any]] = {}
        for key, part in sending.items():
            topics.setdefault(key[0], []).append(part)
        naming = "topic_id" if self._request.version >= 13 else "topic"
        session = self._fetching.session
        self._request.reply(
            build(
                self._cls,
                throttle_time=self._throttle_time,
                error_code=ErrorCode.none,
                session_id=session.session_id if session is not None else NO_SESSION,
                responses=tuple(
                    self._module.FetchableTopicResponse(**{naming: named}, partitions=tuple(parts))
                    for named, parts in topics.items()
                ),
                node_endpoints=self._fetches.routes.endpoints(
                    self._module, self._leaders, self._request.context.listener
                ),
            )
        )

    def _withhold(self) -> None:
        """Answer that there is nothing yet. A session that this would have opened is not opened."""
        session = self._fetching.session
        if self._fetching.is_full and session is not None:
            self._fetches.sessions.drop(session.session_id)
        self._request.reply(
            build(
                self._cls,
                throttle_time=self._throttle_time,
                error_code=ErrorCode.none,
                session_id=NO_SESSION if self._fetching.is_full or session is None else session.session_id,
                responses=(),
                node_endpoints=(),
            )
        )


def _diverges(part: Any) -> bool:
    diverging = getattr(part, "diverging_epoch", None)
    return diverging is not None and diverging.end_offset >= 0
