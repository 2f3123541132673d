"""Sessions of followers' fetches: who names what, who is told what, and what ends a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.replication.context import HostConfig
from raylog.replication.events import (
    Cancelled,
    ConfigsGiven,
    Event,
    FetchPartition,
    FetchReceived,
    FetchReply,
    Reply,
)
from raylog.replication.follower_sessions import IDLE_MS, NUMBER_MAX, next_epoch
from raylog.replication.host import ReplicaHost
from raylog.simulator.replica_hosts import P0, Hosts
from raylog.types import TopicIdPartition

IDS = [TopicIdPartition(P0.topic_id, number) for number in range(20)]
NOT_FOUND = ErrorCode.fetch_session_id_not_found.value


def following(config: HostConfig | None = None, ids: list[TopicIdPartition] = IDS, **options: Any) -> Hosts:
    """Broker 1 leads, broker 2 follows, in a session."""
    hosts = Hosts((1, 2), config)
    for id in ids:
        hosts.assign(1, (1, 2), id=id, **options)
    for _ in range(3):  # lists of all, before a session begins
        hosts.produce(1, b"first", id=ids[0])
        hosts.inform()
    return hosts


@contextmanager
def fetches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FetchReceived]]:
    """Those that leaders receive meanwhile."""
    found: list[FetchReceived] = []
    handle = ReplicaHost.handle

    def noting(host: ReplicaHost, event: Event, *times: int) -> Any:
        if isinstance(event, FetchReceived) and event.replica_id >= 0:
            found.append(event)
        return handle(host, event, *times)

    with monkeypatch.context() as patch:
        patch.setattr(ReplicaHost, "handle", noting)
        yield found


def sessions(hosts: Hosts, id: TopicIdPartition = P0) -> int:
    return len(hosts.replica(1, id).watchers.followers)


def begun() -> tuple[Hosts, FetchReceived]:
    """A session that the test has begun in broker 2's name, and the next fetch in it."""
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), to=(1,), run=False)
    part = FetchPartition(P0, 0, 1 << 20, 0)
    first = FetchReceived(1, 2, hosts.assigned(2).incarnation, 500, 1, 1 << 20, 0, (part,), wants_all=True)
    (told,) = hosts.handle(1, first)
    assert isinstance(told, Reply) and isinstance(told.reply, FetchReply)
    return hosts, replace(first, token=2, wants_all=False, session_id=told.reply.session_id, session_epoch=1)


def test_a_record_is_fetched_by_name_of_its_own_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = following()
    with fetches(monkeypatch) as found:
        for id in IDS:
            hosts.produce(1, b"value", id=id)
        hosts.inform()
    assert all(each.session_epoch for each in found), "in the session"
    assert max(len(each.partitions) for each in found) == 2, "that, and the one before, which is committed now"
    for id in IDS:
        assert hosts.log(2, id).log_end_offset == hosts.log(1, id).log_end_offset == hosts.log(2, id).high_watermark
    assert sessions(hosts) == 1


def test_an_answer_with_many_partitions_is_followed_by_a_fetch_that_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = following()
    hosts.cut = {2}
    for id in IDS[3:9]:
        hosts.produce(1, b"value", id=id, acks=1)
    hosts.cut = set()
    with fetches(monkeypatch) as found:
        hosts.run()
    named = {part.id for each in found for part in each.partitions}
    assert named == set(IDS[3:9])
    assert all(hosts.log(1, id).high_watermark == hosts.log(1, id).log_end_offset for id in IDS)


def test_a_quiet_follower_that_has_left_the_isr_comes_back_without_a_record() -> None:
    hosts = following()
    hosts.assign(1, (1,), id=IDS[7])  # the controller took it for dead; its process lives
    hosts.told[1].clear()
    hosts.produce(1, b"other", id=IDS[0])
    hosts.run()
    (asked,) = hosts.asked(1)
    assert asked.partition == 7 and [member for member, _ in asked.isr] == [1, 2]


