"""Records that left the page cache: the host never waits for the disk, whoever asked gets them once they are loaded."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Removal
from raylog.replication.cold_reads import LOADS_PER_FETCH, LOADS_PER_LIST_OFFSETS
from raylog.replication.events import (
    Cancelled,
    FetchPartition,
    FetchReceived,
    FetchReply,
    ListOffsetsPartition,
    ListOffsetsReceived,
    ListOffsetsReply,
    Removed,
)
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts
from raylog.types import TopicIdPartition

P1 = TopicIdPartition(P0.topic_id, 1)


@pytest.fixture
def hosts() -> Hosts:
    """One host that leads two partitions; each has sealed segments with a record each. Loads are held back."""
    hosts = Hosts((1,))
    for id in (P0, P1):
        hosts.assign(1, (1,), id=id, config={"segment.bytes": "100", "segment.index.bytes": "1024"})
    for number in range(4):
        hosts.produce(1, b"p0 record %d" % number)
    hosts.holds_loads = True
    return hosts


def search(hosts: Hosts, timestamp: int) -> int:
    token = hosts.token()
    hosts.handle(1, ListOffsetsReceived(token, -1, 0, (ListOffsetsPartition(P0, timestamp),)))
    return token


def searched(hosts: Hosts, token: int) -> int:
    reply = hosts.replies[token]
    assert isinstance(reply, ListOffsetsReply)
    return reply.partitions[0].offset


def as_follower(hosts: Hosts, *ids: TopicIdPartition) -> int:
    token = hosts.token()
    parts = tuple(FetchPartition(id, 0, 1 << 20) for id in ids)
    hosts.handle(1, FetchReceived(token, 2, 900, 500, 1, 1 << 20, 0, parts))
    return token


def finish_all_loads(hosts: Hosts) -> int:
    count = 0
    while hosts.loads:
        count += len(hosts.loads)
        hosts.finish_loads()
    return count


def test_a_cold_fetch_is_answered_when_its_records_are_loaded_though_it_would_not_wait(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    token = hosts.fetch(1, 0, max_wait_ms=0, min_bytes=0)
    assert token not in hosts.replies and len(hosts.loads) == 1
    hosts.finish_loads()
    found = hosts.fetched(token)
    assert found is not None and b"p0 record 0" in bytes(found.records)


def test_others_are_served_while_a_load_is_in_flight(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    cold = hosts.fetch(1, 0, max_wait_ms=0)
    produced = hosts.produced(hosts.produce(1, b"new", id=P1))
    assert produced is not None and produced.error == 0
    warm = hosts.fetched(hosts.fetch(1, 0, id=P1))
    assert warm is not None and b"new" in bytes(warm.records) and cold not in hosts.replies


def test_two_who_lack_the_same_place_cause_one_load_and_both_are_answered(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    tokens = [hosts.fetch(1, 0, max_wait_ms=100), hosts.fetch(1, 0, max_wait_ms=0)]
    assert len(hosts.loads) == 1
    hosts.finish_loads()
    assert all(len(hosts.fetched(token).records) for token in tokens)  # type: ignore[union-attr]


def test_a_fetch_with_enough_elsewhere_is_answered_at_once_and_the_cold_part_is_loaded_for_the_next(
    hosts: Hosts,
) -> None:
    hosts.disks[1].evict()
    hosts.produce(1, b"warm", id=P1)
    token = hosts.token()
    parts = (FetchPartition(P0, 0, 1 << 20), FetchPartition(P1, 0, 1 << 20))
    hosts.handle(1, FetchReceived(token, -1, -1, 500, 1, 1 << 20, 0, parts))
    reply = hosts.replies[token]
    assert isinstance(reply, FetchReply)
    assert [(part.error, bool(len(part.records))) for part in reply.partitions] == [(0, False), (0, True)]
    hosts.finish_loads()
    found = hosts.fetched(hosts.fetch(1, 0))
    assert found is not None and len(found.records)


def test_a_disk_that_takes_too_long_is_not_waited_for_longer_than_the_limit(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    token = hosts.fetch(1, 0, max_wait_ms=0)
    hosts.advance(hosts.config.cold_read_wait_ms - 1)
    assert token not in hosts.replies
    hosts.advance(2)
    found = hosts.fetched(token)
    assert found is not None and (found.error, len(found.records)) == (0, 0)
    again = hosts.fetch(1, 0, max_wait_ms=0)
    assert len(hosts.loads) == 1, "the load that is under way is enough"
    hosts.finish_loads()
    assert len(hosts.fetched(again).records)  # type: ignore[union-attr]


def test_after_so_many_loads_in_vain_a_fetch_is_read_all_the_same(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    token = hosts.fetch(1, 0, max_wait_ms=0)
    for _ in range(LOADS_PER_FETCH):
        assert token not in hosts.replies
        original = hosts.processes[1].files.load
        hosts.processes[1].files.load = lambda *place: None  # type: ignore[method-assign]  # thrown out again at once
        hosts.finish_loads()
        hosts.processes[1].files.load = original  # type: ignore[method-assign]
    found = hosts.fetched(token)
    assert found is not None and len(found.records) and not hosts.loads


def test_an_io_error_of_a_load_takes_the_replica_offline(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    fetch, listing = hosts.fetch(1, 0), search(hosts, WALL_MS)
    while hosts.loads:
        hosts.finish_loads("the platter is scratched")
    found = hosts.fetched(fetch)
    assert found is not None and found.error == ErrorCode.kafka_storage_error.value
    reply = hosts.replies[listing]
    assert isinstance(reply, ListOffsetsReply) and reply.partitions[0].error == ErrorCode.kafka_storage_error.value
    assert hosts.replica(1).reason == "read: the platter is scratched"


def test_a_cancelled_fetch_and_search_are_forgotten(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    tokens = [hosts.fetch(1, 0), search(hosts, WALL_MS)]
    for token in tokens:
        hosts.handle(1, Cancelled(token))
    finish_all_loads(hosts)
    assert not set(tokens) & set(hosts.replies)


def test_a_removed_replica_answers_at_once_and_its_load_comes_to_nothing(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    fetch, listing = hosts.fetch(1, 0), search(hosts, WALL_MS)
    hosts.handle(1, Removed(Removal(hosts.controller_epoch, P0.topic_id, 0)))
    found = hosts.fetched(fetch)
    assert found is not None and found.error == ErrorCode.unknown_topic_or_partition.value
    finish_all_loads(hosts)
    assert listing in hosts.replies


def test_a_search_by_timestamp_waits_for_what_it_has_to_read(hosts: Hosts) -> None:
    hosts.disks[1].evict()
    token = search(hosts, WALL_MS)
    assert token not in hosts.replies
    assert 1 <= finish_all_loads(hosts) < LOADS_PER_LIST_OFFSETS
    assert searched(hosts, token) == 0


def test_a_followers_answer_without_records_names_what_is_cold_lest_it_thinks_it_has_all() -> None:
    hosts = Hosts((1, 2))
    hosts.holds_loads = True
    hosts.cut = {2}
    for id in (P0, P1):
        hosts.assign(1, (1,), id=id, config={"segment.bytes": "100", "segment.index.bytes": "1024"})
    for number in range(3):
        hosts.produce(1, b"record %d" % number)
    hosts.disks[1].evict()
    token = hosts.token()
    follower = (2, hosts.processes[2].incarnation)
    parts = (FetchPartition(P0, 0, 1 << 20), FetchPartition(P1, 0, 1 << 20))
    hosts.handle(1, FetchReceived(token, *follower, 500, 1, 1 << 20, 0, parts))
    hosts.advance(500)
    reply = hosts.replies[token]
    assert isinstance(reply, FetchReply)
    errors = {part.id: part.error for part in reply.partitions}
    assert errors[P0] == ErrorCode.request_timed_out.value and not errors.get(P1, 0)


def test_a_follower_of_a_cold_log_copies_all_of_it() -> None:
    hosts = Hosts((1, 2))
    hosts.cut = {2}
    hosts.assign(1, (1,), config={"segment.bytes": "100", "segment.index.bytes": "1024"})
    for number in range(5):
        hosts.produce(1, b"record %d" % number)
    hosts.disks[1].evict()
    hosts.cut = set()
    hosts.advance(2_000)
    assert hosts.log(2).log_end_offset == 5
