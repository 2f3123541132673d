"""A network with TCP's manners and TCP's troubles, between simulated processes.

Owns: links (connections), listeners, cuts. A ``Link`` is ordered in each direction and loses
nothing while it stands; it breaks as a whole: then messages under way are lost from some point on,
and each end learns of it in its own time, or never if the way to it is cut. Between links there is
no order at all: an answer on an old link may overtake, or be overtaken by, everything on a new one.

A *cut* from machine A to machine B holds back what A sends to B (TCP retransmits): it arrives when
the cut heals, unless an end gave up before. Cuts are one-way; two make a partition. A machine
without power swallows everything; back on, it answers what it does not know with a reset.
``connect`` ends as opened, refused (machine on, nobody listens there), or silence; a paused
process's kernel accepts for it, so the link opens and nothing is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from raylog.simulator.processes import Machine, Process
from raylog.simulator.scheduler import Scheduler
from raylog.types import Endpoint

LONGEST_DELAY_US = 1_000_000


class End(Protocol):
    """What a process does with its end of a link. The accepting side hears neither ``opened`` nor
    ``refused``.
    """

    def opened(self, link: Link) -> None: ...

    def refused(self, link: Link) -> None: ...

    def received(self, link: Link, message: object) -> None: ...

    def closed(self, link: Link) -> None: ...


class Listener(Protocol):
    """``accepted`` gives the end that serves a new link. The peer says who it is in its first
    message.
    """

    def accepted(self, link: Link) -> End: ...


class Link:
    """One connection. Side 0 opened it, side 1 accepted. An end hears of the end at most once, and
    never after closing it itself.
    """

    __slots__ = (
        "_broken",
        "_ends",
        "_ready_us",
        "_stalled",
        "_way",
        "machines",
        "network",
        "number",
        "opener",
        "server",
    )

    def __init__(self, network: Network, number: int, opener: Process, end: End, machine: Machine) -> None:
        self.network = network
        self.number = number
        self.opener = opener
        self.server: Process | None = None
        self.machines = (opener.machine, machine)
        self._ends: list[End | _PendingConnection | None] = [end, None]
        self._ready_us = [0, 0]  # per sender: when its last message arrives
        self._way: list[deque[Callable[[], None]]] = [deque(), deque()]  # per sender: what is under way, in order
        self._stalled = [0, 0]  # per sender: how many of these a cut keeps back
        self._broken = False
        opener.links[number] = self

    @property
    def label(self) -> str:
        return f"{self.opener.name}>{self.server.name if self.server else self.machines[1].name}"

    def is_open(self, process: Process) -> bool:
        """Whether that end may still send."""
        return self._ends[self._side(process)] is not None

    @property
    def is_gone(self) -> bool:
        return self._ends == [None, None]

    def send(self, sender: Process, message: object) -> None:
        """Nothing happens on a link that the sender knows to be closed. An opener waits for
        ``opened``.
        """
        assert self.server is not None, self.label
        side = self._side(sender)
        if self._ends[side] is not None:
            self._carry(side, lambda: self._deliver(1 - side, message))

    def close(self, closer: Process) -> None:
        """The other end hears of it after all that was sent before."""
        side = self._side(closer)
        if self._ends[side] is not None:
            self._forget(side)
            if self.server is not None:
                self._carry(side, lambda: self._deliver_close(1 - side))

    def break_off(self) -> None:
        """A fault: what is under way is lost from here on; both ends learn of it, each after a
        while.
        """
        if self._broken:
            return
        self._broken = True
        scheduler = self.network.scheduler
        scheduler.after_us(scheduler.skewed_us(2_000), lambda: self._deliver_close(0), "reset")
        scheduler.after_us(scheduler.skewed_us(2_000), lambda: self._deliver_close(1), "reset")

    def process_ended(self, process: Process, *, silently: bool) -> None:
        side = self._side(process)
        if self._ends[side] is None:
            return
        self._ends[side] = None
        if silently or self.server is None:
            return
        if self.network.scheduler.chance(0.5):
            self._carry(side, lambda: self._deliver_close(1 - side))
        else:
            self.break_off()

    def heal(self, side: int) -> None:
        """What stalled behind a cut is on its way again (and stalls again if there is still one)."""
        stalled, self._stalled[side] = self._stalled[side], 0
        for _ in range(stalled):
            self._schedule_arrival(side)

    # ---------------------------------------------------------------- opening

    def accept(self, server: Process, listener: Listener) -> None:
        """The server's kernel has accepted; its process says who serves the link when it next runs."""
        if self._ends[0] is None or self._broken:
            return
        self.server = server
        server.links[self.number] = self
        self._ends[1] = _PendingConnection(listener)
        self._carry(1, lambda: self._on_opener(lambda end: end.opened(self)))

    def refuse(self) -> None:
        if not self.network.is_cut(self.machines[1], self.machines[0]):
            self._on_opener(self._hear_refusal)

    def _hear_refusal(self, end: End) -> None:
        self._forget(0)
        end.refused(self)

    def _on_opener(self, work: Callable[[End], None]) -> None:
        def run() -> None:
            end = self._ends[0]
            if end is not None:
                assert not isinstance(end, _PendingConnection)
                work(end)

        self.opener.run(run)

    # ---------------------------------------------------------------- arriving

    def _process(self, side: int) -> Process:
        process = self.server if side else self.opener
        assert process is not None, self.label
        return process

    def _side(self, process: Process) -> int:
        return 0 if process is self.opener else 1

    def _carry(self, side: int, arrival: Callable[[], None]) -> None:
        self._way[side].append(arrival)
        self._schedule_arrival(side)

    def _schedule_arrival(self, side: int) -> None:
        network = self.network
        delay_us = network.delay_us(*self.machines)
        at_us = max(self._ready_us[side], network.scheduler.now_us + delay_us)
        self._ready_us[side] = at_us
        network.scheduler.at_us(at_us, lambda: self._arrive(side), self.label)

    def _arrive(self, side: int) -> None:
        if self._broken:
            return
        sender, receiver = self.machines[side], self.machines[1 - side]
        if self.network.is_cut(sender, receiver):
            self._stalled[side] += 1
            return
        arrival = self._way[side].popleft()
        if receiver.is_on:
            arrival()

    def _deliver(self, side: int, message: object) -> None:
        process = self._process(side)
        if self._ends[side] is None:
            # Nobody is there any more: the kernel answers with a reset (a machine without power did
            # not get here).
            if not process.alive:
                self._carry(side, lambda: self._deliver_close(1 - side))
            return
        process.run(lambda: self._hand_over(side, message))

    def _hand_over(self, side: int, message: object) -> None:
        end = self._ends[side]
        if isinstance(end, _PendingConnection):
            end = self._ends[side] = end.listener.accepted(self)
        if end is not None:
            end.received(self, message)

    def _deliver_close(self, side: int) -> None:
        if self._ends[side] is not None:
            self._process(side).run(lambda: self._hear_close(side))

    def _hear_close(self, side: int) -> None:
        end = self._ends[side]
        if end is not None:
            self._forget(side)
            if not isinstance(end, _PendingConnection):
                end.closed(self)

    def _forget(self, side: int) -> None:
        self._ends[side] = None
        self._process(side).links.pop(self.number, None)


