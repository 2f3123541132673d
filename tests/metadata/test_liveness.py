"""How a death is found out, and how fast."""

from __future__ import annotations

import pytest

from raylog.metadata.events import ControllerTicked, DialOutcome
from raylog.types import TopicIdPartition


@pytest.fixture
def led(world):
    world.topic = world.create("t", (0, 1, 2))
    world.p = TopicIdPartition(world.topic, 0)
    world.starts_at_once = False
    return world


def alive(world, process):
    return world.image.actors[process.node].alive


@pytest.mark.parametrize("outcome", [DialOutcome.REFUSED, DialOutcome.CLOSED])
def test_a_refused_or_closed_dial_is_death_at_once(led, outcome):
    led.answers_dials = False
    leader = led.leader(led.p)
    leader.lose_session()
    (dial,) = led.dials
    assert (dial.endpoint, dial.incarnation) == (leader.endpoint, leader.incarnation)
    assert led.state(led.p).leader == 0, "a session that ends is a question, not an answer"
    led.answer(dial, outcome)
    assert not alive(led, leader) and led.state(led.p).leader == 1
    assert led.now == led.now, "and no time has passed"


def test_a_process_that_answers_but_brings_no_session_is_dead_after_half_a_second(led):
    leader = led.leader(led.p)
    leader.lose_session()
    led.pass_time(450, step=50)
    assert alive(led, leader)
    led.pass_time(100, step=50)
    assert not alive(led, leader) and led.state(led.p).leader == 1


def test_a_process_that_brings_its_session_back_in_time_lives(led):
    leader = led.leader(led.p)
    leader.lose_session()
    led.pass_time(450, step=50)
    leader.hello()
    led.run_later()
    led.pass_time(2_000)
    assert alive(led, leader) and led.state(led.p).leader == 0


@pytest.mark.parametrize("outcome", [DialOutcome.MUTE, DialOutcome.UNREACHABLE])
def test_an_unreachable_or_mute_process_is_dead_after_the_session_timeout(led, outcome):
    led.answers_dials = False
    leader = led.leader(led.p)
    heard_at = led.now
    leader.lose_session()
    answered = 0
    while led.now < heard_at + 8_900:
        for dial in led.dials[answered:]:
            answered += 1
            led.answer(dial, outcome)
        led.pass_time(100)
    assert alive(led, leader) and answered > 10, "it is dialled again and again"
    led.pass_time(200)
    assert not alive(led, leader) and led.state(led.p).leader == 1


def test_a_mute_process_that_is_killed_meanwhile_is_dead_at_once(led):
    led.answers_dials = False
    leader = led.leader(led.p)
    leader.lose_session()
    led.answer(led.dials[-1], DialOutcome.MUTE)
    led.pass_time(600)
    assert len(led.dials) == 2
    led.answer(led.dials[-1], DialOutcome.REFUSED)
    assert not alive(led, leader)


def test_an_answer_to_an_older_dial_means_nothing(led):
    led.answers_dials = False
    leader = led.leader(led.p)
    leader.lose_session()
    leader.hello()
    led.run_later()
    led.answer(led.dials[0], DialOutcome.REFUSED)
    assert alive(led, leader)
    leader.lose_session()
    led.answer(led.dials[0], DialOutcome.REFUSED)
    assert alive(led, leader), "only the second dial asks about now"
    led.answer(led.dials[1], DialOutcome.REFUSED)
    assert not alive(led, leader)


def test_a_session_without_heartbeats_is_dead_after_the_session_timeout_and_is_closed(led):
    leader = led.leader(led.p)
    session = leader.session
    leader.mute = True  # stopped: the connection stays open
    led.pass_time(8_900)
    assert alive(led, leader)
    led.pass_time(200)
    assert not alive(led, leader) and session not in led.sessions
    assert led.state(led.p).leader == 1


def test_a_controller_that_was_paused_judges_nobody_and_restarts_all_timers(led):
    led.now += 60_000  # nobody was heard, because nobody listened
    led.feed(ControllerTicked())
    assert all(alive(led, process) for process in led.processes.values())
    led.pass_time(8_900, beating=False)
    assert all(alive(led, process) for process in led.processes.values()), "everybody has his time again"
    led.pass_time(200, beating=False)
    assert not any(alive(led, process) for process in led.processes.values())


def test_a_pause_gives_the_dialled_their_half_second_again(led):
    leader = led.leader(led.p)
    leader.lose_session()
    led.now += 3_000
    led.feed(ControllerTicked())
    assert alive(led, leader)
    leader.hello()
    led.run_later()
    led.pass_time(2_000)
    assert alive(led, leader)


def test_a_new_active_controller_dials_everybody_it_has_not_heard_and_judges_alike(led):
    leader, follower = led.leader(led.p), led.process(led.p, 1)
    leader.runs = False
    led.dials.clear()
    led.restart_controller()
    assert sorted(dial.node_id for dial in led.dials) == sorted(led.processes)
    assert not alive(led, leader), "refused"
    follower.hello()
    led.run_later()
    assert led.state(led.p).leader == 1
    led.pass_time(600)
    assert alive(led, follower)
    assert not alive(led, led.process(led.p, 2)), "it answered, and brought no session within half a second"


def test_a_death_and_all_its_elections_are_one_decision(world):
    world.create("wide", *[(0, 1, 2)] * 6, replicas_per_actor=6)
    entries = len(world.entries)
    world.starts_at_once = False
    leader = world.process(TopicIdPartition(world.image.topic_ids["wide"], 0), 0)
    follower = world.process(TopicIdPartition(world.image.topic_ids["wide"], 0), 1)
    follower.heard.clear()
    leader.kill()
    assert len(world.entries) == entries + 1
    assert all(state.leader == 1 for state in world.image.topic_named("wide").partitions.values())
    assert len(follower.heard) == 6, "each partition's new assignment, once"


def test_everybody_killed_at_once_comes_back_with_everything_in_sync(led):
    """A new controller finds all processes gone: whoever was in sync when they stopped is as good as the others."""
    led.starts_at_once = True
    for process in led.processes.values():
        process.runs = False
    led.restart_controller()
    led.pass_time(3_000)
    state = led.state(led.p)
    assert state.leader >= 0 and state.unclean_elections == 0
    assert all(process.session is not None for process in led.processes.values())
