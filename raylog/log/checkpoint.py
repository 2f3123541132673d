"""``replica.checkpoint``: what one replica knows about its log besides the log itself. A file of
raylog's own, text::

    raylog-replica-checkpoint 1
    recovery_point <offset>       everything below was flushed
    high_watermark <offset>
    log_start_offset <offset>
    cleaner_point <offset>        compaction got this far
    boot_id <id of the kernel's boot>
    flushed_always <0|1>          flush.messages was 1 since the log was opened
    clean <0|1>                   closed by a clean stop; nothing was written since
    suspect <0|1>                 found suspect or missing, and not known yet to hold again all that was committed
    flush_failed <0|1>            what lies above the recovery point may be in the page cache only, and marked as written there
    crc <8 hex digits>            CRC-32C of the lines above

A damaged or missing file costs nothing but trust: the whole log is scanned and the replica is
suspect. A folder that Apache Kafka wrote has none: Kafka keeps the same facts in files of the whole
disk, which raylog does not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import crc32c

from raylog.errors import DiskError
from raylog.log.files import Files

FILE_NAME = "replica.checkpoint"
_MAGIC = "raylog-replica-checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ReplicaCheckpoint:
    """Invariant: nothing below ``recovery_point`` was unflushed when it was written."""

    recovery_point: int = 0
    high_watermark: int = 0
    log_start_offset: int = 0
    cleaner_point: int = 0
    boot_id: str = ""
    flushed_always: bool = False
    clean: bool = False
    suspect: bool = False
    flush_failed: bool = False

    def claims_at_most(self, offset: int) -> bool:
        """Whether it would stay true of a log that ended at ``offset``: no offset that it names is
        above.
        """
        return max(self.recovery_point, self.high_watermark, self.log_start_offset, self.cleaner_point) <= offset


def encode(checkpoint: ReplicaCheckpoint) -> bytes:
    text = (
        f"{_MAGIC} {VERSION}\n"
        f"recovery_point {checkpoint.recovery_point}\n"
        f"high_watermark {checkpoint.high_watermark}\n"
        f"log_start_offset {checkpoint.log_start_offset}\n"
        f"cleaner_point {checkpoint.cleaner_point}\n"
        f"boot_id {checkpoint.boot_id}\n"
        f"flushed_always {int(checkpoint.flushed_always)}\n"
        f"clean {int(checkpoint.clean)}\n"
        f"suspect {int(checkpoint.suspect)}\n"
        f"flush_failed {int(checkpoint.flush_failed)}\n"
    ).encode()
    return text + b"crc %08x\n" % crc32c.crc32c(text)


def decode(data: bytes, *, path: str = FILE_NAME) -> ReplicaCheckpoint:
    """ValueError if the bytes are damaged, DiskError if they are of a newer version."""
    text, separator, crc = data.rpartition(b"crc ")
    if not separator or crc.strip() != b"%08x" % crc32c.crc32c(text):
        raise ValueError(f"{path}: bad checksum")
    lines = text.decode().splitlines()
    magic, _, version = lines[0].partition(" ")
    if magic != _MAGIC:
        raise ValueError(f"{path}: not a replica checkpoint")
    if version != str(VERSION):
        raise DiskError(
            f"{path} has version {version}; this raylog reads {VERSION}. Upgrade raylog, or move the folder away."
        )
    fields = dict(line.split(" ", 1) for line in lines[1:])
    return ReplicaCheckpoint(
        recovery_point=int(fields["recovery_point"]),
        high_watermark=int(fields["high_watermark"]),
        log_start_offset=int(fields["log_start_offset"]),
        cleaner_point=int(fields["cleaner_point"]),
        boot_id=fields["boot_id"],
        flushed_always=fields["flushed_always"] == "1",
        clean=fields["clean"] == "1",
        suspect=fields["suspect"] == "1",
        flush_failed=fields.get("flush_failed") == "1",  # older versions did not write it
    )


def read(files: Files, directory: str) -> ReplicaCheckpoint | None:
    """The folder's checkpoint; None if it is missing or damaged. DiskError if it is of a newer
    version.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        return decode(files.read_file(path), path=path)
    except (FileNotFoundError, ValueError, KeyError):
        return None


def remove(files: Files, directory: str) -> None:
    """Without it the next opening trusts nothing."""
    files.remove(f"{directory}/{FILE_NAME}")


def write(files: Files, directory: str, checkpoint: ReplicaCheckpoint, *, flush: bool) -> None:
    files.write_file(f"{directory}/{FILE_NAME}", encode(checkpoint), flush=flush)
