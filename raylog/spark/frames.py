"""Makes batch and streaming DataFrames from this process's rows: each row is a task with preferred
hosts.

PySpark 3.5 has no public API for a task's preferred hosts, and none for a streaming source. So this
calls ``SparkContext.makeRDD`` on the JVM's side, and puts a Python object into a plan as a source,
as Spark's planner does with its own (``StreamingExecutionRelation``): These are private names of
pyspark, py4j and Spark, safe only with the extra's exact pin, and all are in this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_ROW = {"type": "struct", "fields": [{"name": "task", "type": "string", "nullable": False, "metadata": {}}]}
_QUERY_ID = "sql.streaming.queryId"


def tasks_frame(spark: Any, tasks: Sequence[str], hosts: Sequence[Sequence[str]]) -> Any:
    """A DataFrame of one column, ``task``, with a partition for each row. ``hosts``: the preferred
    hosts of each row's task.
    """
    from pyspark.sql import DataFrame

    jvm, gateway, context = spark._jvm, spark.sparkContext._gateway, spark.sparkContext
    if not tasks:
        return spark.createDataFrame([], "task string")
    # Looking up such a name searches all jars, package by package: do it once, not for each task.
    pair, row, cell, as_seq = (
        jvm.scala.Tuple2,
        jvm.org.apache.spark.sql.RowFactory,
        jvm.java.lang.Object,
        jvm.PythonUtils.toSeq,
    )
    preferences = {tuple(each): as_seq(list(each)) for each in hosts}
    pairs = jvm.java.util.ArrayList()
    for task, preferred in zip(tasks, hosts, strict=True):
        cells = gateway.new_array(cell, 1)
        cells[0] = task
        pairs.add(pair(row.create(cells), preferences[tuple(preferred)]))
    kind = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.Row"))
    rows = context._jsc.sc().makeRDD(as_seq(pairs), kind).toJavaRDD()
    schema = spark._jsparkSession.parseDataType(json.dumps(_ROW))
    return DataFrame(spark._jsparkSession.createDataFrame(rows, schema), spark)


def streaming_frame(spark: Any, source: Any, schema: Any) -> Any:
    """Return a streaming DataFrame over a Python object that implements Spark's ``Source``
    (``stream_source``). ``schema``: a JVM object.
    """
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame

    ensure_callback_server_started(spark.sparkContext._gateway)
    jvm, session = spark._jvm, spark._jsparkSession
    output = jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(schema)
    streaming = jvm.org.apache.spark.sql.execution.streaming
    relation = streaming.StreamingExecutionRelation(source, output, jvm.scala.Option.apply(None), session)
    return DataFrame(jvm.org.apache.spark.sql.Dataset.ofRows(session, relation), spark)


def streaming_batch(frame: Any) -> Any:
    """Return one batch of a source as a JVM object: the rows of a DataFrame, marked as part of a
    stream.

    Spark counts them as the batch's input. Tasks keep the preferred hosts of ``frame``.
    """
    rows = frame._jdf.queryExecution().toRdd()
    return frame.sparkSession._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), True)


def as_offset(spark: Any, text: str) -> Any:
    """A place in a stream as Spark keeps it in a checkpoint: one line of JSON."""
    return spark._jvm.org.apache.spark.sql.execution.streaming.SerializedOffset(text)


def no_limit(spark: Any) -> Any:
    """Return the read limit of a source that decides itself how much a batch reads."""
    return spark._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()


def running_query(spark: Any) -> str | None:
    """Return the id of the query that calls its source on this thread; None if pyspark does not pin
    threads.
    """
    found = spark.sparkContext._jsc.getLocalProperty(_QUERY_ID)
    return None if found is None else str(found)
