"""Each verdict of the checker of histories, and beside it a history that is nearly the same and innocent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from history_events import P, Q, fail, info, invoke, ok, poll, send

from raylog.histories import (
    Anomaly,
    AnomalyKind,
    Assign,
    Crash,
    Debug,
    EventType,
    IsolationModel,
    LocatedRecord,
    OperationEvent,
    Subscribe,
    check,
)

UNCOMMITTED, COMMITTED, PL_2 = IsolationModel


def found(*history: OperationEvent, **options: Any) -> list[Anomaly]:
    return list(check(history, **options).errors)


def the_one(kind: AnomalyKind, *history: OperationEvent, **options: Any) -> Anomaly:
    """The only error of a history."""
    (anomaly,) = found(*history, **options)
    assert anomaly.kind is kind
    return anomaly


def processes(anomaly: Anomaly) -> list[str]:
    return [operation.process for operation in anomaly.operations]


def test_an_empty_history_holds() -> None:
    assert check([]).holds


# ---------------------------------------------------------------------- what one may read


def test_a_record_of_a_failed_operation_must_not_be_polled() -> None:
    history = [fail("writer", send("a", 3)), ok("reader", poll((3, "a")))]
    anomaly = the_one(AnomalyKind.ABORTED_READ, *history)
    assert processes(anomaly) == ["reader", "writer"]
    assert anomaly.records == (LocatedRecord(P, 3, "a"),)
    assert "'a' at offset 3 of t-0" in anomaly.words and "reader" in anomaly.words and "writer" in anomaly.words


def test_an_aborted_read_is_one_whatever_became_of_the_reader() -> None:
    assert the_one(AnomalyKind.ABORTED_READ, fail("writer", send("a")), fail("reader", poll((3, "a"))))


def test_records_of_operations_whose_end_is_unknown_may_be_polled() -> None:
    assert not found(info("writer", send("a")), ok("reader", poll((3, "a"))))
    assert not found(invoke("writer", send("a")), ok("reader", poll((3, "a"))))


def test_readers_of_what_is_uncommitted_see_what_is_aborted() -> None:
    history = [fail("writer", send("a", 3)), ok("reader", poll((3, "a")))]
    verdict = check(history, model=UNCOMMITTED)
    assert verdict.holds and [anomaly.kind for anomaly in verdict.allowed] == [AnomalyKind.ABORTED_READ]


def test_a_value_that_is_sent_again_after_an_abort_may_be_polled_where_it_was_sent_again() -> None:
    history = [fail("writer", send("a", 3)), ok("writer", send("a", 5))]
    assert not found(*history, ok("reader", poll((5, "a"))))
    (anomaly, *_) = found(*history, ok("reader", poll((3, "a"), (5, "a"))))
    assert anomaly.kind is AnomalyKind.ABORTED_READ and anomaly.records == (LocatedRecord(P, 3, "a"),)


def test_a_transaction_must_not_poll_what_it_sends() -> None:
    anomaly = the_one(AnomalyKind.PRECOMMITTED_READ, ok("copier", send("a", 0), poll((0, "a"))))
    assert processes(anomaly) == ["copier"] and anomaly.records == (LocatedRecord(P, 0, "a"),)


def test_a_process_may_poll_what_its_last_transaction_sent() -> None:
    assert not found(ok("copier", send("a", 0)), ok("copier", poll((0, "a")), send("b", 2)), ok("end", poll((2, "b"))))


def test_a_record_that_nobody_sent_must_not_be_polled() -> None:
    anomaly = the_one(AnomalyKind.UNSENT_READ, ok("reader", poll((0, "a"))))
    assert processes(anomaly) == ["reader"] and anomaly.records == (LocatedRecord(P, 0, "a"),)


def test_a_record_must_not_be_polled_from_another_partition() -> None:
    history = [ok("writer", send("a", 0)), ok("reader", poll((0, "a"), partition=Q), poll((0, "a")))]
    assert the_one(AnomalyKind.UNSENT_READ, *history).records == (LocatedRecord(Q, 0, "a"),)


# ---------------------------------------------------------------------- offsets and values


def test_an_offset_has_one_value_whoever_polls_it() -> None:
    history = [info("w", send("a")), info("w", send("b")), ok("r1", poll((4, "a"))), ok("r2", poll((4, "b")))]
    anomaly = the_one(AnomalyKind.INCONSISTENT_OFFSETS, *history)
    assert processes(anomaly) == ["r1", "r2"]
    assert anomaly.records == (LocatedRecord(P, 4, "a"), LocatedRecord(P, 4, "b"))


def test_an_offset_has_the_value_that_was_acknowledged_there() -> None:
    history = [ok("w1", send("a", 4)), ok("w2", send("b", 4)), ok("reader", poll((4, "b")))]
    kinds = [anomaly.kind for anomaly in found(*history)]
    assert kinds == [AnomalyKind.INCONSISTENT_OFFSETS, AnomalyKind.LOST_WRITE]


def test_partitions_have_offsets_of_their_own() -> None:
    assert not found(
        ok("w1", send("a", 4)),
        ok("w2", send("b", 4, Q)),
        ok("r1", poll((4, "a"))),
        ok("r2", poll((4, "b"), partition=Q)),
    )


def test_a_record_is_there_once() -> None:
    history = [ok("w", send("a", 0)), ok("r1", poll((0, "a"), (1, "a")))]
    anomaly = the_one(AnomalyKind.DUPLICATE, *history)
    assert processes(anomaly) == ["w", "r1"]
    assert [record.offset for record in anomaly.records] == [0, 1]


def test_a_record_that_lies_elsewhere_than_acknowledged_is_there_twice() -> None:
    anomaly = the_one(AnomalyKind.DUPLICATE, ok("w", send("a", 0)), ok("r", poll((1, "a"))))
    assert [record.offset for record in anomaly.records] == [0, 1]


def test_many_readers_of_one_record_are_no_duplicates() -> None:
    assert not found(ok("w", send("a", 0)), ok("r1", poll((0, "a"))), ok("r2", poll((0, "a"))))


def test_one_value_in_two_partitions_is_no_duplicate() -> None:
    assert not found(ok("w", send("a", 0), send("a", 1, Q)), ok("r", poll((0, "a")), poll((1, "a"), partition=Q)))


def test_who_repeats_what_may_have_been_aborted_makes_no_duplicate() -> None:
    assert not found(info("w1", send("a", 0)), ok("w2", send("a", 2)), ok("r", poll((2, "a"))))


def test_what_both_of_its_transactions_committed_is_a_duplicate() -> None:
    w1 = info("w1", send("a", 0), send("b", 1))
    anomalies = found(w1, ok("w2", send("a", 2)), ok("r", poll((0, "a"), (1, "b"), (2, "a"))))
    assert [anomaly.kind for anomaly in anomalies] == [AnomalyKind.DUPLICATE]
    assert processes(anomalies[0]) == ["w1", "r", "w2"]


def test_what_a_committed_transaction_was_told_counts_though_nobody_polled_it() -> None:
    w1 = info("w1", send("a", 0), send("b", 1))
    anomalies = found(w1, ok("w2", send("a", 2)), ok("r", poll((1, "b"), (2, "a"))))
    assert AnomalyKind.DUPLICATE in [anomaly.kind for anomaly in anomalies]


def test_duplicates_can_be_allowed() -> None:
    history = [ok("w", send("a", 0)), ok("r1", poll((0, "a"), (1, "a")))]
    verdict = check(history, allowed=[AnomalyKind.DUPLICATE])
    assert verdict.holds and len(verdict.allowed) == 1


# ---------------------------------------------------------------------- what nobody polled


def test_an_acknowledged_record_below_what_was_polled_is_polled_by_somebody() -> None:
    history = [ok("w", send("a", 0)), ok("w", send("b", 1)), ok("reader", poll((1, "b")))]
    anomaly = the_one(AnomalyKind.LOST_WRITE, *history)
    assert processes(anomaly) == ["w"] and anomaly.records == (LocatedRecord(P, 0, "a"),)
    assert "somebody polled offset 1" in anomaly.words


def test_lost_writes_are_looked_for_before_a_history_is_complete() -> None:
    history = [ok("w", send("a", 0)), ok("w", send("b", 1)), ok("reader", poll((1, "b")))]
    assert the_one(AnomalyKind.LOST_WRITE, *history, is_complete=False)


def test_a_record_that_one_reader_polled_is_not_lost_to_another_that_began_later() -> None:
    history = [ok("w", send("a", 0)), ok("w", send("b", 1))]
    assert not found(*history, ok("r1", poll((1, "b"))), ok("r2", poll((0, "a"))))


@pytest.mark.parametrize("unacknowledged", [info("w", send("a")), fail("w", send("a", 0)), info("w", send("a", 0))])
def test_what_is_not_acknowledged_is_not_lost(unacknowledged: OperationEvent) -> None:
    assert not found(unacknowledged, ok("w", send("b", 1)), ok("reader", poll((1, "b"))))


def test_a_transaction_of_which_one_record_is_there_is_there_as_a_whole() -> None:
    """It has committed, although nobody was told: else nobody could have polled the one record."""
    torn = info("w", send("a", 0), send("b", 1), send("c", 2))
    anomaly = the_one(AnomalyKind.LOST_WRITE, torn, ok("r", poll((0, "a"), (2, "c"))))
    assert anomaly.records == (LocatedRecord(P, 1, "b"),)
    assert not found(torn, ok("r", poll((0, "a"), (1, "b"), (2, "c"))))
    assert not found(torn, ok("r", poll((0, "a"), (2, "c"))), model=UNCOMMITTED)  # it may be aborted yet


def test_a_transaction_does_not_commit_because_it_polls_what_it_sends() -> None:
    torn = info("c", send("a", 0), send("b", 1), poll((0, "a")))
    assert the_one(AnomalyKind.PRECOMMITTED_READ, torn)


def test_what_a_torn_transaction_may_never_have_sent_is_not_missing() -> None:
    assert not found(info("w", send("a", 0), send("b")), ok("r", poll((0, "a"))))


def test_an_acknowledged_record_is_polled_in_the_end() -> None:
    history = [ok("w", send("a", 0)), ok("w", send("b", 1)), ok("w", send("c", 2)), ok("reader", poll((0, "a")))]
    anomaly = the_one(AnomalyKind.UNSEEN, *history)
    assert anomaly.records == (LocatedRecord(P, 1, "b"), LocatedRecord(P, 2, "c"))
    assert processes(anomaly) == ["w", "w"] and "the highest offset polled is 0" in anomaly.words


def test_a_history_that_is_not_complete_has_nothing_unseen() -> None:
    assert not found(ok("w", send("a", 0)), is_complete=False)
    assert the_one(AnomalyKind.UNSEEN, ok("w", send("a", 0)))


def test_a_record_that_was_acknowledged_without_an_offset_is_seen_or_unseen() -> None:
    history = [ok("w", send("a")), ok("w", send("b", 1))]
    assert the_one(AnomalyKind.UNSEEN, *history, ok("r", poll((1, "b")))).records == (LocatedRecord(P, None, "a"),)
    assert not found(*history, ok("r", poll((0, "a"), (1, "b"))))


# ---------------------------------------------------------------------- the order of polls

WRITTEN = [ok("w", send("a", 0)), ok("w", send("b", 1)), ok("w", send("c", 2))]
ALL_READ = ok("r0", poll((0, "a"), (1, "b"), (2, "c")))


def test_a_poll_passes_over_nothing_from_one_operation_to_the_next() -> None:
    history = [*WRITTEN, ALL_READ, ok("r", poll((0, "a"))), ok("r", poll((2, "c")))]
    anomaly = the_one(AnomalyKind.POLL_SKIP, *history)
    assert anomaly.records == (LocatedRecord(P, 1, "b"), LocatedRecord(P, 2, "c"))
    assert [operation.invoked for operation in anomaly.operations] == [4, 5]


def test_a_poll_passes_over_nothing_within_an_operation() -> None:
    for polls in ([poll((0, "a"), (2, "c"))], [poll((0, "a")), poll((2, "c"))]):
        anomaly = the_one(AnomalyKind.INTERNAL_POLL_SKIP, *WRITTEN, ALL_READ, ok("r", *polls))
        assert anomaly.records == (LocatedRecord(P, 1, "b"), LocatedRecord(P, 2, "c"))
        assert processes(anomaly) == ["r"]


def test_a_gap_without_records_is_passed_over() -> None:
    """There are markers of transactions at such offsets, and records that were aborted."""
    history = [ok("w", send("a", 0)), ok("w", send("c", 2)), fail("w", send("d", 4)), ok("w", send("e", 6))]
    assert not found(*history, ok("r", poll((0, "a"), (2, "c"))), ok("r", poll((6, "e"))))


def test_who_rightly_passes_over_an_aborted_record_does_not_skip() -> None:
    history = [ok("w", send("a", 0)), fail("w", send("b", 1)), ok("w", send("c", 2))]
    wrong, right = ok("r1", poll((0, "a"), (1, "b"), (2, "c"))), ok("r2", poll((0, "a"), (2, "c")))
    assert the_one(AnomalyKind.ABORTED_READ, *history, wrong, right)
    assert the_one(AnomalyKind.INTERNAL_POLL_SKIP, *history, wrong, right, model=UNCOMMITTED)


def test_an_assignment_says_where_the_next_poll_begins() -> None:
    history = [*WRITTEN, ALL_READ]
    assert the_one(AnomalyKind.POLL_SKIP, *history, ok("r", Assign({P: 0})), ok("r", poll((1, "b"), (2, "c"))))
    assert the_one(AnomalyKind.NONMONOTONIC_POLL, *history, ok("r", Assign({P: 2})), ok("r", poll((1, "b"), (2, "c"))))
    assert not found(*history, ok("r", Assign({P: 1})), ok("r", poll((1, "b"), (2, "c"))))
    assert not found(*history, ok("r", Assign({P: None})), ok("r", poll((1, "b"), (2, "c"))))


@pytest.mark.parametrize("change", [Assign({P: 1}), Assign({P: None}), Assign({}), Subscribe(("t",), True), Crash()])
def test_who_begins_anew_goes_back_without_blame(change: Any) -> None:
    again = [ok("r", poll((1, "b"), (2, "c")))]
    first = [*WRITTEN, ALL_READ, ok("r", poll((1, "b"), (2, "c")))]
    assert not found(*first, ok("r", change), *again)
    assert the_one(AnomalyKind.NONMONOTONIC_POLL, *first, ok("r", Debug("nothing changed")), *again)


def test_a_poll_does_not_go_back_from_one_operation_to_the_next() -> None:
    history = [*WRITTEN, ok("r", poll((0, "a"), (1, "b"))), ok("r", poll((1, "b"), (2, "c")))]
    anomaly = the_one(AnomalyKind.NONMONOTONIC_POLL, *history)
    assert anomaly.records == (LocatedRecord(P, 1, "b"),)
    assert [operation.invoked for operation in anomaly.operations] == [3, 4]


def test_a_poll_does_not_go_back_within_an_operation() -> None:
    history = [*WRITTEN, ok("r", poll((0, "a"), (1, "b")), poll((1, "b"), (2, "c")))]
    anomaly = the_one(AnomalyKind.INTERNAL_NONMONOTONIC_POLL, *history)
    assert anomaly.records == (LocatedRecord(P, 1, "b"),) and processes(anomaly) == ["r"]
    assert not found(*WRITTEN, ok("r", poll((0, "a"), (1, "b")), poll((2, "c"))))


def test_a_rebalance_within_a_transaction_moves_a_position() -> None:
    history = [*WRITTEN, ok("r", poll((0, "a"), (1, "b")), Assign({P: 1}), poll((1, "b"), (2, "c")))]
    assert not found(*history)


@pytest.mark.parametrize("end", [fail, info])
def test_who_did_not_commit_what_he_read_reads_it_again(end: Any) -> None:
    again = ok("r", poll((0, "a"), (1, "b"), (2, "c")))
    assert not found(*WRITTEN, end("r", poll((0, "a"), (1, "b"))), again)
    assert the_one(AnomalyKind.NONMONOTONIC_POLL, *WRITTEN, ok("r", poll((0, "a"), (1, "b"))), again)


def test_a_rebalance_that_nobody_reports_excuses_what_is_between_polls_alone() -> None:
    between = [ok("r", poll((0, "a"))), ok("r", poll((2, "c"))), ok("r", poll((1, "b")), poll((1, "b")))]
    within = ok("s", poll((0, "a"), (2, "c"), (1, "b"), (2, "c")))
    silent, loud = Subscribe(("t",)), Subscribe(("t",), reports_rebalances=True)
    verdict = check([*WRITTEN, ALL_READ, ok("r", silent), *between, ok("s", silent), within])
    assert [anomaly.kind.value for anomaly in verdict.allowed] == [
        "poll-skip",
        "nonmonotonic-poll",
        "int-nonmonotonic-poll",
    ]
    assert [anomaly.kind.value for anomaly in verdict.errors] == ["int-poll-skip", "int-nonmonotonic-poll"]
    assert len(found(*WRITTEN, ALL_READ, ok("r", loud), *between)) == 3


# ---------------------------------------------------------------------- the order of sends


def test_sends_of_an_operation_lie_in_their_order() -> None:
    read = ok("r", poll((0, "b"), (1, "a")))
    anomaly = the_one(AnomalyKind.INTERNAL_NONMONOTONIC_SEND, ok("w", send("a", 1), send("b", 0)), read)
    assert processes(anomaly) == ["w"]
    assert anomaly.records == (LocatedRecord(P, 1, "a"), LocatedRecord(P, 0, "b"))
    assert not found(ok("w", send("b", 0), send("a", 1)), read)
    assert not found(ok("w", send("a", 1), send("b", 0, Q)), ok("r", poll((1, "a")), poll((0, "b"), partition=Q)))


def test_a_failed_transactions_sends_lie_in_their_order_too() -> None:
    assert the_one(AnomalyKind.INTERNAL_NONMONOTONIC_SEND, fail("w", send("a", 1), send("b", 0)))


def test_what_is_sent_after_an_acknowledgement_lies_behind_it() -> None:
    read = ok("r", poll((0, "b"), (1, "a")))
    anomaly = the_one(AnomalyKind.NONMONOTONIC_SEND, ok("w", send("a", 1)), ok("w", send("b", 0)), read)
    assert [operation.invoked for operation in anomaly.operations] == [0, 1]
    assert anomaly.records == (LocatedRecord(P, 1, "a"), LocatedRecord(P, 0, "b"))
    assert not found(ok("w1", send("a", 1)), ok("w2", send("b", 0)), read)  # two processes


def test_sends_that_are_in_flight_together_have_no_order() -> None:
    def event(number: int, kind: EventType, value: str, offset: int | None = None) -> OperationEvent:
        return OperationEvent("w", kind, (send(value, offset),), number)

    begun = [event(0, EventType.INVOKE, "a"), event(1, EventType.INVOKE, "b")]
    ended = [event(0, EventType.OK, "a", 1), event(1, EventType.OK, "b", 0)]
    read = ok("r", poll((0, "b"), (1, "a")))
    assert not found(*begun, *ended, read)
    assert the_one(AnomalyKind.NONMONOTONIC_SEND, begun[0], ended[0], begun[1], ended[1], read)


def test_what_is_sent_in_the_end_lies_behind_all_that_was_acknowledged() -> None:
    def event(number: int, kind: EventType, value: str, offset: int | None = None) -> OperationEvent:
        return OperationEvent("w", kind, (send(value, offset),), number)

    together = [event(0, EventType.INVOKE, "a"), event(1, EventType.INVOKE, "b")]
    together += [event(0, EventType.OK, "a", 2), event(1, EventType.OK, "b", 0)]
    read = ok("r", poll((0, "b"), (1, "c"), (2, "a")))
    anomaly = the_one(AnomalyKind.NONMONOTONIC_SEND, *together, event(2, EventType.OK, "c", 1), read)
    assert anomaly.records == (LocatedRecord(P, 2, "a"), LocatedRecord(P, 1, "c"))


# ---------------------------------------------------------------------- circles

INTERLEAVED = [
    ok("w1", send("a", 0), send("c", 2)),
    ok("w2", send("b", 1), send("d", 3)),
    ok("r", poll((0, "a"), (1, "b"), (2, "c"), (3, "d"))),
]


def test_transactions_that_write_between_each_other_are_a_circle_that_kafka_allows() -> None:
    for model in (UNCOMMITTED, COMMITTED):
        verdict = check(INTERLEAVED, model=model)
        assert verdict.holds and [anomaly.kind for anomaly in verdict.allowed] == [AnomalyKind.G0]
    anomaly = the_one(AnomalyKind.G0, *INTERLEAVED, model=PL_2)
    assert processes(anomaly) == ["w1", "w2"]
    assert {record.value for record in anomaly.records} >= {"a", "b", "c"}


def test_transactions_one_after_the_other_are_no_circle() -> None:
    assert not found(
        ok("w1", send("a", 0), send("b", 1)),
        ok("w2", send("c", 2), send("d", 3)),
        ok("r", poll((0, "a"), (1, "b"), (2, "c"), (3, "d"))),
        model=PL_2,
    )


READ_FROM_EACH_OTHER = [
    ok("c1", send("a", 0), poll((0, "b"), partition=Q)),
    ok("c2", send("b", 0, Q), poll((0, "a"))),
]


def test_transactions_must_not_read_from_each_other() -> None:
    anomaly = the_one(AnomalyKind.G1C, *READ_FROM_EACH_OTHER)
    assert processes(anomaly) == ["c1", "c2"]
    assert set(anomaly.records) == {LocatedRecord(P, 0, "a"), LocatedRecord(Q, 0, "b")}
    assert check(READ_FROM_EACH_OTHER, model=UNCOMMITTED).holds
    assert the_one(AnomalyKind.G1C, *READ_FROM_EACH_OTHER, model=PL_2)  # and not a second time for its writes


def test_a_circle_of_three_is_found() -> None:
    copiers = [
        ok("c1", send("a", 0), poll((2, "c"))),
        ok("c2", send("b", 1), poll((0, "a"))),
        ok("c3", send("c", 2), poll((1, "b"))),
    ]
    (anomaly,) = [each for each in found(*copiers) if each.kind is AnomalyKind.G1C]
    assert processes(anomaly) == ["c1", "c2", "c3"]


def test_a_chain_of_transactions_is_no_circle() -> None:
    assert not found(
        ok("c1", send("a", 0)),
        ok("c2", send("b", 0, Q), poll((0, "a"))),
        ok("r", poll((0, "b"), partition=Q)),
        model=PL_2,
    )


def test_a_transaction_that_reads_what_is_written_behind_its_own_is_a_circle_that_kafka_allows() -> None:
    history = [ok("c1", send("a", 0), poll((1, "b"))), ok("c2", send("b", 1)), ok("r", poll((0, "a")))]
    verdict = check(history)
    assert verdict.holds and [anomaly.kind for anomaly in verdict.allowed] == [AnomalyKind.G1C_WW]
    anomaly = the_one(AnomalyKind.G1C_WW, *history, model=PL_2)
    assert sorted(processes(anomaly)) == ["c1", "c2"]


def test_failed_transactions_are_in_no_circle() -> None:
    history = [*INTERLEAVED[:1], fail("w2", send("b", 1), send("d", 3)), ok("r", poll((0, "a"), (2, "c")))]
    assert not found(*history, model=PL_2)


# ---------------------------------------------------------------------- histories as such


def test_what_was_invoked_counts_until_its_completion_says_more() -> None:
    history = [invoke("w", send("a")), OperationEvent("w", EventType.OK), ok("r", poll((0, "a")))]
    assert not found(*history)
    assert the_one(AnomalyKind.UNSEEN, *history[:2])
    assert the_one(AnomalyKind.ABORTED_READ, history[0], OperationEvent("w", EventType.FAIL), history[2])


@pytest.mark.parametrize(
    "history",
    [
        [invoke("w"), invoke("w")],
        [OperationEvent("w", EventType.INVOKE, (), 1), OperationEvent("v", EventType.OK, (), 1)],
        [OperationEvent("w", EventType.OK, (), 1), OperationEvent("w", EventType.OK, (), 1)],
    ],
)
def test_events_that_do_not_belong_together_are_refused(history: list[OperationEvent]) -> None:
    with pytest.raises(ValueError, match="event 1"):
        check(history)


def test_a_verdict_says_what_was_checked_and_what_was_found() -> None:
    words = check([fail("w", send("a", 0)), ok("r", poll((0, "a")))]).words()
    assert words.startswith(
        "2 operations, 1 records sent, 1 polled. FOUND: 1 G1a.\n  G1a: the operation of r from event 1"
    )
    assert "Allowed at this level: 1 G0" in check(INTERLEAVED).words()
    assert check([]).words() == "0 operations, 0 records sent, 0 polled. No anomaly is an error."


def test_the_page_lists_each_kind_and_what_each_model_allows() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row[1])]
    assert [kind.value for kind in AnomalyKind if kind.value not in listed] == []
    allowed = {row[1].split("`")[1]: set(re.findall(r"`([^`]+)`", row[2])) for row in rows if "_" in row[1]}
    interleaved = allowed["READ_COMMITTED"]
    assert interleaved == set(COMMITTED.allowed) and allowed["ADYA_PL_2"] == set(PL_2.allowed) == set()
    assert allowed["READ_UNCOMMITTED"] | interleaved == set(UNCOMMITTED.allowed)
