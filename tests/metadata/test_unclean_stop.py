"""Who leads after an unclean stop: the longest log of those that may hold everything, never one that was cut at rest."""

from __future__ import annotations

import pytest

from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.requests import ElectionType, ElectLeaders
from raylog.types import Condition, TopicIdPartition

WHOLE = Condition.WHOLE
WAIT = "unclean.shutdown.election.wait.ms"


@pytest.fixture
def three(world):
    world.p = TopicIdPartition(world.create("t", (0, 1, 2), min_insync_replicas=2), 0)
    return world


def kill_at_once(world):
    """Everything, controller included: the next one finds all of them dead."""
    world.starts_at_once = False
    for process in world.processes.values():
        process.runs = False
    world.restart_controller()
    world.pass_time(100)
    assert world.state(world.p).leader == -1 and set(world.state(world.p).isr) == {0, 1, 2}


def test_a_log_that_was_cut_at_rest_does_not_lead_though_it_comes_back_first(three):
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 5))
    three.restart(three.p, 1, WHOLE, (0, 10))
    assert three.state(three.p).leader == -1, "the third has not been heard"
    three.restart(three.p, 2, WHOLE, (0, 10))
    state = three.state(three.p)
    assert (state.leader, state.isr, state.unclean_elections) == (1, (1, 2), 0)


def test_the_latest_epoch_counts_before_the_length(three):
    three.restart(three.p, 0, Condition.CLEAN)
    assert three.leader(three.p).alter(three.p, 1, 2, 0) == 0
    assert three.state(three.p).leader_epoch == 1
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 50))
    three.restart(three.p, 1, WHOLE, (1, 10))
    three.restart(three.p, 2, WHOLE, (0, 60))
    assert three.state(three.p).leader == 1


def test_the_wait_ends_and_the_longest_that_is_there_leads(three):
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 5))
    three.pass_time(5_000)
    three.restart(three.p, 1, WHOLE, (0, 10))
    three.pass_time(4_000)
    assert three.state(three.p).leader == -1
    three.pass_time(1_200)
    state = three.state(three.p)
    assert (state.leader, state.isr, state.unclean_elections) == (1, (1,), 0)
    assert any("waits up to 10000 ms for the logs of brokers [1, 2]" in notice for notice in three.notices)


def test_the_wait_is_a_config_of_the_cluster(three):
    change = ConfigChange(WAIT, ConfigOperation.SET, "300")
    assert three.ask(AlterConfigs((ResourceChanges(ResourceType.BROKER, "", (change,)),))).resources[0].error == 0
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 5))
    three.pass_time(200)
    assert three.state(three.p).leader == -1
    three.pass_time(200)
    assert three.state(three.p).leader == 0


def test_an_unclean_election_by_hand_does_not_end_the_wait(three):
    """It would lose records that are back within seconds, and count as clean."""
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 5))
    outcome = three.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),))).partitions[0]
    assert outcome.error == 83 and "may still return" in outcome.message
    assert three.state(three.p).leader == -1


def test_a_log_that_a_clean_stop_left_leads_at_once(three):
    kill_at_once(three)
    three.restart(three.p, 1, Condition.CLEAN, (0, 10))
    assert three.state(three.p).leader == 1


def test_a_member_that_kept_running_leads_at_once(three):
    kept = three.process(three.p, 2)
    three.restart(three.p, 1, WHOLE, (0, 5))
    assert three.state(three.p).isr == (0, 2), "it has to catch up first, however long it was in sync before"
    three.leader(three.p).kill()
    state = three.state(three.p)
    assert (state.leader, state.leader_incarnation) == (2, kept.incarnation)


def test_nobody_waits_for_a_log_that_cannot_be_opened(three):
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 10))
    for broker in (1, 2):
        new = three.launch(three.process(three.p, broker).node, says_hello=False)
        new.opens = False
        new.hello()
        new.fail(three.p)
    assert three.state(three.p).leader == 0


def test_the_wait_goes_on_under_the_next_controller(three):
    kill_at_once(three)
    first = three.restart(three.p, 0, WHOLE, (0, 5))
    three.restart_controller()
    first.hello()
    three.run_later()
    assert three.state(three.p).leader == -1
    three.restart(three.p, 1, WHOLE, (0, 10))
    three.restart(three.p, 2, WHOLE, (0, 9))
    assert (three.state(three.p).leader, three.state(three.p).isr) == (1, (1,))


def test_replicas_with_the_same_log_are_proven_by_the_election_and_never_wait_again(three):
    kill_at_once(three)
    for broker in (0, 1, 2):
        three.restart(three.p, broker, WHOLE, (0, 10))
    assert (three.state(three.p).leader, three.state(three.p).isr) == (0, (0, 1, 2))
    three.leader(three.p).kill()
    assert three.state(three.p).leader == 1


def test_the_longest_of_isr_and_eligible_leaders_leads(three):
    for broker in (1, 2):
        three.starts_at_once = False
        three.process(three.p, broker).kill()
    assert (three.state(three.p).isr, three.state(three.p).elr) == ((0,), (2,))
    three.leader(three.p).kill()
    three.restart(three.p, 0, WHOLE, (0, 5))
    assert three.state(three.p).leader == -1
    three.restart(three.p, 2, WHOLE, (0, 10))
    state = three.state(three.p)
    assert (state.leader, state.isr, state.elr, state.unclean_elections) == (2, (2,), (0,), 0)


