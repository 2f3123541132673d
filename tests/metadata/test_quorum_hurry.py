"""How soon elections follow each other once the leader is known to be gone."""

from __future__ import annotations

import uuid

import pytest

from raylog.raft.messages import AppendRequest, HardState, QuorumConfig, VoteRequest, bootstrap_snapshot
from raylog.raft.quorum import Quorum

VOTERS = [uuid.UUID(int=number) for number in (1, 2, 3)]


@pytest.fixture
def follower() -> Quorum:
    """The second voter, which has heard the first one lead."""
    quorum = Quorum(
        VOTERS[1],
        hard_state=HardState(),
        snapshot=bootstrap_snapshot("c", VOTERS),
        entries=[],
        config=QuorumConfig(),
        draw_election_timeout_ms=lambda: 1_000,
        now_ms=0,
    )
    quorum.step(VOTERS[0], AppendRequest(1, 0, 0, (), 0, 0), 0)
    quorum.ready()
    return quorum


def attempts(quorum: Quorum, until_ms: int) -> list[int]:
    """The times at which it asks who would vote for it, while nobody answers."""
    times = []
    for now_ms in range(1, until_ms + 1):
        quorum.tick(now_ms)
        ready = quorum.ready()
        if ready is not None and any(isinstance(message, VoteRequest) for _, message in ready.messages):
            times.append(now_ms)
    return times


def test_elections_after_a_known_death_begin_at_once_and_give_slow_disks_twice_the_time_each(follower: Quorum) -> None:
    follower.peer_lost(VOTERS[0], 0)
    assert attempts(follower, 4_000) == [40, 120, 280, 600, 1_240, 2_240, 3_240]


def test_a_leader_that_is_only_silent_is_given_its_time(follower: Quorum) -> None:
    assert attempts(follower, 2_500) == [1_000, 2_000]


def test_the_hurry_ends_when_a_leader_is_heard(follower: Quorum) -> None:
    follower.peer_lost(VOTERS[0], 0)
    follower.step(VOTERS[2], AppendRequest(2, 0, 0, (), 0, 0), 10)
    follower.ready()
    assert attempts(follower, 1_500) == [1_010]


def beginner(place: int) -> Quorum:
    """A voter that has just started."""
    return Quorum(
        VOTERS[place],
        hard_state=HardState(),
        snapshot=bootstrap_snapshot("c", VOTERS),
        entries=[],
        config=QuorumConfig(),
        draw_election_timeout_ms=lambda: 1_000,
        now_ms=0,
    )


def test_members_that_have_just_begun_do_not_wait_for_a_leader_that_there_never_was() -> None:
    quorum = beginner(0)
    assert attempts(quorum, 300) == []
    quorum.peer_joined(300)
    assert attempts(quorum, 500)[0] == 340


def test_members_that_begin_together_stand_one_after_the_other() -> None:
    firsts = []
    for place in range(3):
        quorum = beginner(place)
        quorum.peer_joined(0)
        firsts.append(attempts(quorum, 500)[0])
    assert firsts == [40, 120, 200]


def test_a_member_that_has_known_a_leader_waits_for_its_silence_whoever_joins(follower: Quorum) -> None:
    follower.peer_joined(0)
    assert attempts(follower, 2_500) == [1_000, 2_000]
