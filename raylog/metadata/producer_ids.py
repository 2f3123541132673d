"""Producer ids, handed out in blocks of 1,000 that are committed before their first id is.

Owns the block of this term; a new active controller starts a new one, so that no id is ever given
twice. Processes that coordinate transactions get whole blocks. The caller holds each answer until
everything decided so far, the block included, is committed.

Invariant: 0 <= next <= end <= latest.next_producer_id.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from raylog.metadata.ledger import Ledger
from raylog.metadata.records import ProducerIdsAllocated
from raylog.metadata.requests import AllocateProducerIds, InitProducerId, ProducerIdAssigned, ProducerIdsBlock

BLOCK_SIZE = 1_000
PRODUCER_IDS_END = 2**63 - 1


class ProducerIds:
    __slots__ = ("_end", "_ledger", "_next")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next = self._end = 0

    def answer(self, request: InitProducerId | AllocateProducerIds) -> ProducerIdAssigned | ProducerIdsBlock:
        return self.next() if isinstance(request, InitProducerId) else self.block()

    def next(self) -> ProducerIdAssigned:
        """A producer id of its own, epoch 0."""
        if self._next == self._end:
            block = self.block()
            if block.error:
                return ProducerIdAssigned(block.error)
            self._next, self._end = block.first, block.first + block.count
        self._next += 1
        return ProducerIdAssigned(ErrorCode.none, self._next - 1, 0)

    def block(self) -> ProducerIdsBlock:
        """A block of its own."""
        first = self._ledger.latest.next_producer_id
        if first + BLOCK_SIZE > PRODUCER_IDS_END:
            return ProducerIdsBlock(ErrorCode.unknown_server_error)
        self._ledger.add(ProducerIdsAllocated(first + BLOCK_SIZE))
        return ProducerIdsBlock(ErrorCode.none, first, BLOCK_SIZE)
