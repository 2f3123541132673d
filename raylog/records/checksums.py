"""Many batches at once: how many of those that follow each other in a buffer are whole. A batch is
whole if its magic byte, which no checksum covers, is that of today's format, and its checksum fits.

A batch of usual size is checked by the packaged CRC-32C, at 25 GB/s; where batches are small, what
they cost is Python's, so the C kernel walks over them instead (about 8 GB/s). Knows nothing of
files, offsets or records.
"""

from __future__ import annotations

import ctypes
import struct

from crc32c import crc32c

from raylog.records import kernel
from raylog.records.batch import CRC_POSITION, CRC_START, CURRENT_MAGIC, HEADER_SIZE, LOG_OVERHEAD, MAGIC_POSITION

_SMALL_BYTES = 4096  # batches below are left to the kernel, if there are more than a few
_FEW = 4
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">i")
_Found = ctypes.c_int64 * 2


def whole_batches(buffer: bytes | bytearray, start: int, end: int) -> tuple[int, int]:
    """Where the whole batches from ``start`` on end, and where the last of them begins; both
    ``start`` if the first is damaged.

    None reaches behind ``end``.
    """
    first_size = _size_at(buffer, start, end)
    if first_size < _SMALL_BYTES and end - start > _FEW * first_size:
        native = kernel.loaded()
        if native is not None:
            found = _Found()
            data = buffer if isinstance(buffer, bytes) else ctypes.byref(ctypes.c_char.from_buffer(buffer))
            native.check_batches(data, start, end, found)
            return found[0], found[1]
    position = last = start
    while position < end:
        size = _size_at(buffer, position, end)
        if not HEADER_SIZE <= size <= end - position or buffer[position + MAGIC_POSITION] != CURRENT_MAGIC:
            break
        covered = memoryview(buffer)[position + CRC_START : position + size]
        if _CRC.unpack_from(buffer, position + CRC_POSITION)[0] != crc32c(covered):
            break
        last = position
        position += size
    return position, last


def _size_at(buffer: bytes | bytearray, position: int, end: int) -> int:
    return int(_LENGTH.unpack_from(buffer, position + 8)[0]) + LOG_OVERHEAD if end - position >= LOG_OVERHEAD else 0
