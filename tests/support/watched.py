"""What a cluster's ``/metrics`` and console say, compared with each other and with what a test knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from console_browser import Page
from raw_requests import eventually
from scraping import Scraped, scraped, scraped_if_there

from raylog.cluster import Cluster
from raylog.errors import RaylogError
from raylog.metrics import table
from raylog.metrics.metric import Metric
from raylog.types import BROKER_SLOT, Endpoint, TopicPartition, broker_of, slot_of

At = dict[int, Endpoint]
SENT_AFTERWARDS = 1_500
RESULT_S = 240.0


@dataclass(frozen=True, slots=True)
class Watched:
    """Three brokers with a controller each. ``status`` waits until a controller answers."""

    cluster: Cluster
    topic: str
    status: Callable[[], dict[str, Any]]


def total(found: dict[int, Scraped], metric: Metric, *labels: str) -> float:
    """A series' sum over all brokers."""
    return sum(each.get(metric.name, {}).get(labels, 0) for each in found.values())


def everywhere(at: At) -> dict[int, Scraped]:
    return {broker: scraped(each) for broker, each in at.items()}


def at_rest(target: Watched, at: At) -> dict[int, Scraped] | None:
    """What all brokers show when no process is missing and no controller lags."""
    found = {broker: scraped_if_there(each) for broker, each in at.items()}
    shown = {broker: each for broker, each in found.items() if each is not None}
    try:
        quorum = target.cluster.quorum()
    except RaylogError:
        return None
    follow = [each["reachable"] and each["lag"] == 0 for each in quorum["voters"]] == [True] * 3
    is_whole = len(shown) == len(at) and total(shown, table.SILENT_PROCESSES) == 0
    states = [state for each in shown.values() for (state,) in each.get(table.RAFT_STATE.name, {})]
    return shown if is_whole and follow and sorted(states) == ["follower", "follower", "leader"] else None


@dataclass(frozen=True, slots=True)
class Seen:
    """What all say of the cluster at one moment: between two looks at the status, nothing has changed."""

    status: dict[str, Any]
    metrics: dict[int, Scraped]
    overview: Page
    topic: Page


def seen(target: Watched, at: At, console: Any) -> Seen | None:
    """None while a process is missing, or if something has changed meanwhile."""

    def changes(status: dict[str, Any]) -> list[Any]:
        parts = [part for each in status["topics"] for part in each["partitions"]]
        return [status["controller"], *((part["leader"], part["leader_epoch"], part["isr"]) for part in parts)]

    try:
        status, metrics = target.status(), at_rest(target, at)
        overview, topic = console.get("/"), console.get(f"/topics/{target.topic}")
        is_still = changes(target.status()) == changes(status) and "All is well" in overview.text
    except RaylogError:
        return None
    return Seen(status, metrics, overview, topic) if metrics is not None and is_still else None


def elections_of(status: dict[str, Any]) -> int:
    """How many elections the partitions have had."""
    return sum(part["leader_epoch"] + 1 for each in status["topics"] for part in each["partitions"])


def check_state(found: dict[int, Scraped], status: dict[str, Any]) -> None:
    """Nothing is amiss, and there is as much of everything as the controller knows."""
    parts = [part for each in status["topics"] for part in each["partitions"]]
    for metric, expected in (
        (table.UNDER_REPLICATED, 0),
        (table.UNDER_MIN_ISR, 0),
        (table.OFFLINE_PARTITIONS, 0),
        (table.OFFLINE_REPLICAS, 0),
        (table.UNCLEAN_ELECTIONS, status["unclean_elections"]),
        (table.ACTIVE_CONTROLLERS, 1),
        (table.UNREACHABLE_VOTERS, 0),
        (table.RAFT_LAG, 0),
        (table.ACTIVE_BROKERS, 3),
        (table.FENCED_BROKERS, 0),
        (table.LEADERS, len(parts)),
        (table.PARTITIONS, sum(len(part["replicas"]) for part in parts)),
        (table.TOPICS, len(status["topics"])),
    ):
        assert total(found, metric) == expected, metric.name
    assert status["unclean_elections"] == 0
    epochs = {each[table.RAFT_EPOCH.name][()] for each in found.values()}
    assert epochs == {status["controller"]["epoch"]}
    active = [broker for broker, each in found.items() if each[table.ACTIVE_CONTROLLERS.name][()] == 1]
    assert active == [status["controller"]["broker"]]


