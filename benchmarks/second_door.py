"""A replica that Kafka clients can reach without the Broker in between: for measuring what is on the way.

The production server has a second listener on the same loop here: a plain ``raylog.wire.server.Server`` without secret that answers in
order, as Kafka clients want it. It hands Produce and Fetch to the very handlers of the replica and answers ApiVersions and Metadata
itself (this server leads every topic's one partition). So no byte is forwarded, copied or encoded once more.
"""

from __future__ import annotations

import datetime

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9 import response as metadata

from raylog.kafka.table import FETCH, METADATA, PRODUCE
from raylog.server.replica_server import ReplicaServer
from raylog.types import Endpoint
from raylog.wire.request import Request
from raylog.wire.server import Server

METADATA_VERSIONS = range(9, 10)
NODE = 1
NO_DELAY = datetime.timedelta(0)


class ReplicaServerWithSecondDoor(ReplicaServer):
    """The production server, and a listener for clients that speak plain Kafka."""

    second_door: Endpoint

    async def start(self) -> Endpoint:
        endpoint = await super().start()
        door = Server(
            {PRODUCE.key: self._produce, FETCH.key: self._fetch, METADATA.key: self._metadata},
            ordered=True,
            borrows_records=True,
            versions={PRODUCE.key: PRODUCE.versions, FETCH.key: FETCH.versions, METADATA.key: METADATA_VERSIONS},
        )
        self.second_door = await door.start()
        return endpoint

    def _metadata(self, request: Request) -> None:
        partition = metadata.MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=0,
            leader_id=NODE,
            leader_epoch=-1,
            replica_nodes=(NODE,),
            isr_nodes=(NODE,),
            offline_replicas=(),
        )
        topics = tuple(
            metadata.MetadataResponseTopic(
                error_code=ErrorCode.none, name=topic.name, is_internal=False, partitions=(partition,)
            )
            for topic in request.body.topics or ()
        )
        door = metadata.MetadataResponseBroker(
            node_id=NODE, host=self.second_door.host, port=self.second_door.port, rack=None
        )
        request.reply(
            metadata.MetadataResponse(
                throttle_time=NO_DELAY, brokers=(door,), cluster_id="bench", controller_id=NODE, topics=topics
            )
        )
