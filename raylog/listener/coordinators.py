"""Finds group coordinators for Kafka clients and forwards group requests to them.

A group's coordinator is the broker whose process leads the group's partition of
``__consumer_offsets``, or that broker's stand-in (``routes``).

FindCoordinator is answered from the image. The first one creates the topic and waits, usually for
milliseconds, until the group's partition has a leader. If a leader has gone the answer is
COORDINATOR_NOT_AVAILABLE, and clients retry.

A request about one group goes to the process that leads its partition. A request about several
groups is split, and the answers are merged in the order of the request. A request waits while its
group's partition is new and has no process yet, and while ``__consumer_offsets`` is missing from
this Broker's image: the client may have found its coordinator through a Broker that is further
ahead. If this broker neither leads the partition nor stands in for its leader, or if the process
ends, the answer is NOT_COORDINATOR, and the client looks again. Commits for partitions that do not
exist are answered here, because a coordinator does not know which topics exist.

The request's context carries the client's host and id, which describe members. The coordinator
does not notice when a client disconnects: as in Kafka, the member leaves by its session timeout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec, GroupSplit
from raylog.listener.arrivals import Arrivals
from raylog.listener.owners import Owner, Owners
from raylog.listener.routes import Routes
from raylog.listener.topic_creation import TopicCreator
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.server.apis.admin import NO_TRANSACTIONS, NO_TRANSACTIONS_MESSAGE
from raylog.server.apis.api import answer
from raylog.server.apis.entities import NO_DELAY, build
from raylog.types import NO_LEADER
from raylog.wire.request import Handler, Request

GROUP_KEY, TRANSACTION_KEY = 0, 1
TIMEOUT_MS = 30_000
FIRST_LEADERS_MS = 5_000  # how long FindCoordinator and group requests wait for the first leader of a group's partition
UNKNOWN_TOPIC_MS = 1_000  # how long a group request waits until ``__consumer_offsets`` is in this Broker's image
PATIENCE_MS = float("inf")  # for requests that wait for other members: they end with the process's connection
COMMITS = {table.OFFSET_COMMIT: "OffsetCommitResponse", table.TXN_OFFSET_COMMIT: "TxnOffsetCommitResponse"}
"""The commits of offsets, and what the names of the classes nested in their answers begin with."""
WAITING = (table.JOIN_GROUP, table.SYNC_GROUP)


class _OffsetsTopic:
    name = OFFSETS_TOPIC


class Coordinators:
    def __init__(self, routes: Routes, owners: Owners, creation: TopicCreator, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._routes = routes
        self._owners = owners
        self._creation = creation

    def handlers(self) -> dict[ApiSpec, Handler]:
        found: dict[ApiSpec, Handler] = {spec: self._handler(spec) for spec in table.OF_GROUPS}
        found[table.LIST_GROUPS] = self._list_groups
        found[table.FIND_COORDINATOR] = self._find
        return found

    # ------------------------------------------------------------------ where they are

    def _find(self, request: Request) -> Any:
        if getattr(request.body, "key_type", GROUP_KEY) == GROUP_KEY:
            if self._routes.image.topic_named(OFFSETS_TOPIC) is None:
                return self._find_later(request, is_there=False)
            if self._are_new(request):
                return self._find_later(request, is_there=True)
        request.reply(self._found(request.body, request.version))
        return None

    async def _find_later(self, request: Request, *, is_there: bool) -> Any:
        if not is_there:
            await self._creation.create([OFFSETS_TOPIC])
        await self._arrivals.until(lambda: not self._are_new(request), FIRST_LEADERS_MS)
        return self._found(request.body, request.version)

    def _are_new(self, request: Request) -> bool:
        """Return whether the partition of any of these groups has never had a leader."""
        body = request.body
        keys = body.coordinator_keys if request.version >= 4 else (body.key,)
        return any(self._routes.is_new(OFFSETS_TOPIC, partition_for(key)) for key in keys)

    def _found(self, body: Any, version: int) -> Any:
        cls, module = answer(table.FIND_COORDINATOR, version)
        key_type = getattr(body, "key_type", GROUP_KEY)
        if version >= 4:
            each = tuple(
                build(module.Coordinator, key=key, **self._place(key, key_type)) for key in body.coordinator_keys
            )
            return build(cls, throttle_time=NO_DELAY, coordinators=each)
        return build(cls, throttle_time=NO_DELAY, **self._place(body.key, key_type))

    def _place(self, key: str, key_type: int) -> dict[str, Any]:
        error, message = ErrorCode.none, None
        listener = None
        if key_type == TRANSACTION_KEY:
            error, message = NO_TRANSACTIONS, NO_TRANSACTIONS_MESSAGE
        elif key_type != GROUP_KEY:
            error, message = (
                ErrorCode.invalid_request,
                f"unknown coordinator type {key_type}: raylog knows type 0, groups",
            )
        else:
            broker = self._routes.leading_broker(OFFSETS_TOPIC, partition_for(key))
            listener = self._routes.listener_or_stand_in(broker)
            if listener is None:
                error, message = (
                    ErrorCode.coordinator_not_available,
                    "the group's partition has no leader at the moment",
                )
        return {
            "error_code": error,
            "error_message": message,
            "node_id": listener.broker_id if listener is not None else NO_LEADER,
            "host": listener.endpoint.host if listener is not None else "",
            "port": listener.endpoint.port if listener is not None else -1,
        }

    # ------------------------------------------------------------------ requests to them

    def owner(self, group_id: str) -> Owner | None:
        found = self._routes.leader(_OffsetsTopic, partition_for(group_id))
        return found if isinstance(found, Owner) else None

    def _handler(self, spec: ApiSpec) -> Handler:
        split = spec.groups

        def handle(request: Request) -> None:
            names_several = split is not None and request.version >= split.first_version
            asked = map(split.id_of, getattr(request.body, split.asked)) if names_several and split else ()
            partitions = {partition_for(each) for each in (asked if names_several else (request.body.group_id,))}
            if any(map(self._is_awaited, partitions)):
                wait_ms = FIRST_LEADERS_MS if self._is_there() else UNKNOWN_TOPIC_MS
                there = request.guarded(lambda: ask(request))
                give_up = self._arrivals.wait(lambda: not any(map(self._is_awaited, partitions)), wait_ms, there)
                request.on_close(lambda _: give_up())
            else:
                ask(request)

        def ask(request: Request) -> None:
            if split is not None and request.version >= split.first_version:
                _Split(self, spec, split, request).begin()
            else:
                self._pass_on(spec, request)

        return handle

    def _is_there(self) -> bool:
        return self._routes.image.topic_named(OFFSETS_TOPIC) is not None

    def _is_awaited(self, number: int) -> bool:
        """Return whether this broker is about to lead that partition but has no process for it yet."""
        if not self._is_there():
            return True
        is_new = self._routes.is_new(OFFSETS_TOPIC, number)
        return is_new and not isinstance(self._routes.leader(_OffsetsTopic, number), Owner)

    def _pass_on(self, spec: ApiSpec, request: Request) -> None:
        body, version = request.body, request.version
        finish: Callable[[Any], Any] = _as_it_is
        if spec in COMMITS:
            body, finish = self._known(spec, body, version)
            if not body.topics and request.body.topics:
                request.reply(finish(refusal(spec, version, body, ErrorCode.none)))
                return
        owner = self.owner(body.group_id)
        if owner is None:
            request.reply(finish(_turned_away(spec, version, body)))
            return

        def replied(reply: Any, error: Exception | None) -> None:
            request.reply(finish(_turned_away(spec, version, body) if error is not None else reply))

        self.ask(spec, owner, body, request, replied)

    def _known(self, spec: ApiSpec, body: Any, version: int) -> tuple[Any, Callable[[Any], Any]]:
        """Return a commit of offsets without unknown partitions, and a function that adds their errors
        to the answer.
        """
        image = self._routes.image
        asked = [(topic.name, each.partition_index) for topic in body.topics for each in topic.partitions]
        topics_there = {name: image.topic_named(name) for name, _ in asked}
        there = {
            (name, number)
            for name, number in asked
            if (found := topics_there[name]) is not None and number in found.partitions
        }
        if len(there) == len(set(asked)):
            return body, _as_it_is
        kept = []
        for topic in body.topics:
            partitions = tuple(each for each in topic.partitions if (topic.name, each.partition_index) in there)
            if partitions:
                kept.append(dataclasses.replace(topic, partitions=partitions))

        def finish(reply: Any) -> Any:
            _, module = answer(spec, version)
            of_topic, of_partition = (getattr(module, f"{COMMITS[spec]}{part}") for part in ("Topic", "Partition"))
            found = iter([each for topic in reply.topics for each in topic.partitions])
            topics = tuple(
                of_topic(
                    name=topic.name,
                    partitions=tuple(
                        next(found)
                        if (topic.name, each.partition_index) in there
                        else of_partition(
                            partition_index=each.partition_index, error_code=ErrorCode.unknown_topic_or_partition
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in body.topics
            )
            return dataclasses.replace(reply, topics=topics)

        return dataclasses.replace(body, topics=tuple(kept)), finish

    def ask(
        self,
        spec: ApiSpec,
        owner: Owner,
        body: Any,
        request: Request,
        on_reply: Callable[[Any, Exception | None], None],
    ) -> None:
        """Ask one process on behalf of the request's client."""
        timeout_ms = PATIENCE_MS if spec in WAITING else TIMEOUT_MS
        self._owners.call(owner, body, on_reply, timeout_ms=timeout_ms, context=request.context)

    # ------------------------------------------------------------------ all groups of this broker

    def _list_groups(self, request: Request) -> None:
        topic = self._routes.image.topic_named(OFFSETS_TOPIC)
        leaders = [
            self._routes.leader(_OffsetsTopic, number) for number in (topic.partitions if topic is not None else ())
        ]
        owners = sorted({each for each in leaders if isinstance(each, Owner)}, key=lambda owner: owner.node_id)
        replies: list[Any] = []

        def listed(error: ErrorCode) -> Any:
            return refusal(table.LIST_GROUPS, request.version, request.body, error)

        def replied(reply: Any, error: Exception | None) -> None:
            replies.append(listed(ErrorCode.coordinator_not_available) if error is not None else reply)
            if len(replies) == len(owners):
                request.reply(_together(replies))

        if not owners:
            request.reply(listed(ErrorCode.none))
        for owner in owners:
            self.ask(table.LIST_GROUPS, owner, request.body, request, replied)


