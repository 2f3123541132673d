"""Size-prefixed frames over a byte stream, in both directions: the part that servers, connections
and sessions share.

::

    frame = size: int32 big-endian, 0 <= size <= frame_bytes_max | body: size bytes

Reading. Small frames are read many at a time into a scratch buffer that all connections of a thread
share (a read and the parsing of what it brought are one synchronous step, so nothing of one
connection ever lies there while another one reads). A frame that is not complete in the scratch
buffer gets a buffer of its own, taken from a pool, and the rest of it is read straight into that.
After such a frame the next read asks for little, so that a train of large frames is copied hardly
at all. While much of a large frame is awaited on a plain socket, the kernel is told to wake us for
``RECEIVE_STEP`` of it and not for every packet (SO_RCVLOWAT); the end of the connection wakes us
all the same, and ``take_what_comes`` asks for every byte again, for whoever watches that there is
progress. A body announced as larger than ``GROWTH_STEP`` gets its memory as bytes arrive:
announcing costs the announcer nothing, so it must cost us nothing. While the frames that are
incomplete hold more than ``LENT_BYTES_MAX``, any further one begins with twice what has arrived of
it: ten thousand connections that announce a frame and stop cost some kilobytes each.

Writing. Buffers are queued and handed to the transport together, at the end of the read that caused
them or of the loop's turn: many small replies are one system call. Where nothing can join them they
are handed over at once (``write_frame_now``). Large buffers go uncopied. The kernel sizes the socket's
buffers itself; fixed ones of 4 MB gained nothing. ``write_paused`` tells that the peer is slow to
read.

``frame_received`` gets a read-only view. Of a frame of up to ``LARGE_FRAME_BYTES`` it is valid only
during the call: whoever keeps bytes copies them (kio does). A larger one has a buffer of its own,
which stays as it is while anybody has a view of it and is used again afterwards; so large records
go from one socket to another uncopied.

Invariants: while ``_reading_held`` no frame is delivered (what was read already waits in
``_stash``); after ``shut`` none is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from typing import Final, cast

from raylog.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

SCRATCH_BYTES: Final = 256 * 1024
LARGE_FRAME_BYTES: Final = 64 * 1024  # from here on a frame counts as large
HEADER_WINDOW_BYTES: Final = 256  # what is asked for where a large frame is expected
RECEIVE_STEP: Final = 256 * 1024
GROWTH_STEP: Final = 2 * 1024 * 1024
SMALLEST_BODY: Final = 4 * 1024
LENT_BYTES_MAX: Final = (
    64 * 1024 * 1024
)  # per thread, in incomplete frames, before these have to come up for their memory
POOLED_BYTES_MAX: Final = 16 * 1024 * 1024  # kept per thread for reuse: what some clients have in flight
WRITE_HIGH_WATER: Final = 4 * 1024 * 1024
JOIN_BYTES_MAX: Final = 16 * 1024  # smaller buffers are joined before they are written

_KEEPIDLE: Final[int] = getattr(socket, "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE")  # macOS
_KEEPALIVE: Final = ((_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A machine that vanished without a word is noticed after 40 s on a link that has nothing to say."""

TLS_ALERT: Final = "a TLS alert where plain frames are spoken"

_SIZE: Final = struct.Struct(">i")


class BufferPool(threading.local):
    """Receive buffers of one thread: the scratch buffer and recently used bodies, warm in the
    cache.
    """

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.lent_bytes = 0
        self._free: list[bytearray] = []
        self._free_bytes = 0

    def take_first(self, size: int, arrived: int) -> bytearray:
        """A buffer for a frame of ``size`` bytes of which some have arrived; it may have to grow."""
        first = min(size, GROWTH_STEP)
        if self.lent_bytes + first > LENT_BYTES_MAX:
            first = min(size, max(SMALLEST_BODY, 2 * arrived))
        return self.take(first)

    def take(self, size: int) -> bytearray:
        """A buffer of at least ``size`` bytes, with anything in it."""
        buffer = self._take(size)
        self.lent_bytes += len(buffer)
        return buffer

    def _take(self, size: int) -> bytearray:
        for index in range(len(self._free) - 1, -1, -1):
            if size <= len(self._free[index]) <= 8 * size + LARGE_FRAME_BYTES and not _is_viewed(self._free[index]):
                buffer = self._free.pop(index)
                self._free_bytes -= len(buffer)
                return buffer
        buffer = bytearray(_rounded(size) + 1)
        buffer.pop()  # leaves room for what ``_is_viewed`` does
        return buffer

    def give(self, buffer: bytearray) -> None:
        """Takes a buffer back. It is used again when nobody has a view of it."""
        self.lent_bytes -= len(buffer)
        if len(buffer) >= LARGE_FRAME_BYTES and self._free_bytes + len(buffer) <= POOLED_BYTES_MAX:
            self._free.append(buffer)
            self._free_bytes += len(buffer)


