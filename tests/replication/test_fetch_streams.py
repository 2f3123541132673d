"""How followers fetch: one stream per leading process, pauses, and answers that nobody asks for any more."""

from __future__ import annotations

import errno
from dataclasses import replace

from kio.schema.errors import ErrorCode

from raylog.replication.context import HostConfig
from raylog.replication.events import (
    FetchAnswered,
    FetchFailed,
    FetchPartition,
    FetchPartitionResult,
    FetchReceived,
    FetchReply,
    Reply,
    SendFetch,
)
from raylog.replication.follower import Step
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, Hosts, batch
from raylog.types import TopicIdPartition

P1 = TopicIdPartition(P0.topic_id, 1)


def sent(hosts: Hosts) -> list[SendFetch]:
    """Takes what broker 2 has sent off the wire: the test plays the leader."""
    fetches = [message.fetch for message in hosts.wires]
    hosts.wires.clear()
    return fetches


def one_follower(*ids: TopicIdPartition) -> Hosts:
    hosts = Hosts((1, 2), HostConfig(replica_fetch_backoff_ms=40))
    for id in ids or (P0,):
        hosts.assign(1, (1, 2), to=(2,), id=id, run=False)
    return hosts


def answer(hosts: Hosts, fetch: SendFetch, *results: FetchPartitionResult) -> None:
    hosts.handle(2, FetchAnswered(fetch.leader_node, fetch.leader_incarnation, fetch.fetch_id, results))


def fail(hosts: Hosts, fetch: SendFetch) -> None:
    hosts.handle(2, FetchFailed(fetch.leader_node, fetch.leader_incarnation, fetch.fetch_id))


def test_the_first_fetch_leaves_with_the_assignment_and_the_next_after_the_append() -> None:
    hosts = one_follower()
    (first,) = sent(hosts)
    assert [(part.fetch_offset, part.current_leader_epoch) for part in first.partitions] == [(0, 0)]
    assert first.max_wait_ms == 500
    answer(hosts, first, FetchPartitionResult(P0, 0, 0, 0, 0, None, batch(b"a", b"b")))
    (second,) = sent(hosts)
    assert second.partitions[0].fetch_offset == hosts.log(2).log_end_offset == 2
    assert second.fetch_id != first.fetch_id


def test_a_stream_that_hears_nothing_asks_ever_more_rarely_until_there_is_news() -> None:
    hosts = one_follower()
    waits = []
    for _ in range(6):
        (fetch,) = sent(hosts)
        waits.append(fetch.max_wait_ms)
        answer(hosts, fetch)
    assert waits == [500, 1_000, 2_000, 4_000, 7_500, 7_500]
    (fetch,) = sent(hosts)
    answer(hosts, fetch, FetchPartitionResult(P0, 0, 0, 0, 0, None, batch(b"news")))
    (fetch,) = sent(hosts)
    assert fetch.max_wait_ms == 500
    answer(hosts, fetch)
    (fetch,) = sent(hosts)
    assert fetch.max_wait_ms == 1_000
    fail(hosts, fetch)
    hosts.cut = {1, 2}
    hosts.advance(5)
    (fetch,) = sent(hosts)
    assert fetch.max_wait_ms == 500, "the leader may be another process"


def test_a_quiet_stream_asks_often_enough_not_to_lag() -> None:
    hosts = Hosts((1, 2), HostConfig(replica_lag_time_max_ms=6_000))
    hosts.assign(1, (1, 2), to=(2,), run=False)
    for _ in range(4):
        (fetch,) = sent(hosts)
        answer(hosts, fetch)
    assert sent(hosts)[0].max_wait_ms == 1_500


def test_partitions_that_come_while_a_fetch_is_in_flight_do_not_wait_for_it() -> None:
    hosts = one_follower(P0, P1)
    first, *rest = sent(hosts)
    assert rest == [] and [part.id for part in first.partitions] == [P0]
    hosts.cut = {1, 2}
    hosts.advance(1)
    (both,) = sent(hosts)
    assert [part.id for part in both.partitions] == [P0, P1]
    answer(hosts, first, FetchPartitionResult(P0, 0, 0, 0, 0, None, batch(b"late")))
    assert hosts.log(2).log_end_offset == 0, "the answer to a fetch that was given up was taken in"
    answer(hosts, both, FetchPartitionResult(P1, 0, 0, 0, 0, None, batch(b"in time")))
    assert hosts.log(2, P1).log_end_offset == 1
    assert len(sent(hosts)) == 1


