"""Spark's own daemon, which forks its Python workers, with what they import anyway imported once and not in each of them."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark import daemon
from pyspark.sql.pandas import serializers  # noqa: F401

import raylog.spark.stream_tasks
import raylog.spark.write_tasks  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
