"""Zigzag varints against the vector and their own inverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.records.corrupt import CorruptBatch
from raylog.records.varint import decode_varint, encode_varint, size_of_varint

VECTOR = {
    0: "00",
    -1: "01",
    1: "02",
    -2: "03",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    300: "d804",
    8191: "fe7f",
    8192: "808001",
    2147483647: "feffffff0f",
    -2147483648: "ffffffff0f",
}


@pytest.mark.parametrize(("value", "expected"), VECTOR.items())
def test_tv_4_zigzag_varints_have_the_bytes_of_the_vector(value: int, expected: str) -> None:
    assert encode_varint(value).hex() == expected
    assert decode_varint(bytes.fromhex(expected)) == (value, len(expected) // 2)
    assert size_of_varint(value) == len(expected) // 2


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_any_64_bit_number_is_read_back_wherever_it_stands(value: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(value)
    assert decode_varint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))
    assert size_of_varint(value) == len(encoded) <= 10


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_that_is_cut_is_corrupt(value: int) -> None:
    with pytest.raises(CorruptBatch):
        decode_varint(encode_varint(value)[:-1])


def test_a_varint_of_more_than_ten_bytes_is_corrupt() -> None:
    assert decode_varint(b"\x80" * 9 + b"\x01")[1] == 10
    with pytest.raises(CorruptBatch):
        decode_varint(b"\x80" * 10 + b"\x01")
