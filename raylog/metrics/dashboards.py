"""Grafana's dashboards and Prometheus's alert rules for raylog, as plain values.

Each panel and rule names metrics of ``table`` only. ``RATE`` stands for the time over which rates are
taken: Grafana puts in four scrapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raylog.metrics import table
from raylog.metrics.metric import Metric

RATE: Final = "$__rate_interval"
WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8
TAG = "raylog"
RULES_FILE: Final = "raylog-alerts.yml"


@dataclass(frozen=True, slots=True)
class Query:
    """``legend``: of each series, in Grafana's words."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """``unit`` is one of Grafana's."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """``uid`` is its address in Grafana, and the name of its file. ``variables`` are labels that a
    person may choose by.
    """

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alert:
    """``for_``: how long the expression has to hold, in Prometheus's words."""

    name: str
    expression: str
    for_: str
    severity: str
    summary: str
    description: str


def _rate(metric: Metric, by: str, chosen: str = "") -> str:
    return f"sum by ({by}) (rate({metric.name}{chosen}[{RATE}]))"


def _percentile(metric: Metric, share: float) -> str:
    return f"histogram_quantile({share}, sum by (request, le) (rate({metric.name}_bucket[{RATE}])))"


_TOPIC = '{topic=~"$topic"}'
_GROUP = '{consumergroup=~"$consumergroup"}'

CLUSTER = Dashboard(
    "raylog-cluster",
    "raylog: cluster",
    (
        Panel("Bytes in", "Bps", (Query(_rate(table.BYTES_IN, "instance"), "{{instance}}"),), "From producers."),
        Panel("Bytes out", "Bps", (Query(_rate(table.BYTES_OUT, "instance"), "{{instance}}"),), "To consumers."),
        Panel("Records in", "wps", (Query(_rate(table.MESSAGES_IN, "instance"), "{{instance}}"),)),
        Panel(
            "Partitions that lack replicas",
            "short",
            (
                Query(f"sum({table.UNDER_REPLICATED.name})", "under-replicated"),
                Query(f"sum({table.UNDER_MIN_ISR.name})", "under min.insync.replicas"),
                Query(f"sum({table.OFFLINE_PARTITIONS.name})", "without a leader"),
                Query(f"sum({table.OFFLINE_REPLICAS.name})", "offline replicas"),
            ),
            "All of these are 0 where all is well.",
        ),
        Panel(
            "Changes of the ISR",
            "ops",
            (
                Query(f"sum(rate({table.ISR_SHRINKS.name}[{RATE}]))", "shrinks"),
                Query(f"sum(rate({table.ISR_EXPANDS.name}[{RATE}]))", "expands"),
            ),
        ),
        Panel(
            "Elections",
            "short",
            (
                Query(f"sum(delta({table.LEADER_EPOCHS.name}[{RATE}]))", "leaders"),
                Query(f"sum({table.UNCLEAN_ELECTIONS.name})", "unclean, ever"),
            ),
        ),
        Panel(
            "Controllers",
            "short",
            (
                Query(f"max by (voter) ({table.VOTER_LAG.name})", "entries that {{voter}} lacks"),
                Query(f"sum by (instance) ({table.RAFT_LAG.name})", "{{instance}} has not applied"),
                Query(f"max({table.UNREACHABLE_VOTERS.name})", "unreachable"),
                Query(f"max(delta({table.RAFT_EPOCH.name}[{RATE}]))", "epochs"),
            ),
            "Lag of the quorum: all 0 where nothing changes and all controllers are there.",
        ),
        Panel("Requests", "reqps", (Query(_rate(table.REQUESTS, "request"), "{{request}}"),), "Of clients, by API."),
        Panel(
            "Request times",
            "ms",
            tuple(
                Query(_percentile(table.TOTAL_TIME, share), f"{{{{request}}}} {share:.1%}")
                for share in (0.5, 0.99, 0.999)
            ),
            "Of clients, by API. A Fetch includes its wait for records, a Produce that for its replicas.",
        ),
        Panel(
            "Times of work on requests",
            "ms",
            (Query(_percentile(table.LOCAL_TIME, 0.99), "{{request}}"),),
            "In the process that received them, without what it waits for. 99 of 100 requests take less.",
        ),
        Panel(
            "Throttle times",
            "ms",
            (Query(_percentile(table.THROTTLE_TIME, 0.99), "{{request}}"),),
            "How long clients are told to wait for a quota. 99 of 100 are told less.",
        ),
        Panel(
            "Flush times",
            "ms",
            tuple(
                Query(
                    f"histogram_quantile({share}, sum by (instance, le) (rate({table.FLUSH_TIME.name}_bucket[{RATE}])))",
                    f"{{{{instance}}}} {share:.0%}",
                )
                for share in (0.5, 0.99)
            ),
        ),
        Panel("Connections", "short", (Query(f"sum by (listener) ({table.CONNECTIONS.name})", "{{listener}}"),)),
        Panel(
            "Failed authentications",
            "ops",
            (Query(_rate(table.FAILED_AUTHENTICATIONS, "listener"), "{{listener}}"),),
        ),
        Panel(
            "Brokers",
            "short",
            (
                Query(f"sum({table.ACTIVE_BROKERS.name})", "live"),
                Query(f"sum({table.FENCED_BROKERS.name})", "not live"),
                Query(f"sum({table.ACTIVE_CONTROLLERS.name})", "active controllers"),
            ),
        ),
        Panel(
            "Leaders",
            "short",
            (
                Query(f"sum by (instance) ({table.LEADERS.name})", "{{instance}}"),
                Query(f"sum({table.PREFERRED_REPLICA_IMBALANCE.name})", "not led by the preferred replica"),
            ),
        ),
        Panel("Replication", "Bps", (Query(_rate(table.REPLICATION_BYTES_IN, "instance"), "into {{instance}}"),)),
    ),
)

