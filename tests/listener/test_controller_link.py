"""A Broker's requests to the active controller: what a standby answers never reaches the client."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raylog.kafka import table
from raylog.kafka.refusal import refusal
from raylog.kafka.spec import ApiSpec
from raylog.listener.controller_link import ControllerLink
from raylog.server.apis.entities import build, module_of, request_class, response_class
from raylog.types import ActorIdentity, Endpoint
from raylog.wire.handshake import Peer
from raylog.wire.request import Request
from raylog.wire.server import Server

pytestmark = pytest.mark.core

IDENTITY = ActorIdentity("cluster-1", 1, uuid.UUID(int=7), 4711)
ASKED_OF_ALL = datetime.timedelta(milliseconds=1)


def quorum_request(version: int) -> Any:
    cls = request_class(table.DESCRIBE_QUORUM, version)
    module = module_of(cls)
    partitions = (module.PartitionData(partition_index=0),)
    return cls(topics=(module.TopicData(topic_name="__cluster_metadata", partitions=partitions),))


def election_request(version: int) -> Any:
    return build(
        request_class(table.ELECT_LEADERS, version), election_type=0, topic_partitions=None, timeout=ASKED_OF_ALL
    )


CASES = [
    pytest.param(spec, make(version), error, id=f"{spec.name} {version}")
    for spec, make, error in (
        (table.DESCRIBE_QUORUM, quorum_request, ErrorCode.not_leader_or_follower),
        (table.ELECT_LEADERS, election_request, ErrorCode.not_controller),
    )
    for version in spec.versions
]


@pytest.mark.parametrize(("spec", "body", "error"), CASES)
def test_a_standbys_refusal_is_not_handed_out(spec: ApiSpec, body: Any, error: ErrorCode) -> None:
    version = type(body).__version__
    asked: list[Request] = []
    done = build(
        response_class(spec, version),
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode.none,
        error_message=None,
        topics=(),
        nodes=(),
        replica_election_results=(),
    )

    def answer(request: Request) -> None:
        asked.append(request)
        standby = refusal(spec, version, request.body, error, "this controller is not the active one")
        request.reply(standby if len(asked) == 1 else done)

    async def work() -> None:
        async with asyncio.timeout(60):
            server = Server({spec.key: answer}, identity=IDENTITY, secret="s")
            endpoint: Endpoint = await server.start()
            link = ControllerLink(
                lambda: endpoint, secret=b"s", cluster_id="cluster-1", caller=Peer(65_536, 1), timeout_ms=30_000
            )
            try:
                assert await link.ask(body) == done and len(asked) == 2
            finally:
                link.close()
                await server.stop()

    asyncio.run(work())
