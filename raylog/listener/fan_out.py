"""Splits requests about partitions among the owning processes and merges their answers.

The answers are merged in the order of the request. A ``PartitionSplit`` names the fields of such an
API. A Produce with acks 0 has no reply; if part of it cannot be forwarded the connection closes, as
in Kafka. A request with a single owner is forwarded unchanged, and so is the answer unless it names
leaders, which are nodes inside and brokers outside. A Produce to one partition is not even decoded
(``raw_forward``).

A new partition whose first process is still starting is asked when that process has arrived, within
the request's own timeout (``ARRIVAL_MS`` if it has none). The other partitions are asked at once;
only the merged answer waits.

Each partition is answered exactly once: by its owner; by NOT_LEADER_OR_FOLLOWER, with a hint, if
another broker leads it or the connection to the owner ends; by REQUEST_TIMED_OUT if the owner does
not answer.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.errors import ClientTimeoutError
from raylog.kafka.refusal import refused_item
from raylog.kafka.spec import ApiSpec, PartitionSplit
from raylog.kafka.table import PRODUCE
from raylog.listener import raw_forward
from raylog.listener.arrivals import Arrivals
from raylog.listener.owners import Owner, Owners, Routed, unmoved
from raylog.listener.routes import NO_EPOCH, LeaderStarting, Redirect, Routes
from raylog.server.apis.entities import NO_DELAY, build, fields_of, milliseconds, module_of, response_class
from raylog.types import NO_LEADER, broker_of
from raylog.wire.frames import decode_response
from raylog.wire.request import Request

logger = logging.getLogger("raylog.broker")

SLACK_MS = 5_000  # grace for the answer, which an owner sends within the request's own timeout
TIMEOUT_MS = 30_000
ARRIVAL_MS = 5_000  # how long a request without a timeout waits for the first process of a new partition
_NAMING = ("name", "topic", "topic_id")


Spot = tuple[int, int]
"""A partition's place in its request: the index of the topic, and of the partition in it."""


def _split_of(spec: ApiSpec) -> PartitionSplit:
    assert spec.partitions is not None, f"{spec} is not split by partition"
    return spec.partitions


def _waits_ms(split: PartitionSplit, body: Any) -> int:
    """How long a request gives its owners, or the first processes of new partitions."""
    return milliseconds(body.timeout) if split.has_timeout else ARRIVAL_MS


def _timeout_ms(split: PartitionSplit, body: Any) -> int:
    """How long to wait for an owner before it counts as silent."""
    return milliseconds(body.timeout) + SLACK_MS if split.has_timeout else TIMEOUT_MS


