"""Parses the topics and partitions that a user names for a read.

``checked`` refuses invalid input at once. It returns a name, a list of names, a compiled pattern,
or a mapping of names to partition numbers. Pure: the caller asks a cluster for ``names_of``, or for
all topics to choose from by pattern (``matching``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from raylog.client.links.metadata import TopicView
from raylog.configs.topic_configs import validate_topic_name
from raylog.errors import ConfigError

Topics = str | re.Pattern[str] | Iterable[str] | Mapping[str, Iterable[int]]
"""A topic, several, those that match a pattern as a whole, or some partitions of topics."""


def checked(topics: Any) -> Topics:
    """Return the topics, with lists sorted and without duplicates. ConfigError without a topic,
    InvalidTopicError for an invalid name.
    """
    if isinstance(topics, str) and "," in topics:
        raise ConfigError(f"topics={topics!r}: give several topics as a list")
    if isinstance(topics, str):
        return checked_name(topics)
    if isinstance(topics, re.Pattern) and isinstance(topics.pattern, str):
        return topics
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise _no_topics(topics)
    given = dict(topics) if isinstance(topics, Mapping) else list(topics)
    if not given:
        raise ConfigError(f"topics={topics!r}: no topic was named")
    if any(not isinstance(name, str) for name in given):
        raise _no_topics(topics)
    for name in given:
        checked_name(name)
    if isinstance(given, dict):
        return {name: _numbers(name, given[name]) for name in sorted(given)}
    return sorted(set(given))


def checked_name(topic: Any) -> str:
    """Return the name of one topic. ConfigError if it is not text, InvalidTopicError if Kafka does
    not allow it.
    """
    if not isinstance(topic, str):
        raise ConfigError(f"topic={topic!r}: give the name of one topic")
    validate_topic_name(topic)
    return topic


def _no_topics(topics: Any) -> ConfigError:
    return ConfigError(
        f"topics={topics!r}: give a name, a list of names, a compiled pattern, or {{topic: [partitions]}}"
    )


def _numbers(topic: str, numbers: Any) -> list[int]:
    given = list(numbers) if isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes) else None
    if not given or any(isinstance(each, bool) or not isinstance(each, int) for each in given):
        raise ConfigError(f"partitions of topic {topic!r} are {numbers!r}: give a list of numbers, such as [0, 1]")
    return sorted(set(given))


def names_of(topics: Topics) -> list[str]:
    """Return the names of the topics, ascending; not for a pattern."""
    assert not isinstance(topics, re.Pattern), topics
    return [topics] if isinstance(topics, str) else sorted(set(topics))


def matching(pattern: re.Pattern[str], views: Iterable[TopicView]) -> list[TopicView]:
    """Return the topics whose whole name matches a pattern, without internal ones."""
    return [view for view in views if pattern.fullmatch(view.name) and not view.is_internal]
