"""Copiers of the simulator get on: a producer that is refused all the time is no test of anything."""

from __future__ import annotations

from collections import Counter

import pytest
from kio.schema.errors import ErrorCode

from raylog.simulator.copy_checker import copy_of
from raylog.simulator.replay import run_seed
from raylog.simulator.transactional_copiers import Copier

pytestmark = pytest.mark.sim


def test_a_copier_of_the_first_version_goes_on_in_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences count records; a batch of a copier has several."""
    errors: Counter[int] = Counter()
    versions = set()

    def answered(self: Copier, error: int) -> None:
        versions.add(self.version)
        errors[error] += 1

    monkeypatch.setattr(Copier, "_answered", answered)
    outcome = run_seed(10_161)
    assert outcome.broke is None, outcome.failure
    assert versions == {1}
    assert errors[0] > 5 and not errors[ErrorCode.out_of_order_sequence_number.value], errors


def test_a_target_of_two_chains_holds_the_same_value_of_two_sources_as_two_records() -> None:
    """A transaction writes one value to several partitions, perhaps at the same offset of each. The
    history took the second copy for a duplicate.
    """
    assert copy_of(0, 65, b"tx2.4/4/0") != copy_of(1, 65, b"tx2.4/4/0")
