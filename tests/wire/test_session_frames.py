"""Session frames and the plain values under them."""

import enum
import uuid
from dataclasses import dataclass
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.errors import ProtocolError
from raylog.metadata import session
from raylog.wire import values
from raylog.wire.session_frames import from_frame, to_frame

FRAMES = get_args(session.FromActor) + get_args(session.FromController)

st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize("cls", FRAMES)
@settings(deadline=None)
@given(data=st.data())
def test_every_session_frame_comes_back_as_it_was(cls: type[Any], data: st.DataObject) -> None:
    frame = data.draw(st.from_type(cls))
    encoded = to_frame(frame)
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4
    assert from_frame(memoryview(encoded)[4:]) == frame


def body(**fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def test_a_frame_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="Exit of version 2"):
        from_frame(body(t="Exit", v=2, controller_epoch=1, reason=""))


def test_an_unknown_frame_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="'Explode'"):
        from_frame(body(t="Explode", v=1))


def test_an_unknown_field_is_ignored() -> None:
    assert from_frame(body(t="Heartbeat", v=1, mood="good")) == session.Heartbeat()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": "Exit", "v": 1, "reason": "x"}, "Exit.controller_epoch is missing"),
        ({"t": "Exit", "v": 1, "controller_epoch": "1", "reason": "x"}, "a str where int belongs"),
        ({"t": "Exit", "v": 1, "controller_epoch": True, "reason": "x"}, "a bool where int belongs"),
        ({"t": "Exit", "v": 1, "controller_epoch": None, "reason": "x"}, "NoneType where int"),
        ({"t": "Removal", "v": 1, "controller_epoch": 1, "topic_id": b"short", "partition": 0}, "16 bytes"),
        ({"t": "Hello", "v": 1, "identity": 3, "endpoint": {}, "boot_id": ""}, "ActorIdentity"),
        ({"v": 1}, "without its name"),
        ({"t": ["Exit"], "v": 1}, "without its name"),
    ],
)
def test_malformed_frames_are_refused_with_a_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        from_frame(body(**fields))


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_are_no_session_frame(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_frame(data)


def test_a_length_beyond_the_data_is_refused() -> None:
    with pytest.raises(ProtocolError):
        from_frame(b"\x81\xa1t\xdd\xff\xff\xff\xff")  # an array of four billion
    with pytest.raises(ProtocolError):
        from_frame(b"\x91" * 5000)  # nested five thousand deep


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
