"""What is kept of schemas and of refusals, for how long, and how many questions are under way."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from raylog.schemas import schema_cache
from raylog.schemas.registry import RegistryAwayError
from raylog.schemas.schema_cache import AWAY_S, REFUSED_S, ReaderPatience, SchemaCache
from raylog.schemas.wire_format import NotDecodedError


class Ready:
    def __init__(self, size_bytes: int = 1) -> None:
        self.size_bytes = size_bytes

    def decode(self, payload: bytes) -> tuple[str, Any]:
        return "", payload


class Asked:
    """Answers with schemas, or with ``trouble``."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.trouble: Exception | None = None
        self.size_bytes = 1
        self.now_s = 100.0

    def __call__(self, schema_id: int) -> Ready:
        self.ids.append(schema_id)
        if self.trouble is not None:
            raise self.trouble
        return Ready(self.size_bytes)


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def cache(asked: Asked) -> SchemaCache:
    return SchemaCache(asked, lambda: asked.now_s)


def settle() -> None:
    """Until no thread asks any more."""
    for each in threading.enumerate():
        if each.name.startswith("schema-"):
            each.join(60)


def refusal(cache: SchemaCache, schema_id: int) -> str:
    with pytest.raises(NotDecodedError) as found:
        cache.schema(schema_id, ReaderPatience())
    return str(found.value)


def test_the_schema_that_was_not_used_for_longest_is_forgotten(
    cache: SchemaCache, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_cache, "KEPT_MAX", 2)
    for schema_id in (1, 2, 1, 3, 1, 2):
        cache.schema(schema_id, ReaderPatience())
    assert asked.ids == [1, 2, 3, 2]


def test_what_is_kept_has_a_bounded_size(cache: SchemaCache, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cache, "KEPT_BYTES_MAX", 10)
    asked.size_bytes = 6
    for schema_id in (1, 2, 2, 1, 1):
        cache.schema(schema_id, ReaderPatience())
    assert asked.ids == [1, 2, 1]


def test_a_refusal_is_kept_for_a_while(cache: SchemaCache, asked: Asked) -> None:
    asked.trouble = NotDecodedError("no")
    assert refusal(cache, 1) == refusal(cache, 1) == "no" and asked.ids == [1]
    asked.trouble = None
    cache.schema(2, ReaderPatience())
    asked.now_s += REFUSED_S
    cache.schema(1, ReaderPatience())
    assert asked.ids == [1, 2, 1]


def test_refusals_that_are_kept_are_bounded(cache: SchemaCache, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cache, "REFUSED_MAX", 1)
    asked.trouble = NotDecodedError("no")
    for schema_id in (1, 2, 2, 1):
        refusal(cache, schema_id)
    assert asked.ids == [1, 2, 1]


def test_a_registry_that_is_away_is_tried_again_by_one_question_that_nobody_waits_for(
    cache: SchemaCache, asked: Asked
) -> None:
    asked.trouble = RegistryAwayError("away")
    assert [refusal(cache, number) for number in (1, 2, 3)] == ["away"] * 3 and asked.ids == [1]
    asked.now_s += AWAY_S
    assert refusal(cache, 2) == "away; it is asked again now"
    settle()
    assert refusal(cache, 3) == "away" and asked.ids == [1, 2]
    asked.now_s += AWAY_S
    asked.trouble = None
    assert "asked again now" in refusal(cache, 3)
    settle()
    cache.schema(3, ReaderPatience())
    cache.schema(4, ReaderPatience())
    assert asked.ids == [1, 2, 3, 4]


def test_an_error_of_a_library_is_a_refusal(cache: SchemaCache, asked: Asked) -> None:
    asked.trouble = RecursionError("deep")
    assert refusal(cache, 1) == refusal(cache, 1) == "schema 1 cannot be used: RecursionError"
    assert asked.ids == [1]


def test_questions_under_way_are_bounded_and_each_schema_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cache, "ASKING_MAX", 2)
    until, ids = threading.Event(), []

    def ask(schema_id: int) -> Ready:
        ids.append(schema_id)
        until.wait(60)
        return Ready()

    cache = SchemaCache(ask)
    for schema_id in (1, 1, 2):
        with pytest.raises(NotDecodedError, match="has not answered"):
            cache.schema(schema_id, ReaderPatience(seconds=0))
    with pytest.raises(NotDecodedError, match="many schemas already"):
        cache.schema(3, ReaderPatience(seconds=0))
    until.set()
    settle()
    cache.schema(1, ReaderPatience(seconds=0))
    assert sorted(ids) == [1, 2]
