"""Requests for a partition that this process may lead any moment wait for that, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import Assignment, Release, Removal
from raylog.replication.awaited import stand_in_id
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    Assigned,
    Cancelled,
    DeleteRecordsPartition,
    DeleteRecordsReceived,
    DeleteRecordsReply,
    EpochEndPartition,
    FetchPartition,
    FetchReceived,
    FetchReply,
    ListOffsetsPartition,
    ListOffsetsReceived,
    ListOffsetsReply,
    LogOpened,
    OffsetForLeaderEpochReceived,
    OffsetForLeaderEpochReply,
    ProducePartition,
    ProduceReceived,
    ProduceReply,
    Released,
    Removed,
)
from raylog.simulator.replica_hosts import P0, TOPIC_ID, Hosts, batch
from raylog.types import TopicIdPartition

P1 = TopicIdPartition(TOPIC_ID, 1)
NOBODY = -1
NOT_LEADER = ErrorCode.not_leader_or_follower
UNKNOWN = ErrorCode.unknown_topic_or_partition


def one_host(**config: int) -> Hosts:
    return Hosts((1,), HostConfig(**config))


def assign_new(hosts: Hosts, *brokers: int, id: TopicIdPartition = P0) -> Assignment:
    """A partition that nobody has led yet."""
    return hosts.assign(NOBODY, brokers or (1,), epoch=-1, id=id)


def list_offsets(hosts: Hosts, id: TopicIdPartition = P0) -> int:
    token = hosts.token()
    hosts.handle(1, ListOffsetsReceived(token, -1, 0, (ListOffsetsPartition(id, -1),)))
    return token


def epoch_ends(hosts: Hosts) -> int:
    token = hosts.token()
    hosts.handle(1, OffsetForLeaderEpochReceived(token, -1, (EpochEndPartition(P0, 0),)))
    return token


def delete_records(hosts: Hosts, timeout_ms: int = 1_000) -> int:
    token = hosts.token()
    hosts.handle(1, DeleteRecordsReceived(token, timeout_ms, (DeleteRecordsPartition(P0, -1),)))
    return token


def error_of(hosts: Hosts, token: int) -> int | None:
    reply = hosts.replies.get(token)
    return reply.partitions[0].error if reply is not None else None


def values(hosts: Hosts, id: TopicIdPartition = P0) -> list[bytes]:
    return hosts.read(1, id=id)


# ---------------------------------------------------------------------- until it serves


def test_records_for_a_partition_without_a_leader_are_appended_when_there_is_one() -> None:
    hosts = one_host()
    assign_new(hosts)
    tokens = [hosts.produce(1, name) for name in (b"a", b"b", b"c")]
    assert not hosts.replies
    hosts.assign(1, (1,), epoch=0)
    found = [hosts.produced(token) for token in tokens]
    assert [(each.error, each.base_offset) for each in found if each is not None] == [(0, 0), (0, 1), (0, 2)]
    assert values(hosts) == [b"a", b"b", b"c"]


def test_all_that_only_a_leader_answers_waits_for_it() -> None:
    hosts = one_host()
    assign_new(hosts)
    tokens = [list_offsets(hosts), epoch_ends(hosts), delete_records(hosts)]
    assert not hosts.replies
    hosts.assign(1, (1,), epoch=0)
    assert [error_of(hosts, token) for token in tokens] == [0, 0, 0]
    kinds = [type(hosts.replies[token]) for token in tokens]
    assert kinds == [ListOffsetsReply, OffsetForLeaderEpochReply, DeleteRecordsReply]


def test_requests_wait_while_the_log_is_being_opened() -> None:
    hosts = one_host()
    hosts.holds_openings = True
    assign_new(hosts)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts)]
    hosts.finish_openings()
    assert not hosts.replies, "it is open, and nobody has been elected"
    hosts.assign(1, (1,), epoch=0)
    assert [error_of(hosts, token) for token in tokens] == [0, 0]


def test_requests_wait_for_a_log_that_is_opened_again_after_a_restart() -> None:
    hosts = one_host()
    hosts.assign(1, (1,), epoch=0)
    hosts.produce(1, b"before")
    hosts.kill(1)
    hosts.start(1)
    hosts.holds_openings = True
    hosts.assign(NOBODY, (1,), epoch=1)
    token = hosts.produce(1, b"after")
    hosts.finish_openings()
    assert token not in hosts.replies
    hosts.assign(1, (1,), epoch=2)
    assert error_of(hosts, token) == 0 and values(hosts) == [b"before", b"after"]


def test_requests_wait_for_an_assignment_that_is_on_its_way() -> None:
    hosts = one_host()
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts), hosts.fetch(1, 0, max_wait_ms=500)]
    assert not hosts.replies
    assign_new(hosts)
    assert not hosts.replies
    hosts.assign(1, (1,), epoch=0)
    assert [error_of(hosts, token) for token in tokens] == [0, 0, 0]
    assert values(hosts) == [b"a"]


def test_a_topic_that_is_known_by_name_alone_is_known_when_it_is_assigned() -> None:
    hosts = one_host()
    named = TopicIdPartition(stand_in_id("topic7"), 0)  # as hosts call it
    tokens = [hosts.produce(1, b"a", id=named), list_offsets(hosts, named)]
    late = hosts.produce(1, b"b", id=P0)
    hosts.assign(1, (1,), epoch=0)
    assert [error_of(hosts, token) for token in (*tokens, late)] == [0, 0, 0]
    assert sorted(values(hosts)) == [b"a", b"b"]


def test_records_for_a_partition_that_serves_are_not_held_up_by_one_that_does_not() -> None:
    hosts = one_host()
    hosts.assign(1, (1,), epoch=0)
    assign_new(hosts, id=P1)
    token = hosts.token()
    parts = tuple(ProducePartition(id, batch(value)) for id, value in ((P1, b"late"), (P0, b"at once")))
    hosts.handle(1, ProduceReceived(token, -1, 1_000, parts))
    assert values(hosts) == [b"at once"] and token not in hosts.replies
    hosts.assign(1, (1,), epoch=0, id=P1)
    reply = hosts.replies[token]
    assert isinstance(reply, ProduceReply)
    assert [(each.id, each.error) for each in reply.partitions] == [(P1, 0), (P0, 0)]
    assert values(hosts, P1) == [b"late"]


def test_a_late_append_waits_for_its_followers() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(NOBODY, (1, 2), epoch=-1)
    hosts.cut = {2}
    token = hosts.produce(1, b"a")
    hosts.assign(1, (1, 2), epoch=0, min_isr=2)
    assert token not in hosts.replies and hosts.log(1).log_end_offset == 1
    hosts.cut = set()
    hosts.run()
    assert error_of(hosts, token) == 0


def test_large_late_appends_are_checked_by_a_thread_in_their_turn() -> None:
    hosts = one_host(walked_bytes_max=100)
    hosts.holds_checks = True
    assign_new(hosts)
    tokens = [hosts.produce(1, b"a" * 500), hosts.produce(1, b"b")]
    hosts.assign(1, (1,), epoch=0)
    behind = hosts.produce(1, b"c")
    assert len(hosts.checks) == 1 and not hosts.replies
    hosts.finish_check()
    assert [error_of(hosts, token) for token in (*tokens, behind)] == [0, 0, 0]
    assert [value[:1] for value in values(hosts)] == [b"a", b"b", b"c"]


def test_records_without_acknowledgement_are_appended_and_not_answered() -> None:
    hosts = one_host()
    assign_new(hosts)
    token = hosts.produce(1, b"a", acks=0)
    assert hosts.host(1).holds(token)
    hosts.assign(1, (1,), epoch=0)
    assert not hosts.host(1).holds(token) and token not in hosts.replies
    assert values(hosts) == [b"a"]


# ---------------------------------------------------------------------- fetches


def test_a_consumer_finds_a_new_partition_empty_and_wakes_when_it_has_records() -> None:
    hosts = one_host()
    hosts.holds_openings = True
    assign_new(hosts)
    at_once = hosts.fetched(hosts.fetch(1, 0))
    assert at_once is not None and (at_once.error, len(at_once.records)) == (0, 0)
    parked = hosts.fetch(1, 0, max_wait_ms=500)
    hosts.finish_openings()
    hosts.assign(1, (1,), epoch=0)
    assert parked not in hosts.replies
    hosts.produce(1, b"a")
    result = hosts.fetched(parked)
    assert result is not None and len(result.records)


def test_records_of_other_partitions_do_not_wait_for_a_new_one() -> None:
    hosts = one_host()
    hosts.assign(1, (1,), epoch=0)
    hosts.produce(1, b"a")
    hosts.holds_openings = True
    assign_new(hosts, id=P1)
    token = hosts.token()
    parts = tuple(FetchPartition(id, 0, 1 << 20) for id in (P1, P0))
    hosts.handle(1, FetchReceived(token, -1, -1, 500, 1, 1 << 20, 0, parts))
    reply = hosts.replies[token]
    assert isinstance(reply, FetchReply)
    assert [(each.id, each.error, bool(each.records)) for each in reply.partitions] == [(P1, 0, False), (P0, 0, True)]


def test_a_consumer_of_a_replica_that_becomes_a_follower_is_sent_to_the_leader() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(NOBODY, (1, 2), epoch=-1)
    parked = hosts.fetch(1, 0, max_wait_ms=500)
    hosts.assign(2, (1, 2), epoch=0, to=(1,))
    result = hosts.fetched(parked)
    assert result is not None and result.error == NOT_LEADER
    assert result.hint is not None and result.hint.leader_epoch == 0


def test_a_request_waits_for_all_its_partitions() -> None:
    hosts = one_host()
    for id in (P0, P1):
        assign_new(hosts, id=id)
    token = hosts.token()
    parts = (ListOffsetsPartition(P0, -1), ListOffsetsPartition(P1, -1))
    hosts.handle(1, ListOffsetsReceived(token, -1, 0, parts))
    hosts.assign(1, (1,), epoch=0, id=P0)
    assert not hosts.replies, "the other one does not serve yet"
    hosts.assign(1, (1,), epoch=0, id=P1)
    assert [part.error for part in hosts.replies[token].partitions] == [0, 0]


def test_who_was_answered_is_not_answered_again_when_the_time_is_up() -> None:
    hosts = one_host(awaited_leader_wait_ms=700)
    assign_new(hosts)
    token = list_offsets(hosts)
    hosts.assign(1, (1,), epoch=0)
    assert error_of(hosts, token) == 0
    hosts.replies.clear()
    hosts.advance(1_000)
    assert not hosts.replies


def test_a_partition_that_is_assigned_again_is_awaited_again() -> None:
    hosts = one_host()
    assign_new(hosts)
    hosts.handle(1, Released(Release(hosts.controller_epoch, *P0)))
    assert error_of(hosts, list_offsets(hosts)) in (UNKNOWN, NOT_LEADER)
    assign_new(hosts)
    token = list_offsets(hosts)
    assert token not in hosts.replies
    hosts.assign(1, (1,), epoch=0)
    assert error_of(hosts, token) == 0


def test_what_has_waited_for_a_leader_waits_only_as_long_as_is_left() -> None:
    hosts = one_host()
    token = hosts.fetch(1, 0, max_wait_ms=500)
    hosts.advance(300)
    assign_new(hosts)
    hosts.assign(1, (1,), epoch=0)
    hosts.advance(190)
    assert token not in hosts.replies, "it serves, and has no records"
    hosts.advance(11)
    result = hosts.fetched(token)
    assert result is not None and result.error == 0


def test_a_deletion_of_records_waits_only_as_long_as_is_left() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), epoch=0)
    hosts.produce(1, b"a")
    hosts.run()
    hosts.advance(1_000)
    hosts.assign(NOBODY, (1, 2), epoch=1)
    token = delete_records(hosts, timeout_ms=1_000)
    hosts.advance(600)
    hosts.assign(1, (1, 2), epoch=2, to=(1,))  # the other one does not hear of it
    hosts.advance(399)
    assert token not in hosts.replies, "the other replica has not deleted it"
    hosts.advance(2)
    assert error_of(hosts, token) == ErrorCode.request_timed_out


# ---------------------------------------------------------------------- it never serves


def test_a_replica_that_turns_out_to_be_a_follower_says_so_at_once() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(NOBODY, (1, 2), epoch=-1)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts)]
    hosts.assign(2, (1, 2), epoch=0, to=(1,))
    assert [error_of(hosts, token) for token in tokens] == [NOT_LEADER, NOT_LEADER]
    result = hosts.produced(tokens[0])
    assert result is not None and result.hint is not None and result.hint.leader_node == 2 << 16 | 2


def test_a_replica_that_opens_as_a_follower_refuses_at_once() -> None:
    hosts = Hosts((1, 2))
    hosts.holds_openings = True
    hosts.assign(2, (1, 2), epoch=3)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts), hosts.fetch(1, 0, max_wait_ms=500)]
    assert [error_of(hosts, token) for token in tokens] == [NOT_LEADER] * 3


def test_a_replica_that_is_out_of_sync_waits_for_no_election() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(NOBODY, (2,), epoch=3)
    assert error_of(hosts, hosts.produce(1, b"a")) == NOT_LEADER


def test_a_log_that_cannot_be_opened_ends_the_wait() -> None:
    hosts = one_host()
    hosts.holds_openings = True
    assign_new(hosts)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts)]
    hosts.handle(1, LogOpened(P0, None, "no such disk"))
    assert [error_of(hosts, token) for token in tokens] == [ErrorCode.kafka_storage_error] * 2


@pytest.mark.parametrize("is_open", (False, True))
def test_a_deleted_topic_ends_the_wait_and_nobody_waits_for_it_again(is_open: bool) -> None:
    hosts = one_host()
    hosts.holds_openings = not is_open
    assign_new(hosts)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts)]
    hosts.handle(1, Removed(Removal(hosts.controller_epoch, *P0, "topic7")))
    assert all(error_of(hosts, token) in (UNKNOWN, NOT_LEADER) for token in tokens)
    again = hosts.produce(1, b"b")
    assert error_of(hosts, again) in (UNKNOWN, NOT_LEADER)
    hosts.finish_openings()
    assert error_of(hosts, hosts.produce(1, b"b")) == UNKNOWN


def test_a_replica_that_is_let_go_while_it_opens_ends_the_wait_at_once() -> None:
    hosts = one_host()
    hosts.holds_openings = True
    assign_new(hosts)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts)]
    hosts.handle(1, Released(Release(hosts.controller_epoch, *P0)))
    assert all(error_of(hosts, token) in (UNKNOWN, NOT_LEADER) for token in tokens)


def test_what_a_client_that_went_away_has_sent_takes_no_room() -> None:
    hosts = one_host(awaited_requests_max=1)
    assign_new(hosts)
    hosts.handle(1, Cancelled(hosts.produce(1, b"a")))
    token = hosts.produce(1, b"b")
    assert token not in hosts.replies, "it waits where the other one did"
    hosts.assign(1, (1,), epoch=0)
    assert values(hosts) == [b"b"]


def test_a_partition_that_never_comes_is_unknown_after_a_short_while() -> None:
    hosts = one_host(unknown_partition_wait_ms=200)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts), hosts.fetch(1, 0, max_wait_ms=500)]
    hosts.advance(199)
    assert not hosts.replies
    hosts.advance(2)
    assert [error_of(hosts, token) for token in tokens] == [UNKNOWN] * 3


def test_a_partition_that_comes_is_waited_for_as_long_as_the_request_allows() -> None:
    hosts = one_host(unknown_partition_wait_ms=200)
    token = hosts.produce(1, b"a", timeout_ms=1_000)
    assign_new(hosts)
    hosts.advance(900)
    assert token not in hosts.replies
    hosts.assign(1, (1,), epoch=0)
    assert error_of(hosts, token) == 0


def test_no_wait_is_longer_than_the_request_allows() -> None:
    hosts = one_host(awaited_leader_wait_ms=700)
    assign_new(hosts)
    produced, deleted, listed = hosts.produce(1, b"a", timeout_ms=500), delete_records(hosts, 600), list_offsets(hosts)
    waits = {produced: 500, deleted: 600, listed: 700}
    for token, wait_ms in waits.items():
        hosts.advance(wait_ms - 1 - hosts.now_ms)
        assert token not in hosts.replies
        hosts.advance(1)
        assert error_of(hosts, token) == NOT_LEADER
    hosts.assign(1, (1,), epoch=0)
    assert hosts.log(1).log_end_offset == 0, "what was refused is not appended"


def test_a_request_that_grants_no_time_is_refused_at_once() -> None:
    hosts = one_host()
    assign_new(hosts)
    assert error_of(hosts, hosts.produce(1, b"a", timeout_ms=0)) == NOT_LEADER
    assert error_of(hosts, delete_records(hosts, 0)) == NOT_LEADER


def test_records_of_a_client_that_went_away_are_not_appended() -> None:
    hosts = one_host()
    assign_new(hosts)
    tokens = [hosts.produce(1, b"a"), list_offsets(hosts), hosts.fetch(1, 0, max_wait_ms=500)]
    for token in tokens:
        hosts.handle(1, Cancelled(token))
    hosts.assign(1, (1,), epoch=0)
    assert not hosts.replies and hosts.log(1).log_end_offset == 0


def test_a_client_that_goes_away_while_its_late_records_are_checked_leaves_none() -> None:
    hosts = one_host(walked_bytes_max=100)
    hosts.holds_checks = True
    assign_new(hosts)
    token = hosts.produce(1, b"a" * 500)
    hosts.assign(1, (1,), epoch=0)
    hosts.handle(1, Cancelled(token))
    hosts.finish_check()
    assert hosts.log(1).log_end_offset == 0


def test_more_than_the_bounds_is_not_held() -> None:
    hosts = one_host(awaited_bytes_max=300)
    assign_new(hosts)
    held = hosts.produce(1, b"a" * 100)
    assert error_of(hosts, hosts.produce(1, b"b" * 200)) == NOT_LEADER
    few = one_host(awaited_requests_max=1)
    assign_new(few)
    list_offsets(few)
    assert error_of(few, list_offsets(few)) == NOT_LEADER
    hosts.assign(1, (1,), epoch=0)
    assert error_of(hosts, held) == 0


def test_a_leadership_of_a_former_process_of_this_broker_is_about_to_end() -> None:
    hosts = one_host()
    former = hosts.assign(1, (1,), epoch=0)
    hosts.kill(1)
    hosts.start(1)
    replicas = tuple(replace(each, incarnation=101) for each in former.replicas)
    hosts.handle(1, Assigned(replace(former, replicas=replicas)))
    token = hosts.produce(1, b"a")
    assert token not in hosts.replies
    hosts.assign(1, (1,), epoch=1)
    assert error_of(hosts, token) == 0
