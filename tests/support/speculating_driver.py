"""A driver on a standalone cluster whose two workers have addresses of their own, as two machines have: only there does Spark run a
second attempt at a task beside the first.

    python speculating_driver.py ADDRESS TOPIC FOLDER WINNER

ADDRESS is a file with a pickled ClusterAddress. Both attempts at task 1 send all their rows; then the one with the number WINNER returns,
and the other one waits until Spark kills it. FOLDER gets a file for each attempt that has sent. The program prints a line of JSON: the
summary of the write, and how many rows a reader of committed records gets, and how many different ones.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raylog.spark.write_tasks import WriteTasks

ROWS, TASKS = 400, 4
WORKERS = ("127.0.0.2", "127.0.0.3")
POLL_S = 0.02
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class RacingTasks(WriteTasks):
    folder: str = ""
    winner: int = 0

    def __call__(self, batches: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        result = list(WriteTasks.__call__(self, batches))
        if context.partitionId() == 1:
            self._race(context.attemptNumber())
        yield from result

    def _race(self, attempt: int) -> None:
        """Return once both have sent, if this one is to win."""
        folder = Path(self.folder)
        (folder / f"sent-{attempt}").touch()
        never = threading.Event()
        while attempt != self.winner or not (folder / f"sent-{1 - attempt}").exists():
            never.wait(POLL_S)


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and its workers; gives the master's URL."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    deploy = (str(home / "bin" / "spark-class"), "org.apache.spark.deploy")

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [deploy[0], f"{deploy[1]}.{arguments[0]}", *arguments[1:]]
        return subprocess.Popen(
            command, env=environment, stdout=(folder / f"{name}.log").open("wb"), stderr=subprocess.STDOUT
        )

    with ExitStack() as running:

        def run(name: str, *arguments: str) -> None:
            process = start(name, *arguments)
            running.callback(process.wait)
            running.callback(process.terminate)

        run("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = announced(folder / "master.log")
        for host in WORKERS:
            options = ("--host", host, "--port", "0", "--webui-port", "0", "--cores", str(TASKS), "--memory", "1g")
            run(host, "worker.Worker", *options, "--work-dir", str(folder / host), url)
        yield url


def announced(log: Path) -> str:
    """The URL that the master names when it is up."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / POLL_S)):
        for word in log.read_text().split():
            if word.startswith("spark://"):
                return word
        pause.wait(POLL_S)
    raise SystemExit(f"no master came up: {log.read_text()[-2000:]}")


def session(url: str) -> Any:
    from executors_driver import with_small_executors
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(url).appName("speculation")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return with_small_executors(builder).getOrCreate()


def main(address_file: str, topic: str, folder: str, winner: str) -> None:
    import speculating_driver

    import raylog.spark
    from raylog.spark import writing
    from raylog.spark.java import use_java

    address = pickle.loads(Path(address_file).read_bytes())
    use_java()
    with standalone(Path(folder)) as url:
        spark = session(url)
        racing = partial(speculating_driver.RacingTasks, folder=folder, winner=int(winner))
        writing.WriteTasks = racing  # type: ignore[misc, assignment]
        rows = spark.range(0, ROWS, 1, TASKS).selectExpr("cast(id as string) value")
        summary = raylog.spark.write(rows, topic, cluster=address)
        read = raylog.spark.read(spark, topic, cluster=address, isolation_level="read_committed", columns=["value"])
        values = [bytes(row.value) for row in read.collect()]
        print(json.dumps({**asdict(summary), "read": len(values), "different": len(set(values))}), flush=True)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
