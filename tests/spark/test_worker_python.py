"""A session whose workers run a Python without raylog is refused before a job starts, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raylog.errors import ClusterError
from raylog.spark.worker_python import check_python

pytestmark = pytest.mark.spark

PROGRAM = """
from pyspark.sql import SparkSession
import raylog.spark
from raylog.client.links.address import ClusterAddress
from raylog.errors import ClusterError
from raylog.spark.java import OPTIONS, use_java
from raylog.types import Endpoint

use_java()
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", OPTIONS).getOrCreate()
address = ClusterAddress("c", "ns", "id", (Endpoint("127.0.0.1", 1),), b"")
try:
    raylog.spark.read(spark, "t", cluster=address)
except ClusterError as error:
    print(error)
spark.stop()
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing installed; the folder of its programs."""
    home = tmp_path_factory.mktemp("bare") / "env"
    subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, home], check=True)
    return home / "bin"


def test_an_interpreter_that_has_raylog_is_taken() -> None:
    check_python(sys.executable)


@pytest.mark.parametrize("name", ["python3", "/no/such/python"])
def test_an_interpreter_that_cannot_run_tasks_is_named(name: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bare))
    path, trouble = (bare / name, "No module named") if name == "python3" else (name, "does not exist")
    check_python.cache_clear()
    with pytest.raises(ClusterError, match=rf"run {path}, .*{trouble}.*set PYSPARK_PYTHON={sys.executable}"):
        check_python(name)


def test_a_session_whose_python3_is_another_one_is_told_before_a_job(bare: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = os.pathsep.join([str(bare), environment["PATH"]])
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"the workers of this Spark session run {bare / 'python3'}, which cannot run"), (
        done.stdout
    )