def test_a_follower_was_caught_up_at_the_last_fetch_of_its_session() -> None:
    lag_ms = 10_000
    hosts = following(HostConfig(replica_lag_time_max_ms=lag_ms))
    hosts.advance(6 * lag_ms)  # in which no fetch names the partition
    hosts.cut = {1, 2}
    hosts.produce(1, b"value", id=IDS[5], acks=1)
    hosts.told[1].clear()
    hosts.advance(lag_ms // 2)
    assert not hosts.asked(1), "it has had half of its time"
    hosts.advance(lag_ms)
    (asked,) = hosts.asked(1)
    assert asked.partition == 5 and [member for member, _ in asked.isr] == [1]


def test_a_log_start_that_nobody_announces_is_found_by_the_look_at_all() -> None:
    hosts = following()
    for _ in range(4):
        hosts.produce(1, b"value", id=IDS[9])
    hosts.inform()
    hosts.log(1, IDS[9]).advance_log_start(3)  # retention
    for _ in range(7):  # more seconds than pass between two looks
        hosts.produce(1, b"other", id=IDS[0])
        hosts.advance(1_000)
    assert hosts.log(2, IDS[9]).log_start_offset == 3


def test_what_does_not_fit_into_an_answer_is_sent_in_the_next_ones() -> None:
    hosts = following(HostConfig(replica_fetch_response_max_bytes=2_000))
    hosts.cut = {2}
    for id in IDS:
        hosts.produce(1, bytes(1_500), id=id, acks=1)
    hosts.cut = set()
    hosts.run()
    assert [hosts.log(2, id).log_end_offset for id in IDS] == [hosts.log(1, id).log_end_offset for id in IDS]


def test_a_fetch_of_no_session_is_refused_and_the_follower_names_all_again() -> None:
    hosts = following()
    incarnation = hosts.assigned(2).incarnation
    part = FetchPartition(P0, hosts.log(2).log_end_offset, 1 << 20, 0)
    asked = FetchReceived(900, 2, incarnation, 500, 1, 1 << 20, 0, (part,), session_id=77, session_epoch=1)
    assert hosts.handle(1, asked) == [Reply(900, FetchReply((), error=NOT_FOUND))]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_only_the_next_fetch_belongs_to_a_session_and_only_when_the_one_before_is_answered(ahead: int) -> None:
    hosts, following_one = begun()
    later = replace(following_one, session_epoch=ahead)
    effects = hosts.handle(1, later)
    if ahead == 1:
        assert effects == [], "it waits"
        (refused,) = hosts.handle(1, replace(later, token=3, session_epoch=2))
        assert refused == Reply(3, FetchReply((), error=NOT_FOUND)), "the one before is not answered"
    elif ahead == 0:
        assert effects == [] and sessions(hosts) == 1, "outside of the session, which has ended, it waits as well"
    else:
        assert effects == [Reply(2, FetchReply((), error=NOT_FOUND))]


def test_a_fetch_of_another_process_or_another_partition_belongs_to_no_session() -> None:
    hosts, later = begun()
    for foreign in (
        replace(later, token=11, replica_id=3),
        replace(later, token=12, replica_incarnation=later.replica_incarnation + 1),
        replace(later, token=13, partitions=(replace(later.partitions[0], id=IDS[1]),)),
    ):
        assert hosts.handle(1, foreign) == [Reply(foreign.token, FetchReply((), error=NOT_FOUND))]
    assert hosts.handle(1, later) == [], "it waits"


def test_a_session_ends_with_the_connection_on_which_its_fetch_waits() -> None:
    hosts = following()
    (session,) = hosts.replica(1).watchers.followers
    hosts.handle(1, Cancelled(session.token))
    assert not sessions(hosts)


def test_the_session_of_a_follower_that_has_gone_ends_with_the_beginning_of_another() -> None:
    hosts = following()
    (gone,) = hosts.replica(1).watchers.followers
    hosts.cut = {2}
    hosts.kill(2)
    hosts.advance(IDLE_MS + 10_000)  # its last fetch was answered, and nobody asks again
    hosts.cut = set()
    hosts.start(2)
    for id in IDS:
        hosts.assign(1, (1,), id=id)
    hosts.produce(1, b"value", id=IDS[4])
    hosts.advance(1_000)
    assert gone not in hosts.replica(1).watchers.followers and sessions(hosts) == 1
    assert hosts.log(2, IDS[4]).log_end_offset == hosts.log(1, IDS[4]).log_end_offset


def test_new_partitions_and_those_that_go_renew_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = following(ids=IDS[:10])
    for id in IDS[10:]:
        hosts.assign(1, (1, 2), id=id)
    for _ in range(3):
        hosts.produce(1, b"value", id=IDS[15])
        hosts.inform()
    with fetches(monkeypatch) as found:
        hosts.produce(1, b"value", id=IDS[16])
        hosts.produce(1, b"value", id=IDS[0])
    assert found and all(each.session_epoch and len(each.partitions) <= 2 for each in found)
    assert sessions(hosts) == sessions(hosts, IDS[16]) == 1, "the one before has ended"


def test_a_partition_that_waits_for_its_flush_is_named_by_no_fetch_and_keeps_no_other_back() -> None:
    hosts = following()
    hosts.assign(1, (1, 2), id=IDS[2], config={"flush.messages": "1"})
    hosts.holds_flushes = True
    hosts.produce(1, b"value", id=IDS[2])
    hosts.produce(1, b"value", id=IDS[3])
    hosts.advance(50)
    assert hosts.log(1, IDS[3]).high_watermark == hosts.log(1, IDS[3]).log_end_offset
    assert hosts.log(1, IDS[2]).high_watermark < hosts.log(1, IDS[2]).log_end_offset


def test_another_size_of_fetches_holds_from_the_next_one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = following()
    hosts.handle(2, ConfigsGiven(1, (("replica.fetch.max.bytes", "12345"),)))
    with fetches(monkeypatch) as found:
        hosts.produce(1, b"value")
        hosts.advance(1_000)
    assert all(part.max_bytes == 12_345 for each in found if not each.session_epoch for part in each.partitions)
    assert any(not each.session_epoch for each in found)


def test_the_number_of_a_fetch_comes_round() -> None:
    assert next_epoch(0) == 1 and next_epoch(NUMBER_MAX - 1) == NUMBER_MAX and next_epoch(NUMBER_MAX) == 1
