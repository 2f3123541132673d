"""Faults to be patched into what must hold though clocks are set back, by name, as in ``mutations``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raylog.raft.metadata_log import MetadataLog

Mutation = Callable[[pytest.MonkeyPatch], None]


def number_controllers_by_their_clock_alone(patch: pytest.MonkeyPatch) -> None:
    """One whose clock was set back counts for an older process, and the others keep no link to it."""
    patch.setattr(MetadataLog, "claim_incarnation", lambda self, clock: clock)


CLOCK_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation for mutation in (number_controllers_by_their_clock_alone,)
}
