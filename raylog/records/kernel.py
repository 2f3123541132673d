"""The C kernel as Python sees it: which functions it has, whether it is there, and why not.

``kernel.c`` is compiled when raylog is installed (``build_kernel.py`` in the source tree) into a
plain shared library beside this module. It is called through ctypes, which lets go of the GIL for
the length of a call. ``loaded()`` gives it, or None where nothing could be compiled; then the
packaged codec (``raylog.records.arrow_fallback``) does the same work several times slower, and
``loaded`` says so once, as a warning of the logger ``raylog.records``. ``raylog doctor`` shows
which it is.

A library that was made from another source than the one beside it is not used (it carries the
source's CRC-32): whoever updates a source tree without installing it anew gets the fallback, never
the wrong bytes. ``RAYLOG_KERNEL=0`` in the environment turns the kernel off.

Knows nothing of Arrow and batches: the structs here are those of ``kernel.c``, field by field.
"""

from __future__ import annotations

import ctypes
import logging
import os
import zlib
from ctypes import POINTER, Structure, byref, c_int, c_int32, c_int64, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger("raylog.records")

SOURCE = Path(__file__).with_name("kernel.c")
LIBRARY = Path(__file__).with_name("_kernel.so")
ENVIRONMENT = "RAYLOG_KERNEL"

OK = 0
BAD_VARINT = 3
BAD_LENGTH = 4
BAD_HEADERS = 5
BAD_TEXT = 6
BAD_RECORD = 7
TRAILING = 8
NO_ROOM = 9
BAD_COLUMN = 10
NO_HEADER_KEY = 11
TOO_LARGE = 12
BAD_OFFSET = 13
BAD_COUNT = 14
NO_KEY = 15
BAD_TIMESTAMP = 16
UNUSUAL = 17
REASONS = {
    1: "a header that is cut off or impossible",
    2: "its records are still compressed",
    BAD_VARINT: "ends inside a varint, or a varint of more than 64 bits",
    BAD_LENGTH: "a key, value or header longer than what is left",
    BAD_HEADERS: "a negative number of headers, or a header without a key",
    BAD_TEXT: "a header's key is no UTF-8",
    BAD_RECORD: "a record takes more or fewer bytes than it says",
    TRAILING: "bytes behind the last record",
    NO_ROOM: "its bytes changed while they were read",
    BAD_COLUMN: "an Arrow column whose offsets do not lie in its data",
    NO_HEADER_KEY: "a header without a key",
    TOO_LARGE: "a record larger than allowed",
    BAD_OFFSET: "its offset delta is not its place in the batch",
    BAD_COUNT: "more records than so many bytes can hold",
    NO_KEY: "no key",
    BAD_TIMESTAMP: "a timestamp outside the bounds",
}


class Run(Structure):
    """Whole uncompressed batches in one buffer."""

    _fields_ = [
        ("data", c_void_p),
        ("size", c_int64),
        ("start_offset", c_int64),
        ("offset_end", c_int64),
        ("records", c_int64),
    ]


class Sizes(Structure):
    _fields_ = [
        (name, c_int64)
        for name in (
            "records", "null_keys", "key_bytes", "null_values", "value_bytes", "headers", "header_key_bytes",
            "null_header_values", "header_value_bytes", "bad_run", "bad_position",
        )
    ]  # fmt: skip


class Column(Structure):
    """A binary column to be written."""

    _fields_ = [("ends", c_void_p), ("valid", c_void_p), ("data", c_void_p), ("room", c_int64)]


class Columns(Structure):
    _fields_ = [
        ("record_room", c_int64),
        ("header_room", c_int64),
        ("offsets", c_void_p),
        ("timestamps", c_void_p),
        ("timestamp_types", c_void_p),
        ("key", Column),
        ("value", Column),
        ("header_ends", c_void_p),
        ("header_key", Column),
        ("header_value", Column),
    ]


class Binary(Structure):
    """A binary column to be read."""

    _fields_ = [
        ("valid", c_void_p),
        ("ends", c_void_p),
        ("data", c_void_p),
        ("data_size", c_int64),
        ("first", c_int64),
        ("count", c_int64),
        ("is_wide", c_int32),
    ]


class Rows(Structure):
    _fields_ = [
        ("count", c_int64),
        ("key", Binary),
        ("value", Binary),
        ("timestamps", c_void_p),
        ("timestamp_valid", c_void_p),
        ("timestamp_first", c_int64),
        ("now_ms", c_int64),
        ("header_ends", c_void_p),
        ("header_valid", c_void_p),
        ("header_first", c_int64),
        ("header_key", Binary),
        ("header_value", Binary),
    ]


