"""Faults in how damaged logs are found and mended, and metadata recovered, to be patched into the machines (see ``mutations``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.log import segment
from raylog.log.scrubbing import Damage, Scrubbing, drop
from raylog.metadata.partitions import elections
from raylog.raft.metadata_log import MetadataLog
from raylog.raft.quorum import Quorum
from raylog.records.batch import CURRENT_MAGIC, HEADER_SIZE, MAGIC_POSITION, peek_size
from raylog.records.checksums import whole_batches
from raylog.replication.replica import Replica

Mutation = Callable[[pytest.MonkeyPatch], None]


def serve_damaged_bytes(patch: pytest.MonkeyPatch) -> None:
    """Nobody checks what is read from a file."""
    patch.setattr(segment, "whole_batches", lambda chunk, start, end: (end, start))


def serve_batches_of_an_unknown_format(patch: pytest.MonkeyPatch) -> None:
    """No checksum covers the magic byte."""

    def whole(chunk: bytes | bytearray, start: int, end: int) -> tuple[int, int]:
        data, at = bytearray(chunk), start
        while at + HEADER_SIZE <= end:
            data[at + MAGIC_POSITION] = CURRENT_MAGIC
            at += max(HEADER_SIZE, peek_size(data, at) or 0)
        return whole_batches(data, start, end)

    patch.setattr(segment, "whole_batches", whole)


def find_no_damage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scrubbing, "found", lambda self: None)
    patch.setattr(Scrubbing, "of_index", lambda self: None)


def cut_damage_at_once(patch: pytest.MonkeyPatch) -> None:
    """The log is cut while ISR and leader still count on it."""

    def cut(self: Replica, damage: Damage) -> None:
        if self.log is not None and self.follower is not None:
            drop(self.log, damage)
            self.flushing.truncated()

    patch.setattr(Replica, "damaged", cut)


def leave_a_damaged_leader_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "_without_damaged", lambda state, candidates, min_isr: state)


def let_a_recovering_voter_vote(patch: pytest.MonkeyPatch) -> None:
    """A voter whose disk has lost entries decides elections by what is left of its log."""
    answer = Quorum._on_vote_request

    def voting(self: Quorum, sender: Any, message: Any, now_ms: int) -> None:
        kept, self.recovering_term = self.recovering_term, None
        answer(self, sender, message, now_ms)
        self.recovering_term = kept

    patch.setattr(Quorum, "_on_vote_request", voting)


def end_a_recovery_when_the_process_ends(patch: pytest.MonkeyPatch) -> None:
    """The next process knows nothing of what its disk has lost."""
    take = MetadataLog._take

    def taken(self: MetadataLog, found: Any) -> None:
        take(self, found)
        if not found.damages:
            self.hard_state = replace(self.hard_state, recovering_term=None)

    patch.setattr(MetadataLog, "_take", taken)


DAMAGE_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        serve_damaged_bytes,
        serve_batches_of_an_unknown_format,
        find_no_damage,
        cut_damage_at_once,
        leave_a_damaged_leader_alone,
        let_a_recovering_voter_vote,
        end_a_recovery_when_the_process_ends,
    )
}
