"""The controllers of a simulated cluster together: where they run, who is active, how they talk, and whether the quorum kept its word.

Owns the places of the controllers (a machine, a directory id, the address that the disks' ``meta.properties`` name), starts a process
at each place whose machine is on, and carries the quorum's messages. Those are lost, doubled, late and out of order (Raft is built
for that), where a control session is a link that can only break, stall or be slow.

``QuorumChecker`` judges what all members did together, after each event of one::

    one member leads a term, and holds everything that was committed before
    a voter votes once a term, whatever happened to its process; a blank member never votes
    an index has one committed entry for ever, in every member
    what a member hands out as committed is on the disks of a majority of the voters: at most a minority of running voters lacks it

A replaced disk is blank: its member follows and, knowing no voters, neither votes nor stands for election.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.metadata.events import QuorumMessage
from raylog.metadata.metadata_log import MetadataLog
from raylog.metadata.quorum import Quorum
from raylog.metadata.quorum_messages import Message, VoteReply, bootstrap_snapshot
from raylog.testing.checkers import Violation
from raylog.testing.processes import Machine
from raylog.testing.simulated_controller import ControllerProcess
from raylog.types import Endpoint

if TYPE_CHECKING:
    from raylog.testing.simulation import Simulation


@dataclass(slots=True)
class Place:
    """Where a controller runs. ``endpoint``: where the last one that was started there listens."""

    number: int
    machine: Machine
    directory_id: uuid.UUID
    endpoint: Endpoint
    process: ControllerProcess | None = None
    is_deaf: bool = False  # the quorum's messages do not arrive; everybody else's do

    @property
    def directory(self) -> str:
        return f"/{self.machine.name}/metadata"


class Controllers:
    """One place or three. ``start`` formats their disks and starts a process at each."""

    def __init__(self, simulation: Simulation, machines: list[Machine]) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self.machines = machines
        self.places = [
            Place(number, machine, uuid.UUID(int=number), Endpoint(machine.name, 1))
            for number, machine in enumerate(machines, start=1)
        ]
        self.checker = QuorumChecker(self)
        rng = self.scheduler.rng
        self.loss = rng.choice((0.0, 0.0, 0.02, 0.2))
        self.doubling = rng.choice((0.0, 0.05))
        self.store_us = rng.choice((500, 500, 5_000, 30_000))  # how long a write of the metadata log typically takes

    def start(self) -> None:
        bootstrap = bootstrap_snapshot(self.simulation.cluster_id, [place.directory_id for place in self.places])
        for place in self.places:
            files = place.machine.disk.files()
            MetadataLog.format(files, place.directory, bootstrap)
            files.crash()
            self._start(place)

    # ---------------------------------------------------------------- processes

    @property
    def endpoints(self) -> list[Endpoint]:
        return [place.endpoint for place in self.places]

    def running(self) -> list[ControllerProcess]:
        return [place.process for place in self.places if place.process is not None]

    def active(self) -> ControllerProcess | None:
        """The one that decides: of those that believe so, the one of the highest term."""
        found = [process for process in self.running() if process.is_active]
        return max(found, key=lambda process: process.term) if found else None

    def _start(self, place: Place) -> None:
        if place.process is None and place.machine.is_on:
            place.process = ControllerProcess(self.simulation, place)
            place.endpoint = place.process.endpoint
            self.simulation.trace(f"{place.process.name} starts")

    def start_later(self, machine: Machine) -> None:
        """After a crash, or when the power is back."""
        for place in self.places:
            if place.machine is machine:
                self._start_later(place)

    def _start_later(self, place: Place) -> None:
        delay_ms = self.scheduler.between(50, 1_000)
        self.scheduler.after_ms(delay_ms, lambda: self._start(place), f"controller {place.number} restarts")

    def ended(self, process: ControllerProcess) -> None:
        process.place.process = None
        self.simulation.counts["controller ends"] += 1
        self._start_later(process.place)

    def replace_disk(self, place: Place) -> bool:
        """The metadata of one place are gone for good. False, and nothing is done, while another lacks anything that was committed.

        The new disk goes by the directory id of the old one, so it is a voter again as soon as it has a leader's snapshot.
        """
        others = [other for other in self.places if other is not place]
        if len(others) < 2 or not place.machine.is_on:
            return False
        if not all(other.process is not None and self.checker.holds_all(other.process) for other in others):
            return False
        if place.process is not None:
            place.process.kill()
        files = place.machine.disk.files()
        for name in files.list_directory(place.directory):
            files.remove(f"{place.directory}/{name}")
        files.sync_directory(place.directory)
        files.crash()
        self.checker.forgot(place.directory_id)
        return True

    # ---------------------------------------------------------------- messages

    def go_deaf(self, place: Place) -> None:
        """The links from the other controllers to this one are dead."""
        place.is_deaf = True

    def hear_again(self, place: Place) -> None:
        place.is_deaf = False

    def post(self, sender: ControllerProcess, to: uuid.UUID, message: Message) -> None:
        """Send a message of the quorum, which may come to nothing."""
        if isinstance(message, VoteReply) and message.granted:
            self.checker.voted(sender, message, to)
        place = next(place for place in self.places if place.directory_id == to)
        event = QuorumMessage(sender.place.directory_id, message)
        for _ in range(2 if self.scheduler.chance(self.doubling) else 1):
            if not self.scheduler.chance(self.loss):
                self._carry(sender.machine, place, event)

    def _carry(self, origin: Machine, place: Place, event: QuorumMessage) -> None:
        def arrive() -> None:
            if place.is_deaf:
                return
            if self.simulation.network.is_cut(origin, place.machine):
                if self.scheduler.chance(0.3):  # a late word, perhaps of a term that is over by then
                    self.scheduler.after_us(self.scheduler.skewed_us(300_000), arrive, "late quorum message")
            elif place.process is not None:
                process = place.process
                process.run(lambda: process.handle(event))

        delay_us = self.simulation.network.delay_us(origin, place.machine)
        self.scheduler.after_us(delay_us, arrive, "quorum message")


class QuorumChecker:
    """Fed after each event of a member with the member."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._leaders: dict[int, uuid.UUID] = {}
        self._votes: dict[tuple[int, uuid.UUID], uuid.UUID] = {}
        self._committed: dict[int, tuple[int, bytes]] = {}  # index → (term, data)
        self._handed_out: dict[str, int] = {}  # process → the last index that was checked

    def holds_all(self, process: ControllerProcess) -> bool:
        """Whether everything that was ever handed out as committed is on its disk."""
        last = max(self._committed, default=0)
        return last > 0 and process.has_voters and process.has_on_disk(last, self._committed[last][0])

    def voted(self, sender: ControllerProcess, reply: VoteReply, to: uuid.UUID) -> None:
        if not sender.has_voters:
            raise Violation(f"{sender.name} is blank and grants a vote: {reply}")
        voter = sender.place.directory_id
        if not reply.pre_vote and self._votes.setdefault((reply.term, voter), to) != to:
            raise Violation(f"{sender.name} votes for {to.int} in term {reply.term}, and has voted for another")

    def forgot(self, voter: uuid.UUID) -> None:
        """Its disk was replaced: nobody holds it to the votes it gave before."""
        for key in [key for key in self._votes if key[1] == voter]:
            del self._votes[key]

    def check(self, process: ControllerProcess, quorum: Quorum) -> None:
        if quorum.is_leader and self._leaders.get(quorum.term) != quorum.identity:
            self._leads(process.name, quorum)
        first = self._handed_out.get(process.name, quorum.log.snapshot.last_index) + 1
        for index in range(max(first, quorum.log.snapshot.last_index + 1), quorum.delivered_index + 1):
            self._commit(process.name, quorum, index)
        self._handed_out[process.name] = max(first - 1, quorum.delivered_index)

    def _leads(self, name: str, quorum: Quorum) -> None:
        known = self._leaders.setdefault(quorum.term, quorum.identity)
        if known != quorum.identity:
            raise Violation(f"{name} leads term {quorum.term}, as {known.int} does")
        for index, (term, _) in self._committed.items():
            if index > quorum.log.snapshot.last_index and quorum.log.term_at(index) != term:
                raise Violation(f"{name} leads term {quorum.term} without the committed entry {index} of term {term}")

    def _commit(self, name: str, quorum: Quorum, index: int) -> None:
        entry = quorum.log.entries[index - quorum.log.snapshot.last_index - 1]
        known = self._committed.get(index)
        if known is None:
            self._committed[index] = (entry.term, entry.data)
            lacking = [
                other.name
                for other in self._controllers.running()
                if other.place.directory_id in quorum.voters and not other.has_on_disk(index, entry.term)
            ]
            if 2 * len(lacking) >= len(quorum.voters):
                raise Violation(f"{name} hands out entry {index} of term {entry.term}, which is not on {lacking}")
        elif known != (entry.term, entry.data):
            raise Violation(f"{name} hands out entry {index} of term {entry.term}; another of {known[0]} was committed")
