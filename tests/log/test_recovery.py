"""Opening after a crash [L19]: each kind of damage, what is kept, what is cut, and the verdict on the log."""

from __future__ import annotations

import errno
import random
import uuid
from typing import Any

import pytest
from crc32c import crc32c

from raylog.errors import DiskError
from raylog.records.batch import batches
from raylog.records.codec import encode_values
from raylog.types import Condition

LOG = f"{0:020d}.log"


def _fill(machine: Any, count: int = 5, *, batches_of_epoch: int = 3, **config: Any) -> Any:
    log = machine.open(**config)
    for number in range(count):
        machine.append(b"x" * 100, b"y", timestamp_ms=1000 + number, leader_epoch=number // batches_of_epoch)
    return log


def _batches(log: Any) -> list[int]:
    offset, found = log.log_start_offset, []
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20)
        found += [view.base_offset for view in batches(part.records) if view.has_valid_crc()]
        offset = part.next_offset
    return found


def test_a_new_folder_is_missing_then_clean_then_whole(machine: Any) -> None:
    assert machine.open().condition is Condition.MISSING
    assert machine.reopen().condition is Condition.CLEAN
    machine.append(b"a")
    log = machine.reopen()
    assert log.condition is Condition.CLEAN and log.recovery.scanned_segments == 0
    assert machine.recover().condition is Condition.WHOLE and machine.log.recovery.scanned_segments == 1
    machine.log.check()


def test_the_clean_mark_is_gone_from_the_disk_once_the_log_is_open(machine: Any) -> None:
    _fill(machine)
    machine.reopen()
    machine.disk.lose_power(random.Random(0))
    machine.files = machine.disk.files()
    assert machine.open().condition is not Condition.CLEAN


@pytest.mark.parametrize("kept", [1, 11, 12, 30, 60, 61, 100])
def test_a_torn_tail_is_cut_and_the_log_stays_whole(machine: Any, kept: int) -> None:
    log = _fill(machine)
    whole = log.size_bytes
    torn = encode_values([b"z" * 100], timestamp_ms=1)
    torn = (10).to_bytes(8, "big") + torn[8:]
    machine.damage(LOG, lambda data: data + torn[:kept])
    log = machine.recover()
    assert (log.condition, log.log_end_offset, log.size_bytes) == (Condition.WHOLE, 10, whole)
    assert log.recovery.cut_bytes == (kept if kept > 7 else 0) and _batches(log) == [0, 2, 4, 6, 8]
    assert machine.append(b"next") == 10
    log.check()


def test_a_last_batch_with_a_bad_crc_is_cut_as_torn(machine: Any) -> None:
    _fill(machine)
    machine.damage(LOG, lambda data: data[:-3] + b"???")
    log = machine.recover()
    assert (log.condition, log.log_end_offset) == (Condition.WHOLE, 8)
    assert "CRC" in str(log.recovery.cut_reason)


def test_appended_garbage_is_cut_and_makes_the_log_suspect(machine: Any) -> None:
    log = _fill(machine)
    whole = log.size_bytes
    garbage = random.Random(3).randbytes(500)
    machine.damage(LOG, lambda data: data + garbage)
    log = machine.recover()
    assert (log.condition, log.log_end_offset, log.size_bytes) == (Condition.SUSPECT, 10, whole)


def test_a_bad_batch_in_the_middle_ends_the_log_there_and_makes_it_suspect(machine: Any) -> None:
    log = _fill(machine, 9, segment_bytes=600)
    assert len(log.segments) > 2
    machine.damage(LOG, lambda data: data[:250] + bytes([data[250] ^ 1]) + data[251:])
    log = machine.recover()
    assert (log.condition, log.log_end_offset, log.segments.base_offsets) == (Condition.SUSPECT, 2, [0])
    assert log.leader_epochs.entries == ((0, 0),)
    assert [name for name in machine.names() if name.endswith(".log")] == [LOG]
    log.check()


def test_zeros_at_the_end_are_cut_without_suspicion(machine: Any) -> None:
    """They are what preallocation leaves, or pages that were never flushed and so never acknowledged under flush.messages=1."""
    _fill(machine)
    machine.damage(LOG, lambda data: data + bytes(5000))
    log = machine.recover()
    assert (log.condition, log.log_end_offset, log.recovery.cut_bytes) == (Condition.WHOLE, 10, 0)
    log = machine.recover(preallocate=True, segment_bytes=1 << 14)
    machine.append(b"a")
    assert machine.recover().log_end_offset == 11


