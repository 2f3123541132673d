"""Damaged bytes in a replica's log: who finds out, what is still served, and when the log is cut and copied anew."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.control.session import ReplicaDamaged, ReplicaMended
from raylog.errors import KafkaError
from raylog.log.cleanable import Cleanable
from raylog.replication.context import HostConfig
from raylog.replication.events import CleaningEnded, DamageReported, ScrubEnded, Ticked
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, Hosts, contents

STORAGE, CORRUPT = ErrorCode.kafka_storage_error.value, ErrorCode.corrupt_message.value
MAX_TIMESTAMP_BYTE = 35  # of a batch
VALUES = [b"%02d" % number * 10 for number in range(8)]


def running(brokers: tuple[int, ...] = (1, 2, 3), config: HostConfig | None = None) -> Hosts:
    hosts = Hosts(brokers, config=config) if config is not None else Hosts(brokers)
    hosts.assign(1, brokers, min_isr=min(2, len(brokers)))
    for value in VALUES:
        hosts.produce(1, value)
    return hosts


def damage(hosts: Hosts, broker: int, offset: int, byte: int = 70) -> str:
    """Flip a bit in the batch of that offset; returns the file's path."""
    segment = hosts.log(broker).segments.reaching(offset)[0]
    found = segment.locate(offset)
    assert found is not None
    hosts.disks[broker].flip_bit(f"{segment.path}.log", found[0] + byte)
    return f"{segment.path}.log"


def complaints(hosts: Hosts, broker: int) -> list[ReplicaDamaged]:
    return [frame for frame in hosts.told[broker] if isinstance(frame, ReplicaDamaged)]


def mended(hosts: Hosts, broker: int) -> int:
    return sum(isinstance(frame, ReplicaMended) for frame in hosts.told[broker])


def error_of(hosts: Hosts, broker: int, offset: int) -> int:
    answer = hosts.fetched(hosts.fetch(broker, offset))
    assert answer is not None
    return answer.error


def test_a_reader_of_damaged_bytes_makes_the_leader_tell_the_controller() -> None:
    hosts = running()
    path = damage(hosts, 1, 4)
    assert error_of(hosts, 1, 4) == STORAGE, "another replica can take over: ask again"
    (told,) = complaints(hosts, 1)
    assert told.leader_epoch == 0 and path in told.damage and "offset 4" in told.damage
    assert hosts.replica(1).role is Role.LEADER, "it serves on until somebody else leads"
    assert hosts.replica(1).status().damage == told.damage
    assert error_of(hosts, 1, 0) == error_of(hosts, 1, 5) == 0
    assert error_of(hosts, 1, 4) == STORAGE and len(complaints(hosts, 1)) == 1, "said once"


def test_a_follower_that_asks_for_damaged_bytes_does_not_take_them() -> None:
    hosts = running()
    hosts.kill(3)
    hosts.disks[3].wipe("/data")
    hosts.start(3)
    damage(hosts, 1, 4)
    hosts.assign(1, (1, 2))
    hosts.advance(200)
    assert hosts.log(3).log_end_offset == 4
    assert len(complaints(hosts, 1)) == 1


def test_a_damaged_leader_that_was_relieved_cuts_its_log_and_copies_it_from_the_new_one() -> None:
    hosts = running()
    whole = contents(hosts.log(2))
    damage(hosts, 1, 4)
    error_of(hosts, 1, 4)
    hosts.assign(2, (2, 3), epoch=1, to=(1,), run=False)
    assert hosts.log(1).log_end_offset == 4 and mended(hosts, 1) == 1
    hosts.assign(2, (2, 3), epoch=1)
    assert contents(hosts.log(1)) == whole
    assert hosts.replica(1).damage is None and hosts.replica(1).status().damage == ""
    assert 1 in hosts.asked(2)[-1].isr[-1], "it is in sync again"


def test_nothing_is_cut_while_the_isr_or_the_elr_counts_on_this_log() -> None:
    hosts = running()
    damage(hosts, 1, 4)
    error_of(hosts, 1, 4)
    hosts.assign(2, (1, 2, 3), epoch=1)
    assert hosts.log(1).log_end_offset == 8 and not mended(hosts, 1)
    assert [told.leader_epoch for told in complaints(hosts, 1)] == [0, 1], "said again in the new epoch"
    hosts.assign(2, (2, 3))
    assert hosts.log(1).log_end_offset == 8, "in this epoch the leader has seen this log whole"
    hosts.assign(2, (2, 3), epoch=2, elr=(1,))
    assert hosts.log(1).log_end_offset == 8 and not mended(hosts, 1)
    hosts.assign(2, (2, 3), epoch=3)
    assert mended(hosts, 1) == 1 and contents(hosts.log(1)) == contents(hosts.log(2))


