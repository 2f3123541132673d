"""Datasets are written once: attempts that die are aborted, and a write that fails leaves nothing to be read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray.data

import raylog
import raylog.data
import raylog.testing
from raylog.data import writing

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # Ray Data warns of its own options

VALUES = [b"%d" % number for number in range(40)]


@pytest.fixture
def topic(cluster: raylog.Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").rstrip("]")
    cluster.admin().create_topics([raylog.NewTopic(name, 2, 1)])
    return name


def dataset(blocks: int = 4) -> Any:
    return ray.data.from_arrow(pa.table({"value": pa.array(VALUES, pa.binary())})).repartition(blocks)


def values(cluster: raylog.Cluster, topic: str, *, read_committed: bool) -> list[bytes]:
    ds = raylog.data.read_topic(topic, cluster=cluster, columns=["value"], read_committed=read_committed)
    return sorted(row["value"] for row in ds.take_all())


def sink_that_dies_once(mark: Path) -> type[writing.TopicSink]:
    """One attempt's worker dies after all that it sent is acknowledged, before Ray hears of it."""

    class DyingSink(writing.TopicSink):
        def write(self, blocks: Iterable[Any], ctx: Any) -> Any:
            sent = super().write(blocks, ctx)
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return sent
            os._exit(1)

    return DyingSink


def sink_that_fails_after_others() -> type[writing.TopicSink]:
    """The task with the last value fails, after it has sent it."""

    class FailingSink(writing.TopicSink):
        def write(self, blocks: Iterable[Any], ctx: Any) -> Any:
            blocks = list(blocks)
            sent = super().write(blocks, ctx)
            if any(VALUES[-1] in block.column("value").to_pylist() for block in blocks):
                raise ValueError("this task always fails")
            return sent

    return FailingSink


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_task_that_dies_after_sending_is_written_once_or_at_least_once(
    cluster: raylog.Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exactly_once: bool
) -> None:
    mark = tmp_path / "died"
    monkeypatch.setattr(writing, "TopicSink", sink_that_dies_once(mark))
    summary = raylog.data.write_topic(dataset(), topic, cluster=cluster, exactly_once=exactly_once)
    assert mark.exists()
    assert (summary.records, summary.tasks) == (40, 4)
    sent = values(cluster, topic, read_committed=False)
    assert set(sent) == set(VALUES) and len(sent) > len(VALUES), "nobody wrote twice"
    assert values(cluster, topic, read_committed=True) == (sorted(VALUES) if exactly_once else sent)
    counted = raylog.data.read_topic(topic, cluster=cluster, read_committed=True).count()
    assert counted == (len(VALUES) if exactly_once else len(sent))
    assert raylog.data.read_topic(topic, cluster=cluster).count() == len(sent), "markers are no rows"


@pytest.mark.parametrize("exactly_once", [True, False])
def test_of_a_write_that_fails_nothing_is_read(
    cluster: raylog.Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, exactly_once: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(writing, "TopicSink", sink_that_fails_after_others())
        with pytest.raises(Exception, match="this task always fails"):
            raylog.data.write_topic(dataset(), topic, cluster=cluster, concurrency=1, exactly_once=exactly_once)
    assert VALUES[-1] in values(cluster, topic, read_committed=False)
    assert (values(cluster, topic, read_committed=True) == []) is exactly_once
    raylog.data.write_topic(dataset(), topic, cluster=cluster)
    found = Counter(values(cluster, topic, read_committed=True))
    assert (found == Counter(VALUES)) is exactly_once


def test_a_dataset_without_rows_is_written(cluster: raylog.Cluster, topic: str) -> None:
    empty = dataset().map_batches(lambda table: table.slice(0, 0), batch_format="pyarrow")
    assert raylog.data.write_topic(empty, topic, cluster=cluster).records == 0
    assert raylog.data.write_topic(dataset().limit(0), topic, cluster=cluster).records == 0
    assert values(cluster, topic, read_committed=False) == []


def test_more_tasks_than_a_transaction_has_places_for_are_told_what_to_do(cluster: raylog.Cluster) -> None:
    with raylog.testing.broker(topics=["t"]) as kafka:
        outside = raylog.connect(bootstrap_servers=kafka.bootstrap)
        kafka.fail("JoinTransaction", code="POLICY_VIOLATION", nth=3, times=None)
        with pytest.raises(Exception, match=r"more than 1,000 attempts .*repartition.*exactly_once=False"):
            raylog.data.write_topic(dataset(), "t", cluster=outside)
        assert values(outside, "t", read_committed=True) == []


def test_a_write_is_committed_once_when_answers_are_lost(cluster: raylog.Cluster) -> None:
    with raylog.testing.broker(topics=["t"]) as kafka:
        outside = raylog.connect(bootstrap_servers=kafka.bootstrap)
        orders = [kafka.drop(api, lost="reply") for api in ("JoinTransaction", "Produce", "EndSharedTransaction")]
        raylog.data.write_topic(dataset(), "t", cluster=outside)
        assert [order.hits for order in orders] == [1, 1, 1]
        assert values(outside, "t", read_committed=True) == sorted(VALUES)


def test_a_write_waits_until_readers_see_it(cluster: raylog.Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Until all markers are written the coordinator lets no owner go on; the first InitProducerId begins the write."""
    with raylog.testing.broker(topics=["t"]) as kafka:
        outside = raylog.connect(bootstrap_servers=kafka.bootstrap)
        with kafka.fail("InitProducerId", code="CONCURRENT_TRANSACTIONS", nth=2, times=3) as waits:
            raylog.data.write_topic(dataset(), "t", cluster=outside)
        assert waits.hits == 3 and "may not see it yet" not in caplog.text
        with kafka.fail("InitProducerId", code="PRODUCER_FENCED", nth=2):
            assert raylog.data.write_topic(dataset(), "t", cluster=outside).records == len(VALUES)
        assert "the write to t is committed, and readers may not see it yet" in caplog.text
        assert values(outside, "t", read_committed=True) == sorted(VALUES * 2)
