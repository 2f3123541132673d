"""What Kafka's DescribeCluster, Metadata and DescribeLogDirs say of a cluster, by the names of its own
status.

What Kafka has no word for is missing, such as the processes. None stands for it where a broker has
it: who is being drained, which disks are offline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from raylog.cli.output import print_table, print_text
from raylog.types import Endpoint
from raylog.wire.listeners import endpoint_text

if TYPE_CHECKING:
    from raylog.client.admin.admin import ClusterDescription, PartitionInfo, TopicDescription
    from raylog.client.admin.inspection import LogDir
    from raylog.cluster import Cluster


def status_from_outside(cluster: Cluster) -> dict[str, Any]:
    """Brokers also with their replicas and how many partitions they lead."""
    with cluster.admin() as admin:
        return outside_status(
            admin.describe_cluster(include_fenced=True), admin.describe_topics(), admin.describe_log_dirs()
        )


def outside_status(
    described: ClusterDescription,
    topics: Mapping[str, TopicDescription],
    log_dirs: Mapping[int, Mapping[str, LogDir]],
) -> dict[str, Any]:
    """The status, out of the three answers."""
    parts = [part for topic in topics.values() for part in topic.partitions]
    brokers = [
        {
            "id": each.broker,
            "rack": each.rack,
            "listener": endpoint_text(Endpoint(each.host, each.port)),
            "live": not each.is_fenced,
            "draining": None,
            "replicas": sum(each.broker in part.replicas for part in parts),
            "leads": sum(part.leader == each.broker for part in parts),
            "disks": sorted(log_dirs.get(each.broker, {})),
            "offline_disks": None,
        }
        for each in described.brokers
    ]
    return {
        "cluster_id": described.cluster_id,
        "controller": {"broker": described.controller},
        "brokers": brokers,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition": part.partition,
                        "leader": part.leader,
                        "leader_epoch": part.leader_epoch,
                        "replicas": list(part.replicas),
                        "isr": list(part.isr),
                        "offline": list(part.offline),
                    }
                    for part in topic.partitions
                ],
            }
            for name, topic in sorted(topics.items())
        ],
        "under_replicated": _named(topics, lambda part: len(part.isr) < len(part.replicas)),
        "leaderless": _named(topics, lambda part: part.leader < 0),
    }


def _named(topics: Mapping[str, TopicDescription], is_meant: Callable[[PartitionInfo], bool]) -> list[str]:
    return [
        f"{name}-{part.partition}"
        for name, topic in sorted(topics.items())
        for part in topic.partitions
        if is_meant(part)
    ]


def print_status_from_outside(state: dict[str, Any]) -> None:
    print_text(f"Cluster {state['cluster_id']}: the controller is broker {state['controller']['broker']}'s", "")
    rows = [
        [
            *(each["id"], each["rack"] or "-", "live" if each["live"] else "away"),
            *(each["replicas"], each["leads"], ", ".join(each["disks"])),
        ]
        for each in state["brokers"]
    ]
    print_table(["broker", "rack", "state", "replicas", "leads", "disks"], rows)
    print_text("", f"Kafka clients: bootstrap.servers={','.join(each['listener'] for each in state['brokers'])}", "")
    print_topics(state)


def print_topics(state: dict[str, Any]) -> None:
    """The topics of a status, from inside or outside; a hint where there are none."""
    from raylog.configs.broker_configs import REPLICATION_FACTOR_UNSET

    topics = []
    for topic in state["topics"]:
        parts = topic["partitions"]
        topics.append(
            [
                topic["name"],
                len(parts),
                max((len(part["replicas"]) for part in parts), default=0),
                sum(len(part["isr"]) < len(part["replicas"]) for part in parts),
                sum(part["leader"] < 0 for part in parts),
            ]
        )
    if topics:
        print_table(["topic", "partitions", "replicas", "out of sync", "no leader"], topics)
    else:
        factor = min(REPLICATION_FACTOR_UNSET, len(state["brokers"]))
        print_text(f"No topics yet: raylog topics create events --partitions 6 --replication-factor {factor}")
