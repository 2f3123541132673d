"""Batches and streams of Spark, both ways, on a session of the user's own (``local[2]``)."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import raylog
import raylog.spark
from raylog.client.admin.admin import NewTopic
from raylog.spark.java import OPTIONS, use_java

ROWS = 500


def main() -> None:
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("smoke")
    for name, value in {
        "spark.driver.extraJavaOptions": OPTIONS,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with (
        tempfile.TemporaryDirectory(prefix="rlm") as folder,
        raylog.init(Path(folder) / "data", brokers=1) as cluster,
    ):
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("rows", 2, 1), NewTopic("copies", 2, 1)])
        rows = spark.range(ROWS).selectExpr("CAST(id % 50 AS STRING) AS key", "CAST(id AS STRING) AS value")
        raylog.spark.write(rows, "rows", cluster=cluster)
        values = [
            bytes(row.value) for row in raylog.spark.read(spark, "rows", cluster=cluster).select("value").collect()
        ]
        assert sorted(values, key=int) == [b"%d" % each for each in range(ROWS)], f"a batch: {len(values)} rows"
        assert raylog.spark.table(spark, "rows", cluster=cluster).count() == 50

        checkpoint = Path(folder) / "checkpoint"
        stream = raylog.spark.read_stream(
            spark, "rows", cluster=cluster, checkpoint=str(checkpoint), starting_offsets="earliest"
        )
        query = raylog.spark.write_stream(
            stream.select("key", "value"),
            "copies",
            cluster=cluster,
            checkpoint=str(checkpoint),
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(120), "the stream did not end"
        copied = raylog.spark.read(spark, "copies", cluster=cluster).count()
        assert copied == ROWS, f"a stream: {copied} rows"
    spark.stop()
    print(f"{ROWS} rows written, read, and streamed from topic to topic", file=sys.stderr)


if __name__ == "__main__":
    main()
