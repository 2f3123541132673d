"""Which fault comes next: random in order, certain in number. Pure: the caller has the clock and the dice.

Kinds are in groups; of a group only one fault lasts at a time (a kind that may overlap with everything is a group of its own). Each
kind is to come ``least`` times. A group that has had less than its share of the time that is gone is behind, and of the groups that
are free and behind one is drawn; with none behind, one of all that are free. Of the group's kinds the rarest comes, drawn among equals.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

AHEAD = 1.25  # a group is done with its least number after 1/AHEAD of the time


class FaultSchedule:
    """``groups`` names the group of a kind, where it shares one."""

    def __init__(self, kinds: Sequence[str], groups: Mapping[str, str], *, least: int, dice: random.Random) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(kinds, 0))
        self._least = least
        self._dice = dice
        self._members: dict[str, list[str]] = {}
        for kind in kinds:
            self._members.setdefault(groups.get(kind, kind), []).append(kind)

    def next(self, share_gone: float, lasting: Collection[str]) -> str | None:
        """The kind to strike now, if any may; ``share_gone`` is the part of the time that is over, ``lasting`` the kinds that last."""
        free = {name: kinds for name, kinds in self._members.items() if not set(kinds) & set(lasting)}
        if not free:
            return None
        behind = [name for name in free if self._is_behind(name, share_gone)]
        kinds = free[self._dice.choice(behind or list(free))]
        rarest = min(self.counts[kind] for kind in kinds)
        kind = self._dice.choice([kind for kind in kinds if self.counts[kind] == rarest])
        self.counts[kind] += 1
        return kind

    def _is_behind(self, name: str, share_gone: float) -> bool:
        kinds = self._members[name]
        had = sum(min(self.counts[kind], self._least) for kind in kinds)
        return had < min(1.0, share_gone * AHEAD) * self._least * len(kinds)
