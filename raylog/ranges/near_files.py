"""Reads records from a replica's files on the same machine, without a socket.

``located`` asks a replica that may be on this machine where a range lies (LocateRecords) and opens
the files. That answer is the only work for the server. ``NearRecords.chunks`` reads the files piece
by piece into one buffer. All of this is optional: on any mismatch (no replica here, another kernel,
a file that is gone, replaced or not readable, too few bytes, an invalid batch or a wrong CRC) the
chunks end early. The caller then fetches the rest, and the fetch reports the cause.

An open file stays valid: below the high watermark its bytes do not change, and retention and
compaction remove its name, not its content. Only an unclean election truncates there, which shows
as a mismatch. Files are read, not mapped: truncating a mapped file would raise SIGBUS.

The file is proven to be the replica's: the kernel's boot id is the one that the replica reports,
and so are device and inode of the opened file. Addresses only decide which replica to ask.
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
from raylog.client.links.metadata import PartitionLeader
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
    """Whole batches with valid CRCs, in a buffer that the next chunk overwrites. It has every
    record below ``next_offset``.
    """

    views: list[BatchView]
    next_offset: int


@dataclass(frozen=True, slots=True)
class _OpenPiece:
    descriptor: int
    position: int
    size: int


async def located(link: ClusterLink, key: TopicPartition, offset: int, offset_end: int) -> NearRecords | None:
    """Return these records, or the first of them, as far as files of this machine have them; None:
    fetch them.
    """
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


def _near(link: ClusterLink, leader: PartitionLeader, isr: list[int]) -> Endpoint | None:
    """Return the leader, or an in-sync follower, whose address belongs to this machine."""
    if leader.endpoint is None or link.connections.are_outside:
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
    """Open files. ``position``: every record below it has been in a chunk."""

    def __init__(self, pieces: list[_OpenPiece], offset: int, offset_end: int) -> None:
        self._pieces = pieces
        self._buffer = bytearray()
        self.position = offset
        self.offset_end = offset_end

    def chunks(self) -> Iterator[NearChunk]:
        """Yield the batches in order, up to ``offset_end`` if all is well. A chunk is valid until
        the next one is requested.
        """
        for piece in self._pieces:
            if not (yield from self._chunks_of(piece)):
                return
        self.position = self.offset_end

    def _chunks_of(self, piece: _OpenPiece) -> Generator[NearChunk, None, bool]:
        """Return true at the end of the piece, false on a mismatch."""
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
                logger.debug("mismatch at position %d of a segment: the rest is fetched", position)
                return False
        return True

    def _read(self, descriptor: int, position: int, size: int) -> memoryview:
        """Read as many bytes as there are into the shared buffer."""
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
    """Return the valid whole batches that continue at an offset, and whether these are all."""
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
