"""A controller actor of a simulated cluster: the shell around the production ``Controller``,
``Quorum`` and ``MetadataLog``.

It carries out effects as the real shell does. A write of the quorum's log happens after a random
delay, as in a thread, and the word that it is durable arrives another delay later; a death may come
before, between and (through ``Machine.arm``) in the middle of both. Dials are real dials over the
simulated network, StartActor really starts a process, after a while, or fails because the machine
is off. Where the controllers run and how their quorum talks is ``simulated_quorum``.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from raylog.control.session import Assignment, Assignments, FromController, Hello
from raylog.control.session_frames import from_controller, to_frame
from raylog.errors import RaylogError
from raylog.metadata.controller import Controller
from raylog.metadata.events import (
    ActorKind,
    ActorStarted,
    ActorStartFailed,
    ControllerTicked,
    Dial,
    Dialed,
    DialOutcome,
    Effect,
    Event,
    Notice,
    PeerJoined,
    PeerLeft,
    Persisted,
    RequestAbandoned,
    RequestReceived,
    SessionClosed,
    SessionFrame,
    SessionHello,
    StartActor,
    StartController,
)
from raylog.metadata.partitions.assignment_batches import apart
from raylog.metadata.requests import ControllerReply, Request
from raylog.placement.planner import plan_replicas
from raylog.raft.messages import Message, QuorumConfig, QuorumWrite
from raylog.raft.metadata_log import MetadataLog
from raylog.raft.quorum import Quorum
from raylog.server.controller_effects import carry_out
from raylog.server.driver import Driver
from raylog.simulator.messages import Answer, Call, Handshake, HandshakeDone
from raylog.simulator.processes import Process
from raylog.simulator.simulated_network import End, Link
from raylog.simulator.simulated_sessions import ActorSpec, ProcessClock
from raylog.types import CONTROLLER_SLOT, node_id

if TYPE_CHECKING:
    from raylog.simulator.simulated_quorum import Place
    from raylog.simulator.simulation import Simulation

DIAL_MS = 200


class ControllerProcess(Process):
    """A process of a controller; the next one is started at its place when it has ended."""

    def __init__(self, simulation: Simulation, place: Place) -> None:
        super().__init__(f"controller{place.number}.{simulation.counts['controller starts']}", place.machine)
        simulation.counts["controller starts"] += 1
        self.simulation = simulation
        self.place = place
        self.identity = place.directory_id
        self.peers: dict[uuid.UUID, ControllerProcess] = {}  # the other controllers that it has a link to
        self.endpoint = simulation.network.listen(self, self)
        self.incarnation = 0
        self._newest: dict[uuid.UUID, int] = {}  # the highest incarnation that it has seen of each other disk
        self._refused: set[ControllerProcess] = set()
        self.controller: Controller | None = None
        self.checked_index = 0  # of the metadata log: what the simulation has seen of this one
        self.told_index = 0  # the same of its events
        self._log: MetadataLog | None = None
        self._sessions: dict[int, _ControllerEnd] = {}
        self._tokens: dict[int, tuple[_ControllerEnd, Link, int]] = {}
        self._numbers = 0
        self.later(1, self._open, "open the metadata log")

    def on_end(self) -> None:
        self.simulation.controllers.ended(self)

    def _open(self) -> None:
        try:
            has_peers = len(self.simulation.controllers.places) > 1
            self._log = MetadataLog.open(self.files, self.place.directory, has_peers=has_peers)
            self.incarnation = self._log.claim_incarnation(self.machine.wall_ms() * 1_000_000)
        except OSError as error:
            self.simulation.trace(f"{self.name} cannot open its log: {error}")
            self.kill()
            return
        except RaylogError as error:
            self.simulation.controllers.refused(self, error)
            return
        self.place.undamaged = None
        self.place.is_recovering = self._log.hard_state.recovering_term is not None
        if self._log.notices:
            self.simulation.trace(f"{self.name} mends its metadata: {'; '.join(self._log.notices)}")
            what = "metadata recoveries" if self.place.is_recovering else "metadata copies mended"
            self.simulation.counts[what] += 1
        self.simulation.counts["metadata tails cut"] += bool(self._log.cut_bytes)
        quorum = Quorum(
            self.identity,
            hard_state=self._log.hard_state,
            snapshot=self._log.snapshot,
            entries=self._log.entries,
            config=QuorumConfig(
                election_timeout_ms=1_000 * self.simulation.calm, heartbeat_interval_ms=200 * self.simulation.calm
            ),
            draw_election_timeout_ms=lambda: self.scheduler.between(1_000, 2_000) * self.simulation.calm,
            now_ms=self.now_ms,
        )
        self.controller = Controller(
            quorum,
            controller_node=node_id(self.place.broker_id, CONTROLLER_SLOT),
            config=self.simulation.controller_config,
            plan=plan_replicas,
            new_uuid=self.simulation.new_uuid,
        )
        self._driver = Driver(
            ProcessClock(self),
            step=self._step,
            tick=lambda now_ms, wall_ms: self._step(ControllerTicked(), now_ms, wall_ms),
            next_deadline_ms=self.controller.next_deadline_ms,
            carry_out=partial(carry_out, self),
        )
        self._driver.carry_out(self.controller.start(self.now_ms, self.machine.wall_ms()))
        self.simulation.controllers.introduce(self)

    # ---------------------------------------------------------------- links to other controllers, as QuorumLinks keeps them

    def joined(self, other: ControllerProcess) -> None:
        """A link to it is open. If there was one to an older process of that disk, that one is
        dead.
        """
        if other.incarnation < self._newest.get(other.identity, 0):
            self._refused.add(other)
            self.simulation.counts["controllers refused by their incarnation"] += 1
            self.simulation.trace(f"{self.name} takes {other.name} for an older process than one that it has seen")
            return
        self._newest[other.identity] = other.incarnation
        known = self.peers.get(other.identity)
        if known is not other:
            if known is not None:
                self.handle(PeerLeft(other.identity, is_dead=True))
            self.peers[other.identity] = other
            self.handle(PeerJoined(other.identity))

    def left(self, other: ControllerProcess, *, is_dead: bool) -> None:
        """The link to it has ended; ``is_dead``: and its port refuses another."""
        if self.peers.get(other.identity) is other:
            del self.peers[other.identity]
            self.handle(PeerLeft(other.identity, is_dead=False))
        if is_dead and other.identity not in self.peers:
            self.handle(PeerLeft(other.identity, is_dead=True))

    def refuses(self, other: ControllerProcess) -> bool:
        """Whether it keeps no link to the other, which counts for an older process."""
        return other in self._refused

    # ---------------------------------------------------------------- what the simulation looks at

    @property
    def is_active(self) -> bool:
        return self.controller is not None and self.controller.active is not None

    @property
    def term(self) -> int:
        return self.controller.quorum.term if self.controller is not None else 0

    @property
    def has_voters(self) -> bool:
        """Whether it is more than a blank disk."""
        return self.controller is not None and bool(self.controller.quorum.voters)

    @property
    def is_recovering(self) -> bool:
        return self.controller is not None and self.controller.quorum.is_recovering

    @property
    def voters(self) -> tuple[uuid.UUID, ...]:
        return self.controller.quorum.voters if self.controller is not None else ()

    def knows(self, other: ControllerProcess) -> bool:
        return self.peers.get(other.identity) is other

    def has_on_disk(self, index: int, term: int) -> bool:
        return self._log is not None and self._log.holds(index, term)

    def check(self) -> None:
        if self.controller is not None:
            self.controller.check()

    # ---------------------------------------------------------------- the machine

    def handle(self, event: Event) -> None:
        if self.alive and self.controller is not None:
            self._driver.handle(event)

    def _step(self, event: Event, now_ms: int, wall_ms: int) -> list[Effect]:
        controller = self.controller
        assert controller is not None, "the driver has begun"
        if not self.alive:
            return []
        self.simulation.trace_event(self.name, event)
        was_active, term = controller.active is not None, controller.quorum.term
        effects = controller.handle(event, now_ms, wall_ms)
        if was_active and controller.active is None:
            self._deposed(term)
        return effects

    def _deposed(self, term: int) -> None:
        """Fenced is who still took itself for the active one when another was."""
        self.simulation.counts["controllers deposed"] += 1
        others = [process for process in self.simulation.controllers.running() if process is not self]
        if any(process.is_active and process.term > term for process in others):
            self.simulation.counts["fenced controllers"] += 1

    def after_work(self) -> None:
        if self.controller is not None:
            self.simulation.observer.check_controller(self)

    def answer(self, token: int, reply: ControllerReply) -> None:
        """Send what the machine replies, unless nobody waits for it any more."""
        waiting = self._tokens.pop(token, None)
        if waiting is not None:
            end, link, correlation = waiting
            end.tokens.pop(token, None)
            link.send(self, Answer(correlation, reply))

    def dial(self, order: Dial) -> None:
        _Dialing(self, order)

    def persist(self, write: QuorumWrite) -> None:
        delay_us = self.scheduler.skewed_us(self.simulation.controllers.store_us)
        self.later(delay_us, lambda: self._store(write), f"{self.name} stores")

    def notice(self, notice: Notice) -> None:
        self.simulation.trace(f"{self.name} notices: {notice.text}")

    def send_quorum(self, to: uuid.UUID, message: Message) -> None:
        self.simulation.controllers.post(self, to, message)

    def _store(self, write: QuorumWrite) -> None:
        assert self._log is not None
        try:
            self._log.store(write)
        except OSError as error:
            self.simulation.trace(f"{self.name} cannot store: {error}")
            self.kill()
            return
        self.later(self.scheduler.skewed_us(100), lambda: self.handle(Persisted(write.number)), f"{self.name} stored")

    # ---------------------------------------------------------------- sessions and requests

    def accepted(self, link: Link) -> End:
        return _ControllerEnd(self)

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def session_opened(self, end: _ControllerEnd, hello: Hello) -> None:
        end.session_id = self.new_number()
        self._sessions[end.session_id] = end
        self.handle(SessionHello(end.session_id, hello))

    def session_frame(self, session_id: int, frame: object) -> None:
        if session_id in self._sessions:
            self.handle(SessionFrame(session_id, frame))  # type: ignore[arg-type]

    def session_closed(self, session_id: int) -> None:
        if self._sessions.pop(session_id, None) is not None:
            self.handle(SessionClosed(session_id))

    def send_frame(self, session_id: int, frame: FromController) -> None:
        if isinstance(frame, Assignment | Assignments):
            for each in apart(frame) if isinstance(frame, Assignments) else (frame,):
                self.simulation.observer.assigned(each)
        end = self._sessions.get(session_id)
        if end is not None and end.link is not None:
            if self.scheduler.chance(0.05):  # once in a while as bytes, as on a real link
                frame = from_controller(to_frame(frame))
            self.simulation.trace_event(f"{self.name}>{end.link.opener.name}", frame)
            end.link.send(self, frame)

    def close_session(self, session_id: int) -> None:
        end = self._sessions.get(session_id)
        if end is not None and end.link is not None:
            end.link.close(self)
            # The machine hears of it like of any other end, later.
            self.later(1, lambda: self.session_closed(session_id), "session closed")

    def asked(self, end: _ControllerEnd, link: Link, call: Call) -> None:
        token = self.new_number()
        end.tokens[token] = None
        self._tokens[token] = (end, link, call.correlation)
        self.handle(RequestReceived(token, call.request))  # type: ignore[arg-type]

    def abandoned(self, token: int) -> None:
        if self._tokens.pop(token, None) is not None:
            self.handle(RequestAbandoned(token))

    # ---------------------------------------------------------------- processes

    def start_actor(self, effect: StartActor) -> None:
        delay_us = self.scheduler.skewed_us(150_000)
        self.simulation.trace_event(self.name, effect)

        def start() -> None:
            machine = self.simulation.machine_of(effect.broker_id)
            has_disk = self.simulation.has_disk(effect.broker_id, effect.directory_id)
            may_start = machine.is_on and machine.starts_servers and has_disk
            if not may_start or self.scheduler.chance(0.02):
                failed = ActorStartFailed(effect.node_id, f"{machine.name} is off, or has another disk")
                self.run(lambda: self.handle(failed))
                return
            incarnation = self.simulation.new_incarnation()
            spec = ActorSpec(effect.node_id, effect.directory_id, effect.path, incarnation)
            self.simulation.start_actor(machine, spec, is_broker=effect.kind is ActorKind.BROKER)
            self.run(lambda: self.handle(ActorStarted(effect.node_id)))

        # Not ``later``: what was asked of Ray happens even if who asked is dead by then.
        self.scheduler.after_us(delay_us, start, f"{self.name} starts {effect.node_id}")

    def start_controller(self, order: StartController) -> None:
        self.simulation.trace_event(self.name, order)
        self.simulation.controllers.start_planned(order)

    def retire(self) -> None:
        self.later(1, lambda: self.simulation.controllers.retired(self), f"{self.name} retires")


class _ControllerEnd:
    """One accepted link: a control session if it opens with Hello, else requests."""

    __slots__ = ("link", "process", "session_id", "tokens")

    def __init__(self, process: ControllerProcess) -> None:
        self.process = process
        self.link: Link | None = None
        self.session_id: int | None = None
        self.tokens: dict[int, None] = {}

    def opened(self, link: Link) -> None:
        raise AssertionError("an accepted link was opened")

    def refused(self, link: Link) -> None:
        raise AssertionError("an accepted link was refused")

    def received(self, link: Link, message: object) -> None:
        self.link = link
        if self.process.controller is None:
            link.close(self.process)
        elif self.session_id is not None:
            self.process.session_frame(self.session_id, message)
        elif isinstance(message, Hello):
            self.process.session_opened(self, message)
        elif isinstance(message, Call) and isinstance(message.request, Request):
            self.process.asked(self, link, message)
        else:
            link.close(self.process)  # a handshake meant for somebody who had this port before

    def closed(self, link: Link) -> None:
        if self.session_id is not None:
            self.process.session_closed(self.session_id)
        tokens, self.tokens = self.tokens, {}
        for token in tokens:
            self.process.abandoned(token)


class _Dialing:
    """One dial: connect, ask who is there, and say what came of it within 200 ms."""

    __slots__ = ("dial", "done", "link", "process", "was_opened")

    def __init__(self, process: ControllerProcess, dial: Dial) -> None:
        self.process = process
        self.dial = dial
        self.done = False
        self.was_opened = False
        self.link = process.simulation.network.connect(process, dial.endpoint, self)
        process.later(DIAL_MS * 1000, self._timed_out, "dial timed out")

    def _finish(self, outcome: DialOutcome) -> None:
        if not self.done:
            self.done = True
            self.link.close(self.process)
            self.process.handle(Dialed(self.dial.node_id, self.dial.incarnation, self.dial.dial_id, outcome))

    def _timed_out(self) -> None:
        self._finish(DialOutcome.MUTE if self.was_opened else DialOutcome.UNREACHABLE)

    def opened(self, link: Link) -> None:
        self.was_opened = True
        controller = self.process.controller
        assert controller is not None
        expect = (self.dial.node_id, self.dial.incarnation)
        link.send(self.process, Handshake(expect, controller.controller_epoch, self.process.endpoint))

    def refused(self, link: Link) -> None:
        self._finish(DialOutcome.REFUSED)

    def closed(self, link: Link) -> None:
        self._finish(DialOutcome.CLOSED)

    def received(self, link: Link, message: object) -> None:
        assert isinstance(message, HandshakeDone), message
        self._finish(DialOutcome.ALIVE)
