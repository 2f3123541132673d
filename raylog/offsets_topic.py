"""``__consumer_offsets`` and ``__transaction_state``: which of its partitions a group or a
transactional id, and so its coordinator, belongs to.

Kafka hashes the id with Java's ``String.hashCode`` (over UTF-16 code units) and takes its
absolute value modulo the number of partitions, −2**31 counting as 0. The number of partitions
therefore never changes.
"""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
OFFSETS_TOPIC_PARTITIONS = 50  # and as many of __transaction_state


def java_string_hash(text: str) -> int:
    """Java's ``text.hashCode()``, a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    hash = 0
    for index in range(0, len(units), 2):
        hash = (31 * hash + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return hash - (1 << 32) if hash & 0x80000000 else hash


def partition_for(id: str, partitions: int = OFFSETS_TOPIC_PARTITIONS) -> int:
    """The partition of ``__consumer_offsets`` whose leader coordinates the group of that id; that of
    ``__transaction_state`` for a transactional id.
    """
    hash = java_string_hash(id)
    return (0 if hash == -(1 << 31) else abs(hash)) % partitions
