"""What is wrong with copied records is counted as what it is."""

from __future__ import annotations

import pytest
from copies import CopyFindings, findings


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ([[0, 1, 2], [0]], CopyFindings(4, lost=0, doubled=0, misplaced=0)),
        ([[0, 2], [0]], CopyFindings(4, lost=1, doubled=0, misplaced=0)),
        ([[0, 1, 1, 2], [0]], CopyFindings(4, lost=0, doubled=1, misplaced=0)),
        ([[1, 0, 2], [0]], CopyFindings(4, lost=0, doubled=0, misplaced=1)),
        ([[0, 1, 2, 0, 1, 2], []], CopyFindings(4, lost=1, doubled=3, misplaced=1)),
    ],
)
def test_lost_doubled_and_misplaced_copies_are_told_apart(read: list[list[int]], expected: CopyFindings) -> None:
    found = findings([3, 1], read)
    assert found == expected
    assert found.holds == (read == [[0, 1, 2], [0]])
