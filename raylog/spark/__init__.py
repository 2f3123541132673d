"""Spark on the partitions of a cluster: a session next to the data, topics as DataFrames,
DataFrames as topics.

::

    cluster = raylog.init()
    spark = raylog.spark.init("report", cluster=cluster)
    frame = raylog.spark.read(spark, "events", cluster=cluster)      # the columns of Spark's kafka source
    raylog.spark.write(frame.select("key", "value"), "copies", cluster=cluster)
    raylog.spark.stop()

``read``, ``table`` and ``write`` work with any session of PySpark since 3.5, also without Ray. The only
importer of pyspark and raydp, which the extras ``raylog[spark]`` and ``raylog[raydp]`` install. Everything here is
imported on first use: Spark's workers import only what they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.lazy_names import lazy_names

if TYPE_CHECKING:
    from raylog.spark.json_values import from_json as from_json
    from raylog.spark.loss_reports import losses as losses
    from raylog.spark.reading import read as read
    from raylog.spark.session import init as init
    from raylog.spark.session import stop as stop
    from raylog.spark.stream_writing import StreamWriteSummary as StreamWriteSummary
    from raylog.spark.stream_writing import write_stream as write_stream
    from raylog.spark.stream_writing import write_stream_summary as write_stream_summary
    from raylog.spark.streaming import read_stream as read_stream
    from raylog.spark.tables import table as table
    from raylog.spark.writing import WriteSummary as WriteSummary
    from raylog.spark.writing import write as write

_HOMES = {
    "StreamWriteSummary": "raylog.spark.stream_writing",
    "WriteSummary": "raylog.spark.writing",
    "from_json": "raylog.spark.json_values",
    "init": "raylog.spark.session",
    "losses": "raylog.spark.loss_reports",
    "read": "raylog.spark.reading",
    "read_stream": "raylog.spark.streaming",
    "stop": "raylog.spark.session",
    "table": "raylog.spark.tables",
    "write": "raylog.spark.writing",
    "write_stream": "raylog.spark.stream_writing",
    "write_stream_summary": "raylog.spark.stream_writing",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES, extra="spark")
