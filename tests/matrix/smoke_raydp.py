"""A session of RayDP on the cluster's Ray writes a topic and reads it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import raylog
import raylog.spark
from raylog.client.admin.admin import NewTopic

ROWS = 500


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="rlm") as folder,
        raylog.init(Path(folder) / "data", brokers=1, ray_address="local") as cluster,
    ):
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("rows", 2, 1)])
        spark = raylog.spark.init("smoke", cluster=cluster, executor_memory="512m", driver_memory="512m")
        rows = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS value")
        raylog.spark.write(rows, "rows", cluster=cluster)
        read = raylog.spark.read(spark, "rows", cluster=cluster).count()
        raylog.spark.stop()
        assert read == ROWS, f"{read} rows came back"
    print(f"{ROWS} rows written and read by RayDP's executors", file=sys.stderr)


if __name__ == "__main__":
    main()
