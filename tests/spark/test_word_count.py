"""``examples/word_count.py`` answers the lines of Kafka's own example as Kafka's page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import raylog.spark
from raylog.client.consumer.sync_consumer import Consumer
from raylog.client.sync import Producer
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),  # pyspark's
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "word_count.py"


@pytest.fixture
def example() -> Any:
    spec = importlib.util.spec_from_file_location("word_count", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def counts(text: str) -> list[tuple[str, int]]:
    return sorted((word, int(count)) for word, count in (each.split() for each in text.split(",")))


def test_each_line_is_answered_by_the_counts_that_it_changes(
    spark: Any, kafka: Kafka, example: Any, tmp_path: Path
) -> None:
    kafka.create_topic(example.INPUT, 1)
    kafka.create_topic(example.OUTPUT, 1, configs={"cleanup.policy": "compact"})
    checkpoint = str(tmp_path / "checkpoint")
    with Producer(kafka.address) as producer, Consumer(kafka.address, isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition(example.OUTPUT, 0)])
        consumer.seek_to_beginning()

        def answers(line: str) -> list[tuple[str, int]]:
            return sorted(example.answers(line, producer, consumer))

        query = example.start(spark, kafka, checkpoint)
        assert answers("all streams lead to kafka") == counts("all 1, streams 1, lead 1, to 1, kafka 1")
        assert answers("hello kafka streams") == counts("hello 1, kafka 2, streams 2")
        query.processAllAvailable()
        query.stop()
        query = example.start(spark, kafka, checkpoint)
        assert answers("Join kafka summit") == counts("join 1, kafka 3, summit 1"), "over a restart"
        query.stop()
    table = raylog.spark.table(spark, example.OUTPUT, cluster=kafka, isolation_level="read_committed")
    rows = [(bytes(row.key).decode(), int(row.value)) for row in table.collect()]
    assert sorted(rows) == counts("all 1, streams 2, lead 1, to 1, kafka 3, hello 1, join 1, summit 1")
