"""One Spark session on two threads for all tests that need one, and Kafka in the test's process for it to read."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import benchmark_module
from ray_clusters import kept_environment

import raylog.testing
from raylog.placement.ray_start import started
from raylog.testing.kafka import Kafka


@dataclass(frozen=True)
class Connector:
    """``missing``: why there are no jars."""

    jars: list[str]
    missing: str | None = None


@pytest.fixture(scope="session")
def connector() -> Connector:
    """The jars of Spark's own kafka source, or why there are none: one session has them for all tests."""
    maven = benchmark_module("maven")  # which the next one imports
    module = benchmark_module("spark_connector")
    try:
        return Connector([str(jar) for jar in module.jars()])
    except maven.PeerError as error:
        return Connector([], str(error))


@pytest.fixture(scope="session")
def spark(connector: Connector) -> Iterator[Any]:
    """A plain PySpark session, not RayDP's: what reads and writes does not depend on it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from raylog.spark.java import OPTIONS, use_java
    from raylog.spark.session import QUIET_LOGGING, _end_jvm

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2, 2]").appName("tests")  # a task that failed runs once more
    settings = {
        "spark.driver.extraJavaOptions": f"{OPTIONS} -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={QUIET_LOGGING}",
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(connector.jars),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
    assert SparkContext._active_spark_context is None
    _end_jvm()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker() as found:
        yield found


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets live below it."""
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A small Ray of the module's own."""
    import ray

    folder = Path(tempfile.mkdtemp(prefix="rl"))
    with kept_environment("RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_DATA_DISABLE_PROGRESS_BARS"):
        os.environ["RAY_TMPDIR"] = str(folder)
        os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        settings = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False, "log_to_driver": False}
        started(lambda: ray.init("local", logging_level=logging.ERROR, **settings))
        yield ray
        ray.shutdown()
        gc.collect()
    shutil.rmtree(folder, ignore_errors=True)
