"""What Apache Kafka's brokers can be told and raylog's cannot: by name, or by the beginning of a
name (``*``), with the reason.

A name that is neither here nor in ``broker_configs`` is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping

_THREADS = "raylog has no pools of threads of that kind: each server is an event loop"
_TIERS = "there is no remote storage: every segment stays on its disk until retention deletes it"
_LISTENER = "a start takes it; it can't be changed while the broker runs"
_ONE_LISTENER = "a broker has one listener for Kafka clients, and no configs of single listeners"
_CONNECTIONS = "connections are limited for a broker as a whole (max.connections)"
_METRICS = "there is no JMX reporter"
_QUOTAS = "quotas are not there yet"
_SECURITY = "authentication and authorisation of Kafka clients are not there yet"
_SHARE_GROUPS = "share groups are not there yet"
_TRANSACTIONS = "transactions are not there yet"
_QUORUM = "the controllers' quorum and its log take care of it themselves"
_FIXED = "it is fixed in this version"
_UNITS = "a start takes it; while the cluster runs, set log.retention.ms, log.roll.ms or log.roll.jitter.ms"
_ZOOKEEPER = "there is no ZooKeeper"

REFUSED: Mapping[str, str] = {
    "add.partitions.to.txn.*": _TRANSACTIONS,
    "alter.config.policy.class.name": "there are no policy classes",
    "alter.log.dirs.replication.quota.*": _QUOTAS,
    "authorizer.class.name": _SECURITY,
    "auto.include.jmx.reporter": _METRICS,
    "background.threads": _THREADS,
    "broker.id.generation.enable": _FIXED,
    "client.quota.callback.class": _QUOTAS,
    "compression.gzip.level": _FIXED,
    "compression.lz4.level": _FIXED,
    "compression.zstd.level": _FIXED,
    "config.providers": "a start resolves ${env:NAME} and ${file:PATH:NAME} without being told, and knows no others",
    "connection.failed.authentication.delay.ms": _SECURITY,
    "connections.max.*": _FIXED,
    "control.plane.listener.name": _ONE_LISTENER,
    "controlled.shutdown.*": "a server that is stopped hands its leaders on once; `raylog brokers drain` does it before",
    "controller.*": _QUORUM,
    "create.topic.policy.class.name": "there are no policy classes",
    "delegation.token.*": _SECURITY,
    "delete.records.purgatory.purge.interval.requests": _FIXED,
    "early.start.listeners": _ONE_LISTENER,
    "eligible.leader.replicas.enable": "it is always on",
    "fetch.purgatory.purge.interval.requests": _FIXED,
    "group.*": _FIXED,
    "initial.broker.registration.timeout.ms": _FIXED,
    "inter.broker.listener.name": "servers talk to each other over connections of their own",
    "inter.broker.protocol.version": "servers speak one protocol among themselves",
    "internal.metadata.*": _QUORUM,
    "kafka.metrics.*": _METRICS,
    "listener.*": _ONE_LISTENER,
    "listeners": _LISTENER,
    "log.cleaner.io.buffer.size": "compaction reads in steps of its own, of 64 KiB",
    "log.cleaner.threads": "each process compacts its own logs, one at a time",
    "log.dir": "the disks are in the folders that the start names",
    "log.dir.failure.timeout.ms": _FIXED,
    "log.flush.offset.checkpoint.interval.ms": _FIXED,
    "log.flush.scheduler.interval.ms": _FIXED,
    "log.flush.start.offset.checkpoint.interval.ms": _FIXED,
    "log.initial.task.delay.ms": _FIXED,
    "log.local.retention.*": _TIERS,
    "log.message.format.version": "the only record format is v2 (3.0-IV1 and later)",
    "log.retention.hours": _UNITS,
    "log.retention.minutes": _UNITS,
    "log.roll.hours": _UNITS,
    "log.roll.jitter.hours": _UNITS,
    "max.connection.creation.rate": _CONNECTIONS,
    "max.connections.per.ip": _CONNECTIONS,
    "max.connections.per.ip.overrides": _CONNECTIONS,
    "max.request.partition.size.limit": _FIXED,
    "metadata.*": _QUORUM,
    "metric.reporters": _METRICS,
    "metrics.*": _METRICS,
    "node.id": "it is broker.id, and fixed when a broker starts",
    "num.io.threads": _THREADS,
    "num.network.threads": _THREADS,
    "num.recovery.threads.per.data.dir": _THREADS,
    "num.replica.alter.log.dirs.threads": _THREADS,
    "num.replica.fetchers": _THREADS,
    "offsets.*": _FIXED,
    "password.encoder.*": _SECURITY,
    "principal.builder.class": _SECURITY,
    "process.roles": _QUORUM,
    "producer.id.expiration.check.interval.ms": "producers are forgotten when retention looks through a log: set "
    "log.retention.check.interval.ms",
    "producer.purgatory.purge.interval.requests": _FIXED,
    "queued.max.*": _FIXED,
    "quota.*": _QUOTAS,
    "remote.*": _TIERS,
    "replica.*": _FIXED,
    "replication.quota.window.*": _FIXED,
    "request.timeout.ms": _FIXED,
    "reserved.broker.max.id": _FIXED,
    "sasl.*": _SECURITY,
    "security.*": _SECURITY,
    "server.max.startup.time.ms": _FIXED,
    "share.*": _SHARE_GROUPS,
    "socket.*": _FIXED,
    "ssl.*": _SECURITY,
    "super.users": _SECURITY,
    "telemetry.*": _METRICS,
    "transaction.*": _TRANSACTIONS,
    "transactional.id.expiration.ms": _TRANSACTIONS,
    "unclean.leader.election.interval.ms": _FIXED,
    "unstable.*": _FIXED,
    "zookeeper.*": _ZOOKEEPER,
}


def reason_for(name: str) -> str | None:
    """Why raylog refuses that config of Kafka's brokers; None if it is not one of these."""
    if name in REFUSED:
        return REFUSED[name]
    return next((why for known, why in REFUSED.items() if known[-1] == "*" and name.startswith(known[:-1])), None)
