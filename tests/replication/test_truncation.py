"""Followers cut their logs by leader epochs and never by the high watermark."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from raylog.log.config import LogConfig
from raylog.log.log import Log
from raylog.replication.events import (
    DeleteRecordsPartition,
    DeleteRecordsReceived,
    EpochEndPartition,
    OffsetForLeaderEpochReceived,
    OffsetForLeaderEpochReply,
)
from raylog.replication.replica import Role
from raylog.simulator.replica_hosts import P0, WALL_MS, Hosts, batch, contents


def epoch_end(hosts: Hosts, broker: int, epoch: int, *, current: int = -1) -> tuple[int, int, int]:
    token = hosts.token()
    hosts.handle(broker, OffsetForLeaderEpochReceived(token, -1, (EpochEndPartition(P0, epoch, current),)))
    reply = hosts.replies[token]
    assert isinstance(reply, OffsetForLeaderEpochReply)
    return reply.partitions[0].error, reply.partitions[0].leader_epoch, reply.partitions[0].end_offset


def test_tv_21_no_data_loss_where_truncation_by_high_watermark_would_lose() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"m0")
    hosts.produce(1, b"m1", run=False)
    for _ in range(2):  # m1 to B, B's next fetch to A
        assert hosts.step()
    assert (hosts.log(1).high_watermark, hosts.log(2).high_watermark) == (2, 1)
    assert contents(hosts.log(1)) == contents(hosts.log(2)) == [(0, 0, b"m0"), (1, 0, b"m1")]
    hosts.cut = {1}
    hosts.kill(2)
    hosts.start(2)
    hosts.assign(1, (1, 2), to=(2,))
    assert hosts.log(2).log_end_offset == 2
    hosts.kill(1)
    hosts.assign(2, (2,), epoch=1)
    assert epoch_end(hosts, 2, 0) == (0, 0, 2)
    assert hosts.read(2) == [b"m0", b"m1"]
    hosts.cut = set()
    hosts.start(1)
    hosts.assign(2, (2,))
    assert contents(hosts.log(1)) == contents(hosts.log(2)) == [(0, 0, b"m0"), (1, 0, b"m1")]


def test_tv_22_divergence_is_cut_and_the_logs_are_identical() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"m0")
    hosts.inform()
    hosts.cut = {2}
    hosts.assign(1, (1,), to=(1,))
    hosts.produce(1, b"m1")
    assert (hosts.log(1).high_watermark, hosts.log(2).high_watermark) == (2, 1)
    hosts.kill(1)
    hosts.kill(2)
    hosts.cut = set()
    hosts.start(2)
    hosts.assign(2, (2,), epoch=1)
    hosts.produce(2, b"m2")
    assert hosts.log(2).high_watermark == 2
    assert hosts.log(2).leader_epochs.entries == ((0, 0), (1, 1))
    assert epoch_end(hosts, 2, 0) == (0, 0, 1)
    hosts.start(1)
    hosts.assign(2, (2,))
    assert contents(hosts.log(1)) == contents(hosts.log(2)) == [(0, 0, b"m0"), (1, 1, b"m2")]
    assert hosts.log(1).leader_epochs.entries == ((0, 0), (1, 1))


def test_what_both_logs_have_stays_above_a_high_watermark_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that cut such records would lack what was acknowledged, should it lead before it has copied them again."""
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2))
    hosts.produce(1, b"m0")
    hosts.produce(1, b"m1", run=False)
    for _ in range(2):  # m1 to 2, the next fetch of 2 to 1
        assert hosts.step()
    hosts.cut = {1}
    hosts.assign(2, (1, 2), to=(2,), epoch=1)
    hosts.produce(2, b"m2")
    assert (hosts.log(2).high_watermark, hosts.log(2).log_end_offset) == (1, 3)
    hosts.cut = {2}
    hosts.assign(1, (1, 2), to=(1,), epoch=2)
    cuts: list[int] = []
    truncate_to = Log.truncate_to

    def recorded(self: Log, offset: int) -> None:
        cuts.append(offset)
        truncate_to(self, offset)

    monkeypatch.setattr(Log, "truncate_to", recorded)
    hosts.cut = set()
    hosts.assign(1, (1, 2), epoch=2)
    assert cuts == [2]
    assert contents(hosts.log(1)) == contents(hosts.log(2)) == [(0, 0, b"m0"), (1, 0, b"m1")]


def test_a_diverging_follower_does_not_count_until_it_has_cut_its_log() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1, 2), epoch=5, to=(1,))
    hosts.produce(1, b"m0", b"m1", b"m2")
    follower = (2, hosts.processes[2].incarnation)
    answer = hosts.fetched(hosts.fetch(1, 3, replica=follower, epoch=5, last_epoch=4))
    assert answer is not None and answer.diverging_epoch == (4, 0) and not len(answer.records)
    known = hosts.replica(1).leader
    assert known is not None and known.followers[2].log_end_offset == -1
    assert hosts.log(1).high_watermark == 0


