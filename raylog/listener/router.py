"""The listeners of a Broker, and how each Kafka API is answered there.

What a Broker does with an API follows from its owner (``raylog.kafka.table``). Metadata,
DescribeCluster and FindCoordinator are answered from its copy of the image (``cluster_view``,
``coordinator_search``). Requests for partition leaders are split among them
(``fan_out``). Fetch has a module of its own (``fetch``), and DescribeLogDirs goes to all processes
of this broker (``log_directories``). The APIs of groups and of transactions go to the processes
that coordinate them (``coordinators``), the controller's to the active one (``controller_link``).
The levels of the broker's loggers are asked of the Broker (``broker_loggers``).
InitProducerId is the controller's without a transactional id, and the coordinator's with one.
Clients push their metrics to the Broker itself (``telemetry``).
Metadata may create topics (``topic_creation``), and FindCoordinator creates the coordinators'.

An API or version that is not in the table ends the connection with a line in the log, as in Kafka;
ApiVersions of an unknown version is answered in version 0 with the ranges, so that a newer client
can step down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial as bound
from typing import Any

from raylog.clock import MachineClock
from raylog.configs import broker_configs, token_configs
from raylog.configs.topic_configs import INT_MAX
from raylog.kafka import table
from raylog.kafka.chain import Refuse, Stage
from raylog.kafka.spec import ApiSpec, ServerKind
from raylog.listener import (
    certificate_changes,
    cluster_view,
    config_refusals,
    log_directories,
    markers,
    tokens,
)
from raylog.listener.access import partial
from raylog.listener.access.guard import Guard
from raylog.listener.arrivals import Arrivals
from raylog.listener.broker_loggers import BrokerLoggers
from raylog.listener.controller_link import TIMEOUT_MS, ControllerLink
from raylog.listener.coordinator_search import CoordinatorSearch
from raylog.listener.coordinator_stand_ins import CoordinatorStandIns
from raylog.listener.coordinators import GROUPS, TRANSACTIONS, CoordinatedTopic, Coordinators
from raylog.listener.fan_out import FanOut
from raylog.listener.fetch import Fetches
from raylog.listener.fetch_sessions import SLOTS, FetchSessions
from raylog.listener.lately_gone import LatelyGone
from raylog.listener.moves import ConnectionMoves
from raylog.listener.owners import Owner, Owners
from raylog.listener.quotas import Quotas
from raylog.listener.response_budget import ResponseBudget
from raylog.listener.routes import Routes
from raylog.listener.telemetry import Telemetry
from raylog.listener.topic_creation import TopicCreator
from raylog.metadata.configuration.effective_configs import quota_windows
from raylog.metadata.image import MetadataImage
from raylog.security.sasl import OAUTHBEARER
from raylog.server.request_logs import RequestLogs
from raylog.types import Endpoint
from raylog.wire import oauth_config, sasl
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret, secret_bytes
from raylog.wire.limits import LISTENER_LIMITS, NEVER, Limits, bytes_limit, idle_limit
from raylog.wire.ports import Port
from raylog.wire.request import Handler, Request
from raylog.wire.sasl import FAILURE_DELAY_MS, SaslAuthenticator
from raylog.wire.server import Server

logger = logging.getLogger("raylog.broker")


class Router:
    """The listeners of one Broker. ``bind`` takes the ports, ``start`` begins to answer, once there
    is an image.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        caller: Peer,
        secret: Secret,
        cluster_id: str,
        ports: Sequence[Port],
        image: Callable[[], MetadataImage],
        controller: Callable[[], tuple[int, Endpoint] | None],
        limits: Limits | None = None,
        controller_timeout_ms: int = TIMEOUT_MS,
        stages: Sequence[Stage] = (),
        clock: MachineClock | None = None,
        check_certificates: certificate_changes.Check = certificate_changes.check_none,
        loggers: BrokerLoggers | None = None,
    ) -> None:
        """``ports``: where to listen. ``controller`` returns the active controller's broker and
        address. ``stages`` run before every handler. ``clock``: the machine's if none is given.
        ``check_certificates`` says whether the ports can go by such configs. ``loggers``: the broker's;
        None: they are not to be had.
        """
        clock = clock or MachineClock()
        self._controller = controller
        self._limits = limits or LISTENER_LIMITS  # the default limits
        self._routes = Routes(broker_id, image)
        self._gone = LatelyGone(self._routes, clock.monotonic_ms)
        self._owners = Owners(secret=secret, cluster_id=cluster_id, caller=caller)
        self.quotas = Quotas(image, clock.monotonic_ms)
        self._moves = ConnectionMoves(self._owners, self.quotas)
        self._guard = Guard(image)
        self._link = ControllerLink(
            self._controller_endpoint,
            secret=secret,
            cluster_id=cluster_id,
            caller=caller,
            timeout_ms=controller_timeout_ms,
        )
        self.sessions = FetchSessions(lambda: clock.chance.getrandbits(31))
        self.telemetry = Telemetry(broker_id, image, clock.monotonic_ms, clock.chance.getrandbits)
        self._request_logs = RequestLogs(clock.chance.getrandbits)
        self._check_certificates, self._loggers = check_certificates, loggers
        self._arrivals = Arrivals()
        self._creation = TopicCreator(self._routes, self._link, self._arrivals)
        self._sasl = SaslAuthenticator(lambda: self._routes.image.credentials, key=secret_bytes(secret))
        for port in ports:
            if port.has_sasl:
                port.connection = bound(self._sasl.connection, tokens=port.tokens, logins=port.logins)
        budget = ResponseBudget(lambda: self.server)
        fetches = Fetches(
            self._routes, self._owners, self.sessions, clock.monotonic_ms, budget, self._arrivals, self._moves.routed
        )
        fetches.readable, fetches.quota_of = self._guard.readable, self.quotas.of_fetch
        self._stand_ins = CoordinatorStandIns(self._routes, clock.monotonic_ms)
        self._groups, self._transactions = self._coordinators(GROUPS), self._coordinators(TRANSACTIONS, self._stand_ins)
        self.server = self._server(fetches, ports, cluster_id, stages)
        self.server.on_read = budget.answers_read
        self._guard.protect(self.server)
        self._moves.server = self.server
        self._moves.is_judged = self._guard.judges

    def _server(self, fetches: Fetches, ports: Sequence[Port], cluster_id: str, stages: Sequence[Stage]) -> Server:
        apis = table.serving(ServerKind.BROKER, self._handlers(fetches))
        return Server(
            {**apis.handlers, **self._transactions.shared_handlers()},
            cluster_id=cluster_id,
            ports=ports,
            ordered=True,
            borrows_records=True,
            undecoded=apis.undecoded,
            ignores_trailing_bytes=True,
            versions=apis.versions,
            claimed_versions=apis.claimed_versions,
            limits=self._limits,
            stages=stages,
            refusals={
                table.FETCH.key: fetches.refuse,
                table.METADATA.key: self._refuse_metadata,
                table.ALTER_REPLICA_LOG_DIRS.key: log_directories.refuse,
            },
        )

    def _handlers(self, fetches: Fetches) -> dict[ApiSpec, Handler]:
        groups, transactions = self._groups, self._transactions
        return {
            table.SASL_HANDSHAKE: sasl.handshake,
            table.SASL_AUTHENTICATE: sasl.authenticate,
            table.METADATA: self._metadata,
            table.DESCRIBE_CLUSTER: self._describe_cluster,
            table.DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
            table.LIST_CONFIG_RESOURCES: self._list_config_resources,
            table.FETCH: fetches.handle,
            table.ALTER_REPLICA_LOG_DIRS: log_directories.alterer(self._routes, self._link),
            table.DESCRIBE_LOG_DIRS: log_directories.handler(self._routes, self._owners),
            **{spec: self._scattered(spec) for spec in table.OF_LEADERS},
            table.WRITE_TXN_MARKERS: markers.handler(self._routes, self._owners),
            **{spec: self._link.forward(spec) for spec in table.OF_CONTROLLER},
            **self._of_configs(),
            **tokens.handlers(self._link, self._guard.access),
            **self.telemetry.handlers(),
            **groups.handlers(),
            **transactions.handlers(),
            table.FIND_COORDINATOR: CoordinatorSearch(
                self._routes, self._creation, self._arrivals, self._stand_ins
            ).find,
            table.INIT_PRODUCER_ID: self._init_producer_id(transactions),
        }

    def _of_configs(self) -> dict[ApiSpec, Handler]:
        handlers = {
            table.DESCRIBE_CONFIGS: self._link.forward(table.DESCRIBE_CONFIGS),
            **config_refusals.handlers(self.alterations()),
        }
        return handlers if self._loggers is None else self._loggers.handlers(handlers)

    def alterations(self) -> dict[ApiSpec, Handler]:
        """Of the APIs that change configs: this broker checks its own certificates, and passes on."""
        return certificate_changes.handlers(self._link, self._routes, self._check_certificates)

    def _coordinators(self, topic: CoordinatedTopic, stand_ins: CoordinatorStandIns | None = None) -> Coordinators:
        return Coordinators(topic, self._routes, self._owners, self._arrivals, self._moves.coordinated, stand_ins)

    def _scattered(self, spec: ApiSpec) -> Handler:
        return FanOut(spec, self._routes, self._owners, self._arrivals, self._moves.routed).handle

    def _init_producer_id(self, transactions: Coordinators) -> Handler:
        idempotent = self._link.forward(table.INIT_PRODUCER_ID)
        transactional = transactions.handler(table.INIT_PRODUCER_ID)

        def handle(request: Request) -> Any:
            return (idempotent if request.body.transactional_id is None else transactional)(request)

        return handle

    def bind(self) -> None:
        """Bind the ports. Clients that connect wait until ``start``. Raises ClusterError if no port
        is free.
        """
        self.server.bind()

    async def start(self) -> None:
        """Start answering requests."""
        await self.server.start()

    def image_changed(self) -> None:
        """Follow a change of the image: stop waiting for processes that are gone, and apply the
        current limits.
        """
        self._take_limits()
        self._gone.follow()
        self._stand_ins.follow()
        self.telemetry.follow()
        if self._guard.follow() | self._follow_quotas():
            self._moves.revoke()
        self._moves.are_held = self._guard.logs_permissions
        living = {
            Owner(node, actor.incarnation, actor.endpoint)
            for node, actor in self._routes.image.actors.items()
            if actor.alive
        }
        self._owners.keep(living)
        self._moves.keep(living)
        self._arrivals.image_changed()

    def _follow_quotas(self) -> bool:
        windows, window_ms = quota_windows(self._routes.image, self._routes.broker_id)
        return self.quotas.follow(self.server, windows=windows, window_ms=window_ms)

    def _take_limits(self) -> None:
        def value(name: str, default: int) -> int:
            return broker_configs.number(
                self._routes.image.broker_configs, self._routes.broker_id, name, default=default
            )

        limits = replace(
            self._limits,
            connections_max=value("max.connections", self._limits.connections_max or INT_MAX),
            connections_of_host_max=value("max.connections.per.ip", self._limits.connections_of_host_max or INT_MAX),
            server_bytes_max=bytes_limit(value("queued.max.request.bytes", self._limits.server_bytes_max)),
            idle_timeout_ms=idle_limit(value("connections.max.idle.ms", self._limits.idle_timeout_ms or NEVER)),
            request_bytes_max=value("socket.request.max.bytes", self._limits.request_bytes_max),
        )
        if limits != self.server.limits:
            self.server.limits = limits
        self._request_logs.follow(self.server, self._routes.image.broker_configs, self._routes.broker_id)
        self.sessions.slots = value("max.incremental.fetch.session.cache.slots", SLOTS)
        self._take_sasl(value)

    def _take_sasl(self, value: Callable[..., int]) -> None:
        authenticator = self._sasl
        configs, broker_id = self._routes.image.broker_configs, self._routes.broker_id
        before, authenticator.mechanisms = (
            authenticator.mechanisms,
            broker_configs.listed(configs, broker_id, broker_configs.SASL_MECHANISMS),
        )
        if OAUTHBEARER in authenticator.mechanisms and OAUTHBEARER not in before:
            self._warn_of_no_tokens()
        authenticator.reauth_ms = value(broker_configs.SASL_REAUTH, 0)
        authenticator.failure_delay_ms = value(broker_configs.SASL_FAILURE_DELAY, FAILURE_DELAY_MS)
        authenticator.tokens.follow(token_configs.secret_key(configs), self._routes.image.tokens)
        authenticator.credentials_changed()

    def _warn_of_no_tokens(self) -> None:
        for port in self.server.ports:
            if port.has_sasl and (port.tokens is None or not port.tokens.takes_any):
                logger.warning(
                    "listener %s does not offer %s: %s is not set, and there is no Ray token that it takes",
                    port.listener,
                    OAUTHBEARER,
                    oauth_config.URL,
                )

    async def stop(self, *, grace_s: float = 1.0, ends_moved: bool = False) -> None:
        """Close the listener and everything behind it. ``ends_moved``: connections that have moved
        to hosts end, too, with their next request.
        """
        self._arrivals.close()
        await self.server.stop(grace_s=grace_s)
        if ends_moved:
            self._moves.revoke()
        self._moves.close()
        self._owners.close()
        self._link.close()

    # ------------------------------------------------------------------ from the image

    def _controller_endpoint(self) -> Endpoint | None:
        found = self._controller()
        return found[1] if found is not None else None

    def _controller_broker(self, listener: str) -> int:
        """Return the broker to show as the controller. Any would do, because all of them forward."""
        found = self._controller()
        broker = self._routes.listener(found[0]) if found is not None else None
        if broker is not None and broker.at(listener) is not None:
            return broker.broker_id
        return self._routes.broker_id

    def _metadata(self, request: Request) -> Any:
        self._judge_metadata(request)
        missing = self._creation.wanted(request.body, request.version)
        if missing:
            return self._create_first(request, missing)
        request.reply(self._metadata_entity(request, {}))
        return None

    def _judge_metadata(self, request: Request) -> None:
        access = self._guard.access(request)
        if access is not None:
            partial.metadata(access, request, self._creation.wanted)

    async def _create_first(self, request: Request, missing: list[str]) -> Any:
        return self._metadata_entity(request, await self._creation.create(missing, request.context))

    def _metadata_entity(self, request: Request, refused: dict[str, int]) -> Any:
        listener = request.context.listener
        return cluster_view.metadata(
            self._routes,
            request.body,
            request.version,
            listener=listener,
            controller=self._controller_broker(listener),
            refused=refused,
            gone=self._gone.listeners(),
        )

    def _refuse_metadata(self, request: Request, refuse: Refuse) -> None:
        """Put the error at every topic. Brokers are still listed: a client without any could not
        ask again.
        """
        self._judge_metadata(request)
        entity = self._metadata_entity(request, {})
        topics = tuple(replace(each, error_code=refuse.code, partitions=()) for each in entity.topics)
        request.reply(replace(entity, topics=topics))

    def _describe_cluster(self, request: Request) -> None:
        listener = request.context.listener
        controller = self._controller_broker(listener)
        request.reply(
            cluster_view.describe_cluster(
                self._routes, request.body, request.version, listener=listener, controller=controller
            )
        )

    def _describe_topic_partitions(self, request: Request) -> None:
        access = self._guard.access(request)
        answer = partial.describe_topic_partitions(access, request) if access is not None else None
        if answer is None:
            may, listener = partial.describable(access), request.context.listener
            answer = cluster_view.describe_topic_partitions(
                self._routes, request.body, request.version, may, listener=listener
            )
        request.reply(answer)

    def _list_config_resources(self, request: Request) -> None:
        request.reply(cluster_view.list_config_resources(self._routes, request.body, request.version))
