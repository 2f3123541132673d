"""A Kafka client without a library: requests encoded once, replies read at fixed places.

For measuring servers with requests that cost the client as little as possible. A connection is made as a client makes it: Metadata
from the bootstrap address names the leader's broker, and its first request is ApiVersions, so that whatever a server does with new
connections happens here too. All clients of raylog's and of Apache Kafka's speak ``PRODUCE`` and ``FETCH`` in the same version.

::

    reply to Produce v10 = correlation id int32 | tags | topics (1) | name | partitions (1)
                         | index int32 | error int16 | base offset int64 | …
    reply to Fetch v12   = correlation id int32 | tags | throttle int32 | error int16 | session int32 | topics (1) | name | partitions (1)
                         | index int32 | error int16 | high watermark int64 | last stable offset int64 | log start int64
                         | aborted (none) | preferred replica int32 | size of the records, varint | base offset of the first int64 | …
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from raylog.client.links import requests
from raylog.records.codec import encode_values
from raylog.types import Endpoint, TopicPartition
from raylog.wire.frames import client_id_field, decode_response, encode_request

PRODUCE = (0, 10)
FETCH = (1, 12)
METADATA = (3, 9)
API_VERSIONS = (18, 3)
RECORD_BYTES = 100
WAIT_S = 30.0
SIZE = struct.Struct(">i")
PRODUCED = struct.Struct(">hq")  # error, base offset
FETCHED = struct.Struct(">hq")  # error, high watermark
OFFSET = struct.Struct(">q")

_CLIENT = client_id_field("small")
_MARK = 0x0102030405060708  # an offset that is nowhere else in a frame


def frame(entity: Any) -> bytes:
    """A whole request."""
    return b"".join(bytes(part) for part in encode_request(entity, 1, _CLIENT))


def produce_frame(topic: str, partition: int, acks: int) -> bytes:
    """A Produce request of one batch of one record."""
    batch = encode_values([b"." * RECORD_BYTES], timestamp_ms=int(time.time() * 1000))
    return frame(requests.produce({TopicPartition(topic, partition): batch}, acks=acks, timeout_ms=30_000))


def produced_at(topic: str) -> int:
    """Where ``PRODUCED`` stands in a reply, behind its size."""
    return 4 + 1 + 1 + 1 + len(topic) + 1 + 4


class FetchFrame:
    """A Fetch request of one partition. ``at(offset)`` is the frame for that offset."""

    def __init__(self, topic: str, partition: int, *, partition_max_bytes: int) -> None:
        request = requests.fetch(
            {TopicPartition(topic, partition): (_MARK, -1)},
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=52_428_800,
            partition_max_bytes=partition_max_bytes,
        )
        self._frame = bytearray(frame(request))
        mark = OFFSET.pack(_MARK)
        assert self._frame.count(mark) == 1, "the offset stands in the frame once"
        self._place = self._frame.index(mark)

    def at(self, offset: int) -> bytes:
        OFFSET.pack_into(self._frame, self._place, offset)
        return bytes(self._frame)


def fetched_at(topic: str) -> int:
    """Where ``FETCHED`` stands in a reply, behind its size."""
    return 4 + 1 + 4 + 2 + 4 + 1 + 1 + len(topic) + 1 + 4


def first_offset(data: bytes, fetched: int) -> int | None:
    """The base offset of the first batch in a reply to Fetch, or None where it holds no records. ``fetched``: where ``FETCHED`` stands."""
    position = fetched + FETCHED.size + 8 + 8 + 1 + 4
    if data[position] <= 1:  # compact: null, or empty
        return None
    while data[position] & 0x80:
        position += 1
    return int(OFFSET.unpack_from(data, position + 1)[0])


# ------------------------------------------------------------------ connections


def ask(connection: socket.socket, request: bytes) -> bytes:
    """One request's reply, behind its size."""
    connection.sendall(request)
    (size,) = SIZE.unpack(_exactly(connection, SIZE.size))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = connection.recv(count)
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("closed in the middle of a reply")
        data += more
    return data


def connect(endpoint: Endpoint) -> socket.socket:
    """A connection that has spoken ApiVersions."""
    connection = socket.create_connection((endpoint.host, endpoint.port), WAIT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    greeting = ApiVersionsRequest(client_software_name="small", client_software_version="1")
    reply = decode_response(*API_VERSIONS, ask(connection, frame(greeting)))
    spoken = {each.api_key: range(each.min_version, each.max_version + 1) for each in reply.api_keys}
    for key, version in (PRODUCE, FETCH, METADATA):
        assert version in spoken[key], f"API {key}: version {version} is not in {spoken[key]}"
    return connection


def leaders(bootstrap: str, topic: str) -> list[Endpoint]:
    """For each partition of a topic the broker that Metadata names as its leader; waits until each has one."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    request = frame(
        MetadataRequest(
            topics=(MetadataRequestTopic(name=TopicName(topic)),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
    )
    deadline = time.monotonic() + WAIT_S
    with connect(Endpoint(host, int(port))) as connection:
        while True:
            reply = decode_response(*METADATA, ask(connection, request))
            brokers = {each.node_id: Endpoint(each.host, each.port) for each in reply.brokers}
            partitions = sorted(reply.topics[0].partitions, key=lambda each: each.partition_index)
            if partitions and all(each.leader_id in brokers for each in partitions):
                return [brokers[each.leader_id] for each in partitions]
            assert time.monotonic() < deadline, f"{topic} has partitions without a leader: {partitions}"
            time.sleep(0.05)
