"""Which batches of a fetch's answer belong to aborted transactions: what a reader of committed
records leaves out [KIP-98].

A leader names with the records the transactions that were aborted in them: (producer id, first
offset). Its producer's transactional batches from that offset on are void until the producer's next
abort marker; then the same producer may have committed ones, and the next entry of the list opens
again. Batches have to be shown in the order of the log, markers too.

Holds the state of one answer; knows nothing of fetches.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.records.batch import BatchView
from raylog.records.control import Marker, read_control_batch

AbortedTransaction = tuple[int, int]
"""Producer id, first offset."""


class AbortedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._open: set[int] = set()

    def hides(self, view: BatchView) -> bool:
        """Whether the next batch belongs to an aborted transaction. Raises CorruptBatch for a
        marker that is none.
        """
        while self._to_come and self._to_come[-1][1] <= view.last_offset:
            self._open.add(self._to_come.pop()[0])
        if view.producer_id not in self._open:
            return False
        if view.is_control:
            if read_control_batch(view).marker is Marker.ABORT:
                self._open.discard(view.producer_id)
            return False
        return view.is_transactional
