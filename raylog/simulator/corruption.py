"""Corruption at rest: every process of the cluster is killed, and one broker's disk comes back
damaged.

Owns which files may be damaged and how: the replicas' logs (cut anywhere; a flipped bit or a page
of zeros where recovery looks), their checkpoints and producer snapshots, and the metadata of one
controller, which it gets back by itself (from the other copy of a small file, or from the other
controllers) if it isn't the only one. One disk is a minority: the promise that nothing acknowledged
is lost holds only while another member of the ISR or ELR has everything that was committed, in a
process that runs until the kill, and in a log that is trusted. So a log is damaged only where the
checkers know of such a member. A log that was made, or came back suspect, a moment ago may have
copied everything, but is trusted only with its next fetch. Killed before, it comes back suspect,
and a log that was cut at rest and does not show it goes before it: those are two faults, and nobody
promises anything.

Or the disk comes back as it once was, with old copies of its logs (``old_copies``), and alone:
servers on the other machines can't be started for longer than an election waits. Then no good copy
is there to be heard, and what is brought back lies below the controllers' record of high watermarks
in every partition; logs of which this is not so are left as they are.

From the kill until each partition has a leader no other fault strikes, and those that last end. A
second disaster in that time would take the good copies too, and no election could be right then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.log import checkpoint as checkpoints
from raylog.log.checkpoint import FILE_NAME as CHECKPOINT
from raylog.log.leader_epochs import FILE_NAME as EPOCHS
from raylog.metadata.records import PartitionState
from raylog.raft.metadata_log import DAMAGED_SUFFIX, LOG_NAME
from raylog.replication.replica import Role
from raylog.simulator.inodes import PAGE_BYTES
from raylog.simulator.old_copies import OldCopies
from raylog.types import NO_LEADER, TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.processes import Machine
    from raylog.simulator.simulated_quorum import Place
    from raylog.simulator.simulation import Simulation

RECOVERY_MS = 60_000
"""After this long other faults strike again, whatever has a leader by then."""


class Corruption:
    """``strike`` kills everything and damages a disk; ``is_recovering`` until the cluster has come
    back.

    ``lasting`` takes the shortest and the longest time that a fault lasts, in ms, and what ends it.
    """

    def __init__(self, simulation: Simulation, lasting: Callable[[int, int, Callable[[], object]], int]) -> None:
        self.simulation = simulation
        self.scheduler = simulation.scheduler
        self.old_copies = OldCopies(simulation)
        self._lasting = lasting
        self._until_ms = -1

    @property
    def is_recovering(self) -> bool:
        """Whether a partition still has no leader since the last strike, and may get one."""
        if self._until_ms < self.scheduler.now_ms:
            return False
        partitions = self._partitions()
        if partitions and all(self._is_settled(state) for _, _, state in partitions):
            self._until_ms = -1
        return self._until_ms >= 0

    def _is_settled(self, state: PartitionState) -> bool:
        """Whether a process that lives now leads, or nobody can."""
        if state.leader == NO_LEADER:
            return not (state.isr or state.elr)
        return self.simulation.process_of(state.leader, state.leader_incarnation) is not None

    def strike(self, end_lasting_faults: Callable[[], None]) -> None:
        """Kill everything; damage the logs of one broker where that is allowed, else, and sometimes
        besides, a controller's metadata.
        """
        end_lasting_faults()
        if self.scheduler.chance(0.8) and self._bring_old_copies_back():
            return
        victims = [machine for machine in self.simulation.broker_machines if machine.is_on and self.exposed(machine)]
        victim = self.scheduler.rng.choice(victims) if victims else None
        folders = list(self.exposed(victim)) if victim is not None else []
        places = self.simulation.controllers.may_be_damaged()
        self._kill_everything()
        if victim is None or self.scheduler.chance(0.5):
            self.damage_metadata(places)
        if victim is not None:
            self.simulation.counts["disks corrupted at rest"] += 1
            for folder in folders:
                self._damage_replica(victim, folder)
        self._until_ms = self.scheduler.now_ms + RECOVERY_MS

    def _kill_everything(self) -> None:
        for machine in self.simulation.machines:
            for process in list(machine.processes):
                process.kill()

    def _bring_old_copies_back(self) -> bool:
        """Kill everything and give one broker old copies of its logs; until an election has waited
        no other broker comes back.
        """
        found = {
            machine.name: {
                folder: copy
                for folder, id in self.exposed(machine).items()
                if (copy := self.old_copies.fitting(machine, id)) is not None
            }
            for machine in self.simulation.broker_machines
            if machine.is_on
        }
        victims = [machine for machine in self.simulation.broker_machines if found.get(machine.name)]
        if not victims:
            return False
        victim = self.scheduler.rng.choice(victims)
        others = [machine for machine in self.simulation.broker_machines if machine is not victim]
        self._kill_everything()
        for folder, copy in found[victim.name].items():
            victim.disk.restore_folder(folder, copy.folder)
            self.simulation.trace(f"{folder} is back as it was when it ended at {copy.status.log_end_offset}")
        for machine in others:
            machine.starts_servers = False

        def others_are_back() -> None:
            for machine in others:
                machine.starts_servers = True

        wait_ms = self.simulation.controller_config.unclean_shutdown_election_wait_ms
        self._lasting(wait_ms + 5_000, wait_ms + 15_000, others_are_back)
        self.simulation.counts["old copies that came back alone"] += 1
        self._until_ms = self.scheduler.now_ms + wait_ms + 15_000 + RECOVERY_MS
        return True

    # ---------------------------------------------------------------- what may be damaged

    def _partitions(self) -> list[tuple[TopicIdPartition, str, PartitionState]]:
        """As the active controller sees them; none while there is no active controller that has
        heard of any.
        """
        return self.simulation.partitions()

    def exposed(self, machine: Machine) -> dict[str, TopicIdPartition]:
        """The folders on that machine whose logs may be damaged, and whose they are."""
        folders = {}
        for id, topic, state in self._partitions():
            for slot in state.replicas:
                if self.simulation.machine_of(slot.broker_id) is not machine:
                    continue
                folder = f"/{machine.name}/{topic}-{id.partition}"
                if machine.disk.lookup(folder) is not None and self._has_another_copy(id, topic, state, slot.broker_id):
                    folders[folder] = id
        return folders

    def _has_another_copy(self, id: TopicIdPartition, topic: str, state: PartitionState, broker: int) -> bool:
        """Whether another member of the ISR or ELR runs with a trusted log that holds all that was
        ever below a high watermark.

        A member that the controller has just taken out is none, even while that is not committed: a
        successor may commit it.
        """
        end = self.simulation.checkers.history(id, topic).end
        decided = self.simulation.decided(id)
        members = set(state.isr + state.elr)
        if decided is not None:
            members &= set(decided.isr + decided.elr)
        for process in self.simulation.replica_processes():
            member = process.host.context.broker_id
            replica = process.host.replicas.get(id)
            if member == broker or member not in members or replica is None or replica.log is None:
                continue
            is_serving = replica.role in (Role.LEADER, Role.FOLLOWER)
            is_current = self.simulation.process_of(member, process.spec.incarnation) is process
            is_whole = replica.log.log_end_offset >= end and not replica.log.is_suspect
            if is_serving and is_current and is_whole and not process.machine.broken:
                return True
        return False

    # ---------------------------------------------------------------- damage

    def damage_metadata(self, places: list[Place]) -> None:
        """One file of one controller of these. A sole one that refuses it gets it back as it was
        (``Controllers.refused``).
        """
        if not places:
            return
        place = self.scheduler.rng.choice(places)
        disk = place.machine.disk
        if disk.lookup(place.directory) is None:
            return
        entries = sorted(disk.directory(place.directory).entries)
        names = [name for name in entries if not name.endswith(DAMAGED_SUFFIX)]
        path = f"{place.directory}/{self.scheduler.rng.choice([*names, *[LOG_NAME] * 8])}"
        if disk.lookup(path) is None:
            return  # a blank disk, that waits for its admission
        before = bytes(disk.inode(path).cached)
        if before:
            place.undamaged = (path, before)
            self._damage(place.machine, path)
            self.simulation.counts["metadata files corrupted"] += 1

    def _damage_replica(self, machine: Machine, folder: str) -> None:
        if self.scheduler.chance(0.6):
            self._cut_tail(machine, folder)
        elif self.scheduler.chance(0.5):
            self._cut_logs(machine, folder)
        else:
            self._damage_one_file(machine, folder)

    def _damage_one_file(self, machine: Machine, folder: str) -> None:
        """Any but those that opening a log doesn't look into: segments and indexes below the
        recovery point.
        """
        disk = machine.disk
        names = sorted(disk.directory(folder).entries)
        logs = [name for name in names if name.endswith(".log")]
        if not logs:
            return
        checkpoint = checkpoints.read(disk.files(), folder)
        reach = 0 if checkpoint is None or checkpoint.boot_id != machine.boot_id else checkpoint.recovery_point
        scanned = [name for name in logs if int(name[:20]) >= reach] or logs[-1:]
        others = [name for name in names if name.endswith(".snapshot") or name in (CHECKPOINT, EPOCHS)]
        path = f"{folder}/{self.scheduler.rng.choice([self.scheduler.rng.choice(scanned), *others])}"
        if disk.inode(path).cached:
            self._damage(machine, path)

    def _damage(self, machine: Machine, path: str) -> None:
        """One flipped bit, a page of zeros, or an end that is gone."""
        rng, disk = self.scheduler.rng, machine.disk
        inode = disk.inode(path)
        size = len(inode.cached)
        position = rng.randrange(size)
        match rng.choice(("bit", "page", "end")):
            case "bit":
                position = rng.randrange(min(_version_end(path, inode.cached), size - 1), size)
                disk.write(inode, path, position, bytes([inode.cached[position] ^ 1 << rng.randrange(8)]))
                what = f"has a flipped bit at {position}"
            case "page":
                start = position - position % PAGE_BYTES
                disk.write(inode, path, start, bytes(min(PAGE_BYTES, size - start)))
                what = f"has zeros from {start} on"
            case _:
                disk.truncate(inode, position)
                what = f"is cut from {size} to {position} bytes"
        inode.flush()
        self.simulation.trace(f"{path} {what}")

    def _cut_tail(self, machine: Machine, folder: str) -> None:
        """Cut the last few batches: above the checkpointed high watermark the log looks whole."""
        disk = machine.disk
        logs = [f"{folder}/{name}" for name in sorted(disk.directory(folder).entries) if name.endswith(".log")]
        written = [path for path in logs if disk.inode(path).cached]
        if written:
            inode = disk.inode(written[-1])
            size = len(inode.cached)
            end = size - self.scheduler.between(1, min(size, 600))
            disk.truncate(inode, end)
            inode.flush()
            self.simulation.trace(f"{written[-1]} is cut from {size} to {end} bytes")

    def _cut_logs(self, machine: Machine, folder: str) -> None:
        """Cut each segment at a byte of its own, often all of them in half."""
        disk = machine.disk
        in_half = self.scheduler.chance(0.3)
        for name in sorted(disk.directory(folder).entries):
            if name.endswith(".log"):
                inode = disk.inode(f"{folder}/{name}")
                size = len(inode.cached)
                end = size // 2 if in_half else self.scheduler.rng.randrange(size + 1)
                disk.truncate(inode, end)
                inode.flush()
                self.simulation.trace(f"{folder}/{name} is cut from {size} to {end} bytes")


def _version_end(path: str, content: bytearray) -> int:
    """Where the version ends that a replica's file begins with.

    A file whose version was raised looks like a newer raylog's. It is refused by name and left to
    the operator, so the replica does not come back by itself.
    """
    if path.endswith(".snapshot"):
        return 2
    return content.find(b"\n") + 1 if path.endswith((CHECKPOINT, EPOCHS)) else 0
