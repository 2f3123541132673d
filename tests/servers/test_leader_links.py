"""A follower's links to leaders: one to each process that leads or may lead next, and every fetch is heard of."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest
from wire_ends import CLUSTER, IDENTITY, SECRET, server_of, until

from raylog.control.session import AssignedReplica, Assignment
from raylog.kafka.table import FETCH
from raylog.replication.events import FetchAnswered, FetchFailed, FetchPartition, SendFetch
from raylog.server.leader_links import LeaderLinks
from raylog.types import ActorIdentity, Endpoint, TopicIdPartition, broker_of
from raylog.wire.handshake import Peer
from raylog.wire.request import Request

pytestmark = pytest.mark.core

PARTITION = FetchPartition(TopicIdPartition(uuid.UUID(int=7), 0), 0, 1 << 20)


class Leader:
    """One incarnation of a process, which parks what it is asked."""

    def __init__(self, identity: ActorIdentity) -> None:
        self.identity = identity
        self.parked: list[Request] = []
        self.gone = 0
        self.server = server_of({FETCH.key: self._fetch}, identity=identity, versions={FETCH.key: FETCH.versions})

    def _fetch(self, request: Request) -> None:
        self.parked.append(request)
        request.on_close(self._closed)

    def _closed(self, _: object) -> None:
        self.gone += 1


def order(leader: Leader, endpoint: Endpoint, fetch_id: int) -> SendFetch:
    who = leader.identity
    return SendFetch(who.node_id, who.incarnation, endpoint, fetch_id, 1, 1, 60_000, 1, 1 << 20, (PARTITION,))


def shared(*others: tuple[ActorIdentity, Endpoint | None], partition: int = 0, isr: tuple[int, ...] = ()) -> Assignment:
    """A partition whose replicas are node 1's and those of ``others``, which are all in sync unless ``isr`` names who is."""
    replicas = [(ActorIdentity(CLUSTER, 1, uuid.UUID(int=1), 1), Endpoint("127.0.0.1", 1)), *others]
    assigned = tuple(
        AssignedReplica(broker_of(who.node_id), who.node_id, who.directory_id, who.incarnation, endpoint)
        for who, endpoint in replicas
    )
    in_sync = isr or tuple(each.broker_id for each in assigned)
    return Assignment(1, uuid.UUID(int=7), "t", partition, 0, 1, 1, assigned, in_sync, (), (), 1, ())


def test_a_link_to_an_earlier_incarnation_is_closed_when_a_later_one_is_fetched_from() -> None:
    heard: list[FetchAnswered | FetchFailed] = []

    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=heard.append)
        old, new = Leader(IDENTITY), Leader(replace(IDENTITY, incarnation=IDENTITY.incarnation + 1))
        try:
            async with asyncio.timeout(60):
                links.send(order(old, await old.server.start(), 1))
                await until(lambda: len(old.parked) == 1)
                links.send(order(new, await new.server.start(), 2))
                await until(lambda: old.gone == 1 and len(new.parked) == 1)
                links.close()
                await until(lambda: new.gone == 1)
        finally:
            for each in (old, new):
                await each.server.stop(grace_s=0)

    asyncio.run(work())
    assert FetchFailed(IDENTITY.node_id, IDENTITY.incarnation, 1) in heard


def test_a_fetch_that_is_renewed_while_its_link_opens_opens_no_second_one() -> None:
    heard: list[FetchAnswered | FetchFailed] = []

    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=heard.append)
        leader = Leader(IDENTITY)
        try:
            async with asyncio.timeout(60):
                endpoint = await leader.server.start()
                for fetch_id in (1, 2):
                    links.send(order(leader, endpoint, fetch_id))
                await until(lambda: bool(leader.parked))
                links.send(order(leader, endpoint, 3))
                await until(lambda: len(leader.parked) == 2)
                assert len(leader.server.connections) == 1
                links.close()
                await until(lambda: leader.gone == 2 and not leader.server.connections)
        finally:
            await leader.server.stop(grace_s=0)

    asyncio.run(work())
    node, incarnation = IDENTITY.node_id, IDENTITY.incarnation
    assert heard == [FetchFailed(node, incarnation, 2), FetchFailed(node, incarnation, 3)], (
        "the first was given up unsent"
    )


def test_of_fetches_for_a_link_that_cannot_be_opened_the_newest_fails_and_the_next_tries_again() -> None:
    heard: list[FetchAnswered | FetchFailed] = []

    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=heard.append)
        leader = Leader(IDENTITY)
        endpoint = await leader.server.start()
        await leader.server.stop(grace_s=0)
        async with asyncio.timeout(60):
            for fetch_id in (1, 2):
                links.send(order(leader, endpoint, fetch_id))
            await until(lambda: len(heard) == 1)
            links.send(order(leader, endpoint, 3))
            await until(lambda: len(heard) == 2)
        links.close()

    asyncio.run(work())
    assert heard == [FetchFailed(IDENTITY.node_id, IDENTITY.incarnation, fetch_id) for fetch_id in (2, 3)]


