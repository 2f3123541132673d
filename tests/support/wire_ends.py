"""A server with handlers of the test's choosing, and the clients that talk to it: proven ones and bare sockets."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import ProduceResponse

from raylog.types import ActorIdentity, Endpoint
from raylog.wire.connection import Connection
from raylog.wire.server import Server

SECRET, CLUSTER = "a secret", "cluster-1"
IDENTITY = ActorIdentity(CLUSTER, 65538, uuid.UUID(int=7), 4711)
EMPTY_REPLY = ProduceResponse(responses=(), throttle_time=datetime.timedelta(0))


def produce(records: bytes = b"x", acks: int = 1) -> ProduceRequest:
    topic = TopicProduceData(name="t", partition_data=(PartitionProduceData(index=0, records=records),))
    return ProduceRequest(acks=acks, timeout=datetime.timedelta(seconds=1), topic_data=(topic,))


def server_of(handlers: dict[int, Any], **options: Any) -> Server:
    return Server(handlers, **{"identity": IDENTITY, "secret": SECRET} | options)


async def client_of(endpoint: Endpoint, **options: Any) -> Connection:
    return await Connection.open(endpoint, **{"secret": SECRET, "cluster_id": CLUSTER} | options)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def raw(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(endpoint.host, endpoint.port)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
