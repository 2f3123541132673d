"""A broker's own process: it holds the locks of the broker's disks, tries them out, and says by its
session that the broker is there.

It starts on one of the disks; the controller tells it of the others. A disk that fails later is
reported and does not end it.

It listens inside and outside. The inside listener answers the handshake and the summons of a new
active controller, which is how a controller sees whether the process lives, and tells clients that
have lost the controller where it is. The outside ones are for every Kafka client
(``listener.router``): their ports are taken at the start, so that the first hello can name them,
and they begin to answer with the first whole image that the session brings. With the controller
away they go on answering from the copy of it. The process also watches for the notice that its node
is about to be taken away, and passes it on to the controller, and it reloads certificates that
change (``wire.certificates``). When its disk names other listeners (``listener_watch``), it ends:
the controller starts another process in its place, which has them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from raylog.clock import MachineClock
from raylog.configs.certificate_configs import certificate_configs
from raylog.control.session import BrokerDisks, DisksChecked, Exit, FromController, Hello, ImageChanged, NodeLeaving
from raylog.disks.disk import DiskLock, boot_id, lock_disk, read_disk
from raylog.errors import DiskError
from raylog.kafka.chain import Stage
from raylog.listener.broker_loggers import BrokerLoggers
from raylog.listener.broker_metrics import BrokerMetrics
from raylog.listener.certificates import ListenerCertificates
from raylog.listener.metrics_pushes import PushTarget
from raylog.listener.own_controller import OwnController
from raylog.listener.plain_user_files import PlainUserFiles
from raylog.listener.quota_lender import QuotaLender
from raylog.listener.router import Router
from raylog.metadata.image import MetadataImage
from raylog.metadata.image_copy import ImageCopy
from raylog.security.protocols import AdvertisedListener
from raylog.server.disk_watch import DiskWatch
from raylog.server.listener_watch import ListenerWatch
from raylog.server.lock_wait import once_unlocked
from raylog.server.process_metrics import ProcessMetrics
from raylog.server.session_client import SessionClient
from raylog.server.spec import ServerSpec
from raylog.types import Endpoint, broker_of
from raylog.wire.bearer_tokens import BearerTokens
from raylog.wire.handshake import Peer
from raylog.wire.limits import Limits
from raylog.wire.listeners import Listeners, NamedListener
from raylog.wire.open_listeners import default_listeners, open_listeners
from raylog.wire.ports import Port
from raylog.wire.server import Server

logger = logging.getLogger("raylog.broker")

NOTICE_POLL_S = 0.5  # leaders have left within a second of the notice
OTHER_LISTENERS = "its disk names other listeners"


class BrokerServer:
    """One broker: ``start`` takes its disk and joins the cluster, ``ended`` returns why it is over."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        node_is_leaving: Callable[[], bool] | None = None,
        listeners: Listeners | None = None,
        limits: Limits | None = None,
        stages: Sequence[Stage] = (),
        ray_token: str | None = None,
        metrics_pushes: Sequence[PushTarget] = (),
    ) -> None:
        """``node_is_leaving`` says whether this process's node is about to go; it may block, and is
        called in a thread.

        ``listeners``: instead of those that the disk names. ``limits``: of the outside listeners.
        ``stages`` run before every handler of any listener. ``ray_token``: the Ray's own; None: none.
        ``metrics_pushes``: who is given the broker's metrics without asking for them.

        Raises ConfigError if the certificates of a listener can't be used, and MissingExtraError.
        """
        self._spec = spec
        self._ask_notice = node_is_leaving
        self._is_leaving = False
        self._watch: asyncio.Task[None] | None = None
        self._disk = spec.open_disk()
        self._identity = spec.identity(self._disk)
        self._lock: DiskLock | None = None
        self._disks = DiskWatch(Path(spec.disk), lambda failed: self._session.send(DisksChecked(failed)))
        self._session = SessionClient(
            Path(spec.disk),
            self._identity,
            hello=self._hello,
            on_frame=self._controller_said,
            on_change=self._session_changed,
        )
        self._process_metrics = ProcessMetrics(spec.node_id, self._servers)
        self._own_controller = self._controller_of_this_broker()
        self._loggers = self._broker_loggers()
        self._copy = ImageCopy()
        self._listeners = listeners or self._disk.listeners or default_listeners(spec.host)
        self._advertised: tuple[AdvertisedListener, ...] = ()
        self._answering: asyncio.Task[None] | None = None
        self.router: Router | None = None
        self._listener_watch = (
            ListenerWatch(Path(spec.disk), self._disk.listeners, self._begin_anew) if listeners is None else None
        )
        self._certificates = ListenerCertificates(self._listeners)
        self._plain_users = PlainUserFiles()
        self._ports = [self._port(each, ray_token) for each in self._listeners.each]
        if self._ports:
            self.router = self._router(limits, stages)
        self._server = self._inside_server(stages)
        self.metrics = self._broker_metrics(metrics_pushes)
        self._lender = self._quota_lender()

    def _inside_server(self, stages: Sequence[Stage]) -> Server:
        of_configs = self._loggers.inside_handlers({} if self.router is None else self.router.alterations())
        return Server(
            self._session.handlers() | self._process_metrics.handlers() | of_configs,
            identity=self._identity,
            secret=self._disk.link_secret,
            host=self._spec.host,
            stages=stages,
        )

    def _broker_metrics(self, pushes: Sequence[PushTarget]) -> BrokerMetrics:
        return BrokerMetrics(
            broker_of(self._spec.node_id),
            Peer(self._spec.node_id, self._spec.incarnation),
            self._process_metrics.registry,
            secret=self._disk.link_secret,
            cluster_id=self._disk.cluster_id,
            image=self._image,
            controller=self._own_controller,
            of_clients=None if self.router is None else self.router.telemetry.add_to,
            pushes=pushes,
        )

    def _quota_lender(self) -> QuotaLender:
        return QuotaLender(
            broker_of(self._spec.node_id),
            Peer(self._spec.node_id, self._spec.incarnation),
            secret=self._disk.link_secret,
            cluster_id=self._disk.cluster_id,
            image=self._image,
            now_ms=MachineClock().monotonic_ms,
            usage=None if self.router is None else self.router.quotas.usage,
        )

    def _controllers_on_disk(self) -> tuple[Endpoint, ...]:
        """Where controllers listen, as the disk says now; as it said at the start, if it fails."""
        with suppress(DiskError):
            return (read_disk(Path(self._spec.disk)) or self._disk).controllers
        return self._disk.controllers

    def _controller_of_this_broker(self) -> OwnController:
        broker = broker_of(self._spec.node_id)
        return OwnController(
            broker,
            self._controllers_on_disk,
            secret=self._disk.link_secret,
            cluster_id=self._disk.cluster_id,
            caller=Peer(self._spec.node_id, self._spec.incarnation),
            is_planned=lambda: broker in self._image().planned_controllers,
            on_end=lambda: self._loggers.controller_ended(),
        )

    def _broker_loggers(self) -> BrokerLoggers:
        return BrokerLoggers(
            broker_of(self._spec.node_id),
            Peer(self._spec.node_id, self._spec.incarnation),
            secret=self._disk.link_secret,
            cluster_id=self._disk.cluster_id,
            image=self._image,
            controller=self._own_controller,
        )

    async def start(self) -> Endpoint:
        """Lock the disk, waiting for a predecessor that is still dying; listen; look for the
        controller.

        Raises DiskError if another process keeps the disk.
        """
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        path = Path(self._spec.disk)
        self._lock = await asyncio.to_thread(once_unlocked, lambda: lock_disk(path))
        self._endpoint = await self._server.start()
        if self.router is not None:
            self.router.bind()
            self._advertised = self._bound()
            for each in self._advertised:
                logger.info("Kafka clients reach this broker at %s://%s", each.name, each.endpoint)
            self._certificates.start()
            self._plain_users.start()
            for tokens in self._tokens:
                tokens.start()
        self._tell_who_may_come()
        self._session.start()
        if self._listener_watch is not None:
            self._listener_watch.start()
        self._process_metrics.start()
        if self._ask_notice is not None:
            self._watch = asyncio.create_task(self._await_notice(self._ask_notice))
        return self._endpoint

    def _tell_who_may_come(self) -> None:
        for name in open_listeners(self.listeners, on_loopback=False):
            logger.warning(
                "everyone who can connect to %s may do everything, because clients need not authenticate", name
            )
        for name in open_listeners(self.listeners, on_loopback=True):
            logger.info("every program of this machine may do everything at %s", name)
        if not self._ports and self._disk.listeners is None:
            logger.warning(
                "no listener for Kafka clients: none was given, and other machines reach %s: give --listeners "
                "of `raylog node resources`, with SASL_SSL, or with --insecure",
                self._spec.host,
            )

    def _servers(self) -> tuple[Server, ...]:
        return (self._server,) if self.router is None else (self._server, self.router.server)

    @property
    def advertised(self) -> Endpoint | None:
        """Where Kafka clients without TLS reach this broker; None if there is no such listener."""
        return next((each.endpoint for each in self._advertised if not each.protocol.has_tls), None)

    @property
    def advertised_listeners(self) -> tuple[AdvertisedListener, ...]:
        """Where Kafka clients reach this broker."""
        return self._advertised

    @property
    def listeners(self) -> Listeners:
        """Its listeners with the ports that they have."""
        bound = [port.endpoint or port.wanted for port in self._ports]
        each = (replace(listener, bind=at) for listener, at in zip(self._listeners.each, bound, strict=True))
        return replace(self._listeners, each=tuple(each))

    def _bound(self) -> tuple[AdvertisedListener, ...]:
        return tuple(
            AdvertisedListener(each.name, each.protocol, each.advertised_for(port.endpoint))
            for each, port in zip(self._listeners.each, self._ports, strict=True)
            if each.is_advertised and port.endpoint is not None
        )

    @property
    def _tokens(self) -> list[BearerTokens]:
        return [port.tokens for port in self._ports if port.tokens is not None]

    def _router(self, limits: Limits | None, stages: Sequence[Stage]) -> Router:
        return Router(
            broker_id=broker_of(self._spec.node_id),
            caller=Peer(self._spec.node_id, self._spec.incarnation),
            secret=self._disk.link_secret,
            cluster_id=self._disk.cluster_id,
            ports=self._ports,
            image=self._image,
            controller=self._session.controller,
            limits=limits,
            stages=stages,
            check_certificates=self._certificates.check,
            loggers=self._loggers,
        )

    def _port(self, listener: NamedListener, ray_token: str | None) -> Port:
        oauth = self._listeners.oauth_of(listener)
        if listener.protocol.has_tls:
            port = self._certificates.port_of(listener)
        else:
            port = Port(listener.name, listener.bind, has_sasl=listener.protocol.has_sasl)
        if oauth is not None:
            port.tokens = BearerTokens(oauth, ray_token=ray_token)
        port.logins = self._plain_users.logins(self._listeners, listener)
        return port

    @property
    def image(self) -> MetadataImage | None:
        """The copy that clients are answered from; None before the first whole one."""
        return self._copy.image

    async def joined(self) -> None:
        """Wait until the active controller knows this process."""
        await self._session.joined()

    async def ended(self) -> str:
        """Wait until this server is over of its own; the reason."""
        return await self._over

    async def stop(self, reason: str = "stopped") -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._listener_watch is not None:
            await self._listener_watch.stop()
        await self._disks.stop()
        await self._session.stop()
        await self._close_router(grace_s=1.0, ends_moved=reason == OTHER_LISTENERS)
        await self._server.stop()
        if self._lock is not None:
            self._lock.release()
        if not self._over.done():
            self._over.set_result(reason)

    async def crash(self) -> None:
        """End as a SIGKILL would, for clusters in one process."""
        if self._listener_watch is not None:
            await self._listener_watch.stop()
        await self._disks.stop()
        await self._session.stop()
        await self._close_router(grace_s=0)
        await self._server.stop(grace_s=0)
        if self._lock is not None:
            self._lock.release()

    async def _close_router(self, *, grace_s: float, ends_moved: bool = False) -> None:
        self._lender.stop()
        await self.metrics.stop()
        await self._loggers.stop()
        self._own_controller.close()
        await self._certificates.stop()
        await self._plain_users.stop()
        for tokens in self._tokens:
            await tokens.stop()
        if self._answering is not None:
            self._answering.cancel()
        if self.router is not None:
            await self.router.stop(grace_s=grace_s, ends_moved=ends_moved)

    def _begin_anew(self) -> None:
        logger.info("%s: another process takes this one's place", OTHER_LISTENERS)
        self._exiting = asyncio.get_running_loop().create_task(self.stop(OTHER_LISTENERS))

    def _image(self) -> MetadataImage:
        assert self._copy.image is not None, "the outside listener answers from the first image on"
        return self._copy.image

    def _fold(self, frame: ImageChanged) -> None:
        if not self._copy.fold(frame):
            return
        self.metrics.follow()
        self._loggers.follow()
        if self.router is not None:
            self.router.image_changed()
        self._lender.follow()
        if self.router is None:
            return
        certificates = certificate_configs(self._image().broker_configs.get(broker_of(self._spec.node_id), {}))
        if self._answering is None:
            self._answering = asyncio.get_running_loop().create_task(self._answer(self.router, certificates))
        else:
            self._certificates.set(certificates)

    async def _answer(self, router: Router, certificates: Mapping[str, str]) -> None:
        """Begin, with the certificates that were set while an earlier process of this broker ran."""
        try:
            await self._certificates.follow(certificates)
            await router.start()
        except OSError as error:
            logger.error("Kafka clients cannot be served: %s", error)
            reason = f"cannot listen for Kafka clients: {error}"
            self._exiting = asyncio.get_running_loop().create_task(self.stop(reason))

    async def _await_notice(self, node_is_leaving: Callable[[], bool]) -> None:
        """Ask until the answer is yes: there is no way back from it but a new process."""
        while not self._is_leaving:
            try:
                self._is_leaving = await asyncio.to_thread(node_is_leaving)
            except Exception as error:  # whatever Ray raises while its head comes and goes
                logger.debug("cannot ask whether this node is about to go: %s", error)
            await asyncio.sleep(0 if self._is_leaving else NOTICE_POLL_S)
        logger.info("this node is about to be taken away: its leaders move")
        self._session.send(NodeLeaving())

    def _session_changed(self, connected: bool) -> None:
        if connected and self._is_leaving:
            self._session.send(NodeLeaving())

    def _hello(self) -> Hello:
        return Hello(
            self._identity,
            self._endpoint,
            boot_id(),
            rack=self._disk.rack,
            pid=os.getpid(),
            failed_disks=self._disks.failed,
            listener=self.advertised,
            listeners=self._advertised,
        )

    def _controller_said(self, frame: FromController) -> None:
        if isinstance(frame, BrokerDisks):
            self._disks.assign(frame.disks)
        elif isinstance(frame, ImageChanged):
            self._fold(frame)
        elif isinstance(frame, Exit):
            logger.info("told to exit: %s", frame.reason)
            self._exiting = asyncio.get_running_loop().create_task(self.stop(frame.reason))
