"""The event loop of a simulated process: asyncio code runs in it as production code does, in
virtual time.

Owns the loop and the transports of one ``Process``. Timers are the scheduler's, connections are
links of the simulated network, and nothing runs in a thread. What a piece of work causes
(``call_soon``) runs in the same instant, in order. A paused process finds its timers late; a dead
one runs nothing any more, whatever its abandoned coroutines still ask for.

Only what the clients and the servers of raylog use of an event loop is here.
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, cast

from raylog.clock import MachineClock
from raylog.simulator.processes import Process
from raylog.simulator.scheduler import Timer
from raylog.simulator.simulated_network import Link, Network
from raylog.types import Endpoint

Arguments = TypeVarTuple("Arguments")

STARTED_S = 10_000.0  # what a loop's time begins with: not with 0, as no machine's does
CALLS_AT_ONCE_MAX = 100_000


class VirtualClock(MachineClock):
    """Of the machine of a simulated process; chance is the scheduler's."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.chance = process.scheduler.rng

    def monotonic_s(self) -> float:
        return STARTED_S + self._process.scheduler.now_us / 1_000_000

    def wall_ms(self) -> int:
        return self._process.machine.wall_ms()


class ScheduledCall(asyncio.TimerHandle):
    """A call that will be made unless it is cancelled."""

    def __init__(
        self, when: float, call: Callable[..., Any], arguments: tuple[Any, ...], loop: SimulatedLoop, context: Any
    ) -> None:
        super().__init__(when, call, arguments, loop, context)
        self.call = call
        self.arguments = arguments
        self.timer: Timer | None = None

    def make(self) -> None:
        """Unlike asyncio's own, lets whatever the call raises pass."""
        if not self.cancelled():
            self.call(*self.arguments)

    def cancel(self) -> None:
        super().cancel()
        if self.timer is not None:
            self.timer.cancel()


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self, process: Process, network: Network) -> None:
        self.process = process
        self.network = network
        self.clock = VirtualClock(process)
        self._ready: deque[ScheduledCall] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # those that are not done
        self._is_running = False
        self._is_turn_due = False

    # ---------------------------------------------------------------- running

    def run(self, work: Callable[[], object]) -> None:
        """Do ``work``, and all that it causes in this instant. In a piece of work of the process."""
        if self._is_running:
            work()
            return
        self._is_running = True
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            work()
            self._run_ready()
        finally:
            events._set_running_loop(outer)
            self._is_running = False

    def _run_ready(self) -> None:
        for _ in range(CALLS_AT_ONCE_MAX):
            if not self._ready or not self.process.alive:
                self._ready.clear()
                return
            self._ready.popleft().make()
        raise AssertionError(f"{self.process.name} goes round in circles: {self._ready[0]}")

    def _turn(self) -> None:
        self._is_turn_due = False
        self.run(lambda: None)

    # ---------------------------------------------------------------- what asyncio asks of a loop

    def time(self) -> float:
        return self.clock.monotonic_s()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return not self.process.alive

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> ScheduledCall:
        call = ScheduledCall(self.time(), callback, args, self, context)
        if self.process.alive:
            self._ready.append(call)
            if not self._is_running and not self._is_turn_due:
                self._is_turn_due = True
                self.process.later(1, self._turn, f"{self.process.name} goes on")
        return call

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> ScheduledCall:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> ScheduledCall:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> ScheduledCall:
        call = ScheduledCall(when, callback, args, self, context)
        if self.process.alive:
            delay_us = max(0, math.ceil((when - self.time()) * 1_000_000))
            call.timer = self.process.later(delay_us, lambda: self.run(call.make), f"{self.process.name} timer")
        return call

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio's timers tell their loop."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def abandon(self) -> None:
        """The process has ended, and its coroutines with it: here, and not whenever they are
        collected.
        """
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            try:
                task.get_coro().close()
            except Exception:  # what a coroutine does about its end needs a loop that runs; one may be running itself
                continue

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tasks that end with their process are no news. The others are awaited, or say by
        themselves what went wrong.
        """

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        opening = _Opening(self, protocol_factory)
        link = self.network.connect(self.process, Endpoint(host, port), opening)
        try:
            transport = await opening.done
        except BaseException:
            link.close(self.process)
            raise
        return transport, transport.protocol


def loop_of(process: Process, network: Network) -> SimulatedLoop:
    """A new loop for a process. It has no methods for what raylog does not ask of a loop."""
    return SimulatedLoop(process, network)  # type: ignore[abstract]


class Transport(asyncio.Transport):
    """One end of a link as asyncio's protocols see a connection. What is written at once arrives at
    once.
    """

    def __init__(self, loop: SimulatedLoop, link: Link, protocol: asyncio.BufferedProtocol, peer: str) -> None:
        super().__init__({"peername": (peer, link.number)})
        self.protocol = protocol
        self._loop = loop
        self._link = link
        self._is_closing = False
        self._is_paused = False
        self._unread = bytearray()
        loop.run(lambda: protocol.connection_made(self))

    def received(self, data: bytes) -> None:
        self._unread += data
        self._loop.run(self._feed)

    def ended(self) -> None:
        """The other end has closed it, or it broke."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.run(lambda: self.protocol.connection_lost(None))

    def _feed(self) -> None:
        while self._unread and not self._is_paused and not self._is_closing:
            buffer = cast(memoryview, self.protocol.get_buffer(len(self._unread)))
            count = min(len(buffer), len(self._unread))
            buffer[:count] = self._unread[:count]
            del self._unread[:count]
            self.protocol.buffer_updated(count)

    # ---------------------------------------------------------------- what a protocol asks of its transport

    def write(self, data: Any) -> None:
        if not self._is_closing and len(data):
            self._link.send(self._loop.process, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._link.close(self._loop.process)
            self._loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here: the network takes what is written."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._feed)


class _Opening:
    """The opening end of a link."""

    def __init__(self, loop: SimulatedLoop, protocol_factory: Callable[[], asyncio.BufferedProtocol]) -> None:
        self._loop = loop
        self._protocol_factory = protocol_factory
        self._transport: Transport | None = None
        self.done: asyncio.Future[Transport] = loop.create_future()

    def opened(self, link: Link) -> None:
        if not self.done.done():
            transport = self._transport = Transport(self._loop, link, self._protocol_factory(), link.machines[1].name)
            self._loop.run(lambda: self.done.set_result(transport))

    def refused(self, link: Link) -> None:
        self._fail(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))

    def received(self, link: Link, message: object) -> None:
        if self._transport is not None:
            assert isinstance(message, bytes), message
            self._transport.received(message)

    def closed(self, link: Link) -> None:
        if self._transport is not None:
            self._transport.ended()
        else:
            self._fail(ConnectionResetError(errno.ECONNRESET, "reset"))

    def _fail(self, error: OSError) -> None:
        if not self.done.done():
            self._loop.run(lambda: self.done.set_exception(error))


class AcceptedEnd:
    """The accepting end of a link. Its first message says which kind of peer this is.

    ``connection`` makes the protocol for one that sends bytes; any other is served by ``inner``, as
    without this.
    """

    def __init__(self, loop: SimulatedLoop, inner: Any, connection: Callable[[], asyncio.BufferedProtocol]) -> None:
        self._loop = loop
        self._inner = inner
        self._connection = connection
        self._transport: Transport | None = None

    def opened(self, link: Link) -> None:
        raise AssertionError("an accepted link was opened")

    def refused(self, link: Link) -> None:
        raise AssertionError("an accepted link was refused")

    def received(self, link: Link, message: object) -> None:
        if self._transport is None and not isinstance(message, bytes):
            self._inner.received(link, message)
            return
        assert isinstance(message, bytes), message
        if self._transport is None:
            self._transport = Transport(self._loop, link, self._connection(), link.opener.machine.name)
        self._transport.received(message)

    def closed(self, link: Link) -> None:
        if self._transport is not None:
            self._transport.ended()
        else:
            self._inner.closed(link)