TOPICS = Dashboard(
    "raylog-topics",
    "raylog: topics",
    (
        Panel("Bytes in", "Bps", (Query(_rate(table.BYTES_IN, "topic", _TOPIC), "{{topic}}"),)),
        Panel("Bytes out", "Bps", (Query(_rate(table.BYTES_OUT, "topic", _TOPIC), "{{topic}}"),)),
        Panel("Records in", "wps", (Query(_rate(table.MESSAGES_IN, "topic", _TOPIC), "{{topic}}"),)),
        Panel("Appends", "ops", (Query(_rate(table.PRODUCE_REQUESTS, "topic", _TOPIC), "{{topic}}"),)),
        Panel(
            "Refused appends",
            "ops",
            (Query(_rate(table.FAILED_PRODUCE_REQUESTS, "topic", _TOPIC), "{{topic}}"),),
        ),
        Panel(
            "Size",
            "bytes",
            (Query(f"sum by (topic) ({table.LOG_SIZE.name}{_TOPIC})", "{{topic}}"),),
            "Of all replicas.",
        ),
        Panel(
            "Records kept",
            "short",
            (
                Query(
                    f"sum by (topic) (max by (topic, partition) ({table.LOG_END_OFFSET.name}{_TOPIC})"
                    f" - min by (topic, partition) ({table.LOG_START_OFFSET.name}{_TOPIC}))",
                    "{{topic}}",
                ),
            ),
            "From the first offset to the last. Compaction leaves fewer.",
        ),
    ),
    ("topic",),
)

