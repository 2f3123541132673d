"""Every broker config that Kafka's manuals name is honoured by a start or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylog.configs.broker_configs import BROKER_CONFIGS, FIXED_CONFIGS
from raylog.configs.link_configs import LINK_CONFIGS
from raylog.configs.listener_configs import LISTENER_CONFIGS
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

KAFKA_4_3 = Path(__file__).with_name("kafka_4_3_broker_configs.txt").read_text()
"""All that Kafka 4.3 knows; ``tests/conformance/test_kafka_broker_configs.py`` holds the list against Kafka."""

TAKEN = {
    LISTENERS,
    ADVERTISED,
    RACK,
    *AS_IT_IS,
    *LISTENER_CONFIGS,
    *LINK_CONFIGS,
    *(config.name for units in UNITS.values() for config, _ in units),
}


def test_the_inventory_has_each_name_once() -> None:
    assert len(KAFKA_3_6.split()) == len(set(KAFKA_3_6.split())) == 75
    assert len(KAFKA_4_3.split()) == len(set(KAFKA_4_3.split()))


@pytest.mark.parametrize("name", sorted({*KAFKA_3_6.split(), *KAFKA_4_3.split()}))
def test_each_config_is_honoured_or_has_a_reason_why_not(name: str) -> None:
    reason = without_effect(name) or reason_for(name)
    assert name in BROKER_CONFIGS or name in TAKEN or reason
    assert reason is None or not any(vague in reason for vague in ("when their broker starts", "fixed in this version"))
    assert not (name in BROKER_CONFIGS and without_effect(name)), "what can be set has an effect"
    assert name not in FIXED_CONFIGS or name in TAKEN or without_effect(name), (
        "a start does not call it fixed at the start"
    )
