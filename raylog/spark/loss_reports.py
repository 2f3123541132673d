"""Reports lost records in the driver: a warning when the task is done, and ``losses`` for programs.

With ``fail_on_data_loss=False`` a task whose offsets have been deleted reads the rest. A line in
the executor's log would be overlooked, so the report travels with the task's result, in a Spark
accumulator, and arrives before the action ends. A loss that several actions or repeated tasks find
is reported once.
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
    """Return the known losses among the offsets that a DataFrame reads, as sentences: at the
    snapshot of a batch read and since.

    ``df``: what ``read``, ``read_stream`` or ``table`` returned, itself; ConfigError for another,
    also for one made from it. Empty with ``fail_on_data_loss``, because each loss is then an error.
    """
    try:
        found = _found.get(df)
    except TypeError:  # not an object that weak references can name
        found = None
    if found is None:
        raise ConfigError(
            "losses() takes the DataFrame that read(), read_stream() or table() returned, not one made from it"
        )
    return tuple(found())


class LossAccumulation:
    """Adds up tasks' reports; an ``AccumulatorParam`` of Spark. In the driver each new text is a
    warning.
    """

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
    """Return an accumulator for the tasks of one read, starting with the known losses."""
    return spark.sparkContext.accumulator(dict.fromkeys(known), LossAccumulation(report_loss))


def on_loss(accumulator: Any) -> OnLoss:
    """Return the function with which a task reports a loss."""
    if accumulator is None:
        return report_loss
    return lambda loss: accumulator.add({loss: None})


def told_of(df: Any, accumulator: Any) -> Any:
    """Make ``losses`` return what the accumulator holds for this DataFrame; return the DataFrame."""
    _found[df] = dict if accumulator is None else lambda: accumulator.value
    return df


def told_as(df: Any, source: Any) -> Any:
    """Make ``losses`` return the same for this DataFrame as for ``source``; return the DataFrame."""
    _found[df] = _found[source]
    return df
