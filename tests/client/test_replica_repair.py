"""Which of several copies of a batch is wrong, and when nobody can say."""

from __future__ import annotations

from raylog.client.admin.replica_repair import judge, judge_tables
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


MINE, THEIRS, THIRD = {b"k": 1}, {b"k": 2}, {b"k": 3}


def test_a_damaged_copy_of_a_compacted_partition_is_wrong_where_another_is_whole():
    judged = judge_tables({0: "a wrong CRC"}, {1: MINE, 2: MINE}, leader=0, isr=[0, 1, 2])
    assert judged.wrong == {0: "a wrong CRC"} and not judged.undecided
    assert list(judge_tables({1: "a wrong CRC"}, {0: MINE}, leader=0, isr=[0, 1]).wrong) == [1]
    assert "no replica is whole" in judge_tables({0: "", 1: ""}, {}, leader=0, isr=[0, 1]).undecided


def test_another_table_is_wrong_where_a_majority_of_the_isr_with_the_leader_agrees():
    judged = judge_tables({}, {0: MINE, 1: THEIRS, 2: MINE}, leader=0, isr=[0, 1, 2])
    assert list(judged.wrong) == [1] and "brokers 0, 2" in judged.wrong[1]
    both = judge_tables({3: "a wrong CRC"}, {0: MINE, 1: THEIRS, 2: MINE}, leader=0, isr=[0, 1, 2])
    assert sorted(both.wrong) == [1, 3]


def test_another_table_is_left_alone_without_such_a_majority():
    assert judge_tables({}, {0: MINE, 1: THEIRS, 2: THEIRS}, leader=0, isr=[0, 1, 2]).wrong == {}, "not the leader's"
    assert judge_tables({}, {0: MINE, 1: THEIRS}, leader=0, isr=[0, 1]).wrong == {}
    assert judge_tables({}, {0: MINE, 1: THEIRS}, leader=0, isr=[0]).wrong == {}, "the leader alone is no majority"
    assert judge_tables({}, {0: MINE, 1: THEIRS, 2: MINE}, leader=0, isr=[0, 1]).wrong == {}, "2 is not in sync"
    undecided = judge_tables({3: "a wrong CRC"}, {0: MINE, 1: THEIRS, 2: THIRD}, leader=0, isr=[0, 1, 2])
    assert undecided.wrong == {} and "majority of the ISR" in undecided.undecided
    assert "wrong in all of them" in judge_tables({}, {0: MINE, 1: MINE}, leader=0, isr=[0, 1]).undecided