class FanOut:
    """Handles the requests of one such API."""

    def __init__(
        self, spec: ApiSpec, routes: Routes, owners: Owners, arrivals: Arrivals, routed: Routed = unmoved
    ) -> None:
        self._arrivals = arrivals
        self._routed = routed
        self._spec = spec
        self._split = _split_of(spec)
        self._routes = routes
        self._owners = owners

    def handle(self, request: Request) -> None:
        """Forward the request. The reply is sent when every owner has answered or was lost."""
        if self._spec is PRODUCE and self._pass_on(request):
            return
        if getattr(request.body, "replica_id", -1) >= 0:  # a client is never a follower, even if it claims to be
            request.body = dataclasses.replace(request.body, replica_id=-1)
        split, body = self._split, request.body
        spots = [
            (at, index)
            for at, topic in enumerate(getattr(body, split.topics))
            for index in range(len(getattr(topic, split.partitions)))
        ]
        if self._spec is PRODUCE and body.acks == 0:
            self._forward_unanswered(request, spots, waits_ms=_waits_ms(split, body))
            return
        gathering = _GatheredAnswers(request, self._spec, self._routes, pending=1)
        self._ask(gathering, request, spots, body, waits_ms=_waits_ms(split, body))
        gathering.part_is_done()

    def _ask(
        self, gathering: _GatheredAnswers, request: Request, spots: list[Spot], body: Any, *, waits_ms: int
    ) -> None:
        """Ask the owners of these partitions now, and owners that are still starting when they
        arrive.
        """

        def go_on(spot: Spot, left_ms: int) -> None:
            later = body
            if self._split.has_timeout:
                later = dataclasses.replace(body, timeout=datetime.timedelta(milliseconds=max(1, left_ms)))
            self._ask(gathering, request, [spot], later, waits_ms=0)
            gathering.part_is_done()

        shares, refused, starting = self._divide(body, spots, may_wait=waits_ms > 0)
        gathering.refuse(refused)
        is_whole = len(shares) == 1 and not refused and not starting and len(spots) == gathering.size
        for owner, share in shares.items():
            part = body if is_whole else self._part(body, share)
            answered = request.guarded(gathering.answered(share, is_whole=is_whole))
            timeout_ms = _timeout_ms(self._split, body)
            self._owners.call(owner, part, answered, timeout_ms=timeout_ms, context=request.context)
        for spot in starting:
            gathering.begin_part()
            self._when_there(request, spot, waits_ms, lambda left_ms, spot=spot: go_on(spot, left_ms))  # type: ignore[misc]

    def _divide(
        self, body: Any, spots: list[Spot], *, may_wait: bool
    ) -> tuple[dict[Owner, list[Spot]], dict[Spot, Redirect], list[Spot]]:
        """Return which owners to ask about which partitions, the refusals, and the partitions whose
        owner is still starting.
        """
        shares: dict[Owner, list[Spot]] = {}
        refused: dict[Spot, Redirect] = {}
        starting: list[Spot] = []
        for spot in spots:
            place = self._place(body, spot)
            if isinstance(place, Owner):
                shares.setdefault(place, []).append(spot)
            elif isinstance(place, LeaderStarting) and may_wait:
                starting.append(spot)
            else:
                refused[spot] = place
        return shares, refused, starting

    def _place(self, body: Any, spot: Spot) -> Owner | Redirect:
        topic = getattr(body, self._split.topics)[spot[0]]
        return self._routes.leader(topic, self._split.number_of(getattr(topic, self._split.partitions)[spot[1]]))

    def _when_there(self, request: Request, spot: Spot, waits_ms: int, then: Callable[[int], None]) -> None:
        """Call ``then`` with the milliseconds that are left, when the owner has arrived or the wait
        is over.
        """
        body, loop = request.body, request.connection.loop
        due = loop.time() + waits_ms / 1_000

        def there() -> None:
            then(round((due - loop.time()) * 1_000))

        def has_come() -> bool:
            return not isinstance(self._place(body, spot), LeaderStarting)

        give_up = self._arrivals.wait(has_come, waits_ms, request.guarded(there))
        request.on_close(lambda _: give_up())

    def _pass_on(self, request: Request) -> bool:
        """Forward the raw bytes if this is a Produce to one partition that is led here; return
        whether it was.
        """
        if request.frame is None:
            return False
        asked = raw_forward.produced(request.frame, request.version, request.position)
        owner = self._routes.leader_of(asked.topic, asked.number) if asked is not None else None
        if asked is None or not isinstance(owner, Owner):
            return False

        def heard(answer: Any, error: Exception | None) -> None:
            if error is None and raw_forward.is_good_news(answer, asked):
                request.pass_on(answer)
                return
            reply = decode_response(self._spec.key, request.version, answer) if error is None else None
            gathering = _GatheredAnswers(request, self._spec, self._routes, pending=0)
            gathering.answered([(0, 0)], is_whole=True)(reply, error)

        timeout_ms = asked.waits_ms + SLACK_MS
        heard = request.guarded(heard)
        self._routed(request, owner, asked)
        self._owners.pass_on(owner, request, asked.end, heard, timeout_ms=timeout_ms, is_produce=True)
        return True

    def _forward_unanswered(self, request: Request, spots: list[Spot], *, waits_ms: int) -> None:
        """Close the connection: without acknowledgements, this is the only sign to look for leaders
        again.
        """
        connection = request.connection
        pending = 1

        def lost() -> None:
            logger.info("closing the connection of %s: no leader here for its Produce with acks=0", connection.peername)
            connection.close()

        def forward(spots: list[Spot], waits_ms: int) -> None:
            nonlocal pending
            shares, refused, starting = self._divide(request.body, spots, may_wait=waits_ms > 0)
            pending += len(starting)
            for owner, share in shares.items():
                part = (
                    request.body
                    if len(shares) == 1 and not refused and not starting
                    else self._part(request.body, share)
                )
                self._owners.tell(owner, part, lost, context=request.context)
            for spot in starting:
                self._when_there(request, spot, waits_ms, lambda _, spot=spot: forward([spot], 0))  # type: ignore[misc]
            pending -= 1
            if not pending:
                request.done()
            if refused:
                lost()

        forward(spots, waits_ms)

    def _part(self, body: Any, spots: list[Spot]) -> Any:
        """Return the request with these partitions only."""
        split = self._split
        topics = getattr(body, split.topics)
        wanted: dict[int, list[int]] = {}
        for at, index in spots:
            wanted.setdefault(at, []).append(index)
        parts = []
        for at, indexes in wanted.items():
            partitions = getattr(topics[at], split.partitions)
            chosen = partitions if len(indexes) == len(partitions) else tuple(partitions[index] for index in indexes)
            parts.append(dataclasses.replace(topics[at], **{split.partitions: chosen}))
        return dataclasses.replace(body, **{split.topics: tuple(parts)})


