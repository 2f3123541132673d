"""Processes that are killed at a named step of a replica's move between two actors of its disk.

A process halts where it comes to the step (``server_hooks/move_halts``), the victim gets its SIGKILL while it halts, and then it goes
on. In their order, with the process that halts:

===================  ================  ===========================================================================
step                 who halts         at this moment
===================  ================  ===========================================================================
decided              the controller    the move is decided; no voter has it yet
recorded             the controller    the voters have it; nobody has been told
told to release      the old host      it has the Release; the log is open
closed               the old host      the log is closed and unlocked; ``ReplicaReleased`` is still to come
led elsewhere        another replica   it has taken the leadership over
assigned             the new host      it has the Assignment; nothing is opened
opening              the new host      it is about to open the log
opened               the new host      the log is open and locked; the controller does not know
reported             the controller    it knows that the log is open, and what that changes is decided; no voter has it yet
rejoining            the controller    the leader has asked for the replica to join the ISR again
returning            the controller    leadership returns to the preferred replica, by a decision that no voter has yet
===================  ================  ===========================================================================
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from process_faults import Moved, Target, plan_move
from ray_clusters import eventually

from raylog.errors import RaylogError
from raylog.log.partition_metadata import LOCK_NAME
from raylog.types import TopicPartition

STEPS_ALONE = ("decided", "recorded", "told to release", "closed", "assigned", "opening", "opened", "reported")
"""Of a replica that has no others: nobody can lead meanwhile."""
STEPS = (*STEPS_ALONE, "led elsewhere", "rejoining", "returning")
VICTIMS: dict[str, Callable[[Moved], int]] = {
    "old host": lambda move: move.source_pid,
    "new host": lambda move: move.to_pid,
    "controller": lambda move: move.controller_pid,
}


def kill_at(target: Target, topic: str, step: str, victim: str) -> Moved:
    """Move a leading, preferred replica, kill the victim at that step, and wait until all is settled. Asserts that the replica is in one
    place then: at the new actor, or at the old one if the move was refused by name."""
    eventually(lambda: _is_at_rest(target, topic), "all replicas are in sync, and the preferred ones lead")
    move = plan_move(target, topic, of_leader=True)
    with target.nodes.cluster.admin() as admin:
        topic_id = admin.describe_topics([topic])[topic].topic_id
    replica = {"topic_id": topic_id.hex, "partition": move.partition, "broker": move.broker}
    with ThreadPoolExecutor(1) as asking:
        with target.faults.halting(step, source=move.source, to=move.to, **replica) as who:
            refusal = asking.submit(_ask, target, topic, move)
            halted = eventually(who, f"somebody comes to {step!r} of {move}")
            with suppress(ProcessLookupError):
                os.kill(VICTIMS[victim](move), signal.SIGKILL)
        refused = refusal.result()
    print(f"{topic}-{move.partition}: {victim} killed at {step!r}, where {halted} halted; refused: {refused!r}")
    place = move.to if refused is None else move.source
    eventually(lambda: _is_settled_at(target, topic, move, place), f"the replica is at actor {place}: {move}")
    return move


def _ask(target: Target, topic: str, move: Moved) -> RaylogError | None:
    """Ask until there is an answer: why it was refused, or None."""

    def answered() -> list[RaylogError | None]:
        with target.nodes.cluster.admin() as admin:
            return list(admin.move_replicas([(topic, move.partition, move.broker, move.to)]).values())

    answers: list[RaylogError | None] = eventually(answered, "an answer to the move")
    return answers[0]


def _is_at_rest(target: Target, topic: str) -> bool:
    parts = _parts(target, topic)
    if any(sorted(part["isr"]) != sorted(part["replicas"]) for part in parts):
        return False
    astray = [TopicPartition(topic, part["partition"]) for part in parts if part["leader"] != part["replicas"][0]]
    if astray:
        with target.nodes.cluster.admin() as admin:
            admin.elect_leaders(astray)
    return not astray


def _is_settled_at(target: Target, topic: str, move: Moved, node: int) -> bool:
    """Whether that actor holds the replica, in sync, and its process alone has the log open."""
    status = target.status()
    part = _parts(target, topic)[move.partition]
    pids = {actor["node_id"]: actor["pid"] for actor in status["actors"] if actor["state"] == "live"}
    held = [each for each in part["replica_nodes"] if each in (move.source, move.to)]
    assert len(held) == 1, f"the replica is in {len(held)} places: {part}"
    return (
        held == [node]
        and part["leader"] >= 0
        and sorted(part["isr"]) == sorted(part["replicas"])
        and _who_has_open(target, topic, move) == [pids.get(node)]
    )


def _who_has_open(target: Target, topic: str, move: Moved) -> list[int]:
    """The processes of this machine that have that replica's log open."""
    lock = os.stat(target.nodes.disks[move.broker] / f"{topic}-{move.partition}" / LOCK_NAME)
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _has_open(pid, lock)]


def _has_open(pid: str, wanted: os.stat_result) -> bool:
    with suppress(OSError):  # it has gone
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), wanted):
                    return True
    return False


def _parts(target: Target, topic: str) -> list[dict[str, Any]]:
    return [part for each in target.status()["topics"] if each["name"] == topic for part in each["partitions"]]
