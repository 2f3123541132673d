"""What the recorder makes of what clients say, with clients' answers that are written by hand."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from history_events import P, Q

from raylog.client.producer.deliveries import RecordMetadata
from raylog.histories import (
    AnomalyKind,
    Assign,
    Crash,
    Debug,
    EventType,
    HistoryRecorder,
    OperationEvent,
    Poll,
    Send,
    Subscribe,
    check,
)
from raylog.records.record import Record

Ends = list[tuple[str, EventType, tuple[Any, ...]]]


class Message:
    """As confluent-kafka's: what one wants to know are methods."""

    def __init__(self, offset: int, value: bytes, error: object = None, partition: int = 0) -> None:
        self._facts = ("t", partition, offset, value, error)

    def topic(self) -> str:
        return self._facts[0]

    def partition(self) -> int:
        return self._facts[1]

    def offset(self) -> int:
        return self._facts[2]

    def value(self) -> bytes:
        return self._facts[3]

    def error(self) -> object:
        return self._facts[4]


def record(offset: int, value: bytes, partition: int = 0) -> Record:
    return Record("t", partition, offset, -1, 0, None, value, (), -1)


def metadata(offset: int) -> RecordMetadata:
    return RecordMetadata("t", 0, offset, -1, 0, 1)


def ends(recorder: HistoryRecorder) -> Ends:
    return [
        (event.process, event.type, event.actions) for event in recorder.history() if event.type is not EventType.INVOKE
    ]


@pytest.fixture
def recorder() -> HistoryRecorder:
    return HistoryRecorder()


@pytest.mark.parametrize(
    "told",
    [(None, Message(3, b"a")), (metadata(3), None), (metadata(3),), (SimpleNamespace(offset=3),)],
    ids=["confluent-kafka", "raylog", "kafka-python", "attributes"],
)
def test_a_delivery_says_the_offset_whichever_client_tells_it(recorder: HistoryRecorder, told: tuple[Any, ...]) -> None:
    recorder.process("w").send("t", 0, b"a")(*told)
    assert recorder.history() == [
        OperationEvent("w", EventType.INVOKE, (Send(P, b"a"),), 0),
        OperationEvent("w", EventType.OK, (Send(P, b"a", 3),), 0),
    ]


@pytest.mark.parametrize(
    "told",
    [("timed out", Message(-1001, b"a")), ("timed out", Message(7, b"a")), (None, OSError()), (OSError(),), ()],
)
def test_nobody_knows_what_became_of_a_send_that_failed(recorder: HistoryRecorder, told: tuple[Any, ...]) -> None:
    recorder.process("w").send("t", 0, b"a")(*told)
    assert ends(recorder) == [("w", EventType.INFO, (Send(P, b"a"),))]


def test_a_send_that_nobody_answered_is_open_until_it_is(recorder: HistoryRecorder) -> None:
    note = recorder.process("w").send("t", 0, b"a")
    assert ends(recorder) == [("w", EventType.INFO, (Send(P, b"a"),))]
    note(None, Message(0, b"a"))
    assert ends(recorder) == [("w", EventType.OK, (Send(P, b"a", 0),))]


def test_an_acknowledgement_without_an_offset_is_one(recorder: HistoryRecorder) -> None:
    recorder.process("w").send("t", 0, b"a")(metadata(-1), None)
    assert ends(recorder) == [("w", EventType.OK, (Send(P, b"a"),))]


@pytest.mark.parametrize(
    "polled",
    [
        [Message(0, b"a"), Message(1, b"b"), Message(5, b"x", partition=1)],
        [record(0, b"a"), record(1, b"b"), record(5, b"x", 1)],
        {("t", 0): [record(0, b"a"), record(1, b"b")], ("t", 1): [record(5, b"x", 1)]},
        [Message(0, b"a"), Message(1, b"b"), Message(0, b"", "the end of the partition"), Message(5, b"x", None, 1)],
    ],
    ids=["confluent-kafka", "raylog", "by partition", "with errors"],
)
def test_a_poll_says_its_records_whichever_client_returns_them(recorder: HistoryRecorder, polled: Any) -> None:
    recorder.process("r").poll(polled)
    poll = Poll({P: [(0, b"a"), (1, b"b")], Q: [(5, b"x")]})
    assert ends(recorder) == [("r", EventType.OK, (poll,))]


@pytest.mark.parametrize("single", [Message(0, b"a"), record(0, b"a")], ids=["confluent-kafka", "raylog"])
def test_a_poll_of_one_record_returns_it(recorder: HistoryRecorder, single: Any) -> None:
    assert recorder.process("r").poll(single) is single
    assert ends(recorder) == [("r", EventType.OK, (Poll({P: [(0, b"a")]}),))]


@pytest.mark.parametrize("nothing", [None, [], {}, [Message(0, b"", "an error")], Message(0, b"", "an error")])
def test_a_poll_that_returns_nothing_is_not_recorded(recorder: HistoryRecorder, nothing: Any) -> None:
    assert recorder.process("r").poll(nothing) is nothing
    assert recorder.history() == []


def test_a_poll_does_not_use_up_a_generator(recorder: HistoryRecorder) -> None:
    with pytest.raises(AssertionError, match="looked at twice"):
        recorder.process("r").poll(each for each in [record(0, b"a")])


def test_what_a_consumer_reads_is_recorded(recorder: HistoryRecorder) -> None:
    process = recorder.process("r")
    process.assign({("t", 0): 7, ("t", 1): None})
    process.subscribe("t", "u", reports_rebalances=True)
    process.crash()
    process.debug("restarted")
    actions = [Assign({P: 7, Q: None}), Subscribe(("t", "u"), True), Crash(), Debug("restarted")]
    assert ends(recorder) == [("r", EventType.OK, (action,)) for action in actions]


