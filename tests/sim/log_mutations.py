"""Faults to be patched into the log of a replica, by name, as in ``mutations``: its segments, checkpoints, producers, cleaner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raylog.log import batch_cleaning, checkpoint, cleaning, log, opening, recovery, retention, time_search
from raylog.log.cleaning import Cleaning
from raylog.log.flushes import Flushes
from raylog.log.leader_epochs import LeaderEpochs
from raylog.log.log import Log
from raylog.log.producers import NO_SEQUENCE, ProducerSnapshots, ProducerStates
from raylog.log.segments import Segments
from raylog.records.batch import SEQUENCE_MASK, BatchView

Mutation = Callable[[pytest.MonkeyPatch], None]


# ---------------------------------------------------------------------- what survives


def drop_the_suspicion_of_a_log(patch: pytest.MonkeyPatch) -> None:
    """A suspect log that is opened once more is judged by this opening alone, and has not copied yet what it lost."""
    write = checkpoint.write

    def trusting(files: Any, directory: str, facts: Any, *, flush: bool) -> None:
        write(files, directory, replace(facts, suspect=False), flush=flush)

    patch.setattr(checkpoint, "write", trusting)


def keep_the_high_watermark_over_a_power_loss(patch: pytest.MonkeyPatch) -> None:
    """It covers what a lost truncation has brought back."""
    opened = opening._opened

    def hopeful(directory: str, *facts: Any, files: Any, **rest: Any) -> Any:
        known = checkpoint.read(files, directory)
        found = opened(directory, *facts, files=files, **rest)
        if known is not None:
            found.high_watermark = max(found.log_start_offset, min(known.high_watermark, found.log_end_offset))
        return found

    patch.setattr(opening, "_opened", hopeful)


def forget_the_log_start(patch: pytest.MonkeyPatch) -> None:
    """Deleted records are deleted for this process alone: the checkpoint says that the log starts with its first segment."""
    write = checkpoint.write

    def forgetful(files: Any, directory: str, facts: Any, *, flush: bool) -> None:
        write(files, directory, replace(facts, log_start_offset=0), flush=flush)

    patch.setattr(checkpoint, "write", forgetful)


def flush_over_a_truncation(patch: pytest.MonkeyPatch) -> None:
    """A flush that began before the log was cut raises the recovery point over what was written after the cut."""
    cut = Flushes.cut

    def unnoticed(self: Flushes, offset: int) -> None:
        cut(self, offset)
        self.generation -= 1

    patch.setattr(Flushes, "cut", unnoticed)


def roll_before_a_cut_is_flushed(patch: pytest.MonkeyPatch) -> None:
    """A loss of power brings back what was cut, in front of a newer segment."""
    roll = Log.roll

    def hasty(self: Log, wall_ms: int, *, at_offset: int = 0) -> None:
        self.flushes.cut_is_unflushed = self.checkpoint_file.is_behind = False
        roll(self, wall_ms, at_offset=at_offset)

    patch.setattr(Log, "roll", hasty)


def call_a_log_whole_after_another_boot(patch: pytest.MonkeyPatch) -> None:
    """What was in the page cache is believed to be on the disk."""
    verdict = recovery._verdict

    def blind(checkpoint: Any, end_offset: int, report: Any, boot_id: str) -> Any:
        return verdict(checkpoint, end_offset, report, checkpoint.boot_id if checkpoint is not None else boot_id)

    patch.setattr(recovery, "_verdict", blind)


def call_a_short_log_whole(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether the log still reaches the high watermark that was noted."""
    verdict = recovery._verdict

    def blind(checkpoint: Any, end_offset: int, report: Any, boot_id: str) -> Any:
        report.cut_is_one_incomplete_batch = True
        return verdict(checkpoint, 1 << 62, report, boot_id)

    patch.setattr(recovery, "_verdict", blind)


