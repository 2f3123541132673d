"""The quorum's files: what is stored is found again, after crashes too, and what is not whole is cut or refused by name."""

from __future__ import annotations

import contextlib
import errno
import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from raylog.errors import DiskError
from raylog.log.disk_files import DiskFiles
from raylog.log.files import Files
from raylog.raft.messages import (
    BLANK,
    Entry,
    EntryKind,
    HardState,
    QuorumWrite,
    Snapshot,
    bootstrap_snapshot,
    encode_voters,
)
from raylog.raft.metadata_log import END_NAME, LOCK_NAME, LOG_NAME, STATE_NAME, MetadataLog
from raylog.raft.state_files import COPY_SUFFIX, INCARNATION_NAME
from raylog.simulator.simulated_files import SimulatedDisk, TornWrite, WorstLuck

A, B = uuid.UUID(int=0xA), uuid.UUID(int=0xB)
FOLDER = "/disk/metadata"
BOOTSTRAP = bootstrap_snapshot("cluster", [A, B])


def entry(index: int, term: int = 1, data: bytes | None = None) -> Entry:
    return Entry(index, term, EntryKind.RECORDS, b"entry %d" % index if data is None else data)


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(entry(index, term) for index in range(first, last + 1))


def write(*content: Entry, hard_state: HardState | None = None, snapshot: Snapshot | None = None) -> QuorumWrite:
    return QuorumWrite(1, hard_state, snapshot, content)


def formatted(files: Files, directory: str = FOLDER, term: int = 1) -> MetadataLog:
    MetadataLog.format(files, directory, BOOTSTRAP)
    log = MetadataLog.open(files, directory)
    log.store(write(hard_state=HardState(term, A)))
    return log


def write_both(files: Files, name: str, content: bytes) -> None:
    """Both copies of a small file."""
    files.write_file(f"{FOLDER}/{name}", content)
    files.write_file(f"{FOLDER}/{name}{COPY_SUFFIX}", content)


def reopened(log: MetadataLog, files: Files, directory: str = FOLDER) -> MetadataLog:
    log.close()
    return MetadataLog.open(files, directory)


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.files().make_directory("/disk")
    disk.flush_everything()
    return disk


def test_a_new_folder_is_blank(disk: SimulatedDisk) -> None:
    log = MetadataLog.open(disk.files(), FOLDER)
    assert (log.hard_state, log.snapshot, log.entries, log.entry_bytes) == (HardState(), BLANK, (), 0)


def test_formatting_gives_the_bootstrap_snapshot_once(disk: SimulatedDisk) -> None:
    files = disk.files()
    MetadataLog.format(files, FOLDER, BOOTSTRAP)
    assert files.exists(f"{FOLDER}/00000000000000000000-0000000000.checkpoint")
    with pytest.raises(DiskError, match="cluster already"):
        MetadataLog.format(files, FOLDER, bootstrap_snapshot("another", [A]))
    log = MetadataLog.open(files, FOLDER)
    assert (log.snapshot, log.entries) == (BOOTSTRAP, ())


def test_a_formatted_folder_survives_a_loss_of_power() -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        disk.files().make_directory("/disk")
        disk.files().sync_directory("/")
        MetadataLog.format(disk.files(), "/disk/metadata", BOOTSTRAP)
        disk.lose_power(random.Random(seed))
        assert MetadataLog.open(disk.files(), "/disk/metadata").snapshot == BOOTSTRAP, seed


def test_what_is_stored_is_read_back_from_a_real_disk(tmp_path: Path) -> None:
    directory = str(tmp_path / "metadata")
    log = formatted(DiskFiles(), directory)
    voters = Entry(3, 1, EntryKind.VOTERS, encode_voters((A, B)))
    log.store(write(Entry(1, 1, EntryKind.LEADER, b""), entry(2), voters))
    log.store(write(entry(4, 2), hard_state=HardState(2, None)))
    log = reopened(log, DiskFiles(), directory)
    assert log.hard_state == HardState(2, None)
    assert log.entries == (Entry(1, 1, EntryKind.LEADER, b""), entry(2), voters, entry(4, 2))
    assert log.snapshot == BOOTSTRAP and log.cut_bytes == 0
    log.close()


def test_entries_of_a_new_leader_replace_the_tail(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files, term=3)
    log.store(write(*entries(1, 5)))
    log.store(write(*entries(4, 4, term=3)))
    assert reopened(log, files).entries == (*entries(1, 3), *entries(4, 4, term=3))


