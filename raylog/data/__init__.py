"""Ray Data on topics: ``read_topic`` makes a Dataset of a topic's records, ``write_topic`` writes a Dataset's rows as records.

::

    ds = raylog.data.read_topic("events", cluster=cluster)         # key, value, topic, partition, offset, timestamp, …
    raylog.data.write_topic(ds.select_columns(["key", "value"]), "copies", cluster=cluster)

The same cut and the same splits as ``raylog.spark`` has (``raylog.ranges``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylog.data.reading import TopicSource as TopicSource
    from raylog.data.reading import read_topic as read_topic
    from raylog.data.writing import TopicSink as TopicSink
    from raylog.data.writing import write_topic as write_topic

_HOMES = {
    "TopicSink": "raylog.data.writing",
    "TopicSource": "raylog.data.reading",
    "read_topic": "raylog.data.reading",
    "write_topic": "raylog.data.writing",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'raylog.data' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
