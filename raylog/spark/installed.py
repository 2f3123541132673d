"""Checks that what Spark needs is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from raylog.errors import ClusterError, ConfigError

SUITABLE_JAVAS = (8, 11, 17)
EXTRA = 'pip install "raylog[spark]"'


def require_pyspark() -> None:
    """ClusterError without pyspark 3.5."""
    if find_spec("pyspark") is None:
        raise ClusterError(f"pyspark is not installed: {EXTRA}")
    import pyspark

    if not pyspark.__version__.startswith("3.5."):
        raise ClusterError(f"pyspark {pyspark.__version__} is not supported, 3.5 is: {EXTRA}")


def require_session(spark: Any) -> None:
    """Raise ConfigError if this is not a running Spark session; ClusterError as ``require_pyspark``
    and ``check_java``.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        raise ConfigError(
            f"spark={spark!r:.80} is not a Spark session: give what raylog.spark.init() or SparkSession.builder.getOrCreate() returned"
        )
    _require_running(spark, "spark is a session that")
    check_java(spark._jvm)


def require_frame(df: Any, function: str) -> None:
    """Raise ConfigError if this is not a DataFrame of a running Spark session; ClusterError as
    ``require_session``.

    ``function``: the name of the function that was called.
    """
    require_pyspark()
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        kind = type(df)
        raise ConfigError(f"df is a {kind.__module__}.{kind.__qualname__}: {function} takes a Spark DataFrame")
    _require_running(df.sparkSession, "the session of df")
    check_java(df.sparkSession._jvm)


def _require_running(spark: Any, what: str) -> None:
    if spark.sparkContext._jsc is None:
        raise ConfigError(
            f"{what} was stopped: make another one with raylog.spark.init() or SparkSession.builder.getOrCreate()"
        )


def check_java(jvm: Any) -> None:
    """Raise ClusterError if the session's JVM has an unsuitable Java."""
    import pyspark

    told = str(jvm.java.lang.System.getProperty("java.specification.version")).removeprefix("1.")
    if told.isdecimal() and int(told) not in SUITABLE_JAVAS:
        raise ClusterError(
            f"this Spark session runs on Java {told}, where Spark {pyspark.__version__} can't read or write Arrow: "
            "start it with Java 17 (set JAVA_HOME)"
        )