def test_offsets_that_come_again_end_the_log(machine: Any) -> None:
    _fill(machine)
    machine.damage(LOG, lambda data: data + data[:230])
    assert machine.recover().log_end_offset == 10
    assert "comes again" in machine.log.recovery.cut_reason


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("way", ["missing", "garbage", "oversized", "odd"])
@pytest.mark.parametrize("stop", ["reopen", "recover"])
def test_a_damaged_index_is_rebuilt(machine: Any, suffix: str, way: str, stop: str) -> None:
    log = _fill(machine, 40, segment_bytes=3000, index_interval_bytes=300)
    before = {name: machine.files.read_file(machine.path(name)) for name in machine.names() if name.endswith(suffix)}
    sealed = min(before)
    log.flush()
    log.checkpoint()
    if stop == "reopen":
        log.close()
    machine.crash()
    if way == "missing":
        machine.files.remove(machine.path(sealed))
    else:
        garbage = {"garbage": b"\xff" * 48, "oversized": before[sealed] + bytes(480), "odd": before[sealed] + b"\x01"}[
            way
        ]
        machine.files.write_file(machine.path(sealed), garbage)
    log = machine.open()
    assert any(suffix in fault for fault in log.recovery.rebuilt_indexes)
    assert machine.files.read_file(machine.path(sealed)) == before[sealed]
    assert log.condition is (Condition.CLEAN if stop == "reopen" else Condition.WHOLE)
    assert log.offset_for_timestamp(1007) == (1007, 14, 2) and _batches(log) == list(range(0, 80, 2))
    log.check()


def test_the_active_index_is_rebuilt_to_the_same_entries_after_a_crash(machine: Any) -> None:
    log = _fill(machine, 40, index_interval_bytes=300)
    expected = [
        log.segments.active.offset_index.file.get(n) for n in range(log.segments.active.offset_index.file.count)
    ]
    machine.damage(f"{0:020d}.index", lambda data: b"\xff" * 100)
    log = machine.recover()
    index = log.segments.active.offset_index.file
    assert [index.get(number) for number in range(index.count)] == expected and len(expected) > 5


def test_only_segments_from_the_recovery_point_on_are_scanned(machine: Any) -> None:
    log = _fill(machine, 20, segment_bytes=600)
    log.flush_rolled()
    log.checkpoint()
    segments = len(log.segments)
    log = machine.recover()
    assert log.recovery.scanned_segments == 1 and len(log.segments) == segments
    machine.crash()
    machine.boot_id = "boot-2"
    assert machine.open().recovery.scanned_segments == 2, "the segment sealed just before may lack its indexes then"


@pytest.mark.parametrize("stop", ["crash", "close"])
@pytest.mark.parametrize("lost", ["a byte", "a batch", "a page with a batch", "everything", "every page"])
@pytest.mark.parametrize("batches_of_epoch", [3, 20])
def test_a_sealed_segment_that_was_cut_at_rest_ends_the_log_there_and_makes_it_suspect(
    machine: Any, stop: str, lost: str, batches_of_epoch: int
) -> None:
    """A page that the disk has lost reads as zeros, which look like a message of format 0."""
    log = _fill(machine, 20, batches_of_epoch=batches_of_epoch, segment_bytes=600)
    log.flush_rolled()
    log.checkpoint()
    bases = log.segments.base_offsets
    assert len(bases) > 3
    (machine.log.close if stop == "close" else machine.crash)()
    size = len(machine.files.read_file(f"{machine.directory}/{bases[1]:020d}.log"))
    batch = size // ((bases[2] - bases[1]) // 2)  # of two records
    left = size - 1 if lost == "a byte" else size - batch if "batch" in lost else 0
    zeros = bytes(size - left if "page" in lost else 0)
    machine.damage(f"{bases[1]:020d}.log", lambda data: data[:left] + zeros)
    log = machine.open()
    assert log.condition is Condition.SUSPECT
    assert log.log_end_offset == (bases[2] - 2 if left else bases[1])
    assert _batches(log) == list(range(0, log.log_end_offset, 2)), "nothing is missing in what is left"
    log.check()


