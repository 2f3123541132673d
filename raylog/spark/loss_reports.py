"""Records that tasks found lost, told in the driver: a warning when their task is done, and ``losses`` for a program that asks.

With ``fail_on_data_loss=False`` a task that meets offsets which are not there any more reads what is left. What it has to say of that is
a line in the log of an executor that nobody looks at; so it travels with the result of the task, as an accumulator of Spark's, and is
here before the action ends. The same loss, met by several actions or by tasks that were run again, is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from raylog.errors import ConfigError
from raylog.ranges.reading import OnLoss, report_loss

Texts = dict[str, None]
"""In the order in which they came."""

_found: WeakKeyDictionary[Any, Callable[[], Texts]] = WeakKeyDictionary()


def losses(df: Any) -> tuple[str, ...]:
    """What is known to be lost of the offsets that a DataFrame reads, in words: at the cut of a batch read, and since then.

    ``df``: what ``read``, ``read_stream`` or ``table`` returned, itself; ConfigError for another, also for one made from it. Empty with
    ``fail_on_data_loss``, when each loss is an error.
    """
    try:
        found = _found.get(df)
    except TypeError:  # nothing that could be referred to weakly
        found = None
    if found is None:
        raise ConfigError(
            "losses() takes the DataFrame that read(), read_stream() or table() returned, not one made from it"
        )
    return tuple(found())


class LossAccumulation:
    """How Spark adds up what tasks say; an ``AccumulatorParam``. In the driver each new text is a warning."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell

    def __reduce__(self) -> Any:
        return LossAccumulation, ()  # in a task it only gathers

    def zero(self, value: Texts) -> Texts:
        return {}

    def addInPlace(self, there: Texts, more: Texts) -> Texts:  # Spark's name for it
        for text in more:
            if text not in there and self._tell is not None:
                self._tell(text)
        return {**there, **more}


def accumulated(spark: Any, known: Iterable[str] = ()) -> Any:
    """An accumulator for the tasks of one read, which begins with what is known already."""
    return spark.sparkContext.accumulator(dict.fromkeys(known), LossAccumulation(report_loss))


def on_loss(accumulator: Any) -> OnLoss:
    """What a task does with a loss."""
    if accumulator is None:
        return report_loss
    return lambda loss: accumulator.add({loss: None})


def told_of(df: Any, accumulator: Any) -> Any:
    """The same DataFrame, of which ``losses`` tells what the accumulator holds from now on."""
    _found[df] = dict if accumulator is None else lambda: accumulator.value
    return df


def told_as(df: Any, source: Any) -> Any:
    """The same DataFrame, of which ``losses`` tells what it tells of ``source``."""
    _found[df] = _found[source]
    return df
