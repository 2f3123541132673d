"""Finds out, before a job starts, whether the Python of Spark's workers on this machine has raylog.

A session that nobody told otherwise starts plain ``python3``, which may be another interpreter than
the driver's. Without this check the first job fails deep in the JVM, with "No module named
'raylog'". Executors on other machines cannot be asked without a job, so only ``local`` masters are
looked at.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import lru_cache
from typing import Any

from raylog.errors import ClusterError

_TRY_TIMEOUT_S = 60
_TRY = "import sys, raylog, pyarrow; print('%d.%d' % sys.version_info[:2])"


def check_workers(spark: Any) -> None:
    """ClusterError if workers of this session run here, in a Python that does not suit it."""
    context = spark.sparkContext
    if context.master.startswith("local"):
        check_python(context.pythonExec)


@lru_cache(maxsize=16)
def check_python(name: str) -> None:
    """ClusterError if that interpreter, a path or a name on PATH, has no raylog or is of another
    version than this one.
    """
    path = shutil.which(name)
    if path == sys.executable:
        return
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    tried = None if path is None else _tried(path)
    if tried is None:
        trouble = "does not exist"
    elif tried.returncode:
        trouble = (tried.stderr.strip().splitlines() or ["it ended with an error"])[-1]
    elif tried.stdout.strip() != here:
        trouble = f"it is Python {tried.stdout.strip()}, and this one is {here}"
    else:
        return
    raise ClusterError(
        f"the workers of this Spark session run {path or name}, which cannot run raylog's tasks ({trouble}): "
        f"set PYSPARK_PYTHON={sys.executable} before the session starts"
    )


def _tried(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([path, "-c", _TRY], capture_output=True, text=True, timeout=_TRY_TIMEOUT_S)