def test_a_log_below_what_another_replica_knows_to_be_committed_leaves_the_isr(world):
    world.p = TopicIdPartition(world.create("t", (0, 1), min_insync_replicas=1), 0)
    world.starts_at_once = False
    world.process(world.p, 1).kill()
    assert (world.state(world.p).isr, world.state(world.p).elr) == ((0,), ())
    world.restart(world.p, 1, WHOLE, (0, 9, 8))
    world.restart(world.p, 0, WHOLE, (0, 5))
    state = world.state(world.p)
    assert (state.leader, state.isr, state.unclean_elections) == (1, (1,), 1), (
        "what 0 had alone is lost, 1 has the rest"
    )
    assert any("lacks records" in notice for notice in world.notices)


def test_a_log_of_an_epoch_that_nobody_was_given_is_suspect(three):
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (77, 50))
    assert three.state(three.p).isr == (1, 2)


# ---------------------------------------------------------------------- the controllers' own record of high watermarks


def test_a_log_below_the_recorded_high_watermark_does_not_lead_after_the_wait_either(three):
    three.report(three.p, 8)
    assert three.noted(three.p) == (0, 8)
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 5))
    three.pass_time(15_000)
    state = three.state(three.p)
    assert (state.leader, state.isr, state.unclean_elections) == (-1, (1, 2), 0)
    assert any(
        "the log of broker 0 ends at 5 and lacks committed records, up to 8" in notice for notice in three.notices
    )
    three.restart(three.p, 1, WHOLE, (0, 10))
    three.pass_time(10_200)
    state = three.state(three.p)
    assert (state.leader, state.isr, state.unclean_elections) == (1, (1,), 0)


def test_a_log_that_reaches_the_record_leads_after_the_wait(three):
    three.report(three.p, 8)
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 8))
    three.pass_time(10_200)
    assert (three.state(three.p).leader, three.state(three.p).unclean_elections) == (0, 0)


def test_a_clean_log_below_the_record_is_an_old_copy_and_has_to_wait_as_well(three):
    three.report(three.p, 8)
    kill_at_once(three)
    three.restart(three.p, 0, Condition.CLEAN, (0, 5))
    three.pass_time(15_000)
    assert (three.state(three.p).leader, three.state(three.p).isr) == (-1, (1, 2))


def test_an_old_copy_stays_behind_the_next_controller_too(three):
    three.report(three.p, 8)
    kill_at_once(three)
    first = three.restart(three.p, 0, Condition.CLEAN, (0, 5))
    three.restart_controller()
    first.hello()
    three.run_later()
    three.pass_time(15_000)
    assert (three.state(three.p).leader, three.state(three.p).isr) == (-1, (1, 2))


def test_a_clean_log_is_judged_by_what_it_was_when_it_was_opened_not_by_what_is_recorded_later(three):
    """Its process came back before its death was noticed, and it stays in sync."""
    three.starts_at_once = False
    new = three.launch(three.process(three.p, 1).node, says_hello=False)
    new.conditions[three.p], new.ends[three.p] = Condition.CLEAN, (0, 5)
    new.hello()
    three.run_later()
    three.report(three.p, 8)
    assert three.noted(three.p) == (0, 8) and three.state(three.p).isr == (0, 1, 2)
    three.leader(three.p).kill()
    state = three.state(three.p)
    assert (state.leader, state.leader_incarnation) == (1, new.incarnation)


def test_while_a_short_log_is_alone_replicas_out_of_sync_are_awaited_too(three):
    three.report(three.p, 8)
    three.starts_at_once = False
    three.process(three.p, 2).kill()
    three.process(three.p, 1).kill()
    assert three.configure("t", "min.insync.replicas", "1") == 0
    assert (three.state(three.p).isr, three.state(three.p).elr) == ((0,), ())
    three.leader(three.p).kill()
    three.restart(three.p, 0, WHOLE, (0, 5))
    three.pass_time(5_000)
    assert three.state(three.p).leader == -1
    three.restart(three.p, 1, WHOLE, (0, 9))
    three.restart(three.p, 2, WHOLE, (0, 7))
    state = three.state(three.p)
    assert (state.leader, state.isr, state.unclean_elections) == (1, (1,), 1)


def test_the_only_replica_leads_below_the_record_and_it_is_counted(world):
    world.p = TopicIdPartition(world.create("t", (0,)), 0)
    world.report(world.p, 8)
    world.starts_at_once = False
    world.leader(world.p).kill()
    world.restart(world.p, 0, WHOLE, (0, 5))
    state = world.state(world.p)
    assert (state.leader, state.isr, state.unclean_elections) == (0, (0,), 1)


def test_an_unclean_election_by_hand_ends_what_was_recorded(three):
    three.report(three.p, 8)
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 5))
    assert three.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),))).partitions[0].error == 83, "the wait is not over"
    three.pass_time(15_000)
    assert three.ask(ElectLeaders(ElectionType.UNCLEAN, (("t", 0),))).partitions[0].error == 0
    state = three.state(three.p)
    assert (state.leader, state.isr, state.unclean_elections) == (0, (0,), 1)
    assert three.noted(three.p) is None
    three.report(three.p, 6)
    assert three.noted(three.p) == (state.leader_epoch, 6)
    three.restart(three.p, 0, WHOLE, (state.leader_epoch, 6))
    assert three.state(three.p).leader == 0


def test_an_unclean_election_that_the_topic_allows_comes_after_the_wait(three):
    assert three.configure("t", "unclean.leader.election.enable", "true") == 0
    three.report(three.p, 8)
    kill_at_once(three)
    three.restart(three.p, 0, WHOLE, (0, 5))
    three.pass_time(9_000)
    assert three.state(three.p).leader == -1
    three.pass_time(1_300)
    state = three.state(three.p)
    assert (state.leader, state.isr, state.unclean_elections) == (0, (0,), 1)
    assert three.noted(three.p) is None
