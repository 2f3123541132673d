"""Messages of the quorum as bytes, for the links between controllers.

Byte layout of a message (framing is the transport's)::

    msgpack map {"t": <class name>, "v": 1, <field>: <value>, ...}      directory ids 16 bytes, entries and snapshots arrays

A message of a newer version, or of an unknown name, is refused by name (``ProtocolError``): the
quorum would lose its promises by guessing. ``is_recovering`` is left out where it is false: a
raylog from before that field reads all else.
"""

from __future__ import annotations

from typing import cast, get_args

import msgpack

from raylog.packing import Packing
from raylog.raft.messages import Message

_PACKING = Packing("quorum message", get_args(Message))


def to_frame(message: Message) -> bytes:
    """The bytes of a message."""
    plain = _PACKING.to_map(message)
    if plain.get("is_recovering") is False:
        del plain["is_recovering"]
    data: bytes = msgpack.packb(plain)
    return data


def from_frame(data: bytes | memoryview) -> Message:
    """The message of these bytes. Raises ProtocolError that names what cannot be read."""
    return cast(Message, _PACKING.decode(data))
