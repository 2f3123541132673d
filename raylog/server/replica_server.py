"""The shell around one ReplicaHost: a listener, a control session, links to leaders
(``leader_links``), a clock and threads.

It owns every socket and every thread of a process that holds replicas, and decides nothing:
requests, answers, assignments and deadlines become events, ``ReplicaHost.handle`` returns effects,
and the ``Driver`` has them carried out in order (``replica_effects``). All of that happens on the
event loop's thread; opening, flushing, closing and compacting logs, reads of what is not in the
page cache and long checks of produced records happen in threads (``log_threads``) and come back as
events.

All logs of the process share a bound of open files (``log.open_files``).

What touches the disk on the loop is short, because it ends in the page cache: reads of what is
there, appends, the opening of a segment's files, retention's renames, and those checkpoints (a
small file and a rename, not flushed) that go before a cut or a removal of segments; those that are
due with time are written in threads. It waits for the disk in three cases: where
``flush.messages=1`` promises it, such a checkpoint, which is to survive a loss of power, is
flushed; a follower that cuts its log reads the place of the cut, unlinks the segments behind it and
syncs the directory; and the first roll after such a cut flushes the segment. The last two guard the
order of cut and append, and are left where nothing can come in between.

Tokens name requests that wait for a reply. A reply without a token (acks 0) or for a connection
that is gone is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from raylog.control.session import (
    SHUT_DOWN,
    AlterPartitionAnswer,
    Assignment,
    Assignments,
    BrokerDisks,
    CopyRatesChanged,
    Exit,
    FromActor,
    FromController,
    Hello,
    ImageChanged,
    Release,
    Removal,
    SettingsChanged,
    TopicsNamed,
    Welcome,
)
from raylog.disks.disk import boot_id
from raylog.groups.context import GroupConfig
from raylog.kafka import table
from raylog.kafka.chain import Stage
from raylog.kafka.spec import ServerKind
from raylog.log.disk_files import DiskFiles
from raylog.log.files import Files, NotInMemory
from raylog.log.log import Log
from raylog.log.open_files import OpenFiles
from raylog.metadata.partitions.assignment_batches import apart
from raylog.replication.context import HostConfig
from raylog.replication.events import (
    AlterPartitionAnswered,
    Assigned,
    Cancelled,
    ConfigsGiven,
    ControlSessionChanged,
    CopyRatesGiven,
    DamageSuspected,
    Effect,
    Event,
    FetchPartitionResult,
    FetchReceived,
    FetchReply,
    LogFailed,
    LogOpened,
    OwnAppend,
    ProducePartition,
    ProducePartitionResult,
    ProduceReply,
    Released,
    Removed,
    Replied,
    SendFetch,
    Ticked,
)
from raylog.replication.host import ReplicaHost
from raylog.replication.leaderships import Leadership
from raylog.replication.replica import Replica
from raylog.replication.traced import TraceReached
from raylog.replication.transaction_events import LeaveGiven, LeaveWanted, VerifyTransaction
from raylog.server import follower_fetches, log_work
from raylog.server.apis import fetch, log_dirs, markers, offsets, produce, producers, repairs, whereabouts
from raylog.server.apis.entities import TopicNames
from raylog.server.door import Door, without_hints
from raylog.server.driver import Driver, LoopClock
from raylog.server.file_limit import raise_file_limit
from raylog.server.host_metrics import metrics_of_host
from raylog.server.hosted_coordinators import COORDINATED_TOPICS, HostedCoordinators
from raylog.server.inside_waits import InsideWait, ToEntity, as_it_is
from raylog.server.leader_links import LeaderLinks
from raylog.server.log_threads import LogThreads
from raylog.server.program_quotas import ProgramQuotas
from raylog.server.replica_effects import carry_out
from raylog.server.session_client import SessionClient
from raylog.server.spans import Spans
from raylog.server.spec import ServerSpec
from raylog.server.transaction_links import TransactionLinks
from raylog.server.transaction_questions import TransactionQuestions
from raylog.server.usual_requests import UsualFetch, UsualProduce
from raylog.types import Endpoint, TopicIdPartition, broker_of
from raylog.wire.framing import Buffer
from raylog.wire.handshake import Peer
from raylog.wire.request import Handler, Request
from raylog.wire.server import Server

logger = logging.getLogger("raylog.replica")


class ReplicaServer:
    """One process that holds replicas: ``start`` listens and joins the cluster, ``ended`` returns
    why it is over.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        files: Files | None = None,
        config: HostConfig | None = None,
        groups: GroupConfig | None = None,
        stages: Sequence[Stage] = (),
    ) -> None:
        """``stages`` run before every handler."""
        self._spec = spec
        self._disk = spec.open_disk()
        self._identity = spec.identity(self._disk)
        self._host = ReplicaHost(
            self._identity, broker_of(spec.node_id), config or HostConfig(), watched_topics=COORDINATED_TOPICS
        )
        self._names = TopicNames()
        self._boot_id = boot_id()
        self._waiting: dict[int, tuple[Request | InsideWait, ToEntity]] = {}
        self._next_token = 0
        self._threads = LogThreads(
            files if files is not None else DiskFiles(),
            spec.disk,
            self._reported,
            boot_id=self._boot_id,
            open_files=OpenFiles.within(raise_file_limit()),
        )
        self._driver = self._driven(self._host)
        self._leaders = LeaderLinks(
            Peer(self._identity.node_id, self._identity.incarnation),
            secret=self._disk.link_secret,
            cluster_id=self._disk.cluster_id,
            on_event=self._driver.handle,
        )
        self._transaction_links = TransactionLinks(self._disk, lambda: self._session.controller(), self._driver.handle)
        self._unanswered: dict[int, Request] = {}  # with acks 0, not appended yet
        self._over: asyncio.Future[str] | None = None
        self._stopping = False
        self._hosted = HostedCoordinators(self, self._questions(), self._want_leave, groups=groups)
        self._session = self._session_client()
        self._quotas = ProgramQuotas()
        self.door = Door(self, spec.node_id, self._hosted.coordinating, self._quotas.usage, stages)
        self._spans = Spans(self._identity, self._names.name_of)
        self._metrics = metrics_of_host(
            spec.node_id, self._servers, lambda: self._host, self._hosted, self._spans.counts
        )
        apis = self._kafka_apis()
        self._server = Server(
            self._handlers(apis),
            identity=self._identity,
            secret=self._disk.link_secret,
            host=spec.host,
            borrows_records=True,
            undecoded=(table.FETCH.key,),
            stages=stages,
            versions=apis.versions,
        )

    def _session_client(self) -> SessionClient:
        return SessionClient(
            Path(self._spec.disk),
            self._identity,
            hello=self._hello,
            on_frame=self._controller_said,
            on_change=lambda connected: self._driver.handle(ControlSessionChanged(connected)),
            loads=self._host.take_loads,
        )

    def _servers(self) -> tuple[Server, ...]:
        return self._server, self.door.server

    def _questions(self) -> TransactionQuestions:
        return TransactionQuestions(
            caller=Peer(self._identity.node_id, self._identity.incarnation),
            secret=self._disk.link_secret,
            cluster_id=self._disk.cluster_id,
            controller=lambda: self._session.controller_endpoint,
        )

    def _kafka_apis(self) -> table.Serving:
        """Kafka's, as this process answers them."""
        return table.serving(
            ServerKind.REPLICAS,
            {
                table.PRODUCE: self._produce,
                table.FETCH: self._fetch,
                table.LIST_OFFSETS: self._parking(offsets.list_offsets_event, offsets.list_offsets_entity),
                table.OFFSET_FOR_LEADER_EPOCH: self._parking(offsets.epoch_event, offsets.epoch_entity),
                table.DELETE_RECORDS: self._parking(offsets.delete_records_event, offsets.delete_records_entity),
                table.DESCRIBE_LOG_DIRS: lambda request: request.reply(
                    log_dirs.entity(request.body, request.version, self._host.replicas, self._spec.disk)
                ),
                table.DESCRIBE_PRODUCERS: lambda request: request.reply(
                    producers.entity(request.body, request.version, self._host.replicas, self._names)
                ),
                **self._hosted.handlers(),
                table.WRITE_TXN_MARKERS: self._parking(markers.event, markers.entity),
            },
        )

    def _handlers(self, apis: table.Serving) -> dict[int, Handler]:
        """Of all that may be asked of this process, Kafka's APIs and raylog's own."""
        return {
            **apis.handlers,
            **whereabouts.handlers(self, self._names, self._boot_id),
            **repairs.handlers(self, self._names, self._driver.handle),
            **self._hosted.private_handlers(),
            **self._session.handlers(),
            **(self.door.handlers() | self._quotas.handlers()),
            **self._metrics.handlers(),
        }

    # ------------------------------------------------------------------ life

    async def start(self) -> Endpoint:
        """Listen, and start looking for the controller. Raises ClusterError if no port can be had."""
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._endpoint = await self._server.start()
        self._session.start()
        self._metrics.start()
        return self._endpoint

    async def joined(self) -> None:
        """Wait until the active controller knows this process."""
        await self._session.joined()

    async def ended(self) -> str:
        """Wait until this server is over of its own; the reason."""
        assert self._over is not None, "ended() before start()"
        return await self._over

    async def stop(self, reason: str = "stopped") -> None:
        """Close the session and the listener, then every log cleanly. ``reason`` is what ``ended``
        returns.

        When the whole cluster is shut down the session ends last. Its controller waits for that,
        and whoever asked for the shutdown may end the processes then.
        """
        self._stopping = True
        self._driver.stop()
        self._spans.stop()
        self._hosted.stop()
        if reason != SHUT_DOWN:
            await self._session.stop()
        await self.door.stop()
        await self._server.stop()
        self._leaders.close()
        self._transaction_links.close()
        await self._threads.close_cleanly(self._host.logs())
        self._threads.stop()
        if reason == SHUT_DOWN:
            await self._session.stop()
        if self._over is not None and not self._over.done():
            self._over.set_result(reason)

    async def crash(self) -> None:
        """End as a SIGKILL would, for clusters in one process: sockets break, logs stay as they are."""
        self._stopping = True
        self._driver.stop()
        self._spans.stop()
        self._hosted.stop()
        await self._session.stop()
        await self.door.stop(grace_s=0)
        await self._server.stop(grace_s=0)
        self._leaders.close()
        self._transaction_links.close()
        self._threads.stop()
        for log in self._host.logs():
            log.close(clean=False)
        self._host = ReplicaHost(self._identity, broker_of(self._spec.node_id), HostConfig())

    def _hello(self) -> Hello:
        return Hello(
            self._identity,
            self._endpoint,
            self._boot_id,
            self._host.status(),
            self._disk.rack,
            os.getpid(),
            unopened=self._host.unopened(),
        )

    # ------------------------------------------------------------------ the machine

    def _driven(self, host: ReplicaHost) -> Driver[Event, Effect]:
        return Driver(
            LoopClock(),
            step=host.handle,
            tick=lambda now_ms, wall_ms: host.handle(Ticked(), now_ms, wall_ms),
            next_deadline_ms=host.next_deadline_ms,
            carry_out=partial(carry_out, self, self._threads),
            settled=self._settled,
        )

    def _reported(self, event: Event) -> None:
        """What a thread has done. A log that was opened for a server that has stopped meanwhile is
        closed.
        """
        if self._stopping and isinstance(event, LogOpened) and event.log is not None:
            log_work.close_log(event.log, clean=False)
        else:
            self._driver.handle(event)

    def _settled(self) -> None:
        """The machine has taken something in, and its effects are carried out."""
        if self._unanswered:
            for token in [token for token in self._unanswered if not self._host.holds(token)]:
                self._unanswered.pop(token).done()

    def answer(self, token: int, reply: Replied) -> None:
        if self._spans.is_on:
            self._spans.answered(token, reply)
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            request, to_entity = waiting
            request.reply(to_entity(reply))

    def send_fetch(self, order: SendFetch) -> None:
        self._leaders.send(order)

    def verify_transaction(self, order: VerifyTransaction) -> None:
        self._transaction_links.ask(order)

    def tell(self, frame: FromActor) -> None:
        self._session.send(frame)

    def leaderships_changed(self, changes: Sequence[Leadership]) -> None:
        self._hosted.receive(changes)

    def trace_reached(self, reached: TraceReached) -> None:
        self._spans.reached(reached)

    # ------------------------------------------------------------------ requests

    def _park(self, request: Request | InsideWait, to_entity: ToEntity) -> int:
        self._next_token += 1
        self._waiting[self._next_token] = (request, to_entity)
        return self._next_token

    def _parked(self, request: Request, token: int) -> None:
        """The machine kept the request: tell it if the client goes away."""
        if token in self._waiting:
            request.on_close(lambda _: self._abandon(token))

    def _abandon(self, token: int) -> None:
        if self._waiting.pop(token, None) is not None:
            self._spans.abandoned(token)
            self._driver.handle(Cancelled(token))

    def _produce(self, request: Request) -> None:
        body = request.body
        token = self._park(request, lambda reply: produce.entity(body, reply, request.version))
        if body.acks == 0:
            del self._waiting[token]
        self._driver.handle(self._spans.followed(produce.event(body, token, self._names, request.version), request))
        if body.acks:
            self._parked(request, token)
        elif self._host.holds(token) or not (self._driver.is_free or self._stopping):
            self._unanswered[token] = request
        else:
            request.done()

    def _fetch(self, request: Request) -> None:
        if request.version == fetch.FOLLOWER_VERSION and request.frame is not None:
            follower = follower_fetches.event(request.frame, request.position, self._next_token + 1)
            if follower is not None:
                self._fetch_for_follower(request, follower)
                return
        body = request.body
        token = self._park(request, lambda reply: fetch.entity(body, self._spans.sent(event, reply), request.version))
        event = fetch.event(body, token, self._names, request.version)
        self._driver.handle(event)
        self._parked(request, token)

    def _fetch_for_follower(self, request: Request, event: FetchReceived) -> None:
        def answer(reply: FetchReply) -> None:
            frame = follower_fetches.answer(request.correlation_id, reply)
            if frame is not None:
                request.send(frame, now=True)
            else:
                request.reply(fetch.entity(request.body, reply, request.version))

        self._next_token = event.token
        self._waiting[event.token] = (InsideWait(answer), as_it_is)
        self._driver.handle(event)
        self._parked(request, event.token)

    # ------------------------------------------------------------------ requests of clients at the door

    def led(self, topic: str | uuid.UUID, number: int) -> TopicIdPartition | None:
        """The partition, if this process leads it now."""
        id = TopicIdPartition(topic if isinstance(topic, uuid.UUID) else self._names.id_of_name(topic), number)
        replica = self._host.replicas.get(id)
        return replica.id if replica is not None and replica.leader is not None else None  # the table's own key

    def leads(self, id: TopicIdPartition) -> bool:
        """Whether this process leads it now."""
        replica = self._host.replicas.get(id)
        return replica is not None and replica.leader is not None

    def append_at_once(self, usual: UsualProduce, records: Buffer) -> ProducePartitionResult | None:
        """Append what a Produce of one partition brings, if that is its whole answer; None, and
        nothing is done, if not.
        """
        if not self._driver.is_free or (self._spans.is_on and self._spans.wants(records)):
            return None
        appended = self._host.append_at_once(
            usual.id, usual.acks, records, time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000
        )
        if appended is None:
            return None
        result, effects = appended
        if effects:
            self._driver.carry_out(effects)
        else:
            self._driver.rest()
        return result

    def read_at_once(self, usual: UsualFetch, offset: int) -> FetchPartitionResult | None:
        """Read what a consumer's Fetch of one partition asks for, if it is there; None if not."""
        if not self._driver.is_free:
            return None
        found = self._host.read_at_once(
            usual.partition(offset), usual.terms, time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000
        )
        if found is None:
            return None
        result, effects = found
        if self._spans.is_on:
            self._spans.fetched((result,))
        if effects:
            self._driver.carry_out(effects)
        else:
            self._driver.rest()
        return result

    def produce_usual(self, request: Request, usual: UsualProduce, records: Buffer) -> None:
        """A Produce of one partition, read already (``raylog.server.door``)."""
        answer = InsideWait(lambda reply: self.answer_produce(request, usual, reply.partitions[0]))
        self._next_token = token = self._next_token + 1
        self._waiting[token] = (answer, as_it_is)
        self._driver.handle(self._spans.followed(usual.event(token, records), request))
        self._parked(request, token)

    def fetch_usual(self, request: Request, usual: UsualFetch, offset: int) -> None:
        """A consumer's Fetch of one partition, read already (``raylog.server.door``)."""
        answer = InsideWait(lambda reply: self.answer_fetch(request, usual, reply.partitions[0]))
        self._next_token = token = self._next_token + 1
        self._waiting[token] = (answer, as_it_is)
        self._driver.handle(usual.event(token, offset))
        self._parked(request, token)

    def answer_produce(self, request: Request, usual: UsualProduce, result: ProducePartitionResult) -> None:
        """Answer a Produce of one partition: without the codec, unless it is refused."""
        frame = usual.answer(request.correlation_id, result)
        if frame is not None:
            request.send(frame)
        else:
            request.reply(produce.entity(request.body, without_hints(ProduceReply((result,))), request.version))

    def answer_fetch(self, request: Request, usual: UsualFetch, result: FetchPartitionResult) -> None:
        """The same of a Fetch, whose records are charged."""
        self._spans.fetched((result,))
        frame = usual.answer(request.correlation_id, result)
        if frame is not None:
            request.send(frame)
        else:
            request.reply(fetch.entity(request.body, without_hints(FetchReply((result,))), request.version))
        if usual.charge is not None:
            usual.charge(len(result.records))

    # ------------------------------------------------------------------ other requests

    def _parking(self, event: Callable[..., Event], entity: Callable[..., Any]) -> Handler:
        """The handler of an API that the machine answers, now or later."""

        def handle(request: Request) -> None:
            body = request.body
            token = self._park(request, lambda reply: entity(body, reply, request.version))
            self._driver.handle(event(body, token, self._names, request.version))
            self._parked(request, token)

        return handle

    # ------------------------------------------------------------------ coordinators

    def replica(self, id: TopicIdPartition) -> Replica | None:
        return self._host.replicas.get(id)

    def log(self, id: TopicIdPartition) -> Log | None:
        """The replica's log, while it is open."""
        replica = self._host.replicas.get(id)
        return replica.log if replica is not None else None

    def append(
        self,
        id: TopicIdPartition,
        batch: bytes,
        leader_epoch: int,
        then: Callable[[ProducePartitionResult], None],
        leave: int,
    ) -> None:
        """Append it if this process leads in that epoch, now or behind this step; then call ``then``."""
        token = self._park(InsideWait(lambda reply: then(reply.partitions[0])), as_it_is)
        self._driver.handle(OwnAppend(token, ProducePartition(id, batch), leader_epoch, leave))

    def _want_leave(self, wanted: Callable[[int], LeaveWanted], then: Callable[[LeaveGiven], None]) -> None:
        self._driver.handle(wanted(self._park(InsideWait(then), as_it_is)))

    def load(self, missing: NotInMemory, then: Callable[[], None]) -> None:
        """Bring bytes into memory in a thread; ``then`` is called on the loop."""
        self._threads.load(missing, then)  # a disk that fails is found out by the next read

    def log_failed(self, id: TopicIdPartition, reason: str) -> None:
        """Reading the log met an IO error."""
        self._driver.handle(LogFailed(id, reason))

    def suspect(self, id: TopicIdPartition, offset: int) -> None:
        """Reading the log at that offset met damaged bytes."""
        self._driver.handle(DamageSuspected(id, offset))

    # ------------------------------------------------------------------ the controller

    def _controller_said(self, frame: FromController) -> None:
        if self._stopping:
            return
        match frame:
            case Assignment():
                self._assigned((frame,))
            case Assignments():
                self._assigned(apart(frame))
            case Removal():
                self._driver.handle(Removed(frame))
            case Release():
                self._driver.handle(Released(frame))
            case AlterPartitionAnswer():
                self._driver.handle(AlterPartitionAnswered(frame))
            case Welcome():
                self._driver.handle(CopyRatesGiven(frame.controller_epoch, frame.rates))
                self._configured(ConfigsGiven(frame.controller_epoch, frame.configs))
            case CopyRatesChanged():
                self._driver.handle(CopyRatesGiven(frame.controller_epoch, frame.rates))
            case SettingsChanged():
                self._configured(ConfigsGiven(frame.controller_epoch, frame.configs))
            case TopicsNamed() | ImageChanged():
                self._hosted.hear(frame)
            case Exit(_, reason):
                logger.info("told to exit: %s", reason)
                self._exiting = self._loop.create_task(self.stop(reason))
            case BrokerDisks():
                pass  # for Brokers
            case _:
                assert_never(frame)

    def _configured(self, given: ConfigsGiven) -> None:
        self._driver.handle(given)
        self.door.configured(self._host.context.config)
        self.door.log_requests(self._server, self._host.context.config)
        self._quotas.follow(given.configs, self._server)
        self._spans.configure(self._host.context.config)

    def _assigned(self, assignments: Iterable[Assignment]) -> None:
        events = []
        for each in assignments:
            self._hosted.hear(each)
            self._names.add(each.topic, each.topic_id)
            events.append(Assigned(each))
        for event in events:
            self._driver.handle(event)
        self._leaders.warm(event.assignment for event in events)
