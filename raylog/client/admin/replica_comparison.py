"""The replicas of one partition, compared batch by batch.

``ReplicaComparison`` is fed what each replica returned from one offset on and answers how far they
agree. Replicas copy their leader's batches as they are, so below the high watermark everything has
to be the same byte for byte, the leader epochs in the batch headers included. The first replica of
every portion is the reference; its batches are also checked for themselves: the CRC, offsets that
ascend without a gap, leader epochs that never go back and are none of the future. The others need
no such check: they are the same, or differ.

Ends at the first difference, which is named: at which offset, between whom, and what differs.

Pure: no loop, no socket. ``raylog.client.admin.verification`` does the fetching.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.errors import RaylogError
from raylog.records.batch import HEADER_SIZE, BatchView

_FIELDS = (
    ("base_offset", "base offset"),
    ("size", "size"),
    ("partition_leader_epoch", "leader epoch"),
    ("attributes", "attributes"),
    ("last_offset_delta", "last offset delta"),
    ("base_timestamp", "first timestamp"),
    ("max_timestamp", "largest timestamp"),
    ("producer_id", "producer id"),
    ("producer_epoch", "producer epoch"),
    ("base_sequence", "first sequence"),
    ("record_count", "number of records"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a partition is not what it has to be. ``brokers``: those that differ from the
    reference; the reference itself for a batch that is wrong in itself.
    """

    offset: int
    brokers: tuple[int, ...]
    what: str


class ReplicaComparison:
    """Agreement so far. ``offset``: everything below it (from where it began) is compared; ``end``:
    where to stop.
    """

    def __init__(self, offset: int, end: int, *, leader_epoch: int) -> None:
        self.offset = offset
        self.end = end
        self.difference: Difference | None = None
        self.batches = 0
        self.records = 0
        self.size_bytes = 0
        self.epoch_starts: list[tuple[int, int]] = []  # (leader epoch, offset of its first batch), as the batches say
        self._leader_epoch = leader_epoch
        self._expected: int | None = None  # the next batch's base offset; None at the beginning and after a jump

    def jump(self, offset: int) -> None:
        """Go on at a higher offset: what lies between was deleted meanwhile."""
        assert offset >= self.offset, f"back from {self.offset} to {offset}"
        self.offset = offset
        self._expected = None
        self.epoch_starts.clear()

    def compare(self, portions: Mapping[int, bytes]) -> int:
        """Compare what each broker's replica returned from ``offset`` on; the number of bytes on
        which all were compared.

        The first entry is the reference. A replica that returned less shortens the comparison for
        all. 0 without a difference means that somebody returned nothing.
        """
        assert self.difference is None, self.difference
        brokers = list(portions)
        reference = brokers[0]
        views = {broker: memoryview(portion) for broker, portion in portions.items()}
        common = min(map(len, views.values()))
        same = all(view[:common] == views[reference][:common] for view in views.values())
        position = 0
        while position < common and self.offset < self.end:
            try:
                batch = BatchView(portions[reference], position)
            except RaylogError as error:
                self._differ(self.offset, (reference,), f"broker {reference} has no whole batch there: {error}")
                return position
            if not same and self._differs(batch, position, portions):
                return position
            if batch.end > common:  # another replica returned less; nobody returns a part of a batch
                if not position:
                    self._differ(batch.base_offset, (), f"only a part of {_offsets(batch)} came from some replica")
                break
            if wrong := self._wrong(batch):
                self._differ(batch.base_offset, (reference,), f"on broker {reference} {wrong}")
                return position
            self._pass(batch)
            position = batch.end
        return position

    def _pass(self, batch: BatchView) -> None:
        self.batches += 1
        self.records += batch.record_count
        self.size_bytes += batch.size
        self.offset = self._expected = batch.next_offset
        if not self.epoch_starts or self.epoch_starts[-1][0] != batch.partition_leader_epoch:
            self.epoch_starts.append((batch.partition_leader_epoch, batch.base_offset))

    def _wrong(self, batch: BatchView) -> str | None:
        """What is wrong with a batch in itself, or as the next one."""
        offsets = _offsets(batch)
        if not batch.has_valid_crc():
            return f"{offsets} has a wrong CRC"
        if batch.last_offset_delta < 0 or batch.next_offset <= self.offset:
            return f"{offsets} comes where offset {self.offset} has to follow"
        if self._expected is None:
            if batch.base_offset > self.offset:
                return f"{offsets} comes first, offset {self.offset} is missing"
        elif batch.base_offset < self._expected:
            return f"{offsets} comes where offset {self._expected} has to follow"
        elif batch.base_offset > self._expected:
            return f"{offsets} follows offset {self._expected - 1}: a gap"
        if batch.record_count != batch.last_offset_delta + 1:
            return f"{offsets} holds {batch.record_count} records"
        epoch, last_epoch = batch.partition_leader_epoch, self.epoch_starts[-1][0] if self.epoch_starts else -1
        if epoch < last_epoch:
            return f"{offsets} is of leader epoch {epoch}, after one of {last_epoch}"
        if epoch > self._leader_epoch:
            return f"{offsets} is of leader epoch {epoch}, the present one is {self._leader_epoch}"
        return None

    def _differs(self, batch: BatchView, position: int, portions: Mapping[int, bytes]) -> bool:
        """Whether some replica has another batch there (as far as it returned it); notes the
        difference.
        """
        brokers = list(portions)
        reference = brokers[0]
        mine = memoryview(portions[reference])[position : batch.end]
        other = [
            broker
            for broker in brokers[1:]
            if memoryview(portions[broker])[position : batch.end] != mine[: len(portions[broker]) - position]
        ]
        if not other:
            return False
        told = "; ".join(f"broker {broker}: {_told(batch, portions[broker], position)}" for broker in other)
        rest = [broker for broker in brokers[1:] if broker not in other]
        agreeing = ", ".join(map(str, [reference, *rest]))
        against = f"brokers {agreeing} agree" if rest else f"compared with broker {reference}"
        self._differ(batch.base_offset, tuple(other), f"in {_offsets(batch)} {told} ({against})")
        return True

    def _differ(self, offset: int, brokers: tuple[int, ...], what: str) -> None:
        self.difference = Difference(offset, brokers, what)


def _told(mine: BatchView, portion: bytes, position: int) -> str:
    """How the batch at that position of a portion differs from the reference's."""
    try:
        theirs = BatchView(portion, position)
    except RaylogError as error:
        return f"no whole batch there: {error}"
    told = [
        f"{name} {getattr(theirs, field)} instead of {getattr(mine, field)}"
        for field, name in _FIELDS
        if getattr(theirs, field) != getattr(mine, field)
    ]
    if theirs.crc != mine.crc:
        told.append(f"CRC {theirs.crc:#010x} instead of {mine.crc:#010x}")
    if theirs.size == mine.size:
        indexes = range(HEADER_SIZE, mine.size)
        index = next((index for index in indexes if theirs.data[index] != mine.data[index]), None)
        if index is not None:
            told.append(f"byte {index} is {theirs.data[index]:#04x} instead of {mine.data[index]:#04x}")
    own = "its CRC holds" if theirs.has_valid_crc() else "its CRC does not hold"
    return f"{', '.join(told)}, and {own}"


def _offsets(batch: BatchView) -> str:
    return f"the batch at offsets {batch.base_offset}–{batch.last_offset}"
