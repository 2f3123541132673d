"""Every metric that a Broker shows. The names are those that the JMX exporter of Prometheus gives
Apache Kafka's, where Kafka has the metric, and those of common exporters else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raylog.metrics.metric import Metric, MetricType

COUNTER, GAUGE, HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
OTHER_TOPICS: Final = "(others)"
"""Stands for the topics that have no series of their own. No topic can have this name."""

_TOPICS = "kafka_server_brokertopicmetrics_"
_BEAN = "kafka.server:type=BrokerTopicMetrics,name="
_REPLICAS = "kafka_server_replicamanager_"
_REPLICA_BEAN = "kafka.server:type=ReplicaManager,name="
_SOCKETS = "kafka_server_socket_server_metrics_"
_SOCKET_BEAN = "kafka.server:type=socket-server-metrics "
_CONTROLLER = "kafka_controller_kafkacontroller_"
_CONTROLLER_BEAN = "kafka.controller:type=KafkaController,name="
_RAFT = "kafka_server_raft_metrics_"
_RAFT_BEAN = "kafka.server:type=raft-metrics "
_LOG = "kafka_log_log_"
_LOG_BEAN = "kafka.log:type=Log,name="
_PARTITION = ("topic", "partition")


def _of_topics(name: str, bean: str, meaning: str) -> Metric:
    return Metric(f"{_TOPICS}{name}_total", COUNTER, ("topic",), meaning, f"{_BEAN}{bean}")


def _of_times(name: str, bean: str, meaning: str) -> Metric:
    bean = f"kafka.network:type=RequestMetrics,name={bean}"
    return Metric(f"kafka_network_requestmetrics_{name}", HISTOGRAM, ("request",), meaning, bean)


def _of_raft(name: str, meaning: str) -> Metric:
    return Metric(f"{_RAFT}{name.replace('-', '_')}", GAUGE, (), meaning, f"{_RAFT_BEAN}{name}")


def _of_group_states(name: str, bean: str, meaning: str) -> Metric:
    bean = f"kafka.coordinator.group:type=GroupMetadataManager,name={bean}"
    return Metric(f"kafka_coordinator_group_groupmetadatamanager_{name}", GAUGE, (), meaning, bean)


BYTES_IN = _of_topics(
    "bytesin", "BytesInPerSec", "bytes of record batches that producers sent and the leader took, repeated ones too"
)
BYTES_OUT = _of_topics("bytesout", "BytesOutPerSec", "bytes of record batches that consumers were sent")
MESSAGES_IN = _of_topics("messagesin", "MessagesInPerSec", "records in those batches")
REPLICATION_BYTES_IN = _of_topics(
    "replicationbytesin", "ReplicationBytesInPerSec", "bytes of record batches that followers copied from leaders"
)
REPLICATION_BYTES_OUT = _of_topics(
    "replicationbytesout", "ReplicationBytesOutPerSec", "bytes of record batches that leaders sent to followers"
)
PRODUCE_REQUESTS = _of_topics(
    "totalproducerequests", "TotalProduceRequestsPerSec", "appends that a leader was asked for, one for each partition"
)
FAILED_PRODUCE_REQUESTS = _of_topics(
    "failedproducerequests", "FailedProduceRequestsPerSec", "those of them that the leader refused"
)

REQUESTS = Metric(
    "kafka_network_requestmetrics_requests_total",
    COUNTER,
    ("request", "version"),
    "requests of clients, by API and version",
    "kafka.network:type=RequestMetrics,name=RequestsPerSec",
)
TOTAL_TIME = _of_times(
    "totaltimems", "TotalTimeMs", "milliseconds from when a client's request was read until its answer was there"
)
LOCAL_TIME = _of_times(
    "localtimems",
    "LocalTimeMs",
    "those of them until its handler had done what it could without waiting; requests that only wait are missing",
)
THROTTLE_TIME = _of_times("throttletimems", "ThrottleTimeMs", "milliseconds that clients were told to wait for a quota")
INTERNAL_REQUESTS = Metric(
    "raylog_internal_requests_total",
    COUNTER,
    ("request", "version"),
    "requests that the cluster's own processes sent each other, those that they pass on for clients among them",
)
CONNECTIONS = Metric(
    f"{_SOCKETS}connection_count",
    GAUGE,
    ("listener",),
    "open connections; `INTERNAL` are those of raylog's own clients and processes",
    f"{_SOCKET_BEAN}connection-count",
)
CONNECTIONS_CREATED = Metric(
    f"{_SOCKETS}connection_creation_total",
    COUNTER,
    ("listener",),
    "connections that were accepted",
    f"{_SOCKET_BEAN}connection-creation-total",
)
SUCCESSFUL_AUTHENTICATIONS = Metric(
    f"{_SOCKETS}successful_authentication_total",
    COUNTER,
    ("listener",),
    "clients that authenticated by SASL, or proved the cluster's secret",
    f"{_SOCKET_BEAN}successful-authentication-total",
)
FAILED_AUTHENTICATIONS = Metric(
    f"{_SOCKETS}failed_authentication_total",
    COUNTER,
    ("listener",),
    "attempts to authenticate that failed",
    f"{_SOCKET_BEAN}failed-authentication-total",
)

PARTITIONS = Metric(
    f"{_REPLICAS}partitioncount", GAUGE, (), "replicas that this broker holds", f"{_REPLICA_BEAN}PartitionCount"
)
LEADERS = Metric(
    f"{_REPLICAS}leadercount", GAUGE, (), "partitions that this broker leads", f"{_REPLICA_BEAN}LeaderCount"
)
UNDER_REPLICATED = Metric(
    f"{_REPLICAS}underreplicatedpartitions",
    GAUGE,
    (),
    "partitions that this broker leads and that have fewer in-sync replicas than replicas",
    f"{_REPLICA_BEAN}UnderReplicatedPartitions",
)
UNDER_MIN_ISR = Metric(
    f"{_REPLICAS}underminisrpartitioncount",
    GAUGE,
    (),
    "partitions that this broker leads and that have fewer in-sync replicas than `min.insync.replicas`",
    f"{_REPLICA_BEAN}UnderMinIsrPartitionCount",
)
AT_MIN_ISR = Metric(
    f"{_REPLICAS}atminisrpartitioncount",
    GAUGE,
    (),
    "partitions that this broker leads and that have exactly as many",
    f"{_REPLICA_BEAN}AtMinIsrPartitionCount",
)
OFFLINE_REPLICAS = Metric(
    f"{_REPLICAS}offlinereplicacount",
    GAUGE,
    (),
    "replicas of this broker whose logs could not be opened or have failed",
    f"{_REPLICA_BEAN}OfflineReplicaCount",
)
ISR_SHRINKS = Metric(
    f"{_REPLICAS}isrshrinks_total",
    COUNTER,
    (),
    "times that a partition that this broker led lost in-sync replicas",
    f"{_REPLICA_BEAN}IsrShrinksPerSec",
)
ISR_EXPANDS = Metric(
    f"{_REPLICAS}isrexpands_total", COUNTER, (), "times that it gained some", f"{_REPLICA_BEAN}IsrExpandsPerSec"
)

LOG_SIZE = Metric(f"{_LOG}size", GAUGE, _PARTITION, "bytes of this broker's replica", f"{_LOG_BEAN}Size")
LOG_START_OFFSET = Metric(f"{_LOG}logstartoffset", GAUGE, _PARTITION, "its first offset", f"{_LOG_BEAN}LogStartOffset")
LOG_END_OFFSET = Metric(
    f"{_LOG}logendoffset", GAUGE, _PARTITION, "the offset that its next record will have", f"{_LOG_BEAN}LogEndOffset"
)

LAST_STABLE_OFFSET_LAG = Metric(
    "kafka_cluster_partition_laststableoffsetlag",
    GAUGE,
    _PARTITION,
    "records that readers of committed records do not see yet, because a transaction is open; shown by the leader",
    "kafka.cluster:type=Partition,name=LastStableOffsetLag",
)
FLUSH_TIME = Metric(
    "kafka_log_logflushstats_logflushrateandtimems",
    HISTOGRAM,
    (),
    "milliseconds that flushes took which appends, or `flush.ms`, asked for",
    "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
)
CLEANINGS = Metric("raylog_log_cleanings_total", COUNTER, (), "compactions that came to their end")
FAILED_CLEANINGS = Metric("raylog_log_failed_cleanings_total", COUNTER, (), "compactions that did not")
CLEANED_BYTES = Metric(
    "raylog_log_cleaned_bytes_total", COUNTER, (), "bytes that compactions have read and written anew"
)
REMOVED_BYTES = Metric("raylog_log_cleaning_removed_bytes_total", COUNTER, (), "bytes of them that are gone")

ACTIVE_CONTROLLERS = Metric(
    f"{_CONTROLLER}activecontrollercount",
    GAUGE,
    (),
    "1 where the active controller is this broker's, else 0",
    f"{_CONTROLLER_BEAN}ActiveControllerCount",
)
TOPICS = Metric(
    f"{_CONTROLLER}globaltopiccount",
    GAUGE,
    (),
    "topics of the cluster; shown, as those down to `raylog_controller_leader_epochs`, by the broker of the active controller",
    f"{_CONTROLLER_BEAN}GlobalTopicCount",
)
ALL_PARTITIONS = Metric(
    f"{_CONTROLLER}globalpartitioncount",
    GAUGE,
    (),
    "partitions of the cluster",
    f"{_CONTROLLER_BEAN}GlobalPartitionCount",
)
OFFLINE_PARTITIONS = Metric(
    f"{_CONTROLLER}offlinepartitionscount",
    GAUGE,
    (),
    "partitions without a leader",
    f"{_CONTROLLER_BEAN}OfflinePartitionsCount",
)
PREFERRED_REPLICA_IMBALANCE = Metric(
    f"{_CONTROLLER}preferredreplicaimbalancecount",
    GAUGE,
    (),
    "partitions that another replica than the preferred one leads",
    f"{_CONTROLLER_BEAN}PreferredReplicaImbalanceCount",
)
ACTIVE_BROKERS = Metric(
    f"{_CONTROLLER}activebrokercount",
    GAUGE,
    (),
    "brokers whose Broker process lives",
    f"{_CONTROLLER_BEAN}ActiveBrokerCount",
)
FENCED_BROKERS = Metric(
    f"{_CONTROLLER}fencedbrokercount",
    GAUGE,
    (),
    "brokers whose Broker process does not",
    f"{_CONTROLLER_BEAN}FencedBrokerCount",
)
UNCLEAN_ELECTIONS = Metric(
    "kafka_controller_controllerstats_uncleanleaderelections",
    GAUGE,
    (),
    "unclean elections that partitions of today have had since they were created",
    "kafka.controller:type=ControllerStats,name=UncleanLeaderElectionsPerSec",
)
LEADER_EPOCHS = Metric(
    "raylog_controller_leader_epochs",
    GAUGE,
    (),
    "elections of a leader, clean and unclean, that partitions of today have had since they were created",
)

NEW_CONTROLLERS = Metric(
    f"{_CONTROLLER}newactivecontrollerscount_total",
    COUNTER,
    (),
    "elections of a controller that this broker's controller has seen, its own among them; shown, as the following "
    "ones, by each broker that has a controller, active or standby",
    f"{_CONTROLLER_BEAN}NewActiveControllersCount",
)
LAST_APPLIED_RECORD = Metric(
    f"{_CONTROLLER}lastappliedrecordoffset",
    GAUGE,
    (),
    "the last entry of the metadata log that it has applied",
    f"{_CONTROLLER_BEAN}LastAppliedRecordOffset",
)
LAST_COMMITTED_RECORD = Metric(
    f"{_CONTROLLER}lastcommittedrecordoffset",
    GAUGE,
    (),
    "the last one that it knows to be committed",
    f"{_CONTROLLER_BEAN}LastCommittedRecordOffset",
)
RAFT_STATE = Metric(
    f"{_RAFT}current_state",
    GAUGE,
    ("state",),
    "1 for its state in the quorum: `leader`, `candidate`, `prospective`, `follower`, `unattached` or `observer`",
    f"{_RAFT_BEAN}current-state",
)
RAFT_LEADER = _of_raft("current-leader", "the broker of the controller that leads; -1: unknown")
RAFT_VOTED_FOR = _of_raft("current-vote", "the broker of the controller it voted for in this epoch; -1: none")
RAFT_EPOCH = _of_raft("current-epoch", "the epoch of the quorum")
RAFT_HIGH_WATERMARK = _of_raft("high-watermark", "the last entry that it knows to be committed")
RAFT_END = _of_raft("log-end-offset", "the last entry of its metadata log")
RAFT_END_EPOCH = _of_raft("log-end-epoch", "the epoch of that entry")
RAFT_VOTERS = _of_raft("number-of-voters", "controllers that vote")
RAFT_OBSERVERS = _of_raft("number-of-observers", "controllers that it reaches and that do not vote")
RAFT_LAG = Metric(
    "raylog_quorum_lag",
    GAUGE,
    (),
    "entries that are committed, as far as its leader has said, and that it has not applied",
)
UNREACHABLE_VOTERS = Metric(
    "raylog_quorum_unreachable_voters", GAUGE, (), "controllers that vote and that it cannot reach"
)
VOTER_LAG = Metric(
    "raylog_quorum_voter_lag",
    GAUGE,
    ("voter",),
    "entries of the active controller's log that a voter has not acknowledged, by the voter's broker, dead ones too; "
    "shown by the broker of the active controller",
)

CURRENT_OFFSET = Metric(
    "kafka_consumergroup_current_offset",
    GAUGE,
    ("consumergroup", *_PARTITION),
    "the offset that the group has committed; shown by the broker of its coordinator",
)
LAG = Metric(
    "kafka_consumergroup_lag",
    GAUGE,
    ("consumergroup", *_PARTITION),
    "records from there to the end that consumers can read",
)
LAG_SECONDS = Metric(
    "kafka_consumergroup_lag_seconds",
    GAUGE,
    ("consumergroup", *_PARTITION),
    "how long ago the first of those records came, as far as the broker has seen the partition grow; 0: there is none",
)
GROUP_MEMBERS = Metric(
    "kafka_consumergroup_members",
    GAUGE,
    ("consumergroup",),
    "members of the group; shown by the broker of its coordinator",
)

_TELEMETRY = "kafka_server_client_metrics_"
_TELEMETRY_BEAN = "kafka.server:type=ClientMetrics "
CLIENT_INSTANCES = Metric(
    f"{_TELEMETRY}instance_count",
    GAUGE,
    (),
    "client instances that have asked this broker what to push, up to 16,384",
    f"{_TELEMETRY_BEAN}ClientMetricsInstanceCount",
)
CLIENT_PUSHES = Metric(
    f"{_TELEMETRY}plugin_export_total",
    COUNTER,
    (),
    "pushes of clients' metrics that were taken",
    f"{_TELEMETRY_BEAN}ClientMetricsPluginExportCount",
)
UNREADABLE_PUSHES = Metric(
    f"{_TELEMETRY}plugin_error_total",
    COUNTER,
    (),
    "pushes that could not be read",
    f"{_TELEMETRY_BEAN}ClientMetricsPluginErrorCount",
)
THROTTLED_TELEMETRY = Metric(
    f"{_TELEMETRY}throttle_total",
    COUNTER,
    (),
    "requests of clients about their metrics that came too early",
    f"{_TELEMETRY_BEAN}ClientMetricsThrottleCount",
)
UNKNOWN_SUBSCRIPTIONS = Metric(
    f"{_TELEMETRY}unknown_subscription_request_total",
    COUNTER,
    (),
    "pushes for subscriptions that have changed since",
    f"{_TELEMETRY_BEAN}ClientMetricsUnknownSubscriptionRequestCount",
)
DROPPED_POINTS = Metric(
    "raylog_client_metrics_dropped_points_total",
    COUNTER,
    (),
    "values that clients pushed and for which there was no room",
)

GROUPS = _of_group_states("numgroups", "NumGroups", "consumer groups that this broker's processes coordinate")
PREPARING_GROUPS = _of_group_states(
    "numgroupspreparingrebalance", "NumGroupsPreparingRebalance", "those of them whose members are joining"
)
COMPLETING_GROUPS = _of_group_states(
    "numgroupscompletingrebalance", "NumGroupsCompletingRebalance", "those whose members wait for their assignments"
)
STABLE_GROUPS = _of_group_states("numgroupsstable", "NumGroupsStable", "those whose members have them")
EMPTY_GROUPS = _of_group_states("numgroupsempty", "NumGroupsEmpty", "those without members")
COMMITTED_OFFSETS = _of_group_states("numoffsets", "NumOffsets", "offsets that they have committed")
REBALANCES = Metric(
    "raylog_group_rebalances_total", COUNTER, (), "rebalances of consumer groups that have begun at this broker"
)
COMPLETED_REBALANCES = Metric(
    "kafka_server_group_coordinator_metrics_group_completed_rebalance_total",
    COUNTER,
    (),
    "rebalances after which all members had their assignments",
    "kafka.server:type=group-coordinator-metrics group-completed-rebalance-count",
)
TRANSACTIONAL_IDS = Metric(
    "raylog_transactional_ids", GAUGE, (), "transactional ids that this broker's processes coordinate"
)
OPEN_TRANSACTIONS = Metric("raylog_transactions_open", GAUGE, (), "transactions of them that are under way")
ENDING_TRANSACTIONS = Metric(
    "raylog_transactions_ending", GAUGE, (), "those that are decided and whose markers are not all written"
)
COMMITTED_TRANSACTIONS = Metric("raylog_transactions_committed_total", COUNTER, (), "transactions that were committed")
ABORTED_TRANSACTIONS = Metric(
    "raylog_transactions_aborted_total", COUNTER, (), "transactions that were aborted, by whomever"
)
TIMED_OUT_TRANSACTIONS = Metric(
    "raylog_transactions_timed_out_total", COUNTER, (), "those that were aborted because their time was over"
)

SPANS_SENT = Metric("raylog_trace_spans_sent_total", COUNTER, (), "spans that a collector of traces has taken")
SPANS_DROPPED = Metric(
    "raylog_trace_spans_dropped_total",
    COUNTER,
    ("reason",),
    "spans that it has not: `queue full`, `not sent`, or `no end`, whose end was not waited for any longer",
)
UNSEARCHED_BATCHES = Metric(
    "raylog_trace_unsearched_batches_total",
    COUNTER,
    (),
    "batches in which no trace was looked for, because there were enough spans in that second",
)

CPU_SECONDS = Metric("process_cpu_seconds_total", COUNTER, ("node_id",), "CPU time of a server process")
RESIDENT_MEMORY = Metric("process_resident_memory_bytes", GAUGE, ("node_id",), "its resident memory")
OPEN_FILES = Metric("process_open_fds", GAUGE, ("node_id",), "its open file descriptors")
LOOP_DELAY = Metric(
    "raylog_event_loop_delay_seconds",
    GAUGE,
    ("node_id",),
    "how late its event loop called a timer, at worst within the last minute",
)

SILENT_PROCESSES = Metric(
    "raylog_metrics_silent_processes",
    GAUGE,
    (),
    "processes of this broker that did not answer in time; their gauges are missing, their counters stand still",
)
SERIES_LEFT_OUT = Metric(
    "raylog_metrics_series_left_out",
    GAUGE,
    ("metric",),
    "series that are not shown, because the metric has more than `metrics.series.max`",
)

METRICS: Final[Mapping[str, Metric]] = {
    each.name: each for each in list(globals().values()) if isinstance(each, Metric)
}
