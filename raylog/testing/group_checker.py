"""What must hold of consumer groups in a simulated cluster, whatever happened to members and coordinators.

It is told of each request that reaches a coordinator and of each answer that leaves one, in the order in which that happens, and raises
``Violation``. It believes nobody: a process that was deposed and has not heard of it answers, too.

::

    no partition is given to two members in one generation (a static member's successor counts as itself)
    a commit that was acknowledged is never lost: what the leading coordinator shows of a partition is the latest acknowledged
        commit, or one that may have come later, never an older one. So a committed offset goes back only where somebody committed so
    who was fenced does not commit: neither a member of an older generation than one whose plan was given out, nor the former
        process of a static member after its successor had got its part
    each request is answered at most once

Every commit carries an offset of its own, so that a fetch tells which one it shows. A commit that was not acknowledged may or may not
count, at any time from its arrival on. An unclean election ends all promises, as for any other log (``checkers``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from raylog.groups.consumer_protocol import decode_assignment
from raylog.groups.requests import (
    GroupReply,
    OffsetCommit,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsFetched,
    Request,
    SyncedGroup,
    SyncGroup,
)
from raylog.testing.checkers import Violation
from raylog.types import TopicPartition


@dataclass(slots=True)
class _Commit:
    """Moments are counted in requests and answers. ``acknowledged_at`` −1: never."""

    received_at: int
    acknowledged_at: int = -1


@dataclass(slots=True)
class _Place:
    """One partition that a group reads. ``floor``: when the youngest of its acknowledged commits arrived."""

    commits: dict[int, _Commit] = field(default_factory=dict)  # by offset
    floor: int = -1
    floor_offset: int = -1


@dataclass(slots=True)
class _History:
    """A group since its log began, or was cut by an unclean election."""

    places: dict[TopicPartition, _Place] = field(default_factory=dict)
    owners: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    newest_generation: int = -1  # of which a plan was given out
    statics: dict[str, str] = field(default_factory=dict)  # instance → the member id that got its part last
    retired: set[str] = field(default_factory=set)  # member ids of former processes of static members


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it reached a coordinator: what the checker wants to see again with the answer."""

    number: int
    history_number: int
    newest_generation: int
    is_retired: bool


class GroupChecker:
    """``counts`` is the simulation's."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._moment = 0
        self._histories: dict[str, tuple[int, _History]] = {}
        self._answered: set[int] = set()
        self._offsets: set[int] = set()  # of all commits that ever arrived

    def _history(self, group: str, number: int) -> _History | None:
        """The group's history of that number; None for one that is over."""
        known_number, history = self._histories.get(group, (-1, _History()))
        if number > known_number:
            history = _History()
            self._histories[group] = number, history
            return history
        return history if number == known_number else None

    def received(self, request: Request, history_number: int) -> Received:
        """``history_number``: how many unclean elections the group's partition had seen."""
        self._moment += 1
        received = Received(self._moment, history_number, -1, False)
        history = self._history(getattr(request, "group_id", ""), history_number)
        if history is None or not isinstance(request, OffsetCommit):
            return received
        for part in request.partitions:
            place = history.places.setdefault(TopicPartition(part.topic, part.partition), _Place())
            assert part.offset not in self._offsets, f"offset {part.offset} was committed before"
            self._offsets.add(part.offset)
            place.commits[part.offset] = _Commit(self._moment)
        return Received(self._moment, history_number, history.newest_generation, request.member_id in history.retired)

    def answered(
        self, request: Request, received: Received, reply: GroupReply, *, history_number: int, leads: bool
    ) -> None:
        """``leads``: nobody has been elected since who answers."""
        self._moment += 1
        if received.number in self._answered:
            raise Violation(f"{request} is answered twice: {reply}")
        self._answered.add(received.number)
        if history_number != received.history_number:
            return
        history = self._history(getattr(request, "group_id", ""), history_number)
        if history is None:
            return
        match request, reply:
            case SyncGroup(), SyncedGroup(error=0):
                self._synced(history, request, reply)
            case OffsetCommit(), OffsetsCommitted():
                self._committed(history, request, received, reply)
            case OffsetFetch(), OffsetsFetched(error=0) if leads:
                self._fetched(history, request, reply)

    def _synced(self, history: _History, request: SyncGroup, reply: SyncedGroup) -> None:
        self._counts["parts of a plan given out"] += 1
        instance = request.group_instance_id
        me = instance or request.member_id
        for place in decode_assignment(reply.assignment).partitions:
            owner = history.owners.setdefault((request.generation, place), me)
            if owner != me:
                raise Violation(
                    f"{request.group_id}: {place.topic}-{place.partition} is {owner}'s and {me}'s in generation {request.generation}"
                )
        if request.generation > history.newest_generation:
            self._counts["generations"] += 1
            history.newest_generation = request.generation
        if instance is not None:
            known = history.statics.get(instance)
            if known is not None and known != request.member_id and request.member_id not in history.retired:
                history.retired.add(known)
                self._counts["static members fenced"] += 1
            history.statics[instance] = request.member_id

    def _committed(self, history: _History, request: OffsetCommit, received: Received, reply: OffsetsCommitted) -> None:
        for part, result in zip(request.partitions, reply.partitions, strict=True):
            if result.error:
                self._counts["commits refused"] += 1
                continue
            self._counts["commits acknowledged"] += 1
            who = f"{request.group_id}: {request.member_id or 'nobody'} of generation {request.generation}"
            if 0 <= request.generation < received.newest_generation:
                raise Violation(f"{who} commits, after generation {received.newest_generation} had its plan")
            if received.is_retired:
                raise Violation(f"{who} commits as {request.group_instance_id}, whose next process had its part")
            place = history.places[TopicPartition(part.topic, part.partition)]
            commit = place.commits[part.offset]
            commit.acknowledged_at = self._moment
            if commit.received_at > place.floor:
                place.floor, place.floor_offset = commit.received_at, part.offset

    def _fetched(self, history: _History, request: OffsetFetch, reply: OffsetsFetched) -> None:
        self._counts["fetches of offsets checked"] += 1
        shown = {TopicPartition(each.topic, each.partition): each.offset for each in reply.partitions}
        for key, place in history.places.items():
            offset = shown.get(key, -1)
            where = f"{request.group_id}: {key.topic}-{key.partition}"
            if offset < 0:
                if place.floor >= 0:
                    raise Violation(f"{where}: commit {place.floor_offset} was acknowledged and is lost")
                continue
            if offset not in self._offsets:
                raise Violation(f"{where} shows {offset}, which nobody has committed")
            commit = place.commits.get(offset)
            if commit is None and place.floor >= 0:  # it came before the log was cut
                raise Violation(f"{where} goes back to {offset} of an older history, from {place.floor_offset}")
            if commit is not None and 0 <= commit.acknowledged_at < place.floor:
                raise Violation(f"{where} goes back to {offset} from {place.floor_offset}, which was acknowledged")