def _rounded(size: int) -> int:
    """So that buffers of similar frames serve each other, and one of 1 MB and its header does not
    take 2 MB.
    """
    if size > LARGE_FRAME_BYTES:
        return -(-size // LARGE_FRAME_BYTES) * LARGE_FRAME_BYTES
    return 1 << max(12, (size - 1).bit_length())


def _is_viewed(buffer: bytearray) -> bool:
    """Whether there is a memoryview of it: then its size may not change."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


_pool = BufferPool()


class FramedProtocol(asyncio.BufferedProtocol):
    """One end of a framed connection.

    Subclasses override ``opened``, ``frame_received``, ``read_ended``, ``closed``, ``write_resumed``.
    """

    def __init__(self, *, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.transport: asyncio.Transport | None = None
        self.peername = "?"  # whoever has accepted the connection knows it before there is a transport
        self.write_paused = False
        self.shut = False  # no frame is delivered any more
        self.lost = False  # the transport is gone
        self.bytes_received = 0  # ever; tells progress from silence
        self.loop: asyncio.AbstractEventLoop  # once there is a transport
        self._scratch = _pool.scratch
        self._window = LARGE_FRAME_BYTES
        self._prefix = b""  # 0 <= len < 4: the start of a size
        self._stash = b""  # read, not parsed: reading was held meanwhile
        self._given = b""  # what another process had read of this connection and not parsed
        self._body: bytearray | None = None  # the incomplete frame, if any
        self._body_view: memoryview | None = None
        self._body_size = 0
        self._body_filled = 0  # 0 <= filled < size while there is a body
        self._plain_socket: socket.socket | None = None  # whose bytes are our bytes: none with TLS
        self._low_water = 1  # of the socket; never above what the peer still owes of the body
        self._reading_held = False
        self._parsing = False
        self._out: list[Buffer] = []
        self._flush_scheduled = False
        self._join_small = False
        self._close_reason: Exception | None = None

    # -------------------------------------------------------------- for subclasses

    def opened(self) -> None:
        """The transport is there."""

    def frame_received(self, frame: memoryview) -> None:
        """A whole body, without its size. A small one's view dies when this returns. ProtocolError
        closes the connection.
        """
        raise NotImplementedError

    def read_ended(self) -> None:
        """All frames that a read brought are delivered, and what was written meanwhile has left."""

    def closed(self, reason: Exception | None) -> None:
        """The connection is gone, for ``reason`` if something is known about it. Called once."""

    def write_resumed(self) -> None:
        """The peer reads again after ``write_paused``."""

    # -------------------------------------------------------------- what users call

    @property
    def mid_frame(self) -> bool:
        """Whether the peer owes the rest of a frame."""
        return self._body is not None or bool(self._prefix)

    @property
    def unsent_bytes(self) -> int:
        """What is queued and has not reached the kernel."""
        queued = sum(map(len, self._out))
        return queued if self.transport is None or self.lost else queued + self.transport.get_write_buffer_size()

    def write_frame(self, buffers: Sequence[Buffer]) -> None:
        """Queues one frame (its size included) for the end of this turn of the loop. Silently
        dropped once closed.
        """
        if self.lost or self.transport is None:
            return
        self._out.extend(buffers)
        if not self._parsing and not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def write_frame_now(self, buffers: Sequence[Buffer], *, amid_read: bool = False) -> None:
        """Like ``write_frame``, at once: for a link that was idle, where waiting gathers nothing.
        ``amid_read``: also while frames are delivered, whose reader may have other work before the
        read ends.
        """
        if (self._parsing and not amid_read) or self._flush_scheduled:
            self.write_frame(buffers)
        elif not self.lost and self.transport is not None:
            self._out.extend(buffers)
            self._flush()

    def hold_reading(self) -> None:
        """Delivers no further frame and reads no further bytes until ``release_reading``."""
        if not self._reading_held:
            self._reading_held = True
            if self.transport is not None and not self.lost:
                self.transport.pause_reading()

    def take_what_comes(self) -> None:
        """Reads the rest of an incomplete frame byte by byte if need be: its bytes come so slowly
        that progress is hard to see.
        """
        self._wake_for(1)

    def release_reading(self) -> None:
        if not self._reading_held or self.lost:
            return
        self._reading_held = False
        stash, self._stash = self._stash, b""
        if stash:
            self._receive(memoryview(stash))
        if not self._reading_held and not self.lost and self.transport is not None:
            self.transport.resume_reading()

    def begin_with(self, data: bytes) -> None:
        """Parses these bytes before any that are read. Before there is a transport: for a
        connection that another process began.
        """
        assert self.transport is None, "bytes were read already"
        self._given = data

    def duplicate_socket(self) -> tuple[socket.socket, bytes] | None:
        """Another descriptor of this connection's socket, and the bytes that were read from it and
        not parsed.

        For whoever goes on with the connection elsewhere: this end has to ``forget`` it then. None
        while that cannot be: some bytes are still to be sent, the rest of a frame is awaited, or
        the bytes on the socket are not ours alone (TLS).
        """
        sock = self._plain_socket
        if sock is None or self.lost or self.shut or self._body is not None or self.transport is None:
            return None
        if self._out:
            self._flush()
        if self.unsent_bytes:
            return None
        return socket.socket(fileno=os.dup(sock.fileno())), self._prefix + self._stash

    def forget(self) -> None:
        """Ends this end of a connection that goes on elsewhere (``duplicate_socket``). The peer
        notices nothing.
        """
        self.abort()

    def close(self, reason: Exception | None = None) -> None:
        """Sends what is queued, then closes. No further frame is delivered."""
        if self.shut:
            return
        self.shut = True
        self._close_reason = reason
        if self.transport is not None and not self.lost:
            self._flush()
            self.transport.close()

    def abort(self, reason: Exception | None = None) -> None:
        """Closes at once; what is queued is dropped."""
        if not self.shut:
            self._close_reason = reason
        self.shut = True
        self._out.clear()
        if self.transport is not None and not self.lost:
            self.transport.abort()

    # -------------------------------------------------------------- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self._join_small = type(transport).__module__.startswith("asyncio") and sys.version_info < (3, 12)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        if self.peername == "?":
            peer = transport.get_extra_info("peername")
            self.peername = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            if transport.get_extra_info("ssl_object") is None:
                self._plain_socket = sock
        if self.shut:
            transport.abort()
            return
        self.opened()
        if self._given:
            given, self._given = self._given, b""
            self._receive(memoryview(given))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        self.shut = True
        self._out.clear()
        self._stash = b""
        self._drop_body()
        self.closed(self._close_reason or exc)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if not self.lost:
            self.write_resumed()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body_view is not None:
            return self._body_view[self._body_filled : self._body_size]
        prefix = self._prefix
        if prefix:
            self._scratch[: len(prefix)] = prefix
            return self._scratch[len(prefix) : self._window]
        return self._scratch[: self._window]

    def buffer_updated(self, count: int) -> None:
        self.bytes_received += count
        if self._body is None:
            start = len(self._prefix)
            self._prefix = b""
            self._receive(self._scratch[: start + count])
            return
        self._body_filled += count
        if self._body_filled == self._body_size:
            self._body_complete()
            return
        if self._body_size - self._body_filled < self._low_water:
            self._wake_for(self._body_size - self._body_filled)
        if self._body_filled == len(self._body):
            self._grow_body()

    # -------------------------------------------------------------- reading

    def _receive(self, data: memoryview) -> None:
        """Delivers the whole frames in ``data`` and keeps the rest."""
        if self._reading_held and not self._parsing:
            self._stash += (
                data  # a loop may read once more after it was told to pause (uvloop, behind ``connection_made``)
            )
            return
        position = 0
        end = len(data)
        largest = 0
        outermost = not self._parsing
        self._parsing = True
        try:
            view = data.toreadonly()
            while end - position >= 4 and not self.shut:
                if self._reading_held:
                    self._stash = bytes(data[position:])
                    return
                (size,) = _SIZE.unpack_from(data, position)
                if not 0 <= size <= self.frame_bytes_max:
                    raise ProtocolError(self._describe_bad_size(size, bytes(data[position : position + 16])))
                largest = max(largest, size)
                frame_end = position + 4 + size
                if frame_end > end:
                    self._begin_body(size, data[position + 4 :])
                    return
                self.frame_received(view[position + 4 : frame_end])
                position = frame_end
            if not self.shut and position < end:
                if self._reading_held:
                    self._stash = bytes(data[position:])
                else:
                    self._prefix = bytes(data[position:])
        except ProtocolError as error:
            self.refused(error)
        finally:
            if outermost:
                self._parsing = False
                self._window = LARGE_FRAME_BYTES if largest < LARGE_FRAME_BYTES else HEADER_WINDOW_BYTES
                if self._out:
                    self._flush()
                self.read_ended()

    def refused(self, error: ProtocolError) -> None:
        """The peer's bytes make no sense. Subclasses log before they call this."""
        self.close(error)

    def _begin_body(self, size: int, start: memoryview) -> None:
        body = _pool.take_first(size, len(start))
        self._body = body
        self._body_view = memoryview(body)
        self._body_size = size
        self._body_filled = len(start)
        self._body_view[: len(start)] = start
        if size - len(start) >= 2 * RECEIVE_STEP:  # for less, asking costs more than it saves
            self._wake_for(RECEIVE_STEP)

    def _wake_for(self, count: int) -> None:
        """Let the kernel report what has arrived once it is so many bytes."""
        if count != self._low_water and self._plain_socket is not None and not self.lost:
            self._low_water = count
            self._plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _grow_body(self) -> None:
        assert self._body is not None and self._body_view is not None
        larger = _pool.take(min(self._body_size, 2 * len(self._body)))
        view = memoryview(larger)
        view[: self._body_filled] = self._body_view[: self._body_filled]
        self._drop_body()
        self._body = larger
        self._body_view = view

    def _drop_body(self) -> None:
        if self._body is not None:
            body, self._body = self._body, None
            self._body_view = None
            _pool.give(body)

    def _body_complete(self) -> None:
        assert self._body is not None and self._body_view is not None
        body, view = self._body, self._body_view
        self._body = self._body_view = None
        self._wake_for(1)
        self._window = HEADER_WINDOW_BYTES if self._body_size >= LARGE_FRAME_BYTES else LARGE_FRAME_BYTES
        self._parsing = True
        try:
            if not self.shut:
                self.frame_received(view[: self._body_size].toreadonly())
        except ProtocolError as error:
            self.refused(error)
        finally:
            _pool.give(body)
            self._parsing = False
            if self._out:
                self._flush()
            self.read_ended()

    def _describe_bad_size(self, size: int, start: bytes) -> str:
        if start[:4] in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"HTTP"):
            return f"this is no HTTP port ({start!r})"
        if start[:2] == b"\x16\x03":
            return "a TLS hello where plain frames are spoken"
        if start[:2] == b"\x15\x03":
            return TLS_ALERT
        if size < 0:
            return f"negative frame size {size} ({start.hex(' ')})"
        return f"frame of {size} bytes, allowed are {self.frame_bytes_max} ({start.hex(' ')})"

    # -------------------------------------------------------------- writing

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._out or self.lost or self.transport is None:
            return
        out, self._out = self._out, []
        if self.transport.is_closing():
            return
        if len(out) == 1:
            self.transport.write(out[0])
        elif sum(map(len, out)) <= JOIN_BYTES_MAX:
            self.transport.write(b"".join(out))
        elif not self._join_small:
            self.transport.writelines(out)
        else:  # asyncio before 3.12 joins in writelines, whatever the size
            for part in _joined_small(out):
                self.transport.write(part)


def _joined_small(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes, with runs of small buffers joined and large ones as they are."""
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < JOIN_BYTES_MAX:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    return joined
