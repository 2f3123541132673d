"""Restarts whose logs may have lost acknowledged bytes."""

from __future__ import annotations

import pytest

from raylog.metadata.requests import ClusterStatus, ElectionType, ElectLeaders
from raylog.types import Condition, TopicIdPartition


@pytest.fixture
def three(world):
    world.p = TopicIdPartition(world.create("t", (0, 1, 2), min_insync_replicas=2), 0)
    return world


@pytest.fixture
def one(world):
    world.p = TopicIdPartition(world.create("t", (0,)), 0)
    return world


@pytest.mark.parametrize("condition", [Condition.SUSPECT, Condition.MISSING])
def test_a_suspect_follower_leaves_the_isr_even_if_its_death_went_unnoticed(three, condition):
    node = three.state(three.p).node_of(1)
    new = three.launch(node, says_hello=False)
    new.conditions[three.p] = condition
    new.hello()
    three.run_later()
    assert three.state(three.p).isr == (0, 2)
    assert three.leader(three.p).alter(three.p, 0, 2, 1) == 0, "and comes back when it has caught up"


def test_a_missing_log_is_no_new_one_where_a_former_process_may_have_opened_it_unheard(world):
    """It may have followed, and the leader may have counted it, while its session was cut."""
    world.starts_at_once = False
    id = TopicIdPartition(world.create("t", (0, 1)), 0)
    world.launch(world.state(id).node_of(0))
    unheard = world.launch(world.state(id).node_of(1), says_hello=False)
    unheard.opens = False
    unheard.hello()
    world.run_later()
    assert (world.state(id).leader, world.state(id).isr) == (0, (0, 1))
    new = world.launch(unheard.node)
    assert new.held[id].condition is Condition.MISSING
    assert world.state(id).isr == (0,)


def test_a_log_that_was_judged_is_not_judged_again_by_the_next_controller(three):
    new = three.restart(three.p, 1, Condition.SUSPECT)
    assert three.leader(three.p).alter(three.p, 0, 2, 1) == 0
    three.restart_controller()
    for process in list(three.processes.values()):
        if process.runs:
            process.hello()
    three.run_later()
    assert new.held[three.p].condition is Condition.SUSPECT
    assert three.state(three.p).isr == (0, 2, 1)


def test_a_suspect_log_that_no_controller_has_judged_is_judged_by_the_next(three):
    """The process registered with the old controller, which ended before it heard of the log."""
    node = three.state(three.p).node_of(1)
    new = three.launch(node, says_hello=False)
    new.opens = False
    new.conditions[three.p] = Condition.SUSPECT
    new.hello()
    three.run_later()
    assert 1 in three.state(three.p).isr
    three.restart_controller()
    new.opens = True
    for process in list(three.processes.values()):
        if process.runs:
            process.hello()
    three.run_later()
    assert 1 not in three.state(three.p).isr


def test_the_last_member_serves_again_after_a_whole_restart(one):
    one.restart(one.p, 0, Condition.WHOLE)
    state = one.state(one.p)
    assert (state.leader, state.isr, state.unclean_elections) == (0, (0,), 0)


def test_the_last_known_leader_serves_again_with_a_suspect_log_counted_and_reported(one):
    one.restart(one.p, 0, Condition.SUSPECT)
    state = one.state(one.p)
    assert (state.leader, state.isr, state.unclean_elections) == (0, (0,), 1)
    assert one.ask(ClusterStatus()).unclean_elections == 1
    (said,) = (notice for notice in one.notices if "UNCLEAN" in notice)
    assert one.notice_levels[said] == "ERROR", "records that were acknowledged may be lost"


def test_a_missing_log_waits_for_an_unclean_election_by_hand(one):
    one.restart(one.p, 0, Condition.MISSING)
    state = one.state(one.p)
    assert (state.leader, state.isr, state.elr) == (-1, (), ())
    outcome = one.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),))).partitions[0]
    assert outcome.error == 0
    assert one.state(one.p).leader == 0 and one.state(one.p).unclean_elections == 1


def test_a_log_that_was_missing_waits_for_an_unclean_election_when_its_next_process_calls_it_suspect(one):
    one.restart(one.p, 0, Condition.MISSING)
    one.restart(one.p, 0, Condition.SUSPECT)
    assert (one.state(one.p).leader, one.state(one.p).unclean_elections) == (-1, 0)


def test_a_missing_log_waits_for_an_unclean_election_by_config(one):
    one.restart(one.p, 0, Condition.MISSING)
    assert one.configure("t", "unclean.leader.election.enable", "true") == 0
    assert one.state(one.p).leader == 0, "switching it on acts at once"


def test_the_isr_waits_for_its_clean_member_not_for_others(three):
    for broker in (1, 2):
        three.starts_at_once = False
        three.process(three.p, broker).kill()
    assert (three.state(three.p).isr, three.state(three.p).elr) == ((0,), (2,))
    three.leader(three.p).kill()
    three.restart(three.p, 1, Condition.WHOLE)
    assert three.state(three.p).leader == -1, "1 left the ISR while it was large enough: it may lack records"
    three.restart(three.p, 2, Condition.WHOLE)
    three.pass_time(three.config.unclean_shutdown_election_wait_ms + 200)
    state = three.state(three.p)
    assert (state.leader, state.isr, state.elr) == (2, (2,), (0,)), "an eligible leader holds everything committed"
    assert state.unclean_elections == 0


def test_a_suspect_eligible_leader_is_none(three):
    for broker in (1, 2, 0):
        three.starts_at_once = False
        three.process(three.p, broker).kill()
    three.restart(three.p, 2, Condition.SUSPECT)
    state = three.state(three.p)
    assert (state.leader, state.isr, state.elr) == (-1, (0,), ())
    three.restart(three.p, 0, Condition.WHOLE)
    assert three.state(three.p).leader == 0


def test_an_unclean_election_takes_the_longest_log(three):
    three.configure("t", "min.insync.replicas", "1")  # so that nobody stays eligible
    for broker in (1, 2, 0):
        three.starts_at_once = False
        three.process(three.p, broker).kill()
    three.restart(three.p, 1, Condition.WHOLE, (0, 5))
    three.restart(three.p, 2, Condition.WHOLE, (0, 7))
    assert three.state(three.p).leader == -1
    assert three.configure("t", "unclean.leader.election.enable", "true") == 0
    assert three.state(three.p).leader == 2 and three.state(three.p).unclean_elections == 1


def test_an_election_by_hand_moves_leadership_to_the_preferred_replica(three):
    three.starts_at_once = True
    three.leader(three.p).kill()
    leader = three.leader(three.p)
    assert leader.broker == 1
    only = ElectLeaders(ElectionType.PREFERRED, (("t", 0), ("u", 0)))
    first, unknown = three.ask(only).partitions
    assert (first.error, unknown.error) == (80, 3), "0 is not in sync yet"
    assert leader.alter(three.p, 1, 2, 0) == 0
    assert three.ask(only).partitions[0].error == 0
    assert three.state(three.p).leader == 0
    assert three.ask(only).partitions[0].error == 84
    assert three.ask(ElectLeaders(ElectionType.PREFERRED)).partitions == ()
