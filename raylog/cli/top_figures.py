"""What ``raylog top`` shows: rates between two looks at a cluster, sorted.

Pure. The document is that of ``raylog top --json``: its keys stay. Rates are per second; None stands
for what the cluster does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from raylog.cli.top_looks import Look, ProcessLook, TopicTraffic
from raylog.types import CONTROLLER_SLOT, broker_of, node_id

_COUNTS: Final = tuple(each.name for each in fields(TopicTraffic))
Row = dict[str, Any]

TOPIC_ORDERS: Final = {"in": "bytes_in_per_s", "records": "records_in_per_s", "out": "bytes_out_per_s", "name": "topic"}
ACTOR_ORDERS: Final = {"cpu": "cpu", "memory": "memory_bytes", "delay": "event_loop_delay_s"}


@dataclass(frozen=True, slots=True)
class PageOrder:
    """By what topics and actors are sorted: keys of ``TOPIC_ORDERS`` and ``ACTOR_ORDERS``."""

    topics: str = "in"
    actors: str = "cpu"

    def by(self, name: str) -> PageOrder:
        """The order with this one in it, whichever of the two it is of."""
        if name in TOPIC_ORDERS:
            return PageOrder(name, self.actors)
        assert name in ACTOR_ORDERS, f"there is no order {name!r}"
        return PageOrder(self.topics, name)


def figures(before: Look, now: Look, order: PageOrder) -> Row:
    """A source that is new since ``before`` adds nothing to rates: what it counted may be older."""
    interval_s = now.at_s - before.at_s
    assert interval_s > 0, f"the looks are {interval_s} s apart"
    status = now.status
    grown = _grown(before, now)
    topics = [_topic_row(topic, grown.get(topic["name"], {}), interval_s) for topic in status["topics"]]
    actors = None if now.processes is None else _actor_rows(before, now, interval_s)
    return {
        "time_ms": now.time_ms,
        "interval_s": interval_s,
        "cluster_id": status["cluster_id"],
        "controller": status["controller"]["broker"],
        "total": {f"{name}_per_s": _total(row[f"{name}_per_s"] for row in topics) for name in _COUNTS},
        "under_replicated": status["under_replicated"],
        "leaderless": status["leaderless"],
        "brokers": [_broker_row(broker, now) for broker in status["brokers"]],
        "topics": _sorted(topics, TOPIC_ORDERS[order.topics], "topic"),
        "groups": _sorted(map(_group_row, now.group_lags.items()), "lag", "group"),
        "followers": _sorted(
            (
                {
                    "topic": each.key.topic,
                    "partition": each.key.partition,
                    "broker": each.broker,
                    "leader": each.leader,
                    "lag": each.lag,
                    "in_sync": each.in_sync,
                }
                for each in now.followers
            ),
            "lag",
            *("topic", "partition", "broker"),
        ),
        "quorum": _quorum_row(now.quorum),
        "controllers": None if now.quorum is None else _controller_rows(now.quorum, actors or []),
        "actors": None if actors is None else _sorted(actors, ACTOR_ORDERS[order.actors], "node_id"),
        "silent": list(now.silent),
    }


def _grown(before: Look, now: Look) -> dict[str, dict[str, float]]:
    """By topic and count: how much more all sources that were there before have counted. A count
    that fell, as a log's size does when a segment is deleted, has not grown.
    """
    grown: dict[str, dict[str, float]] = {}
    for source, topics in now.traffic.items():
        earlier = before.traffic.get(source)
        if earlier is None:
            continue
        for topic, traffic in topics.items():
            of_topic = grown.setdefault(topic, {})
            for name in _COUNTS:
                count = getattr(traffic, name)
                if count is not None:
                    then = getattr(earlier[topic], name) if topic in earlier else 0
                    of_topic[name] = of_topic.get(name, 0) + max(0, count - then)
    return grown


def _topic_row(topic: Row, grown: dict[str, float], interval_s: float) -> Row:
    parts = topic["partitions"]
    return {
        "topic": topic["name"],
        "partitions": len(parts),
        "under_replicated": sum(len(part["isr"]) < len(part["replicas"]) for part in parts),
        **{f"{name}_per_s": grown[name] / interval_s if name in grown else None for name in _COUNTS},
    }


def _group_row(group_and_lags: tuple[str, Any]) -> Row:
    group, lags = group_and_lags
    worst = max(sorted(lags), key=lags.__getitem__, default=None)
    return {
        "group": group,
        "lag": sum(lags.values()),
        "partitions": len(lags),
        "worst": None if worst is None else {"topic": worst.topic, "partition": worst.partition, "lag": lags[worst]},
    }


def _broker_row(broker: Row, now: Look) -> Row:
    parts = [part for topic in now.status["topics"] for part in topic["partitions"]]
    return {
        "broker": broker["id"],
        "rack": broker["rack"],
        "live": broker["live"],
        "leads": sum(part["leader"] == broker["id"] for part in parts),
        "replicas": sum(broker["id"] in part["replicas"] for part in parts),
        "out_of_sync": sum(broker["id"] in part["replicas"] and broker["id"] not in part["isr"] for part in parts),
        "disks": len(broker["disks"]),
    }


def _quorum_row(quorum: Mapping[str, Any] | None) -> Row | None:
    if quorum is None:
        return None
    return {
        "leader": quorum["leader_id"],
        "epoch": quorum["leader_epoch"],
        "high_watermark": quorum["high_watermark"],
        "max_lag": quorum["max_follower_lag"],
    }


def _controller_rows(quorum: Mapping[str, Any], actors: Iterable[Row]) -> list[Row]:
    """By broker. CPU, memory and delay are those of its process, None where nobody says."""
    processes = {each["node_id"]: each for each in actors if each["kind"] == "controller"}

    def row(member: Mapping[str, Any], role: str) -> Row:
        process = processes.get(node_id(member["broker"], CONTROLLER_SLOT), {})
        known = {name: process.get(name) for name in ("pid", "cpu", "memory_bytes", "event_loop_delay_s")}
        return {
            "broker": member["broker"],
            "role": "active" if member["broker"] == quorum["leader_id"] else role,
            "reachable": member["reachable"],
            "recovering": member["recovering"],
            "log_end_offset": member["log_end_offset"],
            "lag": member["lag"],
            **known,
        }

    rows = [row(each, "standby") for each in quorum["voters"]] + [row(each, "observer") for each in quorum["observers"]]
    return sorted(rows, key=lambda each: int(each["broker"]))


def _actor_rows(before: Look, now: Look, interval_s: float) -> list[Row]:
    earlier = {(each.node_id, each.incarnation): each for each in before.processes or ()}

    def cpu(process: ProcessLook) -> float | None:
        """As a share of one core; None for a process that did not say so twice."""
        then = earlier.get((process.node_id, process.incarnation))
        if then is None or then.cpu_s is None or process.cpu_s is None:
            return None
        return max(0.0, process.cpu_s - then.cpu_s) / interval_s

    return [
        {
            "node_id": each.node_id,
            "broker": broker_of(each.node_id),
            "kind": each.kind,
            "pid": each.pid,
            "cpu": cpu(each),
            "memory_bytes": each.memory_bytes,
            "event_loop_delay_s": each.loop_delay_s,
            "leaders": each.leaders,
            "replicas": each.replicas,
        }
        for each in now.processes or ()
    ]


def _total(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _sorted(rows: Iterable[Row], by: str, *then: str) -> list[Row]:
    """Largest first, what is not known last; names in the order of the alphabet."""

    def rest(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in then)

    if by in then:
        return sorted(rows, key=rest)
    key: Callable[[Row], Any] = lambda row: (row[by] is None, -(row[by] or 0), *rest(row))  # noqa: E731
    return sorted(rows, key=key)
