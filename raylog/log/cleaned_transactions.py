"""Transactions as a cleaner meets them: which batches were aborted, and when the marker that ends a
transaction may go.

Kafka's ``CleanedTransactionMetadata``, fed with the batches of a log in order. A data batch of an
aborted transaction is discarded at once. A marker (a control batch) may be discarded when no batch
of its transaction is left in front of it: the cleaning that finds it so sets the batch's delete
horizon, and one after that takes it.

Which transactions were aborted stands in the markers alone, behind the data: ``find_aborted``
collects them in a walk of its own over the headers, needed only where a log has transactional
batches at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raylog.records.batch import BatchView
from raylog.records.control import Marker, read_control_batch


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """All transactional batches of the producer from ``first_offset`` up to the marker at
    ``marker_offset``.
    """

    producer_id: int
    first_offset: int
    marker_offset: int


class AbortedTransactionSearch:
    """``see`` every batch of a log in order; ``found`` are the transactions that were aborted, by
    first offset.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self.found: list[AbortedTransaction] = []

    def see(self, batch: BatchView) -> None:
        if batch.is_control:
            first_offset = self._open.pop(batch.producer_id, None)
            if first_offset is not None and marker_of(batch) is Marker.ABORT:
                self.found.append(AbortedTransaction(batch.producer_id, first_offset, batch.base_offset))
        elif batch.is_transactional:
            self._open.setdefault(batch.producer_id, batch.base_offset)


def marker_of(batch: BatchView) -> Marker | None:
    """None for a control batch that a cleaner has emptied, or of a type that is not known."""
    return read_control_batch(batch).marker if batch.record_count else None


class CleanedTransactions:
    """One pass over a log, in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(aborted, key=lambda each: -each.first_offset):
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)  # the next one last
        self._is_left: dict[int, bool] = {}  # producer id → a batch of its transaction was kept

    def discards(self, batch: BatchView) -> bool:
        """Whether the batch's records may go because of the transaction that it belongs to, or
        ends.

        Of a control batch it says that nothing is left of its transaction.
        """
        if batch.is_control:
            return not self._is_left.pop(batch.producer_id, False)
        if not batch.is_transactional:
            return False
        # An aborted one leaves its batch's empty shell at most: the marker stays as long as that is
        # there.
        self._is_left[batch.producer_id] = True
        waiting = self._aborted.get(batch.producer_id, [])
        while waiting and waiting[-1].marker_offset < batch.base_offset:
            waiting.pop()
        return bool(waiting) and waiting[-1].first_offset <= batch.base_offset