GROUPS = Dashboard(
    "raylog-groups",
    "raylog: consumer groups",
    (
        Panel(
            "Lag",
            "short",
            (Query(f"sum by (consumergroup, topic) ({table.LAG.name}{_GROUP})", "{{consumergroup}}: {{topic}}"),),
            "Records behind the end that consumers can read.",
        ),
        Panel(
            "Furthest behind",
            "short",
            (Query(f"topk(10, {table.LAG.name}{_GROUP})", "{{consumergroup}}: {{topic}}-{{partition}}"),),
        ),
        Panel(
            "Read",
            "wps",
            (
                Query(
                    f"sum by (consumergroup, topic) (rate({table.CURRENT_OFFSET.name}{_GROUP}[{RATE}]))",
                    "{{consumergroup}}: {{topic}}",
                ),
            ),
            "By committed offsets.",
        ),
        Panel(
            "Members",
            "short",
            (Query(f"sum by (consumergroup) ({table.GROUP_MEMBERS.name}{_GROUP})", "{{consumergroup}}"),),
        ),
    ),
    ("consumergroup",),
)

PROCESSES = Dashboard(
    "raylog-processes",
    "raylog: processes",
    (
        Panel(
            "CPU", "percentunit", (Query(_rate(table.CPU_SECONDS, "instance, node_id"), "{{instance}} {{node_id}}"),)
        ),
        Panel(
            "Memory",
            "bytes",
            (Query(f"sum by (instance, node_id) ({table.RESIDENT_MEMORY.name})", "{{instance}} {{node_id}}"),),
        ),
        Panel(
            "Delay of the event loop",
            "s",
            (Query(f"max by (instance, node_id) ({table.LOOP_DELAY.name})", "{{instance}} {{node_id}}"),),
            "At worst within the last minute.",
        ),
        Panel(
            "Open files",
            "short",
            (Query(f"sum by (instance, node_id) ({table.OPEN_FILES.name})", "{{instance}} {{node_id}}"),),
        ),
        Panel(
            "Processes that do not answer",
            "short",
            (Query(f"sum by (instance) ({table.SILENT_PROCESSES.name})", "{{instance}}"),),
        ),
    ),
)

TRANSACTIONS = Dashboard(
    "raylog-transactions",
    "raylog: transactions",
    (
        Panel(
            "Under way",
            "short",
            (
                Query(f"sum({table.OPEN_TRANSACTIONS.name})", "open"),
                Query(f"sum({table.ENDING_TRANSACTIONS.name})", "ending"),
            ),
            "Those that are ending are decided, and their markers are not all written.",
        ),
        Panel(
            "Ended",
            "ops",
            (
                Query(f"sum(rate({table.COMMITTED_TRANSACTIONS.name}[{RATE}]))", "committed"),
                Query(f"sum(rate({table.ABORTED_TRANSACTIONS.name}[{RATE}]))", "aborted"),
                Query(f"sum(rate({table.TIMED_OUT_TRANSACTIONS.name}[{RATE}]))", "timed out"),
            ),
        ),
        Panel("Transactional ids", "short", (Query(f"sum({table.TRANSACTIONAL_IDS.name})", "ids"),)),
        Panel(
            "Records that wait for their transaction",
            "short",
            (Query(f"sum by (topic) ({table.LAST_STABLE_OFFSET_LAG.name}{_TOPIC})", "{{topic}}"),),
            "Readers of committed records do not see them yet.",
        ),
    ),
    ("topic",),
)

CLIENTS = Dashboard(
    "raylog-clients",
    "raylog: metrics of clients",
    (
        Panel(
            "Client instances", "short", (Query(f"sum by (instance) ({table.CLIENT_INSTANCES.name})", "{{instance}}"),)
        ),
        Panel("Pushes", "ops", (Query(_rate(table.CLIENT_PUSHES, "instance"), "{{instance}}"),)),
        Panel(
            "Pushes that are refused",
            "ops",
            (
                Query(f"sum(rate({table.UNREADABLE_PUSHES.name}[{RATE}]))", "unreadable"),
                Query(f"sum(rate({table.THROTTLED_TELEMETRY.name}[{RATE}]))", "too early"),
                Query(f"sum(rate({table.UNKNOWN_SUBSCRIPTIONS.name}[{RATE}]))", "of a former subscription"),
            ),
        ),
        Panel(
            "Values without room",
            "ops",
            (Query(_rate(table.DROPPED_POINTS, "instance"), "{{instance}}"),),
            "What clients pushed beyond the bounds of docs/metrics.md.",
        ),
    ),
)

