"""DataFrames that are made out of this process's own rows, each row a task with hosts it prefers.

PySpark 3.5 has no public way to say where a task should run, so this calls ``SparkContext.makeRDD`` on the JVM's side: private names of
pyspark and py4j, safe under the exact pin of the extra only, and all of them in this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_ROW = {"type": "struct", "fields": [{"name": "task", "type": "string", "nullable": False, "metadata": {}}]}


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
