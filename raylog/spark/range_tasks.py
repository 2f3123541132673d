"""Runs in a task of a batch read: turns rows that describe ranges into Arrow batches of records.

Bytes travel as Arrow strings, which have the same layout in memory as Arrow binaries: the JVM reads
a string in place, but copies a binary through a Java array (a twentieth of the CPU time of reading
1 KB values). ``raylog.spark.reading`` casts them back, byte for byte. They need not be UTF-8, and
nothing checks it.

Imported by Spark's Python workers, so it imports no pyspark and little else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from raylog.client.links.address import ClusterAddress
from raylog.ranges.reading import ReadOptions, read_range
from raylog.ranges.splitting import OffsetRange
from raylog.spark.lasting_workers import make_lasting
from raylog.spark.loss_reports import on_loss

ARROW_NAMES = {"timestampType": "timestamp_type"}
"""Columns of Spark's kafka source that have other names here."""

_SPARK_NAMES = {arrow: name for name, arrow in ARROW_NAMES.items()}
_MICROSECONDS = pa.timestamp("us", tz="UTC")


def encoded(part: OffsetRange) -> str:
    """Return a range as the text for a task. It holds no secret: Spark shows it in its plans."""
    return json.dumps({name: value for name, value in asdict(part).items() if name != "hosts"})


@dataclass(frozen=True, slots=True)
class RangeTasks:
    """What ``mapInArrow`` calls in a task."""

    address: ClusterAddress
    options: ReadOptions
    losses: Any = None  # an accumulator, if losses are not errors

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        try:
            for row in rows:
                for text in row.column(0).to_pylist():
                    part = OffsetRange(**json.loads(text))
                    for batch in read_range(self.address, part, self.options, on_loss=on_loss(self.losses)):
                        yield as_spark_takes_it(batch)
        finally:
            make_lasting()


def as_spark_takes_it(batch: Any) -> Any:
    """Return the records with Spark's column names, microseconds for milliseconds, and strings for
    bytes.
    """
    return pa.RecordBatch.from_arrays(
        [_as_spark_takes_it(column) for column in batch.columns],
        [_SPARK_NAMES.get(name, name) for name in batch.schema.names],
    )


def _as_spark_takes_it(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return column.cast(_MICROSECONDS)
    return column.view(pa.string()) if pa.types.is_binary(column.type) else column
