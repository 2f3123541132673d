"""Consumers that read from the nearest replica in sync, and what becomes of them when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import eventually, isr_is_whole, nodes_of
from scripted_cluster import FETCH, ScriptedCluster

from raylog.client.admin.admin import NewTopic
from raylog.client.consumer import fetcher, nearest_replicas
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.records.codec import encode
from raylog.testing.in_process import cluster

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def machines_apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All addresses are of one machine here; the consumer is to believe that none is its own."""
    monkeypatch.setattr(nearest_replicas, "is_this_machine", lambda host: False)
    yield


def in_rack_b(scripted: Any) -> ScriptedCluster:
    """Node 0 leads in rack a, node 1 follows in rack b and serves consumers."""
    made: ScriptedCluster = scripted(nodes=2)
    made.racks = {0: "a", 1: "b"}
    made.isr = (0, 1)
    made.followers = {1}
    return made


def add(made: ScriptedCluster, *values: bytes) -> None:
    for value in values:
        made.call(lambda value=value: made.logs["t", 0].append(encode([(1, None, value, ())])))  # type: ignore[index, misc]


def next_value(consumer: Consumer) -> bytes | None:
    record = consumer.poll(60)
    return record.value if record is not None else None


def nearby(made: ScriptedCluster, **options: Any) -> Consumer:
    consumer = Consumer(made.address, auto_offset_reset="earliest", client_rack="b", fetch_max_wait_ms=50, **options)
    consumer.assign([("t", 0)])
    return consumer


def fetches_at(made: ScriptedCluster, node: int) -> None:
    """Wait until the last fetches went there."""
    eventually(lambda: made.fetched_at[-3:] == [node] * 3, f"fetches go to {node}")


def test_the_follower_in_the_consumers_rack_is_read(scripted: Any) -> None:
    made = in_rack_b(scripted)
    add(made, b"0")
    with nearby(made) as consumer:
        assert next_value(consumer) == b"0"
        fetches_at(made, 1)
        add(made, b"1")
        assert next_value(consumer) == b"1"
        assert made.fetched_at[-1] == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.offset_out_of_range,
        ErrorCode.not_leader_or_follower,
        ErrorCode.offset_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_server_error,
    ],
)
def test_what_a_follower_refuses_the_leader_is_asked(scripted: Any, code: ErrorCode) -> None:
    made = in_rack_b(scripted)
    add(made, b"0")
    with nearby(made) as consumer:
        assert next_value(consumer) == b"0"
        fetches_at(made, 1)
        add_after_refusal(made, code)
        assert next_value(consumer) == b"1"
        assert consumer.position(("t", 0)) == 2, "it has not started over"


def add_after_refusal(made: ScriptedCluster, code: ErrorCode) -> None:
    """The follower refuses from now on, and only the leader gives what is written then."""

    def refuse(made: ScriptedCluster, request: Any) -> bool:
        if made.node_of(request) == 0:
            return False
        made.faults[FETCH].appendleft(refuse)
        answer = made._fetch_answers(request, 0)
        part = answer[0].partitions[0]
        made._reply_fetch(request, (replace(answer[0], partitions=(replace(part, error_code=code, records=b""),)),))
        return True

    before = len(made.fetched_at)
    made.fail_next(FETCH, refuse, 1)
    eventually(lambda: 0 in made.fetched_at[before:], "the leader is asked")  # no fetch waits at the follower any more
    add(made, b"1")


def test_a_follower_that_falls_silent_is_left(scripted: Any) -> None:
    made = in_rack_b(scripted)
    add(made, b"0")
    with nearby(made) as consumer:
        assert next_value(consumer) == b"0"
        fetches_at(made, 1)

        def swallow(made: ScriptedCluster, request: Any) -> bool:
            if made.node_of(request) == 0:
                return False
            made.faults[FETCH].appendleft(swallow)
            return True

        made.fail_next(FETCH, swallow, 1)
        fetches_at(made, 0)
        add(made, b"1")
        assert next_value(consumer) == b"1"


def test_a_follower_that_leaves_the_isr_is_left(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest_replicas, "REVIEW_S", 2.0)
    made = in_rack_b(scripted)
    with nearby(made):
        fetches_at(made, 1)
        made.isr = (0,)
        fetches_at(made, 0)


def test_the_nearest_is_chosen_anew_when_the_leader_changes(scripted: Any) -> None:
    made: ScriptedCluster = scripted(nodes=3)
    made.racks = {0: "a", 1: "b", 2: "b"}
    made.isr = (0, 1, 2)
    made.followers = {0, 1, 2}
    with nearby(made) as consumer:
        fetches_at(made, 1)
        made.move_leader(("t", 0), 2)
        add(made, b"0")
        assert next_value(consumer) == b"0"
        fetches_at(made, 2)
        made.move_leader(("t", 0), 0)
        add(made, b"1")
        assert next_value(consumer) == b"1"
        fetches_at(made, 1)


def test_real_replicas_are_read_in_the_rack_through_the_death_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        cluster(brokers=3, racks=["a", "b", "c"]) as running,
        AdminClient(running.address) as admin,
        Producer(running.address) as producer,
    ):
        admin.create_topics([NewTopic("t", replica_assignment={0: (0, 1, 2)})])
        eventually(lambda: isr_is_whole(running, "t"), "all replicas are in sync")
        nodes = nodes_of(running, "t")
        read_at: list[int] = []

        def listen(broker: int) -> None:
            handlers = running.launcher.servers[nodes[broker]]._server.handlers
            handle = handlers[FETCH]

            def heard(request: Any) -> None:
                if request.version == 12:  # a consumer's
                    read_at.append(broker)
                handle(request)

            handlers[FETCH] = heard

        for broker in range(3):
            listen(broker)
        with Consumer(running.address, auto_offset_reset="earliest", client_rack="b", fetch_max_wait_ms=50) as consumer:
            consumer.assign([("t", 0)])
            producer.send("t", b"0").result(60)
            assert next_value(consumer) == b"0"
            eventually(lambda: read_at[-3:] == [1, 1, 1], "the replica in the rack is read")
            producer.send("t", b"1").result(60)
            assert next_value(consumer) == b"1" and read_at[-1] == 1
            monkeypatch.setattr(nearest_replicas, "REVIEW_S", 1.0)  # not before: what is old is not relied on
            monkeypatch.setattr(fetcher, "AVOID_S", 1.0)
            running.crash(nodes[1])
            producer.send("t", b"2").result(60)
            assert next_value(consumer) == b"2"
            eventually(lambda: isr_is_whole(running, "t"), "it is back")
            listen(1)
            eventually(lambda: read_at[-3:] == [1, 1, 1], "it is read again")
            producer.send("t", b"3").result(60)
            assert next_value(consumer) == b"3"
