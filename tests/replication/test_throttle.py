"""Throttled copying on a virtual clock: the rate is held on either side, members of the ISR are never held back, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.configs.replication_quotas import FOLLOWERS, LEADERS
from raylog.control.session import CopyRates
from raylog.replication.events import CopyRatesGiven
from raylog.replication.throttle import UNLIMITED, Throttle
from raylog.simulator.replica_hosts import P0, Hosts, contents
from raylog.types import TopicIdPartition

BATCH = 10_000
P1 = TopicIdPartition(P0.topic_id, 1)
AS_LEADER = {LEADERS: "0:1,1:1"}
AS_FOLLOWER = {FOLLOWERS: "0:2,1:2"}


def rates(hosts: Hosts, broker: int, *, leader: int | None = None, follower: int | None = None) -> None:
    hosts.handle(broker, CopyRatesGiven(1, CopyRates(leader, follower)))


def filled(hosts: Hosts, batches: int, id: TopicIdPartition = P0) -> None:
    """Broker 1 leads alone and has ``batches`` batches of ``BATCH`` bytes."""
    hosts.assign(1, (1,), replicas=(1,), id=id)
    for number in range(batches):
        hosts.produce(1, number.to_bytes(4) + bytes(BATCH - 100), id=id)


def copied(hosts: Hosts, id: TopicIdPartition = P0) -> int:
    return hosts.log(2, id).log_end_offset * BATCH


def copying(config: dict[str, str], batches: int = 400, **limit: int) -> Hosts:
    """Broker 2 begins to copy what broker 1 has; the limit is told to both."""
    hosts = Hosts((1, 2))
    filled(hosts, batches)
    rates(hosts, 1, leader=limit.get("leader"))
    rates(hosts, 2, follower=limit.get("follower"))
    hosts.assign(1, (1,), replicas=(1, 2), config=config)
    return hosts


@pytest.mark.parametrize(
    ("config", "limit"),
    [(AS_LEADER, {"leader": 200_000}), (AS_FOLLOWER, {"follower": 200_000}), ({FOLLOWERS: "*"}, {"follower": 200_000})],
)
def test_a_throttled_copy_keeps_to_its_rate_within_a_tenth(config, limit):
    hosts = copying(config, **limit)
    for _ in range(3):
        before = copied(hosts)
        hosts.advance(5_000)
        assert copied(hosts) - before == pytest.approx(1_000_000, rel=0.1)
    hosts.advance(10_000)
    assert contents(hosts.log(2)) == contents(hosts.log(1))


def test_what_is_not_listed_is_copied_at_once_whatever_the_rate():
    hosts = copying({LEADERS: "0:3,1:1", FOLLOWERS: "1:2"}, leader=1, follower=1)
    hosts.advance(1)
    assert copied(hosts) == 400 * BATCH


def test_the_partitions_of_a_process_share_its_rate_and_none_starves():
    hosts = Hosts((1, 2))
    for id in (P0, P1):
        filled(hosts, 200, id)
    rates(hosts, 2, follower=200_000)
    for id in (P0, P1):
        hosts.assign(1, (1,), replicas=(1, 2), config=AS_FOLLOWER, id=id)
    hosts.advance(10_000)
    both = [copied(hosts, id) for id in (P0, P1)]
    assert sum(both) == pytest.approx(2_000_000, rel=0.1)
    assert min(both) > 0.4 * sum(both), both


@pytest.mark.parametrize(("config", "limit"), [(AS_LEADER, {"leader": 1}), (AS_FOLLOWER, {"follower": 1})])
def test_a_member_of_the_isr_is_never_held_back(config, limit):
    hosts = Hosts((1, 2))
    rates(hosts, 1, leader=limit.get("leader"))
    rates(hosts, 2, follower=limit.get("follower"))
    hosts.assign(1, (1, 2), min_isr=2, config=config)
    for number in range(50):
        token = hosts.produce(1, bytes(BATCH))
        assert hosts.produced(token) is not None, f"batch {number} waits for a follower that is in sync"
    hosts.advance(60_000)
    assert not hosts.asked(1), "nobody was asked out of the ISR"


def test_other_partitions_of_the_stream_do_not_wait_for_a_throttled_one():
    hosts = Hosts((1, 2))
    filled(hosts, 100)
    rates(hosts, 1, leader=1)
    rates(hosts, 2, follower=1)
    hosts.assign(1, (1, 2), min_isr=2, id=P1)
    hosts.assign(1, (1,), replicas=(1, 2), config=AS_LEADER | AS_FOLLOWER)
    hosts.advance(2_000)
    assert copied(hosts) <= BATCH
    for _ in range(20):
        assert hosts.produced(hosts.produce(1, b"now", id=P1)) is not None


def test_a_copy_that_is_throttled_no_more_goes_on_at_once():
    for config, limit in ((AS_LEADER, {"leader": 100}), (AS_FOLLOWER, {"follower": 100})):
        hosts = copying(config, **limit)
        hosts.advance(30_000)
        assert copied(hosts) < 3 * BATCH
        for broker in (1, 2):
            rates(hosts, broker)
        hosts.advance(1)
        assert copied(hosts) == 400 * BATCH
        hosts = copying(config, **limit)
        hosts.advance(30_000)
        hosts.assign(1, (1,), replicas=(1, 2), config={})
        hosts.advance(1)
        assert copied(hosts) == 400 * BATCH, "the lists were emptied"


def test_a_rate_of_nothing_copies_nothing_until_there_is_one():
    for config, limit in ((AS_LEADER, {"leader": 0}), (AS_FOLLOWER, {"follower": 0})):
        hosts = copying(config, **limit)
        hosts.advance(10_000)
        assert copied(hosts) == 0
        rates(hosts, 1, leader=200_000)
        rates(hosts, 2, follower=200_000)
        hosts.advance(5_000)
        assert copied(hosts) == pytest.approx(1_000_000, rel=0.1)


def test_a_suspect_log_is_not_trusted_because_the_throttle_keeps_its_records_back():
    hosts = copying(AS_LEADER, batches=3, leader=200)
    assert hosts.log(2).is_suspect, "a log that was not there"
    hosts.advance(10_000)
    assert copied(hosts) == BATCH and hosts.log(2).is_suspect
    rates(hosts, 1)
    hosts.advance(1)
    assert not hosts.log(2).is_suspect and copied(hosts) == 3 * BATCH


def test_a_follower_at_the_tail_joins_the_isr_although_it_is_throttled():
    hosts = copying(AS_LEADER | AS_FOLLOWER, batches=20, leader=400_000, follower=400_000)
    for _ in range(200):  # a load of half the rate
        hosts.advance(50)
        hosts.produce(1, bytes(BATCH), acks=1)
        if hosts.asked(1):
            break
    assert [pair[0] for pair in hosts.asked(1)[0].isr] == [1, 2]


def test_the_rates_of_a_deposed_controller_are_refused():
    hosts = Hosts((1,))
    hosts.handle(1, CopyRatesGiven(2, CopyRates(5, 6)))
    hosts.handle(1, CopyRatesGiven(1, CopyRates(7, 8)))
    context = hosts.host(1).context
    assert (context.copying_out.rate, context.copying_in.rate) == (5, 6)


@given(
    rate=st.integers(1, 10_000_000),
    steps=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 1_000_000)), min_size=1, max_size=60),
)
def test_an_account_never_pays_more_than_its_rate_a_second_and_a_batch(rate, steps):
    throttle = Throttle()
    throttle.set_rate(rate, 0)
    now_ms = spent = largest = 0
    for pause_ms, size in steps:
        now_ms += pause_ms
        throttle.advance(now_ms)
        if throttle.allowance:
            throttle.spend(size)
            spent += size
            largest = max(largest, size)
            assert spent <= rate * now_ms / 1_000 + rate + 1 + largest
        else:
            throttle.advance(now_ms + 1_000_000_000)
            assert throttle.allowance, "a debt is paid off some day"
            return


def test_an_account_without_a_rate_pays_everything():
    throttle = Throttle()
    throttle.advance(5)
    throttle.spend(1 << 40)
    assert throttle.allowance == UNLIMITED
