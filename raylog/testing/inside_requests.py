"""What a test asks of a cluster in its own process: topics, configs, leaders, records; past the
listeners, straight to who answers.

Requests go over the inside links that raylog's own clients use, so no fault that was ordered for
the listeners strikes them. It needs less than those clients do (no options, no Arrow), because a
test pays for every import. Everything here runs on the cluster's loop.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.links import requests
from raylog.client.links.address import ClusterAddress
from raylog.errors import ClientTimeoutError, ConfigError, KafkaError, RaylogError, error_for, kafka_error
from raylog.metadata.image import MetadataImage, Topic
from raylog.metadata.records import PartitionState, StaticSource
from raylog.records.aborted import AbortedTransactions
from raylog.records.batch import batches
from raylog.records.codec import decode
from raylog.records.record import Record
from raylog.types import Endpoint, TopicPartition
from raylog.wire.connection import Connection
from raylog.wire.private import SetStaticConfigsRequest

TIMEOUT_MS = 10_000
PREFERRED = 0
RETRY_S = 0.005
PARKED_MS = 50.0
FETCH_BYTES_MAX = 1 << 24
CLUSTERS_DEFAULT = -1  # num.partitions, default.replication.factor

# Refusals that end by themselves once replicas are back, and that appended nothing.
_PASSING = (ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas)

_TOPIC_EXISTS = kafka_error(ErrorCode.topic_already_exists)


class InsideRequests:
    """``image`` gives the controller's, which knows where everybody is."""

    def __init__(self, address: ClusterAddress, image: Any) -> None:
        self._address = address
        self._image = image
        self._connections: dict[Endpoint, Connection] = {}

    @property
    def image(self) -> MetadataImage:
        found: MetadataImage = self._image()
        return found

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
            await connection.wait_closed()

    # ------------------------------------------------------------------ names

    def topic(self, name: str) -> Topic:
        """Raises UnknownTopicOrPartitionError, which suggests what may have been meant."""
        found = self.image.topic_named(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self.image.topic_ids, 1)
        hint = f"did you mean {near[0]!r}?" if near else "create_topic() makes one"
        raise error_for(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}: {hint}")

    def partition(self, topic: str, number: int) -> PartitionState:
        partitions = self.topic(topic).partitions
        if number not in partitions:
            raise error_for(
                ErrorCode.unknown_topic_or_partition,
                f"{topic!r} has the partitions 0 to {len(partitions) - 1}, and no {number}",
            )
        return partitions[number]

    # ------------------------------------------------------------------ orders

    async def create_topic(self, name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        body = requests.create_topics(
            [(name, partitions, replicas, {}, configs)], timeout_ms=TIMEOUT_MS, validate_only=False
        )
        (result,) = (await self._ask_controller(body)).topics
        _raise(result.error_code, result.error_message)

    async def have_topic(self, name: str, partitions: int, replicas: int) -> None:
        """Create it, unless it is there. Raises ConfigError for one with other partitions."""
        try:
            await self.create_topic(name, partitions, replicas, {})
        except _TOPIC_EXISTS:
            found = len(self.topic(name).partitions)
            if partitions not in (found, CLUSTERS_DEFAULT):
                raise ConfigError(
                    f"topics={{{name!r}: {partitions}}}: that topic of the folder has {found}: give that number, "
                    "or another folder"
                ) from None

    async def set_static_configs(self, configs: Mapping[str, str]) -> None:
        """Of all brokers, as a start says them."""
        try:
            await self._ask_controller(SetStaticConfigsRequest(StaticSource.START.value, dict(configs)))
        except KafkaError as error:
            _raise(error.code, str(error))

    async def reassign(self, partition: TopicPartition, brokers: Sequence[int]) -> None:
        body = requests.alter_partition_reassignments({partition: brokers}, timeout_ms=TIMEOUT_MS)
        reply = await self._ask_controller(body)
        _raise(reply.error_code, reply.error_message)
        result = reply.responses[0].partitions[0]
        _raise(result.error_code, result.error_message)

    async def elect_preferred(self, partition: TopicPartition) -> None:
        reply = await self._ask_controller(requests.elect_leaders(PREFERRED, [partition], timeout_ms=TIMEOUT_MS))
        _raise(reply.error_code, None)
        result = reply.replica_election_results[0].partition_result[0]
        if result.error_code is not ErrorCode.election_not_needed:
            _raise(result.error_code, result.error_message)

    # ------------------------------------------------------------------ records

    async def await_leaders(self, topics: Iterable[str], timeout_s: float) -> None:
        """Wait until the leaders of these topics answer fetches."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        for name in topics:
            waiting = set(self.topic(name).partitions)
            while waiting:
                parts = await self._fetch(name, dict.fromkeys(waiting, 0), max_wait_ms=0)
                waiting -= {
                    number
                    for number, part in parts.items()
                    if part.error_code in (ErrorCode.none, ErrorCode.offset_out_of_range)
                }
                if waiting:
                    if asyncio.get_running_loop().time() > deadline:
                        raise ClientTimeoutError(
                            f"partitions {sorted(waiting)} of {name!r} have no leader after {timeout_s:g} s: "
                            "is a disk full (free_disk() ends that), or the broker of their only replica gone?"
                        )
                    await asyncio.sleep(RETRY_S)

    async def records(
        self, topic: str, count: int | None, timeout_s: float, *, read_committed: bool = False
    ) -> list[Record]:
        """All records that all replicas in sync have, by partition and offset; with ``count``, as
        soon as there are so many. ``read_committed``: none of transactions that are aborted or not
        decided.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        positions = dict.fromkeys(sorted(self.topic(topic).partitions), 0)
        found: dict[int, list[Record]] = {number: [] for number in positions}
        behind = set(positions)
        while True:
            asked = {number: positions[number] for number in behind or positions}
            parts = await self._fetch(
                topic, asked, max_wait_ms=0 if behind else PARKED_MS, read_committed=read_committed
            )
            for number in sorted(asked):
                part = parts.get(number)
                if part is None or part.error_code not in (ErrorCode.none, ErrorCode.offset_out_of_range):
                    continue  # it has no leader at the moment
                if part.error_code is ErrorCode.offset_out_of_range:
                    positions[number] = max(part.log_start_offset, 0)
                aborted = AbortedTransactions(
                    (int(each.producer_id), int(each.first_offset)) for each in part.aborted_transactions or ()
                )
                for view in batches(part.records or b"", allow_partial_tail=True):
                    if not aborted.hides(view) and not view.is_control:
                        records = decode(view, topic=topic, partition=number)
                        found[number] += [each for each in records if each.offset >= positions[number]]
                    positions[number] = max(positions[number], view.next_offset)
                if positions[number] >= (part.last_stable_offset if read_committed else part.high_watermark):
                    behind.discard(number)
                else:
                    behind.add(number)
            total = sum(map(len, found.values()))
            if not behind and total >= (count or 0):
                return [record for number in sorted(found) for record in found[number]]
            if asyncio.get_running_loop().time() > deadline:
                raise ClientTimeoutError(_too_few(topic, total, count, behind, timeout_s))
            if not parts:
                await asyncio.sleep(RETRY_S)

    async def write(self, key: TopicPartition, batch: bytes, timeout_s: float) -> int:
        """Append a batch, acknowledged by all replicas in sync; the offset of its first record.
        Waits for a leader and for ``min.insync.replicas``, as a producer does.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        body = requests.produce({key: batch}, acks=-1, timeout_ms=TIMEOUT_MS)
        while True:
            is_last_try = asyncio.get_running_loop().time() > deadline
            state = self.partition(*key)
            actor = self.image.actors.get(state.node_of(state.leader)) if state.leader >= 0 else None
            if actor is not None and actor.alive:
                result = (await self._ask(actor.endpoint, body)).responses[0].partition_responses[0]
                if result.error_code is ErrorCode.none:
                    return int(result.base_offset)
                if is_last_try or result.error_code not in _PASSING:
                    _raise(result.error_code, result.error_message)
            if is_last_try:
                raise ClientTimeoutError(
                    f"{key.topic}-{key.partition} has no leader after {timeout_s:g} s: is its disk full?"
                )
            await asyncio.sleep(RETRY_S)

    async def _fetch(
        self, topic: str, offsets: Mapping[int, int], *, max_wait_ms: float, read_committed: bool = False
    ) -> dict[int, Any]:
        """The answers of those leaders that can be reached, by partition."""
        shares: dict[Endpoint, dict[TopicPartition, tuple[int, int]]] = {}
        states = self.topic(topic).partitions
        for number, offset in offsets.items():
            state = states[number]
            actor = self.image.actors.get(state.node_of(state.leader)) if state.leader >= 0 else None
            if actor is not None and actor.alive:
                shares.setdefault(actor.endpoint, {})[TopicPartition(topic, number)] = (offset, -1)

        async def ask(endpoint: Endpoint, share: dict[TopicPartition, tuple[int, int]]) -> Any:
            body = requests.fetch(
                share,
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                max_bytes=FETCH_BYTES_MAX,
                partition_max_bytes=FETCH_BYTES_MAX,
                isolation_level=requests.READ_COMMITTED if read_committed else requests.READ_UNCOMMITTED,
            )
            try:
                return await self._ask(endpoint, body)
            except RaylogError:  # it has just died
                return None

        replies = await asyncio.gather(*(ask(endpoint, share) for endpoint, share in shares.items()))
        return {
            part.partition_index: part
            for reply in replies
            if reply is not None
            for each in reply.responses
            for part in each.partitions
        }

    # ------------------------------------------------------------------ links

    async def _ask_controller(self, body: Any) -> Any:
        return await self._ask(self._address.bootstrap[0], body)

    async def _ask(self, endpoint: Endpoint, body: Any) -> Any:
        connection = self._connections.get(endpoint)
        if connection is None or not connection.is_open:
            connection = self._connections[endpoint] = await Connection.open(
                endpoint, secret=self._address.secret, cluster_id=self._address.cluster_id, client_id="raylog.testing"
            )
        return await connection.request(body, timeout_ms=TIMEOUT_MS)


def _raise(code: int, message: str | None) -> None:
    if code == ErrorCode.none:
        return
    if code == ErrorCode.invalid_config:
        raise ConfigError(message or "that is no config")
    raise error_for(code, message)


def _too_few(topic: str, total: int, count: int | None, behind: set[int], timeout_s: float) -> str:
    if behind:
        return f"partitions {sorted(behind)} of {topic!r} cannot be read to their end within {timeout_s:g} s: have they a leader?"
    return (
        f"{topic!r} holds {total} of the {count} records that are waited for, after {timeout_s:g} s: "
        "has the producer flushed, and was it told of an error?"
    )
