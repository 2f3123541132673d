"""Which partitions a round of the sender looks at: by itself, and in a sender beside one that looks at all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from kio.schema.errors import ErrorCode
from two_senders import (
    ANSWER_FENCED,
    ANSWERED,
    DEFAULTS,
    ENDPOINTS,
    OPTIONS,
    SENT_AGAIN,
    STEPS,
    A,
    B,
    C,
    answered,
    played,
)

from raylog.client.producer.due_queues import DueQueues, Times
from raylog.types import Endpoint


def test_a_partition_is_due_once_at_the_earliest_time_that_was_asked_for() -> None:
    times = Times()
    times.at(A, 30)
    times.at(A, 10)
    times.at(A, 20)
    times.at(B, float("inf"))
    assert (times.next_ms, times.take(9), times.take(100), times.next_ms) == (10, [], [A], float("inf"))


def test_a_cause_makes_due_what_waited_for_it_and_nothing_else() -> None:
    due = DueQueues()
    due.mark(A)
    due.on(A, "x")
    due.on(B, "x")
    due.on(C, "y")
    assert due.take(0) == [A]
    due.happened("x")
    due.mark(B)
    assert due.take(0) == [A, B]
    due.happened("x")
    assert due.take(0) == []


@settings(max_examples=100, deadline=None)
@given(STEPS, OPTIONS)
def test_a_sender_that_looks_at_what_is_due_sends_what_one_sends_that_looks_at_all(
    steps: list[tuple[int, tuple[Any, ...]]], options: dict[str, Any]
) -> None:
    played(steps, options)


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        ([(0, ("add", 0, 20)), (1, ("flush",))], {"linger_ms": 60}),
        ([(0, ("add", 0, 20)), (0, ("answer", 0, 0, [ErrorCode.none], None, 30)), (0, ("add", 0, 20))], {}),
        ([(0, ("lost", 0)), (0, ("add", 0, 20)), (0, ("found", 0, None, False))], {}),
        (
            [(0, ("add", 0, 20)), (0, ("add", 2, 20)), (0, ("lead", C, 1))],
            {"max_in_flight_requests_per_connection": 1},
        ),
        ([(0, ("add", 0, 90)), (5, ("add", 0, 90)), (70, ("drain", 0))], {"linger_ms": 60}),
        ([(0, ("add", 0, 20)), (0, ANSWER_FENCED)], {}),
        ([(0, ("add", 0, 20)), (2, ANSWER_FENCED), (3, ("add", 2, 20))], {"linger_ms": 13}),
    ],
    ids=[
        "a flush ends a linger",
        "a throttle ends",
        "no leader was found",
        "another leader has room",
        "a batch that is still being encoded is given up",
        "a producer id is renewed",
        "a producer id is renewed for another partition",
    ],
)
def test_what_a_partition_waits_for_makes_it_due(
    steps: list[tuple[int, tuple[Any, ...]]], options: dict[str, Any]
) -> None:
    played(steps, {**DEFAULTS, **options})


def requests_of(trace: list[tuple[Any, ...]]) -> list[list[int]]:
    """The partitions of each request, in the order in which they were sent."""
    return [[key.partition for key, _ in event[2]] for event in trace if isinstance(event[1], Endpoint)]


@pytest.mark.parametrize(
    "steps",
    [
        [(0, ("add", 0, 20)), (0, answered(ErrorCode.invalid_record))],
        [
            (0, ("add_encoded", 0, 2)),
            *SENT_AGAIN,
            (0, answered(ErrorCode.message_too_large)),
            (0, answered(ErrorCode.out_of_order_sequence_number)),
        ],
        [
            (0, ("add_encoded", 0, 1)),
            (0, ANSWERED),
            *[(0, ("add_encoded", 0, 2))] * 2,
            *SENT_AGAIN,
            (0, answered(ErrorCode.invalid_record)),
            (0, answered(ErrorCode.message_too_large)),
        ],
    ],
    ids=["refused", "both halves of what may be in the log are lost", "what is split is lost behind a refused one"],
)
def test_a_partition_rests_when_the_last_of_its_batches_has_failed(steps: list[tuple[int, tuple[Any, ...]]]) -> None:
    played(steps, DEFAULTS)  # which looks at what is active


def test_a_full_batch_leaves_as_soon_as_its_thread_has_encoded_it_and_no_sooner() -> None:
    full_behind_one_in_flight = [(0, ("add", 0, 90))] * 3
    trace = played([*full_behind_one_in_flight, (0, ANSWERED), (3, ("finish_encoding",))], DEFAULTS)
    happened = ["sent" if isinstance(event[1], Endpoint) else event[1] for event in trace]
    assert [what for what in happened if what != "done"] == ["sent", "encoded", "sent", "sent"]


def test_a_leader_that_cannot_be_reached_is_left_alone_while_another_one_is_searched() -> None:
    steps = [(0, ("break_off", 0)), (0, ("add", 0, 20)), (0, ("open", 0, False)), (1, ("found", 0, 1, False))]
    happened = [event[1] for event in played(steps, DEFAULTS)]
    assert happened == ["connects", ENDPOINTS[1], "done"]


ONE_BATCH_AT_A_TIME = {**DEFAULTS, "max_in_flight_requests_per_connection": 1, "max_request_size": 1}


def test_a_partition_that_is_never_idle_keeps_no_other_one_out() -> None:
    steps = [
        (0, ("add_encoded", 0, 1)),
        (1, ("add_encoded", 0, 1)),
        (1, ("add_encoded", 2, 1)),
        (1, ("add_encoded", 0, 1)),
        (0, ANSWERED),
        (1, ("add_encoded", 0, 1)),
        (0, ANSWERED),
        (0, ANSWERED),
    ]
    assert requests_of(played(steps, ONE_BATCH_AT_A_TIME)) == [[0], [0], [2], [0], [0]]


def test_the_partition_whose_batch_has_waited_longest_goes_first_whoever_waited_for_the_leader_first() -> None:
    steps = [
        (0, ("add_encoded", 0, 1)),
        (0, ("pause", 1)),
        (1, ("add_encoded", 1, 1)),
        (1, ("add_encoded", 2, 1)),
        (0, ("lead", B, 0)),
        (0, ANSWERED),
        (0, ANSWERED),
    ]
    assert requests_of(played(steps, ONE_BATCH_AT_A_TIME)) == [[0], [1], [2]]
