"""Faults of real processes under a load: what is struck, how long it lasts, how it is mended.

``Target`` is the cluster under fire: who leads, who follows, which process is which. Each fault is a function of a target
that strikes, holds on for as long as ``Hold`` says, and mends; they are the same in the tests (which hold on until a
condition is true) and in the soak (which holds on for a time). A fault strikes at once, whatever is in flight.

What "mends" means: a killed process is started anew by the controller (a controller by Ray), a stopped one goes on, a
removed node comes back with its disk, a cut network heals. A failed disk works again, but replicas that met its error
stay offline until their processes are replaced (docs/limits.md): the fault ends by killing those, as an operator would. (A controller
whose disk fails ends by itself.)
"""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
from ray_clusters import eventually
from ray_nodes import RayNodes
from server_faults import ServerFaults

from raylog.client.sync import call
from raylog.errors import RaylogError
from raylog.types import broker_of
from raylog.wire.private import DescribeQuorum

Condition = Callable[[], bool]
Hold = Callable[[Condition], None]
"""Called while the fault lasts, with the condition under which it has had its effect."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A live process: of a server actor, as the holder of a partition in a leader epoch where that matters. The epoch of the
    controller is its own."""

    pid: int
    node: int = -1
    partition: int = -1
    epoch: int = -1


@dataclass(slots=True)
class Target:
    """A cluster under a load on one topic. ``dice`` choose among what may be struck.

    ``in_main_thread`` carries out and waits for what Ray allows in the main thread only: adding nodes.
    """

    nodes: RayNodes
    topic: str
    dice: random.Random
    faults: ServerFaults
    in_main_thread: Callable[[Callable[[], None]], None] = field(default=lambda work: work())

    # ---------------------------------------------------------- what there is

    def status(self) -> dict[str, Any]:
        """What the controller knows, as soon as one answers."""

        def ask() -> dict[str, Any] | None:
            try:
                return self.nodes.cluster.status(timeout_s=3)
            except RaylogError:
                return None

        found: dict[str, Any] = eventually(ask, "a controller answers")
        return found

    def parts(self) -> list[dict[str, Any]]:
        return [part for each in self.status()["topics"] if each["name"] == self.topic for part in each["partitions"]]

    def part(self, partition: int) -> dict[str, Any]:
        return self.parts()[partition]

    def is_whole(self) -> bool:
        """Whether every replica of the topic is alive and in the ISR."""
        return all(
            part["leader"] >= 0 and not part["offline"] and sorted(part["isr"]) == sorted(part["replicas"])
            for part in self.parts()
        )

    def strike(self, signal_number: int, victims: Callable[[dict[str, Any]], list[Victim]]) -> Victim:
        """Send a signal to a random one of those that the status shows; another one if that is gone meanwhile."""

        def struck() -> Victim | None:
            found = victims(self.status())
            if not found:
                return None
            victim = self.dice.choice(found)
            try:
                os.kill(victim.pid, signal_number)
            except ProcessLookupError:
                return None
            return victim

        chosen: Victim = eventually(struck, "somebody to strike")
        return chosen

    def leaders(self, status: dict[str, Any]) -> list[Victim]:
        """The live processes that lead."""
        return self._holders(status, lambda part, node: bool(node == part["leader_node"]))

    def followers(self, status: dict[str, Any]) -> list[Victim]:
        """The live processes that follow a leader."""
        return self._holders(status, lambda part, node: bool(part["leader_node"] not in (-1, node)))

    def _holders(self, status: dict[str, Any], wanted: Callable[[dict[str, Any], int], bool]) -> list[Victim]:
        pids = {actor["node_id"]: actor["pid"] for actor in status["actors"] if actor["state"] == "live"}
        return [
            Victim(pids[node], node, part["partition"], part["leader_epoch"])
            for each in status["topics"]
            if each["name"] == self.topic
            for part in each["partitions"]
            for node in part["replica_nodes"]
            if node in pids and wanted(part, node)
        ]

    def brokers(self, status: dict[str, Any]) -> list[Victim]:
        """The live Broker processes."""
        return [
            Victim(actor["pid"], actor["node_id"])
            for actor in status["actors"]
            if actor["kind"] == "broker" and actor["state"] == "live"
        ]

    def controllers(self, status: dict[str, Any]) -> list[Victim]:
        """The active controller."""
        return [Victim(status["controller"]["pid"], epoch=status["controller"]["epoch"])]

    def standbys(self, status: dict[str, Any]) -> list[Victim]:
        """The live controllers that are not the active one. Each is asked at its own address."""
        told = []
        for endpoint in self.nodes.cluster.address.bootstrap:
            with suppress(RaylogError):
                one = replace(self.nodes.cluster.address, bootstrap=(endpoint,))
                told.append(call(one, DescribeQuorum(), timeout_s=1).quorum["told_by"])
        active = status["controller"]["pid"]
        return [Victim(each["pid"]) for each in told if not each["is_active"] and each["pid"] != active]

    def a_broker_without_controller(self) -> int:
        """A broker that does not have the active controller."""
        home = self.status()["controller"]["broker"]
        return self.dice.choice([broker for broker in self.nodes.disks if broker != home])

    def has_a_server(self, broker: int) -> bool:
        """Whether a server process of that broker lives."""
        return any(actor["broker"] == broker and actor["state"] == "live" for actor in self.status()["actors"])

    def failed_pids(self, broker: int) -> list[int]:
        """The processes of that broker that hold a replica whose disk failed."""
        return [
            int(actor["pid"]) for actor in self.status()["actors"] if actor["broker"] == broker and actor["failures"]
        ]


