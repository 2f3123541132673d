"""A copy on its way from another disk of a broker, as the leader and its own process know it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylog.control.session import Assignment
from raylog.replication.events import Assigned
from raylog.simulator.replica_hosts import Hosts
from raylog.types import future_id

COPY = future_id(3)


@pytest.fixture
def moving():
    """Broker 1 leads and has records; the process of broker 3 has the future copy of its replica."""
    hosts = Hosts((1, 3))
    hosts.assign(1, [1], replicas=[1])
    hosts.produce(1, b"a", b"b")
    tell(hosts)
    return hosts


def tell(hosts, isr=(1,), *, arrived=False) -> Assignment:
    (known,) = hosts.assignments.values()
    copy = replace(hosts.assigned(3), broker_id=3 if arrived else COPY)
    after = replace(
        known, replicas=(hosts.assigned(1), copy), isr=tuple(isr), partition_epoch=known.partition_epoch + 1
    )
    hosts.assignments[after.id] = after
    for broker in (1, 3):
        hosts.handle(broker, Assigned(after))
    hosts.run()
    return after


def test_a_copy_that_has_caught_up_is_asked_in_under_its_own_name_and_waited_for(moving):
    assert moving.replica(3).me == COPY and moving.log(3).log_end_offset == moving.log(1).log_end_offset
    asked = moving.asked(1)
    assert [member for member, _ in asked[-1].isr] == [1, COPY]
    assert asked[-1].isr[1][1] == moving.processes[3].incarnation
    before = moving.log(1).high_watermark
    moving.cut.add(3)
    moving.produce(1, b"c")
    assert moving.log(1).high_watermark == before, "it may have been taken in"
    moving.cut.clear()
    moving.run()
    assert moving.log(1).high_watermark == moving.log(1).log_end_offset > before


def test_a_copy_that_has_become_the_replica_is_counted_on_without_another_fetch(moving):
    counted = moving.replica(1).leader.followers[COPY].log_end_offset
    moving.cut.add(3)
    tell(moving, (1, 3), arrived=True)
    followers = moving.replica(1).leader.followers
    assert set(followers) == {3} and followers[3].log_end_offset == counted >= 0
    assert moving.replica(3).me == 3


def test_a_copy_pays_for_what_it_copies_and_the_replica_does_not(moving):
    assert moving.replica(3).throttles_copying_in
    tell(moving, (1, 3), arrived=True)
    assert not moving.replica(3).throttles_copying_in


def test_the_lag_of_a_copy_is_what_it_lacks_of_the_committed_records(moving):
    assert moving.replica(3).follower.lag == 0
    moving.replica(3).follower.leader_high_watermark += 7
    assert moving.replica(3).follower.lag == 7
