"""What simulated processes say to each other over links, and the two halves of a connection that
carries requests.

The simulator sends values, not bytes: frames of the control session as they are, requests of the
data path as the events that they become, each in a ``Call`` with a correlation number. Encoding is
tested elsewhere and costs more than everything else here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raylog.simulator.processes import Process
from raylog.simulator.scheduler import Timer
from raylog.simulator.simulated_network import Link, Network
from raylog.types import Endpoint


@dataclass(frozen=True, slots=True)
class Call:
    """``expect``: the node id and incarnation that the caller means; anybody else closes the link,
    as a failed handshake does.
    """

    correlation: int
    expect: tuple[int, int] | None
    request: object


@dataclass(frozen=True, slots=True)
class Answer:
    correlation: int
    reply: object


@dataclass(frozen=True, slots=True)
class Handshake:
    """A dial: who are you? It is also the summons of the controller that asks: its epoch, and where
    it listens.
    """

    expect: tuple[int, int]
    controller_epoch: int
    controller: Endpoint


@dataclass(frozen=True, slots=True)
class HandshakeDone:
    pass


OnReply = Callable[[object | None], None]
"""Called once: with the reply, or with None when it will never come (refused, closed, timed out)."""


class SimulatedCaller:
    """The opening half: one link to one endpoint, requests answered in any order. Opens at the
    first call, again after it broke.
    """

    def __init__(self, process: Process, network: Network, endpoint: Endpoint, expect: tuple[int, int] | None) -> None:
        self.process = process
        self.network = network
        self.endpoint = endpoint
        self.expect = expect
        self._link: Link | None = None
        self._is_open = False
        self._correlation = 0
        self._queued: list[Call] = []
        self._waiting: dict[int, tuple[OnReply, Timer | None]] = {}

    def call(self, request: object, on_reply: OnReply, *, timeout_ms: int | None) -> None:
        """A timeout breaks the link, as clients do: what was sent on it may still arrive there,
        what is answered is lost.
        """
        self._correlation += 1
        correlation = self._correlation
        message = Call(correlation, self.expect, request)
        timer = None
        if timeout_ms is not None:
            timer = self.process.later(timeout_ms * 1000, self.close, f"{self.process.name} times out")
        self._waiting[correlation] = (on_reply, timer)
        if self._link is None:
            self._link = self.network.connect(self.process, self.endpoint, self)
            self._is_open = False
        if self._is_open:
            self._link.send(self.process, message)
        else:
            self._queued.append(message)

    def tell(self, request: object) -> None:
        """A request without an answer (acks=0): dropped if the link is not open."""
        if self._link is not None and self._is_open:
            self._link.send(self.process, Call(0, self.expect, request))

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close(self.process)
        self._fail()

    def _fail(self) -> None:
        self._is_open = False
        self._queued.clear()
        waiting, self._waiting = self._waiting, {}
        for on_reply, timer in waiting.values():
            if timer is not None:
                timer.cancel()
            on_reply(None)

    def opened(self, link: Link) -> None:
        self._is_open = True
        queued, self._queued = self._queued, []
        for message in queued:
            link.send(self.process, message)

    def refused(self, link: Link) -> None:
        self._link = None
        self._fail()

    def closed(self, link: Link) -> None:
        self._link = None
        self._fail()

    def received(self, link: Link, message: object) -> None:
        assert isinstance(message, Answer), message
        waiting = self._waiting.pop(message.correlation, None)
        if waiting is not None:
            on_reply, timer = waiting
            if timer is not None:
                timer.cancel()
            on_reply(message.reply)