Fault = Callable[[Target, Hold], None]
MEMORY_HEADROOM_BYTES = 2 << 30
NO_FAILURE_S = 3.0


# ------------------------------------------------------------------ kills


def kill_leader(target: Target, hold: Hold) -> None:
    """SIGKILL the leader of a partition."""
    victim = target.strike(signal.SIGKILL, target.leaders)
    hold(lambda: bool(target.part(victim.partition)["leader_epoch"] > victim.epoch))


def kill_follower(target: Target, hold: Hold) -> None:
    """SIGKILL a follower."""
    victim = target.strike(signal.SIGKILL, target.followers)
    hold(lambda: _is_replaced(target, victim))


def kill_broker(target: Target, hold: Hold) -> None:
    """SIGKILL the Broker actor of a broker."""
    victim = target.strike(signal.SIGKILL, target.brokers)
    hold(lambda: _is_replaced(target, victim))


def _is_replaced(target: Target, victim: Victim) -> bool:
    """Whether another process is the actor that the victim was."""
    return any(
        actor["state"] == "live" and actor["pid"] != victim.pid
        for actor in target.status()["actors"]
        if actor["node_id"] == victim.node
    )


def kill_controller(target: Target, hold: Hold) -> None:
    """SIGKILL the active controller."""
    victim = target.strike(signal.SIGKILL, target.controllers)
    hold(lambda: bool(target.status()["controller"]["epoch"] > victim.epoch))


def kill_standby(target: Target, hold: Hold) -> None:
    """SIGKILL a controller that is not the active one."""
    victim = target.strike(signal.SIGKILL, target.standbys)
    hold(lambda: all(victim.pid != each.pid for each in target.standbys(target.status())))


# ------------------------------------------------------------------ silence


