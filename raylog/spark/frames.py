"""DataFrames that are made out of this process's own rows, each row a task with hosts it prefers; batch, and streaming ones.

PySpark 3.5 has no public way to say where a task should run, and none to write a source of streams. So this calls
``SparkContext.makeRDD`` on the JVM's side, and puts a source that is a Python object into a plan as Spark's planner does with its own
(``StreamingExecutionRelation``): private names of pyspark, py4j and Spark, safe under the exact pin of the extra only, and all of them
in this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_ROW = {"type": "struct", "fields": [{"name": "task", "type": "string", "nullable": False, "metadata": {}}]}
_QUERY_ID = "sql.streaming.queryId"


def tasks_frame(spark: Any, tasks: Sequence[str], hosts: Sequence[Sequence[str]]) -> Any:
    """A DataFrame of one column, ``task``, with a partition for each row. ``hosts``: where each row's task had better run."""
    from pyspark.sql import DataFrame

    jvm, gateway, context = spark._jvm, spark.sparkContext._gateway, spark.sparkContext
    if not tasks:
        return spark.createDataFrame([], "task string")
    # Each of these names is looked up among all jars, package by package: once, not once for each task.
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
    """A streaming DataFrame of a Python object that stands for Spark's ``Source`` (``stream_source``). ``schema``: the JVM's."""
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame

    ensure_callback_server_started(spark.sparkContext._gateway)
    jvm, session = spark._jvm, spark._jsparkSession
    output = jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(schema)
    streaming = jvm.org.apache.spark.sql.execution.streaming
    relation = streaming.StreamingExecutionRelation(source, output, jvm.scala.Option.apply(None), session)
    return DataFrame(jvm.org.apache.spark.sql.Dataset.ofRows(session, relation), spark)


def streaming_batch(frame: Any) -> Any:
    """What a source hands out for one batch: the rows of a DataFrame, marked as a part of a stream; the JVM's object.

    Spark counts them as the batch's input, and tasks prefer the hosts that those of ``frame`` do.
    """
    rows = frame._jdf.queryExecution().toRdd()
    return frame.sparkSession._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), True)


def as_offset(spark: Any, text: str) -> Any:
    """A place in a stream as Spark keeps it in a checkpoint: one line of JSON."""
    return spark._jvm.org.apache.spark.sql.execution.streaming.SerializedOffset(text)


def no_limit(spark: Any) -> Any:
    """How much a source may put into a batch, where it decides that itself."""
    return spark._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()


def running_query(spark: Any) -> str | None:
    """The id of the query that asks its source something, on the thread that does so; None where pyspark does not pin threads."""
    found = spark.sparkContext._jsc.getLocalProperty(_QUERY_ID)
    return None if found is None else str(found)
