"""The quorum's log on a disk: entries, the term and vote, snapshots. All access goes through ``Files``.

::

    metadata.log                                    the entries behind the snapshot
    quorum-state                                    {"version": 1, "term": 3, "voted_for": "<directory id>" or null, "crc": "<hex>"}
    log-end                                         {"version": 1, "index": 7, "term": 3, "crc": "<hex>"}
    incarnation                                     {"version": 1, "incarnation": 1700…} and crc
    <20-digit end index>-<10-digit term>.checkpoint a snapshot; the newest counts, older ones are leftovers of a crash
    .lock                                           held while the log is open

    metadata.log   header  magic "RAYLOGML", version u16, zero u16, base index u64, base term u64, crc u32 of what precedes
                   frame   magic "RLME", body length u32, crc u32 of the body
                   body    index u64, term u64, flushed end u64, kind u8, data
    *.checkpoint           magic "RAYLOGMS", version u16, crc u32 of the rest
                           msgpack map of last_index, last_term, cluster_id, voters (16 bytes each), data

Numbers are big-endian, CRCs are CRC-32C; the ``crc`` of a text is that of the text without it. ``base`` is the entry before the
first frame. A frame's *flushed end* is where in the file the write began that brought it: each write is flushed before the next
begins, so all below was on the disk by then.

Recovery reads frames up to the first that is not whole. If a later frame says that this place had been flushed, the disk has lost
what it promised and the log is refused (acknowledged metadata would be gone). So is a log that ends before the entry that
``log-end`` names: it was cut at rest. Else the tail is that of a write which nobody was told about, and is cut. ``log-end`` is
written after each write, unflushed: a loss of power may leave it behind, or damaged, never ahead. Before the log's end goes back,
it is written and flushed.

A snapshot is written before the log is cut behind it, so a crash in between leaves entries that the snapshot holds already: they
are dropped. ``quorum-state`` exists before the log does; a log without it has forgotten its votes and is refused.

Knows nothing of roles and messages. After a failed ``store`` what the disk holds is not known: the log takes no more writes.
Opening it again, in the same boot too, writes the last write once more: after a failed flush the page cache has it and
the disk may not.
"""

from __future__ import annotations

import json
import struct
import uuid
from dataclasses import dataclass
from typing import Any

import msgpack
from crc32c import crc32c

from raylog.errors import DiskError
from raylog.log.files import File, Files, Lock
from raylog.metadata.quorum_messages import BLANK, Entry, EntryKind, HardState, QuorumWrite, Snapshot

