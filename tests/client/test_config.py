"""Options: Kafka's names, each honoured or refused."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from raylog.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from raylog.errors import ConfigError

KAFKA_PRODUCER = [
    "acks",
    "enable.idempotence",
    "retries",
    "max.in.flight.requests.per.connection",
    "delivery.timeout.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "linger.ms",
    "batch.size",
    "buffer.memory",
    "max.block.ms",
    "max.request.size",
    "compression.type",
    "partitioner.class",
    "partitioner.ignore.keys",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "transactional.id",
    "transaction.timeout.ms",
    "metadata.max.age.ms",
    "metadata.max.idle.ms",
    "connections.max.idle.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "send.buffer.bytes",
    "receive.buffer.bytes",
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "client.id",
    "client.dns.lookup",
    "interceptor.classes",
    "security.protocol",
    "metrics.num.samples",
    "metrics.sample.window.ms",
    "bootstrap.servers",
    "key.serializer",
    "value.serializer",
]
KAFKA_CONSUMER = [
    "group.id",
    "group.instance.id",
    "auto.offset.reset",
    "enable.auto.commit",
    "auto.commit.interval.ms",
    "isolation.level",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "fetch.min.bytes",
    "fetch.max.wait.ms",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "allow.auto.create.topics",
    "exclude.internal.topics",
    "check.crcs",
    "client.rack",
    "client.id",
    "default.api.timeout.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    "metadata.max.age.ms",
    "connections.max.idle.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "receive.buffer.bytes",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "interceptor.classes",
    "security.protocol",
    "client.dns.lookup",
    "bootstrap.servers",
    "key.deserializer",
    "value.deserializer",
]


@pytest.mark.parametrize("config, table", [(ProducerConfig, KAFKA_PRODUCER), (ConsumerConfig, KAFKA_CONSUMER)])
def test_every_option_of_kafkas_table_is_either_honoured_or_refused_with_a_reason(
    config: type, table: list[str]
) -> None:
    for name in table:
        if name in config.names():
            assert name not in config.refused
        else:
            with pytest.raises(ConfigError, match=rf"^a {config.kind} does not accept {name}: \w+"):
                config.parse({name: "x"})


def test_kafkas_defaults_hold_where_the_docstring_does_not_say_otherwise() -> None:
    config = ProducerConfig.parse()
    assert (config.acks, config.idempotent, config.linger_ms, config.buffer_memory) == (-1, True, 0, 33_554_432)
    assert (config.delivery_timeout_ms, config.max_block_ms, config.retries) == (120_000, 60_000, 2**31 - 1)
    assert ConsumerConfig.parse().auto_offset_reset == "latest"
    assert AdminConfig.parse().default_api_timeout_ms == 60_000


def test_dots_underscores_and_text_mean_the_same_and_later_sources_win() -> None:
    config = ProducerConfig.parse({"linger.ms": "5", "acks": "1"}, {"acks": "all", "compression_type": "zstd"})
    assert (config.linger_ms, config.acks, config.compression_type) == (5, -1, "zstd")
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "options, message",
    [
        ({"linger": 5}, "unknown producer option 'linger' .* did you mean 'linger.ms'?"),
        ({"batch_bytes": 1}, "Kafka's name for it is 'batch.size'"),
        ({"compression": "lz4"}, "Kafka's name for it is 'compression.type'"),
        ({"ssl.ca.location": "x"}, "does not accept ssl.ca.location"),
        ({"client.rack": "r"}, "a producer does not accept client.rack: it says which replica a consumer reads"),
        ({"linger.ms": 1, "linger_ms": 2}, "the same option"),
        ({"acks": 2}, "acks=2: acks must be 0, 1 or 'all'"),
        ({"acks": True}, "acks"),
        ({"linger_ms": -1}, "linger.ms=-1"),
        ({"batch.size": "big"}, "batch.size='big'"),
        ({"compression.type": "lzma"}, "compression.type='lzma'"),
        ({"delivery_timeout_ms": 1000}, "at least linger.ms"),
        ({"enable.idempotence": True, "acks": 1}, "enable.idempotence=true needs acks=all, not acks=1"),
        ({"enable.idempotence": True, "max_in_flight_requests_per_connection": 6}, "at most 5"),
    ],
)
def test_bad_producer_options_are_named_with_the_remedy(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProducerConfig.parse(options)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"group.remote.assignor": "uniform"},
            "a consumer does not accept group.remote.assignor: groups speak the classic",
        ),
        ({"isolation.level": "serializable"}, "isolation.level='serializable'"),
        ({"enable.auto.commit": True}, "needs a group.id"),
        ({"auto.offset.reset": "newest"}, "auto.offset.reset='newest'"),
        ({"fetch.from": "afar"}, "fetch.from='afar'"),
    ],
)
def test_bad_consumer_options_are_named_with_the_remedy(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConsumerConfig.parse(options)


@pytest.mark.parametrize("options", [{"acks": 1}, {"acks": 0}, {"retries": 0}, {"enable.idempotence": False}])
def test_idempotence_gives_way_silently_unless_it_was_asked_for(options: dict[str, object]) -> None:
    assert not ProducerConfig.parse(options).idempotent


def test_a_default_delivery_timeout_grows_with_what_it_has_to_hold() -> None:
    assert ProducerConfig.parse({"request.timeout.ms": 200_000}).delivery_timeout_ms == 200_000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"acks": 1}, "transactional.id needs acks=all"),
        ({"enable_idempotence": False}, "transactional.id needs enable.idempotence=true"),
        ({"retries": 0}, "transactional.id needs retries above 0"),
        ({"max_in_flight_requests_per_connection": 6}, "transactional.id needs max.in.flight"),
        ({"transactional_id": ""}, "transactional.id is empty"),
        ({"transaction_timeout_ms": 0}, "transaction.timeout.ms"),
    ],
)
def test_a_transactional_producer_gives_up_no_guarantee(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        ProducerConfig.parse({"transactional.id": "t"}, options)
