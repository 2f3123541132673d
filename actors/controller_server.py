"""The shell around one Controller: a listener for clients, tools and control sessions, the metadata log's file, and a launcher.

It owns sockets, the file, the clock and threads, and decides nothing: what arrives becomes events, ``Controller.handle`` returns
effects, and ``_run`` carries them out in order on the loop's thread. Writes to the metadata log run one at a time in a thread of
their own (fsync), creations of actors in threads of theirs.

The controller listens on the port that its disk's ``meta.properties`` names, so that a restarted one is found where it was. If
that port is taken it moves, with a notice, and writes the new address into the ``meta.properties`` of every disk of this machine.

Before a deadline is judged, everything that has arrived is handled: a deadline's callback only asks for another turn of
the loop, which reads all sockets first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from raylog.actors.apis import admin, operations
from raylog.actors.apis.api import Api
from raylog.actors.patience import once_unlocked
from raylog.actors.spec import ServerSpec, new_incarnation
from raylog.errors import KafkaError, RaylogError, error_for
from raylog.log.disk_files import DiskFiles
from raylog.metadata import requests
from raylog.metadata.controller import Controller
from raylog.metadata.controller_config import ControllerConfig
from raylog.metadata.events import (
    ActorKind,
    ActorStarted,
    ActorStartFailed,
    CloseSession,
    Dial,
    Dialed,
    DialOutcome,
    Effect,
    Event,
    Notice,
    Persist,
    Persisted,
    Reply,
    RequestAbandoned,
    RequestReceived,
    SendFrame,
    SendQuorum,
    SessionClosed,
    SessionFrame,
    SessionHello,
    StartActor,
    Ticked,
)
from raylog.metadata.metadata_log import MetadataLog
from raylog.metadata.quorum import Quorum
from raylog.metadata.quorum_messages import BLANK, QuorumConfig, bootstrap_snapshot
from raylog.metadata.requests import ControllerReply, Refused
from raylog.metadata.session import Exit, FromActor, Hello
from raylog.placement.disks import open_disk, with_controllers
from raylog.placement.planner import plan_replicas
from raylog.types import BROKER_SLOT, Endpoint, broker_of, slot_of
from raylog.wire import private
from raylog.wire.dial import dial
from raylog.wire.server import Request, Server
from raylog.wire.session import Frame, Session, accept_session

logger = logging.getLogger("raylog.controller")

APIS = (*admin.APIS, *operations.APIS)
METADATA_FOLDER = "__cluster_metadata-0"
CREATIONS_AT_ONCE = 64
SHUTDOWN_PATIENCE_S = 30.0
SHUT_DOWN = "the cluster is shut down"  # what ``ended`` says after a Shutdown request


class Launcher(Protocol):
    """Creates the process of a server actor and returns when it listens; blocks, and raises what went wrong."""

    def launch(self, kind: str, spec: ServerSpec) -> Endpoint: ...


_KINDS = {ActorKind.BROKER: "broker", ActorKind.REPLICAS: "replica"}
OnReply = Callable[[ControllerReply], None]


class ControllerServer:
    """One controller process: ``start`` opens the metadata log, listens and leads; ``ended`` returns why it is over."""

    def __init__(self, spec: ServerSpec, *, launcher: Launcher, config: ControllerConfig | None = None) -> None:
        self._spec = spec
        self._disk = spec.open_disk()
        self._identity = spec.identity(self._disk)
        self._secret = self._disk.secret.encode()
        self._launcher = launcher
        self._config = config or ControllerConfig()
        self._sessions: dict[int, Session] = {}
        self._said_hello: set[int] = set()
        self._waiting: dict[int, OnReply] = {}
        self._next_id = 0
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="raylog-metadata")
        self._creating = ThreadPoolExecutor(CREATIONS_AT_ONCE, thread_name_prefix="raylog-launch")
        self._dials: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms: int | None = None
        self._stopping = False
        self._is_published = False  # whether the disks of the whole committed log have the address
        self._server = Server(
            {
                **{api.key: self._kafka_handler(api) for api in APIS},
                private.SESSION: self._open_session,
                private.AWAIT_LEADER: self._await_leader,
                private.CLUSTER_STATUS: self._cluster_status,
                private.REGISTER_DISKS: self._register_disks,
                private.SHUTDOWN: self._shutdown,
                private.DRAIN_BROKER: self._drain_broker,
            },
            identity=self._identity,
            secret=self._secret,
            host=spec.host,
            port=next((each.port for each in self._disk.controllers if each.host == spec.host), 0),
            versions={api.key: api.versions for api in APIS},
        )

    # ------------------------------------------------------------------ life

    async def start(self) -> Endpoint:
        """Open the metadata log (formatting it on a cluster's first start), listen, and begin.

        Raises DiskError for a log that can't be opened, ClusterError if no port can be had.
        """
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._log = await self._loop.run_in_executor(self._writing, self._open_log)
        quorum_config = QuorumConfig()
        quorum = Quorum(
            self._disk.directory_id,
            hard_state=self._log.hard_state,
            snapshot=self._log.snapshot,
            entries=self._log.entries,
            config=quorum_config,
            draw_election_timeout_ms=lambda: random.randint(
                quorum_config.election_timeout_ms, 2 * quorum_config.election_timeout_ms
            ),
            now_ms=_now_ms(),
        )
        self._controller = Controller(
            quorum,
            controller_node=self._spec.node_id,
            config=self._config,
            plan=plan_replicas,
            new_uuid=uuid.uuid4,
        )
        self._endpoint = await self._server.start()
        self._publish_address()
        self._run(self._controller.start(_now_ms()))
        self._set_timer()
        return self._endpoint

    async def ended(self) -> str:
        """Wait until this server is over of its own; the reason."""
        return await self._over

    async def stop(self, reason: str = "stopped") -> None:
        """Stop listening and close the metadata log. Sessions break, and replicas go on without a controller."""
        if self._stopping:
            return
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._dials):
            task.cancel()
        await self._server.stop()
        self._creating.shutdown(wait=False, cancel_futures=True)
        await self._loop.run_in_executor(self._writing, self._log.close)
        self._writing.shutdown()
        if not self._over.done():
            self._over.set_result(reason)

    def _open_log(self) -> MetadataLog:
        files, folder = DiskFiles(), os.path.join(self._spec.disk, METADATA_FOLDER)
        log = once_unlocked(lambda: MetadataLog.open(files, folder))
        if log.snapshot == BLANK and not log.entries:
            log.close()
            MetadataLog.format(files, folder, bootstrap_snapshot(self._disk.cluster_id, [self._disk.directory_id]))
            log = MetadataLog.open(files, folder)
        return log

    def _publish_address(self) -> None:
        paths = {Path(self._spec.disk), *(Path(disk.path) for disk in self._controller.image.disks.values())}
        for path in sorted(paths):
            try:
                with_controllers(open_disk(path, cluster_id=self._disk.cluster_id), [self._endpoint])
            except RaylogError as error:
                logger.debug("the controller's address is not written to %s: %s", path, error)

    # ------------------------------------------------------------------ the machine

    def _handle(self, event: Event) -> None:
        if self._stopping:
            return
        self._run(self._controller.handle(event, _now_ms()))
        self._set_timer()
        if not self._is_published and self.is_active:  # only now every disk is known
            self._is_published = True
            self._publish_address()

    def _set_timer(self) -> None:
        due_ms = self._controller.next_deadline_ms()
        if due_ms == self._timer_due_ms:
            return
        self._timer_due_ms = due_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer = self._loop.call_later(max(0, due_ms - _now_ms()) / 1_000, self._due)

    def _due(self) -> None:
        """A deadline has come; sockets are read once more before it is judged."""
        self._timer = self._loop.call_later(0, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_due_ms = None
        self._handle(Ticked())

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendFrame(session_id, frame):
                    session = self._sessions.get(session_id)
                    if session is not None:
                        session.send(frame)
                case Reply(token, reply):
                    answer = self._waiting.pop(token, None)
                    if answer is not None:
                        answer(reply)
                case Persist(write):
                    self._persist(write)
                case Dial():
                    task = self._loop.create_task(self._dial(effect))
                    self._dials.add(task)
                    task.add_done_callback(self._dials.discard)
                case CloseSession(session_id):
                    session = self._sessions.get(session_id)
                    if session is not None:
                        session.close()
                case StartActor():
                    self._start_actor(effect)
                case Notice(text):
                    logger.info("%s", text)
                case SendQuorum(to, _):
                    logger.warning("no link to voter %s: this raylog runs one controller", to)

    def _persist(self, write: Any) -> None:
        future = self._loop.run_in_executor(self._writing, self._log.store, write)

        def written(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                logger.critical("the metadata log cannot be written, the controller ends: %s", error)
                self._loop.create_task(self.stop(f"the metadata log cannot be written: {error}"))
            elif not done.cancelled():
                self._handle(Persisted(write.number))

        future.add_done_callback(written)

    async def _dial(self, effect: Dial) -> None:
        outcome = await dial(
            effect.endpoint,
            node_id=effect.node_id,
            incarnation=effect.incarnation,
            secret=self._secret,
            cluster_id=self._disk.cluster_id,
        )
        self._handle(Dialed(effect.node_id, effect.incarnation, effect.dial_id, DialOutcome(outcome)))

    def _start_actor(self, effect: StartActor) -> None:
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

    # ------------------------------------------------------------------ requests

    def _ask(self, request: requests.Request, answer: OnReply) -> int:
        self._next_id += 1
        token = self._next_id
        self._waiting[token] = answer
        self._handle(RequestReceived(token, request))
        return token

    def _parked(self, request: Request, token: int) -> None:
        if token in self._waiting:
            request.on_close(lambda _: self._abandon(token))

    def _abandon(self, token: int) -> None:
        if self._waiting.pop(token, None) is not None:
            self._handle(RequestAbandoned(token))

    def _kafka_handler(self, api: Api) -> Callable[[Request], None]:
        def handle(request: Request) -> None:
            body, version = request.body, request.version
            try:
                asked = api.to_request(body, version)
            except KafkaError as error:
                request.reply(api.to_entity(body, Refused(int(error.code), str(error)), version))
                return
            token = self._ask(asked, lambda reply: request.reply(api.to_entity(body, reply, version)))
            self._parked(request, token)

        return handle

    def _await_leader(self, request: Request) -> None:
        body: private.AwaitLeader = request.body
        asked = requests.AwaitLeader(body.topic, body.partition, body.newer_than_epoch, body.timeout_ms)

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, requests.LeaderFound) and not reply.error and reply.endpoint is not None:
                endpoint = reply.endpoint
                request.reply(private.LeaderFound(reply.leader_node, reply.leader_epoch, endpoint.host, endpoint.port))
            elif isinstance(reply, requests.LeaderFound):
                where = f"{body.topic}-{body.partition}"
                request.refuse(error_for(reply.error, f"no leader of {where} newer than epoch {body.newer_than_epoch}"))
            else:
                _refuse(request, reply)

        self._parked(request, self._ask(asked, answer))

    def _drain_broker(self, request: Request) -> None:
        body: private.DrainBroker = request.body

        def answer(reply: ControllerReply) -> None:
            if isinstance(reply, requests.BrokerDrained) and not reply.error:
                request.reply(private.BrokerDrained(reply.moved, reply.remaining))
            elif isinstance(reply, requests.BrokerDrained):
                request.refuse(error_for(reply.error, reply.message))
            else:
                _refuse(request, reply)

        self._parked(request, self._ask(requests.DrainBroker(body.broker_id, body.is_draining), answer))

    def _cluster_status(self, request: Request) -> None:
        described: list[requests.TopicsDescribed | requests.ClusterDescribed] = []

        def topics(reply: ControllerReply) -> None:
            if isinstance(reply, requests.TopicsDescribed):
                described.append(reply)

        def cluster(reply: ControllerReply) -> None:
            if isinstance(reply, requests.ClusterDescribed):
                described.append(reply)

        def answer(reply: ControllerReply) -> None:
            if not isinstance(reply, requests.ClusterStatusReport):
                _refuse(request, reply)
                return
            request.reply(private.ClusterStatusReply(self._status(reply, described)))

        self._ask(requests.DescribeTopics(), topics)
        self._ask(requests.DescribeCluster(), cluster)
        self._parked(request, self._ask(requests.ClusterStatus(), answer))

    def _status(self, report: requests.ClusterStatusReport, described: list[Any]) -> dict[str, Any]:
        live = {actor.node_id for actor in report.actors if actor.state == "live"}
        brokers = next((each.brokers for each in described if isinstance(each, requests.ClusterDescribed)), ())
        topics = next((each.topics for each in described if isinstance(each, requests.TopicsDescribed)), ())
        return {
            "cluster_id": report.cluster_id,
            "controller": {
                "broker": broker_of(self._spec.node_id),
                "epoch": report.controller_epoch,
                "endpoint": str(self._endpoint),
                "pid": os.getpid(),
            },
            "brokers": [
                {
                    "id": broker.broker_id,
                    "rack": broker.rack,
                    "draining": broker.is_draining,
                    "live": broker.broker_id << 16 | BROKER_SLOT in live,
                    "disks": [path for _, path in broker.directories],
                }
                for broker in brokers
            ],
            "actors": [
                {
                    "node_id": actor.node_id,
                    "broker": broker_of(actor.node_id),
                    "kind": "broker" if slot_of(actor.node_id) == BROKER_SLOT else "replicas",
                    "endpoint": str(actor.endpoint) if actor.endpoint else None,
                    "pid": actor.pid,
                    "state": actor.state,
                    "incarnation": actor.incarnation,
                    "replicas": actor.replicas,
                    "failures": [f"{topic}-{partition}: {reason}" for topic, partition, reason in actor.failures],
                }
                for actor in report.actors
            ],
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition": part.partition,
                            "leader": broker_of(part.leader_node),
                            "leader_node": part.leader_node,
                            "leader_epoch": part.leader_epoch,
                            "replicas": [broker_of(node) for node in part.replica_nodes],
                            "replica_nodes": list(part.replica_nodes),
                            "isr": [broker_of(node) for node in part.isr_nodes],
                            "elr": [broker_of(node) for node in part.elr_nodes],
                            "offline": [broker_of(node) for node in part.offline_nodes],
                        }
                        for part in topic.partitions
                    ],
                }
                for topic in topics
            ],
            "under_replicated": [f"{topic}-{partition}" for topic, partition in report.under_replicated],
            "under_min_isr": [f"{topic}-{partition}" for topic, partition in report.under_min_isr],
            "leaderless": [f"{topic}-{partition}" for topic, partition in report.leaderless],
            "unclean_elections": report.unclean_elections,
            "removals_pending": report.removals_pending,
        }

    async def _register_disks(self, request: Request) -> private.DisksRegistered:
        return await self.register_disks(request.body)

    async def register_disks(self, order: private.RegisterDisks) -> private.DisksRegistered:
        """Commit the disks that a launcher or tool names; KafkaError for one that contradicts what is known."""
        for disk in order.disks:
            done: asyncio.Future[ControllerReply] = self._loop.create_future()
            asked = requests.RegisterDisk(
                self._disk.cluster_id,
                disk["broker_id"],
                uuid.UUID(bytes=disk["directory_id"]),
                disk["path"],
                disk.get("rack"),
            )
            self._ask(asked, done.set_result)
            reply = await done
            if isinstance(reply, requests.DiskOutcome | Refused) and reply.error:
                raise error_for(reply.error, reply.message)
        self._publish_address()
        return private.DisksRegistered()

    @property
    def is_active(self) -> bool:
        """Whether this controller decides: it was elected and has read its log to the end."""
        return self._controller.active is not None

    def directory_ids(self) -> tuple[uuid.UUID, ...]:
        """The disks of the cluster, the controller's own last."""
        own = self._disk.directory_id
        return (*sorted(each for each in self._controller.image.disks if each != own), own)

    def live_nodes(self) -> frozenset[int]:
        """The node ids of all processes that have a session."""
        return frozenset(self._sessions[session_id].peer.node_id for session_id in self._said_hello)

    # ------------------------------------------------------------------ sessions

    def _open_session(self, request: Request) -> None:
        self._next_id += 1
        session_id = self._next_id

        def received(session: Session, frame: Frame) -> None:
            self._session_said(session_id, session, frame)

        self._sessions[session_id] = accept_session(
            request, received, lambda session, _: self._session_ended(session_id)
        )

    def _session_said(self, session_id: int, session: Session, frame: Frame) -> None:
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
        """End every other server, then, once the reply is on its way, this one."""
        self._stopping = True  # from here on nobody is declared dead or started
        exits = list(self._sessions.values())
        epoch = self._controller.controller_epoch
        for session in exits:
            session.send(Exit(epoch, SHUT_DOWN))
        deadline = self._loop.time() + SHUTDOWN_PATIENCE_S
        while self._sessions and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._loop.call_later(0.1, lambda: self._loop.create_task(self._finish()))
        return private.ShutdownDone(len(exits) - len(self._sessions))

    async def _finish(self) -> None:
        self._stopping = False
        await self.stop(SHUT_DOWN)


def _refuse(request: Request, reply: ControllerReply) -> None:
    assert isinstance(reply, Refused), reply
    request.refuse(error_for(reply.error, reply.message))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
