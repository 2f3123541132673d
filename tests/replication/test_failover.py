"""What a change of leader keeps: acknowledged records, producers' sequences, the high watermark."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.replication.context import HostConfig
from raylog.simulator.replica_hosts import P0, Hosts, contents
from raylog.types import Condition


def test_a_new_leader_knows_the_producers_and_acknowledges_a_duplicate_with_its_first_offset() -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3), min_isr=2)
    hosts.produce(1, b"before")
    for sequence in range(3):
        assert hosts.produced(hosts.produce(1, b"%d" % sequence, producer=(7, 0, sequence))) is not None
    hosts.kill(1)
    hosts.assign(2, (2, 3), epoch=1)
    again = hosts.produced(hosts.produce(2, b"2", producer=(7, 0, 2)))
    assert again is not None and (again.error, again.base_offset) == (0, 3)
    gap = hosts.produced(hosts.produce(2, b"4", producer=(7, 0, 4)))
    assert gap is not None and gap.error == ErrorCode.out_of_order_sequence_number
    following = hosts.produced(hosts.produce(2, b"3", producer=(7, 0, 3)))
    assert following is not None and (following.error, following.base_offset) == (0, 4)
    assert hosts.read(2) == [b"before", b"0", b"1", b"2", b"3"]


def test_a_duplicate_of_a_record_that_is_not_committed_waits_until_it_is() -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3), min_isr=2)
    hosts.cut = {3}
    hosts.produce(1, b"m0", producer=(7, 0, 0))  # on 1 and 2, unknown to the client
    hosts.kill(1)
    hosts.assign(2, (2, 3), epoch=1)
    again = hosts.produce(2, b"m0", producer=(7, 0, 0))
    assert hosts.produced(again) is None
    hosts.cut = set()
    hosts.run()
    result = hosts.produced(again)
    assert result is not None and (result.error, result.base_offset) == (0, 0)
    assert hosts.read(2) == [b"m0"]


@pytest.mark.parametrize("survivors", [(2, 3), (3, 2)])
def test_acknowledged_records_survive_the_leader(survivors: tuple[int, int]) -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3), min_isr=2)
    acked = []
    for number in range(20):
        value = b"%d" % number
        token = hosts.produce(1, value, run=False)
        for _ in range(number % 5):
            hosts.step()
        if hosts.produced(token) is not None:
            acked.append(value)
    hosts.kill(1)
    leader, other = survivors
    hosts.assign(leader, (2, 3), epoch=1)
    read = hosts.read(leader)
    assert read[: len(acked)] == acked
    assert contents(hosts.log(leader)) == contents(hosts.log(other))
    hosts.start(1)
    hosts.assign(leader, (2, 3))
    assert contents(hosts.log(1)) == contents(hosts.log(leader))
    assert (1, hosts.processes[1].incarnation) in hosts.asked(leader)[-1].isr


def test_the_high_watermark_does_not_fall_when_leadership_moves() -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3))
    hosts.produce(1, b"a")
    hosts.produce(1, b"b")
    hosts.inform()
    before = {broker: hosts.log(broker).high_watermark for broker in (2, 3)}
    assert before == {2: 2, 3: 2}
    hosts.cut = {3}
    hosts.assign(2, (1, 2, 3), epoch=1)
    assert hosts.log(2).high_watermark == 2
    hosts.cut = set()
    hosts.produce(2, b"c")
    hosts.inform()
    assert {broker: hosts.log(broker).high_watermark for broker in (1, 2, 3)} == {1: 3, 2: 3, 3: 3}


def test_a_killed_process_comes_back_whole_with_all_it_had() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"m0")
    hosts.kill(2)
    hosts.start(2)
    hosts.assign(1, (1, 2))
    status = hosts.opened(2)[0].status
    assert (status.condition, status.log_end_offset, status.last_epoch) == (Condition.WHOLE, 1, 0)
    assert hosts.read(2) == [b"m0"]


def reopened(hosts: Hosts, broker: int) -> Condition:
    hosts.kill(broker)
    hosts.start(broker)
    hosts.assign(hosts.assignments[P0].leader, hosts.assignments[P0].isr, run=False)
    return hosts.opened(broker)[-1].status.condition


def test_a_log_that_was_missing_stays_suspect_until_it_has_all_that_the_leader_has() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,), to=(1,))
    hosts.produce(1, b"m0")
    hosts.cut = {2}
    hosts.assign(1, (1,), to=(2,), run=False)
    assert hosts.opened(2)[-1].status.condition is Condition.MISSING
    assert reopened(hosts, 2) is Condition.SUSPECT
    hosts.cut = set()
    hosts.run()
    assert hosts.log(2).log_end_offset == 1
    assert reopened(hosts, 2) is Condition.WHOLE


def test_an_empty_partition_is_trusted_when_the_leader_has_nothing() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.advance(600)
    assert not hosts.log(2).is_suspect
    assert reopened(hosts, 2) is Condition.WHOLE


def test_a_suspect_log_of_older_records_is_trusted_only_at_the_leaders_end() -> None:
    hosts = Hosts((1, 2), HostConfig(replica_fetch_max_bytes=1))
    hosts.assign(1, (1,), to=(1,))
    for number in range(3):
        hosts.produce(1, b"%d" % number)
    hosts.assign(1, (1,), epoch=1, to=(1, 2), run=False)
    states = []
    for _ in range(9):
        hosts.step()
        states.append((hosts.log(2).log_end_offset, hosts.log(2).is_suspect))
    hosts.advance(600)
    assert all(suspect for end, suspect in states if end < 3)
    assert (hosts.log(2).log_end_offset, hosts.log(2).is_suspect) == (3, False)


def test_a_refused_fetch_is_no_reason_to_trust() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,), to=(1,))
    hosts.assign(1, (1,), epoch=1, to=(2,), run=False)  # the leader has not heard of its new epoch
    hosts.advance(50)
    assert hosts.log(2).is_suspect
