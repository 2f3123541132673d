"""What goes wrong in a simulated cluster, and when: one seed draws its own mixture.

Each kind of fault is switched on or off for a whole run and weighted (swarm testing: a run without
power losses goes deeper into partitions, and the other way round). In almost every third run most
faults are depositions of leaders that live. Faults come at random intervals until ``stop``, which
also ends those that last: cuts, pauses, slow networks, sick disks.

A machine without power comes back by itself (the simulation sees to it). Knows processes, machines
and links only; what people do to the cluster's metadata (topics, configs, deletions) is
``administration``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.replication.replica import Role
from raylog.simulator.corruption import Corruption
from raylog.simulator.depositions import Depositions
from raylog.simulator.processes import Machine, Process
from raylog.types import is_future

if TYPE_CHECKING:
    from raylog.simulator.simulated_controller import ControllerProcess
    from raylog.simulator.simulated_servers import ReplicaProcess
    from raylog.simulator.simulation import Simulation

Strike = Callable[[], None]
Ending = Callable[[], object]
CORRUPT = "corrupt a disk at rest"
DEPOSE = "depose a leader alive"
BESIDE_DEPOSITIONS = (
    "kill a server",
    "kill a leader",
    "cut the power",
    "pause a server",
    "break links",
    "write back",
    "set a clock",
)


class Faults:
    """``mixture`` maps the kinds that this run knows to their weights; ``quiet_us`` is the typical
    time between two.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        rng = self.scheduler.rng
        self.mixture = self._draw_mixture()
        self.corruption = Corruption(simulation, self.lasting)
        self.quiet_us = rng.choice((100_000, 300_000, 300_000, 1_000_000))
        if self.is_about_depositions:
            self.quiet_us = rng.choice((300_000, 1_000_000))
        self._endings: dict[int, Ending] = {}
        self._stopped = False
        self._numbers = 0

    def _kinds(self) -> dict[str, tuple[Strike, float]]:
        """All that can go wrong in this simulation, with its usual weight."""
        simulation = self.simulation
        kinds: dict[str, tuple[Strike, float]] = {
            "kill a server": (self._kill_server, 3.0),
            "kill a leader": (self._kill_leader, 3.0),
            "kill replicas in turn": (self._kill_in_turn, 1.5),
            "strike a server amid its writes": (self._strike_server, 3.0),
            "cut the power": (self._power_loss, 2.0),
            "cut the power amid writes": (self._power_strike, 1.5),
            "cut the power of everybody": (self._blackout, 0.3),
            "pause a server": (self._pause_server, 2.0),
            "pause the controller": (self._pause_controller, 1.0),
            "kill the controller": (self._kill_controller, 1.5),
            "strike the controller amid its writes": (self._strike_controller, 1.0),
            "stop the active controller": (self._stop_active, 5.0),
            "isolate a controller": (self._isolate_controller, 1.5),
            "replace a controller's disk": (self._replace_controller_disk, 2.5),
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
            DEPOSE: (Depositions(simulation, self).strike, 5.0),
            CORRUPT: (self._corrupt_disk, 4.0),
            "let a log rot": (simulation.bit_rot.strike, 4.0),
        }
        if len(simulation.controllers.places) == 1:
            for name in ("stop the active controller", "isolate a controller", "replace a controller's disk"):
                del kinds[name]
        return kinds

    def _draw_mixture(self) -> dict[str, tuple[Strike, float]]:
        rng, kinds = self.scheduler.rng, self._kinds()
        mixture = {
            name: (strike, weight * rng.uniform(0.3, 2.0))
            for name, (strike, weight) in kinds.items()
            if rng.random() < 0.6
        }
        damaging = [name for name in (CORRUPT, "let a log rot") if name in mixture]
        if len(damaging) > 1:  # two brokers' disks are no minority
            del mixture[rng.choice(damaging)]
        self.is_about_depositions = rng.random() < 0.3
        if self.is_about_depositions:  # little else happens, so that ISRs are whole when a leader is deposed
            kept = {name: mixture[name] for name in rng.sample(BESIDE_DEPOSITIONS, 3) if name in mixture}
            weight = 2 * sum(weight for _, weight in kept.values()) + 1.0
            mixture = kept | {DEPOSE: (kinds[DEPOSE][0], weight)}
        if self.simulation.seed % 4 == 0 and "stop the active controller" in mixture:  # few sleepers wake up fenced
            strike, weight = mixture["stop the active controller"]
            mixture["stop the active controller"] = strike, 6 * weight
        return mixture

    def start(self) -> None:
        if CORRUPT in self.mixture:
            self.corruption.old_copies.start()
        self._arm()

    def stop(self) -> None:
        """No more faults, and an end to those that last."""
        self._stopped = True
        self._end_lasting()

    def _end_lasting(self) -> None:
        while self._endings:
            self.end(min(self._endings))

    def _arm(self) -> None:
        self.simulation.rhythm.later(self.scheduler.after_us, self.quiet_us, self._strike, "fault")

    def _strike(self) -> None:
        if self._stopped:
            return
        if self.mixture and not self.corruption.is_recovering:
            names = list(self.mixture)
            (name,) = self.scheduler.rng.choices(names, [self.mixture[name][1] for name in names])
            self.simulation.trace(f"fault: {name}")
            self.simulation.counts[name] += 1
            self.mixture[name][0]()
        self._arm()

    def lasting(self, low_ms: int, high_ms: int, ending: Ending) -> int:
        """The fault ends after a while, or with ``stop``, or with ``end`` of the number returned."""
        self._numbers += 1
        number = self._numbers
        self._endings[number] = ending
        self.scheduler.after_ms(self.scheduler.between(low_ms, high_ms), lambda: self.end(number), "fault ends")
        return number

    def is_lasting(self, number: int) -> bool:
        return number in self._endings

    def end(self, number: int) -> None:
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

    def _kill_in_turn(self) -> None:
        """The replicas of one partition die one after another, its leader last: who is back first
        may lack what came between.
        """
        leaders = self.simulation.leaders()
        if not leaders:
            return
        rng = self.scheduler.rng
        leader = rng.choice(leaders)
        id = rng.choice([id for id, replica in leader.host.replicas.items() if replica.role is Role.LEADER])
        holders = [process for process in self.simulation.replica_processes() if id in process.host.replicas]
        victims = [process for process in holders if process is not leader]
        rng.shuffle(victims)
        gap_ms, delay_ms = rng.choice((30, 100, 300, 1_000)), 0
        for victim in [*victims, leader]:
            self.scheduler.after_ms(
                delay_ms, victim.lose_power if self.scheduler.chance(0.2) else victim.kill, "in turn"
            )
            delay_ms += self.scheduler.between(1, 2 * gap_ms)

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
        self.lasting(20, self.scheduler.rng.choice((200, 2_000, 12_000)), process.resume)

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
        """Until another one is active; then it wakes up and does not know.

        Often it is deaf to the others for longer than it sleeps, while sessions to its successor
        break and look around.
        """
        active = self.simulation.controllers.active()
        if active is None:
            return
        active.pause()
        deaf = self.scheduler.chance(0.7)
        if deaf:
            self.simulation.controllers.go_deaf(active.place)

        def wake() -> None:
            if deaf:
                self.lasting(200, 1_500, lambda: self.simulation.controllers.hear_again(active.place))
                self._break_sessions(active)
            self.scheduler.after_ms(
                self.scheduler.between(0, 300) if deaf else 0, active.resume, "the sleeper wakes up"
            )

        number = self.lasting(2_000, 8_000, wake)

        def look() -> None:
            successor = self.simulation.controllers.active()
            if number in self._endings and active.alive:
                if successor is not None and successor is not active:
                    self.scheduler.after_ms(self.scheduler.between(0, 1_000), lambda: self.end(number), "wake up")
                else:
                    self.scheduler.after_ms(200, look, "sleeping")

        look()

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
        """From the other controllers: for their ears, its mouth, or both. Everybody else may still
        reach it.
        """
        controller = self._some_controller()
        if controller is not None:
            alone = controller.machine
            others = [machine for machine in self.simulation.controllers.machines if machine is not alone]
            deaf, mute = self.scheduler.rng.choice(((True, True), (True, False), (False, True)))
            self._cut([(other, alone) for other in others if deaf] + [(alone, other) for other in others if mute])

    def _replace_controller_disk(self) -> None:
        """Of the active one often: then the others have to elect without it. It comes back blank,
        and is admitted by records.

        Sometimes another one is cut off before, so that only one of the three holds all that is
        committed. And sometimes it is only killed, and one of its files is damaged when it comes
        back.
        """
        controller = self._some_controller()
        if controller is None:
            return
        controllers = self.simulation.controllers
        if self.scheduler.chance(0.5):
            if controller.place in controllers.may_be_damaged() and self.scheduler.chance(0.7):
                controller.kill()
                self.corruption.damage_metadata([controller.place])
                return
            self.simulation.counts["controllers without metadata"] += controllers.lose_metadata(controller.place)
            return
        delay_ms = 0
        others = [place for place in controllers.places if place is not controller.place]
        if self.scheduler.chance(0.5) and others:
            laggard = self.scheduler.rng.choice(others)
            controllers.go_deaf(laggard)
            self.lasting(500, 3_000, lambda: controllers.hear_again(laggard))
            delay_ms = self.scheduler.between(50, 500)

        def replace_disk() -> None:
            may_go = self.simulation.bit_rot.may_be_lost(controller.place.machine)
            if not self._stopped and may_go and controllers.replace_disk(controller.place):
                self.simulation.counts["controller disks replaced"] += 1

        self.scheduler.after_ms(delay_ms, replace_disk, "replace a disk")

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
        self.lasting(50, self.scheduler.rng.choice((500, 3_000, 12_000)), lambda: network.heal(pairs))

    def _cut_one_way(self) -> None:
        self._cut([self._two_machines()])

    def _cut_both_ways(self) -> None:
        first, second = self._two_machines()
        self._cut([(first, second), (second, first)])

    def _last_words(self) -> None:
        """What a machine said just before its power went arrives when it is back: from a process
        that is no more.

        Mostly it was said to a leader, and arrives just when a new process of the machine follows
        it. Often the processes end before their machine does, so that the controller hears of it at
        once.
        """
        leaders = self.simulation.leaders()
        if not leaders:
            return
        leader = self.scheduler.rng.choice(leaders)
        listener = leader.machine
        followers = [
            broker
            for replica in leader.host.replicas.values()
            if replica.leader is not None
            for broker in replica.leader.followers
            if not is_future(broker)  # a future copy is on the machine of the replica that it is a copy of
        ]
        brokers = range(1, len(self.simulation.broker_machines) + 1)
        others = [broker for broker in followers or brokers if broker != leader.host.context.broker_id]
        speaker = self.simulation.machine_of(self.scheduler.rng.choice(others))
        network = self.simulation.network
        way = [(speaker, listener)]
        network.cut(speaker, listener)
        number = self.lasting(8_000, 12_000, lambda: network.heal(way))

        def speakers() -> list[ReplicaProcess]:
            return [process for process in self.simulation.replica_processes() if process.machine is speaker]

        def fall_silent() -> None:
            if speaker.is_on and number in self._endings:
                if self.scheduler.chance(0.7):
                    for process in speakers():
                        process.kill()
                speaker.lose_power()
                look()

        def look() -> None:
            if number in self._endings:
                if any(replica.role is Role.FOLLOWER for each in speakers() for replica in each.host.replicas.values()):
                    self.scheduler.after_ms(
                        self.scheduler.between(0, 50), lambda: self.end(number), "last words arrive"
                    )
                else:
                    self.scheduler.after_ms(50, look, "last words wait")

        self.scheduler.after_ms(self.scheduler.between(5, 700), fall_silent, "last words")

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
        self.simulation.controllers.break_links(share)

    def _slow_network(self) -> None:
        network = self.simulation.network
        network.slow = self.scheduler.rng.choice((10, 100, 1_000))

        def end() -> None:
            network.slow = 1

        self.lasting(100, 5_000, end)

    def _slow_machine(self) -> None:
        slow_machines = self.simulation.network.slow_machines
        name = self.scheduler.rng.choice(self.simulation.machines).name
        slow_machines[name] = self.scheduler.rng.choice((30, 300, 2_000))
        self.lasting(100, 5_000, lambda: slow_machines.pop(name, None))

    def _flap_isr(self) -> None:
        """A follower's way to its leader is cut, healed and cut again, each time for longer than
        the lag that an ISR bears.
        """
        leaders = self.simulation.leaders()
        if not leaders:
            return
        leader = self.scheduler.rng.choice(leaders).machine
        follower = self.scheduler.rng.choice([each for each in self.simulation.broker_machines if each is not leader])
        lag_ms = self.simulation.host_config.replica_lag_time_max_ms
        way = [(follower, leader) if self.scheduler.chance(0.5) else (leader, follower)]

        def flap(times: int) -> None:
            self.simulation.network.cut(*way[0])
            self.lasting(lag_ms, 2 * lag_ms, lambda: self.simulation.network.heal(way))
            if times > 1:
                pause_ms = 2 * lag_ms + self.scheduler.between(100, 2_000)
                self.scheduler.after_ms(pause_ms, lambda: flap(times - 1) if not self._stopped else None, "flap")

        flap(self.scheduler.between(1, 3))

    # ---------------------------------------------------------------- clocks

    def _set_clock(self) -> None:
        """Somebody sets the wall clock of a machine, forth or back. Nothing but timestamps and
        retention may ask it.
        """
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
            if self.scheduler.chance(0.5):
                self.simulation.counts["page caches dropped"] += 1
                machine.disk.evict()  # and with it what a failed flush left there as if it were written
            if self.scheduler.chance(0.5):
                self.simulation.replace_failed(machine)

        machine.broken = broken
        self.lasting(100, 2_000, heal)

    def _corrupt_disk(self) -> None:
        self.corruption.strike(self._end_lasting)

    def _fill_disk(self) -> None:
        disk = self.scheduler.rng.choice(self.simulation.machines).disk
        capacity_bytes = disk.capacity_bytes
        disk.capacity_bytes -= max(0, disk.free_bytes - self.scheduler.between(0, 5_000))

        def heal() -> None:
            disk.capacity_bytes = max(disk.capacity_bytes, capacity_bytes)

        self.lasting(100, 2_000, heal)
