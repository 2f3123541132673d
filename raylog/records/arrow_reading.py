"""The bytes of a fetch's answer, or of a log file, as Arrow: ``read_arrow``.

::

    answer = read_arrow(fetched, columns=("key", "value", "offset"), start_offset=position, offset_end=range_end)
    position = answer.next_offset         # done when it has reached range_end, whatever records there were
    yield from answer.batches

Follows a consumer's rules: CRCs are checked, control batches give nothing, batches of aborted
transactions are left out (``aborted``, as the answer to a read_committed fetch names them), records
outside of the range are cut off, gaps that compaction left are passed. What a fetch cut off at its
end is left for the next one. ``next_offset`` says how far the bytes have come: it moves past
batches that give nothing, so a range whose end holds only such batches ends too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from raylog.records.aborted import AbortedTransaction, AbortedTransactions
from raylog.records.arrow_columns import NO_OFFSET_END, RUN_BYTES_MAX, BrokenBatch, RecordColumns
from raylog.records.batch import Buffer, batches
from raylog.records.compression import INFLATED_BYTES_MAX
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

DEFAULT_COLUMNS = ("key", "value", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class ArrowAnswer:
    """What the bytes held. ``batches`` are ``pyarrow.RecordBatch``es, none of them empty: one, or
    several where it is more than 1 GiB.

    ``error`` is what stands at ``next_offset`` where the bytes are broken; ``batches`` are whole up
    to there. ``skip_to`` is the offset behind the broken batch, None where nobody can tell.
    """

    batches: tuple[Any, ...]
    next_offset: int
    error: CorruptBatch | UnsupportedMagic | None = None
    skip_to: int | None = None

    @property
    def record_count(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def read_arrow(
    fetched: Buffer,
    *,
    columns: Sequence[str] | None = DEFAULT_COLUMNS,
    start_offset: int = 0,
    offset_end: int | None = None,
    aborted: Iterable[AbortedTransaction] = (),
    topic: str = "",
    partition: int = -1,
    check_crcs: bool = True,
    max_inflated_bytes: int = INFLATED_BYTES_MAX,
) -> ArrowAnswer:
    """The records from ``start_offset`` up to ``offset_end`` (None: all that there are) of whole
    record batches that follow each other.

    ``columns``: any of ``RECORD_SCHEMA`` in the order wanted, None for all; ``topic`` and
    ``partition`` fill the columns of those names. Raises nothing for bytes that break the format:
    see ``ArrowAnswer.error``.
    """
    end = NO_OFFSET_END if offset_end is None else offset_end
    transactions = AbortedTransactions(aborted)
    collected = RecordColumns(columns, max_inflated_bytes=max_inflated_bytes)
    done: list[Any] = []
    next_offset = start_offset
    error: CorruptBatch | UnsupportedMagic | None = None
    skip_to: int | None = None

    def take() -> BrokenBatch | None:
        batch, broken = collected.take()
        if batch.num_rows:
            done.append(batch)
        return broken

    broken: BrokenBatch | None = None
    try:
        for view in batches(fetched, allow_partial_tail=True):
            if view.base_offset >= end:
                next_offset = end
                break
            if check_crcs and not view.has_valid_crc():
                skip_to = view.next_offset
                raise CorruptBatch("a wrong CRC", view.position)
            hidden = transactions.hides(view)
            if not hidden and not view.is_control and view.next_offset > start_offset:
                if collected and collected.size_bytes + view.size > RUN_BYTES_MAX and (broken := take()) is not None:
                    break
                skip_to = view.next_offset
                collected.add(view, start_offset=start_offset, offset_end=end, topic=topic, partition=partition)
                skip_to = None
            next_offset = max(next_offset, min(view.next_offset, end))
    except (CorruptBatch, UnsupportedMagic) as found:
        error = found
    if broken is None:
        broken = take()
    if broken is not None:  # what was collected is older than whatever ended the walk
        return ArrowAnswer(tuple(done), max(start_offset, broken.base_offset), broken.error, broken.next_offset)
    return ArrowAnswer(tuple(done), next_offset, error, skip_to if error is not None else None)
