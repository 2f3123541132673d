"""A slow request of a client is logged where it came in, and where it was passed on to, with where its time went; nothing else is.
With trace ids, all lines that a request causes have its id, and no other line has.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from outside import Client, create_topics, fetch, heartbeat, produce, request
from raw_requests import batch, eventually, nodes_of
from raw_requests import produce as produce_inside

from raylog.client.sync import AdminClient
from raylog.errors import InvalidConfigError
from raylog.kafka.context import ANONYMOUS, EXTERNAL
from raylog.kafka.traces import trace_id_of
from raylog.listener.moves import PATIENCE
from raylog.server.process_log import JsonLines, TextLines
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, node_id

pytestmark = pytest.mark.core

NewTopicOf = Callable[..., str]
SLOW, TRACED = "request.slow.log.ms", "request.trace.enable"
CREATE_TOPICS, HEARTBEAT = 19, 12


class Lines(logging.Handler):
    """What is logged of requests, as the logs' formats write it."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[dict[str, Any]] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.trace_id = trace_id_of(record)
        self.documents.append(json.loads(JsonLines(1).format(record)))
        self.texts.append(TextLines(1).format(record))

    def of(self, api: str, client_id: str = "raylog") -> list[dict[str, Any]]:
        found = [each["request"] for each in self.documents]
        return [each for each in found if each["api"] == api and each["client_id"] == client_id]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("raylog.requests")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def admin(running: InProcessCluster) -> Iterator[AdminClient]:
    with AdminClient(running.address) as opened:
        yield opened


@pytest.fixture
def slow(running: InProcessCluster, admin: AdminClient) -> Iterator[Callable[..., None]]:
    """Sets the config for all brokers, and waits until each server goes by it."""

    def servers() -> list[Any]:
        others = [each for node, each in running.launcher.servers.items() if node & 0xFFFF != BROKER_SLOT]
        brokers = [each for node, each in running.launcher.servers.items() if node & 0xFFFF == BROKER_SLOT]
        inside = [running.controller._server, *(each._server for each in others)]
        return [*inside, *(each.door.server for each in others), *(each.router.server for each in brokers)]

    def all_are(is_on: bool) -> bool:
        return all((each.slow is not None) == is_on for each in servers())

    def set_(threshold_ms: int, traced: bool = False) -> None:
        admin.alter_configs(broker="all", set={SLOW: str(threshold_ms), TRACED: str(traced).lower()})
        eventually(lambda: all_are(True), "all servers look for slow requests")

    yield set_
    admin.alter_configs(broker="all", delete=[SLOW, TRACED])
    eventually(lambda: all_are(False), "no server looks for slow requests")
    assert not any(each.stages for each in servers())


