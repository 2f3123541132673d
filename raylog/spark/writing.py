"""Writes DataFrames as records of topics, with the column names of Spark's kafka sink.

Each task sends its Arrow batches with a producer of raylog's own (``raylog.ranges.sending``).

Exactly once: all tasks write in one transaction, which the driver begins and commits
(``raylog.client.transactions.shared``). Spark gives the driver one result for each task, that of the
attempt that counts; the driver commits what these attempts wrote, and all that other attempts wrote
is aborted. If the write fails, or its driver dies, everything is.

At least once (``exactly_once=False``): a task that fails after it has sent something is run again by
Spark and sends it again. ``WriteSummary.reruns`` counts this. In a topic that is read as a table,
duplicated rows with keys make no difference if one write has no key twice.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from raylog.client.transactions.shared import SharedTransactions
from raylog.errors import ConfigError, RaylogError
from raylog.placement.ray_connection import CONNECT_TIMEOUT_S
from raylog.ranges.addresses import address_of
from raylog.ranges.given_values import flag
from raylog.ranges.sending import checked_columns, checked_config, checked_target, checked_transactions
from raylog.spark.installed import require_frame
from raylog.spark.write_tasks import RESULT, WriteTasks

logger = logging.getLogger("raylog.spark")


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """``records`` of the successful attempts; ``reruns``: how many earlier attempts there were.
    Their records are aborted; with ``exactly_once=False`` they may be duplicates.
    """

    records: int
    tasks: int
    reruns: int


def write(
    df: Any,
    topic: str | None = None,
    *,
    cluster: Any = None,
    exactly_once: bool = True,
    timeout_s: float = CONNECT_TIMEOUT_S,
    **producer_config: Any,
) -> WriteSummary:
    """Write the rows of a DataFrame in one transaction, and wait until readers see them.

    Readers with ``isolation_level="read_committed"`` get every row once, or none if the write
    failed. With ``exactly_once=False`` rows are written at least once, and readers get them at once.

    Columns: ``value``; and optionally ``key``, ``headers``, ``partition``, ``timestamp``, and
    ``topic`` if none is named. ``cluster`` and ``timeout_s`` as in ``read``. ``producer_config``:
    Kafka's options of a producer (``compression_type="lz4"``). ConfigError for unsuitable columns
    and options, UnknownTopicOrPartitionError for a missing topic, all before anything is written;
    ClientTimeoutError if nobody knows whether the transaction was committed.
    """
    require_frame(df, "write")
    if df.isStreaming:
        raise ConfigError("write takes a DataFrame of a batch: use raylog.spark.write_stream for this one")
    checked_config(producer_config, "cluster", "exactly_once", "timeout_s")
    exactly_once = flag("exactly_once", exactly_once)
    checked_transactions(producer_config, exactly_once=exactly_once)
    check_schema(df, topic)
    address = address_of(cluster, timeout_s)
    checked_target(address, topic)
    tasks = WriteTasks(address, topic, producer_config)
    if not exactly_once:
        return written_at_least_once(df, tasks)
    with SharedTransactions(address, f"raylog-write-{uuid.uuid4()}", producer_config) as transactions:
        return written_once(df, tasks, transactions)


def check_schema(df: Any, topic: str | None) -> None:
    """Raise ConfigError for a DataFrame whose rows can't be records."""
    from pyspark.sql.pandas.types import to_arrow_schema

    checked_columns(to_arrow_schema(df.schema), topic)


def written_once(df: Any, tasks: WriteTasks, transactions: SharedTransactions, label: str = "") -> WriteSummary:
    """Run the tasks of a write on a DataFrame of one batch in a transaction, and commit it with the
    label. After an error the caller closes ``transactions``.
    """
    summary, winners = _run(df, replace(tasks, ticket=transactions.begin()))
    transactions.commit(winners, label)
    try:
        transactions.settle()
    except RaylogError as error:
        logger.warning("the write to %s is committed, and readers may not see it yet: %s", tasks.target, error)
    if summary.reruns:
        logger.info(
            "%d tasks of the write to %s were run again: the records that they had sent are aborted",
            summary.reruns, tasks.target,
        )  # fmt: skip
    return summary


def written_at_least_once(df: Any, tasks: WriteTasks) -> WriteSummary:
    """Run the tasks of a write on a DataFrame of one batch."""
    summary, _ = _run(df, tasks)
    if summary.reruns:
        logger.warning(
            "%d tasks of the write to %s were run again: the records that they had sent are duplicated",
            summary.reruns, tasks.target,
        )  # fmt: skip
    return summary


def _run(df: Any, tasks: WriteTasks) -> tuple[WriteSummary, Sequence[int]]:
    """Return the summary, and the producers of the attempts that count: Spark has one row for each task."""
    rows = df.mapInArrow(tasks, RESULT).collect()
    summary = WriteSummary(sum(row.records for row in rows), len(rows), sum(row.attempt for row in rows))
    return summary, [row.producer_id for row in rows if row.producer_id is not None]