DASHBOARDS: Final[Sequence[Dashboard]] = (CLUSTER, TOPICS, GROUPS, TRANSACTIONS, CLIENTS, PROCESSES)

ALERTS: Final[Sequence[Alert]] = (
    Alert(
        "RaylogPartitionOffline",
        f"sum({table.OFFLINE_PARTITIONS.name}) > 0",
        "30s",
        "critical",
        "{{ $value }} partitions have no leader",
        "Nothing can be written to them or read from them. `raylog topics describe --unavailable-partitions` names "
        "them, `raylog events --kind partition-offline` says since when.",
    ),
    Alert(
        "RaylogUnderMinIsr",
        f"sum({table.UNDER_MIN_ISR.name}) > 0",
        "1m",
        "critical",
        "{{ $value }} partitions have fewer in-sync replicas than min.insync.replicas",
        "Producers with acks=all are refused there. `raylog status` names them.",
    ),
    Alert(
        "RaylogUnderReplicated",
        f"sum({table.UNDER_REPLICATED.name}) > 0",
        "5m",
        "warning",
        "{{ $value }} partitions lack in-sync replicas",
        "`raylog topics describe --under-replicated-partitions` names them, `raylog brokers list` shows who is away.",
    ),
    Alert(
        "RaylogUncleanElection",
        f"sum(delta({table.UNCLEAN_ELECTIONS.name}[10m])) > 0",
        "0m",
        "critical",
        "A replica that was not in sync has become a leader",
        "Acknowledged records may be lost. `raylog events --kind leader-elected-unclean` names the partitions.",
    ),
    Alert(
        "RaylogOfflineReplica",
        f"sum by (instance) ({table.OFFLINE_REPLICAS.name}) > 0",
        "1m",
        "warning",
        "{{ $labels.instance }} has {{ $value }} replicas whose logs cannot be opened or have failed",
        "`raylog log-dirs` shows the disk, and the log of the broker the reason.",
    ),
    Alert(
        "RaylogNoActiveController",
        f"sum({table.ACTIVE_CONTROLLERS.name}) != 1",
        "1m",
        "critical",
        "{{ $value }} controllers are active",
        "Without one, no leader is elected and no topic changes. `raylog quorum status` shows who votes.",
    ),
    Alert(
        "RaylogControllerUnreachable",
        f"max({table.UNREACHABLE_VOTERS.name}) > 0",
        "1m",
        "warning",
        "{{ $value }} controllers cannot be reached",
        "One more may be one too many for a majority. `raylog quorum status` names them.",
    ),
    Alert(
        "RaylogBrokerAway",
        f"sum({table.FENCED_BROKERS.name}) > 0",
        "1m",
        "warning",
        "{{ $value }} brokers are away",
        "`raylog brokers list` names them.",
    ),
    Alert(
        "RaylogGroupLagGrows",
        f"sum by (consumergroup, topic) ({table.LAG.name}) > 1000 "
        f"and sum by (consumergroup, topic) (deriv({table.LAG.name}[10m])) > 0",
        "15m",
        "warning",
        "{{ $labels.consumergroup }} falls behind on {{ $labels.topic }}",
        "It is {{ $value }} records behind, and more with every minute. `raylog groups describe --group "
        "{{ $labels.consumergroup }} --watch 2` shows where.",
    ),
    Alert(
        "RaylogTransactionStuck",
        f"max by (topic, partition) ({table.LAST_STABLE_OFFSET_LAG.name}) > 0 and max by (topic, partition) "
        f"(delta(({table.LOG_END_OFFSET.name} - {table.LAST_STABLE_OFFSET_LAG.name})[20m:1m])) == 0",
        "1m",
        "warning",
        "A transaction holds back {{ $labels.topic }}-{{ $labels.partition }}",
        "For 20 minutes, readers of committed records have got nothing of it, and {{ $value }} records wait. "
        "`raylog transactions find-hanging --topic {{ $labels.topic }}` names the producer.",
    ),
    Alert(
        "RaylogTransactionsTimeOut",
        f"sum(rate({table.TIMED_OUT_TRANSACTIONS.name}[10m])) > 0",
        "10m",
        "warning",
        "Transactions are aborted because their time is over",
        "{{ $value }} a second: their producers have died, or need a longer transaction.timeout.ms. "
        "`raylog transactions list` names those that are open.",
    ),
    Alert(
        "RaylogProduceSlow",
        f'histogram_quantile(0.99, sum by (instance, le) (rate({table.TOTAL_TIME.name}_bucket{{request="Produce"}}[5m]))) '
        "> 1000",
        "10m",
        "warning",
        "One of 100 Produce requests takes {{ $value }} ms at {{ $labels.instance }}",
        "With acks=all they wait for the slowest follower. `raylog top` shows followers and busy processes.",
    ),
    Alert(
        "RaylogClientMetricsDropped",
        f"sum by (instance) (rate({table.DROPPED_POINTS.name}[10m])) > 0",
        "10m",
        "warning",
        "Values that clients push have no room at {{ $labels.instance }}",
        "{{ $value }} a second. `raylog client-metrics list` names the subscriptions; ask for fewer metrics.",
    ),
    Alert(
        "RaylogEventLoopLate",
        f"max by (instance, node_id) ({table.LOOP_DELAY.name}) > 1",
        "5m",
        "warning",
        "Process {{ $labels.node_id }} of {{ $labels.instance }} answers {{ $value }} s late",
        "`raylog actors list` shows what it holds and how busy it is.",
    ),
    Alert(
        "RaylogFailedAuthentications",
        f"sum by (instance, listener) (rate({table.FAILED_AUTHENTICATIONS.name}[5m])) > 1",
        "5m",
        "warning",
        "Clients fail to authenticate at {{ $labels.listener }} of {{ $labels.instance }}",
        "{{ $value }} times a second: a wrong password in a deployment, or somebody guesses.",
    ),
)


