"""Requests that a controller has to refuse, each by its own error, and that change nothing."""

from __future__ import annotations

import uuid

from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigQuery,
    DescribeConfigs,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.requests import (
    AlterReassignments,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DescribeTopics,
    DrainBroker,
    ElectionType,
    ElectLeaders,
    PartitionGrowth,
    PartitionTarget,
    RegisterDisk,
    Request,
    RequestedTopic,
)


def nonsense(
    topic: str, unknown: uuid.UUID, cluster_id: str, change: ConfigChange, *, directory_id: uuid.UUID
) -> tuple[Request, ...]:
    """``topic`` may exist, ``unknown`` is nobody's id; ``directory_id`` is a disk of broker 1."""
    return (
        CreateTopics(
            (
                RequestedTopic(topic, 1, 1),
                RequestedTopic("no/name", 1, 1),
                RequestedTopic("d", 1, 9),
                RequestedTopic("e", 0, 1),
            )
        ),
        CreateTopics((RequestedTopic("d", assignment=((0, (1, 1)),)), RequestedTopic("e", assignment=((0, (77,)),)))),
        CreateTopics((RequestedTopic("d", assignment=((0, (1, 2)), (1, (2, 1)))),), validate_only=True),
        CreatePartitions((PartitionGrowth(topic, 1), PartitionGrowth("nobody", 5), PartitionGrowth(topic, 1))),
        DeleteTopics(names=("nobody",), topic_ids=(unknown,)),
        AlterConfigs((ResourceChanges(ResourceType.TOPIC, topic, (change,)),)),
        AlterConfigs((ResourceChanges(ResourceType.TOPIC, "nobody", (change,)),)),
        DescribeTopics(topic_ids=(unknown,)),
        DescribeConfigs((ConfigQuery(ResourceType.TOPIC, "nobody"), ConfigQuery(ResourceType.BROKER, "77"))),
        RegisterDisk("another cluster", 1, unknown, "/elsewhere"),
        RegisterDisk(cluster_id, 2, directory_id, "/moved"),
        ElectLeaders(ElectionType.PREFERRED, (("nobody", 0),)),
        AlterReassignments((PartitionTarget("nobody", 0, (1,)), PartitionTarget(topic, 0, (77,)))),
        AlterReassignments((PartitionTarget(topic, 0, (1, 2, 3)),), allow_replication_factor_change=False),
        AlterReassignments((PartitionTarget(topic, 0, ()), PartitionTarget(topic, 0, (1, 1)))),
        DrainBroker(77),
    )
