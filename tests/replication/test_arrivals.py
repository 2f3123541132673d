"""A leader whose own copy comes from another disk tells nobody of a record that the copy lacks when it leads on."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import AlterPartition, AlterPartitionAnswer, AssignedReplica, Removal
from raylog.replication.arrival import NEAR_MS, REST_MS
from raylog.replication.context import HostConfig
from raylog.replication.events import AlterPartitionAnswered, Assigned, ControlSessionChanged, Removed
from raylog.simulator.replica_hosts import P0, Hosts, contents
from raylog.types import Endpoint, future_id, node_id

OWN = future_id(1)
OTHERS = future_id(2)
COPY = 77  # the incarnation of the process that copies


def with_copy(hosts: Hosts, name: int = OWN, incarnation: int = COPY) -> None:
    """The test plays the copy: of the leader's replica, or of another broker's."""
    known = hosts.assignments[P0]
    copy = AssignedReplica(name, node_id(name & 0xF, 3), uuid.UUID(int=9), incarnation, Endpoint("host", 9099))
    own = tuple(each for each in known.replicas if each.broker_id < OWN)
    hosts.assignments[P0] = after = replace(known, replicas=(*own, copy), partition_epoch=known.partition_epoch + 1)
    hosts.handle(1, Assigned(after))


@pytest.fixture
def hosts() -> Hosts:
    """Broker 1 leads alone and has two records; a copy of its replica begins on another disk."""
    hosts = Hosts((1,))
    hosts.assign(1, [1])
    hosts.produce(1, b"a", b"b")
    with_copy(hosts)
    return hosts


def fetch(hosts: Hosts, offset: int, broker: int = 1, incarnation: int = COPY) -> None:
    last_epoch = 0 if offset else -1
    hosts.fetch(1, offset, replica=(broker, incarnation), epoch=0, last_epoch=last_epoch)


def arrive(hosts: Hosts) -> AlterPartition:
    """The copy has it all and is asked in."""
    fetch(hosts, hosts.log(1).log_end_offset)
    return hosts.asked(1)[-1]


def answer(hosts: Hosts, asked: AlterPartition, error: ErrorCode, partition_epoch: int | None = None) -> None:
    holds = asked.partition_epoch if partition_epoch is None else partition_epoch
    frame = AlterPartitionAnswer(hosts.controller_epoch, asked.request_id, *P0, holds, error.value)
    hosts.handle(1, AlterPartitionAnswered(frame))


def values(hosts: Hosts) -> list[bytes]:
    return [value for _, _, value in contents(hosts.log(1))]


def error_of(hosts: Hosts, token: int) -> int | None:
    result = hosts.produced(token)
    return result.error if result is not None else None


@pytest.mark.parametrize("acks", [0, 1])
def test_records_that_would_be_acknowledged_without_the_copy_wait_from_when_it_is_asked_in(hosts, acks):
    hosts.produce(1, b"before", acks=acks)
    arrive(hosts)
    token = hosts.produce(1, b"amid", acks=acks)
    assert values(hosts) == [b"a", b"b", b"before"] and token not in hosts.replies
    hosts.handle(1, Removed(Removal(hosts.controller_epoch, *P0)))
    assert error_of(hosts, token) == (ErrorCode.unknown_topic_or_partition.value if acks else None)


def test_records_with_acks_all_go_on_and_are_acknowledged_once_the_copy_has_them(hosts):
    arrive(hosts)
    token = hosts.produce(1, b"c")
    assert values(hosts) == [b"a", b"b", b"c"] and token not in hosts.replies
    fetch(hosts, 3)
    assert error_of(hosts, token) == 0


@pytest.mark.parametrize("acks", [1, -1])
def test_a_copy_of_a_partition_that_is_written_without_pause_arrives(hosts, acks):
    """It never reaches the log's end: there is always a record more."""
    has = 0
    for _ in range(4):
        fetch(hosts, has)
        has = hosts.log(1).log_end_offset
        hosts.produce(1, b"more", acks=acks)
    assert [member for member, _ in hosts.asked(1)[-1].isr] == [1, OWN]


def test_a_copy_that_is_far_behind_holds_nothing(hosts):
    for offset in (0, 1):
        fetch(hosts, offset)
        assert error_of(hosts, hosts.produce(1, b"more", acks=1)) == 0
    assert not hosts.asked(1)


def test_a_copy_that_is_near_is_counted_before_it_is_asked_in(hosts):
    """Else the high watermark would run away from it, where the leader is alone in the ISR."""
    fetch(hosts, 0)
    hosts.produce(1, b"c")
    fetch(hosts, 2)
    assert not hosts.asked(1), "it has not reached where the log ends"
    token = hosts.produce(1, b"d")
    assert hosts.log(1).high_watermark == 3 and token not in hosts.replies
    fetch(hosts, 4)
    assert hosts.asked(1) and error_of(hosts, token) == 0


