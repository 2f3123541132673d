"""How a client finds leaders and controllers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import socket
import time
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import eventually
from scripted_cluster import CLUSTER_ID, METADATA, SECRET, ScriptedCluster

from raylog.client.config import AdminConfig
from raylog.client.links import connections, metadata
from raylog.client.links.address import ClusterAddress
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import PartitionLeader
from raylog.errors import ClusterError, RaylogError, kafka_error
from raylog.types import ActorIdentity, Endpoint, TopicPartition
from raylog.wire.private import AWAIT_LEADER, FIND_CONTROLLER, AwaitLeaderRequest, ControllerFound
from raylog.wire.server import Server

pytestmark = pytest.mark.core
KEY = TopicPartition("t", 0)


def with_link(cluster: ScriptedCluster, work: Any, **options: Any) -> Any:
    async def run() -> Any:
        link = ClusterLink(cluster.address, AdminConfig.parse(options))
        try:
            return await work(link)
        finally:
            await link.close()

    return asyncio.run(run())


PATIENT_MS = 300_000  # so long no test waits
PROMPT_S = 100.0


def wait_for_leaders(patch: pytest.MonkeyPatch, await_leader_ms: int) -> None:
    """So long the controller may keep a search that finds nothing new."""
    patch.setattr(metadata, "AWAIT_LEADER_MS", await_leader_ms)


async def search(
    link: ClusterLink, failed: PartitionLeader | None, peer: Any = None
) -> tuple[PartitionLeader | None, Any, float]:
    started = time.perf_counter()
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link.metadata.search_leader(
        KEY, failed, peer=peer, on_end=lambda leader, refusal: ended.set_result((leader, refusal))
    )
    leader, refusal = await ended
    return leader, refusal, time.perf_counter() - started


def test_a_newer_leader_ends_the_search_as_soon_as_there_is_one(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_leaders(monkeypatch, PATIENT_MS)
    cluster = scripted()

    def move_once_it_is_awaited() -> None:
        eventually(lambda: cluster.waiting_for_leader, "the controller is asked for a newer leader")
        cluster.move_leader(KEY, 1)

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("t")
        failed = link.metadata.leader(KEY)
        moving = asyncio.create_task(asyncio.to_thread(move_once_it_is_awaited))
        leader, _, seconds = await search(link, failed)
        await moving
        assert leader == PartitionLeader(1, 1, cluster.endpoints[1]) == link.metadata.leader(KEY)
        assert seconds < PROMPT_S
        asked = len(cluster.requests)
        known, _, _ = await search(link, failed)
        assert known == leader and len(cluster.requests) == asked, "what is known already is found without asking"

    with_link(cluster, work)


def test_a_leader_whose_connection_broke_but_who_is_the_same_process_is_found_again_at_once(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_leaders(monkeypatch, PATIENT_MS)
    cluster = scripted()

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("t")
        failed = link.metadata.leader(KEY)
        assert failed is not None and failed.endpoint is not None
        connection = await link.connections.get(failed.endpoint)
        peer = connection.peer
        connection.abort()
        leader, _, seconds = await search(link, failed, peer)
        assert leader == failed and seconds < PROMPT_S
        wait_for_leaders(monkeypatch, 200)
        stranger = dataclasses.replace(peer, incarnation=99)
        _, _, seconds = await search(link, failed, stranger)  # another process on that port: the controller decides
        assert seconds > 0.19

    with_link(cluster, work)


def test_a_search_without_a_result_ends_with_what_the_controller_knows(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_leaders(monkeypatch, 200)
    cluster = scripted()

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("t")
        failed = link.metadata.leader(KEY)
        leader, refusal, seconds = await search(link, failed)
        assert leader == failed and refusal is None and seconds > 0.19

    with_link(cluster, work)


def test_a_leader_whose_address_was_that_of_an_earlier_process_is_reached_where_the_controller_says(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower's hint names node and epoch; the address that is known of the node may be old."""
    wait_for_leaders(monkeypatch, 200)
    cluster = scripted()

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("t")
        gone = Endpoint("127.0.0.1", 1)
        cluster.move_leader(KEY, 1)
        link.metadata.learn_leader(KEY, PartitionLeader(1, 1, gone))
        await search(link, link.metadata.leader(KEY))
        assert link.metadata.leader(KEY) == PartitionLeader(1, 1, cluster.endpoints[1])
        ends = await LeaderRequests(link).list_offsets({KEY: -1}, PATIENT_MS)
        assert list(ends) == [KEY]

    with_link(cluster, work)


