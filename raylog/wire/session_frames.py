"""The bytes of the control session: ``raylog.metadata.session``'s values as versioned msgpack maps.

::

    frame = size int32 | msgpack map {"t": class name, "v": 1, field: value, ...}

A frame of a newer version, or of a class that this version does not have, is refused by name: guessing at an order from
the controller could lose data.
"""

from __future__ import annotations

import struct
from typing import Final, get_args

import msgpack

from raylog.errors import ProtocolError
from raylog.metadata import session
from raylog.wire import values

Frame = session.FromActor | session.FromController

VERSION: Final = 1
_CLASSES: Final = {cls.__name__: cls for cls in (*get_args(session.FromActor), *get_args(session.FromController))}
_SIZE: Final = struct.Struct(">i")


def to_frame(frame: Frame) -> bytes:
    """The frame's bytes, size included."""
    body: bytes = msgpack.packb({"t": type(frame).__name__, "v": VERSION, **values.to_plain(frame)})
    return _SIZE.pack(len(body)) + body


def from_frame(body: memoryview | bytes) -> Frame:
    """The value of a frame without its size. Raises ProtocolError for anything else than a frame of this version."""
    plain = values.unpack_map(body)
    name, version = plain.get("t"), plain.get("v")
    if type(name) is not str or type(version) is not int:
        raise ProtocolError("a session frame without its name and version")
    if version > VERSION:
        raise ProtocolError(f"a session frame {name} of version {version}; this raylog speaks {VERSION}: upgrade it")
    cls = _CLASSES.get(name)
    if cls is None:
        raise ProtocolError(f"a session frame {name!r}, which this raylog does not know")
    value: Frame = values.from_plain(cls, plain)
    return value
