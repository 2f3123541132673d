"""What an admin client tells of disks, loggers, producers, controllers and features, read out of Kafka's
answers.

``AsyncInspectionCalls`` and ``InspectionCalls`` are the parts of the admin clients that ask.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.errors import ErrorCode

from raylog.client.admin.config_entries import ConfigEntry, entry_of
from raylog.client.config import AdminConfig
from raylog.client.links import requests
from raylog.configs.replication_quotas import DISK_MOVE_RATE
from raylog.disks.disk import encode_id
from raylog.errors import RaylogError, error_for, kafka_error
from raylog.types import BROKER_SLOT, Endpoint, TopicPartition, broker_of, node_id
from raylog.wire import private
from raylog.wire.private import DescribeQuorum
from raylog.wire.private_watching import CollectMetrics, LogsRead, ReadLogs

if TYPE_CHECKING:
    from raylog.client.links.link import ClusterLink
    from raylog.metrics.registry import Samples

_COLLECT_S = 2.0
_READ_LOGS_S = 10.0
BROKERS = 4  # the type of resource that a broker is
LOGGERS = 8  # the type of resource that a broker's loggers are
_SERIES_MAX = 100_000  # of a gauge; a process has one or two for each of its replicas

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogDir:
    """A disk of a broker: sizes in bytes of the replicas there. ``total_bytes`` and
    ``usable_bytes`` −1: the disk does not say.

    ``offset_lags``: how many offsets a replica's log ends before its high watermark. ``future``:
    replicas that are being copied to this disk and are not in use yet. ``error``: why the broker
    cannot use the disk.
    """

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: dict[TopicPartition, int]
    offset_lags: dict[TopicPartition, int] = field(default_factory=dict)
    future: set[TopicPartition] = field(default_factory=set)
    error: RaylogError | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the cluster: the versions that the server that answered supports, and the one
    that is in force, None if none is.
    """

    name: str
    min_version: int
    max_version: int
    finalized_version: int | None


@dataclass(frozen=True, slots=True)
class Features:
    """All features, by name. ``epoch`` grows with each change; −1: it is not known."""

    epoch: int
    features: dict[str, Feature]


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer as a partition's leader remembers it. ``last_timestamp`` in ms;
    ``transaction_start_offset`` None: none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """A controller. Times are in ms since 1970; −1 where it was not heard of. ``endpoint`` is inside
    the cluster; None: it is not known.
    """

    broker: int
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int
    directory_id: uuid.UUID
    endpoint: Endpoint | None


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    leader: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumMember, ...]
    observers: tuple[QuorumMember, ...]


