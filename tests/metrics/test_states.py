"""Replicas, the controller, groups and processes as the metrics show them; and that there is no metric that shows nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from outside import Client, fetch, metadata, produce, request
from raw_requests import batch, end_of, eventually, isr_is_whole, nodes_of
from scraping import open_metrics, scraped, summed

from raylog.client.admin.admin import NewTopic
from raylog.client.sync import AdminClient, Consumer
from raylog.configs.metrics_configs import METRICS_SERIES
from raylog.errors import RaylogError
from raylog.kafka import table as kafka
from raylog.metrics import table
from raylog.metrics.metric import MetricType
from raylog.replication.counts import KEPT_TOPICS, HostCounts
from raylog.testing.in_process import InProcessCluster, cluster
from raylog.types import CONTROLLER_SLOT, Endpoint, TopicPartition, node_id
from raylog.wire.connection import Connection

At = dict[int, Endpoint]
NewTopicOf = Callable[..., str]
core = pytest.mark.core


@core
def test_a_log_has_its_size_and_offsets(
    running: InProcessCluster, at: At, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    held = summed(at, table.PARTITIONS.name)
    topic, sent = new_topic((0, 1)), batch(b"a", b"b", b"c")
    client().ask(produce(topic, {0: sent}))
    for broker in (0, 1):

        def logs(broker: int = broker) -> list[float | None]:
            found, series = scraped(at[broker]), (topic, "0")
            named = (table.LOG_SIZE, table.LOG_START_OFFSET, table.LOG_END_OFFSET)
            return [found[each.name].get(series) for each in named]

        eventually(lambda: logs() == [len(sent), 0, 3], f"the log of broker {broker}")
    with AdminClient(running.address) as admin:
        admin.delete_records({TopicPartition(topic, 0): 2})
        eventually(lambda: scraped(at[0])[table.LOG_START_OFFSET.name][(topic, "0")] == 2, "the records to be deleted")
        admin.delete_topics([topic])
    eventually(
        lambda: (
            not any(topic in labels for each in at.values() for series in scraped(each).values() for labels in series)
        ),
        "no series of a topic that is gone",
    )
    eventually(lambda: summed(at, table.PARTITIONS.name) == held, "its replicas to be gone")


@core
def test_partitions_leaders_and_the_isr_are_counted(running: InProcessCluster, at: At, new_topic: NewTopicOf) -> None:
    names = [each.name for each in (table.PARTITIONS, table.LEADERS, table.UNDER_REPLICATED, table.AT_MIN_ISR)]

    def counts(broker: int) -> list[float]:
        found = scraped(at[broker])
        return [found[name][()] for name in names]

    before = {broker: counts(broker) for broker in at}
    topic = new_topic((0, 1), (0, 1), (1, 0), min_insync_replicas="1")
    new_topic((0,), min_insync_replicas="1")
    more = {broker: [now - then for now, then in zip(counts(broker), before[broker])] for broker in at}
    assert more == {0: [4, 3, 0, 1], 1: [3, 1, 0, 0]}
    shrinks, expands = (summed(at, each.name) for each in (table.ISR_SHRINKS, table.ISR_EXPANDS))
    (node,) = {node for broker, node in nodes_of(running, topic).items() if broker == 1}
    running.crash(node)
    eventually(lambda: summed(at, table.ISR_SHRINKS.name) > shrinks, "the ISR to shrink")
    eventually(lambda: isr_is_whole(running, topic, 3), "the ISR to be whole")
    eventually(lambda: summed(at, table.ISR_EXPANDS.name) > expands, "the ISR to expand")
    eventually(lambda: summed(at, table.UNDER_REPLICATED.name) == 0, "nothing under-replicated")


@core
def test_without_a_follower_partitions_are_under_replicated_and_below_their_minimum() -> None:
    with cluster(brokers=2) as running, AdminClient(running.address) as admin:
        at = open_metrics(running, 2)
        configs = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic("t", replica_assignment={0: (0, 1)}, configs=configs)])
        eventually(lambda: isr_is_whole(running, "t"), "all replicas in sync")
        series = (table.UNDER_REPLICATED, table.UNDER_MIN_ISR, table.AT_MIN_ISR)
        assert [scraped(at[0])[each.name][()] for each in series] == [0, 0, 1]
        running.launcher.build_replicas(_fails)
        running.crash(nodes_of(running, "t")[1])
        eventually(lambda: [scraped(at[0])[each.name][()] for each in series] == [1, 1, 0], "its follower is missed")


def _fails(spec: object) -> None:
    raise OSError("the test has no process for it")


@core
def test_the_broker_of_the_active_controller_shows_the_cluster(
    running: InProcessCluster, at: At, new_topic: NewTopicOf
) -> None:
    new_topic((0, 1), (1, 0))
    image = running.controller.image
    active = running.active
    found = scraped(at[active])
    partitions = [state for topic in image.topics.values() for state in topic.partitions.values()]
    shown = (table.TOPICS, table.ALL_PARTITIONS, table.OFFLINE_PARTITIONS, table.ACTIVE_BROKERS, table.FENCED_BROKERS)
    assert [found[each.name][()] for each in shown] == [len(image.topics), len(partitions), 0, 2, 0]
    assert found[table.LEADER_EPOCHS.name][()] == sum(each.leader_epoch + 1 for each in partitions) > 0
    assert found[table.ACTIVE_CONTROLLERS.name][()] == 1
    other = scraped(at[1 - active])
    assert other[table.ACTIVE_CONTROLLERS.name][()] == 0 and table.TOPICS.name not in other


@core
def test_lag_is_the_log_end_less_what_was_committed(
    running: InProcessCluster, at: At, client: Callable[..., Client], new_topic: NewTopicOf
) -> None:
    topic, group = new_topic((0, 1), (1, 0)), "readers"
    one, other = client(0), client(1)
    one.ask(produce(topic, {0: batch(*[b"v"] * 10)}))
    other.ask(produce(topic, {1: batch(*[b"v"] * 5)}))
    with Consumer(running.address, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        consumer.commit({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 5})

    def of_group(metric: table.Metric) -> list[float]:
        return [summed(at, metric.name, group, topic, str(partition)) for partition in range(2)]

    assert (of_group(table.CURRENT_OFFSET), of_group(table.LAG)) == ([4, 5], [6, 0])
    one.ask(produce(topic, {0: batch(b"v")}))
    other.ask(produce(topic, {1: batch(b"v", b"v")}))
    assert of_group(table.LAG) == [end_of(running, topic) - 4, 2] == [7, 2]
    shown = [scraped(each).get(table.LAG.name, {}) for each in at.values()]
    assert sum((group, topic, "0") in series for series in shown) == 1, "one broker shows it, its coordinator's"


@core
def test_every_process_shows_what_it_uses(running: InProcessCluster, at: At) -> None:
    nodes = {str(node) for node in running.launcher.servers} | {str(node_id(running.active, CONTROLLER_SLOT))}
    named = (table.CPU_SECONDS, table.RESIDENT_MEMORY, table.OPEN_FILES, table.LOOP_DELAY)
    for metric in named:
        found = [scraped(each)[metric.name] for each in at.values()]
        assert {node for series in found for (node,) in series} == nodes, metric.name
    memory = scraped(at[0])[table.RESIDENT_MEMORY.name].values()
    assert all(1 << 20 < each < 1 << 40 for each in memory)
    assert all(
        0 < each <= len(os.listdir("/proc/self/fd")) + 200 for each in scraped(at[0])[table.OPEN_FILES.name].values()
    )


@core
def test_a_process_that_does_not_prove_the_secret_is_a_failed_authentication(running: InProcessCluster, at: At) -> None:
    def counts() -> tuple[float, float]:
        found, series = scraped(at[0]), ("INTERNAL",)
        named = (table.SUCCESSFUL_AUTHENTICATIONS, table.FAILED_AUTHENTICATIONS)
        return tuple(found.get(each.name, {}).get(series, 0) for each in named)  # type: ignore[return-value]

    succeeded, failed = counts()
    endpoint = running.launcher.servers[node_id(0, 0)]._endpoint
    with pytest.raises(RaylogError):
        running.run(Connection.open(endpoint, secret=b"another", cluster_id=running.address.cluster_id))
    assert counts()[1] == failed + 1
    opened = running.run(
        Connection.open(endpoint, secret=running.address.secret, cluster_id=running.address.cluster_id)
    )
    assert counts()[0] >= succeeded + 1
    running.loop.call_soon_threadsafe(opened.close)


@core
def test_every_metric_shows_something(
    running: InProcessCluster,
    at: At,
    client: Callable[..., Client],
    new_topic: NewTopicOf,
    throttled: Callable[[Client, str], float],
) -> None:
    """A metric that is in the table and that nobody collects fails here."""
    topic, one = new_topic((0, 1)), client()
    one.ask(metadata(topic))
    one.ask(produce(topic, {0: batch(b"v")}))
    one.ask(fetch(topic, {0: 0}))
    throttled(one, topic)
    with Consumer(running.address, group_id="of all", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 0})
    told = one.ask(request(kafka.GET_TELEMETRY_SUBSCRIPTIONS.key, 0, client_instance_id=None))
    assert told.client_instance_id is not None
    with pytest.raises(RaylogError):
        endpoint = running.launcher.servers[node_id(0, 0)]._endpoint
        running.run(Connection.open(endpoint, secret=b"another", cluster_id=running.address.cluster_id))
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker="all", set={METRICS_SERIES: "1"})
        bounded = eventually(lambda: _left_out(at), "series to be left out")
        admin.alter_configs(broker="all", delete=[METRICS_SERIES])
    gauges = {each.name for each in table.METRICS.values() if each.type is MetricType.GAUGE} - {
        table.SERIES_LEFT_OUT.name
    }
    assert all(len(series) <= 1 for name, series in bounded.items() if name in gauges)
    told = {name for each in at.values() for name in scraped(each)} | set(bounded)
    histograms = {each.name for each in table.METRICS.values() if each.type is MetricType.HISTOGRAM}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    assert parts <= told and told - parts == set(table.METRICS) - histograms


def _left_out(at: At) -> dict[str, dict[tuple[str, ...], float]] | None:
    found = scraped(at[0])
    return found if table.SERIES_LEFT_OUT.name in found else None


def test_counts_of_topics_that_are_not_held_go_when_there_are_many() -> None:
    counts = HostCounts()
    for number in range(KEPT_TOPICS + 1):
        counts.of_topic(f"t{number}").bytes_in = number
        counts.maybe_forget([])
        assert len(counts.topics) == (number + 1 if number < KEPT_TOPICS else 0)
    counts.of_topic("held").bytes_in = 7
    for number in range(KEPT_TOPICS):
        counts.of_topic(f"t{number}")
    counts.maybe_forget(["held"])
    assert list(counts.topics) == ["held"] and counts.of_topic("held").bytes_in == 7
