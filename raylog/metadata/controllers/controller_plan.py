"""Which brokers shall hold the controllers, and the quorum's next step towards that. Pure.

A plan (``ControllersPlanned``) names brokers. While there is none, the quorum stays where it was
founded, and only two things change it: a blank disk takes the place of its broker's lost voter, and
one controller becomes three once blank disks of two other brokers follow. From the first plan on,
the plan alone says who votes.

The active controller goes towards the plan one voter at a time, each step by a record, and begins
none before the one before it is committed (``voter_changes``):

1. A planned broker without a voter gets a controller on one of its disks (``missing_homes``). It
   begins blank, follows and does not vote.
2. When it has caught up, it becomes a voter. A sole voter takes in the first of several only when
   the second has caught up, too: of two voters none may be away.
3. When every planned broker has a voter, the others are voted out: first who cannot be reached, the
   active controller last. It leads until a majority of the rest has that record, then a new leader
   is elected among them.
4. A controller that no longer votes, and whose broker is not in the plan, retires (``is_retired``).

No step is taken that would leave less than a majority of the voters that can be reached: it could
not be committed, and nothing after it.

Why a controller may judge by itself that it has retired, and forget everything: a leader makes a
controller a voter only if it holds every committed entry, the plan that names its broker among
them, and only while no newer plan waits for its commit. So one whose own log is committed to its
end, with a plan that does not name it and voters without it, is no voter of any later entry either.
What it acknowledged counts for nobody who does not hold it, too, and a leader of its term is
known, so a vote that it forgets cannot elect another. It reads on before it judges, up to what its
leader has committed: a newcomer reads of plans that are over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from raylog.metadata.actors.registrations import places
from raylog.metadata.image import MetadataImage
from raylog.metadata.records import ControllersPlanned, DiskRegistered, Record
from raylog.metadata.requests import ControllersPlan, PlanControllers
from raylog.raft.quorum import Quorum
from raylog.types import CONTROLLER_COUNTS


@dataclass(frozen=True, slots=True)
class QuorumStanding:
    """How the active controller sees the quorum. ``peers`` are those that it reaches, ``caught_up``
    those of them that hold everything that is committed.
    """

    identity: uuid.UUID
    voters: tuple[uuid.UUID, ...]
    peers: frozenset[uuid.UUID]
    caught_up: frozenset[uuid.UUID]

    @property
    def lost(self) -> list[uuid.UUID]:
        """The voters that cannot be reached."""
        return [voter for voter in self.voters if voter != self.identity and voter not in self.peers]

    def can_commit(self, voters: Iterable[uuid.UUID]) -> bool:
        """Whether a majority of these can be reached."""
        reached = [voter == self.identity or voter in self.peers for voter in voters]
        return 2 * sum(reached) > len(reached)


@dataclass(frozen=True, slots=True)
class VoterStep:
    """The voters from now on, one more or one less than before."""

    voters: tuple[uuid.UUID, ...]
    why: str


# ------------------------------------------------------------------ the plan


def decide_plan(
    image: MetadataImage,
    request: PlanControllers,
    *,
    voters: Iterable[uuid.UUID],
    failed: Mapping[uuid.UUID, str],
) -> tuple[list[Record], ControllersPlan]:
    """A plan replaces the one before it, whether the quorum has arrived there or not. ``failed``
    are the disks that are offline.
    """
    seated = sorted({broker for voter in voters if (broker := _broker_of(image, voter)) is not None})
    count = request.count or len(request.broker_ids)
    if request.count and request.broker_ids:
        return _refused(ErrorCode.invalid_request, "give the brokers of the controllers or their number, not both")
    if count not in CONTROLLER_COUNTS:
        return _refused(ErrorCode.invalid_request, f"a cluster has 1, 3 or 5 controllers, not {count}")
    up = [each.broker_id for each in places(image, failed)[0]]
    if request.count:
        staying = [*(each for each in seated if each in up), *(each for each in up if each not in seated)]
        candidates = [*staying, *(each for each in seated if each not in up)]
        if len(candidates) < count:
            words = f"{count} controllers need as many brokers, there are {len(candidates)}: start more brokers"
            return _refused(ErrorCode.invalid_request, words)
        wanted = candidates[:count]
    else:
        wanted = list(request.broker_ids)
        refusal = _why_not(image, wanted, {*seated, *up})
        if refusal is not None:
            return refusal
    plan = tuple(sorted(wanted))
    records = [ControllersPlanned(plan)] if plan != image.planned_controllers else []
    return [*records], ControllersPlan(broker_ids=plan)


def _why_not(
    image: MetadataImage, wanted: list[int], possible: set[int]
) -> tuple[list[Record], ControllersPlan] | None:
    """Why these brokers can't have controllers. ``possible``: who has one, or can be given one."""
    for broker_id in wanted:
        if broker_id not in image.brokers:
            return _refused(ErrorCode.broker_id_not_registered, f"broker {broker_id} is not registered")
        if wanted.count(broker_id) > 1:
            return _refused(ErrorCode.invalid_request, f"broker {broker_id} is named twice: it has one controller")
        if broker_id in possible:
            continue
        if image.is_draining(broker_id):
            why = f"is being drained: `raylog brokers undrain {broker_id}` ends that"
        elif not image.disks_of(broker_id):
            why = "has no disk"
        else:
            why = "is away, or none of its disks works"
        return _refused(ErrorCode.invalid_request, f"broker {broker_id} {why}; no controller can start there")
    return None


def _refused(error: ErrorCode, message: str) -> tuple[list[Record], ControllersPlan]:
    return [], ControllersPlan(error, message)