@pytest.mark.parametrize("stop", ["crash", "close"])
def test_zeros_at_the_end_of_a_sealed_segment_are_no_gap_that_a_cleaner_left(machine: Any, stop: str) -> None:
    """They would be cut off, and with them the only sign that records are missing in front of the next segment."""
    log = _fill(machine, 20, batches_of_epoch=20, segment_bytes=600)
    log.flush_rolled()
    log.checkpoint()
    bases = log.segments.base_offsets
    (machine.log.close if stop == "close" else machine.crash)()
    batch = log.segments.all[1].size // ((bases[2] - bases[1]) // 2)
    machine.damage(f"{bases[1]:020d}.log", lambda data: data[:batch] + bytes(len(data) - batch))
    log = machine.open(compacts=True)
    assert (log.condition, log.segments.base_offsets) == (Condition.SUSPECT, list(bases[:2]))
    assert log.log_end_offset == bases[1] + 2 and _batches(log) == list(range(0, bases[1] + 2, 2))
    assert log.recovery.cut_reason is not None and "zeros" in log.recovery.cut_reason
    log.check()


def test_zeros_that_preallocation_left_in_a_sealed_segment_are_cut_and_the_log_goes_on(machine: Any) -> None:
    """A crash between the creation of the next segment and the trimming of this one leaves them."""
    log = _fill(machine, 20, segment_bytes=600)
    log.flush_rolled()
    log.checkpoint()
    machine.crash()
    machine.damage(f"{log.segments.base_offsets[1]:020d}.log", lambda data: data + bytes(5000))
    log = machine.open()
    assert (log.condition, log.log_end_offset, log.recovery.cut_bytes) == (Condition.WHOLE, 40, 0)
    assert _batches(log) == list(range(0, 40, 2))


def test_a_log_that_ends_below_its_recovery_point_is_suspect(machine: Any) -> None:
    """What was flushed is gone, though no more than one incomplete batch was cut and nobody had noted a high watermark."""
    log = _fill(machine)
    log.flush()
    log.roll(machine.wall_ms)
    log.checkpoint()
    machine.crash()
    machine.damage(LOG, lambda data: data[:-3])
    log = machine.open()
    assert (log.condition, log.log_end_offset) == (Condition.SUSPECT, 8)


@pytest.mark.parametrize("stop", ["crash", "close"])
@pytest.mark.parametrize(
    ("old", "new"), [(b"\n2 12\n", b"\n2 10\n"), (b"\n2 12\n", b"\n2 14\n"), (b"\n1 6\n", b"\n1 4\n")]
)
def test_leader_epochs_that_were_changed_at_rest_are_read_from_the_batches(
    machine: Any, stop: str, old: bytes, new: bytes
) -> None:
    """Followers cut their logs by them."""
    log = _fill(machine, 20, segment_bytes=600)
    log.flush_rolled()
    log.checkpoint()
    entries = log.leader_epochs.entries
    assert len(entries) == 7 and log.segments.active.base_offset > 14
    (machine.log.close if stop == "close" else machine.crash)()
    machine.damage("leader-epoch-checkpoint", lambda data: data.replace(old, new))
    log = machine.open()
    assert log.leader_epochs.entries == entries and log.log_end_offset == 40
    assert log.condition is (Condition.SUSPECT if stop == "close" else Condition.WHOLE)


def test_an_offset_that_leaves_a_gap_ends_the_log_there_and_makes_it_suspect(machine: Any) -> None:
    """The CRC does not cover it: a flipped bit would make the log longer than any other."""
    log = _fill(machine, 5)
    last = log.segments.active.size // 5 * 4
    machine.crash()
    machine.damage(LOG, lambda data: data[: last + 4] + bytes([data[last + 4] | 1]) + data[last + 5 :])
    log = machine.open()
    assert (log.condition, log.log_end_offset) == (Condition.SUSPECT, 8)
    assert log.recovery.cut_reason is not None and "where 8 is next" in log.recovery.cut_reason


