"""The Spark session of the benchmarks: two threads of one JVM, with the jars of Spark's own kafka source and sink; and its processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import psutil
from harness import cpu_seconds
from spark_connector import jars

from raylog.spark.java import OPTIONS, use_java
from raylog.spark.session import QUIET_LOGGING

SETTINGS = {
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.ansi.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
MASTER = "local[2]"


def session(more: Mapping[str, str] | None = None) -> Any:
    """One session for both sides. ``more``: further settings. The JVM chooses its collector, and compiles as it likes."""
    from pyspark.sql import SparkSession

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        **SETTINGS,
        "spark.jars": ",".join(map(str, jars())),
        "spark.driver.extraJavaOptions": f"{OPTIONS.replace('-XX:+UseSerialGC ', '')} -Dlog4j2.configurationFile={QUIET_LOGGING}",
        **(more or {}),
    }
    builder = SparkSession.builder.master(MASTER).appName("benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def processes() -> list[int]:
    """This one, the driver's JVM, and Spark's Python workers."""
    me = psutil.Process()
    jvms = [each for each in me.children() if each.name() == "java"]
    return [me.pid, *(each.pid for jvm in jvms for each in [jvm, *jvm.children(recursive=True)])]


def cpu_used(servers: Iterable[int]) -> dict[int, float]:
    """CPU seconds so far of each of Spark's processes and of these servers; who ends meanwhile, as Spark ends idle workers, is left out."""
    used = {}
    for pid in (*processes(), *servers):
        try:
            used[pid] = cpu_seconds(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return used


def cpu_since(before: Mapping[int, float], servers: Iterable[int]) -> float:
    """CPU seconds since ``cpu_used`` said that; of processes that have started since, all."""
    return sum(now - before.get(pid, 0.0) for pid, now in cpu_used(servers).items())
