"""A coordinator process and its clients, without a listener in between: native members, restarts, many groups in one request."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from raw_requests import ask, endpoint_of, eventually, part

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient
from raylog.errors import kafka_error
from raylog.groups.consumer_protocol import Subscription, encode_subscription
from raylog.groups.context import GroupConfig
from raylog.kafka import table
from raylog.offsets_topic import OFFSETS_TOPIC, partition_for
from raylog.server.apis.entities import build, module_of, request_class
from raylog.server.replica_server import ReplicaServer
from raylog.server.spec import ServerSpec
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.wire.connection import Connection

pytestmark = pytest.mark.core

GROUP = "my-group"
PARTITION = partition_for(GROUP)


def prompt(spec: ServerSpec) -> ReplicaServer:
    """A host whose groups do not wait when they begin."""
    return ReplicaServer(spec, groups=GroupConfig(group_initial_rebalance_delay_ms=0))


@pytest.fixture
def running() -> Iterator[InProcessCluster]:
    with cluster(brokers=3, replica_server=prompt) as found:
        with AdminClient(found.address) as admin:
            admin.create_topics([NewTopic(OFFSETS_TOPIC), NewTopic("t")])
        eventually(lambda: part(found, OFFSETS_TOPIC, 49)["leader"] >= 0, "coordinators")
        yield found


def leader(running: InProcessCluster) -> int:
    """The process that coordinates the group."""
    found = eventually(lambda: {part(running, OFFSETS_TOPIC, PARTITION)["leader_node"]} - {-1}, "a coordinator")
    return int(found.pop())


def entity(key: int, version: int, **values: Any) -> Any:
    return build(request_class(table.BY_KEY[key], version), **values)


def ms(count: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=count)


def commit_of(offset: int, group: str = GROUP) -> Any:
    module = module_of(request_class(table.OFFSET_COMMIT, 8))
    one = module.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    topics = (module.OffsetCommitRequestTopic(name="t", partitions=(one,)),)
    return entity(
        8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=topics
    )


def fetch_of(*groups: str) -> Any:
    module = module_of(request_class(table.OFFSET_FETCH, 8))
    return entity(
        9,
        8,
        groups=tuple(module.OffsetFetchRequestGroup(group_id=each, topics=None) for each in groups),
        require_stable=True,
    )


def commit(running: InProcessCluster, offset: int) -> ErrorCode:
    reply = ask(running, endpoint_of(running, leader(running)), commit_of(offset))
    error: ErrorCode = reply.topics[0].partitions[0].error_code
    return error


def committed(running: InProcessCluster) -> int:
    """The group's offset, −2 while nobody can say."""
    (group,) = ask(running, endpoint_of(running, leader(running)), fetch_of(GROUP)).groups
    if group.error_code != ErrorCode.none:
        return -2
    return int(group.topics[0].partitions[0].committed_offset) if group.topics else -1


class NativeMember:
    """A member on a connection of its own, as raylog's own consumer has one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.member_id, self.generation = "", -1

    async def ask(self, request: Any) -> Any:
        return await self.connection.request(request, timeout_ms=20_000)

    async def join(self) -> Any:
        module = module_of(request_class(table.JOIN_GROUP, 9))
        metadata = encode_subscription(Subscription(("t",)))
        while True:
            joined = await self.ask(
                entity(
                    11,
                    9,
                    group_id=GROUP,
                    session_timeout=ms(30_000),
                    rebalance_timeout=ms(60_000),
                    member_id=self.member_id,
                    group_instance_id=None,
                    protocol_type="consumer",
                    protocols=(module.JoinGroupRequestProtocol(name="range", metadata=metadata),),
                    reason=None,
                )
            )
            self.member_id = joined.member_id
            if joined.error_code != ErrorCode.member_id_required:
                assert joined.error_code == ErrorCode.none, joined
                self.generation = joined.generation_id
                return joined

    async def sync(self, plan: dict[str, bytes]) -> bytes:
        module = module_of(request_class(table.SYNC_GROUP, 5))
        given = tuple(module.SyncGroupRequestAssignment(member_id=each, assignment=part) for each, part in plan.items())
        synced = await self.ask(
            entity(
                14,
                5,
                group_id=GROUP,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name="range",
                assignments=given,
            )
        )
        assert synced.error_code == ErrorCode.none, synced
        return bytes(synced.assignment)

    async def beat(self) -> ErrorCode:
        beat = entity(
            12, 4, group_id=GROUP, generation_id=self.generation, member_id=self.member_id, group_instance_id=None
        )
        error: ErrorCode = (await self.ask(beat)).error_code
        return error


async def native(running: InProcessCluster, endpoint: Any) -> NativeMember:
    address = running.address
    return NativeMember(await Connection.open(endpoint, secret=address.secret, cluster_id=address.cluster_id))


async def stable_pair(running: InProcessCluster, endpoint: Any) -> tuple[NativeMember, NativeMember]:
    """A leading member and another one, of one generation."""
    first, second = await native(running, endpoint), await native(running, endpoint)
    await first.join()
    second_joins = asyncio.ensure_future(second.join())
    while (await first.beat()) != ErrorCode.rebalance_in_progress:
        pass
    await first.join()
    await second_joins
    plan = {first.member_id: b"1", second.member_id: b"2"}
    parts = await asyncio.gather(first.sync(plan), second.sync({}))
    assert parts == [b"1", b"2"]
    return first, second


def test_the_death_of_a_native_member_is_heard_of_at_once_by_the_others(
    running: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parked heartbeat would wait for longer than this test does."""
    monkeypatch.setattr("raylog.groups.requests.HEARTBEAT_HELD_BACK_MS", 120_000)
    endpoint = endpoint_of(running, leader(running))

    async def work() -> None:
        first, second = await stable_pair(running, endpoint)
        second.connection.abort()
        while (await first.beat()) == ErrorCode.none:
            pass
        joined = await first.join()
        assert [each.member_id for each in joined.members] == [first.member_id]
        first.connection.close()

    running.run(work(), 120)