ONE, BOTH = {0: batch(b"a")}, {0: batch(b"a"), 1: batch(b"b")}
WAYS: dict[str, tuple[str, Callable[[str], Any], int]] = {
    "raw": ("Produce", lambda topic: produce(topic, ONE), 2),
    "raw fetch": ("Fetch", lambda topic: fetch(topic, {0: 0}), 2),
    "split": ("Produce", lambda topic: produce(topic, BOTH), 3),
    "split fetch": ("Fetch", lambda topic: fetch(topic, {0: 0, 1: 0}), 3),
    "controller": ("CreateTopics", lambda topic: create_topics(f"{topic}-new"), 2),
    "the broker's copy of the metadata": ("ApiVersions", lambda _: request(18, 0), 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_request_is_logged_by_each_process_that_it_keeps(
    slow: Callable[..., None], lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf, way: str
) -> None:
    api, asked, processes = WAYS[way]
    topic, one = new_topic((0,), (0,)), client()
    one.ask(produce(topic, BOTH))
    slow(0)
    one.ask(asked(topic))
    found = lines.of(api)
    assert len(found) == processes
    here = found[-1]  # the one that the client is connected to answers last
    assert (here["principal"], here["listener"], here["client_host"]) == (ANONYMOUS, EXTERNAL, "127.0.0.1")
    own_port = one.connection.transport.get_extra_info("sockname")[1]  # type: ignore[union-attr]
    assert here["connection"] == f"127.0.0.1:{own_port}"
    for each in found:
        assert each["queue_ms"] == 0 and each["local_ms"] >= 0 and each["remote_ms"] >= 0
        assert (
            each["total_ms"] == pytest.approx(each["local_ms"] + each["remote_ms"], abs=0.01) and each["total_ms"] > 0
        )
        assert each["request_bytes"] > 0 and each["response_bytes"] > 0 and each["answered"]
    assert (here["remote_ms"] > 0) == (processes > 1)
    assert all(each["level"] == "WARNING" and each["logger"] == "raylog.requests" for each in lines.documents)


def test_a_groups_request_is_logged_with_the_coordinators(
    running: InProcessCluster, slow: Callable[..., None], lines: Lines, client: Callable[..., Client]
) -> None:
    one = client()
    found = eventually(lambda: coordinated_here(one), "groups that the first broker coordinates")
    slow(0)
    one.ask(heartbeat(found[0]))
    assert len(lines.of("Heartbeat")) == 2


def coordinated_here(one: Client) -> list[str]:
    asked = request(10, 4, key_type=0, coordinator_keys=tuple(f"group-{number}" for number in range(30)))
    return [each.key for each in one.ask(asked).coordinators if each.error_code.value == 0 and each.node_id == 0]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_request_of_a_connection_that_has_moved_is_logged_once_by_the_process_that_serves_it(
    slow: Callable[..., None], lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf, acks: int
) -> None:
    topic, one, times = new_topic((0, 1)), client(), 4 * PATIENCE
    slow(0)
    for _ in range(times):
        one.ask(produce(topic, ONE, acks=acks))
    found = lines.of("Produce")
    assert times < len(found) < 2 * times, "those before the move have two lines, those behind it one"
    assert len({each["correlation_id"] for each in found if each["connection"] == found[-1]["connection"]}) == times
    assert found[-1]["response_bytes"] > 0 and found[-1]["request_bytes"] > len(ONE[0])


def test_a_produce_that_waits_for_its_replicas_spends_its_time_elsewhere(
    slow: Callable[..., None], lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1)), client()
    slow(0)
    one.ask(produce(topic, ONE))
    at_leader, at_broker = lines.of("Produce")
    assert 0 < at_leader["remote_ms"] <= at_broker["remote_ms"] <= at_broker["total_ms"]


def test_a_request_without_an_answer_has_a_line(
    slow: Callable[..., None], lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,), (0,)), client()
    slow(0)
    one.connection.loop.call_soon_threadsafe(one.connection.send_unanswered, produce(topic, BOTH, acks=0))
    found = eventually(lambda: len(lines.of("Produce")) == 3 and lines.of("Produce"), "the lines of three processes")
    assert [each["response_bytes"] for each in found] == [0] * 3


def test_a_fetch_is_slow_only_if_it_took_longer_than_it_may_wait(
    slow: Callable[..., None], lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,)), client()
    one.ask(produce(topic, ONE))
    slow(100_000)
    one.ask(fetch(topic, {0: 1}, max_wait_ms=20))
    assert not lines.documents
    slow(0)
    one.ask(fetch(topic, {0: 1}, max_wait_ms=20))
    assert {each["wait_ms"] for each in lines.of("Fetch")} == {20}
    assert all(each["total_ms"] >= 20 for each in lines.of("Fetch"))
    lines.documents.clear()
    one.ask(fetch(topic, {0: 0}, max_wait_ms=60_000))
    assert not lines.documents, "it found records before its time was over"


def test_a_client_that_hangs_up_before_its_answer_has_a_line(
    running: InProcessCluster, slow: Callable[..., None], lines: Lines, new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0, 1), min_insync_replicas="2"), Client(running, 0, "hurried")
    slow(0)
    follower = running.launcher.servers[nodes_of(running, topic)[1]]
    patience = follower._leaders.send
    follower._leaders.send = lambda order: None  # it copies nothing
    try:
        one.send(produce(topic, ONE))
        one.close()
        (gone,) = eventually(
            lambda: [each for each in lines.of("Produce", "hurried") if not each["answered"]], "its line"
        )
        assert gone["response_bytes"] == 0 and gone["request_bytes"] > 0
    finally:
        follower._leaders.send = patience
        running.run(_crash(follower))


async def _crash(server: Any) -> None:
    await server.crash()


def test_followers_fetches_and_what_servers_ask_each_other_are_not_logged_and_native_clients_are(
    running: InProcessCluster, slow: Callable[..., None], lines: Lines, new_topic: NewTopicOf
) -> None:
    topic = new_topic((1, 0))
    slow(0)
    produce_inside(running, nodes_of(running, topic)[1], topic, batch(b"v"))
    assert [
        each["request"]["api"] for each in lines.documents if each["request"]["api"] != "IncrementalAlterConfigs"
    ] == ["Produce"]


