"""What a controller tells operators, as plain values: the cluster's status, and the quorum as it
sees it.

The shapes are for scripts (``raylog status --json``, ``raylog quorum status --json``): keys stay.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from raylog.disks.disk import encode_id
from raylog.metadata import requests
from raylog.metadata.actors.disk_requests import DiskMove
from raylog.metadata.actors.opened_logs import NamedLogs, OpenedLogs
from raylog.metadata.image import MetadataImage
from raylog.raft.quorum import Quorum
from raylog.types import BROKER_SLOT, Endpoint, broker_of
from raylog.wire.listeners import endpoint_text


def cluster_status(
    report: requests.ClusterStatusReport, described: list[Any], *, node_id: int, endpoint: Endpoint
) -> dict[str, Any]:
    """``described`` holds what was answered to DescribeTopics and DescribeCluster; node id and
    endpoint are the controller's own.
    """
    failed = dict(report.failed_disks)
    live = {actor.node_id for actor in report.actors if actor.state == "live"}
    brokers = next((each.brokers for each in described if isinstance(each, requests.ClusterDescribed)), ())
    topics = next((each.topics for each in described if isinstance(each, requests.TopicsDescribed)), ())
    return {
        "cluster_id": report.cluster_id,
        "controller": {
            "broker": broker_of(node_id),
            "epoch": report.controller_epoch,
            "endpoint": str(endpoint),
            "pid": os.getpid(),
        },
        "brokers": [_broker(broker, live, failed) for broker in brokers],
        "actors": [_actor(actor) for actor in report.actors],
        "topics": [_topic(topic) for topic in topics],
        "under_replicated": [f"{topic}-{partition}" for topic, partition in report.under_replicated],
        "under_min_isr": [f"{topic}-{partition}" for topic, partition in report.under_min_isr],
        "leaderless": [f"{topic}-{partition}" for topic, partition in report.leaderless],
        "unclean_elections": report.unclean_elections,
        "removals_pending": report.removals_pending,
        "disk_moves": [_disk_move(each) for each in report.disk_moves],
        "logs": _logs(report.logs),
    }


def _broker(broker: requests.BrokerView, live: set[int], failed: Mapping[uuid.UUID, str]) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "rack": broker.rack,
        "draining": broker.is_draining,
        "listener": str(broker.listener) if broker.listener is not None else None,
        "listeners": [f"{each.name}://{endpoint_text(each.endpoint)}" for each in broker.listeners],
        "live": broker.broker_id << 16 | BROKER_SLOT in live,
        "disks": [path for _, path in broker.directories],
        "offline_disks": {path: failed[each] for each, path in broker.directories if each in failed},
    }


def _actor(actor: requests.ActorStatus) -> dict[str, Any]:
    return {
        "node_id": actor.node_id,
        "broker": broker_of(actor.node_id),
        "kind": actor.kind,
        "endpoint": str(actor.endpoint) if actor.endpoint else None,
        "pid": actor.pid,
        "state": actor.state,
        "incarnation": actor.incarnation,
        "disk": actor.path,
        "host": actor.host.value if actor.host is not None else None,
        "replicas": actor.replicas,
        "removals": actor.removals,
        "leaders": actor.leaders,
        "cpu": actor.cpu_per_mille / 1_000 if actor.cpu_per_mille >= 0 else None,
        "memory_bytes": actor.memory_bytes if actor.memory_bytes >= 0 else None,
        "busy": actor.busy_per_mille / 1_000 if actor.busy_per_mille >= 0 else None,
        "automatic": actor.is_automatic,
        "failures": _named(actor.failures),
        "damaged": _named(actor.damaged),
        "mended": _named(actor.mended),
    }


def _disk_move(move: DiskMove) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "broker": move.broker_id,
        "node_id": move.node_id,
        "log_dir": move.path,
    }


def _topic(topic: requests.DescribedTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition": part.partition,
                "leader": broker_of(part.leader_node),
                "leader_node": part.leader_node,
                "leader_epoch": part.leader_epoch,
                "replicas": [broker_of(node) for node in part.replica_nodes],
                "replica_nodes": list(part.replica_nodes),
                "isr": [broker_of(node) for node in part.isr_nodes],
                "elr": [broker_of(node) for node in part.elr_nodes],
                "offline": [broker_of(node) for node in part.offline_nodes],
            }
            for part in topic.partitions
        ],
    }


def _logs(logs: OpenedLogs) -> dict[str, Any]:
    return {
        "clean": logs.clean,
        "whole": logs.whole,
        "suspect": logs.suspect,
        "missing": logs.missing,
        "opening": logs.opening,
        "scanned_bytes": logs.scanned_bytes,
        "cut": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "broker": each.broker_id,
                "condition": each.condition.value,
                "cut_bytes": each.cut_bytes,
            }
            for each in logs.cut
        ],
    }


def _named(logs: NamedLogs) -> list[str]:
    return [f"{topic}-{partition}: {words}" for topic, partition, words in logs]


def _slowest(voters: list[dict[str, Any]]) -> tuple[int, int]:
    """How far the last of the voters lags behind, and when it had caught up; -1 if nothing is
    known.
    """
    slowest = min(voters, key=lambda each: int(each["log_end_offset"]), default=None)
    caught_up = int(slowest["last_caught_up_timestamp"]) if slowest is not None else -1
    return max((each["lag"] for each in voters if each["lag"] >= 0), default=-1), caught_up


def quorum_status(
    quorum: Quorum,
    image: MetadataImage,
    *,
    broker_id: int,
    is_active: bool,
    endpoint_of: Callable[[uuid.UUID], Endpoint | None],
    linked: list[uuid.UUID],
    now_ms: int,
    unix_ms: int,
) -> dict[str, Any]:
    """The quorum under Kafka's names (``kafka-metadata-quorum``); -1 where only the leader knows and this is not it.

    ``planned``: the brokers that shall hold a controller, none while nobody has said. ``recovering`` is who takes no part in elections,
    for its disk has lost entries: the leader knows it of all, others of themselves. ``endpoint_of`` and ``linked`` say where the others
    are and who can be reached from here; ``now_ms`` is the time of the quorum's clock, ``unix_ms`` the same moment of everybody's.
    """
    matches = quorum.match_indexes()
    recovering = quorum.recovering()
    times = quorum.reply_times() | ({quorum.identity: (now_ms, now_ms)} if matches else {})

    def broker(member: uuid.UUID | None) -> int:
        disk = image.disks.get(member) if member is not None else None
        own = broker_id if member == quorum.identity else -1
        return int(disk.broker_id) if disk is not None else own

    def unix(at_ms: int) -> int:
        return unix_ms - (now_ms - at_ms) if at_ms >= 0 else -1

    def view(member: uuid.UUID) -> dict[str, Any]:
        end, endpoint = matches.get(member, -1), endpoint_of(member)
        heard_ms, caught_up_ms = times.get(member, (-1, -1))
        return {
            "broker": broker(member),
            "directory_id": encode_id(member),
            "endpoint": str(endpoint) if endpoint is not None else None,
            "log_end_offset": end,
            "lag": quorum.last_index - end if end >= 0 else -1,
            "last_fetch_timestamp": unix(heard_ms),
            "last_caught_up_timestamp": unix(caught_up_ms),
            "reachable": member == quorum.identity or member in linked,
            "recovering": member in recovering,
        }

    voters = [view(member) for member in quorum.voters]
    observers = [view(member) for member in sorted({*linked, quorum.identity} - set(quorum.voters))]
    lag, caught_up = _slowest(voters)
    return {
        "cluster_id": quorum.cluster_id,
        "leader_id": broker(quorum.leader) if quorum.leader is not None else -1,
        "leader_epoch": quorum.term,
        "high_watermark": quorum.commit_index,
        "log_end_offset": quorum.last_index,
        "max_follower_lag": lag if is_active else -1,
        "max_follower_lag_time_ms": unix_ms - caught_up if is_active and caught_up >= 0 else -1,
        "voters": voters,
        "observers": observers,
        "planned": list(image.planned_controllers),
        "told_by": {"broker": broker_id, "role": quorum.role.value, "is_active": is_active, "pid": os.getpid()},
    }
