"""What must hold of consumer groups in a simulated cluster, whatever happened to members and
coordinators.

It is told of each request that reaches a coordinator and of each answer that leaves one, in the
order in which that happens, and raises ``Violation``. It believes nobody: a process that was
deposed and has not heard of it answers, too.

::

    no partition is given to two members in one generation (a static member's successor counts as itself)
    a commit that was acknowledged is never lost: what the leading coordinator shows of a partition is the latest acknowledged
        commit, or one that may have come later, never an older one. So a committed offset goes back only where somebody committed so
    what was committed for a topic is not shown of another one that has its name, by a coordinator that has heard of that
    who was fenced does not commit: neither a member of an older generation than one whose plan was given out, nor the former
        process of a static member after its successor had got its part
    what was deleted (OffsetDelete, DeleteGroups) stays deleted once that is acknowledged, until somebody commits again; but for
        coordinators whose log lost the tombstone, or came late for it, as compaction had removed it elsewhere
    nobody commits while the coordinator waits for the plan of a generation that it has begun
    offsets expire where the group, or of a group without members the partition, was left alone for ``offsets.retention.minutes``
    each request is answered at most once

Every commit carries an offset of its own, so that a fetch tells which one it shows. A commit that
was not acknowledged may or may not count, at any time from its arrival on. An unclean election ends
all promises, as for any other log (``checkers``).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raylog.groups.consumer_protocol import decode_assignment
from raylog.groups.requests import (
    DeleteGroup,
    GroupDeleted,
    GroupHeartbeat,
    GroupReply,
    JoinedGroup,
    JoinGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    Request,
    SyncedGroup,
    SyncGroup,
)
from raylog.simulator.answer_checks import CLOCKS_DIFFER_MS
from raylog.simulator.checkers import Violation
from raylog.types import TopicPartition


@dataclass(slots=True)
class _Commit:
    """Moments are counted in requests and answers. ``acknowledged_at`` −1: never."""

    received_at: int
    acknowledged_at: int = -1


@dataclass(slots=True)
class _Place:
    """One partition that a group reads. ``floor``: when the youngest of its acknowledged commits
    arrived.
    """

    commits: dict[int, _Commit] = field(default_factory=dict)  # by offset
    deletions: dict[int, _Commit] = field(default_factory=dict)  # by the number of the request
    floor: int = -1
    floor_offset: int = -1
    floor_ms: int = 0  # the cluster's time then

    def settle(self, commit: _Commit, offset: int, moment: int, now_ms: int) -> None:
        """It was acknowledged."""
        commit.acknowledged_at = moment
        if commit.received_at > self.floor:
            self.floor, self.floor_offset, self.floor_ms = commit.received_at, offset, now_ms

    def may_be_deleted(self) -> bool:
        return any(not 0 <= each.acknowledged_at < self.floor for each in self.deletions.values())


_Key = tuple[TopicPartition, uuid.UUID | None]
"""A partition, with the id of its topic as the coordinator knew it that took the commit."""


@dataclass(slots=True)
class _History:
    """A group since its log began, or was cut by an unclean election."""

    places: dict[_Key, _Place] = field(default_factory=dict)
    owners: dict[tuple[int, TopicPartition], str] = field(default_factory=dict)
    newest_generation: int = -1  # of which a plan was given out
    statics: dict[str, str] = field(default_factory=dict)  # instance → the member id that got its part last
    retired: set[str] = field(default_factory=set)  # member ids of former processes of static members
    newest_joined: int = -1  # the newest generation that members were told of
    active_ms: int = -1  # when a member was last served; −1: it has had none
    idle_ms: int = -1  # the end of the last time that it was left alone for as long as offsets are kept

    def begin_anew(self) -> None:
        """An empty group without offsets was removed: its generations count from 1 again."""
        self.owners.clear()
        self.statics.clear()
        self.newest_generation = self.newest_joined = -1


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it reached a coordinator: what the checker wants to see again with the answer."""

    number: int
    history_number: int
    newest_generation: int
    is_retired: bool
    keys: tuple[_Key, ...] = ()  # of a commit's partitions
    is_beginning: bool = False
    """The coordinator has begun a generation, and waits for its plan."""


