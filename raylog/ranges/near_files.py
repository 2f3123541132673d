"""Records taken out of a replica's files by a reader on the same machine: no socket in between, and no work for the server but one answer.

``located`` asks a replica that may be on this machine where a range lies (LocateRecords) and opens the files; ``NearRecords.chunks`` reads
them a piece at a time into one buffer. Nothing depends on it: whatever does not fit (no replica here, another kernel, a file that is
gone, is another one or may not be opened, fewer bytes than told, a batch that is none or whose CRC is wrong) ends the chunks early, and
the caller has the rest fetched, which finds out what is the matter.

An open file is read on safely: below the high watermark its bytes do not change; retention and compaction take its name away, not its
content. Only an unclean election cuts there, and shows as what does not fit. Files are read, not mapped: a mapped one that is cut
would be a SIGBUS.

That a file is the replica's is proven, not guessed: the kernel's boot id is the one that the replica sees, and device and inode of what was
opened are those that it told. Addresses only say whom to ask.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from raylog.client.consumer.nearest_replicas import is_this_machine
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import Leader
from raylog.errors import RaylogError
from raylog.records.batch import BatchView, batches, peek_size
from raylog.records.corrupt import CorruptBatch, UnsupportedMagic
from raylog.types import Endpoint, TopicPartition
from raylog.wire.private import LocateRecords, RecordsLocated

logger = logging.getLogger("raylog.ranges")

CHUNK_BYTES = 1 << 20
_ANSWER_MS = 5_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True, eq=False)
class NearChunk:
    """Whole batches with right CRCs in a buffer that the next chunk overwrites; the records below ``next_offset`` are in it or nowhere."""

    views: list[BatchView]
    next_offset: int


@dataclass(frozen=True, slots=True)
class _OpenPiece:
    descriptor: int
    position: int
    size: int


async def located(link: ClusterLink, key: TopicPartition, offset: int, offset_end: int) -> NearRecords | None:
    """The records of these offsets, or of the first of them, as far as files of this machine have them; None: have them fetched."""
    try:
        view = await link.metadata.partition(key)
        asked = _near(link, view.leader, [node for node in view.isr if node not in view.offline])
        if asked is None:
            return None
        connection = await link.connections.get(asked)
        request = LocateRecords(*key, offset, offset_end, view.leader.epoch)
        told: RecordsLocated = await connection.request(request, timeout_ms=_ANSWER_MS)
    except RaylogError as error:
        logger.debug("%s-%d is fetched, not read from files: %s", *key, error)
        return None
    if told.offset_end <= offset or told.boot_id != _boot_id():
        return None
    return _opened(told, offset)


def _near(link: ClusterLink, leader: Leader, isr: list[int]) -> Endpoint | None:
    """The leader, or a follower in sync, whose address is one of this machine's."""
    if leader.endpoint is None:
        return None
    for endpoint in (leader.endpoint, *(link.metadata.nodes.get(node) for node in isr)):
        if endpoint is not None and is_this_machine(endpoint.host):
            return endpoint
    return None


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def _opened(told: RecordsLocated, offset: int) -> NearRecords | None:
    pieces: list[_OpenPiece] = []
    found = NearRecords(pieces, offset, told.offset_end)
    for path, device, inode, position, size in told.pieces:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            logger.debug("%s is not read here: %s", path, error)
            found.close()
            return None
        pieces.append(_OpenPiece(descriptor, position, size))
        facts = os.fstat(descriptor)
        if (facts.st_dev, facts.st_ino) != (device, inode) or facts.st_size < position + size:
            logger.debug("%s is another file here, or has become one", path)
            found.close()
            return None
        os.posix_fadvise(descriptor, position, size, os.POSIX_FADV_SEQUENTIAL)
    return found


class NearRecords:
    """Open files. ``position``: every record below it was in the chunks."""

    def __init__(self, pieces: list[_OpenPiece], offset: int, offset_end: int) -> None:
        self._pieces = pieces
        self._buffer = bytearray()
        self.position = offset
        self.offset_end = offset_end

    def chunks(self) -> Iterator[NearChunk]:
        """The batches in order, up to ``offset_end`` if everything fits. A chunk is good until the next one is asked for."""
        for piece in self._pieces:
            if not (yield from self._chunks_of(piece)):
                return
        self.position = self.offset_end

    def _chunks_of(self, piece: _OpenPiece) -> Generator[NearChunk, None, bool]:
        """Gives true at the end of the piece, false where something does not fit."""
        position, end, wanted = piece.position, piece.position + piece.size, CHUNK_BYTES
        while position < end:
            data = self._read(piece.descriptor, position, min(wanted, end - position))
            views, is_whole = _fitting(data, self.position)
            if views:
                position += views[-1].end
                wanted = CHUNK_BYTES
                next_offset = max(self.position, views[-1].next_offset)
                yield NearChunk(views, next_offset)
                self.position = next_offset
            elif is_whole and (size := peek_size(data)) is not None and wanted < size <= end - position:
                wanted = size  # one batch, larger than a chunk
            else:
                is_whole = False
            if not is_whole:
                logger.debug("what lies at %d of a segment does not fit: the rest is fetched", position)
                return False
        return True

    def _read(self, descriptor: int, position: int, size: int) -> memoryview:
        """As many bytes as there are, in the one buffer."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        room, got = memoryview(self._buffer)[:size], 0
        while got < size and (more := os.preadv(descriptor, [room[got:]], position + got)):
            got += more
        return room[:got]

    def close(self) -> None:
        for piece in self._pieces:
            os.close(piece.descriptor)
        self._pieces = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _fitting(data: memoryview, expected: int) -> tuple[list[BatchView], bool]:
    """The whole batches at the beginning that go on at an offset, as far as they fit, and whether that is all of them."""
    views: list[BatchView] = []
    try:
        for view in batches(data, allow_partial_tail=True):
            is_next = view.base_offset >= expected or (not views and view.next_offset > expected)
            if not is_next or view.last_offset_delta < 0 or not view.has_valid_crc():
                return views, False
            views.append(view)
            expected = view.next_offset
    except (CorruptBatch, UnsupportedMagic):
        return views, False
    return views, True