# ------------------------------------------------------------------ the steps


def is_settled(image: MetadataImage, voters: Iterable[uuid.UUID], peers: Iterable[uuid.UUID]) -> bool:
    """Whether nothing is to be done: quick, for it is asked after every event."""
    seats = set(voters)
    if not seats.issuperset(peers):
        return False
    plan = image.planned_controllers
    if not plan:
        return True
    disks = [image.disks.get(voter) for voter in seats]
    brokers = [disk.broker_id for disk in disks if disk is not None and disk.replaced_by is None]
    return len(brokers) == len(seats) and sorted(brokers) == list(plan)


def next_step(image: MetadataImage, standing: QuorumStanding) -> VoterStep | None:
    """The change of voters that can be made now."""
    if image.planned_controllers:
        return _towards_plan(image, standing)
    return _admission(image, standing)


def missing_homes(
    image: MetadataImage, standing: QuorumStanding, failed: Mapping[uuid.UUID, str]
) -> list[DiskRegistered]:
    """The disks on which controllers have to be started: of each planned broker that has none."""
    there = {
        disk.broker_id
        for member in (*standing.voters, *standing.peers)
        if (disk := image.disks.get(member)) is not None and disk.replaced_by is None
    }
    missing = []
    for broker_id in image.planned_controllers:
        working = [disk for disk in image.disks_of(broker_id) if disk.directory_id not in failed]
        if broker_id not in there and working:
            missing.append(min(working, key=lambda disk: (disk.path, disk.directory_id)))
    return missing


def is_retired(image: MetadataImage, quorum: Quorum, broker_id: int) -> bool:
    """Whether the controller of that broker, whose quorum this is, is no longer wanted, and what it
    holds neither. The module says why that is safe.
    """
    plan = image.planned_controllers
    return (
        bool(plan)
        and broker_id not in plan
        and quorum.identity not in quorum.voters
        and quorum.leader is not None
        and 0 < quorum.leader_commit_index <= quorum.delivered_index == quorum.last_index
    )


def _towards_plan(image: MetadataImage, standing: QuorumStanding) -> VoterStep | None:
    plan, voters = image.planned_controllers, standing.voters
    seats = {voter: _broker_of(image, voter) for voter in voters}
    if None in seats.values():
        return None  # its disk is about to be registered
    ready: dict[int, uuid.UUID] = {}
    for newcomer in sorted(standing.caught_up.difference(voters)):
        disk = image.disks.get(newcomer)
        if disk is not None and disk.replaced_by is None and disk.broker_id in plan:
            ready.setdefault(disk.broker_id, newcomer)
    for lost in standing.lost:
        broker_id = seats[lost]
        rest = tuple(voter for voter in voters if voter != lost)
        if broker_id in ready and standing.can_commit(rest):
            return VoterStep(rest, _in_the_place(ready[broker_id], broker_id, lost))
    missing = [broker_id for broker_id in plan if broker_id not in seats.values()]
    found = {broker_id: ready[broker_id] for broker_id in missing if broker_id in ready}
    if missing:
        if not found or (len(voters) == 1 and len(plan) > 1 and len(found) < 2):
            return None
        broker_id, newcomer = next(iter(found.items()))
        grown = (*voters, newcomer)
        why = f"the disk {newcomer} of broker {broker_id} has caught up, and the plan is {_named(plan)}"
        return VoterStep(grown, why) if standing.can_commit(grown) else None
    leaving = sorted(
        (voter for voter, broker_id in seats.items() if broker_id not in plan),
        key=lambda voter: (voter == standing.identity, voter not in standing.lost, voter),
    )
    for voter in leaving[:1]:
        rest = tuple(each for each in voters if each != voter)
        if standing.can_commit(rest):
            return VoterStep(rest, f"the disk {voter} of broker {seats[voter]} leaves: the plan is {_named(plan)}")
    return None


def _admission(image: MetadataImage, standing: QuorumStanding) -> VoterStep | None:
    """Without a plan: who replaces a lost voter of its broker, and who makes three of one."""
    voters, lost = standing.voters, standing.lost
    ready = {
        newcomer: disk.broker_id
        for newcomer in sorted(standing.caught_up.difference(voters))
        if (disk := image.disks.get(newcomer)) is not None
    }
    taken = {_broker_of(image, voter) for voter in voters}
    elsewhere = {broker_id: newcomer for newcomer, broker_id in ready.items() if broker_id not in taken}
    for newcomer, broker_id in ready.items():
        if len(lost) == 1 and _broker_of(image, lost[0]) == broker_id:
            rest = tuple(voter for voter in voters if voter != lost[0])
            return VoterStep(rest, _in_the_place(newcomer, broker_id, lost[0]))
        if newcomer not in elsewhere.values():
            continue
        if not lost and len(voters) == 2:
            return VoterStep((*voters, newcomer), f"the disk {newcomer} of broker {broker_id} is the third")
        if len(voters) == 1 and len(elsewhere) >= 2:
            why = f"the disk {newcomer} of broker {broker_id} is the second, and a third is ready"
            return VoterStep((*voters, newcomer), why)
    return None


def _in_the_place(newcomer: uuid.UUID, broker_id: int | None, lost: uuid.UUID) -> str:
    return f"the disk {newcomer} of broker {broker_id} is there in the place of {lost}, which is lost"


def _broker_of(image: MetadataImage, directory_id: uuid.UUID) -> int | None:
    disk = image.disks.get(directory_id)
    return disk.broker_id if disk is not None else None


def _named(plan: Iterable[int]) -> str:
    return ", ".join(map(str, plan))
