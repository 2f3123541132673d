"""Faults to be patched into what a log knows of its producers, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raylog.log.producers import ProducerStates


def expire_producers_by_their_records_timestamps(patch: pytest.MonkeyPatch) -> None:
    """As Kafka does: whoever writes what is older than a day is forgotten at every housekeeping."""
    note = ProducerStates.note

    def noted(self: ProducerStates, batch: Any, **known: Any) -> None:
        note(self, batch, **known)
        if (state := self.get(batch.producer_id)) is not None:
            state.seen_ms = batch.max_timestamp

    patch.setattr(ProducerStates, "note", noted)


PRODUCER_MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutation.__name__: mutation for mutation in (expire_producers_by_their_records_timestamps,)
}
