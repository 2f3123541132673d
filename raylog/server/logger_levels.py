"""The levels of a process's loggers, which its broker's Broker may change while it runs
(``raylog.listener.broker_loggers``), by Kafka's names.

A logger that has no level of its own goes by the one above it in its dotted name, and at last by
``root``. TRACE lets pass what DEBUG does: raylog says nothing below that. A level that is taken away
is again the one that the logger had before any was set. Nothing of it outlives the process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from raylog.wire.private_watching import LoggerLevelsSet, SetLoggerLevels
from raylog.wire.request import Request

ROOT: Final = "root"
LEVELS: Final[Mapping[str, int]] = {
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "TRACE": logging.DEBUG - 5,
    "OFF": logging.CRITICAL + 10,
}
_UPWARDS: Final = sorted(LEVELS, key=LEVELS.__getitem__)


class LoggerLevels:
    """Those of one process. A test cluster's brokers share one: of a logger that several of them have
    set, the last one has its way.
    """

    def __init__(self) -> None:
        self._told: dict[int, dict[str, str]] = {}  # by broker; the one that spoke last is last
        self._before: dict[str, int] = {}  # of loggers whose level is set, what theirs was

    def set(self, broker_id: int, levels: Mapping[str, str]) -> None:
        """These are all the levels that the broker wants; what it wanted before is void."""
        self._told.pop(broker_id, None)
        self._told[broker_id] = dict(levels)
        wanted = {name: level for told in self._told.values() for name, level in told.items()}
        for name in [name for name in self._before if name not in wanted]:
            logger_of(name).setLevel(self._before.pop(name))
        for name, level in wanted.items():
            logger = logger_of(name)
            self._before.setdefault(name, logger.level)
            logger.setLevel(LEVELS[level])

    def effective(self) -> dict[str, str]:
        """The level that each logger of the process goes by."""
        named = logging.root.manager.loggerDict
        loggers = {name: each for name, each in list(named.items()) if isinstance(each, logging.Logger)}
        return {name: level_of(each.getEffectiveLevel()) for name, each in {**loggers, ROOT: logging.root}.items()}


def logger_of(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def level_of(number: int) -> str:
    """Kafka's name of the level from which on lines are written."""
    return next((name for name in _UPWARDS if LEVELS[name] >= number), _UPWARDS[-1])


def least(one: str, other: str) -> str:
    """The one that lets more pass."""
    return min(one, other, key=LEVELS.__getitem__)


OF_PROCESS: Final = LoggerLevels()


def set_logger_levels(request: Request) -> None:
    """Answers SetLoggerLevels."""
    asked: SetLoggerLevels = request.body
    if asked.levels is not None:
        OF_PROCESS.set(asked.broker, asked.levels)
    request.reply(LoggerLevelsSet(OF_PROCESS.effective()))
