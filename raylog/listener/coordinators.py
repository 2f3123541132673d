"""Forwards the requests of groups and of transactions to the processes that coordinate them.

What is said of groups here holds of transactional ids, too: their partitions are those of
``__transaction_state``. ``coordinator_search`` tells clients which broker to ask.

A request about one group goes to the process that leads its partition. A request about several
groups is split, and the answers are merged in the order of the request. A request waits while its
group's partition is new and has no process yet, and while ``__consumer_offsets`` is missing from
this Broker's image: the client may have found its coordinator through a Broker that is further
ahead. If this broker neither leads the partition nor stands in for its leader, or if the process
ends, the answer is NOT_COORDINATOR, and the client looks again. A broker whose coordinator of
transactions has died stands in for the one that coordinates now (``coordinator_stand_ins``).
Partitions that do not exist are answered here, where offsets are committed for them or a transaction
wants to write to them: a coordinator does not know which partitions exist.

The request's context carries the client's host and id, which describe members. The coordinator
does not notice when a client disconnects: as in Kafka, the member leaves by its session timeout.

A connection on which a client only asks about its transactions may move to the process that
coordinates them (``raylog.listener.moves``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec, GroupSplit
from raylog.listener.arrivals import Arrivals
from raylog.listener.coordinator_stand_ins import CoordinatorStandIns
from raylog.listener.owners import Owner, Owners
from raylog.listener.routes import Routes
from raylog.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_for
from raylog.server.apis.api import answer
from raylog.server.apis.entities import NO_DELAY
from raylog.wire.private_transactions import (
    EndSharedTransactionResponse,
    JoinTransactionResponse,
    KeepTransactionResponse,
)
from raylog.wire.request import Handler, Request

TIMEOUT_MS = 30_000
FIRST_LEADERS_MS = 5_000  # how long requests wait for the first leader of their partition
UNKNOWN_TOPIC_MS = 1_000  # how long a request waits until the coordinators' topic is in this Broker's image
PATIENCE_MS = float("inf")  # for requests that wait for other members: they end with the process's connection
COMMITS = {table.OFFSET_COMMIT: "OffsetCommitResponse", table.TXN_OFFSET_COMMIT: "TxnOffsetCommitResponse"}
"""The commits of offsets, and what the names of the classes nested in their answers begin with."""
SHARED: tuple[type[Any], ...] = (JoinTransactionResponse, KeepTransactionResponse, EndSharedTransactionResponse)
WAITING = (table.JOIN_GROUP, table.SYNC_GROUP)
LISTED = {table.LIST_GROUPS: "groups", table.LIST_TRANSACTIONS: "transaction_states"}
"""The APIs that ask each process for all it has, and where their answers have it."""


class CoordinatedTopic(NamedTuple):
    """An internal topic whose leaders coordinate something, and the APIs about that. ``id_of`` is
    the id that decides which partition is asked, of a request that names only one.
    """

    name: str
    apis: tuple[ApiSpec, ...]
    id_of: Callable[[Any], str]


def _transactional_id(body: Any) -> str:
    named = getattr(body, "transactional_id", None)
    return str(body.v3_and_below_transactional_id if named is None else named)


GROUPS = CoordinatedTopic(OFFSETS_TOPIC, table.OF_GROUPS, lambda body: str(body.group_id))
TRANSACTIONS = CoordinatedTopic(TRANSACTIONS_TOPIC, table.OF_TRANSACTIONS, _transactional_id)


class Coordinators:
    """Those of one topic. ``coordinated`` is called before a request in a transaction is passed on.
    ``stand_ins``: those of transactions; None: of groups.
    """

    def __init__(
        self,
        topic: CoordinatedTopic,
        routes: Routes,
        owners: Owners,
        arrivals: Arrivals,
        coordinated: Callable[[Request, Owner], None],
        stand_ins: CoordinatorStandIns | None = None,
    ) -> None:
        self._topic = topic
        self._stand_ins = stand_ins
        self._arrivals = arrivals
        self._routes = routes
        self._owners = owners
        self._coordinated = coordinated

    def handlers(self) -> dict[ApiSpec, Handler]:
        return {spec: self._list(spec) if spec in LISTED else self.handler(spec) for spec in self._topic.apis}

    def owner(self, id: str) -> Owner | None:
        """The process to ask about a group or a transactional id, if this broker is the one to do so."""
        number = partition_for(id)
        if self._passes_on(number):
            return self._routes.leading_process(self._topic.name, number)
        found = self._routes.leader_of(self._topic.name, number)
        return found if isinstance(found, Owner) else None

    def _passes_on(self, number: int) -> bool:
        """Return whether this broker stands in for the one whose process coordinates."""
        return self._stand_ins is not None and self._stand_ins.passes_on(number)

    def handler(self, spec: ApiSpec) -> Handler:
        """Pass requests of that API on."""
        split = spec.groups

        def handle(request: Request) -> None:
            names_several = split is not None and request.version >= split.first_version
            asked = map(split.id_of, getattr(request.body, split.asked)) if names_several and split else ()
            partitions = {
                partition_for(each) for each in (asked if names_several else (self._topic.id_of(request.body),))
            }
            self._once_there(partitions, request, ask)

        def ask(request: Request) -> None:
            if split is not None and request.version >= split.first_version:
                _Split(self, spec, split, request).begin()
            else:
                self._pass_on(spec, request)

        return handle

    def _once_there(self, partitions: set[int], request: Request, ask: Callable[[Request], None]) -> None:
        """Ask when these partitions have processes; at once, as a rule."""
        if not any(map(self._is_awaited, partitions)):
            ask(request)
            return
        wait_ms = FIRST_LEADERS_MS if self._is_there() else UNKNOWN_TOPIC_MS
        there = request.guarded(lambda: ask(request))
        give_up = self._arrivals.wait(lambda: not any(map(self._is_awaited, partitions)), wait_ms, there)
        request.on_close(lambda _: give_up())

    def _is_there(self) -> bool:
        return self._routes.image.topic_named(self._topic.name) is not None

    def _is_awaited(self, number: int) -> bool:
        """Return whether this broker is about to lead that partition but has no process for it yet."""
        if not self._is_there():
            return True
        is_new = self._routes.is_new(self._topic.name, number)
        return is_new and not isinstance(self._routes.leader_of(self._topic.name, number), Owner)

    def _pass_on(self, spec: ApiSpec, request: Request) -> None:
        body, version = request.body, request.version
        finish: Callable[[Any], Any] = _as_it_is
        if spec in COMMITS:
            body, finish = self._known(spec, body, version)
            if not body.topics and request.body.topics:
                request.reply(finish(refusal(spec, version, body, ErrorCode.none)))
                return
        if spec is table.ADD_PARTITIONS_TO_TXN:
            refused = self._with_unknown(body, version)
            if refused is not None:
                request.reply(refused)
                return
        owner = self.owner(self._topic.id_of(body))
        if owner is None:
            request.reply(finish(_turned_away(spec, version, body)))
            return

        def replied(reply: Any, error: Exception | None) -> None:
            request.reply(finish(_turned_away(spec, version, body) if error is not None else reply))

        if spec in table.IN_TRANSACTIONS:
            self._coordinated(request, owner)
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

    def _with_unknown(self, body: Any, version: int) -> Any:
        """Return the answer to an AddPartitionsToTxn of a client that names unknown partitions: none
        is added. None if all are known.
        """
        image = self._routes.image
        topics = {each.name: image.topic_named(each.name) for each in body.v3_and_below_topics}
        named = [(topic.name, number) for topic in body.v3_and_below_topics for number in topic.partitions]
        unknown = {
            (name, number)
            for name, number in named
            if (found := topics[name]) is None or number not in found.partitions
        }
        if not unknown:
            return None
        whole = refusal(table.ADD_PARTITIONS_TO_TXN, version, body, ErrorCode.operation_not_attempted)
        _, module = answer(table.ADD_PARTITIONS_TO_TXN, version)
        results = tuple(
            module.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    module.AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=ErrorCode.unknown_topic_or_partition
                        if (topic.name, number) in unknown
                        else ErrorCode.operation_not_attempted,
                    )
                    for number in topic.partitions
                ),
            )
            for topic in body.v3_and_below_topics
        )
        return dataclasses.replace(whole, results_by_topic_v3_and_below=results)

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

    # ------------------------------------------------------------------ raylog's own APIs

    def shared_handlers(self) -> dict[int, Handler]:
        """Those of transactions of several producers (``server.apis.shared_transactions``)."""
        return {response.API_KEY: self._shared(response) for response in SHARED}

    def _shared(self, response: type[Any]) -> Handler:

        def handle(request: Request) -> None:
            self._once_there({partition_for(self._topic.id_of(request.body))}, request, ask)

        def ask(request: Request) -> None:
            owner = self.owner(self._topic.id_of(request.body))
            turned_away = response(ErrorCode.not_coordinator.value)
            if owner is None:
                request.reply(turned_away)
                return

            def replied(reply: Any, error: Exception | None) -> None:
                request.reply(turned_away if error is not None else reply)

            self._owners.call(owner, request.body, replied, timeout_ms=TIMEOUT_MS, context=request.context)

        return handle

    # ------------------------------------------------------------------ all that this broker coordinates

    def _list(self, spec: ApiSpec) -> Handler:
        listed = LISTED[spec]

        def handle(request: Request) -> None:
            topic = self._routes.image.topic_named(self._topic.name)
            numbers = topic.partitions if topic is not None else ()
            leaders = [self._routes.leader_of(self._topic.name, number) for number in numbers]
            owners = sorted({each for each in leaders if isinstance(each, Owner)}, key=lambda owner: owner.node_id)
            replies: list[Any] = []

            def empty(error: ErrorCode) -> Any:
                return refusal(spec, request.version, request.body, error)

            def replied(reply: Any, error: Exception | None) -> None:
                replies.append(empty(ErrorCode.coordinator_not_available) if error is not None else reply)
                if len(replies) == len(owners):
                    request.reply(_together(replies, listed))

            if not owners:
                request.reply(empty(ErrorCode.none))
            for owner in owners:
                self.ask(spec, owner, request.body, request, replied)

        return handle


def _turned_away(spec: ApiSpec, version: int, body: Any) -> Any:
    return refusal(spec, version, body, ErrorCode.not_coordinator)


def _as_it_is(reply: Any) -> Any:
    return reply


def _together(replies: Sequence[Any], listed: str) -> Any:
    error = next((each.error_code for each in replies if each.error_code != ErrorCode.none), ErrorCode.none)
    found = tuple(item for each in replies for item in getattr(each, listed))
    return dataclasses.replace(_longest_wait(replies), error_code=error, **{listed: found})


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
