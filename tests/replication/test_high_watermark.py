"""How the high watermark moves: the worked examples, acks, the minimum ISR, incarnations."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.replication.events import FetchReply, Reply
from raylog.simulator.replica_hosts import P0, Hosts

LATEST = -1


def leader_and_scripted_follower() -> tuple[Hosts, tuple[int, int]]:
    """Broker 1 leads; broker 2 is played by the test."""
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), to=(1,))
    return hosts, (2, hosts.processes[2].incarnation)


def test_tv_18_first_message_fetched_after_the_write() -> None:
    hosts, follower = leader_and_scripted_follower()
    leader = hosts.log(1)
    known = hosts.replica(1).leader
    assert known is not None
    assert (leader.high_watermark, leader.log_end_offset) == (0, 0)
    produced = hosts.produce(1, b"m0")
    assert (leader.high_watermark, leader.log_end_offset, known.followers[2].log_end_offset) == (0, 1, -1)
    first = hosts.fetched(hosts.fetch(1, 0, replica=follower, epoch=0, max_wait_ms=500))
    assert first is not None and len(first.records) and first.high_watermark == 0
    assert (leader.high_watermark, known.followers[2].log_end_offset) == (0, 0)
    assert hosts.produced(produced) is None
    asked = hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0, max_wait_ms=500)
    hosts.inform()
    second = hosts.fetched(asked)
    assert second is not None and not len(second.records) and second.high_watermark == 1
    assert (leader.high_watermark, known.followers[2].log_end_offset) == (1, 1)
    assert hosts.produced(produced) is not None
    assert hosts.read(1) == [b"m0"]


def test_tv_18_first_message_between_two_hosts() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"m0")
    hosts.inform()
    assert (hosts.log(1).high_watermark, hosts.log(2).high_watermark, hosts.log(2).log_end_offset) == (1, 1, 1)


def test_tv_19_a_parked_fetch_wakes_on_the_append() -> None:
    hosts, follower = leader_and_scripted_follower()
    hosts.fetched(hosts.fetch(1, 0, replica=follower, epoch=0, max_wait_ms=500))  # tells it the high watermark
    parked = hosts.fetch(1, 0, replica=follower, epoch=0, max_wait_ms=500)
    assert hosts.replies.get(parked) is None
    produced = hosts.produce(1, b"m0")
    answer = hosts.fetched(parked)
    assert answer is not None and len(answer.records) and answer.high_watermark == 0
    assert hosts.log(1).high_watermark == 0 and hosts.produced(produced) is None
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0, max_wait_ms=500)
    assert hosts.log(1).high_watermark == 1
    result = hosts.produced(produced)
    assert result is not None and (result.error, result.base_offset) == (0, 0)


def test_tv_20_three_brokers_and_the_ack_comes_last() -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3))
    hosts.cut = {3}
    produced = hosts.produce(1, b"m0")
    assert [hosts.log(broker).log_end_offset for broker in (1, 2, 3)] == [1, 1, 0]
    assert hosts.log(1).high_watermark == 0 and hosts.produced(produced) is None
    hosts.cut = set()
    hosts.run()
    assert [hosts.log(broker).log_end_offset for broker in (1, 2, 3)] == [1, 1, 1]
    hosts.inform()
    assert [hosts.log(broker).high_watermark for broker in (1, 2, 3)] == [1, 1, 1]
    result = hosts.produced(produced)
    assert result is not None and result.error == 0


def two_followers_with_all_records() -> tuple[Hosts, list[int]]:
    """Broker 1 leads; the fetches of 2 and 3 that say so are parked. The second of them has moved the high watermark."""
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3), to=(1,))
    followers = [(broker, hosts.processes[broker].incarnation) for broker in (2, 3)]
    hosts.produce(1, b"m0")
    for follower in followers:
        hosts.fetch(1, 0, replica=follower, epoch=0)
    parked = [hosts.fetch(1, 1, replica=each, epoch=0, last_epoch=0, max_wait_ms=500) for each in followers]
    assert hosts.log(1).high_watermark == 1
    return hosts, parked


def test_followers_hear_soon_of_a_high_watermark_that_no_records_follow() -> None:
    hosts, parked = two_followers_with_all_records()
    hosts.advance(hosts.config.high_watermark_news_ms - 1)
    assert not [token for token in parked if token in hosts.replies]
    hosts.advance(1)
    for token in parked:
        answer = hosts.fetched(token)
        assert answer is not None and answer.high_watermark == 1 and not len(answer.records)
    asked = hosts.fetch(1, 1, replica=(2, hosts.processes[2].incarnation), epoch=0, last_epoch=0, max_wait_ms=500)
    hosts.advance(hosts.config.high_watermark_news_ms)
    assert asked not in hosts.replies, "it has heard of it"


def test_the_next_records_say_how_far_the_high_watermark_is() -> None:
    hosts, parked = two_followers_with_all_records()
    hosts.produce(1, b"m1")
    for token in parked:
        answer = hosts.fetched(token)
        assert answer is not None and answer.high_watermark == 1 and len(answer.records)


def test_a_follower_that_is_woken_in_vain_hears_of_the_high_watermark_in_time() -> None:
    hosts, _ = two_followers_with_all_records()
    two = (2, hosts.processes[2].incarnation)
    asked = hosts.fetch(1, 1, replica=two, epoch=0, last_epoch=0, max_wait_ms=500, min_bytes=10_000)
    hosts.produce(1, b"m1")
    assert asked not in hosts.replies
    hosts.inform()
    answer = hosts.fetched(asked)
    assert answer is not None and answer.high_watermark == 1 and len(answer.records)


def test_news_of_the_high_watermark_do_not_put_off_a_fetch_whose_time_ends_before() -> None:
    hosts, _ = two_followers_with_all_records()
    asked = hosts.fetch(1, 1, replica=(2, hosts.processes[2].incarnation), epoch=0, last_epoch=0, max_wait_ms=2)
    hosts.advance(2)
    assert asked in hosts.replies


def test_a_follower_that_knows_everything_stays_parked_until_its_time_is_up() -> None:
    hosts, follower = leader_and_scripted_follower()
    hosts.fetch(1, 0, replica=follower, epoch=0)
    parked = hosts.fetch(1, 0, replica=follower, epoch=0, max_wait_ms=500)
    hosts.advance(499)
    assert parked not in hosts.replies
    hosts.advance(1)
    assert hosts.replies[parked] == FetchReply(())


def test_acks_all_is_refused_below_the_minimum_and_acks_1_stays_invisible() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,), min_isr=2)
    refused = hosts.produced(hosts.produce(1, b"all"))
    assert refused is not None and refused.error == ErrorCode.not_enough_replicas
    assert hosts.log(1).log_end_offset == 0
    accepted = hosts.produced(hosts.produce(1, b"one", acks=1))
    assert accepted is not None and accepted.error == 0
    assert (hosts.log(1).log_end_offset, hosts.log(1).high_watermark) == (1, 0)
    assert hosts.read(1) == []
    hosts.assign(1, (1, 2), min_isr=2)
    assert hosts.log(1).high_watermark == 1
    assert hosts.read(1) == [b"one"]


def test_acks_0_appends_and_says_nothing() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    token = hosts.produce(1, b"zero", acks=0)
    assert token not in hosts.replies
    assert hosts.read(1) == [b"zero"]


def test_other_acks_are_refused() -> None:
    hosts = Hosts((1,))
    hosts.assign(1, (1,))
    result = hosts.produced(hosts.produce(1, b"x", acks=2))
    assert result is not None and result.error == ErrorCode.invalid_required_acks


def test_a_shrink_below_the_minimum_ends_waiting_produces() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), min_isr=2)
    hosts.cut = {2}
    waiting = hosts.produce(1, b"m0")
    assert hosts.produced(waiting) is None
    hosts.assign(1, (1,), min_isr=2, to=(1,))
    result = hosts.produced(waiting)
    assert result is not None and result.error == ErrorCode.not_enough_replicas_after_append
    assert hosts.log(1).high_watermark == 0


def test_a_shrink_that_leaves_enough_commits_what_waited() -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3), min_isr=2)
    hosts.cut = {3}
    waiting = hosts.produce(1, b"m0")
    assert hosts.produced(waiting) is None
    hosts.assign(1, (1, 2), min_isr=2, to=(1, 2))
    result = hosts.produced(waiting)
    assert result is not None and result.error == 0


def test_a_produce_times_out_and_says_why() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.cut = {2}
    waiting = hosts.produce(1, b"m0", timeout_ms=1_000)
    hosts.advance(999)
    assert hosts.produced(waiting) is None
    hosts.advance(1)
    result = hosts.produced(waiting)
    assert result is not None and result.error == ErrorCode.request_timed_out
    assert not hosts.replica(1).watchers.by_high_watermark


def test_a_fetch_of_an_old_incarnation_does_not_count() -> None:
    hosts, follower = leader_and_scripted_follower()
    old = (2, follower[1] - 1)
    waiting = hosts.produce(1, b"m0")
    hosts.fetch(1, 0, replica=old, epoch=0)
    answer = hosts.fetched(hosts.fetch(1, 1, replica=old, epoch=0, last_epoch=0))
    assert answer is None  # it may read, but there is nothing
    known = hosts.replica(1).leader
    assert known is not None and known.followers[2].log_end_offset == -1
    assert hosts.log(1).high_watermark == 0 and hosts.produced(waiting) is None
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0)
    assert hosts.log(1).high_watermark == 1 and hosts.produced(waiting) is not None


def test_a_new_incarnation_starts_from_nothing_known() -> None:
    hosts, follower = leader_and_scripted_follower()
    hosts.produce(1, b"m0")
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0)
    assert hosts.log(1).high_watermark == 1
    hosts.start(2)
    hosts.assign(1, (1, 2), to=(1,))
    waiting = hosts.produce(1, b"m1")
    hosts.fetch(1, 2, replica=follower, epoch=0, last_epoch=0)  # the old process
    assert hosts.log(1).high_watermark == 1 and hosts.produced(waiting) is None
    hosts.fetch(1, 2, replica=(2, hosts.processes[2].incarnation), epoch=0, last_epoch=0)
    assert hosts.log(1).high_watermark == 2


def test_a_fetch_that_was_overtaken_takes_nothing_back() -> None:
    hosts, follower = leader_and_scripted_follower()
    hosts.produce(1, b"m0")
    hosts.produce(1, b"m1")
    hosts.fetch(1, 2, replica=follower, epoch=0, last_epoch=0)
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0)
    known = hosts.replica(1).leader
    assert known is not None and known.followers[2].log_end_offset == 2
    assert hosts.log(1).high_watermark == 2


def test_latest_is_not_available_until_a_new_leader_knows_what_was_committed() -> None:
    hosts = Hosts((1, 2, 3))
    hosts.assign(1, (1, 2, 3))
    hosts.cut = {3}
    hosts.produce(1, b"m0")  # on 1 and 2, committed nowhere
    hosts.kill(1)
    hosts.assign(2, (2, 3), epoch=1)
    assert hosts.list_offset(2, LATEST).error == ErrorCode.offset_not_available
    between = hosts.fetched(hosts.fetch(2, 0))
    assert between is not None and between.error == 0 and not len(between.records)
    assert hosts.fetched(hosts.fetch(2, 1)) == between
    beyond = hosts.fetched(hosts.fetch(2, 2))
    assert beyond is not None and beyond.error == ErrorCode.offset_out_of_range
    hosts.cut = set()
    hosts.run()
    latest = hosts.list_offset(2, LATEST)
    assert (latest.error, latest.offset, latest.leader_epoch) == (0, 1, 1)


def test_the_reply_to_a_waiting_produce_is_an_effect_of_the_fetch_that_frees_it() -> None:
    hosts, follower = leader_and_scripted_follower()
    waiting = hosts.produce(1, b"m0")
    seen: list[int] = []
    before = dict(hosts.replies)
    hosts.fetch(1, 1, replica=follower, epoch=0, last_epoch=0)
    seen = [token for token in hosts.replies if token not in before]
    assert waiting in seen
    assert isinstance(Reply(waiting, hosts.replies[waiting]), Reply)
    assert hosts.replica(1).id == P0
