"""A leader's view of every other voter and observer; empty in the other roles."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from raylog.raft.messages import Voters
from raylog.raft.progress import Progress


class Followers:
    def __init__(self, identity: uuid.UUID) -> None:
        self._identity = identity  # the leader's own, of which there is no Progress
        self.by_peer: dict[uuid.UUID, Progress] = {}

    def follow(self, members: Iterable[uuid.UUID], next_index: int, now_ms: int) -> None:
        """Keep a Progress for exactly these, other than the leader itself. ``next_index``: what a
        new one is sent first.
        """
        wanted = set(members) - {self._identity}
        for peer in sorted(wanted - self.by_peer.keys()):
            self.by_peer[peer] = Progress(next_index=next_index, heard_ms=now_ms)
        for peer in sorted(self.by_peer.keys() - wanted):
            del self.by_peer[peer]

    def majority(self, voters: Voters, own: int, of_peer: Callable[[Progress], int]) -> int:
        """The largest number that a majority of the voters has reached. ``own`` is the leader's."""
        reached = sorted(own if voter == self._identity else of_peer(self.by_peer[voter]) for voter in voters)
        return reached[(len(reached) - 1) // 2]

    def recovering(self) -> list[uuid.UUID]:
        """Those whose last reply said that they recover."""
        return [peer for peer, progress in self.by_peer.items() if progress.is_recovering]

    def match_indexes(self) -> dict[uuid.UUID, int]:
        """How far each has come."""
        return {peer: progress.match_index for peer, progress in sorted(self.by_peer.items())}

    def reply_times(self) -> dict[uuid.UUID, tuple[int, int]]:
        """When each last replied, and last had everything (-1: never)."""
        return {peer: (progress.heard_ms, progress.caught_up_ms) for peer, progress in sorted(self.by_peer.items())}

    def all_heard(self, now_ms: int) -> None:
        """Count nobody's silence so far."""
        for progress in self.by_peer.values():
            progress.heard_ms = now_ms

    def check(self, last_index: int) -> None:
        for peer, progress in self.by_peer.items():
            progress.check()
            assert progress.match_index <= last_index, (peer, progress, last_index)
