"""A log that is read through for damage: what is found, where, and what is left when it is dropped."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylog.log.scrubbing import Damage, Scrubbing, drop
from raylog.records.batch import batches
from raylog.records.corrupt import CorruptBatch

SEGMENT = "/disk/t-0/00000000000000000000.log"


def scrubbed(log, offset=0, *, is_urgent=False):
    scrubbing = Scrubbing(log, offset, is_urgent=is_urgent)
    while scrubbing.step():
        pass
    return scrubbing.found()


def places(log):
    """(base offset, segment's path, position, size) of every batch."""
    return [
        (view.base_offset, f"{segment.path}.log", position, view.size)
        for segment in log.segments
        for position, view in segment.scan()
    ]


def filled(machine, batch_count=12, **config):
    log = machine.open(**config)
    for number in range(batch_count):
        machine.append(b"%04d" % number * 20, b"x", leader_epoch=number // 5)
    return log


def test_a_whole_log_has_no_damage(machine):
    log = filled(machine, segment_bytes=600)
    assert len(log.segments) > 2
    assert scrubbed(log) is None


@pytest.mark.parametrize(
    ("byte", "words"),
    [(5, "offset"), (10, "a batch of"), (15, "leader epoch"), (16, "message format 0"), (20, "CRC"), (100, "CRC")],
)
def test_a_flipped_bit_is_found_where_it_is(machine, byte, words):
    log = filled(machine, segment_bytes=600)
    offset, path, position, _ = places(log)[4]
    machine.disk.flip_bit(path, position + byte, 1)
    damage = scrubbed(log)
    assert damage is not None
    assert (damage.path, damage.position, damage.offset) == (path, position, offset)
    assert words in damage.reason and path in damage.words() and f"offset {offset}" in damage.words()


def test_an_offset_that_jumps_ahead_is_blamed_and_not_the_batch_behind_it(machine):
    log = filled(machine)
    offset, path, position, _ = places(log)[6]
    machine.disk.flip_bit(path, position + 3, 0)
    found = scrubbed(log)
    assert found is not None and (found.position, found.offset) == (position, offset)


def test_the_last_batch_has_to_end_where_the_log_does(machine):
    log = filled(machine)
    offset, path, position, _ = places(log)[-1]
    machine.disk.flip_bit(path, position + 3, 0)
    found = scrubbed(log)
    assert found is not None and (found.position, found.offset) == (position, offset)


def test_a_zeroed_page_and_a_cut_file_are_found(machine):
    log = filled(machine)
    bases = [(position, size, offset) for offset, _, position, size in places(log)]
    machine.disk.zero_page(SEGMENT, 700)
    found = scrubbed(log)
    expected = next((position, offset) for position, size, offset in bases if position + size > 512)
    assert found is not None and (found.position, found.offset) == expected
    machine.files.open(SEGMENT).truncate(300)
    found = scrubbed(log)
    assert found is not None and found.position <= 300


def test_what_was_cut_or_deleted_meanwhile_is_no_damage(machine):
    log = filled(machine, segment_bytes=600)
    offset, path, position, _ = places(log)[4]
    machine.disk.flip_bit(path, position + 80)
    scrubbing = Scrubbing(log, 0, is_urgent=False)
    while scrubbing.step():
        pass
    assert scrubbing.damage is not None
    log.truncate_to(offset, position=position)
    assert scrubbing.found() is None


def test_a_log_that_is_written_rolled_and_deleted_meanwhile_has_no_damage(machine):
    log = filled(machine, segment_bytes=600, retention_bytes=700, file_delete_delay_ms=0)
    scrubbing = Scrubbing(log, 0, is_urgent=False)
    assert scrubbing.step()
    log.high_watermark = log.log_end_offset
    assert log.delete_old_segments(machine.wall_ms)
    log.delete_renamed_files(machine.wall_ms)
    machine.append(b"more" * 30)
    while scrubbing.step():
        pass
    assert scrubbing.damage is None


def test_an_urgent_one_reads_the_segment_in_question_only(machine):
    log = filled(machine, segment_bytes=600)
    last = places(log)[-1]
    machine.disk.flip_bit(last[1], last[2] + 80)
    assert scrubbed(log, 0, is_urgent=True) is None
    assert scrubbed(log, last[0], is_urgent=True) is not None


def test_reading_ends_before_damage_and_is_refused_at_it(machine):
    log = filled(machine)
    offset, path, position, _ = places(log)[4]
    machine.disk.flip_bit(path, position + 80)
    found = log.read(0, 1 << 20)
    assert found.next_offset == offset and len(list(batches(found.records))) == 4
    with pytest.raises(CorruptBatch, match="CRC"):
        log.read(offset, 1 << 20)
    with pytest.raises(CorruptBatch, match="CRC"):
        log.read(offset + 1, 10)
    behind = log.read(offset + 2, 1 << 20)
    assert behind.base_offset == offset + 2 and behind.next_offset == log.log_end_offset


def test_a_length_that_became_negative_ends_a_read_like_any_damage(machine):
    log = filled(machine)
    offset, path, position, _ = places(log)[4]
    machine.disk.flip_bit(path, position + 8, 7)
    assert log.read(0, 1 << 20).next_offset == offset
    with pytest.raises(CorruptBatch, match="a batch of -"):
        log.read(offset, 1 << 20)


def test_a_zeroed_page_does_not_keep_a_reader_walking(machine):
    log = filled(machine, 40)
    machine.disk.zero_page(SEGMENT, 700)
    damaged = log.read(0, 1 << 20).next_offset
    assert damaged > 0
    with pytest.raises(CorruptBatch):
        log.read(damaged, 1 << 20)


@pytest.mark.parametrize("number", [0, 4, 11])
def test_what_is_left_of_a_log_is_what_lay_before_the_damage(machine, number):
    log = filled(machine, segment_bytes=600)
    offset, path, position, _ = places(log)[number]
    machine.disk.flip_bit(path, position + 7, 2)
    damage = scrubbed(log)
    assert damage is not None
    drop(log, damage)
    log.check()
    assert log.log_end_offset == damage.offset == offset
    assert scrubbed(log) is None
    assert log.leader_epochs.latest_epoch == ((number - 1) // 5 if number else -1)
    machine.append(b"again", leader_epoch=9)
    assert machine.recover().log_end_offset == offset + 1


def test_a_compacted_log_is_dropped_whole(machine):
    filled(machine)
    log = machine.reopen(compacts=True)
    log.high_watermark = log.log_end_offset
    drop(log, Damage(SEGMENT, places(log)[4][2], 8, "a CRC does not fit"))
    log.check()
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_changed_byte_of_any_batch_is_found_and_never_read(make_machine, data):
    machine = make_machine()
    log = filled(machine, data.draw(st.integers(1, 20)), segment_bytes=data.draw(st.sampled_from((600, 1 << 20))))
    found = places(log)
    contents = {offset: bytes(log.read(offset, 1).records) for offset, *_ in found}
    offset, path, position, size = data.draw(st.sampled_from(found))
    machine.disk.flip_bit(path, position + data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
    damage = scrubbed(log)
    assert damage is not None and damage.offset <= offset, "the cut takes the damaged batch with it"
    drop(log, damage)
    log.check()
    for kept, *_ in found:
        if kept < log.log_end_offset:
            assert bytes(log.read(kept, 1).records) == contents[kept]
