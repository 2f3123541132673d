from __future__ import annotations

import uuid
from typing import get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.control import session_stream as session
from raylog.control.session import (
    Assignment,
    Exit,
    FromActor,
    FromController,
    Heartbeat,
    Hello,
    Removal,
    ReplicaStatus,
    Welcome,
)
from raylog.control.session_frames import ControllerEpochGuard, from_actor, from_controller, from_frame, to_frame
from raylog.errors import ProtocolError
from raylog.types import ActorIdentity, Condition, Endpoint

T = uuid.UUID(int=7)
HELLO = Hello(
    ActorIdentity("c", 65538, T, 2**62),
    Endpoint("::1", 1),
    "boot",
    (ReplicaStatus(T, 3, Condition.WHOLE, 0, 5, 4, 2, 2, 9),),
    rack=None,
)


def test_a_frame_comes_back_as_it_went():
    assert from_actor(to_frame(HELLO)) == HELLO
    welcome = Welcome(3, 2_000, 9_000)
    assert from_controller(to_frame(welcome)) == welcome


@pytest.mark.parametrize("cls", get_args(FromActor) + get_args(FromController))
def test_every_frame_of_either_side_can_be_packed(cls):
    @settings(max_examples=10)
    @given(st.from_type(cls))
    def comes_back(frame):
        try:
            data = to_frame(frame)
        except OverflowError:
            return  # hypothesis draws integers that no 64 bits hold
        assert from_frame(data) == frame

    comes_back()


def test_the_bytes_of_a_frame_are_those_of_its_layout():
    beat = msgpack.unpackb(to_frame(Heartbeat(730, 1 << 20, 2)))
    assert beat == {
        "t": "Heartbeat",
        "v": 2,
        "cpu_per_mille": 730,
        "memory_bytes": 1 << 20,
        "cores": 2,
        "busy_per_mille": -1,
        "loads": [],
    }
    plain = msgpack.unpackb(to_frame(Removal(4, T, 2, "t")))
    assert plain == {"t": "Removal", "v": 1, "controller_epoch": 4, "topic_id": T.bytes, "partition": 2, "topic": "t"}
    assert msgpack.unpackb(to_frame(HELLO))["replicas"] == [[T.bytes, 3, "whole", 0, 5, 4, 2, 2, 9, 0, 0, ""]]


def test_a_frame_of_a_newer_version_is_refused_by_name():
    plain = msgpack.unpackb(to_frame(HELLO)) | {"v": 3}
    with pytest.raises(ProtocolError, match="Hello has version 3"):
        from_actor(msgpack.packb(plain))


def test_each_side_sends_only_its_own_frames():
    with pytest.raises(ProtocolError, match="an actor does not send Exit"):
        from_actor(to_frame(Exit(1, "")))
    with pytest.raises(ProtocolError, match="a controller does not send Hello"):
        from_controller(to_frame(HELLO))


@given(st.binary(max_size=100))
def test_random_bytes_are_no_frame(data):
    with pytest.raises(ProtocolError):
        from_frame(data)


def test_tv_25_frames_of_an_older_controller_epoch_are_refused():
    """elect(1), fail, elect(2): epoch 1 is rejected, 3 is accepted and recorded."""
    guard = ControllerEpochGuard()

    def assignment(epoch):
        return Assignment(epoch, T, "t", 0, 0, 0, 0, (), (), (), (), 1, ())

    assert guard.accepts(Welcome(1, 1, 1)) and guard.accepts(assignment(1))
    assert guard.accepts(Welcome(2, 1, 1)) and guard.accepts(assignment(2))
    assert not guard.accepts(assignment(1)) and guard.highest_epoch == 2
    assert guard.accepts(assignment(3)) and guard.highest_epoch == 3
    assert not guard.accepts(assignment(2))


def test_configs_that_many_assignments_share_are_kept_once() -> None:
    config = (("cleanup.policy", "delete"), ("retention.ms", "1"))
    first, second = (from_frame(to_frame(assignment(partition, config))) for partition in (0, 1))
    assert first.config == config and first.config is second.config
    other = from_frame(to_frame(assignment(2, (("retention.ms", "2"),))))
    assert other.config == (("retention.ms", "2"),) and first.config == config


@pytest.mark.parametrize("damaged", [[["a", 1]], [["a"]], [["a", "b", "c"]], "ab", [b"ab"]])
def test_configs_that_are_no_pairs_of_strings_are_refused(damaged: object) -> None:
    plain = msgpack.unpackb(to_frame(assignment(0, ()))) | {"config": damaged}
    with pytest.raises(ProtocolError, match="Assignment"):
        from_frame(msgpack.packb(plain))


def test_a_frame_for_several_sessions_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def counted(frame: FromController) -> bytes:
        encoded.append(frame)
        return to_frame(frame)

    monkeypatch.setattr(session, "to_frame", counted)
    frames = [assignment(0, ()), assignment(1, ())]
    assert [session._encoded(frame) for frame in frames for _ in range(3)] == [
        to_frame(frame) for frame in frames for _ in range(3)
    ]
    assert encoded == frames


def assignment(partition: int, config: tuple[tuple[str, str], ...]) -> Assignment:
    return Assignment(1, T, "t", partition, 0, 0, 0, (), (), (), (), 1, config)
