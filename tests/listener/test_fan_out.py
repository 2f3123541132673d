"""What a Broker makes of its owners' answers, and of none: without sockets, owners answering by hand."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from outside import fetch, produce

from raylog.errors import ClientTimeoutError, DisconnectedError
from raylog.kafka.context import ANONYMOUS, EXTERNAL, RequestContext
from raylog.kafka.table import FETCH, PRODUCE
from raylog.listener.arrivals import Arrivals
from raylog.listener.fan_out import FanOut
from raylog.listener.fetch import Fetches
from raylog.listener.fetch_sessions import FetchSessions
from raylog.listener.owners import Owner
from raylog.listener.response_budget import ResponseBudget
from raylog.listener.routes import Routes
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import (
    ActorRegistered,
    BrokerRegistered,
    ClusterFormatted,
    DiskRegistered,
    PartitionChanged,
    PartitionState,
    ReplicaSlot,
    TopicCreated,
)
from raylog.server.apis.entities import module_of, response_class
from raylog.types import Endpoint, node_id
from raylog.wire.frames import client_id_field, encode_request, encode_response
from raylog.wire.limits import Limits

TOPIC = uuid.UUID(int=77)
ZERO = datetime.timedelta(0)
CONTEXT = RequestContext(ANONYMOUS, EXTERNAL, "10.0.0.9", "c")
NOT_LEADER = ErrorCode.not_leader_or_follower
either_way = pytest.mark.parametrize("is_frame", [False, True], ids=["decoded", "bytes"])


def disk(broker: int) -> uuid.UUID:
    return uuid.UUID(int=broker + 1)


def image(*leaders: int) -> MetadataImage:
    """Two brokers, and a topic whose partitions they lead; each replica in a process of its own."""
    found = MetadataImage.of([ClusterFormatted("c"), *(BrokerRegistered(broker) for broker in (0, 1))])
    for broker in (0, 1):
        found.apply(DiskRegistered(disk(broker), broker, f"/{broker}"))
        for slot in range(len(leaders) + 2):
            listener = Endpoint(f"outside-{broker}", 9092) if slot == 0 else None
            inside = Endpoint(f"inside-{broker}", slot)
            found.apply(ActorRegistered(node_id(broker, slot), disk(broker), 5, inside, "boot", listener=listener))
    found.apply(TopicCreated(TOPIC, "t"))
    for number, leader in enumerate(leaders):
        found.apply(changed(number, leader, epoch=3))
    return found


def changed(number: int, leader: int, *, epoch: int) -> PartitionChanged:
    slots = tuple(ReplicaSlot(broker, node_id(broker, number + 2), disk(broker), 5) for broker in (0, 1))
    state = PartitionState(slots, (0, 1), leader=leader, leader_incarnation=5, leader_epoch=epoch)
    return PartitionChanged(TOPIC, number, state)


class HandOwners:
    """Owners that answer when they are told to."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[Any, Callable[[Any, Exception | None], None]]] = {}
        self.cancelled: list[int] = []

    def call(
        self, owner: Owner, request: Any, on_reply: Any, *, timeout_ms: float, context: RequestContext
    ) -> Callable[[], None]:
        self.asked[owner.node_id] = (request, on_reply)
        return lambda: self.cancelled.append(owner.node_id)

    def pass_on(
        self, owner: Owner, request: Any, end: int, on_reply: Any, *, timeout_ms: float, is_produce: bool
    ) -> Callable[[], None]:
        def heard(reply: Any, error: Exception | None) -> None:
            on_reply(b"".join(encode_response(reply, 1))[4:] if reply is not None else None, error)

        return self.call(owner, request.frame[:end], heard, timeout_ms=timeout_ms, context=request.context)

    def answer(self, broker: int, slot: int, reply: Any, error: Exception | None = None) -> None:
        _, on_reply = self.asked.pop(node_id(broker, slot))
        on_reply(reply, error)


class HandRequest:
    """``is_frame``: it is there in its bytes, too, and the bytes of an answer may come back."""

    def __init__(self, body: Any, *, is_frame: bool = False) -> None:
        self.body = body
        self.version = int(body.__version__)
        self.frame = b"".join(encode_request(body, 5, client_id_field("c")))[4:] if is_frame else None
        self.position = 11
        self.context = CONTEXT
        self.passed: list[bytes] = []
        self.replies: list[Any] = []
        self.reply = self.replies.append
        self.connection = SimpleNamespace(loop=SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: 0)))

    def guarded(self, callback: Any) -> Any:
        return callback

    def on_close(self, callback: Any) -> None:
        pass

    def pass_on(self, answer: bytes) -> None:
        self.passed.append(bytes(answer))


def produced(version: int, *parts: Any) -> Any:
    """A replica's answer; ``parts`` are (number, error, leading node or none)."""
    cls = response_class(PRODUCE, version)
    module = module_of(cls)
    found = []
    for number, error, leader in parts:
        hint = {} if leader is None else {"current_leader": module.LeaderIdAndEpoch(leader_id=leader, leader_epoch=4)}
        found.append(
            module.PartitionProduceResponse(
                index=number, error_code=error, base_offset=number * 10, log_append_time=None,
                log_start_offset=0, record_errors=(), error_message=None, **hint,
            )
        )  # fmt: skip
    topic = module.TopicProduceResponse(name="t", partition_responses=tuple(found))
    return cls(responses=(topic,), throttle_time=ZERO)


