"""WriteTxnMarkers at a process that holds replicas: markers of transactions' ends, by topic name.

From version 2 on the request names the version of transactions that a marker belongs to (KIP-1228);
an older one means a version before 2.
"""

from __future__ import annotations

from typing import Any, Final

from raylog.kafka.table import WRITE_TXN_MARKERS
from raylog.log.markers import TransactionEnd
from raylog.records.control import Marker
from raylog.replication.events import ProduceReply
from raylog.replication.transaction_events import MarkersReceived, PartitionMarker
from raylog.server.apis.entities import CODES, TopicNames, module_of, response_class
from raylog.types import TopicIdPartition

TIMEOUT_MS: Final = 30_000
"""How long it may take until all replicas have them; Kafka's request.timeout.ms of brokers."""


def event(request: Any, token: int, names: TopicNames, _: int) -> MarkersReceived:
    markers = []
    for each in request.markers:
        marker = Marker.COMMIT if each.transaction_result else Marker.ABORT
        version = getattr(each, "transaction_version", 0)
        end = TransactionEnd(each.producer_id, each.producer_epoch, each.coordinator_epoch, marker, version)
        for topic in each.topics:
            topic_id = names.id_of(topic)
            markers += [PartitionMarker(TopicIdPartition(topic_id, index), end) for index in topic.partition_indexes]
    return MarkersReceived(token, TIMEOUT_MS, tuple(markers))


def entity(request: Any, reply: ProduceReply, version: int) -> Any:
    """Results come in the order of the request."""
    cls = response_class(WRITE_TXN_MARKERS, version)
    module = module_of(cls)
    results = iter(reply.partitions)
    return cls(
        markers=tuple(
            module.WritableTxnMarkerResult(
                producer_id=each.producer_id,
                topics=tuple(
                    module.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            module.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=CODES[next(results).error]
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in each.topics
                ),
            )
            for each in request.markers
        )
    )
