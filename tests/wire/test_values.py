"""Dataclasses as plain msgpack values."""

import enum
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.errors import ProtocolError
from raylog.wire import values


@given(st.binary(max_size=100))
def test_random_bytes_are_a_map_or_refused(data: bytes) -> None:
    try:
        assert isinstance(values.unpack_map(data), dict)
    except ProtocolError:
        pass


def test_a_length_beyond_the_data_is_refused() -> None:
    with pytest.raises(ProtocolError):
        values.unpack_map(b"\x81\xa1t\xdd\xff\xff\xff\xff")  # an array of four billion
    with pytest.raises(ProtocolError):
        values.unpack_map(b"\x91" * 5000)  # nested five thousand deep


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Sample:
    number: float
    colours: tuple[Colour, ...]
    pair: tuple[int, str]
    names: dict[str, int]
    anything: Any
    maybe: uuid.UUID | None = None


def test_values_of_every_kind_round_trip() -> None:
    sample = Sample(1, (Colour.RED,), (1, "a"), {"x": 1}, {"y": (1, None)}, uuid.UUID(int=5))
    assert values.from_plain(Sample, values.unpack_map(values.pack(sample))) == sample


@pytest.mark.parametrize(
    "change", [{"colours": ["blue"]}, {"pair": [1]}, {"names": []}, {"number": "1"}, {"colours": 1}]
)
def test_values_of_another_kind_are_refused(change: dict[str, Any]) -> None:
    plain = values.to_plain(Sample(1.5, (), (1, "a"), {}, None)) | change
    with pytest.raises(ProtocolError, match=f"Sample.{next(iter(change))}"):
        values.from_plain(Sample, plain)