class AsyncInspectionCalls:
    """What an admin client says of disks, controllers and features. Mixed into
    ``AsyncAdminClient``.
    """

    _config: AdminConfig

    def _opened(self) -> ClusterLink:
        raise NotImplementedError

    async def _ask(self, request: Any) -> Any:
        raise NotImplementedError

    async def replica_sizes(self) -> dict[TopicPartition, dict[int, int]]:
        """How many bytes each replica has on its broker's disk. Brokers that do not answer are left
        out.
        """
        sizes: dict[TopicPartition, dict[int, int]] = {}
        for broker, dirs in (await self.describe_log_dirs()).items():
            for log_dir in dirs.values():
                for key in log_dir.replicas.keys() - log_dir.future:
                    sizes.setdefault(key, {})[broker] = log_dir.replicas[key]
        return sizes

    async def describe_log_dirs(self) -> dict[int, dict[str, LogDir]]:
        """By broker and path: the disks that hold replicas, and the size of each replica. Processes
        that do not answer are left out. From outside also disks without replicas.

        A replica that has begun to move to another disk is shown there, too (``LogDir.future``).
        """
        link = self._opened()
        views = await link.metadata.refresh(None, timeout_ms=self._config.default_api_timeout_ms)
        holders = {node for view in views for part in view.partitions for node in part.replicas}
        moves: list[dict[str, Any]] = []
        if not link.connections.are_outside:
            moves = (await self._ask(private.ClusterStatusRequest())).status.get("disk_moves", [])
            holders.update(move["node_id"] for move in moves)
        nodes = sorted(holders | set(link.metadata.nodes) if link.connections.are_outside else holders)

        async def ask(node: int) -> Any:
            endpoint = link.metadata.nodes.get(node)
            if endpoint is None:
                return None
            try:
                connection = await link.connections.get(endpoint)
                return await connection.request(
                    requests.describe_log_dirs(), timeout_ms=self._config.request_timeout_ms
                )
            except RaylogError:
                return None

        replies = zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True)
        found = log_dirs_of((broker_of(node), reply) for node, reply in replies if reply is not None)
        for move in moves:  # its process may not have opened it yet
            path, key = move["log_dir"], TopicPartition(move["topic"], move["partition"])
            log_dir = found.setdefault(move["broker"], {}).setdefault(path, LogDir(path, -1, -1, {}))
            if key not in log_dir.replicas:
                log_dir.replicas[key], log_dir.offset_lags[key] = 0, -1
                log_dir.future.add(key)
        return found

    async def move_to_disks(
        self, places: Mapping[tuple[str, int, int], str], *, throttle_bytes: int | None = None
    ) -> dict[tuple[str, int, int], RaylogError | None]:
        """Have brokers' replicas, each a topic, a partition and a broker, at these paths of disks.

        For each None if its move is under way, or it is there; else why not. A replica is copied
        while it serves, ``describe_log_dirs`` shows how far it is. The disk where it is cancels its
        move.

        ``throttle_bytes`` limits how many bytes per second each of these brokers copies for this
        and every other move between its disks. ``clear_throttles`` removes the limit.
        """
        by_broker: dict[int, list[tuple[str, int, str]]] = {}
        for (topic, partition, broker), path in places.items():
            by_broker.setdefault(broker, []).append((topic, partition, path))
        for broker in sorted(by_broker) if throttle_bytes is not None else ():
            changes: list[tuple[str, int, str | None]] = [(DISK_MOVE_RATE, 0, str(throttle_bytes))]
            order = requests.incremental_alter_configs(BROKERS, str(broker), changes, validate_only=False)
            for each in (await self._ask(order)).responses:
                _raise(each.error_code, each.error_message)
        outcomes: dict[tuple[str, int, int], RaylogError | None] = {}
        for broker, wanted in sorted(by_broker.items()):
            for (topic, partition, _), (error, message) in zip(
                wanted, await self._move_of(broker, wanted), strict=True
            ):
                outcomes[topic, partition, broker] = error_for(error, message) if error else None
        return outcomes

    async def _move_of(self, broker: int, wanted: Sequence[tuple[str, int, str]]) -> Sequence[tuple[int, str | None]]:
        """The error and its message for each, from the controller, or from outside the broker."""
        if not self._opened().connections.are_outside:
            return tuple((await self._ask(private.MoveToDisksRequest(broker, tuple(wanted)))).outcomes)
        reply = await self._ask_broker(broker, requests.alter_replica_log_dirs(wanted))
        errors = {
            (str(topic.topic_name), int(part.partition_index)): int(part.error_code)
            for topic in reply.results
            for part in topic.partitions
        }
        codes = [(errors[topic, partition], path) for topic, partition, path in wanted]
        return [(code, f"{path}: {ErrorCode(code).name.upper()}" if code else None) for code, path in codes]

    async def collect_metrics(self, processes: Mapping[int, Endpoint]) -> dict[int, Samples]:
        """What the metrics of server processes are now, by node id. Those that do not answer within
        two seconds are left out. Only inside the cluster: listeners do not serve it.
        """
        from raylog.metrics.registry import Samples

        order = CollectMetrics(_SERIES_MAX)
        replies = await asyncio.gather(*(self._ask_process(each, order, _COLLECT_S) for each in processes.values()))
        told = zip(processes, replies, strict=True)
        return {node: Samples.of_plain(reply.samples) for node, reply in told if reply is not None}

    async def describe_controllers(self, controllers: Mapping[int, Endpoint]) -> dict[int, dict[str, Any]]:
        """The quorum as each of these controllers sees it, by node id, as ``Cluster.quorum`` has it.
        Those that do not answer within two seconds are left out. Only inside the cluster.
        """
        asked = (self._ask_process(each, DescribeQuorum(), _COLLECT_S) for each in controllers.values())
        told = zip(controllers, await asyncio.gather(*asked), strict=True)
        return {node: reply.quorum for node, reply in told if reply is not None}

    async def read_logs(self, processes: Iterable[Endpoint], asked: ReadLogs) -> LogsRead | None:
        """What the first of these processes that answers says; None: none does. Only inside the
        cluster.
        """
        for endpoint in processes:
            reply: LogsRead | None = await self._ask_process(endpoint, asked, _READ_LOGS_S)
            if reply is not None:
                return reply
        return None

    async def _ask_process(self, endpoint: Endpoint, request: Any, within_s: float) -> Any | None:
        try:
            async with asyncio.timeout(within_s):
                connection = await self._opened().connections.get(endpoint)
                return await connection.request(request, timeout_ms=within_s * 1_000)
        except (RaylogError, TimeoutError):
            return None

    async def describe_loggers(self, broker: int) -> dict[str, ConfigEntry]:
        """The loggers of a broker's processes; each has a level as its value, of Kafka's names of levels."""
        reply = await self._ask_broker(broker, requests.describe_configs(LOGGERS, str(broker), None))
        (result,) = reply.results
        _raise(result.error_code, result.error_message)
        return {entry.name: entry_of(entry) for entry in result.configs}

    async def alter_loggers(
        self, broker: int, *, set: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Set levels of a broker's loggers, and take some away; all or none. They hold in all its
        processes from when this returns until the Broker's process ends.
        """
        operations = [(name, 1, None) for name in delete]
        changes = [(name, 0, level) for name, level in (set or {}).items()]
        order = requests.incremental_alter_configs(LOGGERS, str(broker), [*operations, *changes], validate_only=False)
        for each in (await self._ask_broker(broker, order)).responses:
            _raise(each.error_code, each.error_message)

    async def _ask_broker(self, broker: int, request: Any) -> Any:
        """What that Broker itself answers."""
        link, timeout_ms = self._opened(), self._config.request_timeout_ms
        if link.connections.are_outside:
            await link.metadata.refresh((), timeout_ms=self._config.default_api_timeout_ms)
            endpoint = link.metadata.nodes.get(node_id(broker, BROKER_SLOT))
        else:
            status = (await self._ask(private.ClusterStatusRequest())).status
            living = (each for each in status["actors"] if each["state"] == "live" and each["endpoint"])
            at = {each["node_id"]: each["endpoint"] for each in living}.get(node_id(broker, BROKER_SLOT))
            endpoint = None if at is None else Endpoint.of(at)
        if endpoint is None:
            raise kafka_error(ErrorCode.broker_not_available)(f"broker {broker} is not there")
        return await (await link.connections.get(endpoint)).request(request, timeout_ms=timeout_ms)

    async def describe_quorum(self) -> QuorumInfo:
        """The controllers: which one is active, and how far the log of each is. A controller is
        named by the broker on whose disk it runs.
        """
        reply = await self._ask(requests.describe_quorum())
        if (code := ErrorCode(reply.error_code)) is not ErrorCode.none:
            raise error_for(code, f"the quorum: {reply.error_message or code.name.upper()}")
        return quorum_of(reply)

    async def describe_features(self) -> Features:
        """The features of the cluster, as Kafka's ApiVersions tells them."""
        reply = await self._ask(requests.api_versions(version=4))
        if (code := ErrorCode(reply.error_code)) is not ErrorCode.none:
            raise error_for(code, f"the features: {code.name.upper()}")
        return features_of(reply)


class InspectionCalls:
    """The same, blocking. Mixed into ``AdminClient``."""

    _client: AsyncInspectionCalls

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def replica_sizes(self) -> dict[TopicPartition, dict[int, int]]:
        """How many bytes each replica has on its broker's disk."""
        return self._run(self._client.replica_sizes())

    def describe_log_dirs(self) -> dict[int, dict[str, LogDir]]:
        """By broker and path: the disks that hold replicas."""
        return self._run(self._client.describe_log_dirs())

    def move_to_disks(
        self, places: Mapping[tuple[str, int, int], str], *, throttle_bytes: int | None = None
    ) -> dict[tuple[str, int, int], RaylogError | None]:
        """Have brokers' replicas, each a topic, a partition and a broker, at these paths of disks."""
        return self._run(self._client.move_to_disks(places, throttle_bytes=throttle_bytes))

    def collect_metrics(self, processes: Mapping[int, Endpoint]) -> dict[int, Samples]:
        """What the metrics of server processes are now, by node id."""
        return self._run(self._client.collect_metrics(processes))

    def describe_controllers(self, controllers: Mapping[int, Endpoint]) -> dict[int, dict[str, Any]]:
        """The quorum as each of these controllers sees it, by node id."""
        return self._run(self._client.describe_controllers(controllers))

    def read_logs(self, processes: Iterable[Endpoint], asked: ReadLogs) -> LogsRead | None:
        """What the first of these processes that answers says."""
        return self._run(self._client.read_logs(processes, asked))

    def describe_loggers(self, broker: int) -> dict[str, ConfigEntry]:
        """The loggers of a broker's processes, and their levels."""
        return self._run(self._client.describe_loggers(broker))

    def alter_loggers(self, broker: int, *, set: Mapping[str, str] | None = None, delete: Iterable[str] = ()) -> None:
        """See ``AsyncAdminClient.alter_loggers``."""
        self._run(self._client.alter_loggers(broker, set=set, delete=delete))

    def describe_quorum(self) -> QuorumInfo:
        """The controllers: which one is active, and how far the log of each is."""
        return self._run(self._client.describe_quorum())

    def describe_features(self) -> Features:
        """The features of the cluster, as Kafka's ApiVersions tells them."""
        return self._run(self._client.describe_features())


def log_dirs_of(replies: Iterable[tuple[int, Any]]) -> dict[int, dict[str, LogDir]]:
    """DescribeLogDirs answers of the processes of brokers, put together by broker and path."""
    found: dict[int, dict[str, LogDir]] = {}
    for broker, reply in replies:
        for result in reply.results:
            of_broker = found.setdefault(broker, {})
            code = ErrorCode(result.error_code)
            error = None if code is ErrorCode.none else error_for(code, f"{result.log_dir}: {code.name.upper()}")
            log_dir = of_broker.setdefault(
                result.log_dir,
                LogDir(result.log_dir, int(result.total_bytes), int(result.usable_bytes), {}, error=error),
            )
            for topic in result.topics:
                for part in topic.partitions:
                    key = TopicPartition(str(topic.name), int(part.partition_index))
                    log_dir.replicas[key] = int(part.partition_size)
                    log_dir.offset_lags[key] = int(part.offset_lag)
                    if part.is_future_key:
                        log_dir.future.add(key)
    return found


def features_of(reply: Any) -> Features:
    """An ApiVersions answer."""
    finalized = {str(each.name): int(each.max_version_level) for each in reply.finalized_features}
    supported = sorted(reply.supported_features, key=lambda each: str(each.name))
    features = (
        Feature(str(each.name), int(each.min_version), int(each.max_version), finalized.get(str(each.name)))
        for each in supported
    )
    return Features(int(reply.finalized_features_epoch), {each.name: each for each in features})


def producers_of(partition: Any) -> tuple[ProducerInfo, ...]:
    """One partition of a DescribeProducers answer."""
    return tuple(
        ProducerInfo(
            int(each.producer_id),
            int(each.producer_epoch),
            int(each.last_sequence),
            int(each.last_timestamp),
            None if each.coordinator_epoch < 0 else int(each.coordinator_epoch),
            None if each.current_txn_start_offset < 0 else int(each.current_txn_start_offset),
        )
        for each in sorted(partition.active_producers, key=lambda each: int(each.producer_id))
    )


def _raise(code: ErrorCode, message: str | None) -> None:
    if code is not ErrorCode.none:
        raise error_for(int(code.value), message)


def quorum_of(reply: Any) -> QuorumInfo:
    """A DescribeQuorum answer, whose one partition is that of the metadata."""
    (partition,) = reply.topics[0].partitions
    endpoints = {
        int(node.node_id): Endpoint(str(each.host), int(each.port)) for node in reply.nodes for each in node.listeners
    }

    def members(states: Any) -> tuple[QuorumMember, ...]:
        return tuple(
            QuorumMember(
                int(each.replica_id),
                int(each.log_end_offset),
                int(each.last_fetch_timestamp),
                int(each.last_caught_up_timestamp),
                each.replica_directory_id or requests.NO_UUID,
                endpoints.get(int(each.replica_id)),
            )
            for each in states
        )

    return QuorumInfo(
        int(partition.leader_id),
        int(partition.leader_epoch),
        int(partition.high_watermark),
        members(partition.current_voters),
        members(partition.observers),
    )


def quorum_status(quorum: QuorumInfo, cluster_id: str) -> dict[str, Any]:
    """As ``Cluster.quorum`` has it, without what Kafka's answer does not say (None): who can be
    reached, who is recovering and which process has told it.
    """
    leader = next((each for each in quorum.voters if each.broker == quorum.leader), None)
    end = -1 if leader is None else leader.log_end_offset

    def view(member: QuorumMember) -> dict[str, Any]:
        return {
            "broker": member.broker,
            "directory_id": encode_id(member.directory_id),
            "endpoint": None if member.endpoint is None else str(member.endpoint),
            "log_end_offset": member.log_end_offset,
            "lag": end - member.log_end_offset if member.log_end_offset >= 0 else -1,
            "last_fetch_timestamp": member.last_fetch_timestamp,
            "last_caught_up_timestamp": member.last_caught_up_timestamp,
            "reachable": None,
            "recovering": None,
        }

    voters = [view(member) for member in quorum.voters]
    caught_up = [each.last_caught_up_timestamp for each in quorum.voters]
    is_known = leader is not None and min(caught_up) >= 0
    return {
        "cluster_id": cluster_id,
        "leader_id": quorum.leader,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "log_end_offset": end,
        "max_follower_lag": max((each["lag"] for each in voters if each["lag"] >= 0), default=-1),
        "max_follower_lag_time_ms": leader.last_caught_up_timestamp - min(caught_up) if leader and is_known else -1,
        "voters": voters,
        "observers": [view(member) for member in quorum.observers],
        "planned": None,
        "told_by": {"broker": quorum.leader, "role": None, "is_active": True, "pid": None},
    }
