"""Which topics, and which of their partitions, a read is of, as a user names them.

``checked`` says at once what can't be meant; what it gives is one of four: a name, a list of names, a compiled pattern, or of each name the
numbers of its partitions. Pure: whether there are such topics is found out by who asks a cluster for ``names_of``, or for all of them and
has the pattern choose (``matching``).
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
    """The same topics, lists sorted and without repetitions. ConfigError for what names none, InvalidTopicError for what can be no name."""
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
    """The name of one topic. ConfigError for what is no text, InvalidTopicError for what Kafka lets no topic be called."""
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
    """The topics that are named, ascending; of anything but a pattern."""
    assert not isinstance(topics, re.Pattern), topics
    return [topics] if isinstance(topics, str) else sorted(set(topics))


def matching(pattern: re.Pattern[str], views: Iterable[TopicView]) -> list[TopicView]:
    """The topics whose whole name a pattern matches, none of them internal."""
    return [view for view in views if pattern.fullmatch(view.name) and not view.is_internal]