def test_a_topic_that_is_gone_ends_the_search_for_good(scripted: Any) -> None:
    cluster = scripted()

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("t")
        failed = link.metadata.leader(KEY)
        cluster.call(lambda: cluster.logs.pop(KEY))
        cluster.fail_next(AWAIT_LEADER, refuse)
        leader, refusal, _ = await search(link, failed)
        assert leader is None and refusal.code is ErrorCode.unknown_topic_or_partition
        assert link.metadata.cached("t") is None

    def refuse(cluster: ScriptedCluster, request: Any) -> bool:
        raise kafka_error(ErrorCode.unknown_topic_or_partition)("gone")

    with_link(cluster, work)


def test_a_lost_leader_of_many_partitions_is_told_in_one_line(scripted: Any, caplog: pytest.LogCaptureFixture) -> None:
    cluster = scripted(nodes=3, topics={"packed": 12, "alone": 1})
    caplog.set_level(logging.INFO, "raylog.client")
    keys = [*(TopicPartition("packed", partition) for partition in range(12)), TopicPartition("alone", 0)]

    async def lose(link: ClusterLink, lost: list[TopicPartition], leaders: list[int]) -> None:
        ended = []
        for key in lost:
            await link.metadata.topic(key.topic)
            done = asyncio.get_running_loop().create_future()
            ended.append(done)
            failed = link.metadata.leader(key)
            link.metadata.search_leader(key, failed, peer=None, on_end=lambda *_, done=done: done.set_result(None))
        for key, leader in zip(lost, leaders, strict=True):
            await asyncio.to_thread(cluster.move_leader, key, leader)
        await asyncio.gather(*ended)

    async def work(link: ClusterLink) -> None:
        await lose(link, keys[:12], [1, 2] * 6)
        await lose(link, keys[12:], [1])

    with_link(cluster, work)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("leader of ")]
    assert len(lines) == 2, lines
    assert re.fullmatch(
        r"leader of 12 partitions \(broker 0\) is gone; brokers? .* leads? them now, after \d+ ms", lines[0]
    )
    assert re.fullmatch(
        r"leader of alone-0 \(broker 0\) is gone; broker . leads .*since epoch 1, after \d+ ms", lines[1]
    )


def test_many_partitions_that_one_process_led_cost_a_few_questions(scripted: Any) -> None:
    cluster = scripted(nodes=3, topics={"packed": 50, "other": 10})
    keys = [TopicPartition(topic, each) for topic, count in (("packed", 50), ("other", 10)) for each in range(count)]
    moves = {key: 1 + key.partition % 2 for key in keys}

    async def work(link: ClusterLink) -> None:
        await asyncio.gather(link.metadata.topic("packed"), link.metadata.topic("other"))
        cluster.requests.clear()
        found: dict[TopicPartition, PartitionLeader | None] = {}
        for key in keys:
            failed = link.metadata.leader(key)
            link.metadata.search_leader(
                key, failed, peer=None, on_end=lambda leader, _, key=key: found.setdefault(key, leader)
            )
        await asyncio.to_thread(cluster.move_leaders, moves)
        while len(found) < len(keys):
            await asyncio.sleep(0.01)
        assert found == {key: PartitionLeader(node, 1, cluster.endpoints[node]) for key, node in moves.items()}

    with_link(cluster, work)
    asked = [type(body).__name__ for body in cluster.requests]
    assert sorted(asked) == ["AwaitLeaderRequest", "AwaitLeaderRequest", "MetadataRequest"], asked


