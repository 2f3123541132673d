"""Turns the segments of a folder that Apache Kafka wrote, where they hold messages of format 0 or
1, into record batches: once, at the first opening.

A log knows one format. So a folder that was not yet opened here (it has no ``replica.checkpoint``)
is looked through entry by entry, and a segment that holds old messages is written anew beside
itself: each entry becomes one batch of the same offsets (``message_set``), batches are copied as
they are. Batches of few small records are larger than messages; what grows beyond
``PIECE_BYTES_MAX`` is split.

The new pieces go the way of a cleaner's work, so that a crash at any moment leaves the old segment
or the new ones: they are written as ``.cleaned`` and flushed, renamed to ``.swap`` from the last to
the first, each rename synced before the next, and then ``tidy`` puts them in the place of what they
cover. An unfinished ``.cleaned`` in front of a ``.swap`` means that the split was not finished.

What is no entry any more (a torn tail, a CRC that does not fit) ends the conversion of its segment:
the rest is copied as it is, for recovery to judge and cut. A wrapper of right CRC that cannot be
read is not lost silently: DiskError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from raylog.errors import DiskError
from raylog.log.files import File, Files
from raylog.records.batch import CURRENT_MAGIC, HEADER_SIZE, LOG_OVERHEAD, MAGIC_POSITION
from raylog.records.corrupt import CorruptBatch
from raylog.records.message_set import ENTRY_SIZE_MIN, batch_of, message_of

PIECE_BYTES_MAX = 1 << 30  # positions in an index have 31 bits
_CHUNK_BYTES = 4 << 20
_WRITE_BYTES = 1 << 20
_PLACE = struct.Struct(">qi")


def converts(files: Files, directory: str, base_offset: int) -> bool:
    """Whether that segment held old messages. If so it is written anew, up to the ``.swap`` files
    that ``tidy`` has to finish.
    """
    source = files.open(f"{directory}/{base_offset:020d}.log")
    try:
        is_old = any(magic < CURRENT_MAGIC for _, magic, _ in _entries(source))
        if is_old:
            _convert(files, directory, base_offset, source)
        return is_old
    finally:
        source.close()


def _entries(file: File) -> Iterator[tuple[int, int, memoryview]]:
    """(position, magic, bytes) of each whole entry of any format, up to the first that is none. A
    view is good until the next.
    """
    position, end = 0, file.size()
    while end - position > MAGIC_POSITION:
        chunk = file.read_at(position, min(_CHUNK_BYTES, end - position))
        at = 0
        while len(chunk) - at > MAGIC_POSITION:
            size, magic = LOG_OVERHEAD + _PLACE.unpack_from(chunk, at)[1], chunk[at + MAGIC_POSITION]
            least = HEADER_SIZE if magic == CURRENT_MAGIC else ENTRY_SIZE_MIN
            if magic > CURRENT_MAGIC or not least <= size <= end - position - at:
                return
            if at + size > len(chunk):
                break  # it goes on behind this piece
            yield position + at, magic, memoryview(chunk)[at : at + size]
            at += size
        if at == 0:
            at = LOG_OVERHEAD + _PLACE.unpack_from(chunk)[1]
            yield position, chunk[MAGIC_POSITION], memoryview(file.read_at(position, at))
        position += at


def _convert(files: Files, directory: str, base_offset: int, source: File) -> None:
    pieces = _SegmentPieces(files, directory)
    try:
        pieces.start(base_offset)
        end = 0
        for position, magic, entry in _entries(source):
            batch: bytes | memoryview = entry
            if magic < CURRENT_MAGIC:
                try:
                    message = message_of(entry)
                except CorruptBatch:
                    break
                try:
                    batch = batch_of(message)
                except CorruptBatch as error:
                    raise DiskError(
                        f"{directory}/{base_offset:020d}.log holds a set of messages of format {magic} at byte {position} whose CRC is "
                        f"right and that cannot be read: {error.reason}. Let Apache Kafka rewrite the topic (mirror it into a new one)."
                    ) from error
            pieces.add(batch)
            end = position + len(entry)
        while rest := source.read_at(end, _CHUNK_BYTES):
            pieces.add_rest(rest)
            end += len(rest)
        pieces.flush()
    finally:
        pieces.close()
    files.sync_directory(directory)
    for base in reversed(pieces.base_offsets):
        path = f"{directory}/{base:020d}.log"
        files.replace(path + ".cleaned", path + ".swap")
        files.sync_directory(directory)


class _SegmentPieces:
    """The files that take a segment's place, the last one open. ``base_offsets`` ascend; the first
    is the segment's own.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.base_offsets: list[int] = []
        self._file: File | None = None
        self._size = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def start(self, base_offset: int) -> None:
        """The next piece. The one before it, if there is one, is flushed."""
        self.close()
        self._file = self._files.open(f"{self._directory}/{base_offset:020d}.log.cleaned", create=True)
        self._file.truncate(0)
        self._size = 0
        self.base_offsets.append(base_offset)

    def add(self, batch: bytes | memoryview) -> None:
        """A whole batch."""
        size = self._size + self._waiting_bytes
        if size and size + len(batch) > PIECE_BYTES_MAX:
            self.flush()
            self.start(_PLACE.unpack_from(batch)[0])
        self.add_rest(batch)

    def add_rest(self, data: bytes | bytearray | memoryview) -> None:
        """Whatever it is, behind the last batch."""
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        assert self._file is not None
        if self._waiting:
            self._size += self._file.write_at(self._size, *self._waiting)
            self._waiting, self._waiting_bytes = [], 0

    def flush(self) -> None:
        assert self._file is not None
        self._write()
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