def test_a_new_leader_without_records_of_its_own_epoch_answers_for_it() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,))
    assert epoch_end(hosts, 1, 0) == (0, 0, 0)
    hosts.produce(1, b"m0")
    hosts.assign(1, (1,), epoch=4)
    assert hosts.log(1).leader_epochs.latest_epoch == 0
    assert epoch_end(hosts, 1, 0) == (0, 0, 1)
    assert epoch_end(hosts, 1, 3) == (0, 0, 1)
    assert epoch_end(hosts, 1, 4) == (0, 4, 1)
    assert epoch_end(hosts, 1, 5) == (0, -1, -1)
    assert epoch_end(hosts, 1, 4, current=3)[0] == ErrorCode.fenced_leader_epoch
    assert epoch_end(hosts, 1, 4, current=5)[0] == ErrorCode.unknown_leader_epoch
    assert epoch_end(hosts, 2, 4)[0] == ErrorCode.not_leader_or_follower


def test_a_follower_below_the_leaders_log_start_starts_there() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,), to=(1,))
    for number in range(5):
        hosts.produce(1, b"%d" % number)
    hosts.log(1).advance_log_start(3)
    hosts.assign(1, (1,))
    assert hosts.log(2).log_start_offset == 3
    assert [value for _, _, value in contents(hosts.log(2))] == [b"3", b"4"]


def test_a_log_start_within_a_batch_is_followed() -> None:
    hosts = Hosts((1, 2))
    hosts.assign(1, (1,), to=(1,))
    hosts.produce(1, b"0", b"1", b"2", b"3")
    hosts.log(1).advance_log_start(2)
    hosts.assign(1, (1,))
    assert (hosts.log(2).log_start_offset, hosts.log(2).log_end_offset) == (2, 4)
    hosts.assign(1, (1, 2))  # only a replica in sync is read from
    assert hosts.read(2, 2) == [b"2", b"3"]


def test_a_log_of_a_later_epoch_than_its_leaders_is_not_cut_but_reported() -> None:
    hosts = Hosts((1, 2))
    write(hosts, 2, [(9, 2)])
    hosts.assign(1, (1,), epoch=3)
    assert hosts.replica(2).role is Role.OFFLINE
    assert "epoch 9" in (hosts.replica(2).reason or "")
    assert hosts.closed[-1].clean is False


def write(hosts: Hosts, broker: int, runs: list[tuple[int, int]]) -> None:
    """Lay down a log before the process opens it: runs of (epoch, number of records)."""
    files = hosts.disks[broker].files()
    log = Log.open(
        f"/data/topic{P0.topic_id.int}-0",
        files=files,
        config=LogConfig(),
        topic="topic",
        partition=0,
        topic_id=uuid.UUID(int=P0.topic_id.int),
        now_ms=WALL_MS,
        boot_id="boot",
    )
    for epoch, count in runs:
        for _ in range(count):
            log.append_as_leader(batch(b"%d" % epoch), leader_epoch=epoch, wall_ms=WALL_MS)
    log.close()


runs = st.lists(st.integers(0, 3), max_size=4)


@settings(max_examples=60)
@given(shared=runs, at_leader=runs, at_follower=runs)
def test_any_two_logs_end_identical_and_keep_what_they_share(
    shared: list[int], at_leader: list[int], at_follower: list[int]
) -> None:
    """Epochs are handed out in turn: those shared first, then even ones to the leader, odd ones to the follower."""
    hosts = Hosts((1, 2))
    common = list(enumerate(shared))
    first = len(shared) + len(shared) % 2
    write(hosts, 1, common + [(first + 2 * n, count) for n, count in enumerate(at_leader)])
    write(hosts, 2, common + [(first + 2 * n + 1, count) for n, count in enumerate(at_follower)])
    hosts.assign(1, (1,), epoch=40, to=(1,))
    hosts.produce(1, b"new")
    leader = contents(hosts.log(1))
    hosts.assign(1, (1,), to=(2,), run=False)
    ends = [hosts.log(2).log_end_offset]
    while hosts.step():
        ends.append(hosts.log(2).log_end_offset)
        assert len(ends) < 1_000, "the follower never comes to rest"
    assert contents(hosts.log(2)) == leader
    assert min(ends) == min(ends[0], sum(shared)), "more was cut than the logs do not share"
    assert hosts.log(2).leader_epochs.entries == hosts.log(1).leader_epochs.entries


def test_a_log_that_ends_inside_the_leaders_first_batch_where_that_log_starts_begins_anew() -> None:
    """Deletion of records has cut the leader's epochs to where its log starts, so it cannot see that the logs diverge."""
    hosts = Hosts((1, 2, 3))
    hosts.assign(2, (1, 2, 3))
    hosts.produce(2, *[b"shared"] * 7)
    hosts.cut = {2}
    hosts.produce(2, b"lost", b"lost too", run=False)
    hosts.assign(1, (1, 3), epoch=1, to=(1, 3))
    hosts.produce(1, *[b"kept"] * 4)
    hosts.handle(1, DeleteRecordsReceived(hosts.token(), 1_000, (DeleteRecordsPartition(P0, 9),)))
    hosts.run()
    assert (hosts.log(2).log_end_offset, hosts.log(1).log_start_offset) == (9, 9)
    hosts.cut = set()
    hosts.assign(1, (1, 3), epoch=1)
    hosts.advance(100)
    assert contents(hosts.log(2)) == contents(hosts.log(1)) == contents(hosts.log(3))
    assert (hosts.log(2).log_start_offset, hosts.log(2).high_watermark) == (9, 11)
