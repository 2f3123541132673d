"""What is said about bytes that are no record batch.

``CorruptBatch`` is Kafka's CORRUPT_MESSAGE with the place where reading stopped;
``UnsupportedMagic`` is UNSUPPORTED_FOR_MESSAGE_FORMAT, for the message formats 0 and 1 that came
before the batch format 2. Both can be caught by their Kafka code: ``except
kafka_error(ErrorCode.corrupt_message)``.
"""

from __future__ import annotations

from typing import Self

from kio.schema.errors import ErrorCode

from raylog.errors import kafka_error


class CorruptBatch(kafka_error(ErrorCode.corrupt_message)):  # type: ignore[misc]
    """Bytes that break the format. ``position`` is the byte in the buffer where the broken batch
    starts.
    """

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"corrupt record batch at byte {position}: {reason}")
        self.reason = reason
        self.position = position

    def __reduce__(self) -> tuple[type[CorruptBatch], tuple[str, int]]:
        return type(self), (self.reason, self.position)


class InflatedTooLarge(CorruptBatch):
    """The records of a batch inflate to more than is allowed. It may be whole: smaller batches
    would do.
    """

    @classmethod
    def beyond(cls, max_bytes: int) -> Self:
        return cls(f"its records inflate to more than the {max_bytes} bytes allowed")


class UnsupportedMagic(kafka_error(ErrorCode.unsupported_for_message_format)):  # type: ignore[misc]
    """A message set of format 0 or 1 where a record batch (format 2) is needed."""

    def __init__(self, magic: int, position: int = 0) -> None:
        super().__init__(f"message format {magic} at byte {position}; only record batches (format 2) are read here")
        self.magic = magic
        self.position = position

    def __reduce__(self) -> tuple[type[UnsupportedMagic], tuple[int, int]]:
        return type(self), (self.magic, self.position)
