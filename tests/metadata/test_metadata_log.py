"""The quorum's files: what is stored is found again, after crashes too."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from metadata_logs import BOOTSTRAP, FOLDER, A, B, entries, entry, formatted, let_go, reopened, write

from raylog.errors import DiskError
from raylog.log.disk_files import DiskFiles
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
from raylog.raft.metadata_log import LOCK_NAME, LOG_NAME, MetadataLog
from raylog.simulator.simulated_files import SimulatedDisk, TornWrite


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


def test_only_the_owner_reads_the_files_also_those_of_an_older_raylog(tmp_path: Path) -> None:
    folder = tmp_path / "metadata"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)

    def modes() -> set[int]:
        return {each.stat().st_mode & 0o777 for each in folder.iterdir()}

    MetadataLog.open(DiskFiles(), str(folder)).close()
    assert modes() == {0o600}, "before anything is opened again"
    log = formatted(DiskFiles(), str(folder))
    log.store(write(entry(1)))
    assert len(list(folder.iterdir())) >= 5 and modes() == {0o600} and folder.stat().st_mode & 0o777 == 0o700
    log.close()
    folder.chmod(0o755)
    for each in folder.iterdir():
        each.chmod(0o644)
    log = MetadataLog.open(DiskFiles(), str(folder))
    assert len(list(folder.iterdir())) >= 5
    assert modes() == {0o600} and folder.stat().st_mode & 0o777 == 0o700
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
            let_go(disk)  # a process that is killed leaves its writes in the page cache
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