def as_grafana(dashboard: Dashboard) -> dict[str, Any]:
    """The JSON model that Grafana imports and provisions."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": [TAG],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source(), *map(_variable, dashboard.variables)]},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def as_rules(alerts: Sequence[Alert] = ALERTS) -> str:
    """A file of rules of Prometheus, in YAML, whose strings may be JSON's."""
    lines = ["groups:", f"  - name: {TAG}", "    rules:"]
    for each in alerts:
        lines += [
            f"      - alert: {each.name}",
            f"        expr: {json.dumps(each.expression)}",
            f"        for: {each.for_}",
            f"        labels: {{severity: {each.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(each.summary)}",
            f"          description: {json.dumps(each.description)}",
        ]
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """The content of each file, by name."""
    found = {f"{each.uid}.json": json.dumps(as_grafana(each), indent=2) + "\n" for each in DASHBOARDS}
    return found | {RULES_FILE: as_rules()}


def expressions() -> Iterator[tuple[str, str]]:
    """Each with what it belongs to, for whoever looks whether there is data."""
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.title}: {panel.title}: {query.legend}", query.expression


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> dict[str, Any]:
    metric = {"topic": table.BYTES_IN, "consumergroup": table.LAG}[label]
    return {
        "name": label,
        "type": "query",
        "datasource": _chosen_source(),
        "query": f"label_values({metric.name}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _chosen_source() -> Mapping[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    in_a_row = WIDTH // PANEL_WIDTH
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _chosen_source(),
        "gridPos": {
            "x": number % in_a_row * PANEL_WIDTH,
            "y": number // in_a_row * PANEL_HEIGHT,
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _chosen_source(),
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }
