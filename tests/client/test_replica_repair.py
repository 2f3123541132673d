"""Which of several copies of a batch is wrong, and when nobody can say."""

from __future__ import annotations

from raylog.client.replica_repair import judge
from raylog.records.batch import write_crc
from raylog.records.codec import encode_values

RIGHT = bytes(encode_values([b"as it was written"], timestamp_ms=1))
OTHER = bytes(encode_values([b"as it was not!..."], timestamp_ms=1))
BROKEN = RIGHT[:-3] + b"\x00" + RIGHT[-2:]


def test_a_copy_with_a_wrong_crc_is_wrong_where_another_is_whole():
    judged = judge({0: BROKEN, 1: RIGHT, 2: RIGHT}, 3)
    assert list(judged.wrong) == [0] and "CRC" in judged.wrong[0] and judged.right == RIGHT
    assert list(judge({0: RIGHT, 1: BROKEN}, 2).wrong) == [1], "one whole copy of two is enough"


def test_a_copy_that_differs_from_a_majority_is_wrong_though_its_crc_fits():
    judged = judge({0: OTHER, 1: RIGHT, 2: RIGHT + OTHER}, 3)
    assert list(judged.wrong) == [0] and "brokers 1, 2" in judged.wrong[0]
    stamped = bytearray(RIGHT)
    stamped[15] ^= 1  # the leader epoch, which no CRC covers
    assert list(judge({0: RIGHT, 1: bytes(stamped), 2: RIGHT}, 3).wrong) == [1]


def test_a_majority_is_one_of_all_replicas_and_not_of_those_that_answer():
    assert judge({0: OTHER, 1: RIGHT}, 2).wrong == {}
    assert "none is that of a majority" in judge({0: OTHER, 1: RIGHT}, 3).undecided
    third = bytearray(OTHER)
    third[-2] ^= 1
    write_crc(third)
    assert judge({0: OTHER, 1: RIGHT, 2: bytes(third)}, 3).undecided
    assert judge({0: OTHER, 1: RIGHT, 2: BROKEN}, 3).undecided, "two are whole and differ"


def test_nothing_is_repaired_where_no_copy_is_whole_or_all_are_the_same():
    assert "no replica has a whole batch" in judge({0: BROKEN, 1: b""}, 2).undecided
    assert "wrong in all of them" in judge({0: RIGHT, 1: RIGHT}, 2).undecided