def test_a_fetch_from_a_process_that_is_another_one_now_has_failed() -> None:
    heard: list[FetchAnswered | FetchFailed] = []

    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=heard.append)
        there = Leader(replace(IDENTITY, incarnation=IDENTITY.incarnation + 1))
        try:
            async with asyncio.timeout(60):
                links.send(order(Leader(IDENTITY), await there.server.start(), 5))
                await until(lambda: bool(heard))
                assert there.parked == []
                links.close()
        finally:
            await there.server.stop(grace_s=0)

    asyncio.run(work())
    assert heard == [FetchFailed(IDENTITY.node_id, IDENTITY.incarnation, 5)]


def test_partitions_that_are_shared_open_one_link_in_advance_and_the_first_fetch_takes_it() -> None:
    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=lambda _: None)
        leader = Leader(IDENTITY)
        try:
            async with asyncio.timeout(30):
                endpoint = await leader.server.start()
                links.warm(shared((IDENTITY, endpoint), partition=number) for number in range(50))
                await until(lambda: len(leader.server.connections) == 1)
                await until(lambda: all(each.peer.node_id == 1 for each in leader.server.connections))
                in_advance = set(leader.server.connections)
                links.warm([shared((IDENTITY, endpoint))])
                links.send(order(leader, endpoint, 1))
                await until(lambda: len(leader.parked) == 1)
                assert set(leader.server.connections) == in_advance
                links.close()
                await until(lambda: not leader.server.connections)
        finally:
            await leader.server.stop(grace_s=0)

    asyncio.run(work())


def test_a_fetch_that_comes_while_its_link_opens_in_advance_waits_for_that_one() -> None:
    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=lambda _: None)
        leader = Leader(IDENTITY)
        try:
            async with asyncio.timeout(30):
                endpoint = await leader.server.start()
                links.warm([shared((IDENTITY, endpoint))])
                links.send(order(leader, endpoint, 1))
                await until(lambda: len(leader.parked) == 1)
                assert len(leader.server.connections) == 1
                links.close()
        finally:
            await leader.server.stop(grace_s=0)

    asyncio.run(work())


def test_no_link_is_opened_in_advance_to_this_process_a_dead_one_or_one_that_is_not_in_sync() -> None:
    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=lambda _: None)
        itself, behind, in_sync = (Leader(replace(IDENTITY, node_id=node)) for node in (1, 2 << 16 | 2, 3 << 16 | 2))
        dead = replace(IDENTITY, node_id=4 << 16 | 2, incarnation=0)
        try:
            async with asyncio.timeout(30):
                others = [(each.identity, await each.server.start()) for each in (itself, behind, in_sync)]
                links.warm([shared(*others, (dead, None), isr=(0, 3, 4))])
                await until(lambda: len(in_sync.server.connections) == 1)
                await asyncio.to_thread(lambda: None)  # whatever else was begun in that step of the loop has arrived
                assert not itself.server.connections and not behind.server.connections
                links.close()
        finally:
            for each in (itself, behind, in_sync):
                await each.server.stop(grace_s=0)

    asyncio.run(work())


def test_of_a_link_that_cannot_be_opened_in_advance_nobody_hears_and_it_is_tried_again() -> None:
    heard: list[FetchAnswered | FetchFailed] = []

    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=heard.append)
        nobody, there = Leader(IDENTITY), Leader(IDENTITY)
        gone = await nobody.server.start()
        await nobody.server.stop(grace_s=0)
        others = asyncio.all_tasks()
        async with asyncio.timeout(30):
            links.warm([shared((IDENTITY, gone))])
            await asyncio.gather(*asyncio.all_tasks() - others)
            assert heard == []
            links.warm([shared((IDENTITY, gone))])
            assert asyncio.all_tasks() - others, "the next assignment tries again"
            links.send(order(there, gone, 1))
            await until(lambda: len(heard) == 1)
            links.close()

    asyncio.run(work())
    assert heard == [FetchFailed(IDENTITY.node_id, IDENTITY.incarnation, 1)]


def test_an_assignment_with_a_later_incarnation_closes_the_link_to_the_earlier_one() -> None:
    async def work() -> None:
        links = LeaderLinks(Peer(1, 1), secret=SECRET.encode(), cluster_id=CLUSTER, on_event=lambda _: None)
        old, new = Leader(IDENTITY), Leader(replace(IDENTITY, incarnation=IDENTITY.incarnation + 1))
        try:
            async with asyncio.timeout(30):
                links.warm([shared((old.identity, await old.server.start()))])
                await until(lambda: len(old.server.connections) == 1)
                links.warm([shared((new.identity, await new.server.start()))])
                await until(lambda: not old.server.connections and len(new.server.connections) == 1)
                links.close()
        finally:
            for each in (old, new):
                await each.server.stop(grace_s=0)

    asyncio.run(work())
