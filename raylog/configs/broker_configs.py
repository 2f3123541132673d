"""The configs of brokers, under Kafka's names: which can be changed while they run, which are only
shown, and which are refused.

*Dynamic* ones are a broker's own, or hold for all brokers that have none of their own; some are the
cluster's as a whole and are set for all brokers only (A20: per broker > for all > what it was
started with > default). Most of them are what a topic takes that does not set the config itself,
under another name (``topic_configs.BROKER_NAMES``). *Fixed* ones are shown and not changed.
Whatever else Kafka's brokers have is refused with the reason (``refused_broker_configs``); any
other name is an error that suggests the nearest one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from raylog.configs.broker_config import BrokerConfig, ReadBy
from raylog.configs.metrics_configs import METRICS_CONFIGS, METRICS_LISTENER, metrics_endpoint
from raylog.configs.refused_broker_configs import reason_for
from raylog.configs.replication_quotas import DISK_MOVE_RATE, FOLLOWER_RATE, LEADER_RATE
from raylog.configs.security_configs import SECURITY_CONFIGS, check_security
from raylog.configs.server_configs import CONTROLLERS, HEARTBEAT_INTERVAL, HOSTS, SESSION_TIMEOUT, TRACES_ENDPOINT
from raylog.configs.token_configs import TOKEN_CONFIGS
from raylog.configs.topic_configs import (
    BROKER_NAMES,
    INT_MAX,
    LONG_MAX,
    REQUEST_PARTITIONS_MAX,
    TOPIC_CONFIGS,
    ConfigValueType,
)
from raylog.errors import ConfigError
from raylog.otlp.endpoints import traces_endpoint
from raylog.security.sasl import MECHANISMS

PARTITIONS = "num.partitions"
REPLICATION_FACTOR = "default.replication.factor"
REPLICATION_FACTOR_UNSET = 3  # or as many as there are brokers, where those are fewer
SCALING_MAX = "actor.scaling.actors.max"
SCALING_BUSY = "actor.scaling.busy.ratio"
SCALING_IDLE = "actor.scaling.idle.ratio"
SHORT_MAX = (1 << 15) - 1
SASL_MECHANISMS = "sasl.enabled.mechanisms"
SASL_REAUTH = "connections.max.reauth.ms"
SASL_FAILURE_DELAY = "connection.failed.authentication.delay.ms"
QUOTA_WINDOWS = "quota.window.num"
QUOTA_WINDOW = "quota.window.size.seconds"
_OTHER_MECHANISMS = {
    "GSSAPI": "Kerberos is not spoken: use SCRAM-SHA-512, whose users `raylog users` keeps",
}

BrokerConfigs = Mapping[int | None, Mapping[str, str]]
"""What was set, by broker id; None: for all brokers."""


_CONTROLLERS = ("min.insync.replicas", "unclean.leader.election.enable")  # honoured by the controller, not by a log


def _for_topics(name: str, broker_name: str) -> BrokerConfig:
    of = TOPIC_CONFIGS[name]
    return BrokerConfig(
        broker_name,
        of.type,
        of.default,
        f"for topics that do not set `{name}`: {of.meaning}",
        of.minimum,
        of.maximum,
        of.choices,
        read_by=ReadBy.CONTROLLER if name in _CONTROLLERS else ReadBy.LOGS,
        is_cluster_wide=name in _CONTROLLERS,
        of_topic=name,
    )


def _of_groups(
    name: str, default: str, meaning: str, minimum: int = 1, type: ConfigValueType = ConfigValueType.INT
) -> BrokerConfig:
    return BrokerConfig(name, type, default, meaning, minimum, is_cluster_wide=True, read_by=ReadBy.GROUPS)


_GROUPS = (
    _of_groups(
        "group.initial.rebalance.delay.ms",
        "3000",
        "how long an empty group waits for more members after the first has joined",
        0,
    ),
    _of_groups(
        "group.native.return.ms",
        "500",
        "how long a native client may take to reconnect before its member is removed",
        0,
    ),
    _of_groups(
        "group.new.member.join.timeout.ms", "300000", "how long a new member waits for its first rebalance to end"
    ),
    _of_groups("group.max.session.timeout.ms", "1800000", "the longest session timeout that a member may ask for"),
    _of_groups("group.max.size", "2147483647", "how many members a group may have"),
    _of_groups("group.min.session.timeout.ms", "6000", "the shortest session timeout that a member may ask for"),
    _of_groups("offset.metadata.max.bytes", "4096", "characters of metadata that may be committed with an offset", 0),
    _of_groups("offsets.commit.timeout.ms", "5000", "how long a commit waits for the replicas"),
    _of_groups(
        "offsets.retention.check.interval.ms",
        "600000",
        "how often expired offsets are removed",
        type=ConfigValueType.LONG,
    ),
    _of_groups("offsets.retention.minutes", "10080", "how long the offsets of a group without members are kept"),
)

_CLEANER = (
    BrokerConfig("log.cleaner.backoff.ms", ConfigValueType.LONG, "15000",
                 "how long compaction pauses when nothing was due", 0, read_by=ReadBy.CLEANER),
    BrokerConfig("log.cleaner.dedupe.buffer.size", ConfigValueType.LONG, "134217728",
                 "bytes of memory that a process may use to compact a log; 24 for each key", 1 << 20,
                 read_by=ReadBy.CLEANER),
    BrokerConfig("log.cleaner.io.buffer.load.factor", ConfigValueType.DOUBLE, "0.9",
                 "share of that memory that is filled", 0.01, 1, read_by=ReadBy.CLEANER),
    BrokerConfig("log.cleaner.io.max.bytes.per.second", ConfigValueType.DOUBLE, "1.7976931348623157E308",
                 "bytes of log that compaction reads per second in one process", 1, read_by=ReadBy.CLEANER),
    BrokerConfig("log.scrub.interval.ms", ConfigValueType.LONG, "604800000",
                 "how often a log is read through to find damage", 1, read_by=ReadBy.LOGS),
    BrokerConfig("log.scrub.io.max.bytes.per.second", ConfigValueType.DOUBLE, "10485760",
                 "bytes of log that scrubbing reads per second in one process", 1, read_by=ReadBy.LOGS),
)  # fmt: skip

_TRANSACTIONS = (
    BrokerConfig("transaction.max.timeout.ms", ConfigValueType.INT, "900000",
                 "the longest `transaction.timeout.ms` that a producer may ask for", 1,
                 read_by=ReadBy.TRANSACTIONS, is_cluster_wide=True),
    BrokerConfig("transaction.remove.expired.transaction.cleanup.interval.ms", ConfigValueType.INT, "3600000",
                 "how often transactional ids that nobody uses any more are looked for", 1,
                 read_by=ReadBy.TRANSACTIONS, is_cluster_wide=True),
    BrokerConfig("transactional.id.expiration.ms", ConfigValueType.INT, "604800000",
                 "how long a transactional id is remembered that nobody uses", 1,
                 read_by=ReadBy.TRANSACTIONS, is_cluster_wide=True),
)  # fmt: skip

_PRODUCERS = (
    BrokerConfig("producer.id.expiration.ms", ConfigValueType.INT, "86400000",
                 "how long a log remembers a producer that writes nothing to it; checked as often as retention", 1, INT_MAX,
                 read_by=ReadBy.LOGS),
)  # fmt: skip

_SCALING = (
    BrokerConfig(SCALING_MAX, ConfigValueType.INT, "0",
                 "actors for users' topics that one broker gets by itself; 0: as many as its machine has cores, never more",
                 0, INT_MAX, read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig("actor.scaling.backoff.ms", ConfigValueType.LONG, "10000",
                 "pause between two steps on one disk; a replica that has moved stays for six times as long", 0,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig("actor.scaling.busy.ms", ConfigValueType.LONG, "5000",
                 "how long an actor has to be busy before it gets help", 0,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig(SCALING_BUSY, ConfigValueType.DOUBLE, "0.75",
                 "an actor is busy whose event loop runs for this share of the time in which nobody keeps it from a core", 0, 1,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig("actor.scaling.enable", ConfigValueType.BOOLEAN, "true",
                 "whether a busy actor gets another one beside it, which ends when it is idle",
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig("actor.scaling.idle.ms", ConfigValueType.LONG, "300000",
                 "how long an actor that was added has to be idle before it gives its replicas back and ends", 0,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig(SCALING_IDLE, ConfigValueType.DOUBLE, "0.2",
                 "an actor is idle whose event loop runs for at most this share of that time", 0, 1,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
)  # fmt: skip

_TABLE = (
    *_GROUPS,
    *_CLEANER,
    *_SCALING,
    *_PRODUCERS,
    *_TRANSACTIONS,
    *SECURITY_CONFIGS,
    *TOKEN_CONFIGS,
    *METRICS_CONFIGS,
    *HOSTS,
    *CONTROLLERS,
    BrokerConfig("auto.create.topics.enable", ConfigValueType.BOOLEAN, "true",
                 "whether a topic is created when a Kafka client first asks for it",
                 read_by=ReadBy.LISTENER, is_cluster_wide=True),
    BrokerConfig("auto.leader.rebalance.enable", ConfigValueType.BOOLEAN, "true",
                 "whether leaders go back to the preferred replicas by themselves",
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig(REPLICATION_FACTOR, ConfigValueType.INT, str(REPLICATION_FACTOR_UNSET),
                 "replicas of a topic that is created without a number; if this is not set, as many as there are brokers, at most 3",
                 1, SHORT_MAX, read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig(FOLLOWER_RATE, ConfigValueType.LONG, str(LONG_MAX),
                 "bytes per second that the broker's throttled replicas copy while they are not in sync", 0,
                 read_by=ReadBy.CONTROLLER),
    BrokerConfig("leader.imbalance.check.interval.seconds", ConfigValueType.LONG, "300",
                 "how often the balance of leaders is checked", 1, 1 << 40,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig("leader.imbalance.per.broker.percentage", ConfigValueType.INT, "10",
                 "how many of the partitions that prefer a broker may be led by others", 0,
                 read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig(LEADER_RATE, ConfigValueType.LONG, str(LONG_MAX),
                 "bytes per second that the broker's throttled leaders send to replicas that are not in sync", 0,
                 read_by=ReadBy.CONTROLLER),
    BrokerConfig(DISK_MOVE_RATE, ConfigValueType.LONG, str(LONG_MAX),
                 "bytes per second that replicas on their way from one disk of the broker to another copy", 0,
                 read_by=ReadBy.CONTROLLER),
    BrokerConfig(SASL_FAILURE_DELAY, ConfigValueType.INT, "100",
                 "how long after its last message a client is told that it has not authenticated", 0, INT_MAX,
                 read_by=ReadBy.LISTENER),
    BrokerConfig(SASL_REAUTH, ConfigValueType.LONG, "0",
                 "how long the session of a client that has authenticated lasts, unless it authenticates again; 0: for ever",
                 0, LONG_MAX, read_by=ReadBy.LISTENER),
    BrokerConfig("max.connections", ConfigValueType.INT, str(INT_MAX),
                 "connections of Kafka clients to one broker; further ones are closed at once", 0, INT_MAX,
                 read_by=ReadBy.LISTENER),
    BrokerConfig("max.connections.per.ip", ConfigValueType.INT, str(INT_MAX),
                 "connections of Kafka clients from one address to one broker; further ones are closed at once", 0, INT_MAX,
                 read_by=ReadBy.LISTENER),
    BrokerConfig("max.incremental.fetch.session.cache.slots", ConfigValueType.INT, "1000",
                 "fetch sessions of Kafka clients that one broker keeps", 0, INT_MAX, read_by=ReadBy.LISTENER),
    BrokerConfig(QUOTA_WINDOWS, ConfigValueType.INT, "11",
                 "windows over which the rates of clients with a quota are measured", 1, 1_000, read_by=ReadBy.LISTENER),
    BrokerConfig(QUOTA_WINDOW, ConfigValueType.INT, "1",
                 "seconds that such a window lasts", 1, 3_600, read_by=ReadBy.LISTENER),
    BrokerConfig(PARTITIONS, ConfigValueType.INT, "1", "partitions of a topic that is created without a number",
                 1, REQUEST_PARTITIONS_MAX, read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    BrokerConfig("queued.max.request.bytes", ConfigValueType.LONG, "268435456",
                 "bytes of requests that one broker works on at once; beyond that it stops reading from large senders; -1: no limit", -1,
                 read_by=ReadBy.LISTENER),
    BrokerConfig(SASL_MECHANISMS, ConfigValueType.LIST, "SCRAM-SHA-256,SCRAM-SHA-512",
                 "mechanisms by which clients may authenticate at listeners with SASL", choices=MECHANISMS,
                 read_by=ReadBy.LISTENER),
    BrokerConfig("unclean.shutdown.election.wait.ms", ConfigValueType.INT, "10000",
                 "how long an election after an unclean stop waits for the logs of in-sync replicas that are not up yet",
                 0, read_by=ReadBy.CONTROLLER, is_cluster_wide=True),
    *(_for_topics(name, broker_name) for name, broker_name in BROKER_NAMES.items() if TOPIC_CONFIGS[name].refused is None),
)  # fmt: skip

_FIXED = (
    BrokerConfig("advertised.listeners", ConfigValueType.LIST, "", "where Kafka clients are told to reach this broker",
                 read_by=ReadBy.LISTENER),
    BrokerConfig("broker.id", ConfigValueType.INT, "-1", "the number of this broker", -1, INT_MAX,
                 read_by=ReadBy.CONTROLLER),
    BrokerConfig("broker.rack", ConfigValueType.STRING, "", "the rack, or zone, of this broker",
                 read_by=ReadBy.CONTROLLER),
    BrokerConfig("listener.security.protocol.map", ConfigValueType.STRING, "", "the security protocol of each listener",
                 read_by=ReadBy.LISTENER),
    BrokerConfig("log.cleaner.enable", ConfigValueType.BOOLEAN, "true", "whether compacted topics are compacted",
                 read_by=ReadBy.CLEANER),
    BrokerConfig("log.dirs", ConfigValueType.STRING, "", "the disks of this broker", read_by=ReadBy.CONTROLLER),
)  # fmt: skip

BROKER_CONFIGS: Mapping[str, BrokerConfig] = {
    config.name: config for config in sorted(_TABLE, key=lambda each: each.name)
}
FIXED_CONFIGS: Mapping[str, BrokerConfig] = {config.name: config for config in _FIXED}
ONE_BROKERS = ("advertised.listeners", "broker.id", "broker.rack", "listener.security.protocol.map", "log.dirs")
"""Those of the fixed ones that each broker has for itself."""


def config_named(name: str, broker_id: int | None) -> BrokerConfig:
    """The config of that name, which may be set for that broker. Raises ConfigError that says why
    not.
    """
    config = BROKER_CONFIGS.get(name)
    if config is None:
        raise ConfigError(why_not(name))
    if config.is_cluster_wide and broker_id is not None:
        raise ConfigError(f"{name} is the cluster's as a whole: set it for all brokers, not for broker {broker_id}")
    return config


def changeable_config(name: str, broker_id: int | None) -> BrokerConfig:
    """The config of that name, which may be changed while brokers run. Raises ConfigError that says
    why not.
    """
    config = config_named(name, broker_id)
    if config.is_static:
        raise ConfigError(f"{name} is fixed when the cluster starts; it can't be changed while it runs")
    return config


def why_not(name: str) -> str:
    """Why a config of that name can't be set while brokers run."""
    if name in FIXED_CONFIGS:
        return f"{name} is fixed when a broker starts; it can't be changed while it runs"
    reason = reason_for(name)
    if reason is not None:
        return f"{name} is refused: {reason}"
    of_topic = BROKER_NAMES.get(name)
    near = (
        [of_topic] if of_topic in BROKER_CONFIGS else difflib.get_close_matches(name, BROKER_CONFIGS, n=1, cutoff=0.6)
    )
    return f"{name!r} is no config of a broker that can be changed while it runs" + (
        f"; did you mean {near[0]!r}?" if near else f"; these can: {', '.join(BROKER_CONFIGS)}"
    )


