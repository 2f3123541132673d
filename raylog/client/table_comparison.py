"""The replicas of one compacted partition, compared by what a reader of the whole makes of them.

Each replica compacts for itself, when it comes to it. So what has to be the same is the table: of each key the last record, at the
offset where it was written; a key whose last record is a tombstone is not in it, for one replica may have dropped it already. Each
replica's batches are also checked for themselves: CRC, offsets that ascend, leader epochs that never go back and are none of the future.

``TableComparison`` is fed the replicas' portions in any order, each from ``offset_of`` on, and ``finish`` says how they compare. It holds
32 bytes and a number for each key of each replica.

Pure: no loop, no socket. ``raylog.client.verification`` does the fetching.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from raylog.client.replica_comparison import Difference
from raylog.errors import RaylogError
from raylog.records.batch import BatchView, batches
from raylog.records.codec import LightRecord, light_records

_HASH_BYTES = 16


class TableComparison:
    """``start`` and ``end`` bound the offsets; ``difference`` is set by what is wrong with a batch, or by ``finish``."""

    def __init__(self, brokers: Sequence[int], start: int, end: int, *, leader_epoch: int) -> None:
        self.start = start
        self.end = end
        self.difference: Difference | None = None
        self.batches = dict.fromkeys(brokers, 0)
        self.records = dict.fromkeys(brokers, 0)
        self.size_bytes = dict.fromkeys(brokers, 0)
        self._offsets = dict.fromkeys(brokers, start)
        self._epochs = dict.fromkeys(brokers, -1)
        self._leader_epoch = leader_epoch
        self._tables: dict[int, dict[bytes, tuple[int, bytes]]] = {broker: {} for broker in brokers}

    def offset_of(self, broker: int) -> int:
        """Everything below it has been taken in from that replica."""
        return self._offsets[broker]

    def is_done(self, broker: int) -> bool:
        return self._offsets[broker] >= self.end

    def take(self, broker: int, portion: bytes) -> None:
        """What that replica returned from its offset on."""
        try:
            for batch in batches(portion, allow_partial_tail=True):
                if batch.base_offset >= self.end:
                    self._offsets[broker] = self.end  # compaction left nothing in between
                    return
                if wrong := self._wrong(broker, batch):
                    self.difference = Difference(batch.base_offset, (broker,), f"on broker {broker} {wrong}")
                    return
                self._fold(broker, batch)
        except RaylogError as error:
            at = self._offsets[broker]
            self.difference = Difference(at, (broker,), f"broker {broker} has no whole batch there: {error}")

    def _wrong(self, broker: int, batch: BatchView) -> str | None:
        offsets = f"the batch at offsets {batch.base_offset}–{batch.last_offset}"
        if not batch.has_valid_crc():
            return f"{offsets} has a wrong CRC"
        if batch.last_offset_delta < 0 or batch.next_offset <= self._offsets[broker]:
            return f"{offsets} comes where offset {self._offsets[broker]} has to follow"
        epoch = batch.partition_leader_epoch
        if epoch < self._epochs[broker]:
            return f"{offsets} is of leader epoch {epoch}, after one of {self._epochs[broker]}"
        if epoch > self._leader_epoch:
            return f"{offsets} is of leader epoch {epoch}, the present one is {self._leader_epoch}"
        return None

    def _fold(self, broker: int, batch: BatchView) -> None:
        table = self._tables[broker]
        for record in () if batch.is_control else light_records(batch):
            if not self.start <= record.offset < self.end:
                continue
            key = blake2b(record.key or b"", digest_size=_HASH_BYTES).digest()
            if record.value is None:
                table.pop(key, None)
            else:
                table[key] = record.offset, _digest(record)
        self.batches[broker] += 1
        self.records[broker] += batch.record_count
        self.size_bytes[broker] += batch.size
        self._epochs[broker] = batch.partition_leader_epoch
        self._offsets[broker] = batch.next_offset

    def finish(self, brokers: Sequence[int], log_start: int) -> Difference | None:
        """Hold the tables of these replicas, all of them done, against that of the first. What is below ``log_start`` was deleted."""
        if self.difference is not None or not brokers:
            return self.difference
        reference, *others = brokers
        tables = {
            broker: {key: found for key, found in self._tables[broker].items() if found[0] >= log_start}
            for broker in brokers
        }
        mine = tables[reference]
        for broker in others:
            theirs = tables[broker]
            unlike = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
            if unlike:
                at = min(found[0] for key in unlike for found in (mine.get(key), theirs.get(key)) if found is not None)
                what = (
                    f"{len(unlike):,} keys have another last record on broker {broker} than on broker {reference}, "
                    f"the first of them at offset {at}"
                )
                return Difference(at, (broker,), what)
        return None


def _digest(record: LightRecord) -> bytes:
    return blake2b(repr((record.timestamp, record.value, record.headers)).encode(), digest_size=_HASH_BYTES).digest()
