"""What clients were told, held against what is known of a partition (``checkers.History``):
deletions, searches by time, reads.

::

    once a deletion of records is acknowledged, no later leader's log starts below it
    a search by time finds the first record that is old enough: no committed one lies before it, and it does not find nothing
        where there is one
    who reads gets every batch of the range, one after the other; of a compacted topic the last record of every key that lies
        there, tombstones for ``delete.retention.ms``
    an offset that was read is in range, until somebody deletes records

Each check is of one history number: an unclean election forgives what was asked before it. Pure
functions; they draw nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from raylog.log.cleaned_transactions import marker_of
from raylog.records.batch import BatchView
from raylog.records.codec import light_records
from raylog.records.control import Marker

if TYPE_CHECKING:
    from raylog.simulator.checkers import Content, History

CLOCKS_DIFFER_MS = 15_000
"""By how much the wall clocks of two machines may differ; where somebody sets them nothing is said
of ages.
"""


def deletion_acknowledged(history: History, generation: int, offset: int) -> None:
    """Every live replica's log starts at ``offset`` or behind it."""
    if history.generation == generation:
        history.deleted_end = max(history.deleted_end, offset)


def searched(
    history: History, generation: int, timestamp: int, found: tuple[int, int], *, known_end: int, is_current: bool
) -> None:
    """``found``: the timestamp and offset of the answer, −1 for none. ``known_end``: all below was
    committed when it was asked.

    ``is_current``: nobody has been elected since who answers.
    """
    if history.generation != generation:
        return
    found_time, offset = found
    if offset < 0:
        missed = _first_since(history, timestamp, below=known_end)
        if missed is not None and is_current:
            raise history.fail(f"nothing was found at or after {timestamp}; offset {missed} is")
        return
    if offset < history.start:
        return
    known = _timestamp_at(history, offset)
    # The history began with the log of an unclean leader, who may have compacted away what another
    # replica still has.
    is_known = known is not None or not (history.compacts and history.generation)
    if (is_known and known != found_time) or found_time < timestamp:
        raise history.fail(f"offset {offset} with timestamp {found_time} was found for {timestamp}; it has {known}")
    earlier = _first_since(history, timestamp, below=offset)
    if earlier is not None:
        raise history.fail(f"offset {offset} was found for timestamp {timestamp}; {earlier} comes first")


def _timestamp_at(history: History, offset: int) -> int | None:
    if history.compacts:
        content = history.records.get(offset)
        return None if content is None else content[2]
    return next((each.timestamp for each in history.stamps if each.base_offset <= offset < each.next_offset), None)


def _first_since(history: History, timestamp: int, *, below: int) -> int | None:
    """The first offset with at least that timestamp that nothing can have removed; all records of a
    batch have the same one here.
    """
    if history.retention:
        return None
    if history.compacts:
        live = (
            (offset, content)
            for offset, content in last_of_keys(history).items()
            if content[1] is not None and not is_undead(history, offset)
        )
        return next((o for o, content in live if history.deletable_end <= o < below and content[2] >= timestamp), None)
    for each in history.stamps:
        first = max(each.base_offset, history.deletable_end)
        if each.timestamp >= timestamp and first < min(each.next_offset, below):
            return first
    return None


def note_abort(history: History, view: BatchView) -> None:
    """If the batch is the marker of an abort, its transaction's records are none of a compacted topic's."""
    if not view.is_control or marker_of(view) is not Marker.ABORT:
        return
    for base_offset, batch in sorted(history.batches.items(), reverse=True):
        if batch.producer_id == view.producer_id and base_offset < view.base_offset:
            if batch.is_control:
                return
            history.aborted.update(range(base_offset, batch.next_offset))


def lasting(history: History) -> list[tuple[int, Content]]:
    """The records of a compacted topic that no abort has taken back, with their offsets, in order."""
    return [(offset, content) for offset, content in sorted(history.records.items()) if offset not in history.aborted]


def last_of_keys(history: History) -> dict[int, Content]:
    """The last record of each key of a compacted topic, by offset, in order."""
    latest = {content[0]: offset for offset, content in lasting(history)}
    return {offset: history.records[offset] for offset in sorted(latest.values())}


def was_read(history: History, start: int, views: Sequence[BatchView], now_ms: int) -> None:
    """Somebody read from ``start`` on and got these batches."""
    if not history.compacts:
        for view, following in pairwise(views):
            if following.base_offset != view.next_offset:
                raise history.fail(f"a consumer was given {following.base_offset} after {view.next_offset - 1}")
        return
    shown = {record.offset for view in views for record in light_records(view)}
    start, end = max(start, history.start, history.deletable_end), views[-1].next_offset
    if history.retention or history.generation:
        return
    for offset, (key, value, _) in last_of_keys(history).items():
        if not start <= offset < end or offset in shown:
            continue
        if value is not None:
            raise history.fail(f"a consumer read over {offset} and was not shown it: the last record of {key!r}")
        if not is_forgotten(history, offset, now_ms):
            age_ms = now_ms - history.committed_ms(offset)
            raise history.fail(
                f"a consumer read over {offset} and was not shown it: {key!r} was deleted {age_ms} ms ago"
            )


def is_forgotten(history: History, offset: int, now_ms: int) -> bool:
    """Whether the tombstone at that offset may be gone everywhere: who was away for so long, a
    replica as well, never hears of it.
    """
    age_ms = now_ms - history.committed_ms(offset)
    return history.clocks_are_set or age_ms >= history.delete_retention_ms - CLOCKS_DIFFER_MS


def is_undead(history: History, offset: int) -> bool:
    """Whether a former history deleted that record for good.

    The leader of the unclean election had missed the deletion, and began this history with the
    record. Others need not have it.
    """
    if offset >= history.buried.get(history.records[offset][0], -1):
        return False
    base_offset = history.stamps[history.place_of(offset)].base_offset
    return history.batches[base_offset].leader_epoch < history.first_epoch


def has_missed_deletion(history: History, key: bytes, broker: int) -> bool:
    """Whether that key is deleted, and the broker's log took in the tombstone's offset after the
    tombstone was committed.

    A replica that was behind, or that has lost the end of its log, copies what compaction has left.
    Where the tombstone is gone by then, an older record of the key that the replica has kept is
    back. Who had the tombstone in time has no such excuse.
    """
    offset = max((offset for offset, content in lasting(history) if content[0] == key), default=-1)
    if offset < 0 or history.records[offset][1] is not None:
        return False
    took = [each.time_ms for each in history.copied.get(broker, ()) if each.base_offset <= offset < each.next_offset]
    return bool(took) and took[-1] > history.committed_ms(offset)


class Asked(NamedTuple):
    """A reader's question: of which history, from which offset on, and where that history ended
    then, as far as anybody had read.
    """

    generation: int
    offset: int
    end: int


def out_of_range(history: History, asked: Asked, *, is_current: bool) -> None:
    """A leader says that an offset is out of range, though it was read before.

    The history may have grown as far as there only after the leader was asked: a reader may come
    from a former, longer one.
    """
    is_removable = history.retention or asked.offset < history.deletable_end
    if history.generation == asked.generation and is_current and not is_removable and asked.offset <= asked.end:
        raise history.fail(
            f"offset {asked.offset} is said to be out of range; nobody deleted above {history.deletable_end}"
        )