def test_without_another_replica_what_is_whole_is_served_and_the_rest_refused_by_name() -> None:
    hosts = running((1,))
    damage(hosts, 1, 4)
    answer = hosts.fetched(hosts.fetch(1, 0))
    assert answer is not None and answer.error == 0 and len(answer.records)
    assert error_of(hosts, 1, 4) == CORRUPT
    assert error_of(hosts, 1, 5) == 0
    assert hosts.list_offset(1, 1).error in (0, CORRUPT)
    hosts.produce(1, b"more")
    assert hosts.log(1).log_end_offset == 9
    assert len(complaints(hosts, 1)) == 1 and hosts.log(1).log_end_offset == 9


def test_a_scrub_finds_damage_that_nobody_reads() -> None:
    hosts = running(config=HostConfig(log_scrub_interval_ms=10_000))
    damage(hosts, 2, 4)
    hosts.advance(900)
    assert not complaints(hosts, 2)
    hosts.advance(200)
    assert len(complaints(hosts, 2)) == 1 and not complaints(hosts, 1)
    hosts.assign(1, (1, 3), epoch=1)
    assert contents(hosts.log(2)) == contents(hosts.log(1)) and mended(hosts, 2) == 1
    damage(hosts, 2, 6)
    hosts.advance(9_000)
    assert len(complaints(hosts, 2)) == 1
    hosts.advance(2_000)
    assert len(complaints(hosts, 2)) == 2, "and again an interval later"


def test_a_shorter_interval_counts_from_the_assignment_that_brings_it() -> None:
    hosts = running()
    damage(hosts, 2, 4)
    hosts.assign(1, (1, 2, 3), config={"log.scrub.interval.ms": "10000"})
    hosts.advance(1_100)
    assert len(complaints(hosts, 2)) == 1


def test_an_index_that_leads_nowhere_is_damage_too() -> None:
    hosts = running()
    segment = hosts.log(1).segments.active
    segment._positions.clear()
    segment._positions[4] = 13
    assert error_of(hosts, 1, 4) == STORAGE
    (told,) = complaints(hosts, 1)
    assert ".index" in told.damage
    hosts.assign(2, (2, 3), epoch=1)
    assert contents(hosts.log(1)) == contents(hosts.log(2))


def test_a_report_from_outside_has_the_log_cut_there_though_its_crcs_fit() -> None:
    hosts = running()
    hosts.handle(3, DamageReported(P0, 5, "it differs from brokers 1 and 2"))
    (told,) = complaints(hosts, 3)
    assert "offset 5" in told.damage and "differs from brokers 1 and 2" in told.damage
    hosts.assign(1, (1, 2), epoch=1, to=(3,), run=False)
    assert hosts.log(3).log_end_offset == 5
    hosts.assign(1, (1, 2), epoch=1)
    assert contents(hosts.log(3)) == contents(hosts.log(1))


def test_a_search_by_time_that_meets_damage_is_refused_and_reported() -> None:
    hosts = running()
    damage(hosts, 1, 4, byte=16)
    assert hosts.list_offset(1, 1 << 40).error == 0, "no segment is that young: nothing is read"
    hosts.advance(10)
    hosts.produce(1, b"late")
    late = hosts.list_offset(1, hosts.log(1).segments.active.largest_timestamp)
    assert late.error == STORAGE
    assert len(complaints(hosts, 1)) == 1


def test_a_search_by_time_does_not_believe_the_timestamps_of_a_damaged_batch() -> None:
    """A batch that says it is older than it is would be passed over, and a later record be found."""
    hosts = running()
    hosts.advance(10)
    hosts.produce(1, b"late")
    hosts.produce(1, b"later")
    log = hosts.log(1)
    timestamp = log.segments.active.largest_timestamp
    odd = next(index for index, byte in enumerate(timestamp.to_bytes(8)) if byte % 2)
    damage(hosts, 1, log.log_end_offset - 2, byte=MAX_TIMESTAMP_BYTE + odd)  # it gets smaller
    assert hosts.list_offset(1, timestamp).error == STORAGE
    assert len(complaints(hosts, 1)) == 1


