"""What a producer's user hears of each record when the leader refuses a batch for some of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

import raylog.testing
from raylog.client.sync import Producer
from raylog.errors import KafkaError, kafka_error
from raylog.testing.kafka import Kafka

pytestmark = pytest.mark.core

InvalidRecord = kafka_error(ErrorCode.invalid_record)
InvalidTimestamp = kafka_error(ErrorCode.invalid_timestamp)
NO_KEY = "a compacted topic takes no record without a key"


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with raylog.testing.broker() as running:
        running.create_topic("compacted", configs={"cleanup.policy": "compact"})
        running.create_topic("bounded", configs={"message.timestamp.before.max.ms": "1000"})
        running.create_topic("wide", 3, configs={"cleanup.policy": "compact"})
        yield running


def test_each_record_gets_its_own_error_and_the_next_batch_goes_on(kafka: Kafka) -> None:
    with Producer(kafka.address, linger_ms=60_000) as producer:
        keys = [b"a", None, b"b", None]
        deliveries = [producer.send("compacted", b"v", key=key, partition=0) for key in keys]
        producer.flush()
        errors = []
        for delivery in deliveries:
            with pytest.raises(KafkaError) as caught:
                delivery.result(60)
            errors.append(caught.value)
            with pytest.raises(type(caught.value)):
                pickle.loads(pickle.dumps(delivery)).result()
        assert [type(error) for error in errors] == [KafkaError, InvalidRecord, KafkaError, InvalidRecord]
        assert str(errors[1]) == f"compacted-0 refused the record: {NO_KEY}"
        assert "valid but was not appended" in str(errors[0]) and NO_KEY in str(errors[0])
        again = producer.send("compacted", b"v", key=b"a", partition=0)
        producer.flush()
        assert again.result(60).offset == 0, (
            "nothing of the refused batch was appended, and no sequence number is missing"
        )


def test_one_record_at_fault_gets_the_code_of_the_batch(kafka: Kafka) -> None:
    with Producer(kafka.address, linger_ms=60_000) as producer:
        late = producer.send("bounded", b"v", partition=0, timestamp_ms=1)
        good = producer.send("bounded", b"v", partition=0)
        producer.flush()
        with pytest.raises(
            InvalidTimestamp, match=r"timestamp 1 is more than message\.timestamp\.before\.max\.ms=1000"
        ):
            late.result(60)
        with pytest.raises(KafkaError, match="send it again"):
            good.result(60)


def test_the_values_of_a_batch_are_named_by_their_place_in_it(kafka: Kafka) -> None:
    with Producer(kafka.address, batch_size=1000) as producer:
        with pytest.raises(InvalidRecord) as caught:
            producer.send_batch("compacted", [b"x" * 400] * 6, partition=0).result(60)
        assert [each.index for each in caught.value.record_errors] == [0, 1]
        keys = [b"key-%d" % number for number in range(40)]
        keys[17:20] = [None] * 3  # type: ignore[list-item]
        with pytest.raises(InvalidRecord) as caught:
            producer.send_batch("wide", [b"x"] * 40, keys=keys).result(60)
        assert [(each.index, each.message) for each in caught.value.record_errors] == [
            (17, NO_KEY),
            (18, NO_KEY),
            (19, NO_KEY),
        ]