def test_values_can_be_told_apart_by_a_part_of_them() -> None:
    recorder = HistoryRecorder(value_of=lambda value: bytes(value)[:1])  # type: ignore[call-overload]
    recorder.process("w").send("t", 0, b"a and more")(metadata(0), None)
    recorder.process("r").poll(record(0, b"a and less"))
    assert check(recorder.history()).holds


def test_a_process_has_one_name(recorder: HistoryRecorder) -> None:
    assert recorder.process("w") is recorder.process("w") is not recorder.process("v")


# ---------------------------------------------------------------------- transactions


def commits() -> str:
    return "done"


def breaks() -> None:
    raise OSError("connection lost")


def test_a_transaction_has_all_that_happens_in_it(recorder: HistoryRecorder) -> None:
    process = recorder.process("copier")
    with process.transaction() as transaction:
        process.poll([record(0, b"a")])
        process.assign({("t", 0): 0})
        process.send("t", 1, b"b")(None, Message(4, b"b"))
        assert transaction.commit(commits) == "done"
    process.debug("afterwards")
    actions = (Poll({P: [(0, b"a")]}), Assign({P: 0}), Send(Q, b"b", 4))
    assert ends(recorder) == [
        ("copier", EventType.OK, actions),
        ("copier", EventType.OK, (Debug("afterwards"),)),
    ]
    assert recorder.history()[0] == OperationEvent("copier", EventType.INVOKE, (Send(Q, b"b"),), 0)


def test_an_aborted_transaction_has_failed_and_keeps_its_offsets(recorder: HistoryRecorder) -> None:
    process = recorder.process("copier")
    with process.transaction() as transaction:
        note = process.send("t", 0, b"a")
        transaction.abort(commits)
    note(None, Message(4, b"a"))  # a delivery that comes late
    assert ends(recorder) == [("copier", EventType.FAIL, (Send(P, b"a", 4),))]


def test_nobody_knows_what_became_of_a_commit_that_raised(recorder: HistoryRecorder) -> None:
    process = recorder.process("copier")
    with pytest.raises(OSError, match="lost"), process.transaction() as transaction:
        transaction.commit(breaks)
    assert [end for _, end, _ in ends(recorder)] == [EventType.INFO]


def test_a_commit_that_raised_and_was_aborted_then_has_failed(recorder: HistoryRecorder) -> None:
    process = recorder.process("copier")
    with process.transaction() as transaction:
        with pytest.raises(OSError, match="lost"):
            transaction.commit(breaks)
        transaction.abort(commits)
    assert [end for _, end, _ in ends(recorder)] == [EventType.FAIL]


def test_what_left_before_its_commit_has_not_committed(recorder: HistoryRecorder) -> None:
    process = recorder.process("copier")
    with pytest.raises(OSError, match="lost"), process.transaction():
        breaks()
    with pytest.raises(OSError, match="lost"), process.transaction() as transaction:
        transaction.abort(breaks)
    assert [end for _, end, _ in ends(recorder)] == [EventType.FAIL, EventType.FAIL]
    process.transaction()
    assert [end for _, end, _ in ends(recorder)] == [EventType.FAIL] * 3


def test_a_history_that_is_taken_during_a_commit_does_not_know_its_end(recorder: HistoryRecorder) -> None:
    with recorder.process("copier").transaction() as transaction:
        assert transaction.commit(lambda: ends(recorder)) == [("copier", EventType.INFO, ())]
    assert ends(recorder) == [("copier", EventType.OK, ())]


def test_a_crash_ends_a_transaction(recorder: HistoryRecorder) -> None:
    process = recorder.process("copier")
    process.transaction()
    process.crash()
    transaction = process.transaction()
    with pytest.raises(OSError, match="lost"):
        transaction.commit(breaks)
    process.crash()
    process.debug("restarted")
    kinds = [end for _, end, _ in ends(recorder)]
    assert kinds == [EventType.FAIL, EventType.OK, EventType.INFO, EventType.OK, EventType.OK]


# ---------------------------------------------------------------------- threads


def test_many_threads_record_one_history(recorder: HistoryRecorder) -> None:
    """Each delivery is told on another thread than the one that sent."""
    threads, sends = 4, 1000
    start = threading.Barrier(threads)
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def write(number: int) -> None:
        process = recorder.process(f"w{number}")
        start.wait()
        notes = [process.send("t", number, b"%d/%d" % (number, place)) for place in range(sends)]

        def deliver() -> None:
            for place, note in enumerate(notes):
                note(metadata(place), None)

        delivering = threading.Thread(target=deliver)
        delivering.start()
        recorder.process(f"r{number}").poll(
            [record(place, b"%d/%d" % (number, place), number) for place in range(sends)]
        )
        delivering.join()

    try:
        started = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    verdict = check(recorder.history())
    assert verdict.holds, verdict.words()
    assert (verdict.operations, verdict.sent, verdict.polled) == (
        threads * (sends + 1),
        threads * sends,
        threads * sends,
    )


def test_the_checker_finds_what_the_recorder_saw(recorder: HistoryRecorder) -> None:
    process = recorder.process("copier")
    with process.transaction() as transaction:
        process.send("t", 0, b"a")(metadata(0), None)
        transaction.abort(commits)
    recorder.process("r").poll(record(0, b"a"))
    assert check(recorder.history()).kinds == {AnomalyKind.ABORTED_READ}
