"""DescribeQuorum at a controller: the voters and observers of ``__cluster_metadata-0`` and how far
each is.

Only the active controller knows; another one answers NOT_LEADER_OR_FOLLOWER. Members are named by
the broker on whose disk they are. The addresses of version 2 are those of the controllers' own
listeners, inside the cluster.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from raylog.disks.disk import decode_id
from raylog.kafka.context import CONTROLLER, CONTROLLER_WITH_TLS
from raylog.kafka.refusal import refusal
from raylog.kafka.table import DESCRIBE_QUORUM
from raylog.server.apis.entities import build, module_of, response_class
from raylog.types import Endpoint

TOPIC = "__cluster_metadata"


def entity(request: Any, version: int, quorum: dict[str, Any], *, has_tls: bool = False) -> Any:
    """``has_tls``: whether controllers speak TLS. ``quorum`` as ``quorum_status`` gives it."""
    if not quorum["told_by"]["is_active"]:
        return refusal(
            DESCRIBE_QUORUM,
            version,
            request,
            ErrorCode.not_leader_or_follower,
            "this controller is not the active one",
        )
    cls = response_class(DESCRIBE_QUORUM, version)
    module = module_of(cls)

    def members(which: str) -> tuple[Any, ...]:
        return tuple(
            build(
                module.ReplicaState,
                replica_id=each["broker"],
                replica_directory_id=decode_id(each["directory_id"]),
                log_end_offset=each["log_end_offset"],
                last_fetch_timestamp=each["last_fetch_timestamp"],
                last_caught_up_timestamp=each["last_caught_up_timestamp"],
            )
            for each in quorum[which]
        )

    def partition(topic: Any, index: int) -> Any:
        if (topic.topic_name, index) != (TOPIC, 0):
            error, why = ErrorCode.unknown_topic_or_partition, f"the quorum's log is {TOPIC}-0"
        else:
            error, why = ErrorCode.none, None
        is_known = error is ErrorCode.none
        return build(
            module.PartitionData,
            partition_index=index,
            error_code=error,
            error_message=why,
            leader_id=quorum["leader_id"] if is_known else -1,
            leader_epoch=quorum["leader_epoch"] if is_known else -1,
            high_watermark=quorum["high_watermark"] if is_known else -1,
            current_voters=members("voters") if is_known else (),
            observers=members("observers") if is_known else (),
        )

    topics = tuple(
        module.TopicData(
            topic_name=topic.topic_name,
            partitions=tuple(partition(topic, each.partition_index) for each in topic.partitions),
        )
        for topic in request.topics
    )
    return build(
        cls,
        error_code=ErrorCode.none,
        error_message=None,
        topics=topics,
        nodes=_nodes(module, quorum, CONTROLLER_WITH_TLS if has_tls else CONTROLLER) if version >= 2 else (),
    )


def _nodes(module: Any, quorum: dict[str, Any], listener: str) -> tuple[Any, ...]:
    found = {}
    for each in quorum["voters"] + quorum["observers"]:
        if each["endpoint"] is not None:
            found[each["broker"]] = Endpoint.of(each["endpoint"])
    return tuple(
        module.Node(
            node_id=broker,
            listeners=(module.Listener(name=listener, host=endpoint.host, port=endpoint.port),),
        )
        for broker, endpoint in sorted(found.items())
    )