def begin(*leaders: int, version: int = 11, is_frame: bool = False) -> tuple[HandRequest, HandOwners, MetadataImage]:
    world, owners = image(*leaders), HandOwners()
    request = HandRequest(produce("t", dict.fromkeys(range(len(leaders)), b"x"), version=version), is_frame=is_frame)
    FanOut(PRODUCE, Routes(0, lambda: world), owners, Arrivals()).handle(request)  # type: ignore[arg-type]
    return request, owners, world


def outcome(request: HandRequest) -> list[tuple[int, ErrorCode, int]]:
    (reply,) = request.replies
    return [(each.index, each.error_code, each.base_offset) for each in reply.responses[0].partition_responses]


def test_an_answer_of_the_only_owner_is_passed_on_as_it_is() -> None:
    request, owners, _ = begin(0)
    assert owners.asked[node_id(0, 2)][0] is request.body
    reply = produced(11, (0, ErrorCode.none, None))
    owners.answer(0, 2, reply)
    assert request.replies[0] is reply


def test_bytes_about_one_partition_are_passed_on_as_they_are_and_so_is_good_news() -> None:
    request, owners, _ = begin(0, is_frame=True)
    assert owners.asked[node_id(0, 2)][0] == request.frame
    reply = produced(11, (0, ErrorCode.none, None))
    owners.answer(0, 2, reply)
    assert request.passed == [b"".join(encode_response(reply, 1))[4:]] and not request.replies


def test_bytes_about_what_another_broker_leads_are_not_passed_on() -> None:
    request, owners, _ = begin(1, is_frame=True)
    assert not owners.asked and not request.passed and outcome(request) == [(0, NOT_LEADER, -1)]


@either_way
def test_leaders_that_an_owner_names_are_named_as_brokers_with_their_listeners(is_frame: bool) -> None:
    request, owners, _ = begin(0, is_frame=is_frame)
    owners.answer(0, 2, produced(11, (0, NOT_LEADER, node_id(1, 2))))
    (reply,) = request.replies
    (part,) = reply.responses[0].partition_responses
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, 4)
    assert [(each.node_id, each.host, each.port) for each in reply.node_endpoints] == [(1, "outside-1", 9092)]


def test_the_answers_of_several_owners_come_in_the_order_of_the_request() -> None:
    request, owners, _ = begin(0, 1, 0)
    owners.answer(0, 4, produced(11, (2, ErrorCode.none, None)))
    assert not request.replies
    owners.answer(0, 2, produced(11, (0, ErrorCode.message_too_large, None)))
    assert outcome(request) == [(0, ErrorCode.message_too_large, 0), (1, NOT_LEADER, -1), (2, ErrorCode.none, 20)]


def test_a_lost_owner_is_answered_for_with_who_leads_by_now() -> None:
    request, owners, world = begin(0, 0)
    world.apply(changed(0, 1, epoch=4))
    owners.answer(0, 2, None, DisconnectedError("gone"))
    owners.answer(0, 3, produced(11, (1, ErrorCode.none, None)))
    assert outcome(request) == [(0, NOT_LEADER, -1), (1, ErrorCode.none, 10)]
    first = request.replies[0].responses[0].partition_responses[0]
    assert (first.current_leader.leader_id, first.current_leader.leader_epoch) == (1, 4)


@either_way
def test_an_owner_that_is_lost_is_answered_for_at_once(is_frame: bool) -> None:
    request, owners, world = begin(0, is_frame=is_frame)
    world.apply(changed(0, 1, epoch=4))
    owners.answer(0, 2, None, DisconnectedError("gone"))
    assert outcome(request) == [(0, NOT_LEADER, -1)]
    (part,) = request.replies[0].responses[0].partition_responses
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, 4)


@either_way
def test_an_owner_that_says_nothing_is_a_timeout(is_frame: bool) -> None:
    request, owners, _ = begin(0, is_frame=is_frame)
    owners.answer(0, 2, None, ClientTimeoutError("nothing"))
    assert outcome(request) == [(0, ErrorCode.request_timed_out, -1)]


def test_an_older_version_has_no_place_for_leaders() -> None:
    request, owners, _ = begin(1, version=8)
    assert not owners.asked and outcome(request) == [(0, NOT_LEADER, -1)]


@either_way
def test_leaders_in_a_fetched_partition_are_brokers_too(is_frame: bool) -> None:
    world, owners = image(0), HandOwners()
    sessions = FetchSessions(lambda: 1)
    request = HandRequest(fetch(TOPIC, {0: 0}, version=17), is_frame=is_frame)
    budget = ResponseBudget(lambda: SimpleNamespace(limits=Limits()))  # type: ignore[arg-type, return-value]
    Fetches(Routes(0, lambda: world), owners, sessions, lambda: 0, budget, Arrivals()).handle(request)  # type: ignore[arg-type]
    cls = response_class(FETCH, 17)
    module = module_of(cls)
    part = module.PartitionData(
        partition_index=0, error_code=NOT_LEADER, high_watermark=-1, last_stable_offset=-1, log_start_offset=-1,
        aborted_transactions=None, records=b"",
        current_leader=module.LeaderIdAndEpoch(leader_id=node_id(1, 2), leader_epoch=4),
    )  # fmt: skip
    topic = module.FetchableTopicResponse(topic_id=TOPIC, partitions=(part,))
    owners.answer(0, 2, cls(throttle_time=ZERO, error_code=ErrorCode.none, session_id=0, responses=(topic,)))
    (reply,) = request.replies
    (found,) = reply.responses[0].partitions
    assert found == dataclasses.replace(part, current_leader=module.LeaderIdAndEpoch(leader_id=1, leader_epoch=4))
    assert [each.host for each in reply.node_endpoints] == ["outside-1"]
