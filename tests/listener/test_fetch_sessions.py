"""Fetch sessions, without a wire: what a request comes down to, what is news, and what the cache keeps."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.listener.fetch_sessions import EPOCH_MAX, EVICTION_MS, Fetching, FetchSessions, Key

V = 12


def part(number: int, offset: int = 0) -> tuple[Key, Any]:
    return ("t", number), SimpleNamespace(partition=number, fetch_offset=offset)


def result(records: bytes = b"", high_watermark: int = 0, error: ErrorCode = ErrorCode.none) -> Any:
    return SimpleNamespace(
        records=records, high_watermark=high_watermark, last_stable_offset=0, log_start_offset=0, error_code=error
    )


def sessions(slots: int = 10) -> FetchSessions:
    numbers = itertools.count(1)
    return FetchSessions(lambda: next(numbers), slots=slots)


def opened(cache: FetchSessions, *numbers: int, now_ms: int = 0) -> Fetching:
    found = cache.begin(V, 0, 0, [part(number) for number in numbers], [], now_ms)
    assert isinstance(found, Fetching)
    return found


def asked(
    cache: FetchSessions, session_id: int, epoch: int, *changed: Any, forgotten: Any = (), now_ms: int = 0
) -> Any:
    found = cache.begin(V, session_id, epoch, changed, forgotten, now_ms)
    cache.check()
    return found


def test_a_session_remembers_its_partitions_and_takes_changes() -> None:
    cache = sessions()
    first = opened(cache, 0, 1, 2)
    assert first.is_full and first.session is not None and first.session.session_id == 1
    second = asked(cache, 1, 1, part(1, offset=7), part(3), forgotten=[("t", 0)])
    assert not second.is_full
    assert [(key[1], each.fetch_offset) for key, each in second.partitions] == [(1, 7), (2, 0), (3, 0)]


def test_an_unknown_session_and_an_epoch_out_of_order_are_refused() -> None:
    cache = sessions()
    opened(cache, 0)
    assert asked(cache, 99, 1) is ErrorCode.fetch_session_id_not_found
    assert asked(cache, 1, 2) is ErrorCode.invalid_fetch_session_epoch
    assert isinstance(asked(cache, 1, 1), Fetching)
    assert asked(cache, 1, 1) is ErrorCode.invalid_fetch_session_epoch


def test_a_session_is_of_one_version() -> None:
    cache = sessions()
    opened(cache, 0)
    assert cache.begin(V + 1, 1, 1, [], [], 0) is ErrorCode.fetch_session_id_not_found


def test_the_final_epoch_ends_the_session() -> None:
    cache = sessions()
    opened(cache, 0)
    last = asked(cache, 1, -1, part(0))
    assert last.session is None and last.is_full and len(cache) == 0


def test_a_new_session_ends_the_one_it_names() -> None:
    cache = sessions()
    opened(cache, 0)
    again = asked(cache, 1, 0, part(0))
    assert again.session.session_id == 2 and len(cache) == 1


def test_a_session_that_forgets_everything_ends() -> None:
    cache = sessions()
    opened(cache, 0)
    rest = asked(cache, 1, 1, forgotten=[("t", 0)])
    assert rest.session is None and not rest.partitions and len(cache) == 0


def test_the_epoch_after_the_last_is_one() -> None:
    cache = sessions()
    session = opened(cache, 0).session
    assert session is not None
    session.next_epoch = EPOCH_MAX
    asked(cache, 1, EPOCH_MAX)
    assert session.next_epoch == 1


def test_a_full_request_hears_of_all_and_an_incremental_one_of_news_only() -> None:
    cache = sessions()
    first = opened(cache, 0, 1)
    quiet = {("t", 0): result(high_watermark=5), ("t", 1): result(high_watermark=3)}
    assert cache.answered(first, quiet) == quiet
    second = asked(cache, 1, 1)
    assert cache.answered(second, quiet) == {}
    third = asked(cache, 1, 2)
    moved = {("t", 0): result(high_watermark=6), ("t", 1): result(high_watermark=3)}
    assert list(cache.answered(third, moved)) == [("t", 0)]
    fourth = asked(cache, 1, 3)
    failed = {
        ("t", 0): result(high_watermark=6),
        ("t", 1): result(high_watermark=3, error=ErrorCode.fenced_leader_epoch),
    }
    assert list(cache.answered(fourth, failed)) == [("t", 1)]
    fifth = asked(cache, 1, 4)
    healed = {("t", 0): result(high_watermark=6), ("t", 1): result(high_watermark=3)}
    assert list(cache.answered(fifth, healed)) == [("t", 1)], "the end of an error is news"


def test_who_got_records_stands_last_next_time() -> None:
    cache = sessions()
    first = opened(cache, 0, 1, 2)
    cache.answered(first, {("t", 0): result(b"r", 1), ("t", 1): result(), ("t", 2): result()})
    assert [key[1] for key, _ in asked(cache, 1, 1).partitions] == [1, 2, 0]


def test_a_full_cache_keeps_no_new_session_until_an_old_one_has_rested_long_enough() -> None:
    cache = sessions(slots=2)
    opened(cache, 0, now_ms=0)
    opened(cache, 0, now_ms=10)
    asked(cache, 1, 1, now_ms=20)
    assert opened(cache, 0, now_ms=EVICTION_MS).session is None
    third = opened(cache, 0, now_ms=EVICTION_MS + 10).session
    assert third is not None and len(cache) == 2
    assert asked(cache, 2, 1) is ErrorCode.fetch_session_id_not_found, "the one that was used least recently"
    assert isinstance(asked(cache, 1, 2, now_ms=EVICTION_MS + 10), Fetching)


def test_a_cache_without_slots_keeps_nothing() -> None:
    assert opened(sessions(slots=0), 0).session is None


def test_a_random_life_keeps_to_the_model() -> None:
    """The sum of what a client was told is what a client without a session would have been told last."""
    rng = random.Random(7)
    cache = sessions()
    truth = {("t", number): result(high_watermark=0) for number in range(6)}
    heard: dict[Key, Any] = {}
    fetching: Any = opened(cache, *range(6))
    epoch = 1
    for step in range(300):
        for key in rng.sample(sorted(truth), 2):
            error = rng.choice([ErrorCode.none] * 4 + [ErrorCode.not_leader_or_follower])
            truth[key] = result(high_watermark=step, error=error) if not error else result(error=error)
        heard |= cache.answered(fetching, dict(truth))
        assert {key: (each.high_watermark, each.error_code) for key, each in heard.items()} == {
            key: (each.high_watermark, each.error_code) for key, each in truth.items()
        }
        fetching = asked(cache, 1, epoch, now_ms=step)
        epoch += 1
