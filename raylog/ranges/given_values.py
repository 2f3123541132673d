"""Converts the options that users give to the type that each needs; ConfigError for anything else.

Text is read as Spark reads it: ``"true"``, ``"4"``. Pure.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from raylog.errors import ConfigError

COUNT_MAX = 2**31 - 1
"""The largest number of tasks that Spark accepts."""

OFFSET_MAX = 2**63 - 1


def flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={value!r}: give true or false")
    return value.lower() == "true"


def count(name: str, value: Any, maximum: int) -> int:
    """Return a whole number, at least 1."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}={value!r}: give a whole number, at least 1")
    if not 1 <= value <= maximum:
        raise ConfigError(f"{name}={value!r}: give {'at least 1' if value < 1 else f'at most {maximum}'}")
    return value


def seconds(name: str, value: Any) -> float:
    """Return a time in seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{name}={value!r}: give seconds, 0 or more")
    return value


def unknown(name: str, there_are: Iterable[str]) -> ConfigError:
    """Return the error for an unknown option, with the closest known name."""
    names = sorted(there_are)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(names)}"
    return ConfigError(f"unknown option {name!r}: {hint}")