@pytest.mark.parametrize("operations", range(22))
def test_what_a_killed_process_left_unflushed_is_flushed_before_it_is_trusted(
    operations: int, disk: SimulatedDisk
) -> None:
    """The next process answers by what it reads: a vote or an entry that is only in the page cache may be gone tomorrow."""
    files = disk.files()
    log = formatted(files)
    passed = 0

    def kill(operation: str, path: str) -> None:
        nonlocal passed
        passed += 1
        if passed > operations:
            raise RuntimeError("killed")

    disk.fault = kill
    with contextlib.suppress(RuntimeError):
        log.store(write(*entries(1, 3, term=5), hard_state=HardState(5, B)))
    disk.fault = None
    files.crash()
    found = MetadataLog.open(disk.files(), FOLDER)
    for seed in range(5):
        disk.lose_power(random.Random(seed))
        after = MetadataLog.open(disk.files(), FOLDER)
        assert (after.hard_state, after.entries) == (found.hard_state, found.entries)


def test_a_snapshot_taken_here_keeps_the_entries_behind_it(disk: SimulatedDisk) -> None:
    files = disk.files()
    log = formatted(files)
    log.store(write(*entries(1, 6)))
    before = log.entry_bytes
    snapshot = Snapshot(4, 1, "cluster", (A,), b"state")
    log.store(write(entry(7), snapshot=snapshot))
    assert log.entry_bytes < before
    log = reopened(log, files)
    assert (log.snapshot, log.entries) == (snapshot, entries(5, 7))
    assert [name for name in files.list_directory(FOLDER) if name.endswith(".checkpoint")] == [
        "00000000000000000004-0000000001.checkpoint"
    ]


@pytest.mark.parametrize(("last_index", "last_term"), [(9, 2), (4, 2)])
def test_a_snapshot_that_the_log_does_not_lead_to_empties_it(
    disk: SimulatedDisk, last_index: int, last_term: int
) -> None:
    files = disk.files()
    log = formatted(files, term=2)
    log.store(write(*entries(1, 6)))
    snapshot = Snapshot(last_index, last_term, "cluster", (A, B), b"state")
    log.store(write(snapshot=snapshot))
    log = reopened(log, files)
    assert (log.snapshot, log.entries) == (snapshot, ())
    log.store(write(entry(last_index + 1, 2)))
    assert reopened(log, files).entries == (entry(last_index + 1, 2),)


def test_two_processes_cannot_have_one_log(disk: SimulatedDisk) -> None:
    log = MetadataLog.open(disk.files(), FOLDER)
    with pytest.raises(DiskError, match="locked"):
        MetadataLog.open(disk.files(), FOLDER)
    log.close()
    MetadataLog.open(disk.files(), FOLDER).close()


def log_bytes(files: Files) -> bytes:
    return files.read_file(f"{FOLDER}/{LOG_NAME}")


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
        files = _closed(disk)


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


def _closed(disk: SimulatedDisk) -> Files:
    """Another process, after the last one died with its locks."""
    for holder, _ in list(disk._locks.values()):
        holder.crash()
    return disk.files()


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
        files = _closed(disk)
        with contextlib.suppress(DiskError):
            assert MetadataLog.open(files, FOLDER).hard_state == HardState(5, A)
            files = _closed(disk)


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


class Crash(Exception):
    """The machine stops in the middle of an operation."""


