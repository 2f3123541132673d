"""Faults to be patched into scaling by itself, by name, as in ``mutations``: how many hosts, which of them end, what moves and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raylog.metadata.actors import host_loads, scaling
from raylog.metadata.actors.host_loads import Bounds
from raylog.metadata.actors.node_slots import NodeSlots
from raylog.metadata.actors.scaling import Scaling

Mutation = Callable[[pytest.MonkeyPatch], None]


def add_hosts_beyond_the_cores(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scaling, "_has_room", lambda self, source, bounds: True)


def retire_hosts_that_nobody_added(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scaling, "_may_end", staticmethod(lambda host: True))


def move_a_replica_that_has_just_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bounds, "rest_ms", property(lambda self: 0))


def move_the_next_replica_before_the_last_has_arrived(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scaling, "_has_arrived", lambda self, id, step: True)


def move_a_replica_while_another_one_is_out_of_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scaling, "_is_whole", lambda state: True)


def move_for_no_gain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host_loads, "GAIN_MIN", 0.0)


def forget_that_a_host_was_added(patch: pytest.MonkeyPatch) -> None:
    """The record does not say so, and the next controller, or this one, takes it for an operator's."""
    plan = NodeSlots.plan_host

    def planned(self: NodeSlots, *arguments: Any, is_automatic: bool = False) -> Any:
        return plan(self, *arguments)

    patch.setattr(NodeSlots, "plan_host", planned)


SCALING_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        add_hosts_beyond_the_cores,
        retire_hosts_that_nobody_added,
        move_a_replica_that_has_just_moved,
        move_the_next_replica_before_the_last_has_arrived,
        move_a_replica_while_another_one_is_out_of_sync,
        move_for_no_gain,
        forget_that_a_host_was_added,
    )
}
