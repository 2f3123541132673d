"""Ray Data on topics: ``read_topic`` makes a Dataset of a topic's records, ``write_topic`` writes a
Dataset's rows as records, and ``stream_topic`` makes batches for training that say where they are,
so that Ray Train resumes at the exact record.

::

    ds = raylog.data.read_topic("events", cluster=cluster)         # key, value, topic, partition, offset, timestamp, …
    raylog.data.write_topic(ds.select_columns(["key", "value"]), "copies", cluster=cluster)

The snapshot and the splits are those of ``raylog.spark`` (``raylog.ranges``). ``to_spark`` makes a
DataFrame of a Dataset, ``from_spark`` a Dataset of a DataFrame, and ``release`` frees what Ray
keeps for either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.lazy_names import lazy_names

if TYPE_CHECKING:
    from raylog.data.json_values import decode_json as decode_json
    from raylog.data.reading import TopicSource as TopicSource
    from raylog.data.reading import read_topic as read_topic
    from raylog.data.streaming import TopicBatch as TopicBatch
    from raylog.data.streaming import TopicBatches as TopicBatches
    from raylog.data.streaming import TopicStream as TopicStream
    from raylog.data.streaming import load_state as load_state
    from raylog.data.streaming import stream_topic as stream_topic
    from raylog.data.writing import TopicSink as TopicSink
    from raylog.data.writing import TopicWriteSummary as TopicWriteSummary
    from raylog.data.writing import write_topic as write_topic
    from raylog.ranges.sharding import StreamState as StreamState
    from raylog.spark.datasets import from_spark as from_spark
    from raylog.spark.datasets import to_spark as to_spark
    from raylog.spark.table_store import release as release

_HOMES = {
    "StreamState": "raylog.ranges.sharding",
    "TopicBatch": "raylog.data.streaming",
    "TopicBatches": "raylog.data.streaming",
    "TopicSink": "raylog.data.writing",
    "TopicSource": "raylog.data.reading",
    "TopicStream": "raylog.data.streaming",
    "TopicWriteSummary": "raylog.data.writing",
    "decode_json": "raylog.data.json_values",
    "from_spark": "raylog.spark.datasets",
    "load_state": "raylog.data.streaming",
    "read_topic": "raylog.data.reading",
    "release": "raylog.spark.table_store",
    "stream_topic": "raylog.data.streaming",
    "to_spark": "raylog.spark.datasets",
    "write_topic": "raylog.data.writing",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES, extra="data")
