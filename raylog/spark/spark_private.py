"""Every use of private names of pyspark, py4j and Spark, for PySpark 3.5 and later.

PySpark has no public API for a task's preferred hosts, nor for a streaming source with them. So
this calls ``SparkContext.makeRDD`` on the JVM's side, and puts a Python object into a plan as a
source, as Spark's planner does with its own (``StreamingExecutionRelation``). Spark 4 has moved
some of these names, so each is looked for where any release since 3.5 has it;
``docs/platforms.md`` says which ones were tried.

What a batch or streaming DataFrame here has as rows: each is a task with preferred hosts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

from raylog.errors import ClusterError

_ROW = {"type": "struct", "fields": [{"name": "task", "type": "string", "nullable": False, "metadata": {}}]}
_QUERY_ID = "sql.streaming.queryId"
_SQL = ("org.apache.spark.sql.classic", "org.apache.spark.sql")
_STREAMING = ("org.apache.spark.sql.execution.streaming.runtime", "org.apache.spark.sql.execution.streaming")


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
    from py4j.protocol import Py4JError
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame

    ensure_callback_server_started(spark.sparkContext._gateway)
    jvm, session = spark._jvm, spark._jsparkSession
    output = jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(schema)
    relation = _class(spark, _STREAMING, "StreamingExecutionRelation")
    names = []
    with suppress(Py4JError):
        names = [getattr(relation, "apply$default$4")()]  # since Spark 4.2 a source may have a name
    plan = relation(source, output, jvm.scala.Option.apply(None), *names, session)
    return DataFrame(_class(spark, _SQL, "Dataset").ofRows(session, plan), spark)


def streaming_batch(frame: Any) -> Any:
    """Return one batch of a source as a JVM object: the rows of a DataFrame, marked as part of a
    stream.

    Spark counts them as the batch's input. Tasks keep the preferred hosts of ``frame``.
    """
    rows = frame._jdf.queryExecution().toRdd()
    return frame.sparkSession._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), True)


def as_offset(spark: Any, text: str) -> Any:
    """A place in a stream as Spark keeps it in a checkpoint: one line of JSON."""
    return _class(spark, _STREAMING, "SerializedOffset")(text)


def no_limit(spark: Any) -> Any:
    """Return the read limit of a source that decides itself how much a batch reads."""
    return spark._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()


def running_query(spark: Any) -> str | None:
    """Return the id of the query that calls its source on this thread; None if pyspark does not pin
    threads.
    """
    found = spark.sparkContext._jsc.getLocalProperty(_QUERY_ID)
    return None if found is None else str(found)


def _class(spark: Any, packages: Sequence[str], name: str) -> Any:
    """The class of that name in the first of these packages that has it. ClusterError if none has."""
    from py4j.java_gateway import JavaClass

    for package in packages:
        found = reduce(getattr, [*package.split("."), name], spark._jvm)
        if isinstance(found, JavaClass):
            return found
    raise ClusterError(
        f"Spark {spark.version} has no class {name} where releases up to 4.3 have it: use one that docs/platforms.md names"
    )


# ------------------------------------------------------------------ sessions


def is_stopped(spark: Any) -> bool:
    """Whether the context of this session was stopped."""
    return bool(spark.sparkContext._jsc is None)


def java_release(spark: Any) -> str:
    """The Java that the session's JVM runs on: "17", or "8"."""
    return str(spark._jvm.java.lang.System.getProperty("java.specification.version")).removeprefix("1.")


def executor_addresses(spark: Any) -> list[str]:
    """``host:port`` of each executor that has registered, and of the driver."""
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().iterator()
    found = []
    while executors.hasNext():
        found.append(str(executors.next()))
    return found


def is_json_option(spark: Any, name: str) -> bool:
    """Whether Spark's JSON source has an option of that name."""
    return bool(spark._jvm.org.apache.spark.sql.catalyst.json.JSONOptions.isValidOption(name))


def parsed_schema(text: str) -> Any:
    """The type that a DDL text names. Raises what pyspark's parser raises."""
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(text)


def active_context() -> Any:
    """This process's SparkContext; None without one."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def take_gateway() -> Any:
    """The connection to this process's JVM, which the next session will not use; None without
    one.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    return gateway
