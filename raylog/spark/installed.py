"""Checks that what Spark needs is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from packaging.version import Version

from raylog.errors import ClusterError, ConfigError
from raylog.spark.spark_private import is_stopped, java_release
from raylog.spark.worker_python import check_workers

SUITABLE_JAVAS = {(3, 5): (8, 11, 17), (4, 0): (17, 21)}
"""The Javas of each PySpark, from that release on. With others its Arrow paths fail, or it does not
start.
"""
RAYDP_PYSPARK_MAX = "3.5.7"  # executors of 3.5.9 hang, and no RayDP takes 4
EXTRA = 'pip install "raylog[spark]"'
RAYDP_EXTRA = 'pip install "raylog[raydp]"'


def require_pyspark() -> None:
    """ClusterError without pyspark 3.5 or later."""
    if find_spec("pyspark") is None:
        raise ClusterError(f"pyspark is not installed: {EXTRA}")
    import pyspark

    if _release() < min(SUITABLE_JAVAS):
        raise ClusterError(f"pyspark {pyspark.__version__} is not supported, 3.5 and later are: {EXTRA}")


def _release() -> tuple[int, int]:
    import pyspark

    version = Version(pyspark.__version__)
    return version.major, version.minor


def require_raydp() -> None:
    """ClusterError without RayDP, or with a PySpark that its executors do not run on."""
    require_pyspark()
    import pyspark

    if find_spec("raydp") is None:
        raise ClusterError(f"raydp is not installed: {RAYDP_EXTRA}")
    if Version(pyspark.__version__) > Version(RAYDP_PYSPARK_MAX):
        raise ClusterError(
            f"the executors of RayDP, which raylog.spark.init() starts, do not come up with pyspark {pyspark.__version__}: "
            f"pip install pyspark=={RAYDP_PYSPARK_MAX}, or start a session of your own"
        )


def suitable_javas() -> tuple[int, ...]:
    """The major numbers of the Javas that the installed PySpark runs on; 3.5's where none is
    installed.
    """
    release = _release() if find_spec("pyspark") is not None else (3, 5)
    return next(javas for since, javas in sorted(SUITABLE_JAVAS.items(), reverse=True) if release >= since)


def require_session(spark: Any) -> None:
    """Raise ConfigError if this is not a running Spark session; ClusterError as
    ``require_pyspark``, ``check_java`` and ``check_workers``.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    _require_classic(spark)
    if not isinstance(spark, SparkSession):
        raise ConfigError(
            f"spark={spark!r:.80} is not a Spark session: give what raylog.spark.init() or SparkSession.builder.getOrCreate() returned"
        )
    _require_running(spark, "spark is a session that")
    check_java(spark)
    check_workers(spark)


def require_frame(df: Any, function: str) -> None:
    """Raise ConfigError if this is not a DataFrame of a running Spark session; ClusterError as
    ``require_session``.

    ``function``: the name of the function that was called.
    """
    require_pyspark()
    from pyspark.sql import DataFrame

    _require_classic(df)
    if not isinstance(df, DataFrame):
        kind = type(df)
        raise ConfigError(f"df is a {kind.__module__}.{kind.__qualname__}: {function} takes a Spark DataFrame")
    _require_running(df.sparkSession, "the session of df")
    check_java(df.sparkSession)
    check_workers(df.sparkSession)


def _require_classic(given: Any) -> None:
    if type(given).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "this is Spark Connect, whose JVM is in another process: start a session without SparkSession.builder.remote"
        )


def _require_running(spark: Any, what: str) -> None:
    if is_stopped(spark):
        raise ConfigError(
            f"{what} was stopped: make another one with raylog.spark.init() or SparkSession.builder.getOrCreate()"
        )


def check_java(spark: Any) -> None:
    """Raise ClusterError if the session's JVM has an unsuitable Java."""
    import pyspark

    told = java_release(spark)
    if told.isdecimal() and int(told) not in suitable_javas():
        raise ClusterError(
            f"this Spark session runs on Java {told}, where Spark {pyspark.__version__} can't read or write Arrow: "
            "start it with Java 17 (set JAVA_HOME)"
        )
