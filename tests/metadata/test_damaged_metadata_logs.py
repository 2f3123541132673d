"""The quorum's files: what is not whole is cut or refused by name."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest
from metadata_logs import FOLDER, A, entries, entry, formatted, let_go, log_bytes, reopened, write, write_both

from raylog.errors import DiskError
from raylog.log.files import Files
from raylog.raft.messages import (
    Entry,
    HardState,
    Snapshot,
)
from raylog.raft.metadata_log import END_NAME, LOG_NAME, STATE_NAME, MetadataLog
from raylog.raft.state_files import COPY_SUFFIX, INCARNATION_NAME
from raylog.simulator.simulated_files import SimulatedDisk, WorstLuck


def test_a_torn_tail_is_cut_wherever_it_is_torn(disk: SimulatedDisk) -> None:
    files: Files = disk.files()
    log = formatted(files)
    log.store(write(*entries(1, 2)))
    safe, noted = len(log_bytes(files)), files.read_file(f"{FOLDER}/{END_NAME}")
    log.store(write(*entries(3, 4)))
    log.close()
    whole = log_bytes(files)
    frame = (len(whole) - safe) // 2
    for end in range(safe, len(whole)):
        files.write_file(f"{FOLDER}/{LOG_NAME}", whole[:end])
        write_both(files, END_NAME, noted)
        log = MetadataLog.open(files, FOLDER)
        survivors = 2 + (end - safe) // frame
        assert log.entries == entries(1, survivors)
        assert log.cut_bytes == (end - safe) % frame
        log.store(write(entry(survivors + 1, 1, b"again")))
        assert reopened(log, files).entries[-1] == entry(survivors + 1, 1, b"again")
        # `reopened` leaves the log open in this view; the next round needs it closed.
        files = let_go(disk)


def test_incarnations_rise_whatever_the_clock_says(disk: SimulatedDisk) -> None:
    claimed = []
    for number, clock in enumerate((1_000, 2_000, 500, 500, 3_000, 1)):
        log = MetadataLog.open(disk.files(), FOLDER)
        claimed.append(log.claim_incarnation(clock))
        log.close()
        disk.lose_power(random.Random(number))
    assert claimed == [1_000, 2_000, 2_001, 2_002, 3_000, 3_001]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{}", "is corrupt"), (b"", "is corrupt"), (b'{"version": 2, "incarnation": 1}', "is of version 2")],
)
def test_an_incarnation_that_cannot_be_read_is_refused_by_name(disk: SimulatedDisk, content: bytes, said: str) -> None:
    files = disk.files()
    log = MetadataLog.open(files, FOLDER)
    write_both(files, INCARNATION_NAME, content)
    with pytest.raises(DiskError, match=f"incarnation {said}"):
        log.claim_incarnation(5)


def test_garbage_behind_the_last_entry_is_cut(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(*entries(1, 3)))
    log.close()
    files.write_file(f"{FOLDER}/{LOG_NAME}", log_bytes(files) + b"RLME\0\0\0\x30garbage" * 9)
    log = MetadataLog.open(files, FOLDER)
    assert log.entries == entries(1, 3) and log.cut_bytes > 0


def test_a_corrupt_entry_that_had_been_flushed_is_refused_and_named(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files)
    for index in range(1, 4):
        log.store(write(entry(index)))
    log.close()
    whole = log_bytes(files)
    for position in (whole.index(b"entry 1"), whole.index(b"entry 2")):
        broken = bytearray(whole)
        broken[position] ^= 1
        files.write_file(f"{FOLDER}/{LOG_NAME}", bytes(broken))
        with pytest.raises(DiskError, match=f"entry {int(chr(whole[position + 6]))}, are corrupt"):
            MetadataLog.open(files, FOLDER)


def test_a_corrupt_entry_of_the_last_write_is_a_torn_tail(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(entry(1)))
    noted = files.read_file(f"{FOLDER}/{END_NAME}")
    log.store(write(*entries(2, 4)))
    log.close()
    write_both(files, END_NAME, noted)
    broken = bytearray(log_bytes(files))
    broken[broken.index(b"entry 2")] ^= 1  # a page that never reached the disk, while the ones behind it did
    files.write_file(f"{FOLDER}/{LOG_NAME}", bytes(broken))
    assert MetadataLog.open(files, FOLDER).entries == entries(1, 1)


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_log_that_was_cut_at_rest_is_refused_wherever_it_was_cut(disk: SimulatedDisk, left: float) -> None:
    """The quorum counts on what it held: with the entries it would lose its part of a majority."""
    files = disk.files()
    log = formatted(files)
    start = len(log_bytes(files))
    for first in (1, 4, 7):
        log.store(write(*entries(first, first + 2)))
    log.close()
    whole = log_bytes(files)
    files.write_file(f"{FOLDER}/{LOG_NAME}", whole[: start + int((len(whole) - start) * left)])
    with pytest.raises(
        DiskError, match=r"metadata\.log ends with entry \d of term \d, but entry 9 of term 1 had been written"
    ):
        MetadataLog.open(files, FOLDER)


def test_an_entry_of_the_last_write_that_was_corrupted_at_rest_is_refused(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(*entries(1, 3)))
    log.close()
    broken = bytearray(log_bytes(files))
    broken[broken.index(b"entry 2")] ^= 1
    files.write_file(f"{FOLDER}/{LOG_NAME}", bytes(broken))
    with pytest.raises(DiskError, match="ends with entry 1 of term 1, but entry 3 of term 1"):
        MetadataLog.open(files, FOLDER)


@pytest.mark.parametrize("content", [None, b"", b'{"version": 1, "index": 99, "term": 9, "crc": "00000000"}\n'])
def test_a_log_end_that_a_loss_of_power_or_an_older_version_has_left_is_no_evidence(
    disk: SimulatedDisk, content: bytes | None
) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(*entries(1, 3)))
    log.close()
    files.remove(f"{FOLDER}/{END_NAME}")
    files.remove(f"{FOLDER}/{END_NAME}{COPY_SUFFIX}")
    if content is not None:
        write_both(files, END_NAME, content)
    assert MetadataLog.open(files, FOLDER).entries == entries(1, 3)


def test_every_flipped_bit_of_a_vote_is_refused_or_harmless(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files, term=5)
    log.close()
    content = files.read_file(f"{FOLDER}/{STATE_NAME}")
    for position in range(8 * len(content)):
        broken = bytearray(content)
        broken[position // 8] ^= 1 << position % 8
        write_both(files, STATE_NAME, bytes(broken))
        files = let_go(disk)
        with contextlib.suppress(DiskError):
            assert MetadataLog.open(files, FOLDER).hard_state == HardState(5, A)
            files = let_go(disk)


def test_a_vote_without_a_checksum_is_that_of_an_older_version(disk: SimulatedDisk) -> None:
    files = disk.files()
    formatted(files).close()
    write_both(files, STATE_NAME, b'{"version": 1, "term": 3, "voted_for": null}')
    assert MetadataLog.open(files, FOLDER).hard_state == HardState(3, None)


@pytest.mark.parametrize(
    ("name", "offset"),
    [(LOG_NAME, 9), ("00000000000000000000-0000000000.checkpoint", 9)],
)
def test_a_file_of_a_newer_version_is_refused_by_name(disk: SimulatedDisk, name: str, offset: int) -> None:
    files = disk.files()
    formatted(files).close()
    content = bytearray(files.read_file(f"{FOLDER}/{name}"))
    content[offset] += 1
    files.write_file(f"{FOLDER}/{name}", bytes(content))
    with pytest.raises(DiskError, match=f"{name} is of version 2"):
        MetadataLog.open(files, FOLDER)


def test_a_quorum_state_of_a_newer_version_is_refused_by_name(disk: SimulatedDisk) -> None:
    files = disk.files()
    formatted(files).close()
    write_both(files, STATE_NAME, b'{"version": 3, "term": 1, "voted_for": null}')
    with pytest.raises(DiskError, match="quorum-state is of version 3"):
        MetadataLog.open(files, FOLDER)


def test_an_entry_of_a_kind_of_the_future_is_refused(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(Entry(1, 1, 9, b"")))  # type: ignore[arg-type]
    log.close()
    with pytest.raises(DiskError, match="kind 9"):
        MetadataLog.open(files, FOLDER)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version": 1, "term": "x", "voted_for": 3}'])
def test_a_corrupt_quorum_state_is_refused(disk: SimulatedDisk, content: bytes) -> None:
    files = disk.files()
    formatted(files).close()
    write_both(files, STATE_NAME, content)
    with pytest.raises(DiskError, match="quorum-state"):
        MetadataLog.open(files, FOLDER)


@pytest.mark.parametrize("name", [LOG_NAME, STATE_NAME])
def test_a_voter_without_its_log_or_its_votes_is_refused(disk: SimulatedDisk, name: str) -> None:
    files = disk.files()
    formatted(files).close()
    files.remove(f"{FOLDER}/{name}")
    if name == STATE_NAME:
        files.remove(f"{FOLDER}/{name}{COPY_SUFFIX}")
    with pytest.raises(DiskError, match=f"{name} is missing"):
        MetadataLog.open(files, FOLDER)


def test_a_snapshot_that_the_log_goes_on_from_must_be_there(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(*entries(1, 3)))
    log.store(write(snapshot=Snapshot(2, 1, "cluster", (A,), b"")))
    log.close()
    files.remove(f"{FOLDER}/00000000000000000002-0000000001.checkpoint")
    with pytest.raises(DiskError, match="newest snapshot ends at 0"):
        MetadataLog.open(files, FOLDER)


@pytest.mark.parametrize("name", [LOG_NAME, "00000000000000000000-0000000000.checkpoint"])
@pytest.mark.parametrize("position", [0, 15, -1])
def test_corrupt_bytes_are_refused_with_the_name_of_the_file(disk: SimulatedDisk, name: str, position: int) -> None:
    files = disk.files()
    formatted(files).close()
    content = bytearray(files.read_file(f"{FOLDER}/{name}"))
    content[position] ^= 1
    files.write_file(f"{FOLDER}/{name}", bytes(content))
    with pytest.raises(DiskError, match=name):
        MetadataLog.open(files, FOLDER)


def test_a_term_older_than_the_log_is_refused(disk: SimulatedDisk) -> None:
    """A copy of quorum-state that was put back could vote twice in a term."""
    files = disk.files()
    log = formatted(files, term=4)
    log.store(write(entry(1, 4)))
    log.close()
    write_both(files, STATE_NAME, b'{"version": 1, "term": 3, "voted_for": null}')
    with pytest.raises(DiskError, match="term 3, the log of term 4"):
        MetadataLog.open(files, FOLDER)


def test_after_a_failed_write_the_log_takes_no_more(disk: SimulatedDisk) -> None:
    log = formatted(disk.files())

    def full(operation: str, path: str) -> None:
        if operation == "flush":
            raise OSError(errno.EIO, "Input/output error", path)

    disk.fault = full
    with pytest.raises(OSError, match="Input/output"):
        log.store(write(entry(1)))
    disk.fault = None
    with pytest.raises(DiskError, match="earlier write failed"):
        log.store(write(entry(1)))


def test_what_a_failed_flush_left_in_the_page_cache_is_written_again_before_it_is_trusted(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(*entries(1, 2)))

    def failing(operation: str, path: str) -> None:
        if operation == "flush":
            raise OSError(errno.EIO, "Input/output error", path)

    disk.fault = failing
    with pytest.raises(OSError, match="Input/output"):
        log.store(write(*entries(3, 5)))
    disk.fault = None
    files.crash()
    found = MetadataLog.open(disk.files(), FOLDER)
    assert found.entries == entries(1, 5)
    disk.lose_power(WorstLuck())
    assert MetadataLog.open(disk.files(), FOLDER).entries == entries(1, 5)