@contextmanager
def stopped(target: Target, victims: Callable[[dict[str, Any]], list[Victim]]) -> Iterator[Victim]:
    """SIGSTOP one of them now, SIGCONT at the end; the process may be gone by then."""
    victim = target.strike(signal.SIGSTOP, victims)
    try:
        yield victim
    finally:
        try:
            os.kill(victim.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def stop_leader(target: Target, hold: Hold) -> None:
    """SIGSTOP the leader of a partition; it wakes up believing that it leads."""
    with stopped(target, target.leaders) as victim:
        hold(lambda: bool(target.part(victim.partition)["leader_epoch"] > victim.epoch))


def stop_follower(target: Target, hold: Hold) -> None:
    """SIGSTOP a follower."""
    with stopped(target, target.followers) as victim:
        hold(lambda: broker_of(victim.node) not in target.part(victim.partition)["isr"])


def stop_controller(target: Target, hold: Hold) -> None:
    """SIGSTOP the active controller; it wakes up believing that it is active."""
    with stopped(target, target.controllers):
        hold(lambda: True)


def stop_standby(target: Target, hold: Hold) -> None:
    """SIGSTOP a controller that is not the active one."""
    with stopped(target, target.standbys):
        hold(lambda: True)


# ------------------------------------------------------------------ nodes, disks, network


def node_away(target: Target, hold: Hold) -> None:
    """A whole node is gone, all its processes at once, and comes back with its disk."""
    broker = target.a_broker_without_controller()
    target.nodes.remove(broker)
    try:
        hold(lambda: all(broker in part["offline"] for part in target.parts()))
    finally:
        target.in_main_thread(lambda: target.nodes.restore(broker))


def node_of_controller_away(target: Target, hold: Hold) -> None:
    """The active controller's node is gone, all its processes at once, and comes back with its disk."""
    controller = target.status()["controller"]
    broker = int(controller["broker"])
    target.nodes.remove(broker)
    try:
        hold(lambda: bool(target.status()["controller"]["epoch"] > controller["epoch"]))
    finally:
        target.in_main_thread(lambda: target.nodes.restore(broker))


def disk_full(target: Target, hold: Hold) -> None:
    """A disk takes no more bytes, neither of records nor of metadata."""
    _broken_disk(target, hold, errno.ENOSPC)


def disk_write_error(target: Target, hold: Hold) -> None:
    """A disk answers writes with an I/O error."""
    _broken_disk(target, hold, errno.EIO)


def _broken_disk(target: Target, hold: Hold, error: int) -> None:
    broker = target.dice.choice(list(target.nodes.disks))
    with target.faults.failing_writes(target.nodes.disks[broker], error):
        hold(lambda: bool(target.failed_pids(broker)))
    _replace_failed(target, broker)


def _replace_failed(target: Target, broker: int) -> None:
    """Kill the broker's processes that hold a failed replica until none has reported one for ``NO_FAILURE_S``.

    A process can report an error after the disk works again: its write was in flight, or its controller was away.
    """
    quiet_since = time.monotonic()

    def none_reported() -> bool:
        nonlocal quiet_since
        try:
            failed = target.failed_pids(broker)
        except RaylogError:
            quiet_since = time.monotonic()  # nobody could report one
            raise
        for pid in failed:
            quiet_since = time.monotonic()
            with suppress(ProcessLookupError):  # another fault was quicker
                os.kill(pid, signal.SIGKILL)
        return time.monotonic() - quiet_since > NO_FAILURE_S

    eventually(none_reported, f"no failed replica on broker {broker}")


def network_cut(target: Target, hold: Hold) -> None:
    """Two brokers do not hear each other, while both hear everybody else; not one that has the controller."""
    home = target.status()["controller"]["broker"]
    one, other = [broker for broker in target.nodes.disks if broker != home]
    with target.faults.cut(one, other):
        hold(lambda: any(len(part["isr"]) < len(part["replicas"]) for part in target.parts()))


def network_cut_of_controller(target: Target, hold: Hold) -> None:
    """One broker and the controller's do not hear each other: its processes fall silent for the controller."""
    home = target.status()["controller"]["broker"]
    other = target.dice.choice([broker for broker in target.nodes.disks if broker != home])
    with target.faults.cut(home, other):
        hold(lambda: all(other not in part["isr"] for part in target.parts()))


def memory_eaten(target: Target, hold: Hold) -> None:
    """A user's task eats memory on a broker's node until Ray's memory monitor acts, on whomever it chooses: the task, or a server.

    Monitors look at the whole machine, which others use too. So the node is replaced by one whose monitor acts when the
    machine uses ``MEMORY_HEADROOM_BYTES`` more than at that moment, and afterwards by an ordinary one: no other node's acts.
    """
    eventually(_has_memory_to_spare, f"{4 * MEMORY_HEADROOM_BYTES:,} bytes of memory that nobody uses")
    broker = target.a_broker_without_controller()
    with target.nodes.memory_eater() as eat:
        target.nodes.remove(broker)
        target.in_main_thread(lambda: target.nodes.restore(broker, memory_headroom_bytes=MEMORY_HEADROOM_BYTES))
        try:
            eventually(lambda: target.has_a_server(broker), f"servers of broker {broker} are on the new node")
            eat(broker, 2 * MEMORY_HEADROOM_BYTES)
        finally:
            target.nodes.remove(broker)
            target.in_main_thread(lambda: target.nodes.restore(broker))


def _has_memory_to_spare() -> bool:
    return bool(psutil.virtual_memory().available > 4 * MEMORY_HEADROOM_BYTES)


# ------------------------------------------------------------------ moves between actors


@dataclass(frozen=True, slots=True)
class Moved:
    """A replica on its way from one actor of a disk to another."""

    partition: int
    broker: int
    source: int
    to: int
    source_pid: int
    to_pid: int
    controller_pid: int


def plan_move(target: Target, topic: str, *, of_leader: bool) -> Moved:
    """A move of a random replica that could be asked for. A disk with one actor gets a second one first."""

    def planned() -> Moved | None:
        status = target.status()
        parts = [part for each in status["topics"] if each["name"] == topic for part in each["partitions"]]
        part = target.dice.choice(parts)
        nodes = [node for node in part["replica_nodes"] if (node == part["leader_node"]) == of_leader]
        if not nodes:
            return None
        node = target.dice.choice(nodes)
        others = _others_of_its_disk(status, node)
        if not others:
            with target.nodes.cluster.admin() as admin:
                admin.add_actor(broker_of(node))
            eventually(lambda: _others_of_its_disk(target.status(), node), "a second actor of the disk")
            return None
        to, pids = target.dice.choice(others), {actor["node_id"]: actor["pid"] for actor in status["actors"]}
        controller_pid = status["controller"]["pid"]
        return Moved(part["partition"], broker_of(node), node, to, pids[node], pids[to], controller_pid)

    plan: Moved = eventually(planned, "a replica that can move")
    return plan


def begin_move(target: Target, topic: str, *, of_leader: bool) -> Moved:
    """Ask for the move of a random replica."""

    def asked() -> Moved | None:
        move = plan_move(target, topic, of_leader=of_leader)
        with target.nodes.cluster.admin() as admin:
            (refused,) = admin.move_replicas([(topic, move.partition, move.broker, move.to)]).values()
        return move if refused is None else None

    moved: Moved = eventually(asked, "a move that is not refused")
    return moved


def _others_of_its_disk(status: dict[str, Any], node: int) -> list[int]:
    disk = next((actor["disk"] for actor in status["actors"] if actor["node_id"] == node), None)
    return [
        actor["node_id"]
        for actor in status["actors"]
        if actor["disk"] == disk
        and actor["host"] == "replicas"
        and actor["state"] == "live"
        and actor["node_id"] != node
    ]


def is_moved(target: Target, topic: str, moved: Moved) -> bool:
    """Whether the replica is at its new actor, or at yet another one, and in sync."""
    parts = [part for each in target.status()["topics"] if each["name"] == topic for part in each["partitions"]]
    part = parts[moved.partition]
    return moved.source not in part["replica_nodes"] and moved.broker in part["isr"] and part["leader"] >= 0


def move_leader(target: Target, hold: Hold) -> None:
    """A leader's replica goes to another actor of its disk."""
    moved = begin_move(target, target.topic, of_leader=True)
    hold(lambda: is_moved(target, target.topic, moved))


def move_follower(target: Target, hold: Hold) -> None:
    """A follower's replica goes to another actor of its disk."""
    moved = begin_move(target, target.topic, of_leader=False)
    hold(lambda: is_moved(target, target.topic, moved))


def kill_amid_move(target: Target, topic: str, victim: str) -> Moved:
    """SIGKILL a process at a random moment of a move: the former holder (``source``), the new one (``to``), the ``controller`` or
    ``nobody``."""
    moved = begin_move(target, topic, of_leader=target.dice.random() < 0.7 or topic != target.topic)
    threading.Event().wait(target.dice.choice((0.0, 0.0, 0.005, 0.02, 0.05)))
    pid = {"source": moved.source_pid, "to": moved.to_pid, "controller": moved.controller_pid}.get(victim, 0)
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return moved


KINDS: dict[str, Fault] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        kill_leader,
        kill_follower,
        kill_controller,
        kill_standby,
        kill_broker,
        stop_leader,
        stop_follower,
        stop_controller,
        stop_standby,
        node_away,
        node_of_controller_away,
        disk_full,
        disk_write_error,
        network_cut,
        network_cut_of_controller,
        memory_eaten,
        move_leader,
        move_follower,
    )
}