LOG_NAME = "metadata.log"
STATE_NAME = "quorum-state"
END_NAME = "log-end"
INCARNATION_NAME = "incarnation"
LOCK_NAME = ".lock"
SNAPSHOT_SUFFIX = ".checkpoint"
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
_END_BYTES = 128  # of ``log-end``, filled up with spaces


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a log file holds: ``positions[i]`` is where the frame of ``entries[i]`` starts, ``end`` where the last whole one ends.

    ``last_write`` is where the write begins that brought the last frame: all below was flushed before it.
    """

    base_index: int
    base_term: int
    entries: list[Entry]
    positions: list[int]
    end: int
    last_write: int


class MetadataLog:
    """An open log. ``hard_state``, ``snapshot`` and ``entries`` are what it held when it was opened; ``cut_bytes`` is what recovery cut."""

    def __init__(self, files: Files, directory: str, lock: Lock, file: File) -> None:
        self.hard_state = HardState()
        self.snapshot = BLANK
        self.entries: tuple[Entry, ...] = ()
        self.cut_bytes = 0
        self._files = files
        self._directory = directory
        self._lock = lock
        self._file = file
        self._base_index = 0
        self._positions: list[int] = []  # of the frames, the first being that of base index + 1
        self._terms: list[int] = []
        self._end = 0
        self._failed = False
        self._end_file: File | None = None

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
    def open(cls, files: Files, directory: str) -> MetadataLog:
        """Open or create. DiskError says what is wrong: another process has it, a newer version wrote it, its bytes are corrupt."""
        if not files.exists(directory):
            files.make_directory(directory)
        files.sync_directory(directory.rpartition("/")[0] or "/")
        lock = files.lock(f"{directory}/{LOCK_NAME}")
        try:
            return cls._open_locked(files, directory, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def _open_locked(cls, files: Files, directory: str, lock: Lock) -> MetadataLog:
        log_path, state_path = f"{directory}/{LOG_NAME}", f"{directory}/{STATE_NAME}"
        snapshot = _newest_snapshot(files, directory)
        if not files.exists(log_path):
            if snapshot != BLANK:
                raise DiskError(
                    f"{log_path} is missing, though a snapshot of it is there; bring it back, or take this voter out"
                )
            if not files.exists(state_path):
                files.write_file(state_path, _encode_state(HardState()))
            files.write_file(log_path, _encode_log_header(0, 0))
        if not files.exists(state_path):
            raise DiskError(
                f"{state_path} is missing: this voter has forgotten its votes; bring it back, or take this voter out"
            )
        file = files.open(log_path)
        try:
            files.sync_directory(directory)
            log = cls(files, directory, lock, file)
            log.hard_state = _decode_state(files.read_file(state_path), state_path)
            content = bytes(file.read_at(0, file.size()))
            scan = _scan(content, log_path)
            # A process that was killed, or whose flush failed, may have left entries in the page cache only; this one
            # will answer by them. A failed flush makes the cache take them for written, so the last write is repeated.
            last_write = scan.last_write
            file.write_at(last_write, content[last_write : scan.end])
            file.flush()
            log._recover(snapshot, scan)
            return log
        except BaseException:
            file.close()
            raise

    def _recover(self, snapshot: Snapshot, scan: _Scan) -> None:
        size = self._file.size()
        if scan.end < size:
            self.cut_bytes = size - scan.end
            self._file.truncate(scan.end)
            self._file.flush()
        if scan.base_index > snapshot.last_index:
            raise DiskError(
                f"{self._directory}: {LOG_NAME} goes on from index {scan.base_index}, but the newest snapshot ends at "
                f"{snapshot.last_index}; bring the snapshot back, or take this voter out"
            )
        self.snapshot = snapshot
        self._base_index, self._positions, self._end = scan.base_index, scan.positions, scan.end
        self._terms = [scan.base_term, *(entry.term for entry in scan.entries)]
        kept = scan.entries
        if scan.base_index < snapshot.last_index or scan.base_term != snapshot.last_term:
            kept = self._behind(snapshot, scan.entries)
            self._rewrite(snapshot, kept)
        self.entries = tuple(kept)
        last_term = kept[-1].term if kept else snapshot.last_term
        if self.hard_state.term < last_term:
            raise DiskError(
                f"{self._directory}: {STATE_NAME} is of term {self.hard_state.term}, the log of term {last_term}; an old copy was put back"
            )
        noted = self._noted_end()
        if noted is not None and self._last < noted:
            term, index = self._last
            raise DiskError(
                f"{self._directory}/{LOG_NAME} ends with entry {index} of term {term}, but entry {noted[1]} of term {noted[0]} had been "
                f"written safely; bring the file back from a copy, or take this voter out"
            )

    @property
    def _last(self) -> tuple[int, int]:
        """Term and index of the last entry, or of the snapshot in its place."""
        return self._terms[-1], self._base_index + len(self._terms) - 1

    def _noted_end(self) -> tuple[int, int] | None:
        """Term and index that ``log-end`` names; None if a loss of power, or an older raylog, has left nothing to go by."""
        try:
            fields = _checked(self._files.read_file(f"{self._directory}/{END_NAME}"))
            return int(fields["term"]), int(fields["index"])
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _note_end(self, term: int, index: int, *, flush: bool = False) -> None:
        """Overwritten in place, in one page: a file that takes another's place would make the next flush dearer."""
        if self._end_file is None:
            self._end_file = self._files.open(f"{self._directory}/{END_NAME}", create=True)
        text = _with_crc({"version": VERSION, "index": index, "term": term})
        self._end_file.write_at(0, text.rstrip().ljust(_END_BYTES - 1) + b"\n")
        if flush:
            self._end_file.flush()

    def claim_incarnation(self, clock: int) -> int:
        """The number of the process that has opened the log: ``clock``, or the next one after the last process's number.

        Other controllers refuse a process whose number is below one that they have seen of this disk, and a clock may be set
        back over a restart. Durable when it returns. DiskError for a file that is damaged or of a newer version.
        """
        path = f"{self._directory}/{INCARNATION_NAME}"
        last = 0
        if self._files.exists(path):
            last = _decode_incarnation(self._files.read_file(path), path)
        claimed = max(clock, last + 1)
        self._files.write_file(path, _with_crc({"version": VERSION, "incarnation": claimed}))
        return claimed

    @property
    def entry_bytes(self) -> int:
        """Bytes of the entries behind the snapshot: when they are many, it is time for a new one."""
        return self._end - _LOG_HEADER_SIZE

    def holds(self, index: int, term: int) -> bool:
        """Whether the disk has the entry at ``index`` of that term, or a snapshot that takes its place."""
        position = index - self._base_index
        return position < 0 or (position < len(self._terms) and self._terms[position] == term)

    def store(self, write: QuorumWrite) -> None:
        """Durable when it returns. May run in another thread, one at a time. OSError: the disk failed, and the log with it."""
        if self._failed:
            raise DiskError(f"{self._directory}: an earlier write failed; what the disk holds is not known")
        self._failed = True
        if write.hard_state is not None:
            self._files.write_file(f"{self._directory}/{STATE_NAME}", _encode_state(write.hard_state))
        if write.snapshot is not None:
            self._store_snapshot(write.snapshot)
        if write.entries:
            self._store_entries(write.entries)
        if write.snapshot is not None or write.entries:
            self._note_end(*self._last)
        self._failed = False

    def _store_entries(self, entries: tuple[Entry, ...]) -> None:
        first = entries[0].index - self._base_index - 1
        assert 0 <= first <= len(self._positions), (entries[0].index, self._base_index, len(self._positions))
        if first < len(self._positions):
            # Flushed before anything takes the place of what is cut, or a crash could mix the two.
            self._note_end(self._terms[first], self._base_index + first, flush=True)
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
        entries = _scan(bytes(self._file.read_at(0, self._end)), self._directory).entries
        kept = self._behind(snapshot, entries)
        if not kept:  # what the log ends with now may be of a later term than the snapshot, and goes
            self._note_end(snapshot.last_term, snapshot.last_index, flush=True)
        self._rewrite(snapshot, kept)
        for name in self._files.list_directory(self._directory):
            if name.endswith(SNAPSHOT_SUFFIX) and name != _snapshot_name(snapshot):
                self._files.remove(f"{self._directory}/{name}")

    def _behind(self, snapshot: Snapshot, entries: list[Entry]) -> list[Entry]:
        """The entries that go on from the snapshot: none if the log does not hold its last entry."""
        position = snapshot.last_index - self._base_index
        if not 0 <= position < len(self._terms) or self._terms[position] != snapshot.last_term:
            return []
        return entries[position:]

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
        if self._end_file is not None:
            self._end_file.close()
        self._file.close()
        self._lock.close()


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
        raise DiskError(f"{path} is not a metadata log; bring it back from a copy, or take this voter out")
    _, version, _, base_index, base_term = _LOG_HEADER.unpack_from(content)
    _refuse_newer(version, path)
    if _CRC.unpack_from(content, _LOG_HEADER.size)[0] != crc32c(content[: _LOG_HEADER.size]):
        raise DiskError(
            f"{path}: the header's checksum is wrong; bring the file back from a copy, or take this voter out"
        )
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
    later = content.find(_FRAME_MAGIC, position + 1)
    while later >= 0:
        body = _frame_body(content, later)
        if body is not None and _BODY.unpack_from(body)[2] > position:
            raise DiskError(
                f"{path}: the bytes at {position}, entry {index}, are corrupt, and they had been written safely; "
                f"bring the file back from a copy, or take this voter out"
            )
        later = content.find(_FRAME_MAGIC, later + 1)
    return _Scan(base_index, base_term, scan.entries, scan.positions, position, min(last_write, position))


