"""A session timeout that is changed while the controller runs holds at once, also for a process that is silent already."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.events import DialOutcome
from raylog.types import TopicIdPartition


@pytest.fixture
def led(world: Any) -> Any:
    world.p = TopicIdPartition(world.create("t", (0, 1, 2)), 0)
    world.starts_at_once = False
    return world


def set_for_all(world: Any, **values: int) -> None:
    changes = tuple(
        ConfigChange(f"broker.{name.replace('_', '.')}.ms", ConfigOperation.SET, str(value))
        for name, value in values.items()
    )
    reply = world.ask(AlterConfigs((ResourceChanges(ResourceType.BROKER, "", changes),), validate_only=False))
    assert [each.error for each in reply.resources] == [ErrorCode.none], reply


def is_alive(world: Any, process: Any) -> bool:
    alive: bool = world.image.actors[process.node].alive
    return alive


def test_a_process_that_is_silent_already_is_dead_by_a_timeout_that_was_made_shorter(led: Any) -> None:
    set_for_all(led, session_timeout=600_000)
    led.pass_time(3_000)  # everybody is heard once more
    leader = led.leader(led.p)
    leader.mute = True
    led.pass_time(3_000)
    set_for_all(led, session_timeout=4_000)
    led.pass_time(3_900)
    assert is_alive(led, leader), "the shorter timeout counts from its change: nobody dies of the change itself"
    led.pass_time(200)
    assert not is_alive(led, leader) and led.state(led.p).leader == 1


def test_a_process_that_is_silent_already_lives_on_by_a_timeout_that_was_made_longer(led: Any) -> None:
    leader = led.leader(led.p)
    leader.mute = True
    led.pass_time(8_000)
    set_for_all(led, session_timeout=60_000)
    led.pass_time(59_000)
    assert is_alive(led, leader)
    led.pass_time(2_000)
    assert not is_alive(led, leader)


def test_a_process_that_is_dialled_in_vain_is_dead_by_a_timeout_that_was_made_shorter(led: Any) -> None:
    led.answers_dials = False
    set_for_all(led, session_timeout=600_000)
    leader = led.leader(led.p)
    leader.lose_session()
    led.answer(led.dials[-1], DialOutcome.MUTE)
    set_for_all(led, session_timeout=4_000)
    led.pass_time(3_900)
    assert is_alive(led, leader)
    led.pass_time(200)
    assert not is_alive(led, leader)


def test_a_change_of_another_config_gives_a_silent_process_no_more_time(led: Any) -> None:
    leader = led.leader(led.p)
    leader.mute = True
    led.pass_time(8_000)
    set_for_all(led, redial_interval=100)
    led.pass_time(1_200)
    assert not is_alive(led, leader)
