"""The process of a simulated server: its control session, as ``raylog.server.session_client`` keeps it, and its accepted connections."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylog.control.session import (
    AlterPartitionAnswer,
    Assignment,
    BrokerDisks,
    CopyRatesChanged,
    Exit,
    FromActor,
    Heartbeat,
    Hello,
    ImageChanged,
    Release,
    Removal,
    ReplicaStatus,
    SettingsChanged,
    TopicsNamed,
    Welcome,
)
from raylog.control.session_frames import ControllerEpochGuard, from_actor, to_frame
from raylog.simulator.messages import Call, Handshake, HandshakeDone
from raylog.simulator.processes import Machine, Process
from raylog.simulator.simulated_network import End, Link
from raylog.types import ActorIdentity, Endpoint, TopicIdPartition

if TYPE_CHECKING:
    from raylog.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """What a process is told when it starts."""

    node_id: int
    directory_id: uuid.UUID
    path: str
    incarnation: int


Said = (
    Welcome
    | CopyRatesChanged
    | SettingsChanged
    | BrokerDisks
    | ImageChanged
    | Assignment
    | Removal
    | Release
    | TopicsNamed
    | AlterPartitionAnswer
)


class ServerProcess(Process):
    """A process with a control session. Subclasses say hello and listen to the controller."""

    def __init__(self, simulation: Simulation, machine: Machine, spec: ActorSpec) -> None:
        super().__init__(f"{machine.name}/{spec.node_id & 0xFFFF}.{spec.incarnation}", machine)
        self.simulation = simulation
        self.spec = spec
        self.identity = ActorIdentity(simulation.cluster_id, spec.node_id, spec.directory_id, spec.incarnation)
        self.endpoint = simulation.network.listen(self, self)
        self.session: Link | None = None
        self.has_said_hello = False
        self.is_welcome = False
        self.controller_epochs = ControllerEpochGuard()
        self._heartbeat_interval_ms = 0  # as the controller said last
        self._controller_at = simulation.scheduler.between(0, 100)  # which address is tried next
        self._attempts = 0  # since a session was welcome
        self._summoned_to: Endpoint | None = None
        self.later(1, self.open_session, "start")

    # ---------------------------------------------------------------- for subclasses

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        return ()

    def unopened(self) -> tuple[TopicIdPartition, ...]:
        return ()

    def session_changed(self, connected: bool) -> None:
        pass

    def controller_said(self, frame: Said) -> None:
        pass

    def accepted(self, link: Link) -> End:
        return ServerEnd(self)

    def serve(self, end: ServerEnd, call: Call) -> bool:
        """False if this server does not answer such requests."""
        return False

    def abandoned(self, token: int) -> None:
        pass

    # ---------------------------------------------------------------- the control session, as SessionClient keeps it

    def open_session(self) -> None:
        endpoints = self.simulation.controllers.endpoints
        self._attempts += 1
        endpoint, self._summoned_to = self._summoned_to or endpoints[self._controller_at % len(endpoints)], None
        link = self.session = self.simulation.network.connect(self, endpoint, self)
        patience_us = self.scheduler.rng.choice((300_000, 2_000_000))
        self.later(patience_us, lambda: self._lose(link) if not self.is_welcome else None, f"{self.name} waits no more")

    def opened(self, link: Link) -> None:
        hello = Hello(
            self.identity,
            self.endpoint,
            self.machine.boot_id,
            self.statuses(),
            None,
            self.spec.incarnation,
            unopened=self.unopened(),
        )
        link.send(self, hello)
        self.has_said_hello = True

    def refused(self, link: Link) -> None:
        self._ended(link)

    def closed(self, link: Link) -> None:
        self._ended(link)

    def received(self, link: Link, message: object) -> None:
        assert isinstance(message, Said | Exit), message
        if link is not self.session:
            return
        if not self.controller_epochs.accepts(message):
            self.simulation.counts["frames of fenced controllers"] += 1
            self._lose(link)
            return
        self.simulation.checkers.obeyed(self.name, message.controller_epoch)
        if isinstance(message, Exit):
            self.simulation.trace(f"{self.name} is told to exit: {message.reason}")
            self.exit()
            return
        if isinstance(message, Welcome):
            self.is_welcome = True
            self._attempts = 0
            self._heartbeat_interval_ms = message.heartbeat_interval_ms
            self._beat(link)
            self.session_changed(True)
        elif isinstance(message, SettingsChanged):
            self._heartbeat_interval_ms = message.heartbeat_interval_ms
        self.controller_said(message)

    def exit(self) -> None:
        self.kill()

    def send(self, frame: FromActor) -> None:
        """Dropped while there is no session, because the next hello says what it said."""
        if self.session is not None and self.has_said_hello:
            # Once in a while as bytes, as on a real link.
            self.session.send(self, from_actor(to_frame(frame)) if self.scheduler.chance(0.05) else frame)

    def _lose(self, link: Link) -> None:
        if link is self.session:
            link.close(self)
            self._ended(link)

    def _ended(self, link: Link) -> None:
        if link is not self.session:
            return
        self.session = None
        self.has_said_hello = False
        was_welcome, self.is_welcome = self.is_welcome, False
        if was_welcome:
            self.session_changed(False)
        if not was_welcome or self.scheduler.chance(0.5):
            self._controller_at += 1
        round_is_over = self._attempts % len(self.simulation.controllers.endpoints) == 0 and self._summoned_to is None
        delay_us = self.scheduler.between(5_000, 300_000) if round_is_over else 1_000
        self.later(delay_us, self.open_session, f"{self.name} reconnects")

    def summoned(self, controller_epoch: int, endpoint: Endpoint) -> None:
        """The active controller of that epoch says where it is: nothing hangs on an older one that keeps its links open."""
        known = self.controller_epochs.highest_epoch
        if controller_epoch < known or (controller_epoch == known and self.is_welcome):
            return
        self.controller_epochs.highest_epoch = controller_epoch
        self._summoned_to = endpoint
        if self.session is not None:
            self._lose(self.session)

    def _beat(self, link: Link) -> None:
        if link is self.session:
            link.send(self, self.heartbeat())
            self.later(self._heartbeat_interval_ms * 1000, lambda: self._beat(link), f"{self.name} heartbeat")

    def heartbeat(self) -> Heartbeat:
        """What it uses."""
        return self.simulation.scaling.heartbeat(self, [])


class ServerEnd:
    """The accepting half of a connection: hands calls to the server, and tells it which of them nobody waits for any more."""

    __slots__ = ("link", "server", "tokens")

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.link: Link | None = None
        self.tokens: dict[int, None] = {}

    def opened(self, link: Link) -> None:
        raise AssertionError("an accepted link was opened")

    def refused(self, link: Link) -> None:
        raise AssertionError("an accepted link was refused")

    def received(self, link: Link, message: object) -> None:
        self.link = link
        mine = (self.server.spec.node_id, self.server.spec.incarnation)
        match message:
            case Handshake(expect, controller_epoch, controller) if expect == mine:
                link.send(self.server, HandshakeDone())
                self.server.summoned(controller_epoch, controller)
                return
            case Call(_, expect, _) if expect in (None, mine) and self.server.serve(self, message):
                return
        # Meant for somebody who had this port before: the handshake fails.
        link.close(self.server)
        self.closed(link)

    def closed(self, link: Link) -> None:
        tokens, self.tokens = self.tokens, {}
        for token in tokens:
            self.server.abandoned(token)
