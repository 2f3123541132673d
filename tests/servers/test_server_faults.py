"""Servers that die, lose their session or come twice: order and records stay, epochs rise only where somebody died."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import actor, batch, endpoint_of, eventually, nodes_of, part, produce, status

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Producer
from raylog.errors import ClusterError, RaylogError, kafka_error
from raylog.server.replica_server import ReplicaServer
from raylog.server.spec import ServerSpec, new_incarnation
from raylog.testing.in_process import cluster
from raylog.types import broker_of

pytestmark = pytest.mark.core

Numbered = Callable[[int, int], list[bytes]]


# ------------------------------------------------------------------ leaders


def test_leaders_that_die_under_an_idempotent_producer_lose_double_and_reorder_nothing(
    faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.make_topic()
    stream = faulty.stream()
    stream.more()
    epochs = [part(faulty.running, "t")["leader_epoch"]]
    killed = []
    for _ in range(3):
        node = faulty.leader()
        killed.append(broker_of(node))
        faulty.running.crash(node)
        stream.more()
        faulty.await_whole()
        epochs.append(part(faulty.running, "t")["leader_epoch"])
    acked = stream.stop()
    assert epochs == sorted(set(epochs))
    assert [offset for offset, _ in acked] == list(range(len(acked)))
    assert faulty.values(len(acked)) == [value for _, value in acked]
    told = [record.getMessage() for record in caplog.records if "leader of t-0" in record.getMessage()]
    assert len(told) == 3, told  # one line per death, though metadata, producer and consumer all noticed
    for line, broker in zip(told, killed, strict=True):
        assert line.startswith(f"leader of t-0 (broker {broker}) is gone; broker "), line


def test_a_leader_that_dies_is_told_about_once_however_many_handles_wait(
    faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.make_topic()
    producers = [Producer(faulty.running.address, acks="all") for _ in range(4)]
    for producer in producers:
        producer.send("t", b"before", partition=0).result(60)
    node = faulty.leader()
    faulty.running.crash(node)
    for delivery in [producer.send("t", b"after", partition=0) for producer in producers]:
        delivery.result(60)
    for producer in producers:
        producer.close()
    told = [each for each in caplog.records if each.name == "raylog.client" and each.levelno >= logging.WARNING]
    assert [(record.levelno, record.getMessage().split(";")[0]) for record in told] == [
        (logging.WARNING, f"leader of t-0 (broker {broker_of(node)}) is gone")
    ]


def test_too_few_replicas_refuse_writes_until_they_are_back(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    assert faulty.produce(numbered(0, 10)) == list(range(10))
    leader = faulty.leader()
    followers = [node for node in nodes_of(faulty.running, "t").values() if node != leader]
    faulty.hold()
    for node in followers:
        faulty.running.crash(node)
    eventually(lambda: len(part(faulty.running, "t")["isr"]) == 1, "an ISR of one")

    def refused() -> Any:
        answer = produce(faulty.running, leader, "t", batch(b"refused"))
        return answer if answer.error_code is ErrorCode.not_enough_replicas else None

    answer = eventually(refused, "a refusal")
    assert answer.error_message == "1 in-sync replicas, 2 needed"
    with Producer(
        faulty.running.address, acks="all", delivery_timeout_ms=2_500, request_timeout_ms=2_000, linger_ms=0
    ) as producer:
        given_up = producer.send("t", b"given up", partition=0)
        with pytest.raises(RaylogError):
            given_up.result(60)
    assert faulty.values(10) == numbered(0, 10)  # reads go on
    faulty.let_go()
    faulty.await_whole()
    assert faulty.produce(numbered(10, 20)) == list(range(10, 20))
    assert faulty.values(20) == numbered(0, 20)


# ------------------------------------------------------------------ the controller and its sessions


def test_a_controller_that_dies_and_comes_back_disturbs_nobody(faulty: Any) -> None:
    faulty.make_topic()
    before = status(faulty.running)
    stream = faulty.stream()
    stream.more()
    faulty.running.stop_controller()
    stream.more()  # leaders serve on
    faulty.running.start_controller()
    stream.more()
    eventually(lambda: all(each["state"] == "live" for each in status(faulty.running)["actors"]), "all sessions back")
    acked = stream.stop()
    after = status(faulty.running)
    assert after["controller"]["epoch"] > before["controller"]["epoch"]
    assert _epochs(after) == _epochs(before)
    assert _incarnations(after) == _incarnations(before)
    assert faulty.values(len(acked)) == [value for _, value in acked]


def test_a_leader_that_dies_while_there_is_no_controller_is_replaced_when_there_is_one(
    faulty: Any, numbered: Numbered
) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 10))
    node = faulty.leader()
    faulty.running.stop_controller()
    faulty.running.crash(node)
    faulty.running.start_controller()
    assert faulty.produce(numbered(10, 20)) == list(range(10, 20))
    faulty.await_whole()
    assert faulty.values(20) == numbered(0, 20)


def test_a_session_that_breaks_without_a_death_raises_no_epoch(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    faulty.produce(numbered(0, 5))
    before = status(faulty.running)
    for each in before["actors"]:
        client = faulty.running.launcher.servers[each["node_id"]]._session

        async def cut(client: Any = client) -> Any:
            broken = client._session
            broken.close()
            return broken

        broken = faulty.running.run(cut())
        faulty.running.await_true(
            lambda client=client, broken=broken: client._session is not broken and client.controller() is not None
        )
    eventually(lambda: all(each["state"] == "live" for each in status(faulty.running)["actors"]), "all sessions back")
    after = status(faulty.running)
    assert _epochs(after) == _epochs(before)
    assert _incarnations(after) == _incarnations(before)
    assert faulty.produce(numbered(5, 10)) == list(range(5, 10))


def _epochs(found: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {
        (topic["name"], each["partition"]): each["leader_epoch"]
        for topic in found["topics"]
        for each in topic["partitions"]
    }


def _incarnations(found: dict[str, Any]) -> dict[int, int]:
    return {each["node_id"]: each["incarnation"] for each in found["actors"]}


# ------------------------------------------------------------------ doubles


@pytest.mark.parametrize("when", ["one that was replaced", "one that started earlier and comes late"])
def test_an_older_process_of_the_same_actor_is_told_to_exit(faulty: Any, numbered: Numbered, when: str) -> None:
    faulty.make_topic()
    running = faulty.running
    node = faulty.leader()
    older = actor(running, node)["incarnation"]
    running.crash(node)
    eventually(lambda: actor(running, node)["incarnation"] != older, "its successor")
    faulty.await_whole()
    current, server = actor(running, node), running.launcher.servers[node]
    late = older if when == "one that was replaced" else current["incarnation"] - 1
    double = ReplicaServer(
        ServerSpec(node, server._spec.directory_id, server._spec.disk, "127.0.0.1", late),
        files=faulty.files[broker_of(node)],
    )

    async def come() -> str:
        await double.start()
        return await double.ended()

    assert "newer process" in running.run(come())
    after = actor(running, node)
    assert (after["incarnation"], after["state"]) == (current["incarnation"], "live")
    assert running.launcher.servers[node] is server
    assert faulty.produce(numbered(0, 10)) == list(range(10))


def test_a_newer_process_of_the_same_actor_takes_over_and_the_older_one_exits(faulty: Any, numbered: Numbered) -> None:
    faulty.make_topic()
    running = faulty.running
    faulty.produce(numbered(0, 10))
    node = faulty.leader()
    server = running.launcher.servers[node]
    spec = ServerSpec(node, server._spec.directory_id, server._spec.disk, "127.0.0.1", new_incarnation())
    double = ReplicaServer(spec, files=faulty.files[broker_of(node)])

    async def take_over() -> str:
        await double.start()
        return await server.ended()

    reason = running.run(take_over())
    running.launcher.servers[node] = double
    assert "newer process" in reason
    faulty.await_whole()
    assert actor(running, node)["incarnation"] == spec.incarnation
    assert faulty.produce(numbered(10, 20)) == list(range(10, 20))
    assert faulty.values(20) == numbered(0, 20)


def test_a_process_of_another_cluster_is_not_let_in(faulty: Any, tmp_path: Path) -> None:
    from raylog.wire.connection import Connection
    from raylog.wire.handshake import HandshakeError

    faulty.make_topic()
    endpoint = endpoint_of(faulty.running, faulty.leader())
    with cluster(brokers=1, folder=tmp_path) as other:
        for secret, cluster_id in (
            (other.address.secret, other.address.cluster_id),
            (other.address.secret, faulty.running.address.cluster_id),
            (faulty.running.address.secret, other.address.cluster_id),
        ):

            async def come(secret: bytes = secret, cluster_id: str = cluster_id) -> None:
                await Connection.open(endpoint, secret=secret, cluster_id=cluster_id)

            with pytest.raises(HandshakeError):
                other.run(come())


# ------------------------------------------------------------------ all of it


def test_everything_is_there_after_a_stop_and_after_a_crash_of_everything(tmp_path: Path, numbered: Numbered) -> None:
    for round_number in range(3):
        with cluster(brokers=3, folder=tmp_path) as running:
            with AdminClient(running.address) as admin:
                if round_number == 0:
                    admin.create_topics([NewTopic("t", 1, 3, configs={"min.insync.replicas": "2"})])
            with Producer(running.address, acks="all") as producer:
                start = round_number * 10
                offsets = [producer.send("t", value).result(60).offset for value in numbered(start, start + 10)]
            assert offsets == list(range(start, start + 10))
            if round_number == 1:
                running.stop_controller()
                for node in list(running.launcher.servers):
                    running.crash(node)


def test_a_topic_that_asks_for_more_replicas_than_brokers_is_refused(faulty: Any) -> None:
    with (
        AdminClient(faulty.running.address) as admin,
        pytest.raises(kafka_error(ErrorCode.invalid_replication_factor), match="4"),
    ):
        admin.create_topics([NewTopic("wide", 1, 4)])


def test_a_cluster_that_is_gone_is_a_clear_error(faulty: Any) -> None:
    faulty.running.stop_controller()
    with (
        AdminClient(faulty.running.address, default_api_timeout_ms=2_500) as admin,
        pytest.raises(ClusterError, match=r"no controller of cluster 'test' answers at .*`raylog up`"),
    ):
        admin.list_topics()
