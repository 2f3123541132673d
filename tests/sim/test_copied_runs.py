"""What a copier has read jumps where something was deleted, and only there."""

from __future__ import annotations

import uuid

import pytest

from raylog.simulator.checkers import Violation
from raylog.simulator.transaction_history import Polled, TransactionHistory
from raylog.types import TopicIdPartition

pytestmark = pytest.mark.sim
SOURCE = TopicIdPartition(uuid.UUID(int=1), 0)
VALUES = [b"a", b"b", b"c"]


def copied(*runs: list[Polled]) -> TransactionHistory:
    """Three records are committed and read; then a copier reads these."""
    history = TransactionHistory(lambda id: True)
    writing = history.begun("producer")
    history.sending(writing, SOURCE, VALUES)(0)
    writing.is_ending = True
    history.ended(writing, is_acknowledged=True)
    history.moved("reader", SOURCE, 0)
    history.polled("reader", SOURCE, list(enumerate(VALUES)))
    copying = history.begun("copier")
    history.polled_within(copying, SOURCE, runs)
    history.ended(copying, is_acknowledged=False)
    return history


def test_a_copier_that_jumped_passed_nothing_over() -> None:
    copied([(0, b"a")], [], [(2, b"c")]).judge()


def test_a_copier_that_did_not_jump_has_to_read_everything() -> None:
    with pytest.raises(Violation, match="passed over 1 records"):
        copied([(0, b"a"), (2, b"c")]).judge()
