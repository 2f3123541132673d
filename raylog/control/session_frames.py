"""Control session frames as bytes, and the actor's guard against controllers of the past.

Byte layout of a frame (the length prefix is the transport's)::

    msgpack map {"t": <class name>, "v": 1, <field>: <value>, ...}      UUIDs 16 bytes, inner dataclasses arrays

A frame of a newer version, or of an unknown name, is refused by name (``ProtocolError``). The two
ends refuse what only their own side may send; ``from_actor`` and ``from_controller`` read and check
in one step.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from raylog.control.session import AlterPartitionAnswer, FromActor, FromController, Heartbeat, Hello, Welcome
from raylog.errors import ProtocolError
from raylog.packing import Packing

_PACKING = Packing(
    "session frame",
    get_args(FromActor) + get_args(FromController),
    {Heartbeat: 2, Hello: 2, Welcome: 2, AlterPartitionAnswer: 2},
)


def to_frame(frame: FromActor | FromController) -> bytes:
    """The bytes of a frame, without a length prefix."""
    return _PACKING.encode(frame)


def from_frame(data: bytes | memoryview) -> FromActor | FromController:
    """The frame of these bytes. Raises ProtocolError that names what cannot be read."""
    return cast(FromActor | FromController, _PACKING.decode(data))


def from_actor(data: bytes | memoryview) -> FromActor:
    return cast(FromActor, _of_side(from_frame(data), FromActor, "an actor"))


def from_controller(data: bytes | memoryview) -> FromController:
    return cast(FromController, _of_side(from_frame(data), FromController, "a controller"))


def _of_side(frame: Any, side: Any, who: str) -> Any:
    if not isinstance(frame, get_args(side)):
        raise ProtocolError(f"{who} does not send {type(frame).__name__}")
    return frame


class ControllerEpochGuard:
    """What an actor remembers of controllers, for as long as its process lives: the highest
    controller epoch.

    0 <= highest_epoch; it never goes back.
    """

    __slots__ = ("highest_epoch",)

    def __init__(self) -> None:
        self.highest_epoch = 0

    def accepts(self, frame: FromController) -> bool:
        """Whether the frame is of the newest controller known; a higher epoch becomes the newest
        known (TV-25).
        """
        if frame.controller_epoch < self.highest_epoch:
            return False
        self.highest_epoch = frame.controller_epoch
        return True