class _GatheredAnswers:
    """Collects the answers to one request until all have arrived."""

    def __init__(self, request: Request, spec: ApiSpec, routes: Routes, *, pending: int) -> None:
        self._split = split = _split_of(spec)
        self.size = sum(len(getattr(topic, split.partitions)) for topic in getattr(request.body, split.topics))
        self._request = request
        self._body = request.body
        self._routes = routes
        self._pending = pending
        self._leaders: set[int] = set()  # brokers that the answer names as leaders
        self._cls = response_class(spec, request.version)
        self._module = module_of(self._cls)
        self._has_leaders = "current_leader" in fields_of(getattr(self._module, split.replied_partition))
        self._results: dict[Spot, Any] = {}
        self._throttle_time = NO_DELAY  # the longest that any owner returned

    def begin_part(self) -> None:
        """Make the answer wait for one more owner."""
        self._pending += 1

    def part_is_done(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self.finish()

    def refuse(self, refused: dict[Spot, Redirect]) -> None:
        for spot, redirect in refused.items():
            self._refuse(spot, redirect)

    def answered(self, spots: list[Spot], *, is_whole: bool) -> Callable[[Any, Exception | None], None]:
        """Return the callback for the owner of these partitions. ``is_whole``: the request has no
        others.
        """
        self.begin_part()

        def take(reply: Any, error: Exception | None) -> None:
            if error is not None:
                timed_out = isinstance(error, ClientTimeoutError)
                code = ErrorCode.request_timed_out if timed_out else ErrorCode.not_leader_or_follower
                for spot in spots:
                    self._refuse(spot, self._redirect(spot, code))
            elif is_whole and not self._names_leaders(reply):
                self._request.reply(reply)
                return  # and nothing else is pending
            else:
                self._throttle_time = max(self._throttle_time, getattr(reply, "throttle_time", NO_DELAY))
                self._collect(spots, reply)
            self.part_is_done()

        return take

    def _redirect(self, spot: Spot, code: ErrorCode) -> Redirect:
        """Return the refusal of a partition whose owner was lost, with the new leader if the image
        has one.
        """
        topic = getattr(self._body, self._split.topics)[spot[0]]
        number = self._split.number_of(getattr(topic, self._split.partitions)[spot[1]])
        place = self._routes.leader(topic, number)
        return Redirect(code, place.leader, place.leader_epoch) if isinstance(place, Redirect) else Redirect(code)

    def _names_leaders(self, reply: Any) -> bool:
        return self._has_leaders and any(
            partition.current_leader.leader_id >= 0
            for topic in getattr(reply, self._split.replied_topics)
            for partition in getattr(topic, self._split.replied_partitions)
        )

    def _collect(self, spots: list[Spot], reply: Any) -> None:
        """Return the answers in the order of the request."""
        answers = (
            partition
            for topic in getattr(reply, self._split.replied_topics)
            for partition in getattr(topic, self._split.replied_partitions)
        )
        for spot, found in zip(spots, answers, strict=True):
            self._results[spot] = self._translated(found)

    def _translated(self, found: Any) -> Any:
        if not self._has_leaders or found.current_leader.leader_id < 0:
            return found
        stand_in = self._routes.stand_in_of(broker_of(found.current_leader.leader_id))
        self._leaders.add(stand_in)
        return dataclasses.replace(found, current_leader=dataclasses.replace(found.current_leader, leader_id=stand_in))

    def _refuse(self, spot: Spot, redirect: Redirect) -> None:
        split, module = self._split, self._module
        asked = getattr(getattr(self._body, split.topics)[spot[0]], split.partitions)[spot[1]]
        hint = {}
        if redirect.leader != NO_LEADER and self._has_leaders:
            hint["current_leader"] = module.LeaderIdAndEpoch(
                leader_id=redirect.leader, leader_epoch=max(redirect.leader_epoch, NO_EPOCH)
            )
            self._leaders.add(redirect.leader)
        cls = getattr(module, split.replied_partition)
        self._results[spot] = refused_item(cls, asked, redirect.error, **hint)

    def finish(self) -> None:
        split = self._split
        reply_topic = getattr(self._module, split.replied_topic)
        named = fields_of(reply_topic).intersection(_NAMING)
        topics = []
        for at, topic in enumerate(getattr(self._body, split.topics)):
            values: dict[str, Any] = {name: getattr(topic, name) for name in named}
            count = len(getattr(topic, split.partitions))
            values[split.replied_partitions] = tuple(self._results[at, index] for index in range(count))
            topics.append(reply_topic(**values))
        self._request.reply(
            build(
                self._cls,
                **{split.replied_topics: tuple(topics)},
                throttle_time=self._throttle_time,
                node_endpoints=self._routes.endpoints(self._module, self._leaders, self._request.context.listener)
                if self._leaders
                else (),
            )
        )