def test_a_log_that_compaction_cannot_read_is_scrubbed_next() -> None:
    hosts = running()
    damage(hosts, 2, 4)
    hosts.assign(1, (1, 2, 3), config={"cleanup.policy": "compact"})
    log = hosts.log(2)
    log.roll(0)
    part = Cleanable(0, log.segments.active.base_offset, 1.0, is_overdue=False)
    cleaning = log.compaction.begin(part, 0)
    hosts.handle(2, CleaningEnded(P0, log, cleaning, "a CRC does not fit"))
    assert not complaints(hosts, 2)
    hosts.advance(1)
    assert len(complaints(hosts, 2)) == 1 and log.compaction.fault is not None
    hosts.assign(1, (1, 3), epoch=1)
    assert contents(hosts.log(2)) == contents(hosts.log(1)) and log.compaction.fault is None


def in_segments() -> Hosts:
    """Two records in each segment."""
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3), min_isr=2)
    for number, value in enumerate(VALUES):
        if number and number % 2 == 0:
            for broker in (1, 2, 3):
                hosts.log(broker).roll(0)
        hosts.produce(1, value)
    return hosts


def test_after_damage_was_met_the_rest_of_the_log_is_read_and_an_earlier_damage_is_cut_too() -> None:
    hosts = in_segments()
    whole = contents(hosts.log(2))
    damage(hosts, 1, 2)
    damage(hosts, 1, 6)
    assert error_of(hosts, 1, 6) == STORAGE
    assert [told.damage.partition("offset ")[2][0] for told in complaints(hosts, 1)] == ["6"]
    hosts.advance(1)
    assert [told.damage.partition("offset ")[2][0] for told in complaints(hosts, 1)] == ["6", "2"], "both are named"
    hosts.assign(2, (2, 3), epoch=1, to=(1,), run=False)
    assert hosts.log(1).log_end_offset == 2, "cut at the first"
    hosts.assign(2, (2, 3), epoch=1)
    assert contents(hosts.log(1)) == whole


def test_a_log_that_was_cut_while_it_was_read_is_read_again() -> None:
    hosts = in_segments()
    whole = contents(hosts.log(2))
    damage(hosts, 1, 2)
    damage(hosts, 1, 6)
    assert error_of(hosts, 1, 6) == STORAGE
    hosts.holds_scrubs = True
    hosts.advance(1)
    ((_, order),) = hosts.scrubs
    while order.scrubbing.step():
        pass
    hosts.assign(2, (2, 3), epoch=1)
    assert hosts.log(1).log_end_offset == 8 and hosts.replica(1).damage is None, "cut at 6 only"
    hosts.holds_scrubs = False
    hosts.finish_scrubs()
    hosts.advance(1)
    assert [told.damage.partition("offset ")[2][0] for told in complaints(hosts, 1)] == ["6", "2"]
    hosts.assign(2, (2, 3), epoch=2)
    assert contents(hosts.log(1)) == whole


def test_a_log_that_has_to_be_read_at_once_while_it_is_read_is_read_again_then() -> None:
    hosts = in_segments()
    hosts.assign(1, (1, 2, 3), config={"log.scrub.interval.ms": "10000"})
    hosts.holds_scrubs = True
    hosts.advance(1_100)
    order = next(order for broker, order in hosts.scrubs if broker == 1)
    while order.scrubbing.step():
        pass
    damage(hosts, 1, 2)
    damage(hosts, 1, 6)
    hosts.holds_scrubs = False
    hosts.scrubs.remove((1, order))
    assert error_of(hosts, 1, 6) == STORAGE
    hosts.handle(1, ScrubEnded(P0, order.log, order.scrubbing))
    hosts.advance(1)
    assert [told.damage.partition("offset ")[2][0] for told in complaints(hosts, 1)] == ["6", "2"]


def test_a_damaged_log_is_cut_behind_the_damage_as_one_piece() -> None:
    hosts = running()
    damage(hosts, 3, 4, byte=16)
    log = hosts.log(3)
    log.truncate_to(6)
    log.check()
    assert log.log_end_offset == log.producers.end_offset == 6


def test_a_follower_that_cannot_cut_its_log_because_of_damage_has_it_looked_into() -> None:
    hosts = running()
    damage(hosts, 3, 4, byte=8)  # of its length
    hosts.log(3).segments.active._positions.clear()
    follower = hosts.replica(3).follower
    assert follower is not None
    with pytest.raises(KafkaError):
        follower._truncate(7)
    hosts.handle(3, Ticked())
    assert len(complaints(hosts, 3)) == 1