def ends_shown(found: dict[int, Scraped], status: dict[str, Any], topic: str) -> dict[int, int]:
    """By partition: where its log ends, as its leader's broker shows it, and as all its replicas do."""
    ends = {}
    for part in next(each["partitions"] for each in status["topics"] if each["name"] == topic):
        key = topic, str(part["partition"])
        shown = {broker: found[broker][table.LOG_END_OFFSET.name][key] for broker in part["replicas"]}
        assert len(set(shown.values())) == 1, shown
        ends[part["partition"]] = int(shown[part["leader"]])
    return ends


def check_console(now: Seen, topic: str, ends: dict[int, int]) -> None:
    overview, status = now.overview.text, now.status
    assert "3 of 3 brokers" in overview and "0 under-replicated" in overview
    epoch, broker = status["controller"]["epoch"], status["controller"]["broker"]
    assert f"Broker {broker} has the active controller, epoch {epoch}." in overview
    rows = {int(row[0]): row for row in now.topic.rows() if len(row) == 8}
    assert {partition: int(row[6].replace(",", "")) for partition, row in rows.items()} == ends
    for part in next(each["partitions"] for each in status["topics"] if each["name"] == topic):
        row = rows[part["partition"]]
        assert (row[1], row[2]) == (str(part["leader"]), str(part["leader_epoch"]))
        assert sorted(row[4].split(", ")) == sorted(map(str, part["isr"]))


def check_deaths(console: Any, cluster: Cluster, position: tuple[int, int], killed: Sequence[int]) -> None:
    """Each kill of a process, by its node id, is among the deaths. Controllers' deaths are no events."""
    events, lacks = cluster.events(position, count=10_000)
    assert not lacks
    died = Counter(each.subject for each in events if each.kind == "actor-died")
    for node, count in Counter(killed).items():
        broker = broker_of(node)
        subject = f"broker {broker}" if slot_of(node) == BROKER_SLOT else f"actor {node} of broker {broker}"
        assert died[subject] >= count, (subject, count, died)
    shown = console.get("/events", kind="actor-died")
    all_deaths, _ = cluster.events(count=10_000)
    count = sum(each.kind == "actor-died" for each in all_deaths)
    assert count >= len(killed) and f"{count} events" in shown.text


def check_counts(target: Watched, at: At) -> None:
    """Counters begin anew with a Broker that was killed; what comes from then on is counted whole."""
    cluster, topic = target.cluster, target.topic
    before = eventually(lambda: at_rest(target, at), "every process to show its metrics")
    status = target.status()
    sizes, ends = sizes_of_leaders(before, status, topic), ends_shown(before, status, topic)
    with cluster.producer(acks="all") as producer:
        sent = [producer.send(topic, b"%06d" % number, partition=number % 3) for number in range(SENT_AFTERWARDS)]
        producer.flush()
        for each in sent:
            each.result(RESULT_S)
    with cluster.admin() as admin:
        keys = [TopicPartition(topic, partition) for partition in ends]
        latest = {
            key.partition: found.offset for key, found in admin.list_offsets(dict.fromkeys(keys, "latest")).items()
        }
    assert sum(latest.values()) - sum(ends.values()) == SENT_AFTERWARDS

    def grown(after: dict[int, Scraped], metric: Metric) -> float:
        return total(after, metric, topic) - total(before, metric, topic)

    def is_copied() -> dict[int, Scraped] | None:
        after = everywhere(at)
        return after if grown(after, table.REPLICATION_BYTES_IN) >= 2 * grown(after, table.BYTES_IN) > 0 else None

    after = eventually(is_copied, "both followers to have all")
    assert grown(after, table.MESSAGES_IN) == SENT_AFTERWARDS
    more = sum(sizes_of_leaders(after, status, topic).values()) - sum(sizes.values())
    assert grown(after, table.BYTES_IN) == more
    assert grown(after, table.REPLICATION_BYTES_IN) == grown(after, table.REPLICATION_BYTES_OUT) == 2 * more
    assert ends_shown(after, status, topic) == latest


def sizes_of_leaders(found: dict[int, Scraped], status: dict[str, Any], topic: str) -> dict[int, int]:
    parts = next(each["partitions"] for each in status["topics"] if each["name"] == topic)
    return {
        part["partition"]: int(found[part["leader"]][table.LOG_SIZE.name][topic, str(part["partition"])])
        for part in parts
    }