class Model:
    """What a disk may hold: the state after the last finished write, or of the one that was under way."""

    def __init__(self) -> None:
        self.hard_states = {HardState(1, A)}
        self.snapshots = [BOOTSTRAP]
        self.log: dict[int, Entry] = {}  # behind any snapshot, also those that it covers
        self.safe_last_index = 0  # entries up to here must be there
        self.possible: dict[int, set[Entry]] = {}

    def begin(self, write: QuorumWrite) -> None:
        if write.hard_state is not None:
            self.hard_states.add(write.hard_state)
        if write.snapshot is not None:
            self.snapshots.append(write.snapshot)
        if write.entries:
            self.safe_last_index = min(self.safe_last_index, write.entries[0].index - 1)
            for each in write.entries:
                self.possible.setdefault(each.index, set()).add(each)

    def finish(self, write: QuorumWrite) -> None:
        if write.hard_state is not None:
            self.hard_states = {write.hard_state}
        if write.snapshot is not None:
            self.snapshots = [write.snapshot]
        if write.entries:
            first = write.entries[0].index
            self.log = {index: each for index, each in self.log.items() if index < first}
            self.log.update({each.index: each for each in write.entries})
            self.safe_last_index = max(self.log)
            self.possible = {index: {each} for index, each in self.log.items()}

    def adopt(self, log: MetadataLog) -> None:
        """After a crash: what was found must be allowed, and is the truth from now on."""
        assert log.hard_state in self.hard_states, (log.hard_state, self.hard_states)
        assert log.snapshot in self.snapshots, (log.snapshot, self.snapshots)
        found = {each.index: each for each in log.entries}
        for index in range(log.snapshot.last_index + 1, self.safe_last_index + 1):
            assert found.get(index) == self.log[index], (index, found.get(index))
        for index, each in found.items():
            assert each in self.possible[index], (each, self.possible[index])
        self.hard_states, self.snapshots = {log.hard_state}, [log.snapshot]
        self.log = {index: each for index, each in self.log.items() if index <= log.snapshot.last_index} | found
        self.safe_last_index = max(found, default=log.snapshot.last_index)
        self.possible = {index: {each} for index, each in self.log.items()}


@pytest.mark.parametrize("seed", range(40))
def test_what_was_stored_survives_power_loss_at_any_moment(seed: int, disk: SimulatedDisk) -> None:
    rng = random.Random(seed)
    log = formatted(disk.files())
    disk.flush_everything()
    model = Model()
    term = 1
    crashes = 0
    for step in range(120):
        last = max(model.log, default=0)
        base = model.snapshots[0].last_index
        hard_state = None
        if rng.random() < 0.2:
            term += 1
            hard_state = HardState(term, rng.choice([A, B, None]))
        first = last + 1 if rng.random() < 0.8 else rng.randint(base + 1, last + 1)
        count = rng.randint(0, 4)
        if first <= last and count and hard_state is None and term == model.log[last].term:
            term += 1
            hard_state = HardState(term, None)
        content = tuple(entry(first + n, term, rng.randbytes(rng.choice([0, 10, 900]))) for n in range(count))
        snapshot = None
        if not content and last > base and rng.random() < 0.5:
            at = rng.randint(base + 1, last)
            snapshot = Snapshot(at, model.log[at].term, "cluster", (A,), b"state %d" % step)
        write = QuorumWrite(step, hard_state, snapshot, content)
        countdown = rng.randint(1, 12) if rng.random() < 0.3 else None

        def stop(operation: str, path: str) -> None:
            nonlocal countdown
            if countdown is not None:
                countdown -= 1
                if countdown <= 0:
                    raise TornWrite(rng.random(), Crash()) if operation == "write" else Crash()

        disk.fault = stop
        model.begin(write)
        try:
            log.store(write)
            model.finish(write)
        except (Crash, TornWrite):
            pass
        else:
            if rng.random() > 0.1:
                continue
        disk.fault = None
        if rng.random() < 0.7:
            disk.lose_power(rng)
        else:
            _closed(disk)  # a process that is killed leaves its writes in the page cache
        crashes += 1
        log = MetadataLog.open(disk.files(), FOLDER)
        model.adopt(log)
        term = log.hard_state.term
    assert crashes > 5


def fails_at(step: int) -> Callable[[str, str], None]:
    """The disk works, but for the operation with that number."""
    left = step

    def fault(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(errno.EIO, f"broken at step {step}", path)

    return fault


def test_an_opening_of_the_metadata_log_that_fails_leaves_no_file_open() -> None:
    step, is_open = 0, False
    while not is_open:
        disk = SimulatedDisk()
        files = disk.files()
        log = formatted(files)
        log.store(write(*entries(1, 3)))
        log.close()
        content = files.read_file(f"{FOLDER}/{LOG_NAME}")
        files.write_file(f"{FOLDER}/{LOG_NAME}", content[:-20] + bytes(20))  # a damage, which other voters can mend
        disk.fault = fails_at(step)
        try:
            MetadataLog.open(files, FOLDER, has_peers=True)
            is_open = True
        except OSError as error:
            assert f"broken at step {step}" in str(error)
            assert files.open_handles == 0, str(error)
            disk.fault = None
            disk.files().lock(f"{FOLDER}/{LOCK_NAME}")
        step += 1
    assert step > 20
