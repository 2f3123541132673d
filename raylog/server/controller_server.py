"""The shell around one Controller: a listener for clients, tools and control sessions, the metadata
log's file, and a launcher.

It owns sockets, the file, the clock and threads, and decides nothing: what arrives becomes events,
``Controller.handle`` returns effects, and the ``Driver`` has them carried out in order on the
loop's thread (``controller_effects``). Writes to the metadata log run one at a time in a thread of
their own (fsync), creations of actors in threads of theirs.

One of the voters is active; the others follow its log and answer NOT_CONTROLLER. ``QuorumLinks``
carries what they say to each other. A controller that becomes active dials every registered server
and summons it: servers do not have to notice that the former one is silent.

The controller listens on the port that its disk's ``meta.properties`` names, so that a restarted
one is found where it was. If that port is taken it moves, with a notice, and writes the new address
into the ``meta.properties`` of every disk of this machine. One that retires takes its address out of
them, deletes its metadata, and ends as ``RETIRED``: its disk may hold another one later.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from raylog.control.session import SHUT_DOWN, Exit, FromActor, FromController, Hello
from raylog.control.session_stream import Frame, SessionStream, accept_session
from raylog.disks.disk import Disk, controller_left, controller_moved, new_id, open_disk
from raylog.disks.quorum_disks import METADATA_FOLDER, forget_metadata, has_metadata, refuse_lost_metadata
from raylog.errors import RaylogError, error_for
from raylog.kafka import table
from raylog.kafka.chain import Stage
from raylog.kafka.spec import ServerKind
from raylog.log.mounts import files_at
from raylog.metadata import requests
from raylog.metadata.configuration.controller_config import ControllerConfig
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
    Persisted,
    SessionClosed,
    SessionFrame,
    SessionHello,
    StartActor,
    StartController,
)
from raylog.metadata.image import MetadataImage
from raylog.metadata.requests import ControllerReply, Refused
from raylog.placement.planner import plan_replicas
from raylog.raft.messages import Message, NotLeader, QuorumConfig, QuorumWrite
from raylog.raft.metadata_log import MetadataLog
from raylog.raft.quorum import Quorum
from raylog.server import cluster_events, controller_metrics, host_requests, plan_requests, start_requests
from raylog.server.apis import acls, admin, client_quotas, configs, credentials, operations, quorum, tokens
from raylog.server.controller_effects import carry_out
from raylog.server.controller_requests import ControllerRequests
from raylog.server.controller_status import cluster_status, quorum_status
from raylog.server.driver import Driver, LoopClock
from raylog.server.lock_wait import once_unlocked
from raylog.server.quorum_links import QuorumLinks
from raylog.server.request_logs import RequestLogs
from raylog.server.spec import ServerSpec, new_incarnation
from raylog.server.token_expiry import remove_expired_tokens
from raylog.types import CONTROLLER_SLOT, Endpoint, broker_of, node_id, slot_of
from raylog.wire import private
from raylog.wire.connection import Connection
from raylog.wire.dial import dial
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import SecretInsideTls
from raylog.wire.request import Request
from raylog.wire.server import Server

logger = logging.getLogger("raylog.controller")

APIS = (
    *acls.APIS,
    *admin.APIS,
    *client_quotas.APIS,
    *configs.APIS,
    *credentials.APIS,
    *operations.APIS,
    *tokens.APIS,
)
CREATIONS_AT_ONCE = 64
_chance = random.SystemRandom()
SHUTDOWN_PATIENCE_S = 30.0
STANDBY_TIMEOUT_MS = 2_000
RETIRED = "the cluster's plan has no controller here"
"""Why a controller has ended that is not to be started again."""


class Launcher(Protocol):
    """Creates the processes of server actors, and controllers where there is none yet, and returns
    when they listen; blocks, and raises what went wrong.
    """

    def launch(self, kind: str, spec: ServerSpec) -> Endpoint: ...

    def start_controller(self, cluster_id: str, spec: ServerSpec) -> Endpoint: ...


_KINDS = {ActorKind.BROKER: "broker", ActorKind.REPLICAS: "replica", ActorKind.COORDINATOR: "coordinator"}


class ControllerServer:
    """One controller process: ``start`` opens the metadata log, listens and leads; ``ended``
    returns why it is over.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        launcher: Launcher,
        config: ControllerConfig | None = None,
        stages: Sequence[Stage] = (),
    ) -> None:
        """``stages`` run before every handler."""
        self._spec = spec
        self._disk = spec.open_disk()
        self._secret = self._disk.link_secret
        self._launcher = launcher
        self._config = config or ControllerConfig()
        self._sessions: dict[int, SessionStream] = {}
        self._said_hello: set[int] = set()
        self._session_ids, self._request_logs = itertools.count(1), RequestLogs()
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="raylog-metadata")
        self._creating = ThreadPoolExecutor(CREATIONS_AT_ONCE, thread_name_prefix="raylog-launch")
        self._tasks: set[asyncio.Task[None]] = set()
        self._ordered: set[uuid.UUID] = set()  # disks whose controllers are being started
        self._stopping = self._was_recovering = False
        self._published_to: tuple[int, tuple[uuid.UUID, ...]] | None = None  # disks and voters, as last written
        self._links = QuorumLinks(
            Path(spec.disk),
            self._disk.directory_id,
            cluster_id=self._disk.cluster_id,
            secret=self._secret,
            identity=Peer(spec.node_id, spec.incarnation),
            on_event=self._handle,
        )
        self._metrics = controller_metrics.of(lambda: self._controller, spec, lambda: [self._server], self._links.peers)
        self._requests = ControllerRequests(self._handle, self._active_elsewhere)
        kafkas = {api.spec: self._requests.kafka_handler(api) for api in APIS}
        apis = table.serving(ServerKind.CONTROLLER, {**kafkas, table.DESCRIBE_QUORUM: self._describe_quorum})
        self._server = Server(
            {
                **apis.handlers,
                private.SESSION: self._open_session,
                private.AWAIT_LEADER: self._requests.await_leader,
                private.CLUSTER_STATUS: self._cluster_status,
                private.REGISTER_DISKS: self._register_disks,
                private.SHUTDOWN: self._shutdown,
                private.DRAIN_BROKER: self._requests.drain_broker,
                **host_requests.handlers(self._requests.ask, self._requests.park),
                **start_requests.handlers(self._requests.ask, self._requests.park),
                **plan_requests.handlers(self._requests.ask, self._requests.park),
                private.QUORUM: self._links.accept,
                private.DESCRIBE_QUORUM: lambda request: request.reply(private.QuorumDescription(self._quorum())),
                private.FIND_CONTROLLER: self._find_controller,
                private.DESCRIBE_EVENTS: cluster_events.handler(lambda: self._controller.history),
                **self._metrics.handlers(),
            },
            identity=spec.identity(self._disk),
            secret=self._secret,
            host=spec.host,
            port=self._last_port(),
            stages=stages,
            versions=apis.versions,
        )

    # ------------------------------------------------------------------ life

    async def start(self) -> Endpoint:
        """Open the metadata log, listen, and begin: to lead if this is the only voter, else to look
        for the others.

        Raises DiskError for a log that can't be opened, ClusterError if no port can be had.
        """
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._log = await self._loop.run_in_executor(self._writing, self._open_log)
        self._was_recovering = self._log.hard_state.recovering_term is not None
        claim, proposed = self._log.claim_incarnation, self._spec.incarnation
        incarnation = await self._loop.run_in_executor(self._writing, claim, proposed)
        for notice in self._log.notices:
            logger.warning("%s", notice)
        self._spec = replace(self._spec, incarnation=incarnation)
        self._server.identity = self._spec.identity(self._disk)
        self._links.identity = Peer(self._spec.node_id, incarnation)
        quorum_config = QuorumConfig()
        machine = Quorum(
            self._disk.directory_id,
            hard_state=self._log.hard_state,
            snapshot=self._log.snapshot,
            entries=self._log.entries,
            config=quorum_config,
            draw_election_timeout_ms=lambda: _chance.randint(
                quorum_config.election_timeout_ms, 2 * quorum_config.election_timeout_ms
            ),
            now_ms=_now_ms(),
        )
        self._controller = Controller(
            machine,
            controller_node=self._spec.node_id,
            config=self._config,
            plan=plan_replicas,
            new_uuid=new_id,
        )
        self._driver = self._driven(self._controller)
        self._endpoint = await self._server.start()
        self._publish_address()
        self._driver.carry_out(self._controller.start(_now_ms(), time.time_ns() // 1_000_000))
        self._links.start(self._endpoint)
        self._metrics.start()
        expiring = remove_expired_tokens(lambda: self.image if self.is_active else None, self._requests.ask)
        self._keep(self._loop.create_task(expiring))
        return self._endpoint

    async def ended(self) -> str:
        """Wait until this server is over of its own; the reason."""
        return await self._over

    async def stop(self, reason: str = "stopped") -> None:
        """Stop listening and close the metadata log. Sessions break, and replicas go on without
        this controller.
        """
        if not self._stopping:
            await self._end(reason, grace_s=1.0)

    async def crash(self) -> None:
        """End as a SIGKILL would, for clusters in one process: sockets break, nothing is said or
        finished.
        """
        if not self._stopping:
            await self._end("crashed", grace_s=0.0)

    async def _end(self, reason: str, *, grace_s: float) -> None:
        self._stopping = True
        self._driver.stop()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        await self._links.stop()
        await self._server.stop(grace_s=grace_s)
        self._creating.shutdown(wait=False, cancel_futures=True)
        await self._loop.run_in_executor(self._writing, self._log.close)
        if reason == RETIRED:
            await self._loop.run_in_executor(self._writing, self._forget)
        self._writing.shutdown()
        if not self._over.done():
            self._over.set_result(reason)

    def _open_log(self) -> MetadataLog:
        refuse_lost_metadata(self._disk)
        folder = os.path.join(self._spec.disk, METADATA_FOLDER)
        has_peers = len(self._disk.controllers) > 1  # as written down when one of them was last heard
        return once_unlocked(lambda: MetadataLog.open(files_at(folder), folder, has_peers=has_peers))

    def _last_port(self) -> int:
        last = self._disk.controller_endpoint
        if last is None and len(self._disk.controllers) == 1 and has_metadata(self._disk):
            last = self._disk.controllers[0]
        return last.port if last is not None and last.host == self._spec.host else 0

    def _publish_address(self) -> None:
        """Write the own address to every disk that is known, the own one first."""
        voters = self._controller.quorum.voters
        self._published_to = (len(self._controller.image.disks), voters)
        is_alone = voters == (self._disk.directory_id,) and not self._links.peers()
        old, new = self._disk.controller_endpoint, self._endpoint
        self._write_down(partial(controller_moved, home=self._disk.path, old=old, new=new, is_alone=is_alone))

    def _forget(self) -> None:
        """This controller's address and metadata; from here on its disk is blank."""
        last = self._disk.controller_endpoint
        was_at = [self._endpoint, *([last] if last is not None else [])]
        leave = partial(controller_left, home=self._disk.path, was_at=was_at)
        try:
            leave(self._disk)
            forget_metadata(self._disk.path)
        except (RaylogError, OSError) as error:
            logger.error("%s keeps the metadata of a controller that has retired: %s", self._disk.path, error)
        self._write_down(leave)

    def _write_down(self, change: Callable[[Disk], Disk]) -> None:
        """On every disk of this machine that is known, the own one first."""
        home = self._disk.path
        known = self._controller.image.disks.values()
        for path in [home, *sorted({Path(disk.path) for disk in known} - {home})]:
            try:
                change(open_disk(path, cluster_id=self._disk.cluster_id))
            except RaylogError as error:
                logger.debug("where controllers are is not written to %s: %s", path, error)

    # ------------------------------------------------------------------ the machine

    def _driven(self, controller: Controller) -> Driver[Event, Effect]:
        return Driver(
            LoopClock(),
            step=controller.handle,
            tick=partial(controller.handle, ControllerTicked()),
            next_deadline_ms=controller.next_deadline_ms,
            carry_out=partial(carry_out, self),
            settled=self._settled,
        )

    def _handle(self, event: Event) -> None:
        self._driver.handle(event)

    def _settled(self) -> None:
        """The machine has taken something in, and its effects are carried out."""
        if self._was_recovering and not self._controller.quorum.is_recovering:
            self._was_recovering = False
            logger.warning("the metadata that this disk had lost is back: its controller takes part in elections again")
        if (len(self._controller.image.disks), self._controller.quorum.voters) != self._published_to:
            self._publish_address()
        self._request_logs.follow(self._server, self._controller.image.broker_configs, broker_of(self._spec.node_id))

    def send_frame(self, session_id: int, frame: FromController) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.send(frame)

    def close_session(self, session_id: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.close()

    def answer(self, token: int, reply: ControllerReply) -> None:
        self._requests.answered(token, reply)

    def send_quorum(self, to: uuid.UUID, message: Message) -> None:
        self._links.send(to, message)

    def notice(self, notice: Notice) -> None:
        logger.log(notice.level, "%s", notice.text)

    def dial(self, order: Dial) -> None:
        self._keep(self._loop.create_task(self._find_out(order)))

    def retire(self) -> None:
        self._keep(self._loop.create_task(self.stop(RETIRED)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def persist(self, write: QuorumWrite) -> None:
        future = self._loop.run_in_executor(self._writing, self._log.store, write)

        def written(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                logger.critical("the metadata log cannot be written, the controller ends: %s", error)
                self._loop.create_task(self.stop(f"the metadata log cannot be written: {error}"))
            elif not done.cancelled():
                self._handle(Persisted(write.number))

        future.add_done_callback(written)

    async def _find_out(self, effect: Dial) -> None:
        outcome = await dial(
            effect.endpoint,
            node_id=effect.node_id,
            incarnation=effect.incarnation,
            secret=self._secret,
            cluster_id=self._disk.cluster_id,
            say=private.Summon(self._controller.controller_epoch, self._endpoint.host, self._endpoint.port),
        )
        self._handle(Dialed(effect.node_id, effect.incarnation, effect.dial_id, DialOutcome(outcome)))

    def start_actor(self, effect: StartActor) -> None:
        known = self._controller.image.actors.get(effect.node_id)
        incarnation = max(new_incarnation(), known.incarnation + 1 if known is not None else 0)  # a clock may go back
        spec = ServerSpec(effect.node_id, effect.directory_id, effect.path, self._spec.host, incarnation)
        future = self._loop.run_in_executor(self._creating, self._launcher.launch, _KINDS[effect.kind], spec)

        def launched(done: asyncio.Future[Endpoint]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                self._handle(ActorStarted(effect.node_id))
            else:
                logger.warning("cannot start node %d on %s: %s", effect.node_id, effect.path, error)
                self._handle(ActorStartFailed(effect.node_id, str(error)))

        future.add_done_callback(launched)

    def start_controller(self, order: StartController) -> None:
        """One order for a disk at a time: the machine repeats it until that controller has joined."""
        if order.directory_id in self._ordered:
            return
        self._ordered.add(order.directory_id)
        node = node_id(order.broker_id, CONTROLLER_SLOT)
        spec = ServerSpec(node, order.directory_id, order.path, self._spec.host, new_incarnation())
        start, cluster_id = self._launcher.start_controller, self._disk.cluster_id
        future = self._loop.run_in_executor(self._creating, start, cluster_id, spec)

        def started(done: asyncio.Future[Endpoint]) -> None:
            self._ordered.discard(order.directory_id)
            if not done.cancelled() and (error := done.exception()) is not None:
                logger.warning("cannot start a controller on %s: %s", order.path, error)

        future.add_done_callback(started)

    # ------------------------------------------------------------------ what it says of itself

    def _cluster_status(self, request: Request) -> None:
        self._requests.cluster_status(
            request,
            lambda report, described: cluster_status(
                report, described, node_id=self._spec.node_id, endpoint=self._endpoint
            ),
        )

    def _quorum(self) -> dict[str, Any]:
        controller = self._controller
        return quorum_status(
            controller.quorum,
            controller.image,
            broker_id=broker_of(self._spec.node_id),
            is_active=self.is_active,
            endpoint_of=self._endpoint_of,
            linked=self._links.peers(),
            now_ms=_now_ms(),
            unix_ms=time.time_ns() // 1_000_000,
        )

    def _describe_quorum(self, request: Request) -> None:
        has_tls = isinstance(self._secret, SecretInsideTls)
        request.reply(quorum.entity(request.body, request.version, self._quorum(), has_tls=has_tls))

    def _find_controller(self, request: Request) -> None:
        endpoint = self._active_endpoint()
        request.reply(private.ControllerFound(endpoint.host, endpoint.port) if endpoint else private.ControllerFound())

    def _active_elsewhere(self) -> Endpoint | None:
        """Where the active controller listens, if that is another one and known."""
        endpoint = self._active_endpoint()
        return endpoint if endpoint != self._endpoint else None

    def _active_endpoint(self) -> Endpoint | None:
        leader = self._controller.quorum.leader
        return self._endpoint_of(leader) if leader is not None else None

    def _endpoint_of(self, directory_id: uuid.UUID) -> Endpoint | None:
        return self._endpoint if directory_id == self._disk.directory_id else self._links.endpoint_of(directory_id)

    async def _register_disks(self, request: Request) -> private.DisksRegistered:
        return await self.register_disks(request.body)

    async def register_disks(self, order: private.RegisterDisks) -> private.DisksRegistered:
        """Commit the disks that a launcher or tool names; KafkaError for one that contradicts what
        is known.
        """
        known = self._controller.image.disks
        first_who_moved = sorted(order.disks, key=lambda disk: uuid.UUID(bytes=disk["directory_id"]) not in known)
        for disk in first_who_moved:
            done: asyncio.Future[ControllerReply] = self._loop.create_future()
            told = disk["broker_id"], uuid.UUID(bytes=disk["directory_id"]), disk["path"], disk.get("rack")
            asked = requests.RegisterDisk(self._disk.cluster_id, *told)
            self._requests.ask(asked, done.set_result)
            reply = await done
            if isinstance(reply, requests.DiskOutcome | Refused) and reply.error:
                raise error_for(reply.error, reply.message)
        self._publish_address()
        return private.DisksRegistered()

    @property
    def is_active(self) -> bool:
        """Whether this controller decides: it was elected and has read its log to the end."""
        return self._controller.active is not None

    @property
    def image(self) -> MetadataImage:
        """What is committed, as far as this controller knows."""
        return self._controller.image

    def directory_ids(self) -> tuple[uuid.UUID, ...]:
        """The disks whose reservations end with this controller: of a standby its own, else the
        cluster's, the own last.
        """
        own = self._disk.directory_id
        if not self.is_active:
            return (own,)
        return (*sorted(each for each in self._controller.image.disks if each != own), own)

    def live_nodes(self) -> frozenset[int]:
        """The node ids of all processes that have a session."""
        return frozenset(self._sessions[session_id].peer.node_id for session_id in self._said_hello)

    # ------------------------------------------------------------------ sessions

    def _open_session(self, request: Request) -> None:
        session_id = next(self._session_ids)

        def received(session: SessionStream, frame: Frame) -> None:
            self._session_said(session_id, session, frame)

        self._sessions[session_id] = accept_session(
            request, received, lambda session, _: self._session_ended(session_id)
        )

    def _session_said(self, session_id: int, session: SessionStream, frame: Frame) -> None:
        if session_id in self._said_hello:
            assert isinstance(frame, FromActor), f"an actor does not send {type(frame).__name__}"
            self._handle(SessionFrame(session_id, frame))
            return
        peer = session.peer
        if not isinstance(frame, Hello) or (peer.node_id, peer.incarnation) != (
            frame.identity.node_id,
            frame.identity.incarnation,
        ):
            logger.warning("%s opened a session without a hello of its own", session.peername)
            session.close()
            return
        self._said_hello.add(session_id)
        self._handle(SessionHello(session_id, frame))

    def _session_ended(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
        if session_id in self._said_hello:
            self._said_hello.discard(session_id)
            self._handle(SessionClosed(session_id))

    # ------------------------------------------------------------------ the end

    async def _shutdown(self, request: Request) -> private.ShutdownDone:
        """End the standbys, then every other server, then, once the reply is on its way, this one.

        A standby ends when the active one asks.
        """
        asked_by_controller = slot_of(request.connection.peer.node_id) == CONTROLLER_SLOT
        if not asked_by_controller and not self.is_active:
            raise NotLeader("this controller is not the active one")
        self._stopping = True
        self._driver.stop()  # from here on nobody is declared dead or started
        if not asked_by_controller:
            await asyncio.gather(*map(self._end_standby, self._links.peers()))
        exits = list(self._sessions.values())
        epoch = self._controller.controller_epoch
        for session in exits:
            session.send(Exit(epoch, SHUT_DOWN))
        fullest = max((len(ids) for ids in self._controller.image.assigned.values()), default=0)
        deadline = self._loop.time() + shutdown_patience_s(fullest)
        while self._sessions and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._loop.call_later(0.1, lambda: self._loop.create_task(self._finish()))
        return private.ShutdownDone(len(exits) - len(self._sessions))

    async def _end_standby(self, peer: uuid.UUID) -> None:
        """Before the servers end: else it would take over and start them again."""
        endpoint = self._links.endpoint_of(peer)
        if endpoint is None:
            return
        try:
            connection = await Connection.open(
                endpoint,
                secret=self._secret,
                cluster_id=self._disk.cluster_id,
                caller=Peer(self._spec.node_id, self._spec.incarnation),
                timeout_ms=STANDBY_TIMEOUT_MS,
            )
            await connection.request(private.Shutdown(), timeout_ms=STANDBY_TIMEOUT_MS)
            connection.close()
        except RaylogError as error:
            logger.warning("the standby controller at %s does not end: %s", endpoint, error)

    async def _finish(self) -> None:
        self._stopping = False
        await self.stop(SHUT_DOWN)


def shutdown_patience_s(replicas: int) -> float:
    """How long a process may take to close so many logs cleanly; each is flushed."""
    return SHUTDOWN_PATIENCE_S + private.LOG_CLOSING_S * replicas


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
