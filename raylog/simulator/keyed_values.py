"""What a simulated producer writes to a compacted topic, told by the value's number alone, so that
its writer and the checkers know it.

Half of the numbers go round among few keys, so that each is written again soon, now and then as a
tombstone. The others write a key once and delete it for good nine numbers later.
"""

from __future__ import annotations

LIFE = 9  # of a key that is written once, in numbers


def key_of(number: int) -> bytes:
    if number % 6 == 0:
        return b"once%d" % number
    if number % 6 == 3:
        return b"once%d" % (number - LIFE)
    return b"k%d" % (number * 7 % 11)


def is_tombstone(number: int) -> bool:
    return number % 6 == 3 or (number % 9 == 4 and number % 6 != 0)