def test_what_one_process_led_is_found_although_nobody_leads_some_of_it(scripted: Any) -> None:
    cluster = scripted(nodes=3, topics={"led": 20})
    keys = [TopicPartition("led", each) for each in range(20)]

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("led")
        found: dict[TopicPartition, PartitionLeader | None] = {}
        for key in keys:
            failed = link.metadata.leader(key)
            link.metadata.search_leader(
                key, failed, peer=None, on_end=lambda leader, _, key=key: found.setdefault(key, leader)
            )
        await asyncio.to_thread(cluster.move_leaders, dict.fromkeys(keys[10:], 1))
        while len(found) < 10:
            await asyncio.sleep(0.01)
        assert found == dict.fromkeys(keys[10:], PartitionLeader(1, 1, cluster.endpoints[1]))
        await asyncio.to_thread(cluster.move_leaders, dict.fromkeys(keys[:10], 2))
        while len(found) < 20:
            await asyncio.sleep(0.01)
        assert all(found[key] == PartitionLeader(2, 1, cluster.endpoints[2]) for key in keys[:10])

    with_link(cluster, work)


def test_a_process_of_many_partitions_that_was_only_cut_off_leads_on(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_leaders(monkeypatch, PATIENT_MS)
    cluster = scripted(topics={"led": 20})
    keys = [TopicPartition("led", each) for each in range(20)]

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("led")
        failed = link.metadata.leader(keys[0])
        assert failed is not None and failed.endpoint is not None
        connection = await link.connections.get(failed.endpoint)
        connection.abort()
        started = time.perf_counter()
        found: dict[TopicPartition, PartitionLeader | None] = {}
        for key in keys:
            link.metadata.search_leader(
                key, failed, peer=connection.peer, on_end=lambda leader, _, key=key: found.setdefault(key, leader)
            )
        while len(found) < len(keys):
            await asyncio.sleep(0.01)
        assert found == dict.fromkeys(keys, failed) and time.perf_counter() - started < PROMPT_S

    with_link(cluster, work)


def test_older_news_of_a_leader_do_not_replace_newer(scripted: Any) -> None:
    cluster = scripted()

    async def work(link: ClusterLink) -> None:
        await link.metadata.topic("t")
        newer = PartitionLeader(1, 7, cluster.endpoints[1])
        link.metadata.learn_leader(KEY, newer)
        link.metadata.learn_leader(KEY, PartitionLeader(0, 6, cluster.endpoints[0]))
        await link.metadata.refresh(["t"])  # the controller's answer still says epoch 0
        assert link.metadata.leader(KEY) == newer

    with_link(cluster, work)


def test_whoever_sends_to_leaders_is_told_of_each_that_changed(scripted: Any) -> None:
    cluster = scripted(topics={"t": 2})

    async def work(link: ClusterLink) -> None:
        told: list[TopicPartition] = []
        link.metadata.on_leader_change = told.append
        await link.metadata.topic("t")
        assert told == [KEY, TopicPartition("t", 1)], "nothing was known of them"
        told.clear()
        await link.metadata.refresh(["t"])
        assert told == []
        await asyncio.get_running_loop().run_in_executor(None, cluster.move_leader, KEY, 1)
        await link.metadata.refresh(["t"])
        assert told == [KEY]
        link.metadata.learn_leader(KEY, PartitionLeader(0, 7, cluster.endpoints[0]))
        assert told == [KEY, KEY]

    with_link(cluster, work)


def test_many_who_ask_for_a_topic_cause_one_request(scripted: Any) -> None:
    cluster = scripted()

    async def work(link: ClusterLink) -> None:
        await asyncio.gather(*(link.metadata.topic("t") for _ in range(20)))

    with_link(cluster, work)
    assert sum(type(body).__name__ == "MetadataRequest" for body in cluster.requests) == 1


def test_the_next_controller_endpoint_is_tried_when_one_is_dead_or_a_standby(scripted: Any) -> None:
    cluster = scripted()
    dead = Endpoint("127.0.0.1", 1)
    address = dataclasses.replace(cluster.address, bootstrap=(dead, *cluster.address.bootstrap))

    def standby(cluster: ScriptedCluster, request: Any) -> bool:
        import importlib

        module = importlib.import_module("kio.schema.metadata.v12.response")
        topic = module.MetadataResponseTopic(
            error_code=ErrorCode.not_controller, name="t", topic_id=None, is_internal=False, partitions=()
        )
        reply = module.MetadataResponse(
            throttle_time=importlib.import_module("datetime").timedelta(0), brokers=(), topics=(topic,)
        )
        request.reply(reply)
        return True

    cluster.fail_next(METADATA, standby)

    async def work() -> None:
        link = ClusterLink(address, AdminConfig.parse({"request.timeout.ms": PATIENT_MS}))
        started = time.perf_counter()
        view = await link.metadata.topic("t")
        assert len(view.partitions) == 1 and time.perf_counter() - started < PROMPT_S
        assert link.controller.endpoint == cluster.endpoints[-1]
        await link.close()

    asyncio.run(work())


def test_a_standby_says_where_the_active_controller_is_though_nobody_else_knows(scripted: Any) -> None:
    cluster = scripted()
    controller = cluster.endpoints[-1]

    def refuse(request: Any) -> None:
        request.refuse(kafka_error(ErrorCode.not_controller)("not here"))

    def tell(request: Any) -> None:
        request.reply(ControllerFound(controller.host, controller.port))

    async def start() -> tuple[Server, Endpoint]:
        identity = ActorIdentity(CLUSTER_ID, 201, uuid.uuid4(), 1)
        standby = Server({AWAIT_LEADER: refuse, FIND_CONTROLLER: tell}, identity=identity, secret=SECRET)
        return standby, await standby.start()

    standby, endpoint = cluster.on(start())
    address = dataclasses.replace(cluster.address, name="standby", bootstrap=(endpoint,))

    async def work() -> None:
        link = ClusterLink(address, AdminConfig.parse())
        reply = await link.controller.request(AwaitLeaderRequest("t", 0, -1, 1_000), timeout_ms=60_000)
        assert Endpoint(reply.host, reply.port) == cluster.endpoints[0]
        assert link.controller.endpoint == cluster.endpoints[-1]
        await link.close()

    asyncio.run(work())
    cluster.on(standby.stop())


def test_a_standby_that_still_names_a_dead_controller_is_not_asked_in_a_circle(scripted: Any) -> None:
    cluster = scripted()
    dead, asked = Endpoint("127.0.0.1", 1), []

    def refuse(cluster: ScriptedCluster, request: Any) -> bool:
        asked.append(request)
        request.refuse(kafka_error(ErrorCode.not_controller)("not here"))
        return True

    def name_the_dead(cluster: ScriptedCluster, request: Any) -> bool:
        request.reply(ControllerFound(dead.host, dead.port))
        return True

    cluster.fail_next(FIND_CONTROLLER, name_the_dead, times=1_000)
    cluster.fail_next(AWAIT_LEADER, refuse, times=1_000)
    address = dataclasses.replace(cluster.address, name="circle")

    async def work() -> None:
        link = ClusterLink(address, AdminConfig.parse({"retry.backoff.ms": 50}))
        with pytest.raises(RaylogError):
            await link.controller.request(AwaitLeaderRequest("t", 0, -1, 1_000), timeout_ms=3_000)
        await link.close()

    asyncio.run(work())
    assert 2 <= len(asked) <= 20


def test_a_silent_controller_is_left_when_another_one_says_that_it_is_active(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = scripted()
    monkeypatch.setattr(connections, "_SILENCE_S", 0.05)

    async def work(address: ClusterAddress) -> None:
        link = ClusterLink(
            address,
            AdminConfig.parse(
                {
                    "request.timeout.ms": 250_000,
                    "socket.connection.setup.timeout.ms": 250_000,
                    "socket.connection.setup.timeout.max.ms": 250_000,
                }
            ),
        )
        started = time.perf_counter()
        assert len((await link.metadata.topic("t")).partitions) == 1
        assert time.perf_counter() - started < 100, "the connection's time was waited for"
        assert link.controller.endpoint == cluster.endpoints[-1]
        await link.close()

    with socket.socket() as frozen:  # the kernel accepts connections to it, and nobody answers
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        silent = Endpoint(*frozen.getsockname())
        address = dataclasses.replace(cluster.address, name="frozen", bootstrap=(silent, *cluster.address.bootstrap))
        asyncio.run(work(address))


def test_a_stranger_with_another_secret_is_named(scripted: Any) -> None:
    cluster = scripted()
    address = dataclasses.replace(cluster.address, secret=b"wrong")

    async def work() -> None:
        link = ClusterLink(address, AdminConfig.parse({"request.timeout.ms": 2_000}))
        with pytest.raises(ClusterError, match=r"does not belong to cluster 'scripted' .*raylog\.connect"):
            await link.metadata.topic("t")
        await link.close()

    asyncio.run(work())