def test_a_batch_of_an_epoch_that_was_never_noted_makes_the_log_suspect(machine: Any) -> None:
    """The CRC does not cover it either: a later epoch would be taken for a better log."""
    log = _fill(machine, 5)
    last = log.segments.active.size // 5 * 4
    machine.crash()
    machine.damage(LOG, lambda data: data[: last + 15] + bytes([data[last + 15] | 8]) + data[last + 16 :])
    log = machine.open()
    assert (log.condition, log.leader_epochs.latest_epoch) == (Condition.SUSPECT, 9)


def test_a_batch_of_an_epoch_that_was_never_noted_is_cut_with_what_follows(machine: Any) -> None:
    """The epoch of the next batch is lower; but this one is the damaged one, for the file of epochs has not heard of its epoch."""
    log = _fill(machine, 5, index_interval_bytes=1)
    second = log.segments.active.size // 5
    machine.crash()
    machine.damage(LOG, lambda data: data[: second + 15] + bytes([data[second + 15] | 8]) + data[second + 16 :])
    log = machine.open()
    assert (log.condition, log.log_end_offset) == (Condition.SUSPECT, 2)
    assert log.leader_epochs.entries == ((0, 0),) and _batches(log) == [0]
    assert log.recovery.cut_reason is not None and "epoch 8, which there has not been" in log.recovery.cut_reason
    log.check()


def test_epochs_that_began_below_the_logs_start_make_no_log_suspect(machine: Any) -> None:
    """The file of epochs begins where the log does; the batches that are to be deleted below are still there."""
    log = machine.open()
    for epoch in (0, 1):
        for _ in range(3):
            log.append_as_leader(
                encode_values([b"a", b"b"], timestamp_ms=1), leader_epoch=epoch, wall_ms=machine.wall_ms
            )
    log.high_watermark = log.log_end_offset
    assert log.leader_epochs.entries == ((0, 0), (1, 6))
    assert log.advance_log_start(8)
    log.checkpoint()
    machine.crash()
    log = machine.open()
    assert (log.condition, log.log_start_offset, log.log_end_offset) == (Condition.WHOLE, 8, 12)
    log.check()


def test_a_later_epoch_that_began_below_the_logs_start_makes_the_log_suspect(machine: Any) -> None:
    """The file would name it, and not the one before, where the log starts."""
    log = machine.open()
    for epoch in (0, 1):
        log.append_as_leader(encode_values([b"a", b"b"], timestamp_ms=1), leader_epoch=epoch, wall_ms=machine.wall_ms)
    log.high_watermark = log.log_end_offset
    log.advance_log_start(3)
    log.checkpoint()
    size = log.segments.active.size // 2
    machine.crash()
    machine.damage(LOG, lambda data: data[: size + 15] + bytes([9]) + data[size + 16 :])
    assert machine.open().condition is Condition.SUSPECT


def test_leftovers_of_deletion_and_cleaning_are_removed(machine: Any) -> None:
    _fill(machine)
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.cleaned",
        "00000000000000000099.timeindex",
    ):
        machine.files.write_file(machine.path(name), b"x" * 12)
    log = machine.recover()
    assert sorted(log.recovery.removed) == sorted(
        ["00000000000000000000.log.deleted", "00000000000000000000.index.cleaned", "00000000000000000099.timeindex"]
    )
    assert log.log_end_offset == 10 and not [
        name for name in machine.names() if name.endswith((".deleted", ".cleaned"))
    ]


def test_a_finished_swap_takes_the_place_of_what_it_covers(machine: Any) -> None:
    _fill(machine, 9, segment_bytes=600)
    machine.log.close()
    bases = machine.log.segments.base_offsets
    merged = b"".join(machine.files.read_file(machine.path(f"{base:020d}.log")) for base in bases[:2])
    machine.files.write_file(machine.path(LOG + ".swap"), merged)
    log = machine.open()
    assert log.segments.base_offsets == [0, *bases[2:]] and _batches(log) == list(range(0, 18, 2))
    log.check()


def test_a_swap_beside_an_unfinished_cleaning_is_dropped(machine: Any) -> None:
    _fill(machine)
    machine.log.close()
    machine.files.write_file(machine.path(LOG + ".swap"), b"half")
    machine.files.write_file(machine.path(LOG + ".cleaned"), b"half")
    assert machine.open().log_end_offset == 10


