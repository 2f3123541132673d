"""The configs of a subscription to client metrics (KIP-714): which metrics, how often, of which
clients.

A client matches a subscription if each of the subscription's patterns matches the whole of what the
client is known by; a subscription without patterns matches every client. Patterns are regular
expressions, of Python where Kafka's are of Java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from raylog.configs.topic_configs import ConfigValueType, TopicConfig
from raylog.errors import ConfigError
from raylog.refusals import InvalidRequest

METRICS: Final = "metrics"
INTERVAL: Final = "interval.ms"
MATCH: Final = "match"
INTERVAL_MS: Final = 300_000
ALL_METRICS: Final = "*"
SELECTORS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""By what a subscription can name clients."""

CLIENT_METRICS_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    each.name: each
    for each in (
        TopicConfig(INTERVAL, ConfigValueType.INT, str(INTERVAL_MS), "how often the clients push", 100, 3_600_000),
        TopicConfig(
            MATCH,
            ConfigValueType.LIST,
            "",
            "the clients, as `selector=regular expression`; all clients where it is empty. Selectors are "
            + ", ".join(SELECTORS),
        ),
        TopicConfig(METRICS, ConfigValueType.LIST, "", "the first parts of metrics' names; `*` is all metrics"),
    )
}

Patterns = tuple[tuple[str, re.Pattern[str]], ...]


@dataclass(frozen=True, slots=True)
class MetricsSubscription:
    """``patterns`` by selector, all of which a client must match."""

    metrics: frozenset[str]
    interval_ms: int
    patterns: Patterns

    def matches(self, client: Mapping[str, str]) -> bool:
        """``client`` has a text for each selector."""
        return all(pattern.fullmatch(client[selector]) for selector, pattern in self.patterns)


@lru_cache(maxsize=256)
def subscription_of(configs: tuple[tuple[str, str], ...]) -> MetricsSubscription:
    """By what is set, as (name, value)."""
    given = dict(configs)
    metrics = CLIENT_METRICS_CONFIGS[METRICS].parse(given.get(METRICS, ""))
    assert isinstance(metrics, tuple), metrics
    return MetricsSubscription(
        frozenset(metrics), int(given.get(INTERVAL, INTERVAL_MS)), parsed_patterns(given.get(MATCH, ""))
    )


def config_named(name: str) -> TopicConfig:
    """Raises InvalidRequest, as Kafka does, for a name that is none."""
    config = CLIENT_METRICS_CONFIGS.get(name)
    if config is None:
        raise InvalidRequest(
            f"Unknown client metrics configuration: {name}; choose from {', '.join(CLIENT_METRICS_CONFIGS)}"
        )
    return config


def validated(name: str, text: str | None) -> str:
    """The value to store. Raises ConfigError, and InvalidRequest for an interval out of bounds."""
    config = config_named(name)
    try:
        config.parse(text or "")
    except ConfigError as error:
        if name == INTERVAL:
            raise InvalidRequest(str(error)) from None
        raise
    if name == MATCH:
        parsed_patterns(text or "")
    return (text or "").strip()


def parsed_patterns(text: str) -> Patterns:
    """Raises ConfigError for what is no `selector=regular expression`."""
    found: dict[str, re.Pattern[str]] = {}
    for each in text.split(","):
        if not each.strip():
            continue
        selector, equals, pattern = (part.strip() for part in each.partition("="))
        if not equals or not pattern or "=" in pattern:
            raise ConfigError(f"Illegal client matching pattern: {each.strip()}; write SELECTOR=REGULAR EXPRESSION")
        if selector not in SELECTORS:
            raise ConfigError(f"Illegal client matching parameter: {selector}; choose from {', '.join(SELECTORS)}")
        try:
            found[selector] = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"Illegal client matching pattern: {each.strip()}: {error}") from None
    return tuple(found.items())
