"""How old the oldest record is that a group has not committed, by when the Broker saw ends of partitions.

A partition's end is noted each time that the lags are asked for. A group that has committed ``offset``
lacks the record with that offset, which came between the last note at or below it and the first one
above: where between, is taken as if records came evenly. So the error is at most the time between two
scrapes, and no log is read.

What was there before the first note has at least the age of that note, and that is what is said. A
note is kept for ``KEPT_S``, and of each partition at most ``NOTES_MAX``: the older half is thinned out
then.

Invariant: a partition's notes rise in time and in offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raylog.types import TopicPartition

KEPT_S: Final = 86_400.0
NOTES_MAX: Final = 128
_Note = tuple[float, int]
"""When the partition ended there, in seconds of a clock that does not go back."""


class EndTimes:
    def __init__(self) -> None:
        self._notes: dict[TopicPartition, list[_Note]] = {}

    def note(self, place: TopicPartition, end: int, now_s: float) -> None:
        """The partition ends at ``end`` now."""
        notes = self._notes.setdefault(place, [])
        while notes and notes[-1][1] > end:  # it was cut, or is another one
            notes.pop()
        if len(notes) > 1 and notes[-1][1] == end == notes[-2][1]:
            notes.pop()
        notes.append((now_s, end))
        while notes[0][0] < now_s - KEPT_S:
            notes.pop(0)
        if len(notes) > NOTES_MAX:
            half = NOTES_MAX // 2
            notes[:half] = notes[:half:2]

    def lag_s(self, place: TopicPartition, offset: int, now_s: float) -> float:
        """Seconds since the record with that offset came; 0 if there is none."""
        notes = self._notes.get(place, [])
        if not notes or offset >= notes[-1][1]:
            return 0.0
        number = next(number for number, (_, end) in enumerate(notes) if end > offset)
        later_s, later_end = notes[number]
        if number == 0:
            return now_s - later_s
        earlier_s, earlier_end = notes[number - 1]
        share = (offset - earlier_end + 1) / (later_end - earlier_end)
        return now_s - (earlier_s + share * (later_s - earlier_s))

    def keep(self, places: Iterable[TopicPartition]) -> None:
        """Forget all others."""
        kept = set(places)
        self._notes = {place: notes for place, notes in self._notes.items() if place in kept}
