"""The loggers of a broker as something with configs (Kafka's BROKER_LOGGER, KIP-412): each logger of
its processes is a config, and the value is its level.

A broker's loggers are asked of that broker alone: DescribeConfigs and IncrementalAlterConfigs are
answered here for them, and the other resources of the same request go on to whoever answers those.
Loggers are those that any process of the broker has: the Broker, the processes that hold its
replicas, and its controller (``own_controller``), active or standby. A level that is set reaches all
of them before it is answered. Processes that begin later are told: those that hold replicas when the
image names them, and a controller when its predecessor's connection has ended.

The levels are kept nowhere, and end with this Broker's process: the next one tells the processes that
it finds that nothing is set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from raylog.configs.topic_configs import ConfigValueType
from raylog.errors import ConfigError, RaylogError, code_of, kafka_error
from raylog.kafka import table
from raylog.kafka.refusal import refusal, refused_item
from raylog.kafka.spec import ApiSpec
from raylog.listener.own_controller import OwnController
from raylog.listener.owners import Owner, Owners
from raylog.listener.routes import Routes
from raylog.metadata.configuration.config_requests import ConfigOperation, ResourceType
from raylog.metadata.image import MetadataImage
from raylog.refusals import InvalidRequest
from raylog.server.apis.api import answer
from raylog.server.apis.entities import NO_DELAY, build
from raylog.server.logger_levels import LEVELS, OF_PROCESS, ROOT, LoggerLevels, least
from raylog.types import CONTROLLER_SLOT, node_id
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.private_watching import LoggerLevelsSet, SetLoggerLevels
from raylog.wire.request import Handler, Request

logger = logging.getLogger("raylog.broker")

TIMEOUT_MS: Final = 5_000
RETRY_S: Final = 1.0
SOURCE: Final = 6  # Kafka's ConfigSource DYNAMIC_BROKER_LOGGER_CONFIG
SPECS: Final = (table.DESCRIBE_CONFIGS, table.ALTER_CONFIGS, table.INCREMENTAL_ALTER_CONFIGS)


class BrokerLoggers:
    """``controller`` is this broker's. ``own``: the levels of this process.

    Invariant: while a process is behind, something is under way that tells it.
    """

    def __init__(
        self,
        broker_id: int,
        caller: Peer,
        *,
        secret: Secret,
        cluster_id: str,
        image: Callable[[], MetadataImage],
        controller: OwnController,
        own: LoggerLevels = OF_PROCESS,
    ) -> None:
        self._broker_id = broker_id
        self._routes = Routes(broker_id, image)
        self._controller = controller
        self._own = own
        self._owners = Owners(secret=secret, cluster_id=cluster_id, caller=caller)
        self._levels: dict[str, str] = {}
        self._was_set = False
        self._known: set[Owner] | None = None  # the hosts that were there; None: before the first image
        self._behind: set[Owner] = set()
        self._was_planned = False  # the controller
        self._controller_is_behind = False
        self._one_at_a_time = asyncio.Lock()
        self._catching_up: asyncio.Task[None] | None = None
        self._is_over = False

    # ------------------------------------------------------------------ the processes

    def follow(self) -> None:
        """The image has changed: tell the processes that are new. At first all are, as an earlier
        Broker may have set levels.
        """
        if self._is_over:
            return
        living, is_planned = set(self._routes.replica_processes()), self._controller.is_planned
        if self._known is None:
            self._behind |= living
            self._controller_is_behind = True
        elif self._was_set:
            self._behind |= living - self._known
            self._controller_is_behind |= is_planned and not self._was_planned
        self._behind &= living
        self._known, self._was_planned = living, is_planned
        self._owners.keep(living)
        self._catch_up()

    def controller_ended(self) -> None:
        """The broker's controller, or the connection to it, is over: tell the one that comes next."""
        if self._was_set and not self._is_over:
            self._controller_is_behind = True
            self._catch_up()

    @property
    def _some_are_behind(self) -> bool:
        return bool(self._behind) or self._controller_is_behind

    def _catch_up(self) -> None:
        if self._some_are_behind and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.get_running_loop().create_task(self._tell_until_all_know())

    async def _tell_until_all_know(self) -> None:
        while True:
            async with self._one_at_a_time:
                await self._tell_those_behind()
            if not self._some_are_behind:
                return
            await asyncio.sleep(RETRY_S)

    async def _tell_those_behind(self) -> None:
        """With the lock held, so the levels stay as they are."""
        asked, asks_controller = sorted(self._behind), self._controller_is_behind
        self._controller_is_behind = False  # if it ends while it is asked, its successor is behind
        told, controller_told = await self._ask_all(asked, self._levels, asks_controller=asks_controller)
        for process, levels in zip(asked, told, strict=True):
            if levels is not None:
                self._behind.discard(process)
        if asks_controller and controller_told is None:
            self._controller_is_behind |= self._controller.should_answer

    async def _ask_all(
        self, hosts: list[Owner], levels: dict[str, str] | None, *, asks_controller: bool
    ) -> tuple[list[dict[str, str] | None], dict[str, str] | None]:
        """What they go by then; None of those that do not answer, and of a controller that is not
        asked.
        """
        order = SetLoggerLevels(self._broker_id, levels)
        of_controller = self._ask_controller(order) if asks_controller else nothing()
        controller, *replies = await asyncio.gather(of_controller, *(self._ask(each, order) for each in hosts))
        told = [reply.levels if isinstance(reply, LoggerLevelsSet) else None for reply in (controller, *replies)]
        return told[1:], told[0]

    async def _ask_controller(self, order: SetLoggerLevels) -> Any | None:
        found = await self._controller.ask(order, timeout_ms=TIMEOUT_MS)
        return found[1] if found is not None else None

    async def _ask(self, process: Owner, order: SetLoggerLevels) -> Any | None:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def heard(reply: Any, error: Exception | None) -> None:
            if error is not None:
                logger.debug("node %d does not say its loggers' levels: %s", process.node_id, error)
            if not answered.done():
                answered.set_result(reply)

        self._owners.call(process, order, heard, timeout_ms=TIMEOUT_MS)
        return await answered

    async def stop(self) -> None:
        self._is_over = True
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.wait({self._catching_up})
        self._own.set(self._broker_id, {})
        self._owners.close()

    # ------------------------------------------------------------------ levels

    async def levels(self) -> dict[str, str]:
        """By logger. Where processes differ, the level of the one that says most. Processes that do not
        answer are left out.
        """
        has_begun = self._known is not None
        living = self._routes.replica_processes() if has_begun else []
        found = self._own.effective()
        told_by_hosts, told_by_controller = await self._ask_all(living, None, asks_controller=has_begun)
        for told in (*told_by_hosts, told_by_controller):
            for name, level in (told or {}).items():
                found[name] = least(level, found.get(name, level))
        return dict(sorted((found | self._levels).items()))

    async def alter(self, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        """Set these levels, and take away those that are None. Raises ConfigError for a logger that no
        process has and for what is no level, and nothing changes then. Raises REQUEST_TIMED_OUT if a
        process has not answered, which is told when it does.
        """
        async with self._one_at_a_time:
            own = self._own.effective()
            check(changes, own if changes.keys() <= own.keys() else await self.levels())
            if validate_only:
                return
            self._was_set = True
            for name, level in changes.items():
                if level is None:
                    self._levels.pop(name, None)
                else:
                    self._levels[name] = level
            self._own.set(self._broker_id, self._levels)
            self._behind |= self._known or set()
            self._controller_is_behind |= self._known is not None
            await self._tell_those_behind()
        self._catch_up()
        if self._some_are_behind:
            behind = {each.node_id for each in self._behind}
            if self._controller_is_behind:
                behind.add(node_id(self._broker_id, CONTROLLER_SLOT))
            nodes = ", ".join(map(str, sorted(behind)))
            raise kafka_error(ErrorCode.request_timed_out)(
                f"processes that have not answered get the levels when they do: {nodes}"
            )

    # ------------------------------------------------------------------ requests

    def handlers(self, others: Mapping[ApiSpec, Handler]) -> dict[ApiSpec, Handler]:
        """Of the APIs of configs. ``others`` answer for what is no logger."""
        return {spec: self._handler(spec, others[spec]) for spec in SPECS}

    def inside_handlers(self, others: Mapping[ApiSpec, Handler]) -> dict[int, Handler]:
        """Of the inside server, for tools of the node. ``others`` answer for this broker's other
        configs; what they do not is the controller's.
        """

        def refuse(spec: ApiSpec) -> Handler:
            def handle(request: Request) -> None:
                why = "ask the active controller for all configs but those of this broker's loggers and certificates"
                request.reply(refusal(spec, request.version, request.body, ErrorCode.invalid_request, why))

            return handle

        def of_own(spec: ApiSpec) -> Handler:
            refused, answered = refuse(spec), others.get(spec)

            def handle(request: Request) -> Awaitable[Any] | None:
                is_own = all(is_of_broker(each, self._broker_id) for each in request.body.resources)
                return answered(request) if is_own and answered is not None else refused(request)

            return handle

        return {each.key: handler for each, handler in self.handlers({spec: of_own(spec) for spec in SPECS}).items()}

    def _handler(self, spec: ApiSpec, other: Handler) -> Handler:
        async def split(request: Request) -> Any:
            asked = request.body.resources
            told = {n: await self._told(spec, request, each) for n, each in enumerate(asked) if is_of_loggers(each)}
            items = replied(spec)
            if len(told) == len(asked):
                return answer(spec, request.version)[0](throttle_time=NO_DELAY, **{items: tuple(told.values())})
            rest = tuple(each for n, each in enumerate(asked) if n not in told)
            request.replace_body(replace(request.body, resources=rest))

            def amend(reply: Any) -> Any:
                passed_on = iter(getattr(reply, items))
                whole = tuple(told[n] if n in told else next(passed_on) for n in range(len(asked)))
                return replace(reply, **{items: whole})

            request.amend_reply(amend)
            going_on = other(request)
            return None if going_on is None else await going_on

        def handle(request: Request) -> Awaitable[Any] | None:
            return split(request) if any(map(is_of_loggers, request.body.resources)) else other(request)

        return handle

    async def _told(self, spec: ApiSpec, request: Request, resource: Any) -> Any:
        """The answer's item for one resource."""
        module = answer(spec, request.version)[1]
        is_description = spec is table.DESCRIBE_CONFIGS
        kind = module.DescribeConfigsResult if is_description else module.AlterConfigsResourceResponse
        try:
            self._check_broker(resource.resource_name)
            if is_description:
                return described(module, resource, await self.levels())
            if spec is table.ALTER_CONFIGS:
                raise InvalidRequest("AlterConfigs does not set loggers' levels: use IncrementalAlterConfigs")
            if sum(map(is_of_loggers, request.body.resources)) > 1:
                raise InvalidRequest(f"{resource.resource_name!r} is named twice in one request")
            await self.alter(changes_of(resource), validate_only=request.body.validate_only)
        except RaylogError as error:
            return refused_item(kind, resource, code_of(error), str(error))
        return refused_item(kind, resource, ErrorCode.none)

    def _check_broker(self, name: str) -> None:
        if name != str(self._broker_id):
            raise InvalidRequest(f"the loggers of broker {name!r} are asked of that broker; this is {self._broker_id}")


async def nothing() -> None:
    """What a process that is not asked says."""


def is_of_loggers(resource: Any) -> bool:
    return bool(resource.resource_type == ResourceType.BROKER_LOGGER.value)


def is_of_broker(resource: Any, broker_id: int) -> bool:
    return bool(resource.resource_type == ResourceType.BROKER.value and resource.resource_name == str(broker_id))


def replied(spec: ApiSpec) -> str:
    """Where an answer has its items."""
    return "results" if spec is table.DESCRIBE_CONFIGS else "responses"


def described(module: Any, resource: Any, levels: Mapping[str, str]) -> Any:
    """A description of the loggers that are asked for."""
    keys = resource.configuration_keys
    return module.DescribeConfigsResult(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            build(
                module.DescribeConfigsResourceResult,
                name=name,
                value=level,
                read_only=False,
                config_source=SOURCE,
                is_sensitive=False,
                synonyms=(),
                config_type=ConfigValueType.STRING.value,
                documentation=None,
            )
            for name, level in levels.items()
            if not keys or name in keys
        ),
    )


def changes_of(resource: Any) -> dict[str, str | None]:
    """The new levels; None: its own again. Raises InvalidRequest."""
    changes: dict[str, str | None] = {}
    for each in resource.configs:
        if each.name in changes:
            raise InvalidRequest(f"{each.name} is changed twice in one request")
        if each.config_operation not in (ConfigOperation.SET.value, ConfigOperation.DELETE.value):
            raise InvalidRequest(f"{each.name}: a logger's level is set or deleted, and no list")
        is_set = each.config_operation == ConfigOperation.SET.value
        changes[each.name] = (each.value or "") if is_set else None
    return changes


def check(changes: Mapping[str, str | None], loggers: Mapping[str, str]) -> None:
    """Raises ConfigError for what there is not, and InvalidRequest for root's level taken away, as in
    Kafka.
    """
    for name, level in changes.items():
        if name not in loggers:
            raise ConfigError(f"Logger {name} does not exist!")
        if level is None and name == ROOT:
            raise InvalidRequest(f"Removing the log level of the {ROOT} logger is not allowed")
        if level is not None and level not in LEVELS:
            raise ConfigError(
                f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                f"Valid log levels are {', '.join(LEVELS)}"
            )
