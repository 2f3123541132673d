"""The driver program that ``killed_streams`` kills: Spark on a thread or two, a stream from one topic to another.

    python killed_driver.py ADDRESS FOLDER A B THREADS DELIVERY

DELIVERY is ``at-least-once``, for a stream of counts per key, or ``exactly-once``, for a stream of copies.

ADDRESS is a file with a pickled ClusterAddress; FOLDER holds the checkpoint, and files by which the killer and the program speak:

    armed          written by the killer: the point at which the program stops ("mid-task", "after the write", "before the transaction's
                   commit", "before the commit")
    row-PID        a task has handed two rows of a batch over to be written, and stops; one is on its way, Spark keeps the last
    end-PID        a task has handed all its rows over, whose number is the text, and one more, which Spark keeps; it stops before it ends
    batch          a batch is written and its transaction or Spark has not committed it, and the driver stops
    finish         written by the killer: read what there is, compare, and end

What it prints are lines of JSON: its pids, then what it has written whenever that changes, at last the comparison of B, the table that
it is or its records, with a batch computation over A.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

STOP_ROW = 2
WIDTH = 192
"""Of a value: more than the buffers between Spark and its Python workers, so that no row waits in one for the next."""


class Gate:
    """In a task, between the counts and the write of them."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __call__(self, batches: Any) -> Iterator[Any]:
        armed = self.folder / "armed"
        point = armed.read_text() if armed.exists() else ""
        rows = 0
        for batch in batches:
            for at in range(batch.num_rows):
                yield pa.RecordBatch.from_pylist(
                    batch.slice(at, 1).to_pylist(), batch.schema
                )  # without what it is a slice of
                rows += 1
                if point == "mid-task" and rows == STOP_ROW:
                    self.stop("row", rows)
        if point == "after the write":
            if rows:
                yield batch.slice(batch.num_rows - 1)
            self.stop("end", rows)

    def stop(self, name: str, rows: int) -> None:
        say(self.folder / f"{name}-{os.getpid()}", str(rows))
        threading.Event().wait()


class CommitGate(logging.Handler):
    """In the driver, when a batch is written and Spark has not heard of it, or its transaction was not committed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        if "is written" in record.msg:
            self.stop_at("before the commit")

    def stop_at(self, point: str) -> None:
        armed = self.folder / "armed"
        if armed.exists() and armed.read_text() == point:
            say(self.folder / "batch", point)
            threading.Event().wait()

    def gate_transactions(self) -> None:
        from raylog.client.transactions.shared import SharedTransactions

        committing = SharedTransactions.commit

        def commit(transactions: SharedTransactions, winners: Any, label: str = "") -> None:
            self.stop_at("before the transaction's commit")
            committing(transactions, winners, label)

        SharedTransactions.commit = commit  # type: ignore[method-assign]


def say(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text)
    unfinished.rename(path)


def note(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def session(threads: int) -> Any:
    from pyspark.sql import SparkSession

    from raylog.spark.java import OPTIONS, use_java
    from raylog.spark.session import QUIET_LOGGING

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the workers' daemon is
    builder = SparkSession.builder.master(f"local[{threads}, 3]").appName("killed")  # a task that is killed runs again
    settings = {
        "spark.driver.extraJavaOptions": f"{OPTIONS} -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={QUIET_LOGGING}",
        "spark.driver.memory": "512m",
        "spark.python.daemon.module": "preloaded_daemon",
        "spark.buffer.size": "64",
        "spark.sql.execution.pandas.udf.buffer.size": "64",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # which a batch or two would not repay
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": str(threads),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def counts(records: Any) -> Any:
    """For each key how many records there are and the sum of their values, as a text of ``WIDTH`` bytes."""
    return (
        records.selectExpr("key", "cast(cast(value as string) as bigint) number")
        .groupBy("key")
        .agg({"number": "sum", "*": "count"})
        .selectExpr("key", f"rpad(concat(`count(1)`, ' records, sum ', `sum(number)`), {WIDTH}, '.') value")
    )


def copies(records: Any) -> Any:
    """Each record, its value padded to ``WIDTH`` bytes."""
    return records.selectExpr("key", f"rpad(cast(value as string), {WIDTH}, '.') value")


def main(address_file: str, folder_name: str, a: str, b: str, threads: str, delivery: str) -> None:
    import raylog.spark

    is_once = delivery == "exactly-once"

    folder = Path(folder_name)
    address = pickle.loads(Path(address_file).read_bytes())
    spark = session(int(threads))
    note(driver=os.getpid(), jvm=spark.sparkContext._gateway.proc.pid)
    logger = logging.getLogger("raylog.spark")
    logger.setLevel(logging.INFO)
    logger.addHandler(gate := CommitGate(folder))
    gate.gate_transactions()
    checkpoint = str(folder / "checkpoint")
    stream = raylog.spark.read_stream(spark, a, checkpoint=checkpoint, cluster=address, starting_offsets="earliest")
    rows = copies(stream).repartition(int(threads)) if is_once else counts(stream)
    query = raylog.spark.write_stream(
        rows.mapInArrow(Gate(folder_name), rows.schema), b, cluster=address, checkpoint=checkpoint,
        output_mode="append" if is_once else "update", exactly_once=is_once,
    )  # fmt: skip
    said = None
    while query.isActive and not (folder / "finish").exists():
        summary = raylog.spark.write_stream_summary(query)
        if summary != said:
            note(**asdict(summary))
            said = summary
        query.awaitTermination(0.05)
    query.stop()
    if query.exception() is not None:
        note(failed=str(query.exception()))
        return
    if is_once:
        read = partial(raylog.spark.read, spark, cluster=address, columns=["key", "value"])
        found, expected = (
            sorted(bytes(row.value).rstrip(b".") for row in frame.collect())
            for frame in (read(b, isolation_level="read_committed"), read(a))
        )
        note(is_exact=found == expected, records=len(expected))
        spark.stop()
        return
    found, expected = (
        {
            row.key.decode(): str(row.value if isinstance(row.value, str) else row.value.decode())
            for row in frame.collect()
        }
        for frame in (
            raylog.spark.table(spark, b, cluster=address).select("key", "value"),
            counts(raylog.spark.read(spark, a, cluster=address, columns=["key", "value"])),
        )
    )
    note(
        is_exact=found == expected,
        keys=len(expected),
        differ=sorted(key for key in expected if found.get(key) != expected[key]),
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
