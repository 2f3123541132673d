"""The replicas of one compacted partition, compared by what a reader of the whole makes of them.

Each replica compacts for itself, when it comes to it. So what has to be the same is the table: of
each key the last record, at the offset where it was written; a key whose last record is a tombstone
is not in it, for one replica may have dropped it already. Each replica's batches are also checked
for themselves: CRC, offsets that ascend, leader epochs that never go back and are none of the
future.

``TableComparison`` takes the replicas' portions in any order, each from ``offset_of`` on, and
``finish`` says how they compare. It holds 32 bytes and a number for each key of each replica. A
replica whose batches are wrong in themselves is in ``damaged`` and takes no further part; the
others go on.

Replicas are read one after the other while the topic is written. One that is read late may have
dropped a record below ``end`` already, because its key was written again since. So keys that were
written at or above ``end`` (``written_again``) are not compared.

Pure: no loop, no socket. ``raylog.client.admin.verification`` does the fetching.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from raylog.client.admin.replica_comparison import Difference
from raylog.errors import RaylogError
from raylog.records.batch import BatchView, batches
from raylog.records.codec import LightRecord, light_records

_HASH_BYTES = 16

Table = dict[bytes, tuple[int, bytes]]
"""By the hash of the key: the offset of its last record, and the hash of that record."""


class TableComparison:
    """``start`` and ``end`` bound the offsets. ``damaged`` says, by broker, what is wrong with a
    batch of its.
    """

    def __init__(self, brokers: Sequence[int], start: int, end: int, *, leader_epoch: int) -> None:
        self.start = start
        self.end = end
        self.damaged: dict[int, Difference] = {}
        self.batches = dict.fromkeys(brokers, 0)
        self.records = dict.fromkeys(brokers, 0)
        self.size_bytes = dict.fromkeys(brokers, 0)
        self._offsets = dict.fromkeys(brokers, start)
        self._epochs = dict.fromkeys(brokers, -1)
        self._leader_epoch = leader_epoch
        self._tables: dict[int, Table] = {broker: {} for broker in brokers}
        self._written_again: set[bytes] = set()

    def offset_of(self, broker: int) -> int:
        """Everything below it has been taken in from that replica."""
        return self._offsets[broker]

    def is_done(self, broker: int) -> bool:
        """Whether nothing more of that replica is needed."""
        return self._offsets[broker] >= self.end or broker in self.damaged

    def take(self, broker: int, portion: bytes) -> None:
        """What that replica returned from its offset on."""
        try:
            for batch in batches(portion, allow_partial_tail=True):
                if batch.base_offset >= self.end:
                    self._offsets[broker] = self.end  # compaction left nothing in between
                    return
                if wrong := self._wrong(broker, batch):
                    self.damaged[broker] = Difference(batch.base_offset, (broker,), f"on broker {broker} {wrong}")
                    return
                self._fold(broker, batch)
        except RaylogError as error:
            at = self._offsets[broker]
            self.damaged[broker] = Difference(at, (broker,), f"broker {broker} has no whole batch there: {error}")

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
            key = _hash_of_key(record)
            if record.value is None:
                table.pop(key, None)
            else:
                table[key] = record.offset, _digest(record)
        self.batches[broker] += 1
        self.records[broker] += batch.record_count
        self.size_bytes[broker] += batch.size
        self._epochs[broker] = batch.partition_leader_epoch
        self._offsets[broker] = batch.next_offset

    def written_again(self, portion: bytes) -> int | None:
        """Take in what the leader has behind ``end``; returns the offset to go on at, None if there
        is nothing whole.
        """
        following: int | None = None
        try:
            for batch in batches(portion, allow_partial_tail=True):
                records = () if batch.is_control else light_records(batch)
                self._written_again.update(_hash_of_key(record) for record in records if record.offset >= self.end)
                following = batch.next_offset
        except RaylogError:
            pass  # what is damaged there has no part in this comparison
        return following

    def tables(self, brokers: Sequence[int], log_start: int) -> dict[int, Table]:
        """What is compared of these replicas that are not damaged. What is below ``log_start`` was
        deleted.
        """
        return {
            broker: {
                key: found
                for key, found in self._tables[broker].items()
                if found[0] >= log_start and key not in self._written_again
            }
            for broker in brokers
            if broker not in self.damaged
        }

    def finish(self, brokers: Sequence[int], log_start: int) -> Difference | None:
        """What is damaged; else hold the tables of these replicas, all of them done, against that
        of the first.
        """
        for broker in brokers:
            if broker in self.damaged:
                return self.damaged[broker]
        if not brokers:
            return None
        reference, *others = brokers
        tables = self.tables(brokers, log_start)
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


def _hash_of_key(record: LightRecord) -> bytes:
    return blake2b(record.key or b"", digest_size=_HASH_BYTES).digest()


def _digest(record: LightRecord) -> bytes:
    return blake2b(repr((record.timestamp, record.value, record.headers)).encode(), digest_size=_HASH_BYTES).digest()
