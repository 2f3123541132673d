"""What runs in a task of a write: Arrow batches of rows in, one row that says how many were sent out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raylog.client.address import ClusterAddress
from raylog.ranges.sending import send_tables

RESULT = "attempt int, records bigint"


@dataclass(frozen=True, slots=True)
class WriteTasks:
    """What ``mapInArrow`` calls in a task."""

    address: ClusterAddress
    topic: str | None
    config: Mapping[str, Any]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        count = send_tables(self.address, batches, self.topic, self.config)
        attempt = context.attemptNumber() if context is not None else 0
        yield pa.RecordBatch.from_arrays(
            [pa.array([attempt], pa.int32()), pa.array([count], pa.int64())], ["attempt", "records"]
        )
