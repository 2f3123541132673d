"""Who asks arrives at the handler that answers, whichever way the request takes from the Broker, and is nobody's to make up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
from kio.schema.errors import ErrorCode
from outside import Client, create_topics, fetch, heartbeat, metadata, milliseconds, produce, request
from raw_requests import batch, eventually

from raylog.kafka.chain import Verdict
from raylog.kafka.context import (
    ANONYMOUS,
    CLIENT_ID_CHARACTERS_MAX,
    EXTERNAL,
    INTERNAL,
    SECRET_HOLDER,
    RequestContext,
)
from raylog.listener.controller_link import ControllerLink
from raylog.listener.owners import Owners
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

NewTopicOf = Callable[..., str]
CLIENT_ID = "orders\t\\N é"
PLAIN = RequestContext(ANONYMOUS, EXTERNAL, "127.0.0.1", CLIENT_ID)
NAMED = dataclasses.replace(PLAIN, principal="User:ann", trace_id="trace-7")
PRODUCE, FETCH, LIST_OFFSETS, HEARTBEAT, DESCRIBE_GROUPS, CREATE_TOPICS = 0, 1, 2, 12, 15, 19
DESCRIBE_LOG_DIRS, DESCRIBE_QUORUM = 35, 55


class Naming:
    """A stage that knows who asks, as one that authenticates does."""

    def judge(self, request: Request) -> Iterable[Verdict]:
        request.context = dataclasses.replace(request.context, principal="User:ann", trace_id="trace-7")
        return ()


class Witness:
    """Sees what comes to the handlers of all replicas and of the controller, and which ways the first Broker sends it."""

    def __init__(self, running: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, RequestContext]] = []
        self.ways: list[str] = []
        brokers = [node for node in running.launcher.servers if node & 0xFFFF == BROKER_SLOT]
        replicas = [each for node, each in running.launcher.servers.items() if node not in brokers]
        for server in (running.controller._server, *(each._server for each in replicas)):
            for key in (PRODUCE, FETCH, LIST_OFFSETS, HEARTBEAT, DESCRIBE_GROUPS, CREATE_TOPICS):
                self._watch(server, key, monkeypatch)
            for key in (DESCRIBE_LOG_DIRS, DESCRIBE_QUORUM):
                self._watch(server, key, monkeypatch)
        for cls, name in ((Owners, "call"), (Owners, "pass_on"), (Owners, "tell"), (ControllerLink, "ask")):
            monkeypatch.setattr(cls, name, self._noting(getattr(cls, name), name))

    def _watch(self, server: Server, key: int, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = server.handlers.get(key)
        if handler is None:
            return

        def handle(request: Request) -> Any:
            self.seen.append((key, request.context))
            return handler(request)

        monkeypatch.setitem(server.handlers, key, handle)

    def _noting(self, method: Any, name: str) -> Any:
        def noted(*values: Any, **named: Any) -> Any:
            self.ways.append(name)
            return method(*values, **named)

        return noted

    def keys(self) -> list[int]:
        return [key for key, _ in self.seen]

    def of(self, key: int) -> list[RequestContext]:
        """Of those that came for somebody outside: a replica's own fetches come, too."""
        return [context for each, context in self.seen if each == key and context.listener == EXTERNAL]


@pytest.fixture
def witness(running: InProcessCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Witness]:
    """Begins to watch the servers that there are now."""
    return lambda: Witness(running, monkeypatch)


@pytest.fixture(params=[False, True], ids=["as it came", "named by a stage"])
def expected(request: pytest.FixtureRequest, running: InProcessCluster) -> Iterator[RequestContext]:
    """What handlers are to see: with a stage at the first Broker that says who asks, and without."""
    server = running.launcher.servers[node_id(0, BROKER_SLOT)].router.server
    server.stages = (Naming(),) if request.param else ()
    yield NAMED if request.param else PLAIN
    server.stages = ()


@pytest.fixture
def somebody(running: InProcessCluster) -> Iterator[Client]:
    client = Client(running, 0, CLIENT_ID)
    yield client
    client.close()


@pytest.fixture
def groups(running: InProcessCluster) -> list[str]:
    """Groups that the first broker coordinates, in different processes where there are several."""
    client = Client(running, 0)
    names = tuple(f"group-{number}" for number in range(30))
    asked = request(10, 4, key_type=0, coordinator_keys=names)

    def found() -> list[str]:
        coordinators = client.ask(asked).coordinators
        return [each.key for each in coordinators if each.error_code is ErrorCode.none and each.node_id == 0]

    here: list[str] = eventually(found, "groups that the first broker coordinates")
    client.close()
    return here


class Way(NamedTuple):
    """A request that takes it, which handler gets it, how often, and what sends it there."""

    key: int
    request: Callable[[str, list[str]], Any]
    times: int
    sent_by: str


def list_offsets(topic: str) -> Any:
    return request(
        LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=lambda module: (
            module.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    module.ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=-1)
                    for number in (0, 1)
                ),
            ),
        ),
    )


def describe_groups(groups: list[str]) -> Any:
    return request(DESCRIBE_GROUPS, 5, groups=tuple(groups), include_authorized_operations=False)