def _turned_away(spec: ApiSpec, version: int, body: Any) -> Any:
    return refusal(spec, version, body, ErrorCode.not_coordinator)


def _as_it_is(reply: Any) -> Any:
    return reply


def _together(replies: Sequence[Any]) -> Any:
    error = next((each.error_code for each in replies if each.error_code != ErrorCode.none), ErrorCode.none)
    groups = tuple(group for each in replies for group in each.groups)
    return dataclasses.replace(_longest_wait(replies), error_code=error, groups=groups)


def _longest_wait(replies: Sequence[Any]) -> Any:
    """Return the reply with the longest throttle time."""
    return max(replies, key=lambda reply: getattr(reply, "throttle_time", NO_DELAY))


class _Split:
    """A request about several groups that has been split among several processes."""

    def __init__(self, coordinators: Coordinators, spec: ApiSpec, split: GroupSplit, request: Request) -> None:
        self._coordinators = coordinators
        self._spec = spec
        self._split = split
        self._request = request
        self._asked: tuple[Any, ...] = tuple(getattr(request.body, split.asked))
        self._found: dict[int, Any] = {}
        self._template: Any = None

    def begin(self) -> None:
        by_owner: dict[Owner | None, list[int]] = {}
        for index, asked in enumerate(self._asked):
            by_owner.setdefault(self._coordinators.owner(self._split.id_of(asked)), []).append(index)
        if not by_owner:
            self._request.reply(refusal(self._spec, self._request.version, self._request.body, ErrorCode.none))
        for owner, indexes in by_owner.items():
            part = dataclasses.replace(
                self._request.body, **{self._split.asked: tuple(self._asked[i] for i in indexes)}
            )
            take = self._taker(part, indexes)
            if owner is None:
                take(_turned_away(self._spec, self._request.version, part), None)
            else:
                self._coordinators.ask(self._spec, owner, part, self._request, take)

    def _taker(self, part: Any, indexes: Sequence[int]) -> Callable[[Any, Exception | None], None]:
        def take(reply: Any, error: Exception | None) -> None:
            if error is not None:
                reply = _turned_away(self._spec, self._request.version, part)
            self._template = reply if self._template is None else _longest_wait((self._template, reply))
            self._found.update(zip(indexes, getattr(reply, self._split.replied), strict=True))
            if len(self._found) == len(self._asked):
                whole = tuple(self._found[index] for index in range(len(self._asked)))
                self._request.reply(dataclasses.replace(self._template, **{self._split.replied: whole}))

        return take
