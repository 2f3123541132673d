"""The configs of brokers that shape a server process: of those that hold replicas (``HOSTS``), and
of controllers.

Names without an equivalent in Kafka are raylog's own. Each default stands here and nowhere else:
the fields of ``HostConfig`` and ``ControllerConfig`` take it from the table (``settings``).
"""

from __future__ import annotations

from raylog.configs.broker_config import BrokerConfig, ReadBy
from raylog.configs.topic_configs import INT_MAX, LONG_MAX, ConfigValueType
from raylog.log.record_validation import WALKED_BYTES_MAX

HEARTBEAT_INTERVAL = "broker.heartbeat.interval.ms"
SESSION_TIMEOUT = "broker.session.timeout.ms"
SLOW_REQUESTS = "request.slow.log.ms"
TRACED_REQUESTS = "request.trace.enable"
TRACES_ENDPOINT = "traces.otlp.endpoint"
TRACED_SPANS = "traces.spans.per.second.max"


def _of_hosts(name: str, default: int, meaning: str, minimum: int = 1, maximum: int = INT_MAX) -> BrokerConfig:
    return BrokerConfig(name, ConfigValueType.INT, str(default), meaning, minimum, maximum, read_by=ReadBy.HOSTS)


def _of_controller(name: str, default: int, meaning: str, minimum: int = 1) -> BrokerConfig:
    return BrokerConfig(
        name,
        ConfigValueType.INT,
        str(default),
        meaning,
        minimum,
        INT_MAX,
        read_by=ReadBy.CONTROLLER,
        is_cluster_wide=True,
    )


HOSTS = (
    _of_hosts("alter.partition.backoff.ms", 100, "pause after the controller has refused a change of the in-sync replicas"),
    _of_hosts("awaited.bytes.max", 32 << 20, "bytes of records that wait in one process until a partition serves", 0),
    _of_hosts("awaited.leader.wait.ms", 5_000,
              "how long a request without a timeout of its own waits for a partition that will serve", 0),
    _of_hosts("awaited.requests.max", 10_000, "requests that wait in one process until a partition serves", 0),
    _of_hosts("cold.read.wait.ms", 500,
              "how long a consumer's fetch may wait for records that have to be read from the disk, if its own wait is shorter", 0),
    BrokerConfig("connections.max.idle.ms", ConfigValueType.LONG, "600000",
                 "a connection of a Kafka client that asks for nothing for this long is closed; -1: never",
                 -1, LONG_MAX, read_by=ReadBy.HOSTS),
    _of_hosts("failed.log.retry.max.ms", 30_000, "the longest pause between two attempts to open a log or delete a folder"),
    _of_hosts("failed.log.retry.ms", 250, "pause after a log could not be opened or a folder not be deleted; doubled each time"),
    _of_hosts("fetch.max.bytes", 57_671_680, "bytes of records in one answer to a fetch of a client", 1_024),
    _of_hosts("high.watermark.news.ms", 5,
              "how long a new high watermark waits for records to travel to the followers with", 0),
    _of_hosts("locked.log.retry.ms", 20, "pause while another process holds the folder of a replica"),
    BrokerConfig("log.retention.check.interval.ms", ConfigValueType.LONG, "300000",
                 "how often a log is checked for segments that retention deletes", 1, LONG_MAX, read_by=ReadBy.HOSTS),
    _of_hosts("replica.fetch.backoff.first.ms", 5, "pause before a follower's first retry; doubled each time"),
    _of_hosts("replica.fetch.backoff.ms", 1_000, "the longest pause between two tries of a follower's fetch", 0),
    _of_hosts("replica.fetch.max.bytes", 1 << 20, "bytes that a follower asks of one partition; a single larger batch is still sent", 0),
    _of_hosts("replica.fetch.min.bytes", 1, "bytes that a leader waits for before it answers a follower"),
    _of_hosts("replica.fetch.response.max.bytes", 10 << 20, "bytes in one answer to a follower", 0),
    _of_hosts("replica.fetch.wait.max.ms", 500, "how long a leader waits for records for a follower"),
    BrokerConfig("replica.high.watermark.checkpoint.interval.ms", ConfigValueType.LONG, "5000",
                 "how often high watermarks are written to the disk and reported to the controller", 1, read_by=ReadBy.HOSTS),
    BrokerConfig("replica.lag.time.max.ms", ConfigValueType.LONG, "30000",
                 "how long a follower may lag before its leader takes it out of the in-sync replicas", 1, read_by=ReadBy.HOSTS),
    BrokerConfig(SLOW_REQUESTS, ConfigValueType.LONG, "-1",
                 "a request of a client that takes so long is logged with where its time went; 0: each; -1: none",
                 -1, read_by=ReadBy.HOSTS),
    BrokerConfig(TRACED_REQUESTS, ConfigValueType.BOOLEAN, "false",
                 "whether each request of a client gets a trace id, which the lines have that it causes in the logs of all processes",
                 read_by=ReadBy.HOSTS),
    _of_hosts("socket.request.max.bytes", 104_857_600,
              "bytes of one request of a Kafka client; the connection of a larger one is closed", 1_024),
    BrokerConfig(TRACES_ENDPOINT, ConfigValueType.STRING, "",
                 "where the spans of records with a `traceparent` header go: an http:// or https:// address of a collector of "
                 "OpenTelemetry, to which `/v1/traces` is added if it has no path; empty: there are no spans, and no header is "
                 "looked at", read_by=ReadBy.HOSTS),
    _of_hosts(TRACED_SPANS, 1_000, "spans that one process begins in a second; records that come then are not looked at any more", 4),
    _of_hosts("unknown.partition.wait.ms", 1_000, "how long any request waits for a partition that is not known here", 0),
    _of_hosts("walked.bytes.max", WALKED_BYTES_MAX, "a Produce with more bytes of records than this is checked in a thread", 0),
)  # fmt: skip

