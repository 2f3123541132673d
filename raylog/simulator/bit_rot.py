"""Bytes of a simulated disk that change by themselves, under load: one bit, or a page that turns
into zeros.

One broker of a run is the victim, so never more than a minority of copies is damaged. What is
struck lies in a log, compacted ones and those of internal topics too, below a high watermark that
the victim has written down. Another live member of the ISR holds the same bytes on its disk, or of
a compacted log what is left of them. So whatever else happens, another copy of what is struck is
left, and the run must end with every replica whole. ``unmended`` says of what this is not so yet.

Now and then the victim's processes are killed at once, so that the damage is met by those that open
the logs.

Not struck: what a batch's CRC does not cover and no reader looks at (base offset and leader epoch:
scrubbing finds those, as unit tests show); and tails that recovery may take for torn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.log.log import Log
from raylog.log.segment import Segment
from raylog.records.batch import MAGIC_POSITION, BatchView
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.replication.replica import Replica
from raylog.simulator.inodes import PAGE_BYTES
from raylog.simulator.simulated_files import DamagedBytes, SimulatedDisk
from raylog.types import INTERNAL_TOPICS, TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.processes import Machine
    from raylog.simulator.simulation import Simulation

AT_REST = 0.25  # the share of strikes after which nobody runs who had read the bytes before
_TRIES = 30
_STAMP_END = 16  # of a batch's bytes: base offset, length and leader epoch
MAGIC_SHARE = 2  # one changed bit in so many is one of the magic byte, which readers look at and no CRC covers


@dataclass(frozen=True, slots=True)
class _Struck:
    """What is damaged on whose disk."""

    id: TopicIdPartition
    machine: Machine
    bytes: DamagedBytes

    def is_mended(self) -> bool:
        return self.bytes.is_mended(self.machine.disk)


class BitRot:
    """See the module."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self._victim: Machine | None = None
        self._struck: list[_Struck] = []

    def strike(self) -> None:
        """Damage a record of some log of the victim, if there is one that others have, too."""
        if self._victim is None:
            self._victim = self.scheduler.rng.choice(self.simulation.broker_machines)
        replicas = [
            replica
            for process in self.simulation.replica_processes()
            if process.machine is self._victim
            for id, replica in process.host.replicas.items()
            if replica.log is not None
        ]
        for _ in range(_TRIES if replicas else 0):
            replica = self.scheduler.rng.choice(replicas)
            if self._strike(self._victim, replica):
                self.simulation.counts["damaged batches"] += 1
                self.simulation.counts["damaged batches of compacted logs"] += replica.open_log().config.compacts
                self.simulation.counts["damaged batches of internal topics"] += (
                    replica.assignment.topic in INTERNAL_TOPICS
                )
                if self.scheduler.chance(AT_REST):
                    self.simulation.counts["damaged batches at rest"] += 1
                    for process in list(self._victim.processes):
                        process.kill()
                return

    def _strike(self, machine: Machine, replica: Replica) -> bool:
        log = replica.open_log()
        try:
            log.checkpoint()  # or recovery could take what is struck for a torn tail
        except OSError:
            return False
        known_end = log.high_watermark
        found = [
            (segment, position, view.size, view.base_offset, bytes(view.data))
            for segment in log.segments
            for position, view in _batches(segment)
            if log.log_start_offset <= view.base_offset and view.next_offset <= known_end
        ]
        if not found:
            return False
        segment, position, size, offset, _ = self.scheduler.rng.choice(found)
        zeroes = self.scheduler.chance(0.4)
        at = position + self.scheduler.between(_STAMP_END, size - 1)
        if not zeroes and at % MAGIC_SHARE == 0:
            at = position + MAGIC_POSITION
        start = at // PAGE_BYTES * PAGE_BYTES if zeroes else at
        end = min(start + PAGE_BYTES if zeroes else at + 1, segment.size)
        touched = [each for each in found if each[0] is segment and each[1] < end and each[1] + each[2] > start]
        covers_all = touched[0][1] <= start and touched[-1][1] + touched[-1][2] >= end
        if not covers_all or any(
            start < each[1] + _STAMP_END and each[1] < end < each[1] + _STAMP_END for each in touched
        ):
            return False
        if not all(
            self._is_held_elsewhere(machine, replica.id, each[3], each[4], compacts=log.config.compacts)
            for each in touched
        ):
            return False
        path = f"{segment.path}.log"
        disk: SimulatedDisk = machine.disk
        if disk.lookup(path) is None:
            return False  # a blank disk has taken its place, and the process has not noticed yet
        span = slice(touched[0][1], touched[-1][1] + touched[-1][2])
        before = bytes(disk.inode(path).cached[span])
        if zeroes:
            disk.zero_page(path, at)
        else:
            disk.flip_bit(path, at, self.scheduler.between(0, 7))
        after = bytes(disk.inode(path).cached[span])
        damaged = DamagedBytes(path, span.start, touched[0][3], before, after)
        disk.damaged.append(damaged)
        self._struck.append(_Struck(replica.id, machine, damaged))
        self.simulation.trace(f"{path} is damaged at {at}, offset {offset}, {'a page' if zeroes else 'a bit'}")
        return before != after

    def _is_held_elsewhere(
        self, machine: Machine, id: TopicIdPartition, offset: int, data: bytes, *, compacts: bool
    ) -> bool:
        """Whether another live member of the ISR has exactly that batch; then it is on its disk for
        good.

        Of a compacted log: whether it has that offset, or what replaced it, below its high
        watermark.
        """
        state = self.simulation.state_of(id)
        holders = 0
        for process in self.simulation.replica_processes():
            other = process.host.replicas.get(id)
            is_member = state is not None and process.host.context.broker_id in state.isr
            if process.machine is machine or other is None or other.log is None or not is_member:
                continue
            is_replicated = (
                other.log.log_start_offset <= offset and BatchView(data).next_offset <= other.log.high_watermark
            )
            if is_replicated and (compacts or _has(other.log, offset, data)):
                process.machine.disk.flush_everything()
                holders += 1
        return holders > 0

    def decided(self, id: TopicIdPartition, brokers: tuple[int, ...]) -> None:
        """A partition has these replicas now. Where only the victim's is left, and nobody knew, no
        copy could mend it: it mends itself.
        """
        for struck in self._struck:
            is_alone = all(self.simulation.machine_of(broker) is struck.machine for broker in brokers)
            if struck.id == id and is_alone and not struck.is_mended():
                struck.bytes.undo(struck.machine.disk)
                self.simulation.counts["damaged batches without another copy"] += 1

    def may_be_lost(self, machine: Machine) -> bool:
        """Whether that machine's disk can go for good: not while it may hold the only whole copy of
        what is damaged.
        """
        return machine is self._victim or self.unmended() is None

    def unmended(self) -> str | None:
        """What is damaged still, in a replica that is somebody's."""
        for struck in self._struck:
            state = self.simulation.state_of(struck.id)
            if state is not None and not self.simulation.is_deleted(struck.id) and not struck.is_mended():
                return f"{struck.bytes.path} is still damaged at byte {struck.bytes.position}"
        return None


def _has(log: Log, offset: int, data: bytes) -> bool:
    """Whether the log has exactly that batch at that offset."""
    segment = log.segments.reaching(offset)[0]
    place = segment.locate(offset)
    return place is not None and segment.file.read_at(place[0], place[2]) == data


def _batches(segment: Segment) -> list[tuple[int, BatchView]]:
    """Those up to the first damage."""
    found = []
    try:
        for position, view in segment.scan():
            if not view.has_valid_crc():
                break
            found.append((position, BatchView(bytes(view.data))))
    except (CorruptBatch, UnsupportedMagic):
        pass
    return found
