"""Rates and waits, by the numbers of Kafka's own tests (ClientQuotaManagerTest, ClientRequestQuotaManagerTest,
ControllerMutationQuotaManagerTest, TokenBucketTest), and what they promise of any client that waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.security.quota_rates import Rate, TokenBucket, burst_of


def test_a_spike_is_throttled_as_in_kafkas_own_test() -> None:
    """testQuotaViolation: 400*10 + 2300 = 6300 in 10.5 s is 600 per second; (600 - 500)/500*10.5 s is 2100 ms."""
    rate, now = Rate(), 0
    for _ in range(10):
        rate.record(400, now)
        assert rate.throttle_ms(500, now) == 0
        now += 1_000
    now += 500
    rate.record(2_300, now)
    assert rate.per_second(now) == pytest.approx(600)
    assert rate.throttle_ms(500, now) == 2_100
    now += 2_100
    for _ in range(10):
        rate.record(400, now)
        now += 1_000
    rate.record(0, now)
    assert rate.throttle_ms(500, now) == 0, "the spike counts no more"


def test_a_spike_of_request_time_is_throttled_as_in_kafkas_own_test() -> None:
    """testRequestPercentageQuotaViolation, in percent of a thread: 4*10 + 67.1 ms in 10.5 s; 210 ms to wait."""
    rate, now = Rate(), 0
    for _ in range(10):
        rate.record(0.4, now)
        assert rate.throttle_ms(1, now) == 0
        now += 1_000
    rate.record(6.71, now + 500)
    assert rate.throttle_ms(1, now + 500) == 210


def test_the_first_window_counts_as_all_but_one() -> None:
    rate = Rate()
    rate.record(5_000, 7)
    assert rate.covered_ms(7) == 10_000
    assert rate.throttle_ms(500, 7) == 0
    assert burst_of(500) == 5_000
    rate.record(500, 7)
    assert rate.throttle_ms(500, 7) == 1_000


def test_a_sample_lasts_from_its_last_record() -> None:
    """As in Kafka 3.9: what overlaps the monitored time counts whole, however long ago it began."""
    rate = Rate(2, 1_000)
    rate.record(10, 0)
    rate.record(10, 999)
    assert (rate.total(2_998), rate.covered_ms(2_998)) == (20, 2_998)
    assert rate.total(2_999) == 0
    assert rate.is_idle(2_999)


def test_what_was_recorded_can_be_taken_back() -> None:
    rate = Rate()
    rate.record(90_000, 0)
    rate.record(-90_000, 0)
    assert rate.per_second(0) == 0


def test_a_bucket_goes_below_zero_once_and_fills_by_its_rate() -> None:
    """TokenBucketTest and ControllerMutationQuotaManagerTest: 10 per second in 11 windows of one second."""
    bucket = TokenBucket(10, 0)
    assert bucket.tokens(0) == 110
    bucket.take(60, 0)
    bucket.take(60, 0)
    assert bucket.tokens(0) == -10
    assert bucket.throttle_ms(0) == 1_000
    assert bucket.throttle_ms(500) == 500
    assert bucket.throttle_ms(1_000) == 0
    assert bucket.tokens(1_000_000) == 110
    bucket.limit_to(5, 1_000_000)
    assert bucket.tokens(1_000_000) == 55


steps = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 3_000)), min_size=1, max_size=200)


@given(steps, st.integers(1, 2_000), st.integers(2, 15))
def test_a_client_that_waits_never_exceeds_its_quota_by_more_than_one_request(steps, limit, windows) -> None:
    """Before each request, what counts is within the limit for its time and for all windows. One request comes on top."""
    rate, now = Rate(windows), 0
    for amount, pause in steps:
        if not rate.is_idle(now):
            elapsed_ms = now - rate._samples[0].start_ms
            allowed = limit * (elapsed_ms + 1 + (windows + 1) * rate.window_ms) / 1_000
            assert rate.total(now) <= allowed, f"{rate.total(now)} in {elapsed_ms} ms"
        rate.record(amount, now)
        now += max(pause, rate.throttle_ms(limit, now))


@pytest.mark.parametrize("size", [1_000, 20_000, 300_000])
def test_a_greedy_client_that_waits_gets_its_quota_in_the_long_run(size: int) -> None:
    limit, rate, now, sent = 100_000, Rate(), 0, 0
    while now < 600_000:
        rate.record(size, now)
        sent += size
        now += max(1, rate.throttle_ms(limit, now))
    assert 0.85 * limit <= sent / 600 <= 1.1 * limit
