"""Questions to the leaders of partitions, asked until each has answered: ListOffsets,
OffsetForLeaderEpoch, DeleteRecords, DescribeProducers.

The partitions are grouped by leader, one request each. What comes back with an error that another
leader, or a little time, may heal is asked again, after a search for the leader where the error
concerns it, until the deadline; the rest is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.client.admin.inspection import ProducerInfo, producers_of
from raylog.client.links import requests
from raylog.client.links.link import ClusterLink
from raylog.client.links.metadata import LEADER_ERRORS, PartitionLeader
from raylog.errors import ClientTimeoutError, RaylogError, error_for
from raylog.types import Endpoint, TopicPartition
from raylog.wire.handshake import Peer

Asked = dict[TopicPartition, Any]
Build = Callable[[dict[TopicPartition, tuple[Any, int]]], Any]
"""Makes the request out of what is asked and the leader epoch, per partition."""


class LeaderRequests:
    def __init__(self, link: ClusterLink) -> None:
        self._link = link

    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        timeout_ms: float,
        *,
        isolation_level: int = requests.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, tuple[int, int, int]]:
        """(offset, timestamp, leader epoch) for a timestamp, −1 latest, −2 earliest or −3 the
        largest timestamp's.
        """
        answers = await self._ask(
            dict(timestamps),
            partial(requests.list_offsets, isolation_level=isolation_level),
            lambda reply: _partitions(reply.topics, "name", "partition_index"),
            timeout_ms,
        )
        return {key: (int(a.offset), int(a.timestamp), int(a.leader_epoch)) for key, a in answers.items()}

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(epoch, end offset) of the largest epoch up to the one asked about; −1, −1 where the
        leader has none.
        """
        answers = await self._ask(
            dict(epochs),
            requests.offset_for_leader_epoch,
            lambda reply: _partitions(reply.topics, "topic", "partition"),
            timeout_ms,
        )
        return {key: (int(a.leader_epoch), int(a.end_offset)) for key, a in answers.items()}

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The log start offsets after everything below these offsets was deleted."""

        def build(asked: dict[TopicPartition, tuple[Any, int]]) -> Any:
            return requests.delete_records({key: offset for key, (offset, _) in asked.items()}, timeout_ms=timeout_ms)

        answers = await self._ask(
            dict(offsets), build, lambda reply: _partitions(reply.topics, "name", "partition_index"), timeout_ms
        )
        return {key: int(a.low_watermark) for key, a in answers.items()}

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, tuple[ProducerInfo, ...]]:
        """The producers that each leader remembers."""
        answers = await self._ask(
            dict.fromkeys(partitions),
            requests.describe_producers,
            lambda reply: _partitions(reply.topics, "name", "partition_index"),
            timeout_ms,
        )
        return {key: producers_of(answer) for key, answer in answers.items()}

    async def end_transaction(self, key: TopicPartition, request: Any, timeout_ms: float) -> None:
        """Have the leader carry out a WriteTxnMarkers for that partition alone."""
        await self._ask(
            {key: None},
            lambda asked: request,
            lambda reply: _partitions(reply.markers[0].topics, "name", "partition_index"),
            timeout_ms,
        )

    async def _ask(
        self, asked: Asked, build: Build, read: Callable[[Any], dict[TopicPartition, Any]], timeout_ms: float
    ) -> dict[TopicPartition, Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        config = self._link.config
        done: dict[TopicPartition, Any] = {}
        failures = 0
        failure: RaylogError = ClientTimeoutError("no attempt was made")
        while len(done) < len(asked):
            open_ones = {key: value for key, value in asked.items() if key not in done}
            searches: list[tuple[TopicPartition, PartitionLeader | None, Peer | None]] = []
            for key, answer, leader, peer in await self._round(open_ones, build, read):
                if isinstance(answer, RaylogError):
                    if not answer.retriable:
                        raise answer
                    failure = answer
                    if answer.code in LEADER_ERRORS:
                        searches.append((key, leader, peer))
                else:
                    done[key] = answer
            if len(done) == len(asked):
                break
            failures += 1
            backoff = (
                0.02
                if failures == 1
                else min(config.retry_backoff_ms * 2 ** min(failures - 2, 16), config.retry_backoff_max_ms) / 1000
            )
            if loop.time() + backoff >= deadline:
                raise ClientTimeoutError(f"no answer within {timeout_ms:g} ms: {failure}") from failure
            if searches:
                await asyncio.wait(
                    [asyncio.ensure_future(self._searched(*search)) for search in searches],
                    timeout=backoff if failures > 1 else 1.0,
                )
            await asyncio.sleep(backoff if not searches or failures > 1 else 0)
        return done

    async def _round(
        self, asked: Asked, build: Build, read: Callable[[Any], dict[TopicPartition, Any]]
    ) -> list[tuple[TopicPartition, Any, PartitionLeader | None, Peer | None]]:
        """One attempt for each partition: its answer, or the error."""
        by_endpoint: dict[Endpoint, dict[TopicPartition, tuple[Any, int]]] = {}
        leaders: dict[TopicPartition, PartitionLeader] = {}
        results: list[tuple[TopicPartition, Any, PartitionLeader | None, Peer | None]] = []
        for key, value in asked.items():
            await self._link.metadata.partition(key)
            leader = self._link.metadata.leader(key)
            assert leader is not None
            leaders[key] = leader
            if leader.endpoint is None:
                results.append(
                    (
                        key,
                        error_for(
                            ErrorCode.leader_not_available, f"{key.topic}-{key.partition} has no leader at the moment"
                        ),
                        leader,
                        None,
                    )
                )
            else:
                by_endpoint.setdefault(leader.endpoint, {})[key] = (value, leader.epoch)
        answered = await asyncio.gather(
            *(self._one(endpoint, part, build, read) for endpoint, part in by_endpoint.items())
        )
        for part, (answers, peer) in zip(by_endpoint.values(), answered, strict=True):
            results += [(key, answers.get(key) or _unanswered(key), leaders[key], peer) for key in part]
        return results

    async def _one(
        self,
        endpoint: Endpoint,
        part: dict[TopicPartition, tuple[Any, int]],
        build: Build,
        read: Callable[[Any], dict[TopicPartition, Any]],
    ) -> tuple[dict[TopicPartition, Any], Peer | None]:
        peer = None
        try:
            connection = await self._link.connections.get(endpoint)
            peer = connection.peer
            reply = await connection.request(build(part), timeout_ms=self._link.config.request_timeout_ms)
        except RaylogError as error:
            failure = error_for(ErrorCode.network_exception, str(error))
            return dict.fromkeys(part, failure), peer
        return {key: _answer(key, answer) for key, answer in read(reply).items()}, None

    async def _searched(self, key: TopicPartition, failed: PartitionLeader | None, peer: Peer | None) -> None:
        ended = asyncio.Event()
        self._link.metadata.search_leader(key, failed, peer=peer, on_end=lambda *_: ended.set())
        await ended.wait()


def _partitions(topics: Any, name: str, index: str) -> dict[TopicPartition, Any]:
    return {
        TopicPartition(str(getattr(topic, name)), int(getattr(partition, index))): partition
        for topic in topics
        for partition in topic.partitions
    }


def _answer(key: TopicPartition, answer: Any) -> Any:
    code = answer.error_code
    if code is ErrorCode.none:
        return answer
    return error_for(code, f"{key.topic}-{key.partition}: {_MEANINGS.get(code) or ErrorCode(code).name.upper()}")


_MEANINGS = {
    ErrorCode.offset_out_of_range: "the offset lies outside the log, or above its high watermark",
    ErrorCode.offset_not_available: "its new leader does not know the high watermark yet",
}


def _unanswered(key: TopicPartition) -> RaylogError:
    return error_for(ErrorCode.network_exception, f"the leader's answer does not contain {key.topic}-{key.partition}")
