"""What tests of the quorum's files share: a disk, a log on it, entries to store."""

from __future__ import annotations

import uuid

from raylog.log.files import Files
from raylog.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    QuorumWrite,
    Snapshot,
    bootstrap_snapshot,
)
from raylog.raft.metadata_log import LOG_NAME, MetadataLog
from raylog.raft.state_files import COPY_SUFFIX
from raylog.simulator.simulated_files import SimulatedDisk

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


def log_bytes(files: Files) -> bytes:
    return files.read_file(f"{FOLDER}/{LOG_NAME}")


def let_go(disk: SimulatedDisk) -> Files:
    """Another process, after the last one died with its locks."""
    for holder, _ in list(disk._locks.values()):
        holder.crash()
    return disk.files()
