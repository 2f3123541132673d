"""What a watch sees of topics that change: new partitions, new topics of a pattern, none that nobody asked for."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raylog.client.background import background
from raylog.client.sync import AdminClient
from raylog.ranges import watch
from raylog.ranges.watch import TopicWatch
from raylog.testing.kafka import Kafka
from raylog.types import TopicPartition

pytestmark = pytest.mark.spark


def seen(kafka: Kafka, topics: Any, meanwhile: Callable[[], None]) -> list[set[TopicPartition]]:
    """The partitions of two looks of one watch, between which something happens."""

    async def opened() -> TopicWatch:
        return TopicWatch(kafka.address, topics)

    def run(work: Awaitable[Any]) -> Any:
        return background().run(work)

    found = run(opened())
    try:
        looks = [set(run(found.look())[1])]
        meanwhile()
        return [*looks, set(run(found.look())[1])]
    finally:
        run(found.close())


def test_partitions_and_topics_that_are_new_are_seen(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REFRESH_S", 0.0)
    kafka.create_topic("grows", 1)

    def grow() -> None:
        with AdminClient(kafka.address) as admin:
            admin.create_partitions("grows", 2)
        kafka.create_topic("grows-too", 1)
        kafka.create_topic("another", 1)

    before, after = seen(kafka, re.compile("grows.*"), grow)
    assert before == {TopicPartition("grows", 0)}
    assert after == before | {TopicPartition("grows", 1), TopicPartition("grows-too", 0)}


def test_only_the_partitions_that_are_named_are_watched(kafka: Kafka) -> None:
    kafka.create_topic("some", 3)
    assert seen(kafka, {"some": [2, 0]}, lambda: None) == [{TopicPartition("some", 0), TopicPartition("some", 2)}] * 2
