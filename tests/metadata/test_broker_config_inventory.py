"""Every broker config that Kafka's manuals name is honoured by a start or refused with a reason."""

from __future__ import annotations

import pytest

from raylog.configs.broker_configs import BROKER_CONFIGS, FIXED_CONFIGS
from raylog.configs.refused_broker_configs import reason_for
from raylog.configs.server_properties import ADVERTISED, AS_IT_IS, LISTENERS, RACK, UNITS, without_effect

KAFKA_3_6 = """
process.roles node.id broker.id broker.rack listeners advertised.listeners inter.broker.listener.name
controller.listener.names controller.quorum.voters metadata.log.dir log.dir log.dirs
broker.heartbeat.interval.ms broker.session.timeout.ms initial.broker.registration.timeout.ms
controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms metadata.max.idle.interval.ms
num.network.threads num.io.threads background.threads num.replica.fetchers num.recovery.threads.per.data.dir
queued.max.requests socket.request.max.bytes socket.send.buffer.bytes socket.receive.buffer.bytes
connections.max.idle.ms max.connections max.connections.per.ip max.connection.creation.rate
auto.create.topics.enable delete.topic.enable num.partitions default.replication.factor
auto.leader.rebalance.enable leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage
controlled.shutdown.enable replica.lag.time.max.ms replica.fetch.max.bytes replica.fetch.response.max.bytes
replica.fetch.wait.max.ms replica.fetch.min.bytes replica.high.watermark.checkpoint.interval.ms
replica.selector.class fetch.max.bytes message.max.bytes log.retention.hours log.retention.check.interval.ms
log.flush.offset.checkpoint.interval.ms log.cleaner.threads log.cleaner.dedupe.buffer.size log.cleaner.backoff.ms
offsets.topic.num.partitions offsets.topic.replication.factor offsets.retention.minutes offsets.commit.timeout.ms
group.initial.rebalance.delay.ms group.min.session.timeout.ms group.max.session.timeout.ms
transaction.state.log.num.partitions transaction.state.log.replication.factor transaction.state.log.min.isr
transaction.max.timeout.ms transactional.id.expiration.ms producer.id.expiration.ms quota.window.num
quota.window.size.seconds authorizer.class.name delegation.token.expiry.time.ms
delegation.token.max.lifetime.ms remote.log.storage.system.enable
"""
"""The broker's table in the specification's inventory."""

KAFKA_4 = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms alter.config.policy.class.name
alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
client.quota.callback.class compression.gzip.level compression.lz4.level compression.type compression.zstd.level
config.providers connection.failed.authentication.delay.ms connections.max.reauth.ms controlled.shutdown.enable
controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
controller.quorum.election.backoff.max.ms controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
controller.quota.window.num controller.quota.window.size.seconds create.topic.policy.class.name
delegation.token.expiry.check.interval.ms delegation.token.secret.key delete.records.purgatory.purge.interval.requests
early.start.listeners fetch.purgatory.purge.interval.requests group.consumer.assignors
group.consumer.heartbeat.interval.ms group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms
group.consumer.max.size group.consumer.migration.policy group.consumer.min.heartbeat.interval.ms
group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms group.consumer.session.timeout.ms
group.coordinator.append.linger.ms group.coordinator.rebalance.protocols group.coordinator.threads group.max.size
group.share.assignors group.share.delivery.count.limit group.share.heartbeat.interval.ms
group.share.max.record.lock.duration.ms group.share.session.timeout.ms group.streams.heartbeat.interval.ms
group.streams.max.size group.streams.num.standby.replicas group.streams.session.timeout.ms
internal.metadata.delete.delay.millis kafka.metrics.polling.interval.secs kafka.metrics.reporters
listener.security.protocol.map log.cleaner.delete.retention.ms log.cleaner.enable log.cleaner.io.buffer.load.factor
log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms
log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms log.cleanup.policy log.dir.failure.timeout.ms
log.flush.interval.messages log.flush.interval.ms log.flush.scheduler.interval.ms
log.flush.start.offset.checkpoint.interval.ms log.index.interval.bytes log.index.size.max.bytes
log.initial.task.delay.ms log.local.retention.bytes log.local.retention.ms log.message.timestamp.after.max.ms
log.message.timestamp.before.max.ms log.message.timestamp.type log.preallocate log.retention.bytes
log.retention.minutes log.retention.ms log.roll.hours log.roll.jitter.hours log.roll.jitter.ms log.roll.ms
log.segment.bytes log.segment.delete.delay.ms max.connections.per.ip.overrides
max.incremental.fetch.session.cache.slots max.request.partition.size.limit metadata.log.max.batch.size
metadata.log.segment.bytes metadata.log.segment.ms metadata.max.retention.bytes metadata.max.retention.ms
metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms min.insync.replicas
num.replica.alter.log.dirs.threads offset.metadata.max.bytes offsets.load.buffer.size
offsets.retention.check.interval.ms offsets.topic.compression.codec offsets.topic.segment.bytes
principal.builder.class producer.id.expiration.check.interval.ms producer.purgatory.purge.interval.requests
queued.max.request.bytes remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
remote.log.manager.copier.thread.pool.size remote.log.metadata.manager.class.name replica.fetch.backoff.ms
replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
replication.quota.window.size.seconds request.timeout.ms sasl.enabled.mechanisms
sasl.mechanism.controller.protocol sasl.mechanism.inter.broker.protocol sasl.server.max.receive.size
security.inter.broker.protocol security.providers server.max.startup.time.ms
share.coordinator.append.linger.ms share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms socket.listen.backlog.size
ssl.cipher.suites ssl.client.auth ssl.enabled.protocols ssl.keystore.location ssl.principal.mapping.rules
ssl.truststore.location super.users telemetry.max.bytes
transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.partition.verification.enable
transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
transaction.state.log.segment.bytes transaction.two.phase.commit.enable unclean.leader.election.enable
unclean.leader.election.interval.ms
"""
"""What Kafka 4 has besides. Of its names for TLS, SASL and remote storage only a few: they are refused
by their beginnings.
"""

TAKEN = {LISTENERS, ADVERTISED, RACK, *AS_IT_IS, *(config.name for units in UNITS.values() for config, _ in units)}


def test_the_inventory_has_each_name_once() -> None:
    assert len(KAFKA_3_6.split()) == len(set(KAFKA_3_6.split())) == 75
    assert len(KAFKA_4.split()) == len(set(KAFKA_4.split()))


@pytest.mark.parametrize("name", sorted({*KAFKA_3_6.split(), *KAFKA_4.split()}))
def test_each_config_is_honoured_or_has_a_reason_why_not(name: str) -> None:
    reason = without_effect(name) or reason_for(name)
    assert name in BROKER_CONFIGS or name in TAKEN or reason
    assert reason is None or not any(vague in reason for vague in ("when their broker starts", "fixed in this version"))
    assert not (name in BROKER_CONFIGS and without_effect(name)), "what can be set has an effect"
    assert name not in FIXED_CONFIGS or name in TAKEN or without_effect(name), (
        "a start does not call it fixed at the start"
    )
