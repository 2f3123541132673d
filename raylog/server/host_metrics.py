"""The metrics of a process that holds replicas: their traffic, their state, and what is coordinated
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from raylog.metrics import table
from raylog.metrics.registry import Collector, Samples
from raylog.replication.counts import TopicCounts
from raylog.replication.host import ReplicaHost
from raylog.replication.replica import Replica, Role
from raylog.server.coordinator_metrics import of_groups, of_transactions
from raylog.server.hosted_coordinators import HostedCoordinators
from raylog.server.process_metrics import ProcessMetrics
from raylog.server.span_counts import SpanCounts
from raylog.types import is_future
from raylog.wire.server import Server

_OF_LOGS = (table.LOG_SIZE, table.LOG_START_OFFSET, table.LOG_END_OFFSET)


def metrics_of_host(
    node: int,
    servers: Callable[[], Sequence[Server]],
    host: Callable[[], ReplicaHost],
    coordinators: HostedCoordinators,
    spans: SpanCounts,
) -> ProcessMetrics:
    """The registry of such a process."""
    return ProcessMetrics(
        node, servers, of_replicas(host), of_groups(coordinators), of_transactions(coordinators), of_spans(spans)
    )


def of_spans(counts: SpanCounts) -> Collector:
    """Spans of records with a trace."""

    def collect(samples: Samples) -> None:
        samples.add(table.SPANS_SENT, counts.sent)
        samples.add(table.SPANS_DROPPED, counts.queue_full, "queue full")
        samples.add(table.SPANS_DROPPED, counts.unsent, "not sent")
        samples.add(table.SPANS_DROPPED, counts.forgotten, "no end")
        samples.add(table.UNSEARCHED_BATCHES, counts.unsearched)

    return collect


def of_replicas(host: Callable[[], ReplicaHost]) -> Collector:
    """Traffic by topic, the state of replicas, and their logs."""

    def collect(samples: Samples) -> None:
        replicas, counts = host().replicas.values(), host().context.counts
        for topic, each in counts.topics.items():
            _add_topic(samples, topic, each)
        samples.add(table.ISR_SHRINKS, counts.isr_shrinks)
        samples.add(table.ISR_EXPANDS, counts.isr_expands)
        samples.add_times(table.FLUSH_TIME, counts.flushes)
        samples.add(table.CLEANINGS, counts.cleanings)
        samples.add(table.FAILED_CLEANINGS, counts.failed_cleanings)
        samples.add(table.CLEANED_BYTES, counts.cleaned_bytes_before)
        samples.add(table.REMOVED_BYTES, counts.cleaned_bytes_before - counts.cleaned_bytes_after)
        _add_states(samples, replicas)
        _add_logs(samples, replicas)

    return collect


def _add_topic(samples: Samples, topic: str, counts: TopicCounts) -> None:
    samples.add(table.BYTES_IN, counts.bytes_in, topic)
    samples.add(table.BYTES_OUT, counts.bytes_out, topic)
    samples.add(table.MESSAGES_IN, counts.messages_in, topic)
    samples.add(table.REPLICATION_BYTES_IN, counts.replication_bytes_in, topic)
    samples.add(table.REPLICATION_BYTES_OUT, counts.replication_bytes_out, topic)
    samples.add(table.PRODUCE_REQUESTS, counts.produces, topic)
    samples.add(table.FAILED_PRODUCE_REQUESTS, counts.failed_produces, topic)


def _add_states(samples: Samples, replicas: Iterable[Replica]) -> None:
    held = offline = leaders = under_replicated = under_minimum = at_minimum = 0
    for replica in replicas:
        held += 1
        offline += replica.role is Role.OFFLINE
        leader = replica.leader
        if leader is not None:
            in_sync = len(leader.isr.committed)
            leaders += 1
            under_replicated += in_sync < sum(not is_future(each.broker_id) for each in replica.assignment.replicas)
            under_minimum += in_sync < leader.min_isr
            at_minimum += in_sync == leader.min_isr
    samples.add(table.PARTITIONS, held)
    samples.add(table.OFFLINE_REPLICAS, offline)
    samples.add(table.LEADERS, leaders)
    samples.add(table.UNDER_REPLICATED, under_replicated)
    samples.add(table.UNDER_MIN_ISR, under_minimum)
    samples.add(table.AT_MIN_ISR, at_minimum)


def _add_logs(samples: Samples, replicas: Iterable[Replica]) -> None:
    left_out = 0
    for replica in replicas:
        log = replica.log
        if log is None:
            continue
        if samples.is_full(table.LOG_SIZE):
            left_out += 1
            continue
        labels = replica.assignment.topic, str(replica.id.partition)
        samples.add(table.LOG_SIZE, log.size_bytes, *labels)
        samples.add(table.LOG_START_OFFSET, log.log_start_offset, *labels)
        samples.add(table.LOG_END_OFFSET, log.log_end_offset, *labels)
        if replica.leader is not None:
            samples.add(table.LAST_STABLE_OFFSET_LAG, log.high_watermark - log.stable_end_offset, *labels)
    if left_out:
        for metric in _OF_LOGS:
            samples.leave_out(metric, left_out)
