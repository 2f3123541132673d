"""Compaction [L22–L26]: the last record of each key stays, nothing else changes its place, and a crash at any step loses nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylog.log.cleaning import Cleaning
from raylog.log.config import NEVER
from raylog.log.log import Log
from raylog.records.batch import BatchView, batches
from raylog.records.codec import encode, light_records
from raylog.records.compression import Compression
from raylog.records.control import Marker, control_batch
from raylog.records.corrupt import CorruptBatch
from raylog.simulator.simulated_files import WorstLuck
from raylog.types import Condition

Row = tuple[int, bytes | None, bytes | None]  # offset, key, value
RETENTION_MS = 1_000


def compacted(machine: Any, **config: object) -> Any:
    machine.open(
        **{
            "compacts": True,
            "deletes": False,
            "segment_bytes": 400,
            "index_interval_bytes": 100,
            "delete_retention_ms": RETENTION_MS,
            "min_cleanable_dirty_ratio": 0.0,
            **config,
        }
    )
    return machine


def put(machine: Any, *pairs: tuple[bytes, bytes | None], epoch: int = 0, **codec: object) -> int:
    batch = encode([(machine.wall_ms, key, value, ()) for key, value in pairs], **codec)  # type: ignore[arg-type]
    log = machine.log
    base = log.append_as_leader(batch, leader_epoch=epoch, wall_ms=machine.wall_ms).base_offset
    log.high_watermark = log.log_end_offset
    return base


def begin(machine: Any) -> Cleaning:
    part = machine.log.compaction.cleanable(machine.wall_ms)
    assert part is not None
    return machine.log.compaction.begin(part, machine.wall_ms)


def clean(machine: Any) -> Cleaning:
    cleaning = begin(machine)
    while cleaning.step() is not None:
        machine.log.check()
    machine.log.compaction.end(cleaning)
    return cleaning


def views(log: Log) -> list[BatchView]:
    found: list[BatchView] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found += batches(log.read(offset, 1 << 20).records)
        offset = found[-1].next_offset
    return found


def rows(log: Log) -> list[Row]:
    return [(r.offset, r.key, r.value) for view in views(log) for r in light_records(view)]


def table(found: list[Row]) -> dict[bytes | None, tuple[int, bytes]]:
    latest = {key: (offset, value) for offset, key, value in found}
    return {key: (offset, value) for key, (offset, value) in latest.items() if value is not None}


def fill(machine: Any, count: int = 60, keys: int = 5) -> None:
    for number in range(count):
        put(machine, (b"k%d" % (number % keys), b"v%d" % number))


def test_the_last_record_of_each_key_stays_at_its_offset_and_the_active_segment_is_left_alone(machine: Any) -> None:
    fill(compacted(machine))
    log = machine.log
    before, active = rows(log), log.segments.active.base_offset
    report = clean(machine).report
    kept = rows(log)
    assert table(kept) == table(before)
    assert set(kept) <= set(before)
    assert [row for row in kept if row[0] >= active] == [row for row in before if row[0] >= active]
    assert len([row for row in kept if row[0] < active]) == 5
    assert log.compaction.point == active and report.bytes_after < report.bytes_before
    segments = len(log.segments)
    assert log.compaction.cleanable(machine.wall_ms) is None, "nothing is dirty any more"
    assert not [name for name in machine.names() if name.endswith((".cleaned", ".swap", ".deleted"))]
    fill(machine, 20)
    clean(machine)
    assert len(log.segments) < segments, "what has become small is joined the next time"


def test_any_offset_that_was_compacted_away_reads_on_at_the_next_one_that_is_there(machine: Any) -> None:
    fill(compacted(machine))
    clean(machine)
    log = machine.log
    found = views(log)
    for offset in range(log.log_end_offset):
        expected = next(view.base_offset for view in found if view.last_offset >= offset)
        assert log.read(offset, 1).base_offset == expected, offset


def test_what_compaction_left_survives_a_clean_stop_a_crash_and_a_loss_of_power(machine: Any) -> None:
    fill(compacted(machine))
    clean(machine)
    kept, end = rows(machine.log), machine.log.log_end_offset
    assert rows(machine.reopen()) == kept
    assert machine.log.compaction.point > 0
    assert machine.log.recovery.rebuilt_indexes == []
    assert rows(machine.recover()) == kept
    machine.log.flush()
    machine.log.checkpoint(flush=True)
    machine.disk.lose_power(random.Random(1))
    machine.files = machine.disk.files()
    assert rows(machine.open()) == kept and machine.log.log_end_offset == end


def test_only_what_is_below_the_high_watermark_in_whole_segments_is_cleaned(machine: Any) -> None:
    fill(compacted(machine))
    log = machine.log
    third = log.segments.base_offsets[3]
    log.high_watermark = third - 1
    part = log.compaction.cleanable(machine.wall_ms)
    assert part is not None and part.first_uncleanable_offset == log.segments.base_offsets[2]
    log.high_watermark = 0
    assert log.compaction.cleanable(machine.wall_ms) is None


def test_a_tombstone_hides_its_key_until_its_horizon_and_then_goes_itself(machine: Any) -> None:
    compacted(machine)
    put(machine, (b"gone", b"1"), (b"here", b"2"))
    tombstone = put(machine, (b"gone", None), (b"other", b"3"))
    fill(machine, 20)
    clean(machine)
    assert (tombstone, b"gone", None) in rows(machine.log), "readers must hear of it"
    assert (0, b"gone", b"1") not in rows(machine.log)
    stamped = next(view for view in views(machine.log) if view.base_offset == tombstone)
    assert stamped.has_delete_horizon and stamped.base_timestamp == machine.wall_ms + RETENTION_MS
    assert [r.timestamp for r in light_records(stamped)] == [machine.wall_ms] * 2, "times count from the horizon now"
    machine.wall_ms += RETENTION_MS - 1
    fill(machine, 20)
    clean(machine)
    assert (tombstone, b"gone", None) in rows(machine.log)
    machine.wall_ms += 1
    fill(machine, 20)
    clean(machine)
    assert b"gone" not in {key for _, key, _ in rows(machine.log)}
    assert table(rows(machine.log))[b"other"] == (tombstone + 1, b"3")


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_loses_records_keeps_its_header_and_codec(machine: Any, codec: Compression) -> None:
    compacted(machine, segment_bytes=3_000)
    wide = [(b"k%d" % number, b"x" * 40) for number in range(10)]
    put(machine, *wide, compression=codec, producer_id=7, producer_epoch=1, base_sequence=0, epoch=3)
    put(machine, (b"k9", b"y"), (b"k4", b"y"), producer_id=7, producer_epoch=1, base_sequence=10, epoch=3)
    before = views(machine.log)[0]
    for number in range(60):
        put(machine, (b"other", b"z" * 50 + b"%d" % number), epoch=3)
    clean(machine)
    after = views(machine.log)[0]
    assert after.has_valid_crc() and after.compression == codec and after.record_count == 8
    for name in ("base_offset", "last_offset", "last_sequence", "producer_id", "producer_epoch", "max_timestamp"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.partition_leader_epoch == 3
    assert [r.offset for r in light_records(after)] == [0, 1, 2, 3, 5, 6, 7, 8]


def test_the_last_batch_of_a_producer_stays_as_an_empty_shell_so_that_a_repeat_is_recognised(machine: Any) -> None:
    compacted(machine)
    put(machine, (b"other", b"1"))
    sent = put(machine, (b"k0", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    fill(machine)
    clean(machine)
    shell = next(view for view in views(machine.log) if view.base_offset == sent)
    assert shell.record_count == 0 and shell.last_sequence == 0 and shell.has_valid_crc()
    for name in [name for name in machine.names() if name.endswith(".snapshot")]:
        machine.files.remove(machine.path(name))
    machine.recover()
    repeated = put(machine, (b"k0", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    assert repeated == sent, "the first append's offset"


def test_where_each_epoch_starts_is_told_by_the_batches_alone(machine: Any, make_machine: Any) -> None:
    compacted(machine)
    for epoch in range(6):
        for number in range(10):
            put(machine, (b"k", b"%d" % number), epoch=epoch)
    entries = machine.log.leader_epochs.entries
    clean(machine)
    machine.crash()
    machine.files.remove(machine.path("leader-epoch-checkpoint"))
    assert machine.open().leader_epochs.entries == entries
    follower = make_machine(directory="/disk/t-1")
    compacted(follower)
    for view in views(machine.log):
        follower.log.append_as_follower(bytes(view.data))
    assert follower.log.leader_epochs.entries == entries
    assert rows(follower.log) == rows(machine.log)


def test_records_are_found_by_time_where_the_latest_one_was_compacted_away(machine: Any) -> None:
    compacted(machine)
    machine.wall_ms += 500
    put(machine, (b"k0", b"late"), producer_id=7, producer_epoch=0, base_sequence=0)
    machine.wall_ms -= 500
    fill(machine)
    clean(machine)
    log = machine.log
    assert log.largest_timestamp() == (machine.wall_ms, rows(log)[0][0], 0)
    assert log.offset_for_timestamp(machine.wall_ms) == (machine.wall_ms, rows(log)[0][0], 0)
    assert log.offset_for_timestamp(machine.wall_ms + 1) is None


def test_a_full_map_cleans_a_part_and_the_next_cleaning_goes_on_there(machine: Any) -> None:
    compacted(machine, cleaner_dedupe_buffer_bytes=24 * 8)
    for number in range(60):
        put(machine, (b"k%d" % (number % 20), b"v%d" % number))
    before = rows(machine.log)
    ends = []
    while machine.log.compaction.cleanable(machine.wall_ms) is not None:
        ends.append(clean(machine).report.end_offset)
    assert len(ends) > 2 and ends == sorted(set(ends)), "each gets further, none to the end at once"
    assert table(rows(machine.log)) == table(before)
    assert ends[-1] == machine.log.segments.active.base_offset


def test_a_damaged_batch_ends_the_cleaning_and_leaves_the_log_as_it_is(machine: Any) -> None:
    fill(compacted(machine))
    machine.reopen()
    name = f"{machine.log.segments.base_offsets[1]:020d}.log"
    machine.damage(name, lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:])
    cleaning = begin(machine)
    with pytest.raises(CorruptBatch, match="a CRC does not fit"):
        while cleaning.step() is not None:
            pass
    machine.log.compaction.end(cleaning, fault="damaged")
    assert machine.log.compaction.cleanable(machine.wall_ms) is None
    assert not [name for name in machine.names() if ".cleaned" in name or ".swap" in name]


def test_aborted_records_hide_nothing_and_a_marker_goes_when_nothing_of_its_transaction_is_left(machine: Any) -> None:
    compacted(machine)
    committed = put(machine, (b"k", b"committed"))
    row = (machine.wall_ms, b"k", b"aborted", ())
    machine.copy(encode([row], producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True))
    machine.log.high_watermark = machine.log.log_end_offset

    def end(marker: Marker) -> int:
        log = machine.log
        batch = control_batch(
            marker, producer_id=9, producer_epoch=0, coordinator_epoch=0, timestamp_ms=machine.wall_ms
        )
        at = log.append_as_leader(batch, leader_epoch=0, wall_ms=machine.wall_ms, from_coordinator=True).base_offset
        log.high_watermark = log.log_end_offset
        return at

    for number in range(20):
        put(machine, (b"other%d" % (number % 3), b"."))
    part = machine.log.compaction.cleanable(machine.wall_ms)
    assert part is None, "a transaction that has not ended holds everything behind it back"
    marker = end(Marker.ABORT)
    put(machine, (b"x", b"1"), producer_id=9, producer_epoch=1, base_sequence=0)
    for _ in range(3):
        for number in range(20):
            put(machine, (b"other%d" % (number % 3), b"."))
        clean(machine)
        machine.wall_ms += RETENTION_MS
        assert table(rows(machine.log))[b"k"] == (committed, b"committed")
    assert marker not in {view.base_offset for view in views(machine.log)}


def test_a_log_that_is_cut_below_what_was_compacted_starts_over(machine: Any) -> None:
    """What replaced older records would go, and they are gone: the leader's log has to be copied anew."""
    fill(compacted(machine))
    clean(machine)
    machine.log.truncate_to(machine.log.compaction.point - 3)
    assert (machine.log.log_start_offset, machine.log.log_end_offset) == (0, 0)
    machine.log.check()


