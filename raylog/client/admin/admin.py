"""Topics, partitions, configs and offsets, asked of the controller and, where a log has to answer, of the partitions'
leaders.

Every call returns plain values and raises typed errors; there are no futures per topic. A call on several topics
raises the first error after all have been tried. Broker ids are those that people use; node ids of server actors stay
inside.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from kio.schema.errors import ErrorCode

from raylog.client.admin import reassignment_throttles
from raylog.client.admin.actors import AsyncActorCalls
from raylog.client.admin.client_metrics import AsyncClientMetricsCalls
from raylog.client.admin.config_entries import ConfigEntry as ConfigEntry
from raylog.client.admin.config_entries import ConfigSource as ConfigSource
from raylog.client.admin.config_entries import ConfigSynonym as ConfigSynonym
from raylog.client.admin.config_entries import ConfigType as ConfigType
from raylog.client.admin.config_entries import entry_of
from raylog.client.admin.controllers import AsyncControllerCalls
from raylog.client.admin.groups import AsyncGroupCalls
from raylog.client.admin.inspection import AsyncInspectionCalls, ProducerInfo
from raylog.client.admin.transactions import AsyncTransactionInspection
from raylog.client.admin.verification import OnPartition, Verification, verify_topics
from raylog.client.config import AdminConfig
from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.client.links.leader_requests import LeaderRequests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import TopicView
from raylog.client.security.acls import AsyncAclCalls
from raylog.client.security.quotas import AsyncQuotaCalls
from raylog.client.security.tokens import AsyncTokenCalls
from raylog.client.security.users import AsyncUserCalls
from raylog.configs.certificate_configs import listener_of
from raylog.configs.properties import dotted
from raylog.errors import ClosedError, ConfigError, RaylogError, error_for
from raylog.types import TopicPartition, broker_of
from raylog.wire import private

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
OffsetSpec = Literal["earliest", "latest", "max_timestamp"] | int
ElectionKind = Literal["preferred", "unclean"]
_ELECTIONS: dict[Any, int] = {"preferred": 0, "unclean": 1}
AnyBroker = int | Literal["all"]
_SPECS: dict[Any, int] = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; −1 takes the cluster's default. ``replica_assignment`` (partition → brokers) replaces both numbers."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, Any] = field(default_factory=dict)
    replica_assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition. Leader −1: none leads it. ``leader_node`` is the id of the server actor."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    leader_node: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: uuid.UUID
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker at its listener. ``is_fenced``: it is away."""

    broker: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller: int
    brokers: tuple[BrokerInfo, ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that is moving to other brokers. ``replicas`` are all that hold it now, including
    those being added and removed.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """What draining a broker has done so far: the partitions that this call moved away from it, and
    those that it still leads.

    The partitions that remain have no other live in-sync replica. They move as soon as there is
    one.
    """

    moved: tuple[TopicPartition, ...]
    remaining: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetInfo:
    """An offset as ListOffsets returns it; timestamp −1 unless asked by time."""

    offset: int
    timestamp: int
    leader_epoch: int


class AsyncAdminClient(
    AsyncGroupCalls,
    AsyncActorCalls,
    AsyncControllerCalls,
    AsyncInspectionCalls,
    AsyncTransactionInspection,
    AsyncAclCalls,
    AsyncUserCalls,
    AsyncQuotaCalls,
    AsyncClientMetricsCalls,
    AsyncTokenCalls,
):
    """The admin client for coroutines; ``AdminClient`` is the same with blocking calls."""

    def __init__(self, address: ClusterAddress, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._address = address
        self._options = {**(config or {}), **options}
        self._config = AdminConfig.parse(config, options)
        self._link: ClusterLink | None = None
        self._closed = False

    def __reduce__(self) -> Any:
        return AsyncAdminClient, (self._address, self._options)

    # -------------------------------------------------------------- topics

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Create topics. Producers and consumers can use them when the call returns."""
        wanted = [
            (
                topic.name,
                topic.partitions if not topic.replica_assignment else -1,
                topic.replication_factor if not topic.replica_assignment else -1,
                topic.replica_assignment,
                {name.replace("_", "."): _config_text(value) for name, value in topic.configs.items()},
            )
            for topic in topics
        ]
        timeout_ms = self._timeout_ms(timeout)
        reply = await self._ask(
            requests.create_topics(wanted, timeout_ms=timeout_ms, validate_only=validate_only), timeout_ms
        )
        forgiven = ErrorCode.topic_already_exists if if_not_exists else ErrorCode.none
        _raise_first((r.name, r.error_code, r.error_message) for r in reply.topics if r.error_code != forgiven)

    async def delete_topics(
        self, names: Iterable[str | uuid.UUID], *, if_exists: bool = False, timeout: float | None = None
    ) -> None:
        """Delete topics, by name or by id, with all their records."""
        timeout_ms = self._timeout_ms(timeout)
        reply = await self._ask(requests.delete_topics(list(names), timeout_ms=timeout_ms), timeout_ms)
        forgiven = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id) if if_exists else ()
        _raise_first(
            (r.name or r.topic_id, r.error_code, r.error_message)
            for r in reply.responses
            if r.error_code not in forgiven
        )

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted."""
        views = await self._opened().metadata.refresh(None, timeout_ms=self._config.default_api_timeout_ms)
        return sorted(view.name for view in views if internal or not view.is_internal)

    async def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Topics by name, or all topics if no names are given. Raises UnknownTopicOrPartitionError
        for a topic that does not exist.
        """
        views = await self._opened().metadata.refresh(
            None if names is None else list(names), timeout_ms=self._config.default_api_timeout_ms
        )
        return {view.name: _description(view) for view in sorted(views, key=lambda view: view.name)}

    async def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        new_assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Raise the number of partitions of a topic to ``total``. Keys map to other partitions from
        then on; records stay where they are.
        """
        timeout_ms = self._timeout_ms(timeout)
        request = requests.create_partitions(
            {topic: (total, new_assignments)}, timeout_ms=timeout_ms, validate_only=validate_only
        )
        reply = await self._ask(request, timeout_ms)
        _raise_first((r.name, r.error_code, r.error_message) for r in reply.results)

    # -------------------------------------------------------------- configs

    async def describe_configs(
        self,
        topic: str | None = None,
        *,
        broker: AnyBroker | None = None,
        group: str | None = None,
        keys: Sequence[str] | None = None,
    ) -> dict[str, ConfigEntry]:
        """The configs of a topic or broker, defaults included. "all" shows what holds for every
        broker without a value of its own. A group has none at raylog's brokers.
        """
        kind, name = _resource(topic, broker, group)
        reply = await self._ask(requests.describe_configs(kind, name, keys))
        result = reply.results[0]
        _raise_first([(name, result.error_code, result.error_message)])
        return {entry.name: entry_of(entry) for entry in result.configs}

    async def alter_configs(
        self,
        topic: str | None = None,
        *,
        set: Mapping[str, Any] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, Any] | None = None,
        subtract: Mapping[str, Any] | None = None,
        broker: AnyBroker | None = None,
        group: str | None = None,
        validate_only: bool = False,
    ) -> None:
        """Set configs, or delete them so that the default holds again. ``append`` and ``subtract``
        change lists.

        The configs are those of a topic, of a broker, or of all brokers ("all"). Configs that
        concern the whole cluster are set for all brokers. A listener's certificates are asked of
        their broker, which reads the files. raylog's brokers refuse each config of a group, with the
        reason.
        """
        kind, name = _resource(topic, broker, group)
        operations: list[tuple[str, int, str | None]] = [(dotted(key), 1, None) for key in delete]
        for number, changes in ((0, set), (2, append), (3, subtract)):
            operations += [(dotted(key), number, _config_text(value)) for key, value in (changes or {}).items()]
        order = requests.incremental_alter_configs(kind, name, operations, validate_only=validate_only)
        if isinstance(broker, int) and any(listener_of(each) is not None for each, _, _ in operations):
            reply = await self._ask_broker(broker, order)
        else:
            reply = await self._ask(order)
        _raise_first((r.resource_name, r.error_code, r.error_message) for r in reply.responses)

    # -------------------------------------------------------------- cluster, offsets, records

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Cluster id, controller and brokers. ``include_fenced``: also brokers that are away."""
        reply = await self._ask(requests.describe_cluster(include_fenced=include_fenced))
        _raise_first([("the cluster", reply.error_code, reply.error_message)])
        brokers = sorted(
            (BrokerInfo(int(b.broker_id), b.host, int(b.port), b.rack, b.is_fenced) for b in reply.brokers),
            key=lambda info: info.broker,
        )
        return ClusterDescription(reply.cluster_id, int(reply.controller_id), tuple(brokers))

    async def list_offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, OffsetInfo]:
        """Per partition "earliest", "latest", "max_timestamp", or the first offset at or after ms
        (−1: none).
        """
        asked: dict[TopicPartition, Any] = {TopicPartition(*key): _SPECS.get(spec, spec) for key, spec in specs.items()}
        for key, spec in asked.items():
            if not isinstance(spec, int):
                raise ConfigError(
                    f"{key.topic}-{key.partition}: {spec!r} give 'earliest', 'latest', 'max_timestamp' or a time in ms"
                )
        found = await self._leaders().list_offsets(asked, self._config.default_api_timeout_ms)
        return {key: OffsetInfo(offset, timestamp, epoch) for key, (offset, timestamp, epoch) in found.items()}

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records below these offsets (−1: below the high watermark). Returns the
        partitions' new first offsets.
        """
        asked = {TopicPartition(*key): offset for key, offset in offsets.items()}
        return await self._leaders().delete_records(asked, self._config.default_api_timeout_ms)

    async def verify_replicas(
        self,
        topics: Iterable[str] | None = None,
        *,
        patience: float = 30.0,
        on_partition: OnPartition = lambda report: None,
        repair: bool = False,
    ) -> Verification:
        """Compare all replicas of these topics (default: all topics) byte for byte below the high
        watermark, over the wire.

        The cluster keeps running. A replica that is away or behind for ``patience`` seconds is left
        out, and the verification fails. For a compacted topic, the last records of all keys are
        compared. ``repair`` copies a replica anew if it is damaged or differs from the majority,
        and the result names it.
        """

        async def is_compacted(topic: str) -> bool:
            found = await self.describe_configs(topic, keys=["cleanup.policy"])
            return "compact" in str(found["cleanup.policy"].value)

        return await verify_topics(
            self._opened(),
            topics,
            patience_s=patience,
            is_compacted=is_compacted,
            on_partition=on_partition,
            repair=repair,
        )

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerInfo, ...]]:
        """The idempotent and transactional producers that the partitions' leaders remember, by producer id."""
        asked = [TopicPartition(*each) for each in partitions]
        return await self._leaders().describe_producers(asked, self._config.default_api_timeout_ms)

    # -------------------------------------------------------------- operating partitions and brokers

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        kind: ElectionKind = "preferred",
        timeout: float | None = None,
    ) -> dict[TopicPartition, RaylogError | None]:
        """Elect the preferred leader of each partition. An unclean election instead lets the
        replica with the most records lead a partition that has no leader.

        Without ``partitions``, all of them; those that need no election are left out of the result.
        Per partition None, or why no election was held (ElectionNotNeededError if the replica leads
        already). An unclean election may lose acknowledged records.
        """
        if kind not in _ELECTIONS:
            raise ConfigError(f"election kind {kind!r}: give 'preferred' or 'unclean'")
        timeout_ms = self._timeout_ms(timeout)
        named = None if partitions is None else [TopicPartition(*each) for each in partitions]
        reply = await self._ask(requests.elect_leaders(_ELECTIONS[kind], named, timeout_ms=timeout_ms), timeout_ms)
        if named is None:
            _raise_first([("the election", reply.error_code, None)])
        return {
            TopicPartition(topic.topic, result.partition_id): _error_or_none(result.error_code, result.error_message)
            for topic in reply.replica_election_results
            for result in topic.partition_result
        }

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        throttle_bytes: int | None = None,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> dict[TopicPartition, RaylogError | None]:
        """Move partitions to other brokers, the first of which is preferred to lead. None cancels a
        move.

        Per partition None if the move is under way now, or why it was refused. New replicas copy
        from the leader while the others keep serving. When they are in sync, the folders of the
        removed replicas are deleted. ``list_reassignments`` shows the moves that are not complete.

        ``throttle_bytes`` limits how many bytes per second each broker sends and receives for this
        and every other move. ``clear_throttles`` removes the limit when all moves are complete.
        """
        timeout_ms = self._timeout_ms(timeout)
        asked = {TopicPartition(*key): brokers for key, brokers in targets.items()}
        if throttle_bytes is not None:
            await self._throttle(asked, throttle_bytes)
        request = requests.alter_partition_reassignments(
            asked, timeout_ms=timeout_ms, allow_replication_factor_change=allow_replication_factor_change
        )
        reply = await self._ask(request, timeout_ms)
        _raise_first([("the reassignment", reply.error_code, reply.error_message)])
        return {
            TopicPartition(topic.name, part.partition_index): _error_or_none(part.error_code, part.error_message)
            for topic in reply.responses
            for part in topic.partitions
        }

    async def _throttle(self, targets: Mapping[TopicPartition, Sequence[int] | None], rate: int) -> None:
        ongoing = await self.list_reassignments()
        topics = await self.describe_topics()
        adding = {key: each.adding for key, each in ongoing.items()}
        origins = {
            key: tuple(broker for broker in part.replicas if broker not in adding.get(key, ()))
            for name, topic in topics.items()
            for part in topic.partitions
            for key in [TopicPartition(name, part.partition)]
        }
        known = {key: brokers for key, brokers in targets.items() if key in origins}
        wanted = reassignment_throttles.throttles(known, origins, adding)
        for name, configs in wanted.topics.items():
            await self.alter_configs(name, set=configs)
        for broker in sorted(set(wanted.brokers) & set(await self._registered_brokers())):
            await self.alter_configs(broker=broker, set=dict.fromkeys(reassignment_throttles.RATES, rate))

    async def clear_throttles(self, topics: Iterable[str], *, disk_moves: bool = False) -> tuple[list[int], list[str]]:
        """Remove the replication throttles of all brokers and of these topics; ``disk_moves``: and
        those of moves between disks. Returns the brokers, and which of the topics exist.
        """
        brokers, rates = await self._registered_brokers(), reassignment_throttles.RATES
        for broker in brokers:
            await self.alter_configs(broker=broker, delete=reassignment_throttles.BROKER_RATES if disk_moves else rates)
        found = sorted(set(topics) & set(await self.list_topics(internal=True)))
        for name in found:
            await self.alter_configs(name, delete=reassignment_throttles.LISTS)
        return brokers, found

    async def _registered_brokers(self) -> list[int]:
        """Dead ones, too."""
        reply = await self._ask(private.ClusterStatusRequest())
        return sorted(each["id"] for each in reply.status["brokers"])

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way, of these partitions or of all."""
        named = None if partitions is None else [TopicPartition(*each) for each in partitions]
        request = requests.list_partition_reassignments(named, timeout_ms=self._config.default_api_timeout_ms)
        reply = await self._ask(request)
        _raise_first([("the reassignments", reply.error_code, reply.error_message)])
        return {
            TopicPartition(topic.name, part.partition_index): Reassignment(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in reply.topics
            for part in topic.partitions
        }

    async def drain_broker(self, broker: int) -> DrainProgress:
        """Move every leader away from a broker and keep leaders away until ``undrain_broker``.
        Idempotent: call it again for those that remain.

        New topics avoid the broker. Its replicas join no ISR, but those that are in sync stay in
        it. The broker is drained when ``remaining`` is empty.
        """
        reply = await self._ask(private.DrainBrokerRequest(broker))
        return DrainProgress(
            tuple(TopicPartition(*each) for each in reply.moved),
            tuple(TopicPartition(*each) for each in reply.remaining),
        )

    async def undrain_broker(self, broker: int) -> None:
        """Let a broker lead again. Its leaders return with the next preferred election."""
        await self._ask(private.DrainBrokerRequest(broker, is_draining=False))

    async def unregister_broker(self, broker: int) -> None:
        """Remove a broker that holds no replica from the cluster. Its processes end, and you may
        then delete its folder.

        Raises InvalidRequestError while it holds replicas or a controller.
        """
        reply = await self._ask(requests.unregister_broker(broker))
        _raise_first([(f"broker {broker}", reply.error_code, reply.error_message)])

    # -------------------------------------------------------------- the end, and inside

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def __aenter__(self) -> AsyncAdminClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _opened(self) -> ClusterLink:
        if self._closed:
            raise ClosedError("this admin client is closed: make another one")
        if self._link is None or self._link.loop is not asyncio.get_running_loop():
            self._link = ClusterLink(self._address, self._config)
        return self._link

    def _leaders(self) -> LeaderRequests:
        return LeaderRequests(self._opened())

    def _timeout_ms(self, timeout: float | None) -> float:
        return self._config.default_api_timeout_ms if timeout is None else timeout * 1000

    async def _ask(self, request: Any, timeout_ms: float | None = None) -> Any:
        limit_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return await self._opened().controller.request(
            request, timeout_ms=limit_ms, attempts_max=self._config.retries + 1
        )


def _description(view: TopicView) -> TopicDescription:
    return TopicDescription(
        view.name,
        view.topic_id,
        view.is_internal,
        tuple(
            PartitionInfo(
                index,
                broker_of(part.leader.node),
                part.leader.epoch,
                tuple(map(broker_of, part.replicas)),
                tuple(map(broker_of, part.isr)),
                tuple(map(broker_of, part.offline)),
                part.leader.node,
            )
            for index, part in enumerate(view.partitions)
        ),
    )


def _resource(topic: str | None, broker: AnyBroker | None, group: str | None) -> tuple[int, str]:
    if sum(each is not None for each in (topic, broker, group)) != 1:
        raise ConfigError("name the topic, the broker or the group whose configs you mean, and only one of them")
    if topic is not None:
        return requests.TOPIC_RESOURCE, topic
    if group is not None:
        return requests.GROUP_RESOURCE, group
    return requests.BROKER_RESOURCE, "" if broker == "all" else str(broker)


def _config_text(value: Any) -> str | None:
    """A config value as Kafka writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _error_or_none(code: int, message: str | None) -> RaylogError | None:
    return None if code == ErrorCode.none else error_for(code, message)


def _raise_first(results: Iterable[tuple[Any, int, str | None]]) -> None:
    failed: list[RaylogError] = []
    for name, code, message in results:
        if code != ErrorCode.none:
            failed.append(
                error_for(
                    code,
                    message
                    if message and str(name) in message
                    else f"{name}: {message or ErrorCode(code).name.upper()}",
                )
            )
    if failed:
        raise failed[0]
