"""Which offset each key was last written at: what a cleaner remembers of the part of a log that it
has not cleaned yet.

A table of ``ENTRY_BYTES`` an entry, whatever the size of the keys, as Kafka's ``SkimpyOffsetMap``:
16 bytes of hash, 8 of offset; open addressing, the next free slot after the hash's own. Two keys of
one hash would lose a record; with 128 bits of BLAKE2b that does not happen, also where somebody
chooses the keys.

Invariants: at most ``capacity`` keys, which leaves a share of the slots free, so that a search ends
soon; offsets only grow; ``latest_offset`` is the last one that was looked at, with a key or
without.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

ENTRY_BYTES = 24
_HASH_BYTES = 16
_OFFSET = struct.Struct(">q")
_FREE = bytes(_HASH_BYTES)
_SLOTS_MIN = 16


class OffsetMap:
    """``bytes_max`` bounds its memory; ``keys_max`` is what could be needed at most, so that a
    small log takes little.
    """

    __slots__ = ("_slots", "_table", "capacity", "count", "latest_offset")

    def __init__(self, *, bytes_max: int, keys_max: int, load_factor: float = 0.9) -> None:
        assert 0 < load_factor <= 1, load_factor
        wanted = int(keys_max / load_factor) + 2
        self._slots = max(2, min(bytes_max // ENTRY_BYTES, max(wanted, _SLOTS_MIN)))
        self._table = bytearray(self._slots * ENTRY_BYTES)
        self.capacity = max(1, min(int(self._slots * load_factor), self._slots - 1))
        self.count = 0
        self.latest_offset = -1

    @property
    def is_full(self) -> bool:
        return self.count >= self.capacity

    def put(self, key: bytes, offset: int) -> None:
        """The key was written at ``offset``. The map must not be full."""
        digest, at = self._place(key)
        table = self._table
        if table[at : at + _HASH_BYTES] == _FREE:
            assert self.count < self.capacity, (self.count, self.capacity)
            table[at : at + _HASH_BYTES] = digest
            self.count += 1
        _OFFSET.pack_into(table, at + _HASH_BYTES, offset)

    def get(self, key: bytes) -> int:
        """Where it was last written; −1 if it was not."""
        _, at = self._place(key)
        table = self._table
        if table[at : at + _HASH_BYTES] == _FREE:
            return -1
        offset: int = _OFFSET.unpack_from(table, at + _HASH_BYTES)[0]
        return offset

    def _place(self, key: bytes) -> tuple[bytes, int]:
        """The hash, and the position of its entry or of the free slot where that would be."""
        digest = blake2b(key, digest_size=_HASH_BYTES).digest()
        table, end = self._table, len(self._table)
        at = int.from_bytes(digest[:8], "big") % self._slots * ENTRY_BYTES
        while True:
            known = table[at : at + _HASH_BYTES]
            if known in (digest, _FREE):
                return digest, at
            at += ENTRY_BYTES
            if at == end:
                at = 0
