"""Clocks that are set back while a machine, or a controller on it, is down.

A third of the restarts find the machine's clock up to an hour behind where it was. Which ones is
settled by a hash, so the draws of a seed are what they would be without it. A machine whose
controller has lost its metadata keeps its clock until it has been taken in again: what it knew of
its own incarnations is gone with them.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from raylog.simulator.processes import Machine

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation

STEPS_MS = (1, 1_000, 60_000, 3_600_000)


class ClockSteps:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._restarts: dict[str, int] = {}
        self.set_back_ms = 0  # all steps together

    def restarted(self, machine: Machine) -> None:
        """The machine, or a controller on it, is about to run again."""
        count = self._restarts[machine.name] = self._restarts.get(machine.name, -1) + 1
        number = zlib.crc32(f"{self._simulation.seed} clock {machine.name} {count}".encode())
        if count == 0 or number % 3 or self._simulation.controllers.is_blank(machine):
            return
        step_ms = STEPS_MS[number // 3 % len(STEPS_MS)]
        machine.wall_offset_ms -= step_ms
        self.set_back_ms += step_ms
        for history in self._simulation.checkers.histories.values():
            history.delete_retention_ms -= step_ms
        self._simulation.counts["clocks set back"] += 1
        self._simulation.trace(f"the clock of {machine.name} is set back by {step_ms} ms")
