"""What the C library does with memory that the process of a replica or a Broker has freed.

A replica takes and frees a buffer of a batch's size for each request. By default glibc gives such a
piece back to the kernel at once and gets it again, page by page and zeroed, for the next request: a
fifth of a busy leader's CPU time (measured: 1.4 instead of 1.8 CPU s/GB with three replicas). So a
process keeps up to ``KEPT_BYTES`` of it for itself. Spark's Python workers that write to topics do
the same, with the batches that they get and those that they send.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 16 << 20
_M_TRIM_THRESHOLD: Final = -1  # malloc.h: more free memory than this at the end of the heap goes back to the kernel
_M_MMAP_THRESHOLD: Final = -3  # larger pieces are mapped one by one, and unmapped when they are freed


def keep_freed_memory(kept_bytes: int = KEPT_BYTES) -> None:
    """For processes that run raylog's code only; 32 MiB at most. Does nothing with a C library that
    has no ``mallopt``.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_MMAP_THRESHOLD, kept_bytes)
