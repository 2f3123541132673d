"""The leader's side of the ISR: who is asked out, who is asked in, and what becomes of the question."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.control.session import AlterPartition, AlterPartitionAnswer
from raylog.replication.context import HostConfig
from raylog.replication.events import AlterPartitionAnswered, ControlSessionChanged
from raylog.simulator.replica_hosts import P0, Hosts

LAG_MS = 10_000


def scripted(
    isr: tuple[int, ...] = (1, 2), brokers: tuple[int, ...] = (1, 2)
) -> tuple[Hosts, dict[int, tuple[int, int]]]:
    """Broker 1 leads; the test plays the others."""
    hosts = Hosts(brokers, HostConfig(replica_lag_time_max_ms=LAG_MS))
    hosts.assign(1, isr, to=(1,))
    return hosts, {broker: (broker, hosts.processes[broker].incarnation) for broker in brokers[1:]}


def fetch(hosts: Hosts, follower: tuple[int, int], offset: int) -> None:
    last_epoch = hosts.log(1).leader_epochs.epoch_at(offset - 1) if offset else -1
    hosts.fetch(1, offset, replica=follower, epoch=hosts.assignments[P0].leader_epoch, last_epoch=last_epoch)


def answer(
    hosts: Hosts, request: AlterPartition, error: ErrorCode = ErrorCode.none, partition_epoch: int | None = None
) -> None:
    """Without ``partition_epoch``: the one that the request named still holds."""
    holds = request.partition_epoch if partition_epoch is None else partition_epoch
    frame = AlterPartitionAnswer(hosts.controller_epoch, request.request_id, *P0, holds, error.value)
    hosts.handle(1, AlterPartitionAnswered(frame))


def maximal(hosts: Hosts) -> tuple[int, ...]:
    leader = hosts.replica(1).leader
    assert leader is not None
    return leader.isr.maximal


def test_tv_23_a_burst_that_is_digested_in_time_does_not_move_the_isr() -> None:
    hosts, followers = scripted()
    fetch(hosts, followers[2], 0)
    for _ in range(100):
        hosts.produce(1, *[b"x"] * 1_000, acks=1)
    assert hosts.log(1).log_end_offset == 100_000
    for tenth in range(1, 10):
        hosts.advance(1_000)
        fetch(hosts, followers[2], tenth * 10_000)
    hosts.advance(900)
    fetch(hosts, followers[2], 100_000)
    hosts.advance(LAG_MS)
    assert hosts.asked(1) == []


def test_tv_23_a_stalled_follower_is_asked_out_and_asked_in_again() -> None:
    hosts, followers = scripted()
    fetch(hosts, followers[2], 0)
    hosts.produce(1, b"m0", acks=1)
    hosts.advance(LAG_MS)
    assert hosts.asked(1) == []
    hosts.advance(1)
    out = hosts.asked(1)
    assert [request.isr for request in out] == [((1, hosts.processes[1].incarnation),)]
    assert out[0].partition_epoch == 0
    hosts.assign(1, (1,), to=(1,))
    answer(hosts, out[0])
    assert hosts.log(1).high_watermark == 1
    fetch(hosts, followers[2], 1)
    back = hosts.asked(1)[1]
    assert back.isr == ((1, hosts.processes[1].incarnation), followers[2])
    assert back.partition_epoch == 1


def test_a_follower_that_is_always_a_little_behind_stays() -> None:
    hosts, followers = scripted()
    for number in range(40):
        hosts.produce(1, b"x", acks=1)
        fetch(hosts, followers[2], number)  # one behind, but at what was the end a moment ago
        hosts.advance(1_000)
    assert hosts.asked(1) == []


def test_a_silent_follower_that_has_everything_stays_until_it_lacks_something() -> None:
    hosts, followers = scripted()
    fetch(hosts, followers[2], 0)
    hosts.advance(5 * LAG_MS)
    assert hosts.asked(1) == []
    hosts.produce(1, b"x", acks=1)
    hosts.advance(LAG_MS)
    assert len(hosts.asked(1)) == 1


def test_a_follower_is_asked_in_only_at_the_epochs_start_and_the_high_watermark() -> None:
    hosts, followers = scripted(isr=(1,))
    for number in range(3):
        hosts.produce(1, b"%d" % number)
    hosts.assign(1, (1,), epoch=1, to=(1,))
    fetch(hosts, followers[2], 2)
    assert hosts.asked(1) == []
    fetch(hosts, followers[2], 3)
    assert len(hosts.asked(1)) == 1


def test_the_high_watermark_counts_a_replica_from_the_moment_it_is_asked_in() -> None:
    hosts, followers = scripted(isr=(1,))
    fetch(hosts, followers[2], 0)
    assert maximal(hosts) == (1, 2)
    waiting = hosts.produce(1, b"m0")
    assert hosts.log(1).high_watermark == 0 and hosts.produced(waiting) is None
    fetch(hosts, followers[2], 1)
    assert hosts.log(1).high_watermark == 1 and hosts.produced(waiting) is not None


def test_one_request_is_in_flight_at_a_time() -> None:
    hosts, followers = scripted(isr=(1,), brokers=(1, 2, 3))
    fetch(hosts, followers[2], 0)
    fetch(hosts, followers[3], 0)
    fetch(hosts, followers[2], 0)
    assert [len(request.isr) for request in hosts.asked(1)] == [2]
    hosts.assign(1, (1, 2), to=(1,))
    fetch(hosts, followers[3], 0)
    assert [len(request.isr) for request in hosts.asked(1)] == [2, 3]


def test_a_stale_answer_is_ignored() -> None:
    hosts, followers = scripted(isr=(1,), brokers=(1, 2, 3))
    fetch(hosts, followers[2], 0)
    first = hosts.asked(1)[0]
    hosts.assign(1, (1, 2), to=(1,))
    fetch(hosts, followers[3], 0)
    assert maximal(hosts) == (1, 2, 3)
    answer(hosts, first, ErrorCode.ineligible_replica)
    assert maximal(hosts) == (1, 2, 3), "the answer to a request that is over undid the one in flight"
    answer(hosts, hosts.asked(1)[1], ErrorCode.ineligible_replica)
    assert maximal(hosts) == (1, 2)


def test_a_refusal_frees_the_high_watermark_and_is_asked_again_after_a_pause() -> None:
    hosts, followers = scripted(isr=(1,))
    fetch(hosts, followers[2], 0)
    waiting = hosts.produce(1, b"m0")
    answer(hosts, hosts.asked(1)[0], ErrorCode.ineligible_replica)
    assert hosts.log(1).high_watermark == 1 and hosts.produced(waiting) is not None
    fetch(hosts, followers[2], 1)
    assert len(hosts.asked(1)) == 1
    hosts.advance(100)
    fetch(hosts, followers[2], 1)
    assert len(hosts.asked(1)) == 2


def test_after_a_stale_partition_epoch_nothing_is_asked_until_the_assignment_comes() -> None:
    hosts, followers = scripted(isr=(1,))
    fetch(hosts, followers[2], 0)
    answer(hosts, hosts.asked(1)[0], ErrorCode.invalid_update_version, partition_epoch=1)
    hosts.advance(1_000)
    fetch(hosts, followers[2], 0)
    assert len(hosts.asked(1)) == 1
    assert maximal(hosts) == (1, 2), "it may have been carried out"
    hosts.assign(1, (1,), to=(1,))
    fetch(hosts, followers[2], 0)
    assert len(hosts.asked(1)) == 2


def test_a_question_that_was_carried_out_counts_though_its_assignment_never_comes() -> None:
    """The controller tells the assignment to the process that has replaced this one, and nobody but
    this one that its question was answered.
    """
    hosts, followers = scripted(isr=(1,))
    fetch(hosts, followers[2], 0)
    request = hosts.asked(1)[0]
    waiting = hosts.produce(1, b"m0")
    answer(hosts, request, partition_epoch=request.partition_epoch + 1)
    assert maximal(hosts) == (1, 2)
    assert hosts.log(1).high_watermark == 0 and hosts.produced(waiting) is None, "broker 2 may be elected without it"


def test_a_lost_session_leaves_the_question_open_and_the_next_one_asks_again() -> None:
    hosts, followers = scripted(isr=(1,))
    fetch(hosts, followers[2], 0)
    first = hosts.asked(1)[0]
    hosts.handle(1, ControlSessionChanged(False))
    waiting = hosts.produce(1, b"m0")
    answer(hosts, first, ErrorCode.ineligible_replica)  # from the session that is over
    assert maximal(hosts) == (1, 2) and hosts.produced(waiting) is None
    fetch(hosts, followers[2], 0)
    assert len(hosts.asked(1)) == 1
    hosts.handle(1, ControlSessionChanged(True))
    second = hosts.asked(1)[1]
    assert second.request_id != first.request_id and second.isr == first.isr
    answer(hosts, second, ErrorCode.ineligible_replica)
    assert maximal(hosts) == (1,) and hosts.produced(waiting) is not None


def test_a_follower_that_is_not_assigned_is_told_so_and_never_counts() -> None:
    hosts, _ = scripted(isr=(1,))
    answer = hosts.fetched(hosts.fetch(1, 0, replica=(9, 1), epoch=0, max_wait_ms=500))
    assert answer is not None and answer.error == ErrorCode.unknown_leader_epoch
    assert hosts.asked(1) == []


def test_a_replica_without_a_live_process_is_not_asked_in() -> None:
    hosts, followers = scripted(isr=(1,))
    hosts.processes[2].alive = False
    hosts.assign(1, (1,), to=(1,))
    fetch(hosts, followers[2], 0)
    fetch(hosts, (2, 0), 0)
    assert hosts.asked(1) == []


def test_three_hosts_shrink_and_heal() -> None:
    hosts = Hosts((1, 2, 3), HostConfig(replica_lag_time_max_ms=LAG_MS))
    hosts.assign(1, (1, 2, 3), min_isr=2)
    hosts.cut = {3}
    waiting = hosts.produce(1, b"m0")
    hosts.advance(LAG_MS + 1_000)
    assert hosts.produced(waiting) is None
    members = tuple(member for member, _ in hosts.asked(1)[0].isr)
    assert members == (1, 2)
    hosts.assign(1, members, min_isr=2, to=(1, 2))
    assert hosts.produced(waiting) is not None
    hosts.cut = set()
    hosts.advance(600)
    assert tuple(member for member, _ in hosts.asked(1)[-1].isr) == (1, 2, 3)
    assert hosts.log(3).high_watermark == 1


def test_a_follower_below_the_epochs_start_is_not_asked_in_though_the_high_watermark_lags() -> None:
    hosts, followers = scripted(isr=(1, 3), brokers=(1, 2, 3))
    for number in range(3):
        hosts.produce(1, b"%d" % number, acks=1)
    hosts.assign(1, (1, 3), epoch=1, to=(1,))
    assert hosts.log(1).high_watermark == 0
    fetch(hosts, followers[2], 2)
    assert hosts.asked(1) == []
    fetch(hosts, followers[2], 3)
    assert len(hosts.asked(1)) == 1


def test_what_a_lost_session_left_open_is_settled_even_if_nothing_else_is_wanted() -> None:
    hosts, followers = scripted(isr=(1,))
    fetch(hosts, followers[2], 0)
    hosts.handle(1, ControlSessionChanged(False))
    waiting = hosts.produce(1, b"m0")
    hosts.advance(LAG_MS + 1)  # it stopped fetching: nobody wants it in the ISR any more
    hosts.handle(1, ControlSessionChanged(True))
    request = hosts.asked(1)[1]
    assert request.isr == ((1, hosts.processes[1].incarnation),)
    assert maximal(hosts) == (1, 2) and hosts.produced(waiting) is None
    answer(hosts, request)
    assert maximal(hosts) == (1,) and hosts.produced(waiting) is not None