@pytest.mark.parametrize("loses_power", [True, False])
def test_a_log_that_is_cut_below_what_was_compacted_starts_over_after_a_crash_at_any_step(
    make_machine: Any, loses_power: bool
) -> None:
    """The checkpoint may name an older cleaner point and high watermark than the segments that are in place."""
    for steps in range(80):
        each = compacted(make_machine(directory=f"/disk/t-{steps}"))
        fill(each, 30)
        written = rows(each.log)
        each.log.flush()
        each.log.checkpoint(flush=True)
        each.log.high_watermark = 0
        each.log.checkpoint(flush=True)
        each.log.high_watermark = each.log.log_end_offset
        cleaning = begin(each)
        end = cleaning.end_offset
        is_over = any(cleaning.step() is None for _ in range(steps))
        each.files.crash()
        if loses_power:
            each.disk.lose_power(random.Random(steps))
            each.boot_id = "another"
        each.files = each.disk.files()
        log = each.open()
        log.truncate_to(end - 3)
        log.check()
        below = [row for row in written if row[0] < log.log_end_offset]
        assert table(rows(log)) == table(below), f"after {steps} steps the log has {rows(log)}"
        if is_over:
            return
    pytest.fail("the cleaning never came to its end")


@pytest.mark.parametrize("loses_power", [True, False])
def test_a_compacted_log_that_is_cut_above_what_is_committed_keeps_what_is(machine: Any, loses_power: bool) -> None:
    """A replica in sync may have to drop an uncommitted end of several segments. The leader counts on the rest."""
    fill(compacted(machine))
    clean(machine)
    log = machine.log
    committed, kept = log.log_end_offset, rows(log)
    log.checkpoint()
    fill(machine, 20)
    log.flush()
    assert log.segments.active.base_offset > committed + 3
    if loses_power:
        machine.disk.lose_power(WorstLuck())
        machine.files, machine.boot_id = machine.disk.files(), "another"
        log = machine.open()
    else:
        log = machine.recover()
    log.truncate_to(committed + 3)
    assert log.log_end_offset == committed + 3 and rows(log)[: len(kept)] == kept


