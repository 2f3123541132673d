"""Old copies of brokers' logs, taken now and then while they are written to, to be brought back
while everything is down.

Owns the copies and what may be brought back. A copy is a folder with all its files: log,
checkpoint, leader epochs, producer snapshots, as they were at one moment. Nothing in it shows that
the log was longer since. Only the controllers' record of high watermarks does, so nothing is
brought back but what lies below that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.control.session import ReplicaStatus
from raylog.metadata.partitions.elections import is_below
from raylog.replication.replica import Role
from raylog.simulator.simulated_files import FolderCopy
from raylog.types import TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.processes import Machine
    from raylog.simulator.simulation import Simulation

KEPT = 8  # of each folder; the first fitting one of them is brought back
INTERVAL_MS = 700


@dataclass(frozen=True, slots=True)
class OldCopy:
    """A replica's folder, and what its log was like."""

    status: ReplicaStatus
    folder: FolderCopy


class OldCopies:
    """``start`` begins to take them; ``fitting`` names those that may be brought back."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self._copies: dict[str, dict[TopicIdPartition, deque[OldCopy]]] = {}  # by machine

    def start(self) -> None:
        later = self.simulation.rhythm.later
        later(self.scheduler.after_us, INTERVAL_MS * 1_000, self._take, "copies are taken")

    def _take(self) -> None:
        """Of all that a broker holds."""
        machine = self.scheduler.rng.choice(self.simulation.broker_machines)
        copies = self._copies.setdefault(machine.name, {})
        for process in self.simulation.replica_processes():
            for id, replica in process.host.replicas.items():
                path = f"/{machine.name}/{replica.assignment.topic}-{id.partition}"
                is_serving = replica.role in (Role.LEADER, Role.FOLLOWER)
                if process.machine is machine and is_serving and machine.disk.lookup(path) is not None:
                    copy = OldCopy(replica.status(), machine.disk.copy_folder(path))
                    copies.setdefault(id, deque(maxlen=KEPT)).append(copy)
        self.start()

    def fitting(self, machine: Machine, id: TopicIdPartition) -> OldCopy | None:
        """The oldest copy of that replica, if it lies below what the active controller has in its
        record.
        """
        active = self.simulation.controllers.active()
        if active is None or active.controller is None:
            return None
        noted = active.controller.image.high_watermarks.get(id)
        copies = self._copies.get(machine.name, {}).get(id, ())
        return next((copy for copy in copies if is_below(copy.status, noted)), None)
