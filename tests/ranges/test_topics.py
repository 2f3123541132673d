"""What a user may name as topics: four ways to say it, everything else refused in words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raylog.errors import ConfigError
from raylog.ranges.topics import checked, names_of

pytestmark = pytest.mark.spark


def test_topics_are_a_name_several_a_pattern_or_some_partitions() -> None:
    pattern = re.compile("t.*")
    assert checked("t") == "t" and names_of("t") == ["t"]
    assert checked(pattern) is pattern
    assert checked(("b", "a", "b")) == ["a", "b"]
    assert checked({"b": (2, 0, 2), "a": range(2)}) == {"a": [0, 1], "b": [0, 2]}
    assert names_of({"b": [0], "a": [1]}) == ["a", "b"]


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ([], "no topic was named"),
        ({}, "no topic was named"),
        (None, "topics=None: give a name, a list of names"),
        (5, "topics=5: give a name"),
        ("t,u", "topics='t,u': give several topics as a list"),
        (b"t", "topics=b't': give a name"),
        (re.compile(b"t"), "give a name"),
        (["t", re.compile("u")], "give a name"),
        ({"t": 0}, r"partitions of topic 't' are 0: give a list of numbers"),
        ({"t": ["0"]}, "give a list of numbers"),
        ({"t": "01"}, "give a list of numbers"),
        ({"t": []}, "give a list of numbers"),
        ({"t": [True]}, "give a list of numbers"),
    ],
)
def test_what_names_no_topics_is_refused(topics: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(topics)
