"""A leader that keeps its connections and says nothing: stopped, or cut off without a word."""

from __future__ import annotations

from typing import Any

import pytest
from raw_requests import eventually
from scripted_cluster import FETCH, PRODUCE, ScriptedCluster

from raylog.client.links import metadata, silent_leaders
from raylog.client.sync import Consumer, Producer
from raylog.records.codec import encode_values

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_leaders, "PATIENCE_MS", 150.0)
    monkeypatch.setattr(metadata, "AWAIT_LEADER_MS", 100)


def asked_for(cluster: ScriptedCluster, name: str) -> int:
    return sum(type(body).__name__ == name for body in cluster.requests)


def falls_silent(cluster: ScriptedCluster, api_key: int, times: int = 100) -> None:
    """The next requests are taken and never answered."""
    cluster.fail_next(api_key, lambda cluster, request: True, times)


def speaks_again(cluster: ScriptedCluster, api_key: int) -> None:
    cluster.call(cluster.faults[api_key].clear)


def test_a_producer_leaves_a_silent_leader_when_another_one_leads(scripted: Any) -> None:
    cluster = scripted(nodes=2)
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        falls_silent(cluster, PRODUCE)
        asked = asked_for(cluster, "AwaitLeaderRequest")  # a busy machine may be silent for so long, too
        waiting = [producer.send("t", b"%d" % number) for number in range(1, 4)]
        eventually(lambda: asked_for(cluster, "AwaitLeaderRequest") >= asked + 2, "the producer asks for a leader")
        sent = asked_for(cluster, "ProduceRequest")
        eventually(lambda: asked_for(cluster, "AwaitLeaderRequest") >= asked + 6, "it asks again and again")
        assert asked_for(cluster, "ProduceRequest") == sent, "it left the leader, and nobody else led"
        speaks_again(cluster, PRODUCE)
        cluster.move_leader(("t", 0), 1)
        assert [each.result(25).offset for each in waiting] == [1, 2, 3], "the silent one had 30 s to answer"
    assert cluster.values() == [b"0", b"1", b"2", b"3"]


def test_a_consumer_leaves_a_silent_leader_when_another_one_leads(scripted: Any) -> None:
    cluster = scripted(nodes=2)
    cluster.logs[("t", 0)].append(encode_values([b"0"], timestamp_ms=1))
    with Consumer(cluster.address, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        consumer.assign([("t", 0)])
        assert [record.value for record in consumer.consume(1, timeout=25)] == [b"0"]
        falls_silent(cluster, FETCH)
        asked = asked_for(cluster, "AwaitLeaderRequest")
        eventually(lambda: asked_for(cluster, "AwaitLeaderRequest") > asked, "the consumer asks for a leader")
        speaks_again(cluster, FETCH)
        cluster.move_leader(("t", 0), 1)
        cluster.call(lambda: cluster.logs[("t", 0)].append(encode_values([b"1"], timestamp_ms=1)))
        assert [record.value for record in consumer.consume(1, timeout=25)] == [b"1"]


def test_a_leader_that_is_only_slow_is_asked_once_and_waited_for(scripted: Any) -> None:
    cluster = scripted()
    held: list[Any] = []
    with Producer(cluster.address) as producer:
        producer.send("t", b"0").result(25)
        cluster.fail_next(PRODUCE, lambda cluster, request: held.append(request) or True)
        asked = asked_for(cluster, "AwaitLeaderRequest")
        waiting = producer.send("t", b"1")
        eventually(
            lambda: held and asked_for(cluster, "AwaitLeaderRequest") > asked, "the producer asks for another leader"
        )
        cluster.call(lambda: cluster._produce(held[0]))
        assert waiting.result(25).offset == 1
        before = asked_for(cluster, "ProduceRequest")
        producer.send("t", b"2").result(25)
    assert (before, asked_for(cluster, "ProduceRequest")) == (2, 3)
    assert cluster.values() == [b"0", b"1", b"2"]


def test_a_fetch_that_is_held_back_on_purpose_is_no_silence(scripted: Any) -> None:
    cluster = scripted()
    held: list[Any] = []
    cluster.fail_next(FETCH, lambda cluster, request: held.append(request) or True, 100)
    with Consumer(cluster.address, auto_offset_reset="earliest", fetch_max_wait_ms=10_000) as consumer:
        consumer.assign([("t", 0)])
        eventually(lambda: consumer.consume(1, timeout=0.05) or held, "a fetch")
        assert consumer.consume(1, timeout=0.5) == []
    assert asked_for(cluster, "AwaitLeaderRequest") == 0