def test_a_failed_fetch_pauses_longer_each_time_and_an_assignment_ends_the_pause() -> None:
    hosts = one_follower()
    hosts.cut = {1, 2}
    pauses = []
    for _ in range(5):
        (fetch,) = sent(hosts)
        fail(hosts, fetch)
        started_ms = hosts.now_ms
        while not hosts.wires:
            hosts.advance(1)
        pauses.append(hosts.now_ms - started_ms)
    assert pauses == [5, 10, 20, 40, 40]
    (fetch,) = sent(hosts)
    fail(hosts, fetch)
    assert sent(hosts) == []
    hosts.assign(1, (1, 2), epoch=1, to=(2,), run=False)
    (fetch,) = sent(hosts)
    assert fetch.partitions[0].current_leader_epoch == 1


def test_a_partition_that_is_refused_pauses_alone_and_the_others_do_not_make_it_wait() -> None:
    hosts = one_follower(P0, P1)
    hosts.cut = {1, 2}
    hosts.advance(1)
    _, both = sent(hosts)
    unknown = ErrorCode.unknown_leader_epoch.value
    answer(hosts, both, FetchPartitionResult(P0, unknown))
    (rest,) = sent(hosts)
    assert [part.id for part in rest.partitions] == [P1]
    assert rest.max_wait_ms == 5, "the long poll ends when the pause of the other does"
    hosts.advance(5)
    answer(hosts, rest)
    (again,) = sent(hosts)
    assert [part.id for part in again.partitions] == [P0, P1] and again.max_wait_ms == 1_000, "no news since"


def test_damaged_records_are_not_appended_but_fetched_again() -> None:
    hosts = one_follower()
    hosts.cut = {1, 2}
    (fetch,) = sent(hosts)
    damaged = bytearray(batch(b"abc"))
    damaged[-2] ^= 1
    answer(hosts, fetch, FetchPartitionResult(P0, 0, 0, 0, 0, None, bytes(damaged)))
    assert hosts.log(2).log_end_offset == 0 and sent(hosts) == []
    hosts.advance(5)
    (again,) = sent(hosts)
    assert again.partitions[0].fetch_offset == 0


def test_an_answer_to_an_earlier_epoch_is_dropped() -> None:
    hosts = one_follower()
    hosts.cut = {1, 2}
    (old,) = sent(hosts)
    hosts.assign(1, (1, 2), epoch=1, to=(2,), run=False)
    answer(hosts, old, FetchPartitionResult(P0, 0, 0, 0, 0, None, batch(b"old")))
    assert hosts.log(2).log_end_offset == 0
    hosts.advance(1)
    (new,) = sent(hosts)
    assert new.partitions[0].current_leader_epoch == 1


def test_a_follower_that_becomes_leader_stops_fetching() -> None:
    hosts = one_follower()
    (fetch,) = sent(hosts)
    hosts.kill(1)
    hosts.assign(2, (2,), epoch=1)
    answer(hosts, fetch, FetchPartitionResult(P0, 0, 5, 5, 0, None, batch(b"old")))
    assert hosts.log(2).log_end_offset == 0
    hosts.advance(2_000)
    assert sent(hosts) == []


def test_without_a_leader_nobody_is_asked() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(-1, (1,), to=(2,))
    assert sent(hosts) == []
    hosts.kill(1)
    hosts.assign(1, (1,), epoch=1, to=(2,), run=False)  # named, but without an address
    assert sent(hosts) == []
    hosts.start(1)
    hosts.assign(1, (1,), to=(2,), run=False)
    assert len(sent(hosts)) == 1


def test_a_leaders_new_process_gets_a_stream_of_its_own() -> None:
    hosts = one_follower()
    (old,) = sent(hosts)
    hosts.kill(1)
    hosts.start(1)
    hosts.assign(1, (1, 2), epoch=1, to=(2,), run=False)
    fail(hosts, old)
    hosts.cut = {1, 2}
    hosts.advance(1)
    (new,) = sent(hosts)
    assert new.leader_incarnation == hosts.processes[1].incarnation != old.leader_incarnation


def test_the_order_of_partitions_rotates_behind_those_that_had_records() -> None:
    hosts = one_follower(P0, P1)
    hosts.cut = {1, 2}
    hosts.advance(1)
    fetch = sent(hosts)[-1]
    answer(hosts, fetch, FetchPartitionResult(P0, 0, 0, 0, 0, None, batch(b"x")))
    (following,) = sent(hosts)
    assert [part.id for part in following.partitions] == [P1, P0]


def test_a_follower_takes_no_answer_to_a_question_of_another_epoch_or_offset() -> None:
    hosts = one_follower()
    (fetch,) = sent(hosts)
    hosts.assign(1, (1, 2), epoch=1, to=(2,), run=False)
    follower = hosts.replica(2).follower
    assert follower is not None
    old = fetch.partitions[0]
    result = FetchPartitionResult(P0, 0, 0, 0, 0, None, batch(b"old"))
    assert follower.take(old, result, 0, 0) is Step.STALE
    assert follower.take(replace(old, current_leader_epoch=1, fetch_offset=7), result, 0, 0) is Step.STALE
    assert hosts.log(2).log_end_offset == 0
    assert follower.take(replace(old, current_leader_epoch=1), result, 0, 0) is Step.FETCH


