"""The quorum's log on a disk: entries, the term and vote, snapshots. It knows disks by ``Files``.

::

    metadata.log                                    the entries behind the snapshot
    <20-digit end index>-<10-digit term>.checkpoint a snapshot; the newest counts, older ones are leftovers of a crash
    quorum-state, log-end, incarnation, *.copy      see ``state_files``
    <name>.damaged                                  what was found damaged, as it was; nobody reads it
    .lock                                           held while the log is open

    metadata.log   header  magic "RAYLOGML", version u16, zero u16, base index u64, base term u64, crc u32 of what precedes
                   frame   magic "RLME", body length u32, crc u32 of the body
                   body    index u64, term u64, flushed end u64, kind u8, data
    *.checkpoint           magic "RAYLOGMS", version u16, crc u32 of the rest
                           msgpack map of last_index, last_term, cluster_id, voters (16 bytes each), data

Numbers are big-endian, CRCs are CRC-32C. ``base`` is the entry before the first frame. A frame's
*flushed end* is where in the file the write began that brought it: each write is flushed before the
next begins, so all below was on the disk by then.

Opening reads frames up to the first that is not whole. If a later frame says that this place had
been flushed, the disk has lost what it promised. So it has where the log ends before the entry that
``log-end`` names (it was cut at rest), and where the header, the snapshot or the whole file is
damaged or gone. Else the tail is that of a write which nobody was told about, and is cut.
``log-end`` is written after each write, unflushed: a loss of power may leave it behind, or damaged,
never ahead. Before the log's end goes back, it is written and flushed.

What the disk has lost is refused by name, unless there are other voters to copy it from
(``has_peers``). Then the voter *recovers*:

1. ``quorum-state`` says so, in a term of its own: ``HardState(term + 1, None,
   recovering_term=term)``. It is durable before anything else changes, so a crash or a restart
   forgets nothing, and from here on ``log-end`` may go back.
2. The damaged files are kept as ``*.damaged``. The log is cut in front of the first damage, or
   begins anew behind the snapshot, or is blank where the snapshot is lost.
3. ``Quorum`` takes no part in elections until an entry of a later term than ``recovering_term`` is
   on its disk. ``recovery`` proves that this is enough, however far ``log-end`` lagged.

A snapshot is written before the log is cut behind it, so a crash in between leaves entries that the
snapshot holds already: they are dropped. ``quorum-state`` exists before the log does; a log without
it has forgotten its votes and is refused.

Knows nothing of roles and messages. After a failed ``store`` what the disk holds is not known: the
log takes no more writes. Opening it again, in the same boot too, writes the last write once more:
after a failed flush the page cache has it and the disk may not.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass

import msgpack
from crc32c import crc32c

from raylog.errors import DiskError
from raylog.log.files import File, Files, Lock
from raylog.raft.messages import (
    BLANK,
    Entry,
    EntryKind,
    HardState,
    QuorumWrite,
    Snapshot,
    Voters,
    decode_voters,
)
from raylog.raft.state_files import END_NAME as END_NAME
from raylog.raft.state_files import STATE_NAME as STATE_NAME
from raylog.raft.state_files import StateFiles, refuse_newer
from raylog.raft.state_files import read_state as read_state

LOG_NAME = "metadata.log"
LOCK_NAME = ".lock"
SNAPSHOT_SUFFIX = ".checkpoint"
DAMAGED_SUFFIX = ".damaged"
VERSION = 1
"""Of each of the formats."""

_LOG_MAGIC = b"RAYLOGML"
_SNAPSHOT_MAGIC = b"RAYLOGMS"
_FRAME_MAGIC = b"RLME"
_LOG_HEADER = struct.Struct(">8sHHQQ")
_LOG_HEADER_SIZE = _LOG_HEADER.size + 4
_FRAME = struct.Struct(">4sII")
_BODY = struct.Struct(">QQQB")
_SNAPSHOT_HEADER = struct.Struct(">8sHI")
_CRC = struct.Struct(">I")


class Damaged(DiskError):
    """Bytes that had been written safely are not there any more; the message names the file."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a log file holds: ``positions[i]`` is where the frame of ``entries[i]`` starts, ``end``
    where the last whole one ends.

    ``last_write`` is where the write begins that brought the last frame: all below was flushed
    before it. ``damage`` says which flushed bytes are wrong, if some are; what is in front of them
    is whole.
    """

    base_index: int
    base_term: int
    entries: list[Entry]
    positions: list[int]
    end: int
    last_write: int
    damage: str | None = None

    def behind(self, snapshot: Snapshot) -> list[Entry]:
        """The entries that go on from the snapshot: none if the log does not hold its last entry."""
        position = snapshot.last_index - self.base_index
        if not 0 <= position <= len(self.entries):
            return []
        term = self.entries[position - 1].term if position else self.base_term
        return self.entries[position:] if term == snapshot.last_term else []


@dataclass(frozen=True, slots=True)
class _Found:
    """What opening makes of a folder's files before it changes any. ``damages`` are sentences; the
    paths of what they speak of follow.

    ``kept`` are the entries behind ``snapshot``. ``content`` is the log's file, None if there is
    none.
    """

    snapshot: Snapshot
    scan: _Scan
    kept: list[Entry]
    content: bytes | None
    damages: list[str]
    lost_snapshot: str | None

    @property
    def last(self) -> tuple[int, int]:
        """Term and index of the last entry that is kept, or of the snapshot in its place."""
        last = self.kept[-1] if self.kept else None
        return (last.term, last.index) if last else (self.snapshot.last_term, self.snapshot.last_index)

    @property
    def voters(self) -> Voters:
        named = [entry for entry in self.kept if entry.kind is EntryKind.VOTERS]
        return decode_voters(named[-1].data) if named else self.snapshot.voters


class MetadataLog:
    """An open log. ``hard_state``, ``snapshot`` and ``entries`` are what it held when it was
    opened; ``cut_bytes`` is what recovery cut.

    ``notices`` says which damage opening it has met and mended, one sentence each.
    """

    def __init__(self, files: Files, directory: str, lock: Lock, states: StateFiles, file: File) -> None:
        self.hard_state = HardState()
        self.snapshot = BLANK
        self.entries: tuple[Entry, ...] = ()
        self.cut_bytes = 0
        self._files = files
        self._directory = directory
        self._lock = lock
        self._states = states
        self._file = file
        self._base_index = 0
        self._positions: list[int] = []  # of the frames, the first being that of base index + 1
        self._terms: list[int] = []
        self._end = 0
        self._failed = False

    @classmethod
    def format(cls, files: Files, directory: str, snapshot: Snapshot) -> None:
        """Give a blank directory its bootstrap snapshot. DiskError if it has a snapshot already."""
        log = cls.open(files, directory)
        try:
            if log.snapshot != BLANK or log.entries:
                raise DiskError(
                    f"{directory} belongs to cluster {log.snapshot.cluster_id} already; it is not formatted again"
                )
            log.store(QuorumWrite(0, None, snapshot, ()))
        finally:
            log.close()

    @classmethod
    def open(cls, files: Files, directory: str, *, has_peers: bool = False) -> MetadataLog:
        """Open or create. DiskError says what is wrong: another process has it, a newer version
        wrote it, its bytes are corrupt.

        ``has_peers``: there are other controllers, so what the disk has lost can be copied from
        them (``hard_state`` says that this voter is recovering). A log whose only voter this is, as
        far as it can be read, is refused all the same. Where the snapshot is lost, nothing tells:
        then ``has_peers`` decides alone.
        """
        if not files.exists(directory):
            files.make_directory(directory)
        files.keep_private(directory)  # it holds users' and listeners' keys
        files.sync_directory(directory.rpartition("/")[0] or "/")
        lock = files.lock(f"{directory}/{LOCK_NAME}")
        try:
            return cls._open_locked(files, directory, lock, has_peers)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def _open_locked(cls, files: Files, directory: str, lock: Lock, has_peers: bool) -> MetadataLog:
        states = StateFiles(files, directory)
        log_path = f"{directory}/{LOG_NAME}"
        is_new = not files.exists(log_path) and not any(_snapshot_names(files, directory))
        if is_new and not states.has_state:
            states.write_state(HardState())
        state = states.read_state()
        if is_new and state.term == 0:
            files.write_file(log_path, _encode_log_header(0, 0))
        found = _find(files, directory, states.read_end())
        if state.term < found.last[0]:
            raise DiskError(
                f"{directory}: {STATE_NAME} is of term {state.term}, the log of term {found.last[0]}; an old copy was put back"
            )
        if found.damages:
            if not has_peers or len(found.voters) == 1:
                raise Damaged(f"{found.damages[0]}; bring the file back from a copy, or take this voter out")
            state = HardState(state.term + 1, None, recovering_term=state.term)
            states.write_state(state)
            states.notices += [
                *found.damages,
                f"{log_path} ends with entry {found.last[1]} of term {found.last[0]} now; what is missing is copied from the other "
                f"controllers, and until then this one takes no part in elections",
            ]
        if found.content is None:
            files.write_file(log_path, _encode_log_header(found.snapshot.last_index, found.snapshot.last_term))
        log = cls(files, directory, lock, states, files.open(log_path))
        try:
            log.hard_state = state
            log._take(found)
        except BaseException:
            log._close_files()
            raise
        return log

    def _take(self, found: _Found) -> None:
        """Make the disk hold what was found to be whole, durably, and nothing else."""
        scan = found.scan
        self.snapshot, self.entries = found.snapshot, tuple(found.kept)
        size = len(found.content or b"")
        self.cut_bytes = max(0, size - scan.end)
        if found.damages:
            self._keep_damaged(found)
        if found.damages or (scan.base_index, scan.base_term) != (found.snapshot.last_index, found.snapshot.last_term):
            self._rewrite(found.snapshot, found.kept)
        else:
            assert found.content is not None, self._directory
            # A process that was killed, or whose flush failed, may have left entries in the page
            # cache only; this one will answer by them. A failed flush makes the cache take them for
            # written, so the last write is repeated.
            self._file.write_at(scan.last_write, found.content[scan.last_write : scan.end])
            self._file.flush()
            if scan.end < size:
                self._file.truncate(scan.end)
                self._file.flush()
            self._base_index, self._positions, self._end = scan.base_index, scan.positions, scan.end
            self._terms = [scan.base_term, *(entry.term for entry in scan.entries)]
        if found.lost_snapshot is not None:  # behind the log: without it nobody would see that it was lost
            for name in _snapshot_names(self._files, self._directory):
                self._files.remove(f"{self._directory}/{name}")
        self._files.sync_directory(self._directory)
        self._states.note_end(*self._last, flush=True)

    def _keep_damaged(self, found: _Found) -> None:
        if found.content is not None:
            self._files.write_file(f"{self._directory}/{LOG_NAME}{DAMAGED_SUFFIX}", found.content)
        if found.lost_snapshot is not None:
            content = self._files.read_file(found.lost_snapshot)
            self._files.write_file(f"{found.lost_snapshot}{DAMAGED_SUFFIX}", content)

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(self._states.notices)

    @property
    def _last(self) -> tuple[int, int]:
        """Term and index of the last entry, or of the snapshot in its place."""
        return self._terms[-1], self._base_index + len(self._terms) - 1

    def claim_incarnation(self, clock: int) -> int:
        """The number of the process that has opened the log: ``clock``, or the next one after the
        last process's number.

        Other controllers refuse a process whose number is below one that they have seen of this
        disk, and a clock may be set back over a restart. Durable when it returns. DiskError if both
        copies are damaged, or one is of a newer version.
        """
        return self._states.claim_incarnation(clock)

    @property
    def entry_bytes(self) -> int:
        """Bytes of the entries behind the snapshot: when they are many, it is time for a new one."""
        return self._end - _LOG_HEADER_SIZE

    def holds(self, index: int, term: int) -> bool:
        """Whether the disk has the entry at ``index`` of that term, or a snapshot that takes its
        place.
        """
        position = index - self._base_index
        return position < 0 or (position < len(self._terms) and self._terms[position] == term)

    def store(self, write: QuorumWrite) -> None:
        """Durable when it returns. May run in another thread, one at a time. OSError: the disk
        failed, and the log with it.
        """
        if self._failed:
            raise DiskError(f"{self._directory}: an earlier write failed; what the disk holds is not known")
        self._failed = True
        if write.hard_state is not None:
            self._states.write_state(write.hard_state)
        if write.snapshot is not None:
            self._store_snapshot(write.snapshot)
        if write.entries:
            self._store_entries(write.entries)
        if write.snapshot is not None or write.entries:
            self._states.note_end(*self._last)
        self._failed = False

    def _store_entries(self, entries: tuple[Entry, ...]) -> None:
        first = entries[0].index - self._base_index - 1
        assert 0 <= first <= len(self._positions), (entries[0].index, self._base_index, len(self._positions))
        if first < len(self._positions):
            # Flushed before anything takes the place of what is cut, or a crash could mix the two.
            self._states.note_end(self._terms[first], self._base_index + first, flush=True)
            self._end = self._positions[first]
            self._file.truncate(self._end)
            self._file.flush()
            del self._positions[first:]
            del self._terms[first + 1 :]
        frames, positions = _encode_frames(entries, self._end)
        self._end += self._file.write_at(self._end, frames)
        self._file.flush()
        self._positions += positions
        self._terms += [entry.term for entry in entries]

    def _store_snapshot(self, snapshot: Snapshot) -> None:
        self._files.write_file(f"{self._directory}/{_snapshot_name(snapshot)}", _encode_snapshot(snapshot))
        scan = _scan(bytes(self._file.read_at(0, self._end)), f"{self._directory}/{LOG_NAME}")
        if scan.damage or len(scan.entries) != len(self._positions):
            raise Damaged(scan.damage or f"{self._directory}/{LOG_NAME}: entries behind {len(scan.entries)} are gone")
        kept = scan.behind(snapshot)
        if not kept:  # what the log ends with now may be of a later term than the snapshot, and goes
            self._states.note_end(snapshot.last_term, snapshot.last_index, flush=True)
        self._rewrite(snapshot, kept)
        for name in self._files.list_directory(self._directory):
            if name.endswith(SNAPSHOT_SUFFIX) and name != _snapshot_name(snapshot):
                self._files.remove(f"{self._directory}/{name}")

    def _rewrite(self, snapshot: Snapshot, entries: list[Entry]) -> None:
        path = f"{self._directory}/{LOG_NAME}"
        frames, self._positions = _encode_frames(entries, _LOG_HEADER_SIZE)
        self._files.write_file(path, _encode_log_header(snapshot.last_index, snapshot.last_term) + frames)
        self._file.close()
        self._file = self._files.open(path)
        self._base_index = snapshot.last_index
        self._terms = [snapshot.last_term, *(entry.term for entry in entries)]
        self._end = _LOG_HEADER_SIZE + len(frames)

    def close(self) -> None:
        self._close_files()
        self._lock.close()

    def _close_files(self) -> None:
        self._states.close()
        self._file.close()


def _find(files: Files, directory: str, noted_end: tuple[int, int] | None) -> _Found:
    """Read the snapshot and the log; changes nothing. DiskError for what a newer raylog wrote."""
    log_path = f"{directory}/{LOG_NAME}"
    names = _snapshot_names(files, directory)
    snapshot, lost_snapshot, damages = BLANK, None, []
    if names:
        path = f"{directory}/{max(names)}"
        try:
            snapshot = read_snapshot(files.read_file(path), path)
        except Damaged as damage:
            lost_snapshot = path
            damages.append(str(damage))
    content = files.read_file(log_path) if files.exists(log_path) else None
    scan = _Scan(snapshot.last_index, snapshot.last_term, [], [], 0, 0)
    if content is None:
        damages.append(f"{log_path} is missing, though a snapshot or a vote is there")
    else:
        try:
            scan = _scan(content, log_path)
            damages += [scan.damage] if scan.damage else []
        except Damaged as damage:
            damages.append(str(damage))
    if lost_snapshot is None and scan.base_index > snapshot.last_index:
        damages.append(
            f"{directory}: {LOG_NAME} goes on from index {scan.base_index}, but the newest snapshot ends at {snapshot.last_index}"
        )
    elif not names and scan.entries:
        damages.append(f"{directory}: the snapshot that {LOG_NAME} goes on from is missing")
    kept = scan.behind(snapshot) if snapshot != BLANK else []
    found = _Found(snapshot, scan, kept, content, damages, lost_snapshot)
    if not damages and noted_end is not None and found.last < noted_end:
        (term, index), (noted_term, noted_index) = found.last, noted_end
        damages.append(
            f"{log_path} ends with entry {index} of term {term}, but entry {noted_index} of term {noted_term} had been written safely"
        )
    return found


# ------------------------------------------------------------------ bytes


def _encode_log_header(base_index: int, base_term: int) -> bytes:
    header = _LOG_HEADER.pack(_LOG_MAGIC, VERSION, 0, base_index, base_term)
    return header + _CRC.pack(crc32c(header))


def _encode_frames(entries: tuple[Entry, ...] | list[Entry], position: int) -> tuple[bytes, list[int]]:
    """Frames written at a position of the file that is flushed up to there, and where each starts."""
    flushed_end = position
    parts: list[bytes] = []
    positions: list[int] = []
    for entry in entries:
        body = _BODY.pack(entry.index, entry.term, flushed_end, entry.kind) + entry.data
        parts += (_FRAME.pack(_FRAME_MAGIC, len(body), crc32c(body)), body)
        positions.append(position)
        position += _FRAME.size + len(body)
    return b"".join(parts), positions


def _frame_body(content: bytes, position: int) -> bytes | None:
    """The body of the frame at this position, or None if there is no whole one."""
    if len(content) - position < _FRAME.size:
        return None
    magic, length, crc = _FRAME.unpack_from(content, position)
    body = content[position + _FRAME.size : position + _FRAME.size + length]
    if magic != _FRAME_MAGIC or len(body) != length or length < _BODY.size or crc32c(body) != crc:
        return None
    return body


def _scan(content: bytes, path: str) -> _Scan:
    if len(content) < _LOG_HEADER_SIZE or content[:8] != _LOG_MAGIC:
        raise Damaged(f"{path} is not a metadata log")
    _, version, _, base_index, base_term = _LOG_HEADER.unpack_from(content)
    refuse_newer(version, path)
    if _CRC.unpack_from(content, _LOG_HEADER.size)[0] != crc32c(content[: _LOG_HEADER.size]):
        raise Damaged(f"{path}: the header's checksum is wrong")
    scan = _Scan(base_index, base_term, [], [], _LOG_HEADER_SIZE, _LOG_HEADER_SIZE)
    position, index, term = _LOG_HEADER_SIZE, base_index + 1, base_term
    last_write = position
    while (body := _frame_body(content, position)) is not None:
        entry_index, entry_term, flushed_end, kind = _BODY.unpack_from(body)
        if entry_index != index or entry_term < term:
            break
        if kind not in EntryKind.__members__.values():
            raise DiskError(f"{path}: entry {index} is of kind {kind}, which a newer raylog wrote; use that one")
        scan.entries.append(Entry(entry_index, entry_term, EntryKind(kind), body[_BODY.size :]))
        scan.positions.append(position)
        position += _FRAME.size + len(body)
        index, term, last_write = index + 1, entry_term, flushed_end
    damage = None
    later = content.find(_FRAME_MAGIC, position + 1)
    while later >= 0:
        body = _frame_body(content, later)
        if body is not None and _BODY.unpack_from(body)[2] > position:
            damage = f"{path}: the bytes at {position}, entry {index}, are corrupt, and they had been written safely"
            break
        later = content.find(_FRAME_MAGIC, later + 1)
    return _Scan(base_index, base_term, scan.entries, scan.positions, position, min(last_write, position), damage)


def _snapshot_name(snapshot: Snapshot) -> str:
    return f"{snapshot.last_index:020d}-{snapshot.last_term:010d}{SNAPSHOT_SUFFIX}"


def _encode_snapshot(snapshot: Snapshot) -> bytes:
    body: bytes = msgpack.packb(
        {
            "last_index": snapshot.last_index,
            "last_term": snapshot.last_term,
            "cluster_id": snapshot.cluster_id,
            "voters": [voter.bytes for voter in snapshot.voters],
            "data": snapshot.data,
        }
    )
    return _SNAPSHOT_HEADER.pack(_SNAPSHOT_MAGIC, VERSION, crc32c(body)) + body


def _snapshot_names(files: Files, directory: str) -> list[str]:
    return [name for name in files.list_directory(directory) if name.endswith(SNAPSHOT_SUFFIX)]


# ------------------------------------------------------------------ for tools too


def read_entries(content: bytes, path: str) -> tuple[list[Entry], int]:
    """The entries of a log file's bytes, and where the last whole one ends. DiskError if it is
    damaged below that; nothing is cut.
    """
    scan = _scan(content, path)
    if scan.damage is not None:
        raise Damaged(scan.damage)
    return scan.entries, scan.end


def read_snapshot(content: bytes, path: str) -> Snapshot:
    """The snapshot in a file's bytes; DiskError if it is none."""
    if len(content) < _SNAPSHOT_HEADER.size or content[:8] != _SNAPSHOT_MAGIC:
        raise Damaged(f"{path} is not a snapshot of the metadata")
    _, version, crc = _SNAPSHOT_HEADER.unpack_from(content)
    refuse_newer(version, path)
    body = content[_SNAPSHOT_HEADER.size :]
    if crc32c(body) != crc:
        raise Damaged(f"{path}: the checksum is wrong")
    fields = msgpack.unpackb(body)
    voters = tuple(uuid.UUID(bytes=voter) for voter in fields["voters"])
    return Snapshot(fields["last_index"], fields["last_term"], fields["cluster_id"], voters, fields["data"])
