"""What ``raylog top`` asks a cluster each time it looks.

Inside the cluster it asks the controller for the status and every server process for its metrics, the
controllers among them. Through the brokers' listeners it asks what Kafka's protocol has: sizes and
ends of logs, whose growth is the traffic in, and the quorum. That protocol has no request for the
traffic out and for processes.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from raylog.errors import ClusterError, KafkaError
from raylog.metrics import table
from raylog.metrics.metric import Metric
from raylog.types import CONTROLLER_SLOT, Endpoint, TopicPartition, broker_of, node_id

if TYPE_CHECKING:
    from raylog.client.sync import AdminClient
    from raylog.cluster import Cluster
    from raylog.metrics.registry import Samples


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """Totals of a topic that one source has counted; None: it does not count that."""

    bytes_in: float
    records_in: float
    bytes_out: float | None = None
    replication_bytes_in: float | None = None


@dataclass(frozen=True, slots=True)
class FollowerPlace:
    """How many records a follower lacks."""

    key: TopicPartition
    broker: int
    leader: int
    lag: int
    in_sync: bool


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One server process; None: it has not said. CPU in seconds since its start; the delay of its
    event loop in seconds, the worst of the last minute.
    """

    node_id: int
    incarnation: int
    kind: str
    pid: int | None
    replicas: int | None
    leaders: int | None
    cpu_s: float | None = None
    memory_bytes: int | None = None
    loop_delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """A cluster at one moment. ``traffic``: by source and topic; a source counts as long as it
    lives. ``at_s``: of a clock that only counts. ``processes`` None: nobody says.
    """

    at_s: float
    time_ms: int
    status: Mapping[str, Any]
    traffic: Mapping[Hashable, Mapping[str, TopicTraffic]]
    followers: tuple[FollowerPlace, ...]
    group_lags: Mapping[str, Mapping[TopicPartition, int]]
    processes: tuple[ProcessLook, ...] | None
    silent: tuple[int, ...] = field(default=())
    """Node ids of processes that live and did not answer."""
    quorum: Mapping[str, Any] | None = None
    """As ``Cluster.quorum`` has it; None: the user may not know."""


def take_look(cluster: Cluster, admin: AdminClient) -> Look:
    """Raises ClusterError and its like where the cluster does not answer."""
    return _from_outside(admin) if cluster.address.is_outside else _from_inside(cluster, admin)


# ------------------------------------------------------------------ inside


def _from_inside(cluster: Cluster, admin: AdminClient) -> Look:
    status = cluster.status()
    actors = {each["node_id"]: each for each in status["actors"] if each["state"] == "live" and each["endpoint"]}
    endpoints = {node: Endpoint.of(each["endpoint"]) for node, each in actors.items()}
    quorum = _quorum(status, admin)
    controllers = _controllers(quorum)
    at_s = time.monotonic()
    told = admin.collect_metrics(endpoints | controllers)
    views = admin.describe_controllers(controllers)
    actors |= {node: _controller(node, views.get(node)) for node in controllers}
    ends = {node: _ends(samples) for node, samples in told.items()}
    return Look(
        at_s=at_s,
        time_ms=time.time_ns() // 1_000_000,
        status=status,
        traffic={(node, actors[node]["incarnation"]): _traffic(samples) for node, samples in told.items()},
        followers=followers_of(status, ends),
        group_lags=_lags(_committed(told), _leaders_ends(status, ends)),
        processes=tuple(_process(actor, told.get(node)) for node, actor in sorted(actors.items())),
        silent=tuple(sorted(actors.keys() - told.keys())),
        quorum=quorum,
    )


def _quorum(status: Mapping[str, Any], admin: AdminClient) -> dict[str, Any]:
    """As the active controller sees it, which has told the status."""
    active = status["controller"]
    node = node_id(active["broker"], CONTROLLER_SLOT)
    told = admin.describe_controllers({node: Endpoint.of(active["endpoint"])})
    if node not in told:
        raise ClusterError(f"the controller at {active['endpoint']} does not answer")
    return told[node]


def _controllers(quorum: Mapping[str, Any]) -> dict[int, Endpoint]:
    """Where those listen that can be reached, by node id."""
    return {
        node_id(each["broker"], CONTROLLER_SLOT): Endpoint.of(each["endpoint"])
        for each in (*quorum["voters"], *quorum["observers"])
        if each["reachable"] and each["endpoint"] is not None and each["broker"] >= 0
    }


def _controller(node: int, view: Mapping[str, Any] | None) -> dict[str, Any]:
    """As the status has the other processes. It does not tell its incarnation; its pid stands for it."""
    pid = None if view is None else view["told_by"]["pid"]
    unknown = dict.fromkeys(("replicas", "leaders", "memory_bytes"))
    return {"node_id": node, "incarnation": pid or 0, "kind": "controller", "pid": pid, **unknown}


def _traffic(samples: Samples) -> dict[str, TopicTraffic]:
    records, out = samples.of(table.MESSAGES_IN), samples.of(table.BYTES_OUT)
    copied = samples.of(table.REPLICATION_BYTES_IN)
    return {
        labels[0]: TopicTraffic(count, records.get(labels, 0), out.get(labels, 0), copied.get(labels, 0))
        for labels, count in samples.of(table.BYTES_IN).items()
    }


