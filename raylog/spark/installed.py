"""Whether what Spark needs is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from raylog.errors import ClusterError

SUITABLE_JAVAS = (8, 11, 17)
EXTRA = 'pip install "raylog[spark]"'


def require_pyspark(spark: Any = None) -> None:
    """ClusterError without pyspark 3.5, or for a session whose Java can't do what is done here."""
    if find_spec("pyspark") is None:
        raise ClusterError(f"pyspark is not installed: {EXTRA}")
    import pyspark

    if not pyspark.__version__.startswith("3.5."):
        raise ClusterError(f"pyspark {pyspark.__version__} is not supported, 3.5 is: {EXTRA}")
    if spark is not None:
        told = str(spark._jvm.java.lang.System.getProperty("java.specification.version")).removeprefix("1.")
        if told.isdecimal() and int(told) not in SUITABLE_JAVAS:
            raise ClusterError(
                f"this Spark session runs on Java {told}, where Spark {pyspark.__version__} can't read or write Arrow: "
                "start it with Java 17 (JAVA_HOME says which)"
            )