class RowSizes(Structure):
    _fields_ = [(name, c_int64) for name in ("bad_row", "bad_size", "keyless", "keyless_bytes")]


class BatchPlan(Structure):
    _fields_ = [(name, c_int64) for name in ("count", "records_size", "base_timestamp", "max_timestamp")]


class Fault(Structure):
    """A record that the topic does not take: its index in the batch, NO_KEY or BAD_TIMESTAMP, and
    its timestamp.
    """

    _fields_ = [("index", c_int32), ("code", c_int32), ("timestamp", c_int64)]


class Report(Structure):
    _fields_ = [("faults", POINTER(Fault)), ("fault_room", c_int64), ("fault_count", c_int64), ("bad_record", c_int64)]


class UnusableKernel(Exception):
    """There is no library to use; the message says why."""


class Kernel:
    """The functions of a library; each gives 0 or a key of ``REASONS``. What they promise stands in
    ``kernel.c``.
    """

    def __init__(self, path: Path = LIBRARY) -> None:
        try:
            library: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise UnusableKernel(f"{path.name} cannot be loaded ({error})") from None
        digest = library.rk_digest
        digest.restype = c_uint32
        if digest() != source_digest():
            raise UnusableKernel(f"{path.name} was built from another source: install raylog anew (pip install -e .)")
        self.measure = _function(library.rk_measure, POINTER(Run), c_int64, POINTER(Sizes))
        self.fill = _function(library.rk_fill, POINTER(Run), c_int64, POINTER(Columns))
        self.check_rows = _function(library.rk_check_rows, POINTER(Rows), c_int64, POINTER(RowSizes))
        check = (
            c_void_p, c_int64, c_int64, c_int64, c_int64, c_int32, c_int64, c_int64, POINTER(Report),
        )  # fmt: skip
        self.check_records = _function(library.rk_check_records, *check)
        # The same, but it keeps the GIL. A thread that gives the GIL up for some microseconds may
        # wait milliseconds until it is back.
        self.check_few_records = _function(ctypes.PyDLL(str(path)).rk_check_records, *check)
        self.partition_keys = _function(
            library.rk_partition_keys, POINTER(Rows), c_int32, c_void_p, c_int64, c_int64, c_void_p
        )
        self.group_rows = _function(library.rk_group_rows, c_void_p, c_int64, c_int32, c_void_p, c_void_p)
        self.next_batch = _function(
            library.rk_next_batch, POINTER(Rows), c_void_p, c_int64, c_int64, c_int64, POINTER(BatchPlan)
        )
        self.encode_records = _function(
            library.rk_encode_records, POINTER(Rows), c_void_p, c_int64, POINTER(BatchPlan), c_void_p, c_int64
        )
        # Small batches only: it keeps the GIL, too.
        self.is_sound_batch = _function(ctypes.PyDLL(str(path)).rk_is_sound_batch, c_void_p, c_int64, c_int64, c_int64)
        self.check_batches = _function(library.rk_check_batches, c_void_p, c_int64, c_int64, c_void_p)


def _function(function: Any, *arguments: Any) -> Any:
    function.argtypes = arguments
    function.restype = c_int
    return function


def source_digest() -> int:
    """What a library has to carry to be used: the CRC-32 of ``kernel.c`` and its headers, one after
    the other.
    """
    sources = (SOURCE, *sorted(SOURCE.parent.glob("kernel_*.h")))
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))


@cache
def _found() -> tuple[Kernel | None, str]:
    if os.environ.get(ENVIRONMENT) == "0":
        return None, f"turned off by {ENVIRONMENT}=0"
    if not LIBRARY.exists():
        return None, "not built: no C compiler was found when raylog was installed"
    try:
        return Kernel(), ""
    except UnusableKernel as error:
        return None, str(error)


@cache
def loaded() -> Kernel | None:
    """The kernel, or None; then a warning has said why, once."""
    kernel, reason = _found()
    if kernel is None:
        logger.warning(
            "records and Arrow are converted by the packaged codec, several times slower: the C kernel is %s", reason
        )
    return kernel


def trouble() -> str | None:
    """Why there is no kernel; None where there is one."""
    return _found()[1] or None


def description() -> str:
    """Which of the two is in use, in one line."""
    return "C kernel" if trouble() is None else f"packaged codec (slower); the C kernel is {trouble()}"


__all__ = [
    "BatchPlan",
    "Binary",
    "Column",
    "Columns",
    "Fault",
    "Kernel",
    "Report",
    "Rows",
    "RowSizes",
    "Run",
    "Sizes",
    "UnusableKernel",
    "byref",
    "description",
    "loaded",
    "trouble",
]
