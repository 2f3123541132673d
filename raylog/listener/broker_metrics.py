"""The metrics of one broker: its processes' own, and what only the Broker can say of them together.

At each scrape the Broker asks the processes of its node (CollectMetrics), and its node's controller
if it has one (``own_controller``), and joins the answers with its own (``raylog.metrics.joined``).
Lag needs the ends of partitions that other brokers lead: the Broker asks their leaders by
ListOffsets. A process that does not answer within ``TIMEOUT_MS`` is counted as silent.

``follow`` opens, moves and closes the endpoint as ``metrics.listener`` says, and has the pushes
(``metrics_pushes``) go by their configs. All who read share one collection, because a second one
under way would be joined out of order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from raylog.client.links.requests import list_offsets
from raylog.configs import broker_configs
from raylog.configs.metrics_configs import METRICS_LISTENER, METRICS_SERIES, SERIES_MAX, metrics_endpoint
from raylog.errors import ConfigError
from raylog.listener.metrics_pushes import MetricsPush, PushTarget
from raylog.listener.own_controller import OwnController
from raylog.listener.owners import Owner, Owners
from raylog.listener.routes import Routes
from raylog.metadata.image import MetadataImage
from raylog.metrics import table
from raylog.metrics.endpoint import PATH, MetricsEndpoint
from raylog.metrics.joined import JoinedMetrics, Process
from raylog.metrics.lag_seconds import EndTimes
from raylog.metrics.registry import Registry, Samples
from raylog.types import Endpoint, TopicPartition
from raylog.wire.handshake import Peer
from raylog.wire.internal_tls import Secret
from raylog.wire.private_watching import CollectMetrics, MetricsCollected

logger = logging.getLogger("raylog.metrics")

TIMEOUT_MS: Final = 5_000
LATEST: Final = -1
NO_EPOCH: Final = -1


class BrokerMetrics:
    """``registry`` is the Broker's own process's; ``controller`` is its broker's. ``of_clients`` adds
    what clients have pushed, so many series of a metric. ``pushes``: where the metrics go without
    being asked for.
    """

    def __init__(
        self,
        broker_id: int,
        caller: Peer,
        registry: Registry,
        *,
        secret: Secret,
        cluster_id: str,
        image: Callable[[], MetadataImage],
        controller: OwnController,
        of_clients: Callable[[Samples, int], None] | None = None,
        pushes: Sequence[PushTarget] = (),
    ) -> None:
        self._own: Process = (caller.node_id, caller.incarnation)
        self._registry = registry
        self._of_clients = of_clients
        self._routes = Routes(broker_id, image)
        self._owners = Owners(secret=secret, cluster_id=cluster_id, caller=caller)
        self._controller = controller
        self._joined = JoinedMetrics()
        self._end_times = EndTimes()
        self._wanted = ""  # the config that was followed last
        self._endpoint: MetricsEndpoint | None = None
        self._following: asyncio.Task[None] | None = None
        self._collecting: asyncio.Task[Samples] | None = None
        self._pushes = [MetricsPush(target, self.collect) for target in pushes]
        self._is_over = False

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it answers; None: nowhere."""
        return self._endpoint.endpoint if self._endpoint is not None else None

    def follow(self) -> None:
        """Go by what the configs say now."""
        if self._is_over:
            return
        if self._collecting is not None and not self._collecting.done():  # else nobody is asked
            self._owners.keep(set(self._processes_of_cluster()))
        for push in self._pushes:
            push.follow(self._routes.image.broker_configs, self._routes.broker_id)
        found = broker_configs.found(self._routes.image.broker_configs, self._routes.broker_id, METRICS_LISTENER)
        wanted = found[0] if found is not None else ""
        if wanted != self._wanted:
            self._wanted = wanted
            before = self._following
            self._following = asyncio.get_running_loop().create_task(self._move(wanted, before))

    async def _move(self, wanted: str, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        former, self._endpoint = self._endpoint, None
        if former is not None:
            await former.stop()
            if not any(push.is_on for push in self._pushes):
                self._owners.close()
        try:
            at = metrics_endpoint(wanted)
            if at is None:
                return
            endpoint = MetricsEndpoint(self.collect)
            bound = await endpoint.start(at)
        except (ConfigError, OSError) as error:
            logger.error("the metrics cannot be had at %s: %s", wanted, error)
            return
        self._endpoint = endpoint
        logger.info("the metrics of this broker are at http://%s%s", bound, PATH)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*(push.stop() for push in self._pushes))
        if self._following is not None:
            await asyncio.wait({self._following})
        if self._endpoint is not None:
            await self._endpoint.stop()
            self._endpoint = None
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait({self._collecting})
        self._owners.close()

    # ------------------------------------------------------------------ collecting

    async def collect(self) -> Samples:
        """What the broker's processes count now. Nobody changes the samples, which others get, too."""
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())
        return await asyncio.shield(self._collecting)

    async def _collect(self) -> Samples:
        self._owners.keep(set(self._processes_of_cluster()))
        owners, order = self._routes.replica_processes(), CollectMetrics(self._series_max)
        asked = [self._ask(owner, order) for owner in owners]
        controller, *replies = await asyncio.gather(self._controller.ask(order, timeout_ms=TIMEOUT_MS), *asked)
        told: dict[Process, Samples] = {self._own: self._registry.collect()}
        living = {self._own}
        silent = 0
        for owner, reply in zip(owners, replies, strict=True):
            process = (owner.node_id, owner.incarnation)
            living.add(process)
            if isinstance(reply, MetricsCollected):
                told[process] = Samples.of_plain(reply.samples)
            else:
                silent += 1
        if controller is not None:
            process, collected = controller
            living.add(process)
            told[process] = Samples.of_plain(collected.samples)
        else:
            silent += self._controller.should_answer
        told[self._own].add(table.SILENT_PROCESSES, silent)
        told[self._own].add(table.ACTIVE_CONTROLLERS, 0)
        if self._of_clients is not None:
            self._of_clients(told[self._own], order.series_max)
        image = self._routes.image
        joined = self._joined.join(
            told,
            living=living,
            series_max=order.series_max,
            has_topic=lambda name: image.topic_named(name) is not None,
        )
        joined.pushed = told[self._own].pushed
        await self._add_lags(joined)
        return joined

    @property
    def _series_max(self) -> int:
        configs, broker_id = self._routes.image.broker_configs, self._routes.broker_id
        return broker_configs.number(configs, broker_id, METRICS_SERIES, default=SERIES_MAX)

    async def _add_lags(self, samples: Samples) -> None:
        """For the groups whose committed offsets are among the samples."""
        committed = samples.of(table.CURRENT_OFFSET)
        places = {TopicPartition(topic, int(partition)) for _, topic, partition in committed}
        ends = await self._ends(places)
        now_s = asyncio.get_running_loop().time()
        self._end_times.keep(places)
        for place, end in ends.items():
            self._end_times.note(place, end, now_s)
        for labels, offset in committed.items():
            place = TopicPartition(labels[1], int(labels[2]))
            if place in ends:
                samples.add(table.LAG, max(0, ends[place] - offset), *labels)
                samples.add(table.LAG_SECONDS, self._end_times.lag_s(place, int(offset), now_s), *labels)

    async def _ends(self, places: set[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where each partition ends for consumers; without those that nobody leads now."""
        by_owner: dict[Owner, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
        for place in sorted(places):
            owner = self._routes.leading_process(place.topic, place.partition)
            if owner is not None:
                by_owner[owner][place] = (LATEST, NO_EPOCH)
        replies = await asyncio.gather(*(self._ask(owner, list_offsets(asked)) for owner, asked in by_owner.items()))
        return {
            TopicPartition(topic.name, part.partition_index): part.offset
            for reply in replies
            if reply is not None
            for topic in reply.topics
            for part in topic.partitions
            if part.offset >= 0
        }

    async def _ask(self, owner: Owner, entity: Any) -> Any | None:
        """A process's reply; None if it has none in time."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def heard(reply: Any, error: Exception | None) -> None:
            if error is not None:
                logger.debug("node %d does not answer: %s", owner.node_id, error)
            if not answered.done():
                answered.set_result(reply)

        self._owners.call(owner, entity, heard, timeout_ms=TIMEOUT_MS)
        return await answered

    def _processes_of_cluster(self) -> list[Owner]:
        actors = self._routes.image.actors.items()
        return [Owner(node, actor.incarnation, actor.endpoint) for node, actor in actors if actor.alive]
