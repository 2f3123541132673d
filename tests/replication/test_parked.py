"""When parked requests wake, and what they are answered."""

from __future__ import annotations

import gc

from kio.schema.errors import ErrorCode

from raylog.control.session import Removal
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    Cancelled,
    FetchPartition,
    FetchReceived,
    FetchReply,
    ProducePartition,
    ProduceReceived,
    ProduceReply,
    Removed,
)
from raylog.simulator.replica_hosts import P0, Hosts, batch
from raylog.types import TopicIdPartition

P1 = TopicIdPartition(P0.topic_id, 1)
P2 = TopicIdPartition(P0.topic_id, 2)


def one_host(*ids: TopicIdPartition) -> Hosts:
    hosts = Hosts((1,))
    for id in ids or (P0,):
        hosts.assign(1, (1,), id=id)
    return hosts


def fetch_many(
    hosts: Hosts,
    *parts: tuple[TopicIdPartition, int],
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    part_bytes: int = 1 << 20,
    replica: tuple[int, int] = (-1, -1),
) -> int:
    token = hosts.token()
    wanted = tuple(FetchPartition(id, offset, part_bytes) for id, offset in parts)
    hosts.handle(1, FetchReceived(token, *replica, max_wait_ms, min_bytes, max_bytes, 0, wanted))
    return token


def results(hosts: Hosts, token: int) -> list[tuple[int, int]]:
    """(partition, bytes) of each result."""
    reply = hosts.replies[token]
    assert isinstance(reply, FetchReply)
    return [(result.id.partition, len(result.records)) for result in reply.partitions]


def test_a_consumer_wakes_when_the_high_watermark_rises_not_when_records_are_appended() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    parked = hosts.fetch(1, 0, max_wait_ms=500)
    hosts.produce(1, b"m0")
    assert parked not in hosts.replies
    hosts.cut = set()
    hosts.run()
    answer = hosts.fetched(parked)
    assert answer is not None and len(answer.records) and answer.high_watermark == 1


def test_a_fetch_waits_for_min_bytes_over_all_its_partitions() -> None:
    hosts = one_host(P0, P1)
    size = len(batch(b"x" * 100))
    parked = fetch_many(hosts, (P0, 0), (P1, 0), min_bytes=2 * size)
    hosts.produce(1, b"x" * 100, id=P0)
    assert parked not in hosts.replies
    hosts.produce(1, b"x" * 100, id=P1)
    assert results(hosts, parked) == [(0, size), (1, size)]


def test_a_fetch_that_times_out_gets_what_there_is() -> None:
    hosts = one_host(P0, P1)
    parked = fetch_many(hosts, (P0, 0), (P1, 0), min_bytes=1 << 20)
    hosts.produce(1, b"x", id=P1)
    hosts.advance(496)
    assert parked not in hosts.replies
    hosts.advance(4)
    assert results(hosts, parked) == [(0, 0), (1, len(batch(b"x")))]
    assert len(hosts.host(1).context.wheel) == 4  # two housekeepings, checkpoint, scrub: no deadline is left


def test_consumers_that_wait_are_answered_together_and_never_late() -> None:
    hosts = one_host(P0)
    due_ms: dict[int, int] = {}
    for _ in range(100):
        hosts.advance(3)
        due_ms[hosts.fetch(1, 0, max_wait_ms=1_000)] = hosts.now_ms + 1_000
        due_ms[hosts.fetch(1, 0, max_wait_ms=20)] = hosts.now_ms + 20
    answered = {token for token in due_ms if token in hosts.replies}
    times: dict[int, int] = {}
    while len(answered) < len(due_ms):
        hosts.advance(1)
        for token in due_ms.keys() & hosts.replies.keys() - answered:
            answered.add(token)
            times[token] = hosts.now_ms
            assert due_ms[token] - 1000 // 128 < hosts.now_ms <= due_ms[token]
    assert len({at for token, at in times.items() if due_ms[token] > 1_000}) <= 300 // (1000 // 128) + 1


def test_what_is_answered_is_freed_at_once() -> None:
    """Thousands of requests a second that waited for the garbage collector would stop the process for it again and again."""
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.run()
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            hosts.fetch(1, hosts.log(1).log_end_offset, max_wait_ms=500)
            hosts.fetch(1, 1_000, max_wait_ms=1_000, min_bytes=1)
            cancelled = hosts.fetch(1, hosts.log(1).log_end_offset, max_wait_ms=500)
            hosts.handle(1, Cancelled(cancelled))
            hosts.produce(1, b"v")
            hosts.advance(1_000)
        assert gc.collect() < 50
    finally:
        gc.enable()


