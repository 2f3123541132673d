"""Whether what Spark needs is installed."""

from __future__ import annotations

from importlib.util import find_spec

from raylog.errors import ClusterError

EXTRA = 'pip install "raylog[spark]"'


def require_pyspark() -> None:
    """ClusterError without pyspark 3.5."""
    if find_spec("pyspark") is None:
        raise ClusterError(f"pyspark is not installed: {EXTRA}")
    import pyspark

    if not pyspark.__version__.startswith("3.5."):
        raise ClusterError(f"pyspark {pyspark.__version__} is not supported, 3.5 is: {EXTRA}")
