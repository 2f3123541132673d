"""The sentence in which ``raylog up`` and ``raylog status`` say what recovery did."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.cli.recovery import recovery_words


def logs(**found: Any) -> dict[str, Any]:
    nothing = {"clean": 0, "whole": 0, "suspect": 0, "missing": 0, "opening": 0, "scanned_bytes": 0, "cut": []}
    return nothing | found


def cut(cut_bytes: int, condition: str = "whole") -> dict[str, Any]:
    return {"topic": "t", "partition": 0, "broker": 1, "condition": condition, "cut_bytes": cut_bytes}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (logs(missing=9), None),
        (logs(clean=1), "1 log as a clean stop left it"),
        (logs(clean=1_200, opening=3), "1,200 logs as a clean stop left them, 3 logs not open yet"),
        (
            logs(whole=12, scanned_bytes=3_400_000, cut=[cut(1_000), cut(200), cut(34)]),
            "recovered 12 logs, 3.4 MB read: 3 cut incomplete batches of 1,234 bytes at their tails; 9 whole",
        ),
        (logs(whole=1, cut=[cut(17)]), "recovered 1 log: 1 cut an incomplete batch of 17 bytes at the tail"),
        (
            logs(whole=1, suspect=2, cut=[cut(5_000, "suspect"), cut(0, "suspect")]),
            "recovered 3 logs: 1 whole; 2 suspect and lost 5,000 bytes at their tails (records that were acknowledged may "
            "be missing there)",
        ),
        (logs(whole=2, clean=4), "recovered 2 logs: 2 whole, 4 logs as a clean stop left them"),
    ],
)
def test_recovery_in_words(found: dict[str, Any], words: str | None) -> None:
    assert recovery_words(found) == words
