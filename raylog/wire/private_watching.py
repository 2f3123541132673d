"""The requests of those who watch a cluster: for its metrics, what has happened to it, and what its
processes have logged, and from which level on. As those of ``private``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raylog.wire.private import (
    COLLECT_METRICS,
    DESCRIBE_EVENTS,
    READ_LOGS,
    SET_LOGGER_LEVELS,
    reply_to,
    request_of,
)


@request_of(COLLECT_METRICS)
@dataclass(frozen=True, slots=True)
class CollectMetrics:
    """A Broker asks a process for the metrics of its registry (``raylog.metrics``), with at most
    ``series_max`` series of a gauge.
    """

    API_KEY: ClassVar[int]
    series_max: int = 1_000


@reply_to(COLLECT_METRICS)
@dataclass(frozen=True, slots=True)
class MetricsCollected:
    """Each sample is the metric's name, the values of its labels, and its value."""

    API_KEY: ClassVar[int]
    samples: tuple[tuple[str, tuple[str, ...], float], ...]


@request_of(DESCRIBE_EVENTS)
@dataclass(frozen=True, slots=True)
class DescribeEvents:
    """Asks any controller what has happened to the cluster: the oldest ``count`` events behind the
    position (``index``, ``number``), or the newest ones, for index −1.
    """

    API_KEY: ClassVar[int]
    index: int = -1
    number: int = -1
    count: int = 1_000


@reply_to(DESCRIBE_EVENTS)
@dataclass(frozen=True, slots=True)
class EventsDescribed:
    """``events``: index, number, Unix time in ms, kind, subject and text of each, in the order of
    the metadata log. ``lacks``: whether others that were asked for are no longer known.
    """

    API_KEY: ClassVar[int]
    events: tuple[tuple[int, int, int, str, str, str], ...] = ()
    lacks: bool = False


@request_of(READ_LOGS)
@dataclass(frozen=True, slots=True)
class ReadLogs:
    """Asks any process what the cluster's processes on its machine have logged, dead ones too: the
    newest ``count`` lines since ``since_ms`` (Unix time) of ``level`` or above, of one ``broker``
    (−1: all), that belong to the request ``trace_id`` (empty: all).
    """

    API_KEY: ClassVar[int]
    since_ms: int = 0
    level: str = "INFO"
    broker: int = -1
    count: int = 1_000
    trace_id: str = ""


@reply_to(READ_LOGS)
@dataclass(frozen=True, slots=True)
class LogsRead:
    """``lines``: Unix time in ms, node id, level, logger, message and trace id of each, in the order of
    time. ``folder``: where the files are; empty: the process's stderr is kept in none.
    """

    API_KEY: ClassVar[int]
    lines: tuple[tuple[int, int, str, str, str, str], ...] = ()
    folder: str = ""


@request_of(SET_LOGGER_LEVELS)
@dataclass(frozen=True, slots=True)
class SetLoggerLevels:
    """A Broker tells a process of its broker which levels its loggers are to have, by Kafka's names of
    levels; loggers that are not named have their own again. None: it only asks.
    """

    API_KEY: ClassVar[int]
    broker: int
    levels: dict[str, str] | None = None


@reply_to(SET_LOGGER_LEVELS)
@dataclass(frozen=True, slots=True)
class LoggerLevelsSet:
    """The level that each logger of the process goes by now."""

    API_KEY: ClassVar[int]
    levels: dict[str, str]
