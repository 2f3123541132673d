"""The APIs about the disks of this broker.

DescribeLogDirs asks every process of the broker, and merges the answers by folder. A replica that
has begun to move is shown as a future one from then on, before any process has opened its copy:
Kafka's tool takes a replica that is shown nowhere else for one whose move was cancelled, and ends
its throttle.
AlterReplicaLogDirs names disks and the replicas that shall be there; the controller begins the
moves. A client asks the broker whose replicas shall move.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from raylog.kafka.chain import Refuse
from raylog.kafka.table import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from raylog.listener.controller_link import ControllerLink
from raylog.listener.owners import Owners
from raylog.listener.routes import Routes
from raylog.metadata.actors import disk_moves
from raylog.metadata.actors.disk_requests import DiskMove
from raylog.server.apis.entities import CODES, NO_DELAY, build, module_of, response_class
from raylog.wire import private
from raylog.wire.request import Request

TIMEOUT_MS = 10_000


def handler(routes: Routes, owners: Owners) -> Callable[[Request], Any]:
    """Return the handler. A process that does not answer is left out, so its replicas have no size."""

    async def handle(request: Request) -> Any:
        loop = asyncio.get_running_loop()
        asked: list[asyncio.Future[Any]] = []
        for owner in routes.replica_processes():
            future: asyncio.Future[Any] = loop.create_future()

            def heard(reply: Any, error: Exception | None, future: asyncio.Future[Any] = future) -> None:
                if not future.done():
                    future.set_result(reply)

            owners.call(owner, request.body, heard, timeout_ms=TIMEOUT_MS, context=request.context)
            asked.append(future)
        found: dict[str, Any] = {}
        for reply in [each for each in await asyncio.gather(*asked) if each is not None]:
            for result in reply.results:
                known = found.get(result.log_dir)
                found[result.log_dir] = result if known is None else _merged(known, result)
        for move in disk_moves.under_way(routes.image):
            if move.broker_id == routes.broker_id and _is_asked(request, move):
                _add_begun(found, move, request.version)
        results = tuple(result for _, result in sorted(found.items()))
        cls = response_class(DESCRIBE_LOG_DIRS, request.version)
        return build(cls, throttle_time=NO_DELAY, error_code=ErrorCode.none, results=results)

    return handle


def _is_asked(request: Request, move: DiskMove) -> bool:
    asked = request.body.topics
    return asked is None or any(each.topic == move.topic and move.partition in each.partitions for each in asked)


def _add_begun(found: dict[str, Any], move: DiskMove, version: int) -> None:
    """A copy that no process has opened yet is on its way, too: nothing of it is there."""
    module = module_of(response_class(DESCRIBE_LOG_DIRS, version))
    part = module.DescribeLogDirsPartition(
        partition_index=move.partition, partition_size=0, offset_lag=-1, is_future_key=True
    )
    topic = module.DescribeLogDirsTopic(name=move.topic, partitions=(part,))
    known = found.get(move.path)
    if known is None:
        found[move.path] = build(
            module.DescribeLogDirsResult,
            error_code=ErrorCode.none,
            log_dir=move.path,
            topics=(topic,),
            total_bytes=-1,
            usable_bytes=-1,
            is_cordoned=False,
        )
    elif not any(
        each.name == move.topic and any(held.partition_index == move.partition for held in each.partitions)
        for each in known.topics
    ):
        one = dataclasses.replace(known, topics=(topic,))
        found[move.path] = _merged(known, one)


def alterer(routes: Routes, link: ControllerLink) -> Callable[[Request], Any]:
    """Return the handler of AlterReplicaLogDirs. Without a controller every replica has the error
    REQUEST_TIMED_OUT.
    """

    async def handle(request: Request) -> Any:
        wanted = tuple(
            (topic.name, partition, each.path)
            for each in request.body.dirs
            for topic in each.topics
            for partition in topic.partitions
        )
        entity = private.MoveToDisksRequest(routes.broker_id, wanted)
        reply = await link.ask(entity, context=request.context, is_wanted=lambda: request.is_open)
        if reply is None:
            return altered(request, (ErrorCode.request_timed_out,) * len(wanted))
        return altered(request, [CODES[error] for error, _ in reply.outcomes])

    return handle


def refuse(request: Request, refusal: Refuse) -> None:
    """Answer AlterReplicaLogDirs with that error of every replica that it names."""
    named = sum(len(topic.partitions) for each in request.body.dirs for topic in each.topics)
    request.reply(altered(request, (refusal.code,) * named))


def altered(request: Request, errors: Sequence[ErrorCode]) -> Any:
    """The answer to AlterReplicaLogDirs with these errors of the replicas that it names, in order."""
    cls = response_class(ALTER_REPLICA_LOG_DIRS, request.version)
    module = module_of(cls)
    topics: dict[str, list[Any]] = {}
    named = ((topic.name, n) for each in request.body.dirs for topic in each.topics for n in topic.partitions)
    for (topic, partition), error in zip(named, errors, strict=True):
        result = module.AlterReplicaLogDirPartitionResult(partition_index=partition, error_code=error)
        topics.setdefault(topic, []).append(result)
    results = tuple(
        module.AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(partitions))
        for name, partitions in topics.items()
    )
    return build(cls, throttle_time=NO_DELAY, results=results)


def _merged(one: Any, other: Any) -> Any:
    topics = {topic.name: topic for topic in one.topics}
    for topic in other.topics:
        known = topics.get(topic.name)
        topics[topic.name] = (
            topic if known is None else dataclasses.replace(known, partitions=(*known.partitions, *topic.partitions))
        )
    return dataclasses.replace(one, topics=tuple(topic for _, topic in sorted(topics.items())))