def test_lost_epochs_are_read_from_the_batches(machine: Any) -> None:
    entries = _fill(machine, 9).leader_epochs.entries
    machine.files.remove(machine.path("leader-epoch-checkpoint"))
    assert machine.recover().leader_epochs.entries == entries == ((0, 0), (1, 6), (2, 12))
    machine.log.close()
    machine.files.write_file(machine.path("leader-epoch-checkpoint"), b"rubbish")
    assert machine.open().leader_epochs.entries == entries


def test_offsets_survive_in_the_checkpoint_and_never_leave_the_log(machine: Any) -> None:
    log = _fill(machine)
    log.high_watermark = 8
    log.advance_log_start(4)
    log = machine.recover()
    assert (log.log_start_offset, log.high_watermark) == (4, 8)
    machine.damage(LOG, lambda data: data[:-30])
    log.high_watermark = 10
    log.checkpoint()
    log = machine.recover()
    assert (log.log_end_offset, log.high_watermark) == (8, 8)


# ------------------------------------------------------------------ the verdict


def test_a_cut_below_the_checkpointed_high_watermark_is_suspect(machine: Any) -> None:
    log = _fill(machine)
    log.high_watermark = 10
    log.checkpoint()
    machine.damage(LOG, lambda data: data[:-3])
    assert machine.recover().condition is Condition.SUSPECT


def test_another_boot_is_suspect_unless_every_append_was_flushed(machine: Any) -> None:
    _fill(machine)
    machine.boot_id = "boot-2"
    assert machine.recover().condition is Condition.SUSPECT
    machine.recover(flush_messages=1)
    machine.append(b"a")
    machine.boot_id = "boot-3"
    assert machine.recover().condition is Condition.WHOLE
    machine.log.update_config(type(machine.config)())
    machine.log.checkpoint()
    machine.boot_id = "boot-4"
    assert machine.recover().condition is Condition.SUSPECT, "flush.messages=1 was not in force all the time"


@pytest.mark.parametrize("stop", ["recover", "reopen"])
def test_suspicion_outlives_the_process_until_somebody_trusts_the_log(machine: Any, stop: str) -> None:
    machine.trusts = False
    assert machine.open().condition is Condition.MISSING
    assert getattr(machine, stop)().condition is Condition.SUSPECT
    machine.log.trust()
    assert machine.log.condition is Condition.SUSPECT, "it says what was found"
    assert getattr(machine, stop)().condition in (Condition.WHOLE, Condition.CLEAN)
    machine.append(b"a")
    machine.boot_id = "boot-2"
    assert machine.recover().condition is Condition.SUSPECT
    assert machine.recover().condition is Condition.SUSPECT


def test_a_clean_stop_does_not_vouch_for_a_log_that_nobody_has_confirmed(machine: Any) -> None:
    """Its end may have been cut off while it was at rest; a clean log would lead without a look at the others."""
    _fill(machine)
    machine.trusts = False
    assert machine.recover().condition is Condition.WHOLE
    assert machine.reopen().condition is Condition.WHOLE
    machine.log.trust()
    assert machine.reopen().condition is Condition.CLEAN


def test_a_missing_or_damaged_checkpoint_is_suspect(machine: Any) -> None:
    _fill(machine)
    machine.files.remove(machine.path("replica.checkpoint"))
    log = machine.recover()
    assert (log.condition, log.log_end_offset) == (Condition.SUSPECT, 10)
    machine.damage("replica.checkpoint", lambda data: data.replace(b"clean 0", b"clean 1"))
    assert machine.recover().condition is Condition.SUSPECT


def test_a_folder_without_segments_is_missing_whatever_else_it_says(machine: Any) -> None:
    _fill(machine)
    machine.log.close()
    machine.files.remove(machine.path(LOG))
    log = machine.open()
    assert (log.condition, log.log_end_offset, log.high_watermark) == (Condition.MISSING, 0, 0)
    assert log.leader_epochs.entries == () and len(log.producers) == 0
    log.check()