def _refuse_newer(version: int, path: str) -> None:
    if version > VERSION:
        raise DiskError(f"{path} is of version {version}; this raylog reads up to {VERSION}: use the newer one")


def _encode_state(state: HardState) -> bytes:
    voted_for = None if state.voted_for is None else str(state.voted_for)
    return _with_crc({"version": VERSION, "term": state.term, "voted_for": voted_for})


def _with_crc(fields: dict[str, object]) -> bytes:
    crc = crc32c(json.dumps(fields).encode())
    return json.dumps(fields | {"crc": f"{crc:08x}"}).encode() + b"\n"


def _checked(content: bytes) -> dict[str, Any]:
    """The fields of such a text. ValueError if its bytes are not what was written; older ones have no checksum."""
    fields: dict[str, Any] = json.loads(content)
    crc = fields.pop("crc", None)
    if crc is not None and crc != f"{crc32c(json.dumps(fields).encode()):08x}":
        raise ValueError("the checksum is wrong")
    return fields


def _decode_state(content: bytes, path: str) -> HardState:
    try:
        fields = _checked(content)
        _refuse_newer(int(fields["version"]), path)
        voted_for = fields["voted_for"]
        return HardState(int(fields["term"]), None if voted_for is None else uuid.UUID(voted_for))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DiskError(
            f"{path} is corrupt: {content[:80]!r}; bring it back from a copy, or take this voter out"
        ) from None