ONE, BOTH = {0: batch(b"a")}, {0: batch(b"a"), 1: batch(b"b")}
WAYS = {
    "raw produce": Way(PRODUCE, lambda topic, _: produce(topic, ONE), 1, "pass_on"),
    "raw fetch": Way(FETCH, lambda topic, _: fetch(topic, {0: 0}), 1, "pass_on"),
    "produce in a version without flexible fields": Way(
        PRODUCE, lambda topic, _: produce(topic, ONE, version=7), 1, "pass_on"
    ),
    "split produce": Way(PRODUCE, lambda topic, _: produce(topic, BOTH), 2, "call"),
    "split fetch": Way(FETCH, lambda topic, _: fetch(topic, {0: 0, 1: 0}), 2, "call"),
    "fetch in a session": Way(FETCH, lambda topic, _: fetch(topic, {0: 0}, session=(0, 0)), 1, "call"),
    "other APIs of partitions": Way(LIST_OFFSETS, lambda topic, _: list_offsets(topic), 2, "call"),
    "a group": Way(HEARTBEAT, lambda _, groups: heartbeat(groups[0]), 1, "call"),
    "several groups": Way(DESCRIBE_GROUPS, lambda _, groups: describe_groups(groups), 1, "call"),
    "all processes of a broker": Way(
        DESCRIBE_LOG_DIRS, lambda *_: request(DESCRIBE_LOG_DIRS, 4, topics=None), 2, "call"
    ),
    "controller": Way(CREATE_TOPICS, lambda topic, _: create_topics(f"{topic}-new"), 1, "ask"),
    "controller, about itself": Way(DESCRIBE_QUORUM, lambda *_: request(DESCRIBE_QUORUM, 1, topics=()), 1, "ask"),
    "controller, for topics that are asked for": Way(
        CREATE_TOPICS, lambda topic, _: metadata(f"{topic}-wanted", create=True), 1, "ask"
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_handler_sees_who_asks(
    witness: Callable[[], Witness],
    somebody: Client,
    expected: RequestContext,
    new_topic: NewTopicOf,
    groups: list[str],
    way: Way,
) -> None:
    topic = new_topic((0,), (0,))
    here = witness()
    somebody.ask(way.request(topic, groups))
    found = here.of(way.key)
    assert set(found) == {expected} and len(found) >= way.times, (found, here.ways)
    assert set(here.ways) == {way.sent_by}


def test_the_handler_sees_who_asks_and_wants_no_answer(
    witness: Callable[[], Witness], somebody: Client, expected: RequestContext, new_topic: NewTopicOf
) -> None:
    topic = new_topic((0,), (0,))
    here = witness()
    for count in (2, 4):  # the first time while the connections to the processes open, then on open ones
        somebody.connection.loop.call_soon_threadsafe(somebody.connection.send_unanswered, produce(topic, BOTH, acks=0))
        eventually(lambda count=count: here.keys().count(PRODUCE) >= count, "both partitions' records")
        assert [context for key, context in here.seen if key == PRODUCE] == [expected] * count
    assert set(here.ways) == {"tell"}


def test_members_of_groups_are_described_by_who_they_are(somebody: Client, groups: list[str]) -> None:
    join = request(
        11,
        3,
        group_id=groups[0],
        session_timeout=milliseconds(30_000),
        rebalance_timeout=milliseconds(30_000),
        member_id="",
        protocol_type="consumer",
        protocols=lambda module: (module.JoinGroupRequestProtocol(name="range", metadata=b"x"),),
    )
    joining = somebody.send(join)

    def members() -> Any:
        return somebody_else.ask(describe_groups(groups[:1])).groups[0].members

    somebody_else = Client(somebody._running, 0)
    (member,) = eventually(members, "the member")
    assert (member.client_id, member.client_host) == (CLIENT_ID, "/127.0.0.1")
    joined = joining.result()
    leave = request(13, 2, group_id=groups[0], member_id=joined.member_id)
    assert somebody_else.ask(leave).error_code is ErrorCode.none
    somebody_else.close()


@pytest.mark.parametrize("way", ["raw produce", "split produce", "a group", "several groups", "controller"])
def test_nobody_outside_is_believed_who_writes_a_context_of_his_own(
    running: InProcessCluster, witness: Callable[[], Witness], new_topic: NewTopicOf, groups: list[str], way: str
) -> None:
    made_up = RequestContext(SECRET_HOLDER, INTERNAL, "10.0.0.1", "admin", "trace").header_field()[2:].decode()
    key, asked, times, _ = WAYS[way]
    topic = new_topic((0,), (0,))
    here, client = witness(), Client(running, 0, made_up)
    client.ask(asked(topic, groups))
    client.close()
    found = [context for each, context in here.seen if each == key]
    assert set(found) == {dataclasses.replace(PLAIN, client_id=made_up)} and len(found) >= times


@pytest.mark.parametrize("way", ["raw produce", "split produce", "a group"])
def test_a_client_id_of_any_length_is_served_and_cut(
    running: InProcessCluster, witness: Callable[[], Witness], new_topic: NewTopicOf, groups: list[str], way: str
) -> None:
    key, asked, _, _ = WAYS[way]
    topic = new_topic((0,), (0,))
    here, client = witness(), Client(running, 0, "é" * 16_000)
    client.ask(asked(topic, groups))
    client.close()
    assert {each.client_id for each in here.of(key)} == {"é" * CLIENT_ID_CHARACTERS_MAX}


def test_a_follower_fetches_in_its_own_name(
    running: InProcessCluster, witness: Callable[[], Witness], new_topic: NewTopicOf, somebody: Client
) -> None:
    topic = new_topic((0, 1))
    here = witness()
    somebody.ask(produce(topic, ONE))

    def own() -> list[str]:
        return [context.principal for key, context in here.seen if key == FETCH and context.listener == INTERNAL]

    found = eventually(own, "a follower's fetch")
    assert all(each.startswith("Cluster:") and each != SECRET_HOLDER for each in found)
