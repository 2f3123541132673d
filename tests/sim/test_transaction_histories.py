"""The checker of histories finds by itself what clients were shown wrongly: the simulator's own checkers of transactions are silenced,
and nothing but the histories of the clients judges the runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from transaction_mutations import (
    begin_a_transaction_without_leave,
    cut_the_list_of_aborted_transactions,
    show_what_was_aborted,
    take_the_high_watermark_for_stable,
)

from raylog.histories import AnomalyKind
from raylog.log.markers import TransactionEnd
from raylog.replication.events import ProducePartitionResult
from raylog.replication.leader import Leader
from raylog.simulator.checkers import Violation
from raylog.simulator.copy_checker import Chain
from raylog.simulator.replay import run_seed
from raylog.simulator.transaction_checker import TransactionChecker

pytestmark = pytest.mark.sim
SEEDS = range(10_001, 10_006)


def _silenced(check: Callable[..., Any]) -> Callable[..., Any]:
    def silent(*arguments: Any) -> Any:
        try:
            return check(*arguments)
        except Violation:
            return 0

    return silent


def silence_the_other_checkers(patch: pytest.MonkeyPatch) -> None:
    """They go on seeing what they see, and say nothing."""
    for checker, names in (
        (TransactionChecker, ("replica", "_writes", "_ends", "was_read", "at_end")),
        (Chain, ("committed", "check", "at_end")),
    ):
        for name in names:
            patch.setattr(checker, name, _silenced(getattr(checker, name)))


def lose_some_markers(patch: pytest.MonkeyPatch) -> None:
    """Leaders acknowledge markers that they do not append."""
    end_transaction = Leader.end_transaction

    def lossy(self: Leader, end: TransactionEnd, now_ms: int, wall_ms: int) -> Any:
        if end.producer_epoch % 5 == 4:
            return ProducePartitionResult(self.replica.id, 0), -1
        return end_transaction(self, end, now_ms, wall_ms)

    patch.setattr(Leader, "end_transaction", lossy)


@pytest.mark.parametrize(
    ("mutate", "kind"),
    [
        (show_what_was_aborted, AnomalyKind.ABORTED_READ),
        (cut_the_list_of_aborted_transactions, AnomalyKind.ABORTED_READ),
        (take_the_high_watermark_for_stable, AnomalyKind.ABORTED_READ),
        (begin_a_transaction_without_leave, AnomalyKind.ABORTED_READ),
        (lose_some_markers, AnomalyKind.LOST_WRITE),
    ],
)
def test_histories_alone_convict_a_mutated_machine(
    mutate: Callable[[pytest.MonkeyPatch], None], kind: AnomalyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence_the_other_checkers(monkeypatch)
    mutate(monkeypatch)
    broke = next((found.broke for seed in SEEDS if (found := run_seed(seed)).broke is not None), "nothing")
    assert broke.startswith("Violation: the history: ") and f" {kind.value}: " in broke, broke


def test_a_sound_machine_is_not_convicted_and_much_is_judged() -> None:
    outcome = run_seed(10_005)
    assert outcome.broke is None, outcome.failure
    assert outcome.counts["operations in histories"] > 30 and outcome.counts["records polled in histories"] > 50
