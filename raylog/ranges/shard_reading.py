"""Reads one worker's shard step by step, independently of how the records were batched.

Each step returns the rows of the next offsets as a table. The ranges of a shard are read one after
the other (``reading``), and each is read ahead. Rows belong to a step by their offsets, not by
their number, so gaps from compaction make steps shorter and never shift later ones.

After a reader has raised, it cannot be used again. To retry, make another one from the same
position.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from raylog.client.links.address import ClusterAddress
from raylog.ranges.reading import OnLoss, ReadOptions, read_range
from raylog.ranges.sharding import Shard
from raylog.ranges.splitting import OffsetRange
from raylog.records.arrow_columns import schema_of

_OFFSET = "offset"


class ShardReader:
    """``shard``: the ranges to read. ``options``: its columns are those of the tables."""

    def __init__(self, address: ClusterAddress, shard: Shard, options: ReadOptions, on_loss: OnLoss) -> None:
        self._address = address
        self._shard = list(shard)
        self._columns = options.columns
        read = options.columns if _OFFSET in options.columns else (*options.columns, _OFFSET)
        self._options = replace(options, columns=read)
        self._schema = schema_of(read)
        self._on_loss = on_loss
        self._open: OffsetRange | None = None
        self._source: Generator[Any, None, None] | None = None
        self._waiting: Any = None  # rows that were read and not returned yet

    def table(self, wanted: Shard) -> Any:
        """Return the rows of the next offsets of the shard, as a ``pyarrow.Table``."""
        rows = [batch for each in wanted for batch in self._rows(each)]
        table = pa.Table.from_batches(rows, self._schema)
        return table if len(self._columns) == len(self._schema) else table.select(list(self._columns))

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = self._open = self._waiting = None

    def _rows(self, wanted: OffsetRange) -> Iterator[Any]:
        self._turn_to(wanted)
        while (batch := self._next()) is not None:
            offsets = batch.column(_OFFSET)
            count = bisect_left(range(batch.num_rows), wanted.end, key=lambda at: offsets[at].as_py())
            if count:
                yield batch.slice(0, count)
            if count < batch.num_rows:
                self._waiting = batch.slice(count)
                return
            if offsets[-1].as_py() == wanted.end - 1:  # the records after it may not exist yet
                return

    def _next(self) -> Any:
        batch, self._waiting = self._waiting, None
        assert self._source is not None, "turned to a range"
        return next(self._source, None) if batch is None else batch

    def _turn_to(self, wanted: OffsetRange) -> None:
        """Open the range of the shard that holds these offsets."""
        while self._open is None or not (
            self._open.key == wanted.key and self._open.start <= wanted.start < self._open.end
        ):
            self.close()
            assert self._shard, f"{wanted} is not in the shard"
            self._open = self._shard.pop(0)
            self._source = read_range(self._address, self._open, self._options, on_loss=self._on_loss)