class GroupChecker:
    """``counts`` is the simulation's. ``retention_ms``: how long offsets are kept that nobody
    needs; None: longer than a run.
    """

    def __init__(
        self,
        counts: Counter[str],
        now_ms: Callable[[], int],
        *,
        retention_ms: int | None,
        is_buried: Callable[[str], bool],
        set_back_ms: Callable[[], int],
    ) -> None:
        """``is_buried``: whether the log says that a group was removed since this was last true of
        it.

        ``set_back_ms``: by how much clocks were set back so far; the next coordinator's clock may
        be that far ahead.
        """
        self._set_back_ms = set_back_ms
        self._is_buried = is_buried
        self._counts = counts
        self._now_ms = now_ms
        self._retention_ms = retention_ms
        self._moment = 0
        self._histories: dict[str, tuple[int, _History]] = {}
        self._answered: set[int] = set()
        self._offsets: dict[int, uuid.UUID | None] = {}  # of all commits that ever arrived, with their topic's id

    def _history(self, group: str, number: int) -> _History | None:
        """The group's history of that number; None for one that is over."""
        known_number, history = self._histories.get(group, (-1, _History()))
        if number > known_number:
            history = _History()
            self._histories[group] = number, history
            return history
        return history if number == known_number else None

    def received(
        self, request: Request, history_number: int, topics: Mapping[str, uuid.UUID], *, is_beginning: bool
    ) -> Received:
        """``history_number``: how many unclean elections the group's partition had seen.
        ``topics``: as the coordinator knows them.

        ``is_beginning``: it has begun a generation of the group, and waits for its plan.
        """
        self._moment += 1
        received = Received(self._moment, history_number, -1, False)
        history = self._history(getattr(request, "group_id", ""), history_number)
        if history is not None and isinstance(request, OffsetDelete | DeleteGroup):
            places = tuple(history.places)
            if isinstance(request, OffsetDelete):
                places = tuple((place, topics.get(place.topic)) for place in request.partitions)
            for known in places:
                history.places.setdefault(known, _Place()).deletions[self._moment] = _Commit(self._moment)
        if history is None or not isinstance(request, OffsetCommit):
            return received
        keys = []
        for part in request.partitions:
            key = TopicPartition(part.topic, part.partition), topics.get(part.topic)
            keys.append(key)
            place = history.places.setdefault(key, _Place())
            assert part.offset not in self._offsets, f"offset {part.offset} was committed before"
            self._offsets[part.offset] = key[1]
            place.commits[part.offset] = _Commit(self._moment)
        is_retired = request.member_id in history.retired
        return Received(self._moment, history_number, history.newest_generation, is_retired, tuple(keys), is_beginning)

    def answered(
        self,
        request: Request,
        received: Received,
        reply: GroupReply,
        *,
        history_number: int,
        leads: bool,
        topics: Mapping[str, uuid.UUID],
        has_missed_deletion: Callable[[TopicPartition], bool],
    ) -> None:
        """``leads``: nobody has been elected since who answers.

        ``has_missed_deletion``: the log of who answers took in the place of a partition's tombstone
        after the tombstone was committed, so it may never have had it.
        """
        self._moment += 1
        if received.number in self._answered:
            raise Violation(f"{request} is answered twice: {reply}")
        self._answered.add(received.number)
        if history_number != received.history_number:
            return
        history = self._history(getattr(request, "group_id", ""), history_number)
        if history is None:
            return
        is_of_a_member = isinstance(request, SyncGroup | GroupHeartbeat | OffsetCommit) and request.generation >= 0
        if is_of_a_member and not getattr(reply, "error", 0):
            self._is_active(history)
        match request, reply:
            case JoinGroup(), JoinedGroup(error=0):
                if reply.generation <= history.newest_joined and self._is_buried(request.group_id):
                    history.begin_anew()
                history.newest_joined = max(history.newest_joined, reply.generation)
            case OffsetDelete(), OffsetsDeleted(error=0):
                refused = {TopicPartition(part.topic, part.partition) for part in reply.partitions if part.error}
                self._deleted(history, received, refused)
            case DeleteGroup(), GroupDeleted(error=0):
                self._deleted(history, received, set())
            case SyncGroup(), SyncedGroup(error=0):
                self._synced(history, request, reply)
            case OffsetCommit(), OffsetsCommitted():
                self._committed(history, request, received, reply, topics)
            case OffsetFetch(), OffsetsFetched(error=0) if leads:
                self._fetched(history, request, reply, topics, has_missed_deletion)

    def _is_active(self, history: _History) -> None:
        now_ms = self._now_ms()
        if self._is_long_ago(history.active_ms) and history.active_ms >= 0:
            history.idle_ms = now_ms
        history.active_ms = now_ms

    def _is_long_ago(self, time_ms: int) -> bool:
        return self._retention_ms is not None and (
            self._now_ms() - time_ms >= self._retention_ms - CLOCKS_DIFFER_MS - self._set_back_ms()
        )

    def _may_have_expired(self, history: _History, place: _Place) -> bool:
        if history.active_ms < 0:
            return self._is_long_ago(place.floor_ms)
        return self._is_long_ago(history.active_ms) or place.floor_ms < history.idle_ms

    def _deleted(self, history: _History, received: Received, refused: set[TopicPartition]) -> None:
        for (place_of, _), place in history.places.items():
            if received.number in place.deletions and place_of not in refused:
                self._counts["deletions of offsets acknowledged"] += 1
                place.settle(place.deletions[received.number], -1, self._moment, self._now_ms())

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

    def _committed(
        self,
        history: _History,
        request: OffsetCommit,
        received: Received,
        reply: OffsetsCommitted,
        topics: Mapping[str, uuid.UUID],
    ) -> None:
        for part, key, result in zip(request.partitions, received.keys, reply.partitions, strict=True):
            if result.error:
                self._counts["commits refused"] += 1
                continue
            self._counts["commits acknowledged"] += 1
            who = f"{request.group_id}: {request.member_id or 'nobody'} of generation {request.generation}"
            if 0 <= request.generation < received.newest_generation:
                raise Violation(f"{who} commits, after generation {received.newest_generation} had its plan")
            if received.is_retired:
                raise Violation(f"{who} commits as {request.group_instance_id}, whose next process had its part")
            if received.is_beginning:
                raise Violation(f"{who} commits in a generation that has no plan yet")
            if key[1] is None:
                key = self._named_since(history, key[0], part.offset, topics)
            if key[1] is None:
                raise Violation(f"{who} commits for {part.topic}, which the coordinator did not know")
            place = history.places[key]
            place.settle(place.commits[part.offset], part.offset, self._moment, self._now_ms())

    def _named_since(
        self, history: _History, partition: TopicPartition, offset: int, topics: Mapping[str, uuid.UUID]
    ) -> _Key:
        """A commit that waited for its coordinator is taken when that leads, with the topics that
        it knows then.
        """
        key = partition, topics.get(partition.topic)
        if key[1] is not None:
            commit = history.places[partition, None].commits.pop(offset)
            history.places.setdefault(key, _Place()).commits[offset] = commit
            self._offsets[offset] = key[1]
        return key

    def _fetched(
        self,
        history: _History,
        request: OffsetFetch,
        reply: OffsetsFetched,
        topics: Mapping[str, uuid.UUID],
        has_missed_deletion: Callable[[TopicPartition], bool],
    ) -> None:
        self._counts["fetches of offsets checked"] += 1
        shown = {TopicPartition(each.topic, each.partition): each.offset for each in reply.partitions}
        for key, offset in shown.items():
            topic_id = topics.get(key.topic)
            if offset >= 0 and self._offsets.get(offset) not in (None, topic_id):
                raise Violation(f"{request.group_id}: {key} shows {offset} of a topic that was deleted")
        for (key, topic_id), place in history.places.items():
            if topic_id is None or topics.get(key.topic) != topic_id:
                continue
            offset = shown.get(key, -1)
            where = f"{request.group_id}: {key.topic}-{key.partition}"
            if offset < 0:
                is_gone = place.may_be_deleted() or self._may_have_expired(history, place)
                if place.floor >= 0 and not is_gone:
                    raise Violation(f"{where}: commit {place.floor_offset} was acknowledged and is lost")
                continue
            if offset not in self._offsets:
                raise Violation(f"{where} shows {offset}, which nobody has committed")
            commit = place.commits.get(offset)
            if commit is None and place.floor >= 0:  # it came before the log was cut
                raise Violation(f"{where} goes back to {offset} of an older history, from {place.floor_offset}")
            if commit is not None and 0 <= commit.acknowledged_at < place.floor:
                if has_missed_deletion(key):
                    self._counts["deleted offsets that came back"] += 1
                    continue
                newer = place.floor_offset if place.floor_offset >= 0 else "a deletion"
                raise Violation(f"{where} goes back to {offset} from {newer}, which was acknowledged")
