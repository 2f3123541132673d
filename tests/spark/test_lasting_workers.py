"""What Spark does in a Python worker between two tasks finds nothing of Spark's own to read again, and little to collect."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from zipimport import zipimporter

import pytest

from raylog.spark import lasting_workers

pytestmark = pytest.mark.spark


@pytest.fixture
def importers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The paths, by archive, of importers in the cache, Spark's own among them, as they are in a worker."""
    paths = {}
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    monkeypatch.setattr(lasting_workers, "_frozen_in", None)
    for name in ("pyspark.zip", "py4j-0.10.9.7-src.zip", "spark-core_2.12-3.5.7.jar", "users.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("inside/of_it.py", "")
        for path in (str(tmp_path / name), str(tmp_path / name / "inside")):
            sys.path_importer_cache[path] = zipimporter(path)
            paths[path] = name
    yield paths
    gc.unfreeze()


def left(importers: dict[str, str]) -> set[str]:
    return {name for path, name in importers.items() if path in sys.path_importer_cache}


def test_a_worker_reads_none_of_sparks_own_archives_again(
    importers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.worker", types.ModuleType("pyspark.worker"))
    assert len(left(importers)) == 4
    lasting_workers.make_lasting()
    assert left(importers) == {"users.zip"}
    assert gc.get_freeze_count() > 1000


def test_nothing_is_changed_outside_of_a_python_worker(
    importers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pyspark.worker", raising=False)
    frozen = gc.get_freeze_count()
    lasting_workers.make_lasting()
    assert len(left(importers)) == 4 and gc.get_freeze_count() == frozen


PROGRAM = """
import resource, sys, types
from raylog.spark.lasting_workers import reuse_memory
if sys.argv[1] == "worker":
    sys.modules["pyspark.worker"] = types.ModuleType("pyspark.worker")
reuse_memory()
def work():
    for _ in range(200):
        batches = [b"x" * 1_000_000 for _ in range(5)]
        del batches
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(process: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, process], capture_output=True, text=True, check=True, timeout=180
    )
    return int(run.stdout)


def test_batches_that_come_and_go_cost_a_worker_no_page_faults() -> None:
    assert page_faults("worker") < 2_000 < 100_000 < page_faults("driver")
