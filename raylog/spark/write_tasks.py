"""Runs in a task of a write: sends Arrow batches of rows and yields one row that says what it sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raylog.client.links.address import ClusterAddress
from raylog.client.transactions.shared import TransactionTicket
from raylog.ranges.sending import send_tables
from raylog.spark.lasting_workers import make_lasting, reuse_memory
from raylog.spark.write_fence import WriteTurn

RESULT = "attempt int, records bigint, producer_id bigint"


@dataclass(frozen=True, slots=True)
class WriteTasks:
    """Called by ``mapInArrow`` in a task. ``ticket``: of the transaction to write in. ``turn``: that
    of the task's batch, in a stream that is written at least once.
    """

    address: ClusterAddress
    topic: str | None
    config: Mapping[str, Any]
    ticket: TransactionTicket | None = None
    turn: WriteTurn | None = None

    @property
    def target(self) -> str:
        """Where the rows go, in words."""
        return self.topic or "several topics"

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        reuse_memory()
        context: Any = TaskContext.get()
        attempt, task = (context.attemptNumber(), context.partitionId()) if context is not None else (0, 0)
        try:
            with nullcontext(lambda: None) if self.turn is None else self.turn.taken(task) as check:
                tables = _checked(batches, check)
                sent = send_tables(self.address, tables, self.topic, self.config, self.ticket)
        finally:
            make_lasting()
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([attempt], pa.int32()),
                pa.array([sent.records], pa.int64()),
                pa.array([sent.producer_id], pa.int64()),
            ],
            ["attempt", "records", "producer_id"],
        )


def _checked(batches: Iterable[Any], check: Callable[[], None]) -> Iterator[Any]:
    for batch in batches:
        check()
        yield batch