def test_what_a_client_calls_itself_forges_no_line_and_no_key(
    running: InProcessCluster, slow: Callable[..., None], lines: Lines
) -> None:
    named = 'x"\r\n2026-01-01 ERROR principal="User:admin'
    one = Client(running, 0, named)
    slow(0)
    one.ask(request(18, 0))
    one.close()
    (text,) = [each for each in lines.texts if "ApiVersions" in each]
    assert "\n" not in text and "\r" not in text
    fields = dict(re.findall(r' (\w+)=("(?:[^"\\]|\\.)*"|\S+)', text))
    assert json.loads(fields["client_id"]) == named and json.loads(fields["principal"]) == ANONYMOUS


def test_nothing_is_logged_when_it_is_off_and_a_value_below_that_is_refused(
    running: InProcessCluster, admin: AdminClient, lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one = new_topic((0,), (0,)), client()
    for _ in range(4 * PATIENCE):
        one.ask(produce(topic, ONE))
    one.ask(produce(topic, BOTH))
    assert not lines.documents
    with pytest.raises(InvalidConfigError, match=SLOW):
        admin.alter_configs(broker="all", set={SLOW: "-2"})
    assert running.launcher.servers[node_id(0, BROKER_SLOT)].router.server.slow is None


@pytest.mark.parametrize("way", [*WAYS, "group"])
def test_all_lines_of_a_request_have_its_trace_id_and_those_of_another_one_have_another(
    slow: Callable[..., None], lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf, way: str
) -> None:
    one = client()
    if way == "group":
        group = eventually(lambda: coordinated_here(one), "groups that the first broker coordinates")[0]
        api, processes, asked = "Heartbeat", 2, heartbeat(group)
    else:
        topic = new_topic((0,), (0,))
        api, make, processes = WAYS[way]
        asked = make(topic)
        one.ask(produce(topic, BOTH))
    slow(0, traced=True)
    ids = []
    for _ in range(2):
        lines.documents.clear()
        one.ask(asked)
        found = [each["trace_id"] for each in lines.documents if each["request"]["api"] == api]
        assert len(found) == processes and len(set(found)) == 1
        assert re.fullmatch("[0-9a-f]{32}", found[0])
        ids.append(found[0])
    assert ids[0] != ids[1]


def test_requests_of_a_connection_that_has_moved_have_trace_ids(
    slow: Callable[..., None], lines: Lines, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, one, times = new_topic((0, 1)), client(), 4 * PATIENCE
    slow(0, traced=True)
    for _ in range(times):
        one.ask(produce(topic, ONE, acks=1))
    produces = [each["trace_id"] for each in lines.documents if each["request"]["api"] == "Produce"]
    assert len(set(produces)) == times < len(produces) < 2 * times


def test_a_native_clients_requests_have_trace_ids(
    running: InProcessCluster, slow: Callable[..., None], lines: Lines, new_topic: NewTopicOf
) -> None:
    topic = new_topic((1, 0))
    slow(0, traced=True)
    lines.documents.clear()
    produce_inside(running, nodes_of(running, topic)[1], topic, batch(b"v"))
    (one,) = [each for each in lines.documents if each["request"]["api"] == "Produce"]
    assert len(one["trace_id"]) == 32


@pytest.mark.parametrize("way", ["raw", "controller"])
def test_what_fails_where_a_request_was_passed_on_to_is_logged_with_its_trace_id(
    running: InProcessCluster,
    slow: Callable[..., None],
    lines: Lines,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    def fail(request: Any) -> None:
        logging.getLogger("raylog.requests").warning("it is here", extra={"facts": {"request": {"api": "own line"}}})
        raise RuntimeError("it fails")

    topic, one = new_topic((0,)), client()
    api, make, _ = WAYS[way]
    one.ask(make(topic))
    slow(0, traced=True)
    own, wire = lines.documents, logging.getLogger("raylog.wire")
    wire.addHandler(lines)
    try:
        server = running.controller._server
        if way == "raw":
            server = running.launcher.servers[nodes_of(running, topic)[0]]._server
        key = CREATE_TOPICS if way == "controller" else 0
        with monkeypatch.context() as patch:
            patch.setitem(server.handlers, key, fail)
            pending = one.send(make(topic))
            eventually(lambda: any("exception" in each for each in own), "the handler fails")
        pending.result()
    finally:
        wire.removeHandler(lines)
    failed = next(each["trace_id"] for each in own if "exception" in each)
    said = next(each["trace_id"] for each in own if each["message"] == "it is here")
    answered = next(each["trace_id"] for each in own if each.get("request", {}).get("api") == api)
    assert failed == said == answered