def validated(name: str, broker_id: int | None, text: str | None) -> str:
    """The value to store."""
    config = config_named(name, broker_id)
    if text is None:
        raise ConfigError(f"{name} needs a value")
    for mechanism, why in _OTHER_MECHANISMS.items() if name == SASL_MECHANISMS else ():
        if mechanism in text:
            raise ConfigError(f"{name}={text!r}: {why}")
    config.parse(text)
    if name == METRICS_LISTENER:
        metrics_endpoint(text)
    if name == TRACES_ENDPOINT:
        traces_endpoint(text)
    return text.strip()


def for_all_brokers(configs: Mapping[str, Any] | None) -> dict[str, str]:
    """Configs to be set for all brokers as they are stored; a name may have ``_`` for ``.``.
    ConfigError names what can't be.
    """
    texts = {name.replace("_", "."): value for name, value in (configs or {}).items()}
    values = {
        name: validated(name, None, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in texts.items()
    }
    check_together(values)
    return values


def check_together(configs: Mapping[str, str], *, cores: int = 0) -> None:
    """Whether what is set for all brokers goes together. Raises ConfigError that says what does
    not.

    ``cores``: of the largest machine that a broker is known to run on; 0: of none.
    """
    check_security(configs)
    heartbeat_ms, session_ms = (
        int(configs.get(name, BROKER_CONFIGS[name].default)) for name in (HEARTBEAT_INTERVAL, SESSION_TIMEOUT)
    )
    if heartbeat_ms * 2 > session_ms:
        raise ConfigError(
            f"{HEARTBEAT_INTERVAL}={heartbeat_ms} is more than half of {SESSION_TIMEOUT}={session_ms}: one lost heartbeat "
            "would be a death"
        )
    actors_max = int(configs.get(SCALING_MAX, 0))
    if cores and actors_max > cores:
        raise ConfigError(
            f"{SCALING_MAX}={actors_max}: no broker runs on more than {cores} cores, and further actors could only take turns"
        )
    busy, idle = (float(configs.get(name, BROKER_CONFIGS[name].default)) for name in (SCALING_BUSY, SCALING_IDLE))
    if idle >= busy:
        raise ConfigError(
            f"{SCALING_IDLE}={idle:g} is not below {SCALING_BUSY}={busy:g}: an actor would be busy and idle at once, and be "
            "added and ended in turn; set both so that the idle one is clearly lower"
        )


def found(configs: BrokerConfigs, broker_id: int | None, name: str) -> tuple[str, int | None] | None:
    """The value that was set and for whom (None: for all), the broker's own first; None if nobody
    has set it.
    """
    for named in (broker_id, None):
        value = configs.get(named, {}).get(name)
        if value is not None:
            return value, named
    return None


def listed(configs: BrokerConfigs, broker_id: int | None, name: str) -> tuple[str, ...]:
    """The value as a list, the default if nobody has set it."""
    set_value = found(configs, broker_id, name)
    value = BROKER_CONFIGS[name].parse(BROKER_CONFIGS[name].default if set_value is None else set_value[0])
    assert isinstance(value, tuple), f"{name} is no list"
    return value


def number(configs: BrokerConfigs, broker_id: int | None, name: str, *, default: int) -> int:
    """The value as a number (or boolean), ``default`` if nobody has set it."""
    set_value = found(configs, broker_id, name)
    if set_value is None:
        return default
    value = BROKER_CONFIGS[name].parse(set_value[0])
    assert isinstance(value, int), f"{name} is no number"
    return value
