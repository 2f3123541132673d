"""What Apache Kafka's brokers can be told and raylog's cannot: by name, or by the beginning of a
name (``*``), with the reason.

A name that is neither here nor in ``broker_configs`` is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_THREADS = "raylog has no pools of threads of that kind: each server is an event loop"
_TIERS = "there is no remote storage: every segment stays on its disk until retention deletes it"
_LISTENER = "a start takes it; it can't be changed while the broker runs"
_LISTENER_SETTINGS = (
    "a start takes it; while the broker runs only certificates can be changed, those of one listener of one broker: "
    "listener.name.NAME.ssl.keystore.location and its like. A listener reloads a certificate whose file changes"
)
_INSIDE = "servers talk to each other over connections of their own"
_PYTHONS_TLS = "TLS is Python's and OpenSSL's, which have no such setting"
_CONNECTIONS = "connections are limited for a broker as a whole (max.connections), and for each address alike (max.connections.per.ip)"
_METRICS = "there is no JMX reporter"
_QUOTAS = "a quota of copying is an account that holds one second's bytes, and has no windows"
_USERS = (
    "users and passwords are those of `raylog users`; a listener may have users of PLAIN of its own, "
    "by listener.name.NAME.plain.sasl.jaas.config"
)
_OF_MECHANISM = re.compile(r"listener\.name\.[^.]+\.(gssapi|oauthbearer|plain|scram-sha-256|scram-sha-512)\.(sasl\..*)")
_CHECKED_BY = {
    "oauthbearer": "a listener verifies tokens by sasl.oauthbearer.* (or listener.name.NAME.sasl.oauthbearer.*)",
    "plain": "PLAIN knows the users of `raylog users`, or those of listener.name.NAME.plain.sasl.jaas.config",
}
_KERBEROS = "Kerberos is not spoken: use SCRAM-SHA-512, whose users `raylog users` keeps"
_SASL = (
    "only sasl.enabled.mechanisms, sasl.oauthbearer.*, connections.max.reauth.ms and "
    "connection.failed.authentication.delay.ms are there"
)
_LISTENER_SETTINGS_OF_TOKENS = (
    "a start takes it; it can't be changed while the broker runs, which reads the keys of tokens anew by itself"
)
_CLIENTS_TOKENS = "clients fetch tokens; a broker shows none to anybody"
_SHARE_GROUPS = "share groups are not there yet"
_QUORUM = "the controllers' quorum and its log take care of it themselves"
_AS_READ = "a coordinator reads its partition batch by batch"
_BUFFERS = "the operating system sizes the buffers of sockets"
_CHECKPOINTS = "recovery points and start offsets are written with the high watermark: set replica.high.watermark.checkpoint.interval.ms"
_PURGATORY = "a request that waits leaves its timer when it is answered, so there is nothing to purge"
_UNITS = "a start takes it; while the cluster runs, set log.retention.ms, log.roll.ms or log.roll.jitter.ms"
_ZOOKEEPER = "there is no ZooKeeper"

REFUSED: Mapping[str, str] = {
    "add.partitions.to.txn.*": "whoever verifies that a transaction is under way answers, and the client asks again",
    "alter.config.policy.class.name": "there are no policy classes",
    "alter.log.dirs.replication.quota.*": _QUOTAS,
    "auto.include.jmx.reporter": _METRICS,
    "background.threads": _THREADS,
    "broker.id.generation.enable": "a broker has the number that its first disk was formatted with",
    "client.quota.callback.class": "there are no classes of that kind",
    "compression.gzip.level": "a batch that a server compresses itself has zlib's default level, 6",
    "compression.lz4.level": "a batch that a server compresses itself has LZ4's fast level",
    "compression.zstd.level": "a batch that a server compresses itself has level 3",
    "config.providers": "a start resolves ${env:NAME} and ${file:PATH:NAME} without being told, and knows no others",
    "control.plane.listener.name": _INSIDE,
    "controlled.shutdown.*": "a server that is stopped hands its leaders on once; `raylog brokers drain` does it before",
    "controller.*": _QUORUM,
    "controller.quota.window.*": "changes of the cluster are measured by quota.window.num and quota.window.size.seconds",
    "cordoned.log.dirs": "`raylog brokers drain` keeps new replicas away from a broker, with all its disks",
    "create.topic.policy.class.name": "there are no policy classes",
    "delete.records.purgatory.purge.interval.requests": _PURGATORY,
    "early.start.listeners": _INSIDE,
    "eligible.leader.replicas.enable": "it is always on",
    "fetch.purgatory.purge.interval.requests": _PURGATORY,
    "follower.fetch.last.tiered.offset.enable": _TIERS,
    "group.consumer.*": "groups have the classic protocol; the one of KIP-848 is not there yet",
    "group.coordinator.append.linger.ms": "a coordinator's records wait for nothing: each is appended at once",
    "group.coordinator.background.threads": _THREADS,
    "group.coordinator.cached.buffer.max.bytes": "a coordinator keeps no buffers: each batch is built for itself",
    "group.coordinator.rebalance.protocols": "groups have the classic protocol and no other",
    "group.coordinator.threads": _THREADS,
    "group.share.*": _SHARE_GROUPS,
    "group.streams.*": "groups of Kafka Streams have the classic protocol; the one of KIP-1071 is not there yet",
    "initial.broker.registration.timeout.ms": "a start waits as long as there is progress",
    "inter.broker.listener.name": _INSIDE,
    "inter.broker.protocol.version": "servers speak one protocol among themselves",
    "internal.metadata.*": _QUORUM,
    "kafka.metrics.*": _METRICS,
    "listener.*": _LISTENER_SETTINGS,
    "listeners": _LISTENER,
    "log.cleaner.enable": "a topic is compacted if its cleanup.policy says so",
    "log.cleaner.io.buffer.size": "compaction reads in steps of its own, of 64 KiB",
    "log.cleaner.threads": "each process compacts its own logs, one at a time",
    "log.dir": "the disks are in the folders that the start names",
    "log.dir.failure.timeout.ms": "a broker with a failed disk goes on with its other disks",
    "log.flush.offset.checkpoint.interval.ms": _CHECKPOINTS,
    "log.flush.scheduler.interval.ms": "each log has a timer of its own for log.flush.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms": _CHECKPOINTS,
    "log.initial.task.delay.ms": "a log is looked through log.retention.check.interval.ms after it was opened",
    "log.local.retention.*": _TIERS,
    "log.message.format.version": "the only record format is v2 (3.0-IV1 and later)",
    "log.retention.hours": _UNITS,
    "log.retention.minutes": _UNITS,
    "log.roll.hours": _UNITS,
    "log.roll.jitter.hours": _UNITS,
    "max.connection.creation.rate": _CONNECTIONS,
    "max.connections.per.ip.overrides": _CONNECTIONS,
    "max.request.partition.size.limit": "a page of DescribeTopicPartitions has up to 2,000 partitions",
    "metadata.*": _QUORUM,
    "metric.reporters": _METRICS,
    "metrics.*": _METRICS,
    "node.id": "it is broker.id, and fixed when a broker starts",
    "num.io.threads": _THREADS,
    "num.network.threads": _THREADS,
    "num.recovery.threads.per.data.dir": _THREADS,
    "num.replica.alter.log.dirs.threads": _THREADS,
    "num.replica.fetchers": _THREADS,
    "offsets.load.buffer.size": _AS_READ,
    "offsets.topic.*": "__consumer_offsets has 50 partitions and is a topic: set its configs with `raylog configs`",
    "password.encoder.*": "no config that brokers share holds a password",
    "principal.builder.class": "there are no classes of that kind",
    "process.roles": _QUORUM,
    "producer.id.expiration.check.interval.ms": "producers are forgotten when retention looks through a log: set "
    "log.retention.check.interval.ms",
    "producer.purgatory.purge.interval.requests": _PURGATORY,
    "queued.max.requests": "requests count by their bytes: set queued.max.request.bytes",
    "remote.*": _TIERS,
    "replica.selector.class": "a consumer that names its rack is sent to an in-sync replica there; there are no other selectors",
    "replica.socket.receive.buffer.bytes": _BUFFERS,
    "replica.socket.timeout.ms": "a follower's fetch waits for replica.fetch.wait.max.ms at the leader, and fails with its connection",
    "replication.quota.window.*": _QUOTAS,
    "request.timeout.ms": "a server's request to another one fails with its connection, or with the client's own timeout",
    "reserved.broker.max.id": "brokers are numbered by the cluster, without a gap for numbers of their own",
    "sasl.jaas.config": _USERS,
    "sasl.kerberos.*": _KERBEROS,
    "sasl.oauthbearer.*": _LISTENER_SETTINGS_OF_TOKENS,
    "sasl.oauthbearer.assertion.*": _CLIENTS_TOKENS,
    "sasl.oauthbearer.client.credentials.*": _CLIENTS_TOKENS,
    "sasl.oauthbearer.jwt.retriever.class": _CLIENTS_TOKENS,
    "sasl.oauthbearer.jwt.validator.class": "there are no classes of that kind",
    "sasl.oauthbearer.scope": _CLIENTS_TOKENS,
    "sasl.oauthbearer.token.endpoint.url": _CLIENTS_TOKENS,
    "sasl.*": _SASL,
    "security.inter.broker.protocol": "a start says it, before any link inside is there",
    "security.providers": _PYTHONS_TLS,
    "server.max.startup.time.ms": "a start waits as long as there is progress",
    "share.*": _SHARE_GROUPS,
    "socket.connection.*": "a server tries another one for 10 s at most, and the controllers' quorum for 1 s",
    "socket.listen.backlog.size": "1,024 connections may wait to be accepted",
    "socket.receive.buffer.bytes": _BUFFERS,
    "socket.send.buffer.bytes": _BUFFERS,
    "ssl.*": _LISTENER_SETTINGS,
    "ssl.allow.dn.changes": "a listener goes by a new certificate whatever its subject",
    "ssl.allow.san.changes": "a listener goes by a new certificate whatever its names",
    "ssl.endpoint.identification.algorithm": "a start says it, before any link inside is there",
    "ssl.engine.factory.class": "there are no classes of that kind",
    "ssl.keymanager.algorithm": _PYTHONS_TLS,
    "ssl.provider": _PYTHONS_TLS,
    "ssl.secure.random.implementation": _PYTHONS_TLS,
    "ssl.trustmanager.algorithm": _PYTHONS_TLS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "each transaction has a timer of its own and is aborted when "
    "its timeout is over, not at the next look",
    "transaction.partition.verification.enable": "a leader always verifies that a transaction is under way before it appends",
    "transaction.state.log.*": "__transaction_state has 50 partitions and is a topic: set its configs with `raylog configs`",
    "transaction.two.phase.commit.enable": "transactions that others decide (KIP-939) are not there yet",
    "unclean.leader.election.interval.ms": "an election that is allowed takes place at once",
    "unstable.*": "there are no unstable features to turn on",
    "zookeeper.*": _ZOOKEEPER,
}


def reason_for(name: str) -> str | None:
    """Why raylog refuses that config of Kafka's brokers; None if it is not one of these."""
    if name in REFUSED:
        return REFUSED[name]
    of_mechanism = _OF_MECHANISM.fullmatch(name)
    if of_mechanism is not None and of_mechanism.groups() != ("plain", "sasl.jaas.config"):
        return _reason_of_mechanism(*of_mechanism.groups())
    return next((why for known, why in REFUSED.items() if known[-1] == "*" and name.startswith(known[:-1])), None)


def _reason_of_mechanism(mechanism: str, name: str) -> str:
    """Why a listener's setting ``name`` of one mechanism is refused."""
    if mechanism == "gssapi":
        return _KERBEROS
    checked_by = _CHECKED_BY.get(mechanism, "users of SCRAM are those of `raylog users`")
    return (
        f"there is no login module: {checked_by}"
        if name == "sasl.jaas.config"
        else f"there are no such classes: {checked_by}"
    )
