"""Runs in a task of a stream: turns lines of the ledger's files into Arrow batches of records.

Imported by Spark's Python workers, so it imports no pyspark and little else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.links.address import ClusterAddress
from raylog.errors import error_for
from raylog.ranges.ledger import range_of
from raylog.ranges.reading import OnLoss, ReadOptions, read_range
from raylog.spark.lasting_workers import make_lasting
from raylog.spark.loss_reports import on_loss
from raylog.spark.range_tasks import as_spark_takes_it


@dataclass(frozen=True, slots=True)
class StreamTasks:
    """What ``mapInArrow`` calls in a task. An entry with losses fails the query, or is reported and
    read.
    """

    address: ClusterAddress
    options: ReadOptions
    losses: Any = None  # an accumulator, if losses are not errors

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        tell = on_loss(self.losses)
        try:
            for row in rows:
                for text in "\n".join(row.column(0).to_pylist()).splitlines():
                    line = json.loads(text)
                    self._check(line["losses"], tell)
                    part = range_of(line)
                    if len(part):
                        for batch in read_range(self.address, part, self.options, on_loss=tell):
                            yield as_spark_takes_it(batch)
        finally:
            make_lasting()

    def _check(self, losses: list[str], tell: OnLoss) -> None:
        if losses and self.options.fail_on_data_loss:
            raise error_for(
                ErrorCode.offset_out_of_range,
                f"{'; '.join(losses)}: start the query again with fail_on_data_loss=False to continue with the rest",
            )
        for loss in losses:
            tell(loss)