CONTROLLERS = (
    _of_controller("actor.start.backoff.max.ms", 30_000, "the longest pause between two attempts to start a server process"),
    _of_controller("actor.start.backoff.ms", 200, "pause after a server process could not be started; doubled each time"),
    _of_controller("actor.start.hello.timeout.ms", 30_000,
                   "a process that was started and has not reported by then is started again"),
    _of_controller("actor.start.settling.max.ms", 500, "the longest that the replacement of a dead process waits for elections", 0),
    _of_controller("actor.start.settling.min.ms", 50, "a wait shorter than this is left out", 0),
    _of_controller("actor.start.settling.ms.per.leader", 2, "that wait, for each partition that the dead process led", 0),
    _of_controller("actor.start.stable.after.ms", 2_000,
                   "a process that lived this long did not fail at its start: the next one starts without a pause", 0),
    _of_controller(HEARTBEAT_INTERVAL, 2_000,
                   f"how often a server process reports that it lives; at most half of `{SESSION_TIMEOUT}`"),
    _of_controller("broker.redial.interval.ms", 500, "how often the controller calls a process that it has lost"),
    _of_controller("broker.return.within.ms", 500,
                   "how long a process that answers such a call may take to open its session again"),
    _of_controller(SESSION_TIMEOUT, 9_000, "a server process that is silent for this long is declared dead"),
    _of_controller("controller.pause.ms", 500, "a controller that is this late to a deadline was paused, and declares nobody dead by it"),
    BrokerConfig("delete.topic.enable", ConfigValueType.BOOLEAN, "true", "whether topics can be deleted",
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    _of_controller("first.leader.wait.ms", 1_000,
                   "how long a new partition waits for its preferred leader once another replica is there", 0),
    _of_controller("high.watermark.record.interval.ms", 3_000,
                   "shortest time between two records of leaders' high watermarks in the metadata log"),
    BrokerConfig("metadata.log.max.record.bytes.between.snapshots", ConfigValueType.LONG, str(20 << 20),
                 "bytes of the metadata log after which a snapshot replaces it", 1,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
)  # fmt: skip
