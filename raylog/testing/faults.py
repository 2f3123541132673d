"""What goes wrong in a simulated cluster, and when: one seed draws its own mixture.

Each kind of fault is switched on or off for a whole run and weighted (swarm testing: a run without power losses goes deeper into
partitions, and the other way round). Faults come at random intervals until ``stop``, which also ends those that last: cuts, pauses, slow
networks, sick disks.

A machine without power comes back by itself (the simulation sees to it). Knows processes, machines and links only; what people
do to the cluster's metadata (topics, configs, deletions) is ``administration``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.testing.processes import Machine, Process
from raylog.testing.scheduler import Timer

if TYPE_CHECKING:
    from raylog.testing.simulated_controller import ControllerProcess
    from raylog.testing.simulation import Simulation

Ending = Callable[[], object]


class Faults:
    """``mixture`` maps the kinds that this run knows to their weights; ``quiet_us`` is the typical time between two."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        rng = self.scheduler.rng
        kinds: dict[str, tuple[Callable[[], None], float]] = {
            "kill a server": (self._kill_server, 3.0),
            "kill a leader": (self._kill_leader, 3.0),
            "strike a server amid its writes": (self._strike_server, 3.0),
            "cut the power": (self._power_loss, 2.0),
            "cut the power amid writes": (self._power_strike, 1.5),
            "cut the power of everybody": (self._blackout, 0.3),
            "pause a server": (self._pause_server, 2.0),
            "pause the controller": (self._pause_controller, 1.0),
            "kill the controller": (self._kill_controller, 1.5),
            "strike the controller amid its writes": (self._strike_controller, 1.0),
            "stop the active controller": (self._stop_active, 1.0),
            "isolate a controller": (self._isolate_controller, 1.5),
            "replace a controller's disk": (self._replace_controller_disk, 1.5),
            "cut one way": (self._cut_one_way, 2.0),
            "cut both ways": (self._cut_both_ways, 2.0),
            "isolate a machine": (self._isolate, 1.0),
            "delay last words": (self._last_words, 3.0),
            "break links": (self._break_links, 3.0),
            "slow the network": (self._slow_network, 0.7),
            "slow a machine": (self._slow_machine, 1.5),
            "fail a disk": (self._sicken_disk, 0.6),
            "fill a disk": (self._fill_disk, 0.4),
            "write back": (self._write_back, 2.0),
            "flap an isr": (self._flap_isr, 2.0),
            "set a clock": (self._set_clock, 0.7),
        }
        self.mixture = {
            name: (strike, weight * rng.uniform(0.3, 2.0))
            for name, (strike, weight) in kinds.items()
            if rng.random() < 0.6
        }
        self.quiet_us = rng.choice((100_000, 300_000, 300_000, 1_000_000))
        self._endings: dict[int, Ending] = {}
        self._stopped = False
        self._numbers = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        """No more faults, and an end to those that last."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for number in sorted(self._endings):
            self._end(number)

    def _arm(self) -> None:
        self._timer = self.scheduler.after_us(self.scheduler.skewed_us(self.quiet_us), self._strike, "fault")

    def _strike(self) -> None:
        if self.mixture:
            names = list(self.mixture)
            (name,) = self.scheduler.rng.choices(names, [self.mixture[name][1] for name in names])
            self.simulation.trace(f"fault: {name}")
            self.simulation.counts[name] += 1
            self.mixture[name][0]()
        self._arm()

    def _lasting(self, low_ms: int, high_ms: int, ending: Ending) -> None:
        """The fault ends after a while, or with ``stop``."""
        self._numbers += 1
        number = self._numbers
        self._endings[number] = ending
        self.scheduler.after_ms(self.scheduler.between(low_ms, high_ms), lambda: self._end(number), "fault ends")

    def _end(self, number: int) -> None:
        ending = self._endings.pop(number, None)
        if ending is not None:
            ending()

    # ---------------------------------------------------------------- processes

    def _some_server(self) -> Process | None:
        servers = self.simulation.servers()
        return self.scheduler.rng.choice(servers) if servers else None

    def _kill_server(self) -> None:
        server = self._some_server()
        if server is not None:
            server.kill()

    def _kill_leader(self) -> None:
        leaders = self.simulation.leaders()
        if leaders:
            self.scheduler.rng.choice(leaders).kill()

    def _strike_server(self) -> None:
        server = self._some_server()
        if server is not None:
            server.machine.arm(server, operations=self._some_operations(), power=False)

    def _some_operations(self) -> int:
        return self.scheduler.rng.choice((0, 1, 2, 3, 5, 8, 13, 30))

    def _pause_server(self) -> None:
        server = self._some_server()
        if server is not None:
            self._pause(server)

    def _pause(self, process: Process) -> None:
        process.pause()
        self._lasting(20, self.scheduler.rng.choice((200, 2_000, 12_000)), process.resume)

    # ---------------------------------------------------------------- the controller

    def _some_controller(self) -> ControllerProcess | None:
        """Mostly the active one."""
        controllers = self.simulation.controllers
        active = controllers.active()
        if active is not None and self.scheduler.chance(0.7):
            return active
        running = controllers.running()
        return self.scheduler.rng.choice(running) if running else None

    def _pause_controller(self) -> None:
        controller = self._some_controller()
        if controller is not None:
            self._pause(controller)

    def _stop_active(self) -> None:
        """Long enough for another to be elected; then it wakes up and does not know.

        Often it is deaf to the others for longer than it sleeps, while sessions to its successor break and look around.
        """
        active = self.simulation.controllers.active()
        if active is None:
            return
        sleep_ms = self.scheduler.between(2_000, 6_000)
        active.pause()
        self._lasting(sleep_ms, sleep_ms, active.resume)
        if self.scheduler.chance(0.7):
            self.simulation.controllers.go_deaf(active.place)
            self._lasting(
                sleep_ms + 200, sleep_ms + 1_500, lambda: self.simulation.controllers.hear_again(active.place)
            )
            before_ms = sleep_ms - self.scheduler.between(0, 300)
            self.scheduler.after_ms(before_ms, lambda: self._break_sessions(active), "sessions break")

    def _break_sessions(self, sleeper: ControllerProcess) -> None:
        active = self.simulation.controllers.active()
        if active is not None and active is not sleeper and not self._stopped:
            for link in list(active.links.values()):
                if self.scheduler.chance(0.8):
                    link.break_off()

    def _kill_controller(self) -> None:
        controller = self._some_controller()
        if controller is not None:
            controller.kill()

    def _strike_controller(self) -> None:
        controller = self._some_controller()
        if controller is not None:
            controller.machine.arm(controller, operations=self._some_operations(), power=self.scheduler.chance(0.5))

    def _isolate_controller(self) -> None:
        """From the other controllers: for their ears, its mouth, or both. Everybody else may still reach it."""
        controller = self._some_controller()
        if controller is not None:
            alone = controller.machine
            others = [machine for machine in self.simulation.controllers.machines if machine is not alone]
            deaf, mute = self.scheduler.rng.choice(((True, True), (True, False), (False, True)))
            self._cut([(other, alone) for other in others if deaf] + [(alone, other) for other in others if mute])

    def _replace_controller_disk(self) -> None:
        """Of the active one often: then the others have to elect without it, while it comes back blank."""
        controller = self._some_controller()
        if controller is not None and self.simulation.controllers.replace_disk(controller.place):
            self.simulation.counts["controller disks replaced"] += 1

    # ---------------------------------------------------------------- machines

    def _some_machine(self) -> Machine | None:
        machines = [machine for machine in self.simulation.machines if machine.is_on]
        return self.scheduler.rng.choice(machines) if machines else None

    def _power_loss(self) -> None:
        machine = self._some_machine()
        if machine is not None:
            machine.lose_power()

    def _power_strike(self) -> None:
        server = self._some_server()
        if server is not None:
            server.machine.arm(server, operations=self._some_operations(), power=True)

    def _blackout(self) -> None:
        for machine in self.simulation.machines:
            if machine.is_on:
                machine.lose_power()

    def _write_back(self) -> None:
        machine = self._some_machine()
        if machine is not None:
            machine.disk.flush_everything()

    # ---------------------------------------------------------------- the network

    def _two_machines(self) -> tuple[Machine, Machine]:
        first, second = self.scheduler.rng.sample(self.simulation.all_machines, 2)
        return first, second

    def _cut(self, pairs: list[tuple[Machine, Machine]]) -> None:
        network = self.simulation.network
        for sender, receiver in pairs:
            network.cut(sender, receiver)
        self._lasting(50, self.scheduler.rng.choice((500, 3_000, 12_000)), lambda: network.heal(pairs))

    def _cut_one_way(self) -> None:
        self._cut([self._two_machines()])

    def _cut_both_ways(self) -> None:
        first, second = self._two_machines()
        self._cut([(first, second), (second, first)])

    def _last_words(self) -> None:
        """What a machine said just before its power went arrives when it is back: from a process that is no more.

        Mostly it was said to a leader, and arrives just when a new process of the machine is at work.
        """
        leaders = self.simulation.leaders()
        brokers = self.simulation.broker_machines
        listener = self.scheduler.rng.choice([process.machine for process in leaders] or brokers)
        speaker = self.scheduler.rng.choice([machine for machine in brokers if machine is not listener])
        way = [(speaker, listener)]
        self._cut(way)

        def fall_silent() -> None:
            if speaker.is_on and self.simulation.network.is_cut(speaker, listener):
                speaker.lose_power()
                look()

        def look() -> None:
            if not self.simulation.network.is_cut(speaker, listener):
                return
            if any(
                process.machine is speaker and process.is_welcome for process in self.simulation.replica_processes()
            ):
                delay_ms = self.scheduler.between(0, 100)
                self.scheduler.after_ms(delay_ms, lambda: self.simulation.network.heal(way), "last words arrive")
            else:
                self.scheduler.after_ms(50, look, "last words wait")

        self.scheduler.after_ms(self.scheduler.between(5, 300), fall_silent, "last words")

    def _isolate(self) -> None:
        alone = self.scheduler.rng.choice(self.simulation.all_machines)
        others = [machine for machine in self.simulation.all_machines if machine is not alone]
        self._cut([(alone, other) for other in others] + [(other, alone) for other in others])

    def _break_links(self) -> None:
        links = self.simulation.network.open_links()
        share = self.scheduler.rng.choice((0.05, 0.3, 1.0))
        for link in links:
            if self.scheduler.chance(share):
                link.break_off()

    def _slow_network(self) -> None:
        network = self.simulation.network
        network.slow = self.scheduler.rng.choice((10, 100, 1_000))

        def end() -> None:
            network.slow = 1

        self._lasting(100, 5_000, end)

    def _slow_machine(self) -> None:
        slow_machines = self.simulation.network.slow_machines
        name = self.scheduler.rng.choice(self.simulation.machines).name
        slow_machines[name] = self.scheduler.rng.choice((30, 300, 2_000))
        self._lasting(100, 5_000, lambda: slow_machines.pop(name, None))

    def _flap_isr(self) -> None:
        """A follower's way to its leader is cut, healed and cut again, each time for longer than the lag that an ISR bears."""
        leaders = self.simulation.leaders()
        if not leaders:
            return
        leader = self.scheduler.rng.choice(leaders).machine
        follower = self.scheduler.rng.choice([each for each in self.simulation.broker_machines if each is not leader])
        lag_ms = self.simulation.host_config.replica_lag_time_max_ms
        way = [(follower, leader) if self.scheduler.chance(0.5) else (leader, follower)]

        def flap(times: int) -> None:
            self.simulation.network.cut(*way[0])
            self._lasting(lag_ms, 2 * lag_ms, lambda: self.simulation.network.heal(way))
            if times > 1:
                pause_ms = 2 * lag_ms + self.scheduler.between(100, 2_000)
                self.scheduler.after_ms(pause_ms, lambda: flap(times - 1) if not self._stopped else None, "flap")

        flap(self.scheduler.between(1, 3))

    # ---------------------------------------------------------------- clocks

    def _set_clock(self) -> None:
        """Somebody sets the wall clock of a machine, forth or back. Nothing but timestamps and retention may ask it."""
        machine = self.scheduler.rng.choice(self.simulation.machines)
        machine.wall_offset_ms = self.scheduler.between(-60_000, 60_000)

    # ---------------------------------------------------------------- disks

    def _sicken_disk(self) -> None:
        machine = self.scheduler.rng.choice(self.simulation.machines)
        operations = self.scheduler.rng.choice((("write",), ("flush",), ("read",), ("write", "flush", "read")))
        rate = self.scheduler.rng.choice((0.02, 0.3))

        def broken(operation: str, path: str) -> None:
            if operation in operations and self.scheduler.chance(rate):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        def heal() -> None:
            machine.broken = None

        machine.broken = broken
        self._lasting(100, 2_000, heal)

    def _fill_disk(self) -> None:
        disk = self.scheduler.rng.choice(self.simulation.machines).disk
        capacity_bytes = disk.capacity_bytes
        disk.capacity_bytes -= max(0, disk.free_bytes - self.scheduler.between(0, 5_000))

        def heal() -> None:
            disk.capacity_bytes = max(disk.capacity_bytes, capacity_bytes)

        self._lasting(100, 2_000, heal)
