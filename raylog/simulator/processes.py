"""Machines and the processes on them, as a fault injector sees them: killed, paused, without power.

Owns whether code of a process may run now. Everything that a simulated process does goes through
``Process.run``; whatever arrives for a stopped process waits in its inbox, whatever arrives for a
dead one is dropped. Knows nothing of raylog: the servers of the simulation (``simulated_actors``)
inherit from ``Process``.

A process can be told to die in the middle of its work: ``arm`` lets a number of disk operations
pass and strikes at the next, so that every order of writes meets its crash. A struck write leaves a
part of its bytes.

::

    running ── pause ──► paused ── resume ──► running      inbox first, then timers (a stopped process finds its timers late)
       └────── kill ──────┴──► dead                        page cache and what was sent stay; connections end
    machine on ── lose_power ──► off ── boot ──► on         every process dies in silence; unflushed bytes are lost; new boot id
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.simulator.scheduler import Scheduler, Timer
from raylog.simulator.simulated_files import SimulatedDisk, SimulatedFiles, TornWrite

if TYPE_CHECKING:
    from raylog.simulator.simulated_network import Link


class Struck(BaseException):
    """The process dies at this very instruction. No handler in the code under test catches it."""

    def __init__(self, *, power: bool) -> None:
        super().__init__(power)
        self.power = power


@dataclass(slots=True)
class _Strike:
    operations_left: int
    power: bool
    torn_share: float


class Machine:
    """One host with one disk: a fault domain. ``wall_offset_ms`` is how wrong its clock is."""

    def __init__(self, name: str, scheduler: Scheduler, *, wall_offset_ms: int) -> None:
        self.name = name
        self.scheduler = scheduler
        self.wall_offset_ms = wall_offset_ms
        self.boot = 1
        self.is_on = True
        self.starts_servers = True  # False: its Ray is not back yet, so nobody can start a server there
        self.processes: list[Process] = []
        self.running: Process | None = None  # whose code is on the stack
        self.strike: _Strike | None = None
        self.strike_process: Process | None = None
        self.broken: Callable[[str, str], None] | None = None  # injected disk errors
        self.when_dark: Callable[[], None] = lambda: None  # whoever sees to it that the power comes back
        self.disk = SimulatedDisk(clock_ms=self.wall_ms, fault=self._disk_operation)

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boot}"

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.scheduler.now_ms + self.wall_offset_ms

    def arm(self, process: Process, *, operations: int, power: bool) -> None:
        """``process`` dies (or the machine loses power) at its disk operation after the next
        ``operations``.
        """
        self.strike = _Strike(operations, power, self.scheduler.rng.random())
        self.strike_process = process

    def _disk_operation(self, operation: str, path: str) -> None:
        if self.running is None:
            return
        if self.strike is not None and self.strike_process is self.running:
            if self.strike.operations_left <= 0:
                struck = Struck(power=self.strike.power)
                if operation == "write":
                    raise TornWrite(self.strike.torn_share, struck)
                raise struck
            self.strike.operations_left -= 1
        if self.broken is not None:
            self.broken(operation, path)

    def lose_power(self) -> None:
        assert self.is_on, self.name
        self.is_on = False
        for process in list(self.processes):
            process.end(silently=True)
        self.disk.lose_power(self.scheduler.rng)
        self.when_dark()

    def turn_on(self) -> None:
        assert not self.is_on, self.name
        self.is_on = True
        self.boot += 1


class Process:
    """A process: it runs, is stopped, or is dead for good. A restart is another object."""

    def __init__(self, name: str, machine: Machine) -> None:
        assert machine.is_on, (name, machine.name)
        self.name = name
        self.machine = machine
        self.scheduler = machine.scheduler
        self.files: SimulatedFiles = machine.disk.files()
        self.alive = True
        self.paused = False
        self.links: dict[int, Link] = {}
        self._inbox: list[Callable[[], None]] = []
        machine.processes.append(self)

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ms

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work`` as this process: now, after the pause, or never."""
        if not self.alive:
            return
        if self.paused:
            self._inbox.append(work)
            return
        assert self.machine.running is None, (self.name, self.machine.running)
        self.machine.running = self
        try:
            work()
        except Struck as struck:
            self.machine.running = None
            self.machine.strike = None
            if struck.power:
                self.machine.lose_power()
            else:
                self.kill()
            return
        finally:
            self.machine.running = None
        if self.alive:
            self.after_work()

    def later(self, delay_us: int, work: Callable[[], None], label: str = "") -> Timer:
        """A thread of this process reports back, or a timer fires."""
        return self.scheduler.after_us(delay_us, lambda: self.run(work), label)

    def after_work(self) -> None:
        """For subclasses: checks, and timers to set anew. Runs after every piece of work."""

    def on_end(self) -> None:
        """For subclasses: the process is gone; whoever keeps a list of live ones forgets it."""

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if not self.alive or not self.paused:
            return
        self.paused = False
        inbox, self._inbox = self._inbox, []
        for work in inbox:
            self.run(work)

    def lose_power(self) -> None:
        """With everything else on its machine."""
        if self.alive:
            self.machine.lose_power()

    def kill(self) -> None:
        self.end(silently=False)

    def end(self, *, silently: bool) -> None:
        """``silently``: nobody's kernel closes the connections (the machine lost its power)."""
        if not self.alive:
            return
        self.alive = False
        self._inbox.clear()
        self.files.crash()
        self.machine.processes.remove(self)
        if self.machine.strike_process is self:
            self.machine.strike = self.machine.strike_process = None
        for link in list(self.links.values()):
            link.process_ended(self, silently=silently)
        self.links.clear()
        self.on_end()
