"""What runs in a task of a stream: lines of the ledger's files in, Arrow batches of records out.

Imported by Spark's Python workers, so it imports no pyspark and little else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.address import ClusterAddress
from raylog.errors import error_for
from raylog.ranges.ledger import range_of
from raylog.ranges.reading import ReadOptions, read_range, report_loss
from raylog.spark.lasting_workers import make_lasting
from raylog.spark.range_tasks import as_spark_takes_it


@dataclass(frozen=True, slots=True)
class StreamTasks:
    """What ``mapInArrow`` calls in a task. An entry that names losses fails the query, or is reported and read."""

    address: ClusterAddress
    options: ReadOptions

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        try:
            for row in rows:
                for text in row.column(0).to_pylist():
                    line = json.loads(text)
                    self._tell(line["losses"])
                    part = range_of(line)
                    if len(part):
                        for batch in read_range(self.address, part, self.options):
                            yield as_spark_takes_it(batch)
        finally:
            make_lasting()

    def _tell(self, losses: list[str]) -> None:
        if losses and self.options.fail_on_data_loss:
            raise error_for(
                ErrorCode.offset_out_of_range,
                f"{'; '.join(losses)}: start the query again with fail_on_data_loss=False to go on with what is left",
            )
        for loss in losses:
            report_loss(loss)