def _ends(samples: Samples) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(part)): int(end) for (topic, part), end in samples.of(table.LOG_END_OFFSET).items()
    }


def followers_of(
    status: Mapping[str, Any], ends: Mapping[int, Mapping[TopicPartition, int]]
) -> tuple[FollowerPlace, ...]:
    """How far each follower's log ends before its leader's, from where both end in a status."""
    found = []
    for topic in status["topics"]:
        for part in topic["partitions"]:
            key, leader = TopicPartition(topic["name"], part["partition"]), part["leader_node"]
            leads_to = ends.get(leader, {}).get(key)
            for node in part["replica_nodes"]:
                end = ends.get(node, {}).get(key)
                if node != leader and leads_to is not None and end is not None:
                    broker = broker_of(node)
                    lag = max(0, leads_to - end)
                    found.append(FollowerPlace(key, broker, part["leader"], lag, broker in part["isr"]))
    return tuple(found)


def _leaders_ends(
    status: Mapping[str, Any], ends: Mapping[int, Mapping[TopicPartition, int]]
) -> dict[TopicPartition, int]:
    """Where the log of each partition's leader ends."""
    found = {}
    for topic in status["topics"]:
        for part in topic["partitions"]:
            key = TopicPartition(topic["name"], part["partition"])
            end = ends.get(part["leader_node"], {}).get(key)
            if end is not None:
                found[key] = end
    return found


def _committed(told: Mapping[int, Samples]) -> dict[str, dict[TopicPartition, int]]:
    found: dict[str, dict[TopicPartition, int]] = {}
    for samples in told.values():
        for (group, topic, part), offset in samples.of(table.CURRENT_OFFSET).items():
            found.setdefault(group, {})[TopicPartition(topic, int(part))] = int(offset)
    return found


def _process(actor: Mapping[str, Any], samples: Samples | None) -> ProcessLook:
    def value(metric: Metric) -> float | None:
        return None if samples is None else samples.of(metric).get((str(actor["node_id"]),))

    memory = value(table.RESIDENT_MEMORY)
    return ProcessLook(
        node_id=actor["node_id"],
        incarnation=actor["incarnation"],
        kind=actor["kind"],
        pid=actor["pid"],
        replicas=actor["replicas"],
        leaders=actor["leaders"],
        cpu_s=value(table.CPU_SECONDS),
        memory_bytes=actor["memory_bytes"] if memory is None else int(memory),
        loop_delay_s=value(table.LOOP_DELAY),
    )


# ------------------------------------------------------------------ through the listeners


def _from_outside(admin: AdminClient) -> Look:
    from raylog.cli.from_outside import outside_status

    described, topics = admin.describe_cluster(include_fenced=True), admin.describe_topics()
    quorum = _quorum_from_outside(admin, described.cluster_id)
    at_s = time.monotonic()
    log_dirs = admin.describe_log_dirs()
    status = outside_status(described, topics, log_dirs)
    leaders = {
        TopicPartition(topic["name"], part["partition"]): part
        for topic in status["topics"]
        for part in topic["partitions"]
    }
    led = [key for key, part in leaders.items() if part["leader"] >= 0]
    ends = {key: found.offset for key, found in admin.list_offsets(dict.fromkeys(led, "latest")).items()}
    sizes: dict[tuple[int, TopicPartition], int] = {}
    followers = []
    for broker, dirs in log_dirs.items():
        for log_dir in dirs.values():
            for key in log_dir.replicas.keys() - log_dir.future:
                sizes[broker, key] = log_dir.replicas[key]
                part = leaders.get(key)
                if part is not None and broker != part["leader"] >= 0:
                    lag = max(0, log_dir.offset_lags[key])
                    followers.append(FollowerPlace(key, broker, part["leader"], lag, broker in part["isr"]))
    committed = {
        each.group_id: {key: found.offset for key, found in admin.list_group_offsets(each.group_id).items()}
        for each in admin.list_groups()
    }
    return Look(
        at_s=at_s,
        time_ms=time.time_ns() // 1_000_000,
        status=status,
        traffic={
            (key, leaders[key]["leader_epoch"]): {
                key.topic: TopicTraffic(sizes.get((leaders[key]["leader"], key), 0), ends[key])
            }
            for key in led
            if key in ends
        },
        followers=tuple(sorted(followers, key=lambda each: (each.key, each.broker))),
        group_lags=_lags(committed, ends),
        processes=None,
        quorum=quorum,
    )


def _quorum_from_outside(admin: AdminClient, cluster_id: str) -> dict[str, Any] | None:
    """None for a user who may not describe the cluster."""
    from raylog.client.admin.inspection import quorum_status

    try:
        return quorum_status(admin.describe_quorum(), cluster_id)
    except KafkaError as error:
        if error.code is not ErrorCode.cluster_authorization_failed:
            raise
        return None


def _lags(
    committed: Mapping[str, Mapping[TopicPartition, int]], ends: Mapping[TopicPartition, int]
) -> dict[str, dict[TopicPartition, int]]:
    """By group: records from what it has committed to the end of the log. Partitions whose end is
    not known now are left out.
    """
    return {
        group: {key: max(0, ends[key] - offset) for key, offset in offsets.items() if key in ends}
        for group, offsets in committed.items()
    }