def test_a_loss_of_power_brings_back_no_cleaner_point_from_before_the_log_was_emptied(
    machine: Any,
) -> None:
    """Nothing of the new copy is clean, and a tombstone that counted as clean would go before the records that it hides."""
    fill(compacted(machine))
    clean(machine)
    log = machine.log
    log.checkpoint(flush=True)
    point = log.compaction.point
    log.truncate_fully_and_start_at(0)
    log.update_config(replace(machine.config, segment_bytes=1 << 20))
    put(machine, (b"k", b"old"))
    put(machine, (b"k", None))
    put(machine, *((b"other", b"v"),) * point)
    machine.files.open(machine.path(f"{0:020d}.log")).flush()
    machine.disk.lose_power(WorstLuck())
    machine.files, machine.boot_id = machine.disk.files(), "another"
    log = machine.open()
    assert log.log_end_offset > point
    log.high_watermark = log.log_end_offset
    for _ in range(3):
        put(machine, (b"other", b"v"))
        log.roll(machine.wall_ms)
        clean(machine)
        machine.wall_ms += 2 * RETENTION_MS
    assert b"k" not in table(rows(log))


@pytest.mark.parametrize("crashes", [False, True])
def test_a_cut_ends_a_cleaning_at_any_step_and_nothing_of_it_stays(make_machine: Any, crashes: bool) -> None:
    for steps in range(1, 40):
        each = make_machine(directory=f"/disk/t-{steps}")
        fill(compacted(each), 30)
        cleaning = begin(each)
        is_over = any(cleaning.step() is None for _ in range(steps))
        each.log.truncate_fully_and_start_at(5)
        if not crashes:
            assert cleaning.step() is None
            each.log.compaction.end(cleaning)
            assert not [name for name in each.names() if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert each.recover().log_end_offset == 5 and rows(each.log) == []
        if is_over:
            return
    pytest.fail("the cleaning never came to its end")


def test_a_log_is_closed_in_the_middle_of_a_cleaning(make_machine: Any) -> None:
    for steps in range(1, 40):
        each = make_machine(directory=f"/disk/t-{steps}")
        fill(compacted(each), 30)
        before = table(rows(each.log))
        cleaning = begin(each)
        is_over = any(cleaning.step() is None for _ in range(steps))
        each.log.close()
        assert cleaning.step() is None
        assert table(rows(each.open())) == before
        assert each.log.recovery.cut_bytes == 0 and not [name for name in each.names() if ".swap" in name]
        if is_over:
            return
    pytest.fail("the cleaning never came to its end")


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_of_power_after_any_step_takes_no_key(make_machine: Any, seed: int) -> None:
    for steps in range(60):
        each = compacted(make_machine(directory=f"/disk/t-{steps}"), flush_messages=1)
        for number in range(30):
            put(each, (b"k%d" % (number % 5), b"v%d" % number))
            each.log.flush()
        before = table(rows(each.log))
        cleaning = begin(each)
        is_over = any(cleaning.step() is None for _ in range(steps))
        each.disk.lose_power(random.Random(seed * 100 + steps))
        each.files, each.boot_id = each.disk.files(), "another"
        assert table(rows(each.open())) == before, f"after {steps} steps"
        assert each.log.condition is Condition.WHOLE and each.log.recovery.cut_bytes == 0
        if is_over:
            return
    pytest.fail("the cleaning never came to its end")


@pytest.mark.parametrize("seed", range(2))
def test_a_record_gives_way_only_to_one_that_is_on_the_disk(make_machine: Any, seed: int) -> None:
    """Without a flush of what came since, a loss of power takes that; what was there before it must still be there then."""
    for steps in range(60):
        each = compacted(make_machine(directory=f"/disk/t-{steps}"), segment_bytes=200)
        fill(each, 4, keys=2)
        each.log.flush()
        flushed = table(rows(each.log))
        fill(each, 6, keys=2)
        cleaning = begin(each)
        is_over = any(cleaning.step() is None for _ in range(steps))
        each.disk.lose_power(random.Random(seed * 100 + steps))
        each.files, each.boot_id = each.disk.files(), "another"
        found = table(rows(each.open()))
        assert {key for key, (offset, _) in flushed.items() if found.get(key, (-1,))[0] < offset} == set(), steps
        if is_over:
            return
    pytest.fail("the cleaning never came to its end")


Operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.booleans(), st.integers(1, 3)),
        st.tuples(
            st.just("clean"), st.integers(0, 60), st.sampled_from(["goes on", "crash", "power", "close"]), st.just(0)
        ),
        st.tuples(st.just("wait"), st.just(0), st.just(False), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(operations=Operations, seed=st.integers(0, 1 << 30), keeps_checkpoint=st.booleans())
def test_a_compacted_log_reads_as_the_same_table_whatever_happens_while_it_is_cleaned(
    make_machine: Any, operations: list[tuple[str, int, Any, int]], seed: int, keeps_checkpoint: bool
) -> None:
    """Without ``keeps_checkpoint`` a loss of power may bring back an older cleaner point, or take it."""
    flush_messages = 1 if keeps_checkpoint else NEVER
    machine = compacted(make_machine(), flush_messages=flush_messages, cleaner_dedupe_buffer_bytes=24 * 6)
    written: list[Row] = []
    for kind, number, how, size in operations:
        if kind == "put":
            pairs = [(b"k%d" % (number + each), None if how and each == 0 else b"v" * 40) for each in range(size)]
            base = put(machine, *pairs)
            machine.log.flush()
            written += [(base + each, key, value) for each, (key, value) in enumerate(pairs)]
        elif kind == "wait":
            machine.wall_ms += RETENTION_MS
        else:
            part = machine.log.compaction.cleanable(machine.wall_ms)
            if part is None:
                continue
            cleaning = machine.log.compaction.begin(part, machine.wall_ms)
            is_over = any(cleaning.step() is None for _ in range(number))
            if how == "goes on":
                while not is_over:
                    is_over = cleaning.step() is None
                machine.log.compaction.end(cleaning)
            elif how == "close":
                machine.reopen()
            else:
                machine.files.crash()
                if how == "power":
                    machine.disk.lose_power(random.Random(seed))
                    machine.boot_id += "+"
                machine.files = machine.disk.files()
                machine.open()
                assert machine.log.recovery.cut_bytes == 0
            machine.log.high_watermark = machine.log.log_end_offset
        found = rows(machine.log)
        assert table(found) == table(written)
        assert set(found) <= set(written)
        assert machine.log.log_end_offset == len(written)
        machine.log.check()