def test_a_group_survives_its_coordinator(running: InProcessCluster) -> None:
    dead = leader(running)
    endpoint = endpoint_of(running, dead)
    first, _ = running.run(stable_pair(running, endpoint), 120)
    error = ask(running, endpoint, commit_of(5)).topics[0].partitions[0].error_code
    assert error == ErrorCode.unknown_member_id, "from outside, while there are members"
    eventually(lambda: len(part(running, OFFSETS_TOPIC, PARTITION)["isr"]) == 3, "three in sync")
    running.crash(dead)
    eventually(lambda: part(running, OFFSETS_TOPIC, PARTITION)["leader_node"] not in (-1, dead), "another leads")
    successor = endpoint_of(running, leader(running))

    async def go_on() -> ErrorCode:
        again = await native(running, successor)
        again.member_id, again.generation = first.member_id, first.generation
        return await again.beat()

    assert running.run(go_on(), 120) == ErrorCode.none, "the group is stable there, in the same generation"


def test_offsets_are_read_again_when_a_whole_cluster_has_been_away(tmp_path: Path) -> None:
    with cluster(brokers=1, folder=tmp_path, replica_server=prompt) as running:
        with AdminClient(running.address) as admin:
            admin.create_topics([NewTopic(OFFSETS_TOPIC), NewTopic("t")])
        eventually(lambda: commit(running, 1) == ErrorCode.none, "a coordinator")
        for offset in range(2, 8):
            assert commit(running, offset) == ErrorCode.none
        assert commit(running, 777) == ErrorCode.none and committed(running) == 777
    with cluster(brokers=1, folder=tmp_path, replica_server=prompt) as running:
        eventually(lambda: committed(running) == 777, "the offset of before")


def test_who_waits_while_the_offsets_topic_is_deleted_is_sent_away(running: InProcessCluster) -> None:
    endpoint = endpoint_of(running, leader(running))

    async def parked() -> tuple[NativeMember, asyncio.Future[ErrorCode]]:
        first, second = await stable_pair(running, endpoint)
        return first, asyncio.ensure_future(second.beat())

    first, waiting = running.run(parked(), 120)
    with AdminClient(running.address) as admin:
        admin.delete_topics([OFFSETS_TOPIC])
        admin.create_topics([NewTopic(OFFSETS_TOPIC)])

    async def told() -> ErrorCode:
        return await waiting

    assert running.run(told(), 120) in (ErrorCode.not_coordinator, ErrorCode.none), "none: its time was up just then"
    eventually(lambda: commit(running, 1) == ErrorCode.none, "a group of that name begins anew")
    first.connection.close()


def test_settings_of_groups_change_while_they_run(running: InProcessCluster) -> None:
    endpoint = endpoint_of(running, leader(running))

    def answer() -> ErrorCode:
        beyond = entity(
            11,
            5,
            group_id=GROUP,
            session_timeout=ms(5_000),
            rebalance_timeout=ms(5_000),
            member_id="",
            group_instance_id="one",
            protocol_type="consumer",
            protocols=(
                module_of(request_class(table.JOIN_GROUP, 5)).JoinGroupRequestProtocol(name="range", metadata=b""),
            ),
        )
        error: ErrorCode = ask(running, endpoint, beyond).error_code
        return error

    assert answer() == ErrorCode.invalid_session_timeout
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker="all", set={"group.min.session.timeout.ms": "5000"})
    eventually(lambda: answer() == ErrorCode.none, "shorter sessions are allowed")


def test_who_does_not_coordinate_a_group_says_so_for_each_group(running: InProcessCluster) -> None:
    assert commit(running, 5) == ErrorCode.none
    here = leader(running)
    elsewhere = next(
        f"group-{number}"
        for number in range(1_000)
        if part(running, OFFSETS_TOPIC, partition_for(f"group-{number}"))["leader_node"] != here
    )
    mine, others = ask(running, endpoint_of(running, here), fetch_of(GROUP, elsewhere)).groups
    assert mine.error_code == ErrorCode.none and mine.topics[0].partitions[0].committed_offset == 5
    assert others.error_code == ErrorCode.not_coordinator and not others.topics


def test_a_deleted_topic_takes_the_groups_offsets_with_it(running: InProcessCluster) -> None:
    with AdminClient(running.address) as admin:
        admin.create_topics([NewTopic("kept")])
        for name in ("t", "kept"):
            admin.alter_group_offsets(GROUP, {(name, 0): 7})
        admin.delete_topics(["t"])
        eventually(lambda: list(admin.list_group_offsets(GROUP)) == [("kept", 0)], "the offsets in t are gone")
        with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition)):
            admin.alter_group_offsets(GROUP, {("t", 0): 8})
        admin.create_topics([NewTopic("t")])
        assert list(admin.list_group_offsets(GROUP)) == [("kept", 0)], "one of the same name begins anew"
