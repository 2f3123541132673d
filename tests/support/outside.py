"""Requests to a Broker's outside listener, byte for byte as a test wants them."""

from __future__ import annotations

import asyncio
import datetime
import importlib
from collections.abc import Callable
from typing import Any

from kio.index import load_request_schema

from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id
from raylog.wire.connection import Connection


def listener(running: InProcessCluster, broker: int) -> Endpoint:
    """Where clients reach a broker."""
    endpoint = running.launcher.servers[node_id(broker, BROKER_SLOT)].advertised
    assert endpoint is not None
    return endpoint


class Client:
    """One connection to a broker's listener, of somebody who knows no secret. Used from the test's thread."""

    def __init__(self, running: InProcessCluster, broker: int, client_id: str | None = "raylog") -> None:
        self._running = running
        endpoint = listener(running, broker)
        self.connection: Connection = running.run(
            Connection.open(endpoint, secret=None, cluster_id="", client_id=client_id)
        )

    def send(self, entity: Any, timeout_ms: float = 60_000) -> Pending:
        """A request, without waiting for its reply."""

        async def begin() -> asyncio.Future[Any]:
            return self.connection.send(entity, timeout_ms=timeout_ms)

        return Pending(self._running, self._running.run(begin()))

    def ask(self, entity: Any, timeout_ms: float = 60_000) -> Any:
        """A request's reply."""
        return self.send(entity, timeout_ms).result()

    def close(self) -> None:
        async def close() -> None:
            self.connection.close()
            await self.connection.wait_closed()

        self._running.run(close())


class Pending:
    def __init__(self, running: InProcessCluster, future: asyncio.Future[Any]) -> None:
        self._running = running
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout_s: float = 90) -> Any:
        async def wait() -> Any:
            return await self._future

        return self._running.run(wait(), timeout_s)


def request(api_key: int, version: int, **values: Any) -> Any:
    """A request; ``values`` that are functions are given the module of the nested classes."""
    cls = load_request_schema(api_key, version)
    module = importlib.import_module(cls.__module__)
    return cls(**{name: each(module) if isinstance(each, Callable) else each for name, each in values.items()})


def milliseconds(count: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=count)


def metadata(*names: str, version: int = 12, create: bool = False) -> Any:
    """Without names: of all topics."""
    values: dict[str, Any] = {}
    if version >= 4:
        values["allow_auto_topic_creation"] = create
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = False
    if version >= 8:
        values["include_topic_authorized_operations"] = False

    def topics(module: Any) -> Any:
        if not names:
            return None if version >= 1 else ()
        ids = {"topic_id": None} if version >= 10 else {}
        return tuple(module.MetadataRequestTopic(name=name, **ids) for name in names)

    return request(3, version, topics=topics, **values)


def produce(
    topic: Any,
    records: dict[int, bytes],
    *,
    version: int = 11,
    acks: int = -1,
    timeout_ms: int = 10_000,
    transactional_id: str | None = None,
) -> Any:
    """To a topic by its name, or by its id from version 13 on."""
    naming = "topic_id" if version >= 13 else "name"
    return request(
        0,
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout=milliseconds(timeout_ms),
        topic_data=lambda module: (
            module.TopicProduceData(
                **{naming: topic},
                partition_data=tuple(
                    module.PartitionProduceData(index=number, records=data) for number, data in records.items()
                ),
            ),
        ),
    )


def fetch(
    topic: Any,
    offsets: dict[int, int],
    *,
    version: int = 12,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 24,
    session: tuple[int, int] = (0, -1),
    forgotten: tuple[int, ...] = (),
    replica: tuple[int, int] | None = None,
    rack: str = "",
) -> Any:
    """Of a topic by its name, or by its id from version 13 on."""
    naming = "topic_id" if version >= 13 else "topic"
    more: dict[str, Any] = {}
    if version >= 7:
        more["session_id"], more["session_epoch"] = session
        more["forgotten_topics_data"] = lambda module: (
            (module.ForgottenTopic(**{naming: topic}, partitions=forgotten),) if forgotten else ()
        )
    if version >= 11:
        more["rack_id"] = rack
    if version < 15:
        more["replica_id"] = replica[0] if replica else -1
    elif replica is not None:
        more["replica_state"] = lambda module: module.ReplicaState(replica_id=replica[0], replica_epoch=replica[1])

    def partition(module: Any, number: int, offset: int) -> Any:
        values: dict[str, Any] = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        if version >= 5:
            values["log_start_offset"] = -1
        if version >= 9:
            values["current_leader_epoch"] = -1
        if version >= 12:
            values["last_fetched_epoch"] = -1
        return module.FetchPartition(**values)

    return request(
        1,
        version,
        max_wait=milliseconds(max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        topics=lambda module: (
            (
                module.FetchTopic(
                    **{naming: topic}, partitions=tuple(partition(module, n, offset) for n, offset in offsets.items())
                ),
            )
            if offsets
            else ()
        ),
        **more,
    )


def parts(reply: Any) -> dict[int, Any]:
    """A fetch's answer by partition."""
    return {each.partition_index: each for topic in reply.responses for each in topic.partitions}


def create_topics(name: str) -> Any:
    """CreateTopics that only validates."""
    return request(
        19,
        7,
        topics=lambda module: (
            module.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()),
        ),
        timeout=milliseconds(5_000),
        validate_only=True,
    )


def heartbeat(group: str) -> Any:
    return request(12, 4, group_id=group, generation_id=1, member_id="m", group_instance_id=None)