def test_a_follower_that_catches_up_in_small_steps_knows_no_high_watermark_beyond_its_end() -> None:
    hosts = Hosts((1, 2), HostConfig(replica_fetch_max_bytes=1))
    hosts.assign(1, (1,), to=(1,))
    for number in range(5):
        hosts.produce(1, b"%d" % number)
    hosts.assign(1, (1,), to=(2,), run=False)
    seen = set()
    while hosts.step():
        seen.add((hosts.log(2).log_end_offset, hosts.log(2).high_watermark))
    assert seen == {(end, end) for end in range(6)}


def test_after_an_answer_that_may_be_lost_the_follower_asks_to_be_told_everything() -> None:
    hosts = one_follower(P0)
    (first,) = sent(hosts)
    assert first.wants_all, "nothing was told yet"
    answer(hosts, first)
    (second,) = sent(hosts)
    assert not second.wants_all
    fail(hosts, second)
    hosts.cut = {1, 2}
    hosts.advance(10)
    (third,) = sent(hosts)
    assert third.wants_all, "the answer may have been lost with the connection"


def test_a_high_watermark_that_was_lost_with_an_answer_is_told_again() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"x")
    hosts.inform()
    assert hosts.log(2).high_watermark == 1
    asked = FetchReceived(
        999, 2, hosts.assigned(2).incarnation, 500, 1, 1 << 20, 0, (FetchPartition(P0, 1, 1 << 20, 0),)
    )
    (given_up,) = hosts.handle(1, asked)
    assert isinstance(given_up, Reply) and given_up.token != asked.token, "it knows all: the fetch is parked"
    (reply,) = hosts.handle(1, replace(asked, token=1_000, wants_all=True))
    assert isinstance(reply, Reply) and isinstance(reply.reply, FetchReply)
    assert [result.high_watermark for result in reply.reply.partitions] == [1]


def test_a_disk_that_fails_while_a_log_is_being_trusted_takes_the_replica_out_of_its_stream() -> None:
    hosts = one_follower(P0, P1)
    hosts.cut = {1, 2}
    hosts.advance(1)
    *_, fetch = sent(hosts)
    assert hosts.log(2).is_suspect, "it was missing"

    def fault(operation: str, path: str) -> None:
        if operation == "write" and "-0/" in path:
            raise OSError(errno.EIO, "injected", path)

    hosts.disks[2].fault = fault
    answer(hosts, fetch, FetchPartitionResult(P0, 0, 0, 0, 0), FetchPartitionResult(P1, 0, 0, 0, 0))
    hosts.host(2).check()
    assert hosts.replica(2).role is Role.OFFLINE and hosts.replica(2, P1).role is Role.FOLLOWER
    (after,) = sent(hosts)
    assert [part.id for part in after.partitions] == [P1]


def test_a_new_partition_ends_the_pause_of_a_stream_that_failed() -> None:
    hosts = one_follower(P0)
    (fetch,) = sent(hosts)
    fail(hosts, fetch)
    assert sent(hosts) == []
    hosts.assign(1, (1, 2), to=(2,), id=P1, run=False)
    (again,) = sent(hosts)
    assert [part.id for part in again.partitions] == [P0, P1]


def test_a_fetch_that_its_follower_has_given_up_takes_no_news_from_the_next_one() -> None:
    """The follower drops the answer to the first: what that one said, the second has to say again."""
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3), to=(1,))
    two, three = ((broker, hosts.processes[broker].incarnation) for broker in (2, 3))
    hosts.produce(1, b"m", run=False)
    hosts.fetch(1, 1, replica=two)
    hosts.fetch(1, 0, replica=three)
    given_up = hosts.fetch(1, 1, replica=two, max_wait_ms=500)
    newest = hosts.fetch(1, 1, replica=two, max_wait_ms=500)
    assert hosts.fetched(given_up) is None and hosts.fetched(newest) is None
    hosts.fetch(1, 1, replica=three)
    hosts.inform()
    told = hosts.fetched(newest)
    assert told is not None and told.high_watermark == 1


def test_an_idle_follower_asks_a_few_times_a_minute() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.advance(30_000)
    before = hosts.host(2)._streams.fetch_ids
    hosts.advance(60_000)
    assert hosts.host(2)._streams.fetch_ids - before <= 8
    assert hosts.asked(1) == [], "it is no laggard for that"