@pytest.mark.parametrize(
    "change", [lambda data: data[:-5], lambda data: data + b"garbage" * 20, lambda data: data[:-230]]
)
def test_a_clean_log_that_was_changed_afterwards_is_suspect(machine: Any, change: Any) -> None:
    _fill(machine)
    machine.log.close()
    machine.damage(LOG, change)
    log = machine.open()
    assert log.condition is Condition.SUSPECT and log.log_end_offset in (6, 8, 10)
    log.check()


def test_power_loss_keeps_what_was_flushed(machine: Any) -> None:
    rng = random.Random(5)
    for boot in range(30):
        machine.boot_id = f"boot-{boot}"
        log = machine.open(segment_bytes=900, flush_messages=1)
        log.check()
        flushed = log.log_end_offset
        for _ in range(rng.randrange(6)):
            machine.append(b"x" * rng.randrange(200), leader_epoch=boot)
            if rng.random() < 0.7:
                flushed = log.flush()
        machine.disk.lose_power(rng)
        machine.files = machine.disk.files()
        machine.boot_id = "next"
        log = machine.open()
        assert flushed <= log.log_end_offset and _batches(log) == list(range(log.log_end_offset))
        log.close()


# ------------------------------------------------------------------ folders


def test_a_locked_folder_is_refused(machine: Any) -> None:
    machine.open()
    with pytest.raises(DiskError, match="locked"):
        type(machine)(disk=machine.disk).open()
    machine.log.close()
    machine.open()


def test_a_folder_of_another_topic_is_set_aside(machine: Any) -> None:
    _fill(machine)
    machine.log.close()
    log = machine.open(topic_id=uuid.UUID(int=9))
    assert (log.condition, log.log_end_offset) == (Condition.MISSING, 0)
    assert log.recovery.set_aside == "/disk/t-0.00112233445566778899aabbccddeeff-stray"
    assert LOG in machine.files.list_directory(log.recovery.set_aside)
    machine.append(b"a")
    log.close()
    assert machine.open(topic_id=uuid.UUID(int=9)).log_end_offset == 1


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("replica.checkpoint", None),
        ("leader-epoch-checkpoint", b"7\n0\n"),
        ("partition.metadata", b"version: 3\ntopic_id: x\n"),
        ("partition.metadata", b"rubbish"),
    ],
)
def test_files_of_a_newer_version_are_refused_by_name_and_left_alone(
    machine: Any, name: str, data: bytes | None
) -> None:
    _fill(machine)
    machine.log.close()
    if data is None:
        text = (
            machine.files.read_file(machine.path(name)).rpartition(b"crc ")[0].replace(b"checkpoint 1", b"checkpoint 2")
        )
        data = text + b"crc %08x\n" % crc32c(text)
    before = machine.files.read_file(machine.path(name))
    machine.files.write_file(machine.path(name), data)
    with pytest.raises(DiskError, match=name):
        machine.open()
    assert machine.files.read_file(machine.path(name)) == data
    machine.files.write_file(machine.path(name), before)
    assert machine.open().log_end_offset == 10, "the lock was released"


def test_messages_of_the_old_formats_in_a_folder_that_was_opened_before_are_refused_and_not_cut(machine: Any) -> None:
    message = bytes.fromhex(
        "0000000000000000 0000001c 4d46bea7 01 00 000001640c09144c 00000001 6b 00000005 68656c6c6f".replace(" ", "")
    )
    machine.open()
    machine.crash()
    machine.files.write_file(machine.path(LOG), message)
    with pytest.raises(DiskError, match=r"format 1 at byte 0.*Remove its replica\.checkpoint"):
        machine.open()
    assert machine.files.read_file(machine.path(LOG)) == message
    machine.files.remove(machine.path("replica.checkpoint"))
    assert machine.open().log_end_offset == 1


def test_an_unwritable_folder_is_refused_with_advice(machine: Any) -> None:
    def fault(operation: str, path: str) -> None:
        if operation in ("open", "write"):
            raise OSError(errno.EROFS, "read-only", path)

    machine.disk.fault = fault
    with pytest.raises(DiskError, match=r"Read-only file system.*Give a folder"):
        machine.open()


def test_deleting_a_log_removes_its_folder(machine: Any) -> None:
    _fill(machine)
    machine.log.delete()
    assert machine.files.list_directory("/disk") == []
    assert machine.open().condition is Condition.MISSING
