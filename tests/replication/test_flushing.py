"""Where flush.messages demands a flush, an append is complete when the flush has returned; and what survives then."""

from __future__ import annotations

import errno
import os

from kio.schema.errors import ErrorCode

from raylog.replication.events import Flush, FlushCompleted
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, Hosts, contents

EACH = {"flush.messages": "1"}


def test_without_flush_messages_nothing_is_flushed() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    hosts.holds_flushes = True
    result = hosts.produced(hosts.produce(1, b"x"))
    assert result is not None and hosts.flushes == []


def test_the_leaders_own_end_counts_when_its_flush_has_returned() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), to=(1,), config=EACH)
    hosts.holds_flushes = True
    follower = (2, hosts.processes[2].incarnation)
    waiting = hosts.produce(1, b"m0")
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0)
    assert hosts.log(1).high_watermark == 0 and hosts.produced(waiting) is None
    hosts.finish_flushes()
    assert hosts.log(1).high_watermark == 1
    result = hosts.produced(waiting)
    assert result is not None and result.error == 0


def test_acks_1_waits_for_the_flush() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), config=EACH)
    hosts.holds_flushes = True
    waiting = hosts.produce(1, b"m0", acks=1)
    assert hosts.produced(waiting) is None
    hosts.finish_flushes()
    result = hosts.produced(waiting)
    assert result is not None and (result.error, result.base_offset) == (0, 0)


def test_a_followers_next_fetch_leaves_after_its_flush() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), config=EACH)
    hosts.holds_flushes = True
    waiting = hosts.produce(1, b"m0")
    assert [(broker, flush.log_end_offset) for broker, flush in hosts.flushes] == [(1, 1), (2, 1)]
    assert hosts.log(2).log_end_offset == 1
    known = hosts.replica(1).leader
    assert known is not None and known.followers[2].log_end_offset == 0
    leaders, followers = hosts.flushes
    hosts.flushes = [leaders]
    hosts.finish_flushes()
    assert hosts.produced(waiting) is None
    hosts.flushes = [followers]
    hosts.finish_flushes()
    hosts.run()
    assert known.followers[2].log_end_offset == 1
    assert hosts.produced(waiting) is not None


def test_one_flush_is_in_flight_and_the_next_covers_what_came_meanwhile() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), config=EACH)
    hosts.holds_flushes = True
    tokens = [hosts.produce(1, b"%d" % number) for number in range(3)]
    assert [flush.log_end_offset for _, flush in hosts.flushes] == [1]
    (_, first), hosts.flushes = hosts.flushes[0], []
    # Its fsync covered the first record only: the recovery point says so, and another flush is due.
    hosts.handle(1, FlushCompleted(P0, first.log_end_offset))
    assert hosts.produced(tokens[0]) is not None and hosts.produced(tokens[1]) is None
    assert [flush.log_end_offset for _, flush in hosts.flushes] == [3]
    hosts.finish_flushes()
    assert all(hosts.produced(token) is not None for token in tokens)
    assert hosts.log(1).high_watermark == 3


def test_every_third_message_waits_where_every_third_is_flushed() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), config={"flush.messages": "3"})
    hosts.holds_flushes = True
    assert [hosts.produced(hosts.produce(1, b"x")) is not None for _ in range(3)] == [True, True, False]
    hosts.finish_flushes()
    assert hosts.log(1).high_watermark == 3


def test_a_failed_flush_takes_the_replica_offline_and_acks_nothing() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), config=EACH)
    hosts.holds_flushes = True
    waiting = hosts.produce(1, b"m0")
    hosts.handle(1, FlushCompleted(P0, 1, os.strerror(errno.EIO)))
    assert hosts.replica(1).role is Role.OFFLINE
    result = hosts.produced(waiting)
    assert result is not None and result.error == ErrorCode.kafka_storage_error


def test_a_flush_that_was_in_flight_over_a_truncation_completes_nothing_of_what_came_later() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,), config={"flush.messages": "3", "flush.ms": "1000"})
    hosts.produce(1, b"shared")
    hosts.cut = {2}
    hosts.produce(1, b"lost")
    hosts.holds_flushes = True
    hosts.advance(1_000)
    ((_, flush),) = [(broker, flush) for broker, flush in hosts.flushes if broker == 1]
    assert isinstance(flush, Flush) and flush.log_end_offset == 2
    hosts.flushes = []
    hosts.cut = {1}
    hosts.holds_flushes = False
    hosts.assign(2, (2,), epoch=1)
    for _ in range(3):
        hosts.produce(2, b"kept")
    hosts.holds_flushes = True
    hosts.cut = set()
    hosts.advance(2)
    assert [value for _, _, value in contents(hosts.log(1))] == [b"shared", b"kept", b"kept", b"kept"]
    assert hosts.replica(1).flushing.completed_end == 1
    hosts.handle(1, FlushCompleted(P0, flush.log_end_offset))
    assert hosts.replica(1).flushing.completed_end == 1
    hosts.finish_flushes()
    assert hosts.replica(1).flushing.completed_end == 4


def test_flush_ms_flushes_later_and_holds_nothing_back() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,), config={"flush.ms": "1000"})
    assert hosts.produced(hosts.produce(1, b"x")) is not None
    hosts.advance(999)
    assert hosts.log(1).unflushed_messages == 1
    hosts.advance(1)
    assert hosts.log(1).unflushed_messages == 0
