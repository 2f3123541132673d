"""Cut a log: remove its end, or everything.

What the cut takes away counts as flushed and committed no more before it goes, on the disk as in
memory: a log that loses power amid a cut claims nothing that it lacks. Runs where the log is
written. Parts of ``Log``; nobody else calls them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.log.opening import reload_producers

if TYPE_CHECKING:
    from raylog.log.log import Log


def truncate_to(log: Log, offset: int, *, position: int | None = None) -> bool:
    """See ``Log.truncate_to``."""
    assert offset >= 0, offset
    if offset >= log.log_end_offset:
        return False
    is_committed = log.config.compacts and offset < log.high_watermark
    is_compacted_away = is_committed or offset < log.compaction.compacted_end
    if offset < log.segments.base_offsets[0] or is_compacted_away:
        # What replaced older records goes, and they are gone already: only a whole copy of the
        # leader's log will do.
        truncate_fully_and_start_at(log, min(offset, log.log_start_offset))
        return True
    place = log.segments.reaching(offset)[0].locate(offset) if position is None else None
    end_offset = offset if place is None else min(offset, place[1])
    _will_end_at(log, end_offset)
    log.snapshots.remove_above(end_offset)
    segments = len(log.segments)
    log.segments.keep_below(offset, config=log.config)
    if len(log.segments) != segments or log.flushed_always:
        # Or a loss of power would bring back a segment behind the cut, and with it a hole in the
        # log.
        log.files.sync_directory(log.directory)
    if position is None:
        log.segments.active.truncate_to(offset)
    else:
        log.segments.active.truncate_at(position, offset)
    log.flushes.cut_is_unflushed = True
    if log.flushed_always:
        log.flushes.flush_active()
    log.leader_epochs.truncate_from_end(end_offset)
    if not log.producers.cut(end_offset):
        expiration_ms = log.config.producer_id_expiration_ms
        reload_producers(log.producers, log.snapshots, log.segments.all, end_offset, expiration_ms=expiration_ms)
    log.transactions.cut(end_offset, log.segments.active)
    return True


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """See ``Log.truncate_fully_and_start_at``."""
    _will_end_at(log, min(offset, log.log_end_offset))
    empty_at(log, offset, log.segments.active.created_ms)
    log.log_start_offset = log.high_watermark = offset
    log.leader_epochs.clear()
    log.checkpoint()


def _will_end_at(log: Log, offset: int) -> None:
    """Nothing above ``offset`` counts as flushed or committed any more. Written down first, then
    the log may be cut there.

    Unless it is written already: where the last checkpoint claims no more, nor does one that a
    thread writes from here on. An earlier one, which a loss of power might bring back, claimed more
    only if the log was cut since, which is behind then anyway.

    The checkpoint is flushed at the next roll: until then recovery scans all that was written
    behind the cut anyhow, and a flush here would hold up the follower. Where every append is
    flushed, so is this.
    """
    log.recent.clear()
    log.compaction.lose_above(offset)
    log.flushes.cut(offset)
    log.log_start_offset = min(log.log_start_offset, offset)
    log.high_watermark = min(log.high_watermark, offset)
    if not log.checkpoint_file.claims_at_most(offset):
        log.checkpoint()
        log.checkpoint_file.is_behind = not log.flushed_always


def empty_at(log: Log, offset: int, wall_ms: int) -> None:
    """Replace everything by one empty segment that starts at ``offset``; start offset and high
    watermark stay.
    """
    log.recent.clear()
    log.compaction.emptied()
    log.snapshots.remove_above(-1)
    log.segments.start_over(offset, config=log.config, wall_ms=wall_ms)
    log.flushes.cut(offset)
    log.producers.clear(offset)
    log.transactions.cut(0, log.segments.active)
