"""The controllers of a simulated cluster together: where they run, who is active, how they talk,
and whether the quorum kept its word.

Owns the places of the controllers (a machine, a directory id, the address that the disks'
``meta.properties`` name), starts a process at each place whose machine is on, and carries the
quorum's messages. Those are lost, doubled, late and out of order (Raft is built for that), where a
control session is a link that can only break, stall or be slow.

``QuorumChecker`` judges what all members did together, after each event of one::

    one member leads a term, and holds everything that was committed before
    a voter votes once a term, whatever happened to its process; a blank member never votes, and neither does a recovering one
    an index has one committed entry for ever, in every member
    what a member hands out as committed is on the disks of a majority of the voters: at most a minority of running voters lacks it
    (of those in force when it was committed; a disk that has retired and forgotten is held to its votes)

A replaced disk is blank and has another id: its member follows and, knowing no voters, neither
votes nor stands for election, until the active controller takes it in by a record. A voter whose
files were damaged at rest mends them, or recovers, by itself; only a sole voter's log is brought
back by a person, from a copy. Links between controllers (``joined``, ``left``) say who can be
reached and who has died; as hints they are sometimes late, and sometimes wrong.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.errors import RaylogError
from raylog.metadata.events import QuorumMessage, StartController
from raylog.raft.messages import Message, VoteReply, bootstrap_snapshot
from raylog.raft.metadata_log import LOG_NAME, SNAPSHOT_SUFFIX, MetadataLog
from raylog.raft.quorum import Quorum
from raylog.simulator.checkers import Violation
from raylog.simulator.processes import Machine
from raylog.simulator.simulated_controller import ControllerProcess
from raylog.types import Endpoint

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation


@dataclass(slots=True)
class Place:
    """Where a controller runs. ``endpoint``: where the last one that was started there listens."""

    number: int
    broker_id: int
    simulation: Simulation
    endpoint: Endpoint
    process: ControllerProcess | None = None
    is_blank: bool = False  # its voter, or the one that was here before, has lost what it knew
    undamaged: tuple[str, bytes] | None = None  # a file that was corrupted at rest, and its bytes before that
    is_recovering: bool = False  # its disk has lost entries, and its voter has not got them back
    is_deaf: bool = False  # the quorum's messages do not arrive; everybody else's do

    @property
    def machine(self) -> Machine:
        return self.simulation.machine_of(self.broker_id)

    @property
    def directory_id(self) -> uuid.UUID:
        """Of the disk that is there now."""
        return self.simulation.directory_ids[self.broker_id]

    @property
    def directory(self) -> str:
        return f"/{self.machine.name}/metadata"


class Controllers:
    """One place or three at first, as many as a plan wants later. ``start`` formats the disks of the
    first, and starts a process at each.
    """

    def __init__(self, simulation: Simulation, brokers: list[int]) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self.places = [
            Place(number, broker, simulation, Endpoint(simulation.machine_of(broker).name, 1))
            for number, broker in enumerate(brokers, start=1)
        ]
        self.checker = QuorumChecker(self)
        self._have_moved = False
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

    # ---------------------------------------------------------------- places that come and go

    @property
    def machines(self) -> list[Machine]:
        return [place.machine for place in self.places]

    def start_planned(self, order: StartController) -> None:
        """As Ray would: after a while, even if who asked is dead by then; seldom not at all."""

        def start() -> None:
            known = any(place.broker_id == order.broker_id for place in self.places)
            if not known and self.simulation.directory_ids[order.broker_id] == order.directory_id:
                number = max((place.number for place in self.places), default=0) + 1
                machine = self.simulation.machine_of(order.broker_id)
                place = Place(number, order.broker_id, self.simulation, Endpoint(machine.name, 1), is_blank=True)
                self.places.append(place)
                self._have_moved = True
                self.simulation.counts["controllers started by a plan"] += 1
                self._start(place)

        if not self.scheduler.chance(0.1):
            delay_us = self.scheduler.skewed_us(150_000)
            self.scheduler.after_us(delay_us, start, f"start a controller of broker {order.broker_id}")

    def retired(self, process: ControllerProcess) -> None:
        """It is no controller any more. Its disk forgets its metadata, but nobody the votes it gave."""
        place = process.place
        self.places.remove(place)
        process.kill()
        place.machine.disk.wipe(place.directory)
        self.simulation.counts["controllers retired by a plan"] += 1

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
        if place in self.places and place.process is None and place.machine.is_on:
            self.simulation.clock_steps.restarted(place.machine)
            place.process = self.simulation.new_controller(place)
            place.endpoint = place.process.endpoint
            self.simulation.trace(f"{place.process.name} starts")

    def is_blank(self, machine: Machine) -> bool:
        """Whether a controller there has lost what it knew, and has not been taken in again."""
        return any(place.is_blank for place in self.places if place.machine is machine)

    def start_later(self, machine: Machine) -> None:
        """After a crash, or when the power is back."""
        for place in self.places:
            if place.machine is machine:
                self._start_later(place)
        self._mourn(machine)

    def _start_later(self, place: Place) -> None:
        delay_ms = self.scheduler.between(50, 1_000)
        self.scheduler.after_ms(delay_ms, lambda: self._start(place), f"controller {place.number} restarts")

    def ended(self, process: ControllerProcess) -> None:
        process.place.process = None
        if process.machine.is_on:
            self._mourn(process.machine)
        self.simulation.counts["controller ends"] += 1
        self._start_later(process.place)

    def refused(self, process: ControllerProcess, error: RaylogError) -> None:
        """It does not take its metadata as they are.

        Right if a file was corrupted that nobody else has, or that looks like a newer raylog's now.
        A person brings it back from a copy.
        """
        place = process.place
        if place.undamaged is None or not str(error).startswith(place.directory):
            raise Violation(f"{process.name} refuses its own log: {error}") from error
        (path, content), place.undamaged = place.undamaged, None
        is_copied = len(self.places) > 1 or not path.endswith((LOG_NAME, SNAPSHOT_SUFFIX))
        # What is left of a log may name a sole voter, as there was one before others were planned.
        if is_copied and not self._have_moved and "is of version" not in str(error):
            raise Violation(f"{process.name} refuses what it could mend: {error}") from error
        process.files.write_file(path, content)
        self.simulation.counts["corrupt metadata refused"] += 1
        self.simulation.trace(f"{process.name} refuses its log: {error}")
        process.kill()

    @property
    def are_sound(self) -> bool:
        """Whether no voter is blank, damaged or recovering."""
        return not any(place.is_blank or place.is_recovering or place.undamaged for place in self.places)

    def may_be_damaged(self) -> list[Place]:
        """The controllers of which one may lose what it knows: the others elect without it, and a
        sole one gets it back from a copy.

        Each has opened its log since the last loss of power: that leaves ``log-end`` behind, and
        then no cut would show.
        """
        if len(self.places) > 1:
            voting = [process for process in self.running() if process.voters == self._directory_ids()]
            if not self.are_sound or 2 * len(voting) <= len(self.places):
                return []
        return [place for place in self.places if place.process is not None and place.process.controller is not None]

    def replace_disk(self, place: Place) -> bool:
        """The disk of one place is lost for good, all replicas on it too, and a blank one with an
        id of its own is in its place.

        False, and nothing is done, unless all voters' disks are there and know their voters: a
        majority must keep what was committed. The others may lag, sleep or be cut off.
        """
        if not self.are_sound:
            return False
        voting = [process for process in self.running() if process.has_voters]
        if len(self.places) < 3 or 2 * len(voting) <= len(self.places) or not place.machine.is_on:
            return False
        if any(process.voters != self._directory_ids() for process in voting):
            return False
        for process in list(place.machine.processes):
            process.kill()
        place.machine.disk.wipe(f"/{place.machine.name}")
        place.is_blank = True
        self.simulation.directory_ids[place.broker_id] = self.simulation.new_uuid()
        self.simulation.trace(f"{place.machine.name} has a blank disk {place.directory_id}")
        self.simulation.administration.register_disk(place.broker_id)
        return True

    def lose_metadata(self, place: Place) -> bool:
        """Somebody deletes the folder of the metadata: the disk keeps its id, and its voter is
        blank.

        It votes again when it has a leader's snapshot, so False, and nothing is done, while another
        lacks anything that was committed.
        """
        others = [other for other in self.places if other is not place]
        if (
            len(others) < 2
            or any(other.is_recovering or other.undamaged for other in others)
            or not place.machine.is_on
            or place.machine.disk.lookup(place.directory) is None
        ):
            return False
        voters = self._directory_ids()  # a disk that waits for its admission holds all, and counts for nothing
        for other in others:
            if other.process is None or other.process.voters != voters or not self.checker.holds_all(other.process):
                return False
        if place.process is not None:
            place.process.kill()
        place.machine.disk.wipe(place.directory)
        place.is_blank = True
        self.simulation.trace(f"{place.machine.name} has lost its metadata")
        self.checker.forgot(place.directory_id)
        return True

    def _directory_ids(self) -> tuple[uuid.UUID, ...]:
        return tuple(sorted(place.directory_id for place in self.places))

    def incomplete(self) -> str | None:
        """What is missing of a quorum of all disks that are there."""
        active = self.active()
        if active is None:
            return "no active controller"
        if active.voters != self._directory_ids():
            return f"the voters are {active.voters}, the disks {self._directory_ids()}"
        assert active.controller is not None, "it is active"
        plan = active.controller.image.planned_controllers
        if plan and sorted(place.broker_id for place in self.places) != list(plan):
            return f"the plan is {plan}, the controllers are {self.places}"
        return None

    # ---------------------------------------------------------------- links

    def introduce(self, process: ControllerProcess) -> None:
        """It has read its log, and dials the others."""
        for other in self.running():
            if other is not process:
                self._dial(process, other)

    def _dial(self, process: ControllerProcess, other: ControllerProcess) -> None:
        def answer() -> None:
            if not process.alive or not other.alive or (process.knows(other) and other.knows(process)):
                return
            if self._is_cut(process, other) or other.controller is None:
                self.scheduler.after_us(self.scheduler.skewed_us(200_000), answer, "dial a controller again")
                return
            process.run(lambda: process.joined(other))
            other.run(lambda: other.joined(process))

        delay_us = 2 * self.simulation.network.delay_us(process.machine, other.machine)
        self.scheduler.after_us(delay_us, answer, "dial a controller")

    def _is_cut(self, process: ControllerProcess, other: ControllerProcess) -> bool:
        network = self.simulation.network
        return network.is_cut(process.machine, other.machine) or network.is_cut(other.machine, process.machine)

    def _break(self, process: ControllerProcess, other: ControllerProcess, *, is_dead: bool) -> None:
        """``process`` hears that its link to ``other`` has ended, and dials whoever is there now."""

        def heard() -> None:
            if not process.alive:
                return
            if self._is_cut(process, other):
                self.scheduler.after_us(self.scheduler.skewed_us(200_000), heard, "a link is stalled")
                return
            process.run(dial_again)

        def dial_again() -> None:
            process.left(other, is_dead=is_dead)
            successor = other.place.process
            if successor is not None:
                self._dial(process, successor)

        delay_us = self.simulation.network.delay_us(process.machine, other.machine)
        self.scheduler.after_us(delay_us, heard, "a link ends")

    def _mourn(self, machine: Machine) -> None:
        """Links to dead processes of a machine end, its ports refuse; a machine without power says
        nothing.
        """
        for process in self.running():
            for other in list(process.peers.values()):
                if other.machine is machine and not other.alive:
                    self._break(process, other, is_dead=False)
                    self._break(process, other, is_dead=True)

    def break_links(self, share: float) -> None:
        """A fault. What one hears of it is sometimes wrong: that the other is dead."""
        for process in self.running():
            for other in list(process.peers.values()):
                if self.scheduler.chance(share):
                    is_dead = self.scheduler.chance(0.1)
                    self._break(process, other, is_dead=is_dead)
                    self._break(other, process, is_dead=is_dead)

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
        place = next((place for place in self.places if place.directory_id == to), None)
        if place is None:
            return  # to a disk that is lost
        event = QuorumMessage(sender.identity, message)
        for _ in range(2 if self.scheduler.chance(self.doubling) else 1):
            if not self.scheduler.chance(self.loss):
                self._carry(sender, place, event)

    def _carry(self, sender: ControllerProcess, place: Place, event: QuorumMessage) -> None:
        origin = sender.machine

        def arrive() -> None:
            if place.is_deaf:
                return
            if place.process is not None and (place.process.refuses(sender) or sender.refuses(place.process)):
                return  # there is no link
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
        self._known_in: dict[int, int] = {}  # index → the term of who first handed it out: it was committed by then
        self._handed_out: dict[str, int] = {}  # process → the last index that was checked

    def holds_all(self, process: ControllerProcess) -> bool:
        """Whether everything that was ever handed out as committed is on its disk."""
        last = max(self._committed, default=0)
        return last > 0 and process.has_voters and process.has_on_disk(last, self._committed[last][0])

    def voted(self, sender: ControllerProcess, reply: VoteReply, to: uuid.UUID) -> None:
        if sender.is_recovering:
            raise Violation(f"{sender.name} is recovering and grants a vote: {reply}")
        if not sender.has_voters:
            raise Violation(f"{sender.name} is blank and grants a vote: {reply}")
        voter = sender.identity
        if not reply.pre_vote and self._votes.setdefault((reply.term, voter), to) != to:
            raise Violation(f"{sender.name} votes for {to.int} in term {reply.term}, and has voted for another")

    def forgot(self, voter: uuid.UUID) -> None:
        """Its metadata are gone: nobody holds it to the votes it gave before."""
        for key in [key for key in self._votes if key[1] == voter]:
            del self._votes[key]

    def check(self, process: ControllerProcess, quorum: Quorum) -> None:
        snapshot = quorum.log.snapshot
        if quorum.voters and process.has_on_disk(snapshot.last_index, snapshot.last_term):
            process.place.is_blank = False  # not before: a loss of power would make it blank again
        process.place.is_recovering = quorum.is_recovering
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
            if self._known_in[index] > quorum.term:
                continue  # who was paused while its election was won leads a term that is over
            if index > quorum.log.snapshot.last_index and quorum.log.term_at(index) != term:
                raise Violation(f"{name} leads term {quorum.term} without the committed entry {index} of term {term}")

    def _commit(self, name: str, quorum: Quorum, index: int) -> None:
        entry = quorum.log.entries[index - quorum.log.snapshot.last_index - 1]
        known = self._committed.get(index)
        if known is None:
            self._committed[index] = (entry.term, entry.data)
            self._known_in[index] = quorum.term
            lacking = {
                other.identity: other.name
                for other in self._controllers.running()
                if not other.has_on_disk(index, entry.term)
                and not other.is_recovering  # it may have held it, and said so, before its disk lost it
            }
            # Voters that were named behind the entry may have committed it, or may have been named since.
            if all(2 * len(lacking.keys() & voters) >= len(voters) for voters in quorum.log.voters_since(index)):
                names = sorted(lacking.values())
                raise Violation(f"{name} hands out entry {index} of term {entry.term}, which is not on {names}")
        elif known != (entry.term, entry.data):
            raise Violation(f"{name} hands out entry {index} of term {entry.term}; another of {known[0]} was committed")