class _PendingConnection:
    """An accepted link whose process has not run since."""

    __slots__ = ("listener",)

    def __init__(self, listener: Listener) -> None:
        self.listener = listener


class Network:
    """All links. ``typical_delay_us`` is one way; faults stretch it for all (``slow``) or for a
    machine.
    """

    def __init__(self, scheduler: Scheduler, *, typical_delay_us: int = 300) -> None:
        self.scheduler = scheduler
        self.typical_delay_us = typical_delay_us
        self.slow = 1
        self.slow_machines: dict[str, int] = {}  # by name: how many times slower than others
        self._listeners: dict[Endpoint, tuple[Process, Listener]] = {}
        self._reserved: set[Endpoint] = set()
        self._machines: dict[str, Machine] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._links: dict[int, Link] = {}
        self._numbers = 0
        self._ports = 10_000

    def add_machine(self, machine: Machine) -> None:
        self._machines[machine.name] = machine

    def listen_at(self, endpoint: Endpoint, process: Process, listener: Listener) -> None:
        """Where another process listened that is dead. Nobody else gets this port from now on."""
        self._reserved.add(endpoint)
        self._listeners[endpoint] = (process, listener)

    def listen(self, process: Process, listener: Listener) -> Endpoint:
        """A fresh port, mostly; sometimes one that a dead process had (its neighbours must notice)."""
        reused = [
            e
            for e, (owner, _) in self._listeners.items()
            if not owner.alive and owner.machine is process.machine and e not in self._reserved
        ]
        if reused and self.scheduler.chance(0.3):
            endpoint = self.scheduler.rng.choice(reused)
        else:
            self._ports += 1
            endpoint = Endpoint(process.machine.name, self._ports)
        self._listeners[endpoint] = (process, listener)
        return endpoint

    def connect(self, opener: Process, endpoint: Endpoint, end: End) -> Link:
        """A link under way. ``end`` hears ``opened`` or ``refused`` after a round trip; neither if
        packets are swallowed.
        """
        self._numbers += 1
        link = Link(self, self._numbers, opener, end, self._machines[endpoint.host])
        self._links[link.number] = link
        self.scheduler.after_us(self.delay_us(*link.machines), lambda: self._knock(link, endpoint), "knock")
        return link

    def _knock(self, link: Link, endpoint: Endpoint) -> None:
        machine = self._machines[endpoint.host]
        if machine.is_on and not self.is_cut(link.opener.machine, machine):
            process, listener = self._listeners.get(endpoint, (None, None))
            if process is None or listener is None or not process.alive:
                self.scheduler.after_us(self.delay_us(*link.machines), link.refuse, "refused")
            else:
                link.accept(process, listener)

    def delay_us(self, first: Machine, second: Machine) -> int:
        delay_us = self.scheduler.skewed_us(self.typical_delay_us) * self.slow
        if self.slow_machines:
            delay_us *= max(self.slow_machines.get(first.name, 1), self.slow_machines.get(second.name, 1))
        return min(delay_us, LONGEST_DELAY_US)

    # ---------------------------------------------------------------- faults

    def is_cut(self, sender: Machine, receiver: Machine) -> bool:
        return (sender.name, receiver.name) in self._cuts

    def cut(self, sender: Machine, receiver: Machine) -> None:
        if sender is not receiver:
            self._cuts.add((sender.name, receiver.name))

    def heal(self, pairs: Iterable[tuple[Machine, Machine]] | None = None) -> None:
        """End these cuts, or all. What they held back arrives."""
        if pairs is None:
            self._cuts.clear()
        else:
            self._cuts.difference_update((sender.name, receiver.name) for sender, receiver in pairs)
        for link in self.open_links():
            link.heal(0)
            link.heal(1)

    def open_links(self) -> list[Link]:
        """In the order of their opening; forgets those whose both ends are gone."""
        for number in [number for number, link in self._links.items() if link.is_gone]:
            del self._links[number]
        return list(self._links.values())