def test_what_was_held_is_appended_in_order_if_the_controller_refuses_the_copy(hosts):
    asked = arrive(hosts)
    tokens = [hosts.produce(1, value, acks=1) for value in (b"c", b"d")]
    answer(hosts, asked, ErrorCode.ineligible_replica)
    assert [error_of(hosts, token) for token in tokens] == [0, 0]
    assert values(hosts) == [b"a", b"b", b"c", b"d"] and hosts.log(1).high_watermark == 4


def test_what_was_held_is_appended_if_the_move_is_cancelled(hosts):
    arrive(hosts)
    token = hosts.produce(1, b"c", acks=1)
    hosts.assign(1, [1], replicas=[1])
    assert error_of(hosts, token) == 0


def test_an_answer_that_the_partition_has_changed_frees_nothing_before_the_change_is_known(hosts):
    """The copy may lead by now."""
    asked = arrive(hosts)
    token = hosts.produce(1, b"c", acks=1)
    answer(hosts, asked, ErrorCode.none, asked.partition_epoch + 1)
    assert token not in hosts.replies and len(values(hosts)) == 2


def test_nothing_is_appended_while_it_is_not_known_what_was_decided(hosts):
    arrive(hosts)
    token = hosts.produce(1, b"c", acks=1, timeout_ms=60_000)
    hosts.handle(1, ControlSessionChanged(False))
    hosts.advance(10 * NEAR_MS)
    assert token not in hosts.replies and len(values(hosts)) == 2
    fetch(hosts, 2)
    hosts.handle(1, ControlSessionChanged(True))
    again = hosts.asked(1)[-1]
    assert [member for member, _ in again.isr] == [1, OWN] and token not in hosts.replies
    answer(hosts, again, ErrorCode.ineligible_replica)
    assert error_of(hosts, token) == 0


def test_a_copy_that_stops_short_is_not_waited_for(hosts):
    fetch(hosts, 0)
    hosts.produce(1, b"c", acks=1)
    fetch(hosts, 2)
    alone, with_others = hosts.produce(1, b"d", acks=1), hosts.produce(1, b"e")
    hosts.advance(NEAR_MS - 1)
    assert not {alone, with_others} & hosts.replies.keys()
    hosts.advance(1)
    assert (error_of(hosts, alone), error_of(hosts, with_others)) == (0, 0)
    assert not hosts.asked(1)


def test_an_arrival_that_has_failed_is_not_tried_again_at_once(hosts):
    fetch(hosts, 0)
    hosts.produce(1, b"c", acks=1)
    fetch(hosts, 2)
    hosts.advance(NEAR_MS)
    fetch(hosts, 3)
    assert not hosts.asked(1) and error_of(hosts, hosts.produce(1, b"d", acks=1)) == 0
    hosts.advance(REST_MS)
    fetch(hosts, 4)
    assert hosts.asked(1)


def test_a_copy_that_starts_anew_is_not_asked_in_for_what_it_had(hosts):
    fetch(hosts, 0)
    hosts.produce(1, b"c", acks=1)
    fetch(hosts, 2)
    token = hosts.produce(1, b"d", acks=1)
    with_copy(hosts, incarnation=COPY + 1)
    assert error_of(hosts, token) == 0, "it is near no longer"
    fetch(hosts, 3)
    fetch(hosts, 0, incarnation=COPY + 1)
    assert not hosts.asked(1)
    fetch(hosts, 4, incarnation=COPY + 1)
    assert hosts.asked(1)[-1].isr[1] == (OWN, COPY + 1)


def test_a_copy_of_another_brokers_replica_holds_nothing():
    hosts = Hosts((1, 2))
    hosts.assign(1, [1], to=(1,))
    hosts.produce(1, b"a")
    with_copy(hosts, OTHERS)
    fetch(hosts, 1, broker=2)
    assert [member for member, _ in hosts.asked(1)[-1].isr] == [1, OTHERS]
    assert error_of(hosts, hosts.produce(1, b"b", acks=1)) == 0


def test_a_request_that_may_not_wait_is_refused_and_not_appended(hosts):
    arrive(hosts)
    assert error_of(hosts, hosts.produce(1, b"c", acks=1, timeout_ms=0)) == ErrorCode.request_timed_out.value
    assert len(values(hosts)) == 2


def test_what_waits_for_too_long_is_refused_and_not_appended(hosts):
    asked = arrive(hosts)
    token = hosts.produce(1, b"c", acks=1, timeout_ms=300)
    hosts.advance(301)
    assert error_of(hosts, token) == ErrorCode.request_timed_out.value
    answer(hosts, asked, ErrorCode.ineligible_replica)
    assert len(values(hosts)) == 2


def test_what_is_held_has_a_bound():
    hosts = Hosts((1,), HostConfig(awaited_requests_max=1))
    hosts.assign(1, [1])
    with_copy(hosts)
    arrive(hosts)
    held, refused = hosts.produce(1, b"a", acks=1), hosts.produce(1, b"b", acks=1)
    assert (error_of(hosts, held), error_of(hosts, refused)) == (None, ErrorCode.request_timed_out.value)


def test_readers_and_searches_go_on_while_a_copy_arrives(hosts):
    arrive(hosts)
    assert hosts.read(1) == [b"a", b"b"] and hosts.list_offset(1, -1).offset == 2
