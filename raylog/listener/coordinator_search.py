"""FindCoordinator: which broker a client asks about a group or a transactional id.

A group's coordinator is the broker whose process leads the group's partition of
``__consumer_offsets``, or that broker's stand-in (``routes``); a transactional id's, of
``__transaction_state``, or for a while the one on which it died (``coordinator_stand_ins``).

The question is answered from the image. The first one creates the topic and waits, usually for
milliseconds, until the partition has a leader. If a leader has gone the answer is
COORDINATOR_NOT_AVAILABLE, and clients retry.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.listener.arrivals import Arrivals
from raylog.listener.coordinator_stand_ins import CoordinatorStandIns
from raylog.listener.routes import Routes
from raylog.listener.topic_creation import TopicCreator
from raylog.offsets_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, partition_for
from raylog.server.apis.api import answer
from raylog.server.apis.entities import NO_DELAY, build
from raylog.types import NO_LEADER
from raylog.wire.request import Request

GROUP_KEY, TRANSACTION_KEY = 0, 1
TOPICS = {GROUP_KEY: OFFSETS_TOPIC, TRANSACTION_KEY: TRANSACTIONS_TOPIC}
FIRST_LEADERS_MS = 5_000  # how long a question waits for the first leader of a partition


class CoordinatorSearch:
    def __init__(
        self, routes: Routes, creation: TopicCreator, arrivals: Arrivals, stand_ins: CoordinatorStandIns
    ) -> None:
        self._routes = routes
        self._stand_ins = stand_ins
        self._creation = creation
        self._arrivals = arrivals

    def find(self, request: Request) -> Any:
        """Answer a FindCoordinator, now or later."""
        topic = TOPICS.get(_key_type(request.body))
        if topic is not None:
            if self._routes.image.topic_named(topic) is None:
                return self._find_later(request, topic, is_there=False)
            if self._are_new(request, topic):
                return self._find_later(request, topic, is_there=True)
        request.reply(self._found(request, topic))
        return None

    async def _find_later(self, request: Request, topic: str, *, is_there: bool) -> Any:
        if not is_there:
            await self._creation.create([topic])
        await self._arrivals.until(lambda: not self._are_new(request, topic), FIRST_LEADERS_MS)
        return self._found(request, topic)

    def _are_new(self, request: Request, topic: str) -> bool:
        """Return whether the partition of any of these ids has never had a leader."""
        body = request.body
        keys = body.coordinator_keys if request.version >= 4 else (body.key,)
        return any(self._routes.is_new(topic, partition_for(key)) for key in keys)

    def _found(self, request: Request, topic: str | None) -> Any:
        body, version, client_listener = request.body, request.version, request.context.listener
        cls, module = answer(table.FIND_COORDINATOR, version)
        key_type = _key_type(body)
        if version >= 4:
            each = tuple(
                build(module.Coordinator, key=key, **self._place(key, topic, key_type, client_listener))
                for key in body.coordinator_keys
            )
            return build(cls, throttle_time=NO_DELAY, coordinators=each)
        return build(cls, throttle_time=NO_DELAY, **self._place(body.key, topic, key_type, client_listener))

    def _place(self, key: str, topic: str | None, key_type: int, client_listener: str) -> dict[str, Any]:
        if topic is None:
            return _nowhere(
                ErrorCode.invalid_request,
                f"unknown coordinator type {key_type}: raylog knows type 0, groups, and type 1, transactions",
            )
        number = partition_for(key)
        broker = self._routes.leading_broker(topic, number)
        if key_type == TRANSACTION_KEY and broker != NO_LEADER:
            stand_in = self._stand_ins.broker(number)
            broker = broker if stand_in is None else stand_in
        listener = self._routes.listener_or_stand_in(broker)
        if listener is None:
            return _nowhere(
                ErrorCode.coordinator_not_available, f"its partition of {topic} has no leader at the moment"
            )
        endpoint = listener.at(client_listener)
        if endpoint is None:
            return _nowhere(
                ErrorCode.coordinator_not_available, f"broker {listener.broker_id} has no listener {client_listener}"
            )
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": listener.broker_id,
            "host": endpoint.host,
            "port": endpoint.port,
        }


def _key_type(body: Any) -> int:
    return int(getattr(body, "key_type", GROUP_KEY))


def _nowhere(error: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": error, "error_message": message, "node_id": NO_LEADER, "host": "", "port": -1}