def _decode_incarnation(content: bytes, path: str) -> int:
    try:
        fields = _checked(content)
        _refuse_newer(int(fields["version"]), path)
        return int(fields["incarnation"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DiskError(
            f"{path} is corrupt: {content[:80]!r}; remove it if this machine's clock has not been set back"
        ) from None


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


def _decode_snapshot(content: bytes, path: str) -> Snapshot:
    if len(content) < _SNAPSHOT_HEADER.size or content[:8] != _SNAPSHOT_MAGIC:
        raise DiskError(f"{path} is not a snapshot of the metadata; bring it back from a copy, or take this voter out")
    _, version, crc = _SNAPSHOT_HEADER.unpack_from(content)
    _refuse_newer(version, path)
    body = content[_SNAPSHOT_HEADER.size :]
    if crc32c(body) != crc:
        raise DiskError(f"{path}: the checksum is wrong; bring the file back from a copy, or take this voter out")
    fields = msgpack.unpackb(body)
    voters = tuple(uuid.UUID(bytes=voter) for voter in fields["voters"])
    return Snapshot(fields["last_index"], fields["last_term"], fields["cluster_id"], voters, fields["data"])


def _newest_snapshot(files: Files, directory: str) -> Snapshot:
    """BLANK where there is none."""
    names = [name for name in files.list_directory(directory) if name.endswith(SNAPSHOT_SUFFIX)]
    if not names:
        return BLANK
    path = f"{directory}/{max(names)}"
    return _decode_snapshot(files.read_file(path), path)


# ------------------------------------------------------------------ for tools


def read_entries(content: bytes, path: str) -> tuple[list[Entry], int]:
    """The entries of a log file's bytes, and where the last whole one ends. DiskError as ``open``; nothing is cut."""
    scan = _scan(content, path)
    return scan.entries, scan.end


def read_snapshot(content: bytes, path: str) -> Snapshot:
    """The snapshot in a file's bytes; DiskError if it is none."""
    return _decode_snapshot(content, path)


def read_state(content: bytes, path: str) -> HardState:
    """The term and vote in a file's bytes; DiskError if they are damaged."""
    return _decode_state(content, path)
