"""Balancing where members subscribe to different topics: KIP-54's general case.

Who owned a partition keeps it. What nobody owns goes, the topics with fewest readers first, to the
reader that has least. Then partitions move, one at a time, from whoever has at least two more than
some other reader of theirs to the reader that has least, until no such partition is left; a
partition goes back to its former owner where that helps, and of two partitions of a topic that
would pass each other on the way only the difference moves. If all that did not make the parts more
even, it is undone.

The *score* of a plan is the sum of the differences of all pairs of part sizes; 0 is even.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raylog.groups.assignors.assignor import Plan
from raylog.types import TopicPartition


def balance(
    readers: Mapping[str, Sequence[str]],
    partition_counts: Mapping[str, int],
    owners: Mapping[TopicPartition, str],
    former_owners: Mapping[TopicPartition, str],
    member_ids: Iterable[str],
    *,
    moves_all: bool,
) -> Plan:
    """``readers``: the members of each topic, in order. ``moves_all``: do not first try to move
    only what nobody owned.

    That is for when a subscription shrank: something has to move anyway.
    """
    balancing = _Balancing(readers, former_owners, sorted(member_ids))
    places = [
        TopicPartition(topic, number)
        for topic in sorted(readers, key=lambda topic: (len(readers[topic]), topic))
        for number in range(partition_counts[topic])
    ]
    for place in places:
        owner = owners.get(place)
        if owner is not None:
            balancing.give(place, owner)
    is_new = not owners
    unowned = [place for place in places if place not in owners]
    for place in unowned:
        balancing.give(place, balancing.least(readers[place.topic]))
    before = dict(balancing.owner)
    score_before = balancing.score()
    movable = [place for place in places if len(readers[place.topic]) > 1]
    new_and_movable = [place for place in unowned if len(readers[place.topic]) > 1]
    if not moves_all:
        balancing.even_out(new_and_movable)
    moved = balancing.even_out(movable)
    if moved and not is_new and balancing.score() >= score_before:
        balancing.reset(before)
    return balancing.plan()


class _Balancing:
    """``owner`` of each partition and ``size`` of each part; ``moves`` what has gone from whom to
    whom, by topic.
    """

    __slots__ = ("_former_owners", "_moves", "_readers", "owner", "size")

    def __init__(
        self,
        readers: Mapping[str, Sequence[str]],
        former_owners: Mapping[TopicPartition, str],
        member_ids: Sequence[str],
    ) -> None:
        self._readers = readers
        self._former_owners = former_owners
        self._moves: dict[TopicPartition, tuple[str, str]] = {}
        self.owner: dict[TopicPartition, str] = {}
        self.size = dict.fromkeys(member_ids, 0)

    def give(self, place: TopicPartition, member_id: str) -> None:
        former = self.owner.get(place)
        if former is not None:
            self.size[former] -= 1
        self.owner[place] = member_id
        self.size[member_id] += 1

    def reset(self, owner: Mapping[TopicPartition, str]) -> None:
        for place, member_id in owner.items():
            self.give(place, member_id)

    def least(self, member_ids: Iterable[str]) -> str:
        return min(member_ids, key=lambda member_id: (self.size[member_id], member_id))

    def even_out(self, places: Sequence[TopicPartition]) -> bool:
        """Move what makes the parts more even; whether anything moved."""
        has_moved = False
        moved = True
        while moved:  # each move makes the sum of the squared sizes less, so this ends
            moved = False
            for place in places:
                target = self._target(place)
                if target is not None:
                    self._move(self._instead_of(place, target), target)
                    moved = has_moved = True
        return has_moved

    def _target(self, place: TopicPartition) -> str | None:
        """Who should have it rather than its owner, if anybody."""
        size = self.size[self.owner[place]]
        former = self._former_owners.get(place)
        if former in self._readers[place.topic] and former is not None and size > self.size[former] + 1:
            return former
        least = self.least(self._readers[place.topic])
        return least if size > self.size[least] + 1 else None

    def _instead_of(self, place: TopicPartition, target: str) -> TopicPartition:
        """Another partition of the topic that came the other way before, to go back in its place."""
        source = self._moves[place][0] if place in self._moves else self.owner[place]
        for other, (came_from, went_to) in self._moves.items():
            is_reverse = other.topic == place.topic and (came_from, went_to) == (target, source)
            if is_reverse and self.owner[other] == self.owner[place]:
                return other
        return place

    def _move(self, place: TopicPartition, target: str) -> None:
        source = self.owner[place]
        first = self._moves.pop(place, (source, source))[0]
        if first != target:
            self._moves[place] = (first, target)
        self.give(place, target)

    def score(self) -> int:
        sizes = sorted(self.size.values())
        return sum(size * (2 * index - len(sizes) + 1) for index, size in enumerate(sizes))

    def plan(self) -> Plan:
        plan: Plan = {member_id: [] for member_id in self.size}
        for place, member_id in sorted(self.owner.items()):
            plan[member_id].append(place)
        return plan