def test_max_bytes_is_shared_and_the_first_batch_comes_whole() -> None:
    hosts = one_host(P0, P1, P2)
    size = len(batch(b"x" * 100))
    for id in (P0, P1, P2):
        for _ in range(3):
            hosts.produce(1, b"x" * 100, id=id)
    assert results(hosts, fetch_many(hosts, (P0, 0), (P1, 0), (P2, 0), max_bytes=1)) == [(0, size), (1, 0), (2, 0)]
    shared = fetch_many(hosts, (P0, 0), (P1, 0), (P2, 0), max_bytes=4 * size + 10)
    assert results(hosts, shared) == [(0, 3 * size), (1, size), (2, 0)]
    each = fetch_many(hosts, (P0, 3), (P1, 0), (P2, 0), part_bytes=1)
    assert results(hosts, each) == [(0, 0), (1, size), (2, 0)]


def test_an_error_at_one_partition_answers_at_once() -> None:
    hosts = one_host(P0)
    hosts.assign(1, (1,), id=P1)
    hosts.handle(1, Removed(Removal(hosts.controller_epoch, *P1, "topic7")))
    token = fetch_many(hosts, (P0, 0), (P1, 0))
    reply = hosts.replies[token]
    assert isinstance(reply, FetchReply)
    assert [result.error for result in reply.partitions] == [0, ErrorCode.unknown_topic_or_partition]


def test_a_new_epoch_answers_parked_fetches_that_named_the_old_one() -> None:
    hosts = one_host(P0)
    parked = hosts.fetch(1, 0, epoch=0, max_wait_ms=500)
    hosts.assign(1, (1,), epoch=1)
    answer = hosts.fetched(parked)
    assert answer is not None and answer.error == ErrorCode.fenced_leader_epoch


def test_losing_the_leadership_answers_parked_produces() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    waiting = hosts.produce(1, b"m0")
    hosts.assign(2, (2,), epoch=1)
    result = hosts.produced(waiting)
    assert result is not None and result.error == ErrorCode.not_leader_or_follower
    assert result.base_offset == -1 and result.hint is not None and result.hint.leader_epoch == 1


def test_leading_again_in_a_new_epoch_keeps_parked_produces() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    waiting = hosts.produce(1, b"m0")
    hosts.assign(1, (1, 2), epoch=1, to=(1,))
    assert hosts.produced(waiting) is None
    hosts.assign(1, (1,), to=(1,))
    result = hosts.produced(waiting)
    assert result is not None and (result.error, result.base_offset) == (0, 0)


def test_a_produce_over_several_partitions_is_answered_when_the_last_is_settled() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), id=P0)
    hosts.assign(1, (1,), id=P1)
    hosts.cut = {2}
    token = hosts.token()
    parts = tuple(ProducePartition(id, batch(b"x")) for id in (P0, P1, P2))
    hosts.handle(1, ProduceReceived(token, -1, 10_000, parts))
    assert token not in hosts.replies
    hosts.cut = set()
    hosts.advance(5)
    assert token not in hosts.replies, "the third may be assigned any moment"
    hosts.advance(HostConfig().unknown_partition_wait_ms)
    reply = hosts.replies[token]
    assert isinstance(reply, ProduceReply)
    assert [result.error for result in reply.partitions] == [0, 0, ErrorCode.unknown_topic_or_partition]


def test_a_cancelled_request_is_forgotten() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    produced = hosts.produce(1, b"m0")
    fetched = hosts.fetch(1, 0, max_wait_ms=500)
    hosts.handle(1, Cancelled(produced))
    hosts.handle(1, Cancelled(fetched))
    hosts.handle(1, Cancelled(12345))
    hosts.cut = set()
    hosts.advance(60_000)
    assert produced not in hosts.replies and fetched not in hosts.replies
    watchers = hosts.replica(1).watchers
    assert not watchers.by_high_watermark and not watchers.consumers
    assert hosts.read(1) == [b"m0"], "what was produced stays produced"


def test_waiting_produces_complete_in_order_even_when_a_duplicate_jumps_the_queue() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    follower = (2, hosts.processes[2].incarnation)
    first = hosts.produce(1, b"a", producer=(7, 0, 0))
    second = hosts.produce(1, b"b", producer=(7, 0, 1))
    again = hosts.produce(1, b"a", producer=(7, 0, 0))
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0)
    for token in (first, again):
        result = hosts.produced(token)
        assert result is not None and (result.error, result.base_offset) == (0, 0)
    assert hosts.produced(second) is None
    hosts.fetch(1, 2, replica=follower, epoch=0, last_epoch=0)
    assert hosts.produced(second) is not None


def test_a_follower_answer_leaves_out_partitions_without_news() -> None:
    hosts = Hosts((1, 2))
    for id in (P0, P1):
        hosts.assign(1, (1, 2), to=(1,), id=id)
    follower = (2, hosts.processes[2].incarnation)
    assert results(hosts, fetch_many(hosts, (P0, 0), (P1, 0), replica=follower)) == [(0, 0), (1, 0)]
    parked = fetch_many(hosts, (P0, 0), (P1, 0), replica=follower)
    hosts.produce(1, b"x", id=P1)
    assert results(hosts, parked) == [(1, len(batch(b"x")))]