def take_sealed_segments_for_whole(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether a segment below the recovery point still ends where the next one begins."""
    patch.setattr(recovery, "_first_cut", lambda segments, config, cleaner_point: None)


def open_the_folder_of_another_topic_id(patch: pytest.MonkeyPatch) -> None:
    """A topic of the same name that was deleted lives on in the new one."""
    patch.setattr(opening, "read_topic_id", lambda files, directory: None)


# ---------------------------------------------------------------------- epochs and truncation


def keep_leader_epochs_that_were_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "truncate_from_end", lambda self, end_offset: None)


def keep_producers_over_a_truncation(patch: pytest.MonkeyPatch) -> None:
    """Sequence numbers of batches that are gone are taken for known."""

    def kept(self: ProducerStates, end_offset: int) -> bool:
        self.end_offset = end_offset
        return True

    patch.setattr(ProducerStates, "cut", kept)


def keep_snapshots_above_a_truncation(patch: pytest.MonkeyPatch) -> None:
    """They tell of sequence numbers that were cut away, once the log has grown over them again."""
    patch.setattr(ProducerSnapshots, "remove_above", lambda self, offset: None)


# ---------------------------------------------------------------------- producers


def take_an_old_producer_epoch(patch: pytest.MonkeyPatch) -> None:
    """A producer that was replaced by a newer instance writes on."""
    follows = ProducerStates._follows

    def lenient(batch: BatchView, epoch: int, last_sequence: int, where: str) -> None:
        if batch.producer_epoch >= epoch:
            follows(batch, epoch, last_sequence, where)

    patch.setattr(ProducerStates, "_follows", staticmethod(lenient))


def refuse_the_sequence_after_the_last_number(patch: pytest.MonkeyPatch) -> None:
    """2**31 − 1 is followed by 0, and not by 2**31."""
    follows = ProducerStates._follows

    def endless(batch: BatchView, epoch: int, last_sequence: int, where: str) -> None:
        follows(batch, epoch, NO_SEQUENCE - 1 if last_sequence == SEQUENCE_MASK else last_sequence, where)

    patch.setattr(ProducerStates, "_follows", staticmethod(endless))


def take_any_later_sequence(patch: pytest.MonkeyPatch) -> None:
    """A gap in the sequence numbers is no reason to refuse a batch: those between may never come."""
    follows = ProducerStates._follows

    def lenient(batch: BatchView, epoch: int, last_sequence: int, where: str) -> None:
        ahead = batch.base_sequence - last_sequence & SEQUENCE_MASK
        is_later = batch.producer_epoch == epoch and 0 < ahead < SEQUENCE_MASK // 2
        follows(batch, epoch, batch.base_sequence - 1 & SEQUENCE_MASK if is_later else last_sequence, where)

    patch.setattr(ProducerStates, "_follows", staticmethod(lenient))


def remember_one_batch_of_a_producer(patch: pytest.MonkeyPatch) -> None:
    """After a restart no more than a snapshot holds: a repeat of the batch before the last is refused."""
    patch.setattr(ProducerStates, "remember_older", lambda self, batches: None)


def acknowledge_a_repeat_where_the_log_ends(patch: pytest.MonkeyPatch) -> None:
    """A repeated batch is recognised, and acknowledged with another batch's offset."""
    append = Log.append_as_leader

    def misplaced(self: Log, records: Any, **how: Any) -> Any:
        result = append(self, records, **how)
        if result.duplicate:
            count = result.last_offset - result.base_offset
            result = replace(result, base_offset=self.log_end_offset, last_offset=self.log_end_offset + count)
        return result

    patch.setattr(Log, "append_as_leader", misplaced)


# ---------------------------------------------------------------------- cleaning and retention


def clean_away_sequence_shells(patch: pytest.MonkeyPatch) -> None:
    """An emptied batch goes with the sequence numbers that are remembered of its producer."""
    patch.setattr(Cleaning, "_is_remembered", lambda self, batch: False)


def clean_away_tombstones_at_once(patch: pytest.MonkeyPatch) -> None:
    """A follower or a consumer that was not there just then never learns that the key was deleted."""
    cleaned = batch_cleaning.cleaned

    def hasty(batch: BatchView, decision: Any, keeps: Any) -> Any:
        return cleaned(batch, decision, lambda record: record.value is not None and keeps(record))

    patch.setattr(cleaning, "cleaned", hasty)


def keep_old_values_of_deleted_keys(patch: pytest.MonkeyPatch) -> None:
    """The cleaner does not note tombstones: the value comes back when the tombstone has gone."""
    note = Cleaning._note_keys

    def partial(self: Cleaning, batch: BatchView, offsets: Any) -> bool:
        put = offsets.put
        values = {record.offset: record.value for record in cleaning.light_records(batch)}

        class Noting:
            is_full = False

            @property
            def latest_offset(self) -> int:
                return int(offsets.latest_offset)

            @latest_offset.setter
            def latest_offset(self, offset: int) -> None:
                offsets.latest_offset = offset

            def put(self, key: bytes, offset: int) -> None:
                if values[offset] is not None:
                    put(key, offset)

        return note(self, batch, Noting())  # type: ignore[arg-type]

    patch.setattr(Cleaning, "_note_keys", partial)


def retain_no_more_than_asked_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Retention deletes segments whose records are not committed yet."""
    leading = retention._leading
    patch.setattr(retention, "_leading", lambda segments, rule, high_watermark: leading(segments, rule, 1 << 62))


# ---------------------------------------------------------------------- answers


def search_behind_the_timestamp(patch: pytest.MonkeyPatch) -> None:
    """The offset for a timestamp is that of the first record *after* it."""
    first = time_search.first_at_or_after

    def late(segments: Segments, timestamp: int, **where: Any) -> Any:
        return first(segments, timestamp + 1, **where)

    patch.setattr(log, "first_at_or_after", late)


def search_one_index_entry_too_far(patch: pytest.MonkeyPatch) -> None:
    """The time index is asked where the timestamp has been reached, and what lies in front of its entry is passed over."""
    from raylog.log.time_index import TimeIndex

    lookup = TimeIndex.lookup

    def far(self: TimeIndex, timestamp: int, **how: Any) -> Any:
        return lookup(self, timestamp + 200, **how)

    patch.setattr(TimeIndex, "lookup", far)


LOG_MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        drop_the_suspicion_of_a_log,
        keep_the_high_watermark_over_a_power_loss,
        forget_the_log_start,
        flush_over_a_truncation,
        roll_before_a_cut_is_flushed,
        call_a_log_whole_after_another_boot,
        call_a_short_log_whole,
        take_sealed_segments_for_whole,
        open_the_folder_of_another_topic_id,
        keep_leader_epochs_that_were_cut,
        keep_producers_over_a_truncation,
        keep_snapshots_above_a_truncation,
        take_an_old_producer_epoch,
        refuse_the_sequence_after_the_last_number,
        take_any_later_sequence,
        remember_one_batch_of_a_producer,
        acknowledge_a_repeat_where_the_log_ends,
        clean_away_sequence_shells,
        clean_away_tombstones_at_once,
        keep_old_values_of_deleted_keys,
        retain_no_more_than_asked_above_the_high_watermark,
        search_behind_the_timestamp,
        search_one_index_entry_too_far,
    )
}
