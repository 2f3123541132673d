"""One segment of a log: ``<base offset>.log`` with its two indexes, as Apache Kafka writes them.

Owns the file's bytes and their index entries; knows nothing of validation, producers, epochs or
other segments. The newest segment of a log is *active*: appended to, indexes preallocated. ``seal``
trims them when the log rolls or closes. Files are opened when they are first used and can be closed
again at any time (``rest``), also those of an active segment. A segment that is part of a log that
serves has an account of open files (``open_files``), which closes them when others have been used
since.

Index entries (both indexes, every ``index.interval.bytes``) name a batch by its last offset:
``(last offset, position)`` and ``(largest timestamp so far, last offset of the batch that brought
it)``. A short memory of ``offset → position`` (where reads ended and appends began) lets followers
and sequential readers skip the lookup.

Damage: ``read`` checks the magic byte and the CRC of every batch that it returns. It ends before
one that is damaged, and raises CorruptBatch, with the position in the file, where that is the
first. Lengths that cannot be right end every walk with CorruptBatch.

Reading methods take ``in_memory``: they raise NotInMemory rather than wait for the disk, and leave
everything as it was. The last few megabytes that this process appended are taken to be in the page
cache and read without asking: that is most reads, and asking costs.

Invariants: ``size`` is the end of the last whole batch, also where the file is longer
(preallocated); every batch's offsets lie in ``[base_offset, base_offset + 2**31)``;
``largest_timestamp`` is the maximum of all batches' max timestamps, −1 if none has one; ``flushed``
is only ever true of a sealed segment; ``0 <= _written_from <= size``, and it is set on the active
one only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from raylog.log.config import LogConfig
from raylog.log.files import Buffer, File, Files, NotInMemory
from raylog.log.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from raylog.log.open_files import OpenFiles
from raylog.log.time_index import NO_TIMESTAMP, TimeIndex
from raylog.records.batch import CURRENT_MAGIC, HEADER_SIZE, LOG_OVERHEAD, MAGIC_POSITION, BatchView
from raylog.records.checksums import whole_batches
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic

_PLACE = struct.Struct(">qi")  # base offset and batch length, a batch's first 12 bytes
_DELTA = struct.Struct(">i")  # last offset delta, at byte 23
_DELTA_POSITION = 23
_DELTA_END = _DELTA_POSITION + 4
_WALK_BYTES = 8192
_SCAN_BYTES = 4 << 20
_REMEMBERED_POSITIONS = 32
_RECENT_BYTES = 4 << 20
_MANY_BATCHES = 64  # of the size of the first one in a read: from there on the index is asked where they end
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


class Segment:
    """``next_offset`` is known to the log only; a segment knows where its bytes end."""

    __slots__ = (
        "_file",
        "_files",
        "_flushed_life",
        "_life",
        "_open_files",
        "_positions",
        "_written_from",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "first_timestamp",
        "index_bytes",
        "largest_timestamp",
        "offset_index",
        "offset_of_largest_timestamp",
        "path",
        "preallocated",
        "roll_jitter_ms",
        "sealed",
        "size",
        "suffix",
        "time_index",
    )

    def __init__(self, files: Files, directory: str, base_offset: int, *, created_ms: int, suffix: str = "") -> None:
        self._files = files
        self._file: File | None = None
        self._open_files: OpenFiles | None = None
        self._positions: dict[int, int] = {}
        self._written_from: int | None = None  # this process wrote what follows; None: nothing
        self.path = f"{directory}/{base_offset:020d}"
        self.suffix = suffix  # of the files' names, while a cleaner's work is on its way to its place
        self.base_offset = base_offset
        self.size = 0
        self.offset_index = OffsetIndex(files, self.path + ".index" + suffix, base_offset=base_offset)
        self.time_index = TimeIndex(files, self.path + ".timeindex" + suffix, base_offset=base_offset)
        self.largest_timestamp = NO_TIMESTAMP
        self.offset_of_largest_timestamp = base_offset
        self.first_timestamp: int | None = None
        self.created_ms = created_ms
        self.roll_jitter_ms = 0
        self.bytes_since_index_entry = 0
        self.index_bytes = 0
        self.preallocated = False
        self.sealed = True
        self._life = 0  # raised whenever it becomes active
        self._flushed_life = -1  # the one at whose end everything was flushed

    # ------------------------------------------------------------------ life

    @classmethod
    def create(
        cls,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        config: LogConfig,
        wall_ms: int,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> Segment:
        """A new, empty, active segment. Files of that name are emptied."""
        segment = cls(files, directory, base_offset, created_ms=wall_ms, suffix=suffix)
        try:
            segment._file = files.open(segment.path + ".log" + suffix, create=True)
            segment._file.truncate(0)
            segment.activate(config, roll_jitter_ms=roll_jitter_ms)
        except BaseException:
            segment.close_files()  # nobody else knows of it
            raise
        return segment

    @classmethod
    def load(cls, files: Files, directory: str, base_offset: int) -> Segment:
        """A sealed segment as the disk holds it; ``index_fault`` says whether its indexes can be
        used.
        """
        path = f"{directory}/{base_offset:020d}.log"
        segment = cls(files, directory, base_offset, created_ms=files.modified_ms(path))
        segment.size = files.size(path)
        return segment

    def load_indexes(self) -> str | None:
        """Take the index files as they are; returns why they have to be rebuilt, None if they need
        not.
        """
        try:
            self.offset_index.file.load_sealed()
            self.time_index.file.load_sealed()
        except FileNotFoundError as error:
            return f"{error.filename or 'an index'} is missing"
        fault = self.offset_index.fault(self.size)
        if fault is not None:
            return f"{self.path}.index: {fault}"
        fault = self.time_index.fault()
        if fault is not None:
            return f"{self.path}.timeindex: {fault}"
        self.largest_timestamp, self.offset_of_largest_timestamp = self.time_index.last()
        if self.size and not self.time_index.file.count and self.first_batch_timestamp() != NO_TIMESTAMP:
            return f"{self.path}.timeindex: empty beside a log with timestamps"
        return None

    def start_indexes(self, index_bytes: int) -> None:
        """Begin both indexes anew, to be filled by ``index_batch`` in log order."""
        self.offset_index.file.start(index_bytes)
        self.time_index.file.start(index_bytes)
        self.largest_timestamp, self.offset_of_largest_timestamp = NO_TIMESTAMP, self.base_offset
        self.bytes_since_index_entry = 0

    def activate(self, config: LogConfig, *, roll_jitter_ms: int) -> None:
        """Make a loaded (or new) segment the one that is appended to."""
        assert self.sealed, self.path
        self.index_bytes = config.segment_index_bytes
        self.roll_jitter_ms = roll_jitter_ms
        self.bytes_since_index_entry = 0
        if self.size:
            self.offset_index.file.reopen(self.index_bytes)
            self.time_index.file.reopen(self.index_bytes)
        else:
            self.start_indexes(self.index_bytes)
        if config.preallocate:
            self.file.truncate(max(config.segment_bytes, self.size))
            self.preallocated = True
        self.sealed = False
        self._life += 1  # a flush in another thread that began before proves nothing from here on
        self._written_from = self.size

    def write_indexes(self) -> None:
        """Add the last time index entry and hand all entries to the files, so that ``seal`` needs
        no more room on the disk.
        """
        if not self.sealed:
            self.time_index.maybe_append(self.largest_timestamp, self.offset_of_largest_timestamp)
            self.offset_index.file.write()
            self.time_index.file.write()

    def seal(self) -> None:
        """No appends from here: every file is trimmed to what it holds. Where that fails, the
        segment stays active.
        """
        if self.sealed:
            return
        self.write_indexes()
        self.offset_index.file.trim()
        self.time_index.file.trim()
        if self.preallocated:
            self.file.truncate(self.size)
            self.preallocated = False
        self.offset_index.file.seal()
        self.time_index.file.seal()
        self.sealed = True
        self._written_from = None

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._open(lambda: self._files.open(self.path + ".log" + self.suffix))
        return self._file

    def _open(self, opening: Callable[[], File]) -> File:
        return opening() if self._open_files is None else self._open_files.open(self, opening)

    @property
    def is_resting(self) -> bool:
        """Whether it holds no file open."""
        return self._file is None and not self.offset_index.file.is_open and not self.time_index.file.is_open

    def account_with(self, open_files: OpenFiles | None) -> None:
        """Have its open files counted, and closed, there; None: nowhere any more."""
        if self._open_files is not None:
            self._open_files.leave((self,))
        self._open_files = open_files
        self.offset_index.file.opening = self.time_index.file.opening = None if open_files is None else self._open
        if open_files is not None and not self.is_resting:
            open_files.use(self)

    def rest(self) -> None:
        """Close the files; they are opened again when they are needed."""
        if self._open_files is not None:
            self._open_files.leave((self,))
        self.close_files()

    def close_files(self) -> None:
        """What ``rest`` does, for whoever keeps the account."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.offset_index.file.close()
        self.time_index.file.close()

    def flush(self) -> None:
        """fdatasync through handles of its own, so that it can run in another thread. Files that
        are gone are no error.

        The active segment's indexes are left out: they are rebuilt after every unclean stop. A
        sealed one is done but once.
        """
        if self.flushed:
            return
        life, sealed = self._life, self.sealed
        for suffix in SUFFIXES if sealed else (".log",):
            try:
                file = self._files.open(self.path + suffix + self.suffix)
            except FileNotFoundError:
                continue
            try:
                file.flush()
            finally:
                file.close()
        if sealed:
            self._flushed_life = life

    def rewrite_from(self, offset: int) -> None:
        """Write the log file's bytes from the batch that reaches ``offset`` once more, as they are.

        After a failed flush they may be in the page cache only, where no later flush would find
        anything to write.
        """
        found = self.locate(offset)
        position = self.size if found is None else found[0]
        while position < self.size:
            chunk = self.file.read_at(position, min(_SCAN_BYTES, self.size - position))
            position += self.file.write_at(position, chunk)

    @property
    def flushed(self) -> bool:
        """Whether all of it is on the disk, for good. False while it is active, and after a cut
        made it active again.
        """
        return self._flushed_life == self._life

    def file_names(self) -> list[str]:
        """The paths of this segment's files that exist."""
        paths = [self.path + suffix + self.suffix for suffix in SUFFIXES]
        return [path for path in paths if self._files.exists(path)]

    def rename(self, suffix: str) -> None:
        """Let the files' names end in ``suffix``. The log is renamed last: what ``tidy`` finds of
        it says how far this got.
        """
        for kind in reversed(SUFFIXES):
            if self._files.exists(self.path + kind + self.suffix):
                self._files.replace(self.path + kind + self.suffix, self.path + kind + suffix)
        self.suffix = suffix
        self.offset_index.file.path = self.path + ".index" + suffix
        self.time_index.file.path = self.path + ".timeindex" + suffix

    # ------------------------------------------------------------------ writing

    def should_roll(
        self, config: LogConfig, incoming_bytes: int, last_offset: int, max_timestamp: int, wall_ms: int
    ) -> bool:
        """Kafka's ``LogSegment.shouldRoll``: by size, age (records' timestamps if there are any),
        full index, offset range.
        """
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if not self.size:
            return False
        first = self.first_batch_timestamp()
        age_ms = (
            max_timestamp - first if first >= 0 else wall_ms - self.created_ms if wall_ms >= 0 <= self.created_ms else 0
        )
        return (
            self.size > config.segment_bytes - incoming_bytes
            or age_ms > config.segment_ms - self.roll_jitter_ms
            or self.offset_index.is_full()
            or self.time_index.is_full()
        )

    def append(
        self, buffers: Sequence[Buffer], batches: Sequence[tuple[int, int, int, int]], *, interval_bytes: int
    ) -> None:
        """Write whole batches at the end. ``batches`` gives (base offset, last offset, size, max
        timestamp) of each, as stamped.

        On OSError the file is cut back to where it was before the error is raised again.
        """
        start = self.size
        try:
            written = self.file.write_at(start, *buffers)
        except OSError:
            self.file.truncate(start)
            raise
        position = start
        for _, last_offset, size, max_timestamp in batches:
            self.index_batch(position, last_offset, size, max_timestamp, interval_bytes=interval_bytes)
            position += size
        if start == 0:
            self.first_timestamp = batches[0][3]
        self.size = position
        assert position - start == written, (position, start, written)
        self._remember(batches[0][0], start)

    def index_batch(
        self, position: int, last_offset: int, size: int, max_timestamp: int, *, interval_bytes: int
    ) -> None:
        """Account for a batch that is (or is about to count as) the next in the file."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.offset_of_largest_timestamp = last_offset
        if self.bytes_since_index_entry > interval_bytes:
            if not self.offset_index.is_full():
                self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.largest_timestamp, self.offset_of_largest_timestamp)
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += size

    def truncate_to(self, offset: int) -> int | None:
        """Cut the active segment before the first batch that reaches ``offset``; returns that
        batch's base offset.

        None if no batch reaches it: nothing is cut.
        """
        assert not self.sealed, self.path
        found = self.locate(offset)
        if found is None:
            return None
        position, base_offset, _ = found
        self.truncate_at(position, base_offset)
        return base_offset

    def truncate_at(self, position: int, base_offset: int) -> None:
        """Cut the active segment at a position, behind which nothing below ``base_offset`` lies."""
        assert not self.sealed, self.path
        self.offset_index.truncate_to(base_offset)
        self.time_index.truncate_to(base_offset)
        self.file.truncate(position)
        self.size = position
        self._written_from = position if self._written_from is None else min(self._written_from, position)
        self.preallocated = False
        self._positions.clear()
        self.bytes_since_index_entry = 0
        if not position:
            self.first_timestamp = None
        self._recompute_largest_timestamp()

    def _recompute_largest_timestamp(self) -> None:
        """Both indexes got their entries for the same batches: what the offset index names last,
        the time index accounts for.
        """
        self.largest_timestamp, self.offset_of_largest_timestamp = self.time_index.last()
        start = self.offset_index.last_position()
        if self.time_index.file.count == self.time_index.file.max_count:  # it may have had no room for what came later
            start = min(start, self.offset_index.lookup(self.offset_of_largest_timestamp)[1])
        try:
            for _, batch in self.scan(start):
                if batch.max_timestamp > self.largest_timestamp:
                    self.largest_timestamp = batch.max_timestamp
                    self.offset_of_largest_timestamp = batch.last_offset
        except (CorruptBatch, UnsupportedMagic):
            pass  # damage: whoever reads it finds that out; a cut must not stop half-way

    # ------------------------------------------------------------------ reading

    def first_batch_timestamp(self) -> int:
        """The max timestamp of the first batch, −1 if there is none or it has none."""
        if self.first_timestamp is None:
            header = self.file.read_at(0, min(HEADER_SIZE, self.size))
            if len(header) < HEADER_SIZE:
                return NO_TIMESTAMP
            self.first_timestamp = struct.unpack_from(">q", header, 35)[0]
        return self.first_timestamp

    def locate(self, offset: int, *, in_memory: bool = False) -> tuple[int, int, int] | None:
        """(position, base offset, size) of the first batch whose last offset is at least
        ``offset``; None if there is none.
        """
        position = self._start_for(offset, in_memory)
        for start, base_offset, last_offset, size in self._walk(position, in_memory):
            if last_offset >= offset:
                return start, base_offset, size
        return None

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool, in_memory: bool = False
    ) -> tuple[Buffer, int, int] | None:
        """Whole batches from the first that reaches ``offset``: (bytes, base offset of the first, offset behind the last).

        None starts at or after ``end_offset``. The first comes even if it is larger than ``max_bytes`` (``at_least_one``). None if no
        batch here reaches ``offset`` or none may be returned.
        """
        exact = self._positions.get(offset)
        position = exact if exact is not None else self._start_for(offset, in_memory)
        if self._written_from is not None and position >= max(self._written_from, self.size - _RECENT_BYTES):
            in_memory = False
        wanted = max_bytes if exact is not None else max_bytes + _WALK_BYTES
        chunk = self.file.read_at(position, min(self.size - position, wanted), in_memory=in_memory)
        start, available = 0, len(chunk)
        unpack, delta = _PLACE.unpack_from, _DELTA.unpack_from
        while True:  # to the first batch that reaches the offset
            if start + _DELTA_END > available:
                found = self._read_from_located(offset, max_bytes, in_memory)
                if found is None:
                    return None
                chunk, position, base_offset, size = found
                start, available = 0, len(chunk)
                break
            base_offset, length = unpack(chunk, start)
            size = length + LOG_OVERHEAD
            if size < HEADER_SIZE or position + start + size > self.size:
                raise self._damaged(position + start, f"a batch of {size} bytes")
            if base_offset + delta(chunk, start + _DELTA_POSITION)[0] >= offset:
                break
            start += size
        if base_offset >= end_offset or (size > max_bytes and not at_least_one):
            return None
        if start + size > available:
            position += start
            chunk, start, available = self._read_whole(position, size, in_memory), 0, size
        end = last = start
        limit = start + max_bytes
        next_base = base_offset
        if limit - start > _MANY_BATCHES * size:
            end = self._known_batch(chunk, position, start, min(limit, available), end_offset)
            next_base, length = unpack(chunk, end)
            size = length + LOG_OVERHEAD
        while next_base < end_offset:
            last, end = end, end + size
            if end + LOG_OVERHEAD > available:
                break
            next_base, length = unpack(chunk, end)
            size = length + LOG_OVERHEAD
            if size < HEADER_SIZE or end + size > available or end + size > limit:
                break  # it is damaged: whoever reads on from there is told
        end, last = whole_batches(chunk, start, end)
        if end == start:
            raise self._damaged(position + start, _why_not_whole(chunk[start + MAGIC_POSITION]))
        next_offset = unpack(chunk, last)[0] + delta(chunk, last + _DELTA_POSITION)[0] + 1
        self._remember(next_offset, position + end)
        if start == 0 and end == available:
            return chunk, base_offset, next_offset
        return memoryview(chunk)[start:end], base_offset, next_offset

    def _known_batch(self, chunk: Buffer, position: int, start: int, stop: int, end_offset: int) -> int:
        """Where in a chunk, which was read at ``position``, a batch begins that may be returned
        with all before it, as far on as the index knows one: else ``start``. Walking over thousands
        of small batches would cost more than reading them.
        """
        try:
            for offset, at in self.offset_index.last_entries(position + stop - 1, end_offset - 1):
                found = at - position
                if found <= start:
                    break
                if found + _DELTA_END <= stop:
                    base_offset, length = _PLACE.unpack_from(chunk, found)
                    is_it = base_offset + _DELTA.unpack_from(chunk, found + _DELTA_POSITION)[0] == offset
                    if is_it and found + length + LOG_OVERHEAD <= stop:
                        return found
        except NotInMemory:
            pass  # a sealed segment's index, and nobody may wait for the disk
        return start

    def scan(
        self, position: int = 0, end: int | None = None, *, in_memory: bool = False
    ) -> Iterator[tuple[int, BatchView]]:
        """Every whole batch from a batch's position on, with its position. Raises CorruptBatch;
        CRCs are the caller's to check.

        Reads in large pieces; a view is good only until the next one is asked for.
        """
        end = self.size if end is None else end
        while position < end:
            chunk = self.file.read_at(position, min(_SCAN_BYTES, end - position), in_memory=in_memory)
            at = 0
            while len(chunk) - at >= LOG_OVERHEAD:
                size = _PLACE.unpack_from(chunk, at)[1] + LOG_OVERHEAD
                if at + size > len(chunk) and position + at + size <= end:
                    break  # the batch goes on behind this piece
                view = BatchView(chunk, at)
                yield position + at, view
                at += size
            if at == 0:  # a batch larger than a piece, or a torn end: let the view judge it
                size = _PLACE.unpack_from(chunk)[1] + LOG_OVERHEAD if len(chunk) >= LOG_OVERHEAD else 0
                if size > len(chunk) and position + size <= end:
                    chunk = self.file.read_at(position, size, in_memory=in_memory)
                yield position, BatchView(chunk)
                at = size
            position += at

    def _walk(self, position: int, in_memory: bool) -> Iterator[tuple[int, int, int, int]]:
        """(position, base offset, last offset, size) of each batch from a batch's position on,
        reading little.
        """
        while position < self.size:
            chunk = self.file.read_at(position, min(_WALK_BYTES, self.size - position), in_memory=in_memory)
            at = 0
            while at + _DELTA_END <= len(chunk):
                base_offset, length = _PLACE.unpack_from(chunk, at)
                size = length + LOG_OVERHEAD
                if size < HEADER_SIZE or position + at + size > self.size:
                    raise self._damaged(position + at, f"a batch of {size} bytes")
                yield position + at, base_offset, base_offset + _DELTA.unpack_from(chunk, at + _DELTA_POSITION)[0], size
                at += size
            if not at:
                raise self._damaged(position, f"the file has {len(chunk)} of its bytes")
            position += at

    def _read_from_located(
        self, offset: int, max_bytes: int, in_memory: bool
    ) -> tuple[bytes | bytearray, int, int, int] | None:
        """The first batch that reaches ``offset``, and more: (bytes, position, base offset, size of
        the batch); None if none does.
        """
        found = self.locate(offset, in_memory=in_memory)
        if found is None:
            return None
        position, base_offset, size = found
        wanted = min(self.size - position, max(max_bytes, size))
        return self.file.read_at(position, wanted, in_memory=in_memory), position, base_offset, size

    def _read_whole(self, position: int, size: int, in_memory: bool) -> bytes | bytearray:
        """The batch of ``size`` bytes at ``position``. Raises CorruptBatch if the file ends within
        it.
        """
        chunk = self.file.read_at(position, size, in_memory=in_memory)
        if len(chunk) < size:
            raise self._damaged(position, f"the file has {len(chunk)} of its {size} bytes")
        return chunk

    def _damaged(self, position: int, reason: str) -> CorruptBatch:
        return CorruptBatch(f"{self.path}.log{self.suffix} is damaged there: {reason}", position)

    def _start_for(self, offset: int, in_memory: bool) -> int:
        exact = self._positions.get(offset)
        return exact if exact is not None else self.offset_index.lookup(offset, in_memory=in_memory)[1]

    def _remember(self, offset: int, position: int) -> None:
        positions = self._positions
        positions[offset] = position
        if len(positions) > _REMEMBERED_POSITIONS:
            del positions[next(iter(positions))]


def _why_not_whole(magic: int) -> str:
    return "a CRC does not fit" if magic == CURRENT_MAGIC else f"unknown magic byte {magic}"
