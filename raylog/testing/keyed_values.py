"""What a simulated producer writes to a compacted topic, told by the value's number alone, so that its writer and the checkers know it.

Few keys, so that each is written again soon, and now and then a tombstone.
"""

from __future__ import annotations


def key_of(number: int) -> bytes:
    return b"k%d" % (number * 7 % 11)


def is_tombstone(number: int) -> bool:
    return number % 9 == 4
