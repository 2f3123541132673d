"""Requests to single servers of an in-process cluster, byte for byte as a test wants them, past every kindness of the clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from raylog.client.links import requests
from raylog.client.sync import call
from raylog.records.codec import encode_values
from raylog.server.replica_server import ReplicaServer
from raylog.testing.in_process import InProcessCluster
from raylog.types import Endpoint, TopicPartition, broker_of
from raylog.wire.connection import Connection
from raylog.wire.private import ClusterStatusRequest

NOW_MS = 1_700_000_000_000


def batch(*values: bytes, producer_id: int = -1, sequence: int = -1) -> bytes:
    """One record batch, of an idempotent producer's epoch 0 where a producer id is given."""
    epoch = 0 if producer_id >= 0 else -1
    return encode_values(
        values, timestamp_ms=NOW_MS, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def status(running: InProcessCluster) -> dict[str, Any]:
    """What the controller knows."""
    found: dict[str, Any] = call(running.address, ClusterStatusRequest(), timeout_s=60).status
    return found


def part(running: InProcessCluster, topic: str, partition: int = 0) -> dict[str, Any]:
    """One partition as the controller describes it."""
    topics = status(running)["topics"]
    return next(
        found
        for each in topics
        if each["name"] == topic
        for found in each["partitions"]
        if found["partition"] == partition
    )


def actor(running: InProcessCluster, node: int) -> dict[str, Any]:
    """One server actor as the controller describes it."""
    return next(each for each in status(running)["actors"] if each["node_id"] == node)


def nodes_of(running: InProcessCluster, topic: str) -> dict[int, int]:
    """The node id of the process that holds the topic's first partition, by broker."""
    servers: dict[int, Any] = running.launcher.servers
    held: dict[int, int] = {}

    async def look() -> None:
        for node, server in servers.items():
            host = getattr(server, "_host", None)
            if host is not None and any(replica.assignment.topic == topic for replica in host.replicas.values()):
                held[node >> 16] = node

    running.run(look())
    return held


def endpoint_of(running: InProcessCluster, node: int) -> Endpoint:
    """Where a server listens."""
    host, _, port = actor(running, node)["endpoint"].rpartition(":")
    return Endpoint(host, int(port))


def ask(running: InProcessCluster, endpoint: Endpoint, entity: Any, timeout_ms: float = 60_000) -> Any:
    """One request to one server."""

    async def work() -> Any:
        connection = await Connection.open(
            endpoint, secret=running.address.secret, cluster_id=running.address.cluster_id
        )
        try:
            return await connection.request(entity, timeout_ms=timeout_ms)
        finally:
            connection.close()
            await connection.wait_closed()

    return running.run(work(), timeout_ms / 1000 + 10)


def produce(
    running: InProcessCluster, node: int, topic: str, records: bytes, *, acks: int = -1, timeout_ms: float = 10_000
) -> Any:
    """Records for the topic's first partition, to that server; the partition's answer."""
    body = requests.produce({TopicPartition(topic, 0): records}, acks=acks, timeout_ms=timeout_ms)
    return ask(running, endpoint_of(running, node), body).responses[0].partition_responses[0]


def fetch(running: InProcessCluster, node: int, topic: str, offset: int = 0, *, leader_epoch: int = -1) -> Any:
    """What a consumer gets from that server for the topic's first partition; the partition's answer."""
    body = requests.fetch(
        {TopicPartition(topic, 0): (offset, leader_epoch)},
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 24,
        partition_max_bytes=1 << 24,
    )
    return ask(running, endpoint_of(running, node), body).responses[0].partitions[0]


def end_of(running: InProcessCluster, topic: str) -> int:
    """The leader's high watermark of the topic's first partition."""
    return int(fetch(running, part(running, topic)["leader_node"], topic).high_watermark)


def throw(endpoint: Endpoint, data: bytes, *, finish: bool = True) -> bytes:
    """Bytes to a listener as a stranger would send them, and whatever comes back until it closes."""
    with socket.create_connection((endpoint.host, endpoint.port), timeout=60) as stranger:
        try:
            stranger.sendall(data)
            if not finish:
                return b""
            stranger.shutdown(socket.SHUT_WR)
            answer = b""
            while more := stranger.recv(65_536):
                answer += more
        except ConnectionError:
            return b""
        return answer


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = 120.0) -> Any:
    """What the condition returns once it is true; an assertion error that says what never came true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


def at_doors(running: InProcessCluster, broker: int | None = None) -> list[Any]:
    """The connections at the doors of a broker's hosts; None: of all hosts."""
    servers = [each for node, each in running.launcher.servers.items() if broker in (None, broker_of(node))]
    return [each for server in servers if isinstance(server, ReplicaServer) for each in server.door.server.connections]


def isr_is_whole(running: InProcessCluster, topic: str, partitions: int = 1) -> bool:
    """Whether the topic's first partitions have leaders and all their replicas alive and in the ISR."""
    return all(
        found["leader"] >= 0 and not found["offline"] and sorted(found["isr"]) == sorted(found["replicas"])
        for found in (part(running, topic, number) for number in range(partitions))
    )
