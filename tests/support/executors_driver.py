"""A driver with two executors of its own, processes on this machine, which writes while one of them dies.

    python executors_driver.py ADDRESS TOPIC FOLDER

ADDRESS is a file with a pickled ClusterAddress. The first attempt at task 1 sends its rows, kills its executor, and notes that with a
file in FOLDER. The program prints a line of JSON: the summary of the write, and how many rows a reader of committed records gets, and how
many different ones.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raylog.spark.write_tasks import WriteTasks

ROWS, TASKS = 400, 4


@dataclass(frozen=True, slots=True)
class StruckTasks(WriteTasks):
    folder: str = ""

    def __call__(self, batches: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        yield from WriteTasks.__call__(self, batches)
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            (Path(self.folder) / "struck").touch()
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            threading.Event().wait()


def session() -> Any:
    from pyspark.sql import SparkSession

    from raylog.spark.java import use_java

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local-cluster[2,2,512]").appName("executors")
    return with_small_executors(builder).getOrCreate()


def with_small_executors(builder: Any) -> Any:
    """A session's builder, for executors and a driver of little memory on this machine."""
    from raylog.spark.java import OPTIONS
    from raylog.spark.session import QUIET_LOGGING

    options = f"{OPTIONS} -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={QUIET_LOGGING}"
    settings = {
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def main(address_file: str, topic: str, folder: str) -> None:
    import executors_driver

    import raylog.spark
    from raylog.spark import writing

    address = pickle.loads(Path(address_file).read_bytes())
    spark = session()
    writing.WriteTasks = partial(executors_driver.StruckTasks, folder=folder)  # type: ignore[misc, assignment]
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("cast(id as string) value")
    summary = raylog.spark.write(rows, topic, cluster=address)
    read = raylog.spark.read(spark, topic, cluster=address, isolation_level="read_committed", columns=["value"])
    values = [bytes(row.value) for row in read.collect()]
    print(json.dumps({**asdict(summary), "read": len(values), "different": len(set(values))}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
