"""A write exactly once whose driver dies, and one that Ray Data lets go on without blocks that failed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
import ray.data

import raylog
import raylog.data
from raylog.data import writing

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # Ray Data warns of its own options

VALUES = [b"%d" % number for number in range(40)]
DRIVER = """
import sys, threading
from pathlib import Path
import pyarrow as pa
import ray.data
import raylog, raylog.data
from raylog.data import writing

address, topic, mark = sys.argv[1:]

class WaitingSink(writing.TopicSink):
    def write(self, blocks, ctx):
        super().write(blocks, ctx)
        Path(mark).touch()  # all that the task has is acknowledged
        threading.Event().wait()

writing.TopicSink = WaitingSink
cluster = raylog.connect(ray_address=address)
values = [b"%d" % number for number in range(40)]
ds = ray.data.from_arrow(pa.table({"value": pa.array(values, pa.binary())})).repartition(4)
raylog.data.write_topic(ds, topic, cluster=cluster, transaction_timeout_ms=2_000)
"""


def dataset(blocks: int = 4) -> Any:
    return ray.data.from_arrow(pa.table({"value": pa.array(VALUES, pa.binary())})).repartition(blocks)


def values(cluster: raylog.Cluster, topic: str, *, read_committed: bool) -> list[bytes]:
    ds = raylog.data.read_topic(topic, cluster=cluster, columns=["value"], read_committed=read_committed)
    return sorted(row["value"] for row in ds.take_all())


def test_a_write_is_there_once_when_its_driver_died_and_another_one_repeats_it(
    cluster: raylog.Cluster, tmp_path: Path
) -> None:
    from raw_requests import eventually

    script, mark = tmp_path / "driver.py", tmp_path / "sent"
    script.write_text(DRIVER)
    cluster.admin().create_topics([raylog.NewTopic("repeated", 2, 1)])
    arguments = [ray.get_runtime_context().gcs_address, "repeated", str(mark)]
    driver = subprocess.Popen([sys.executable, str(script), *arguments])
    try:
        eventually(lambda: mark.exists() or driver.poll() is not None, "a task has sent its rows")
    finally:
        driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert values(cluster, "repeated", read_committed=True) == []
    left = Counter(values(cluster, "repeated", read_committed=False))
    assert left and set(left) <= set(VALUES)

    raylog.data.write_topic(dataset(), "repeated", cluster=cluster)
    eventually(lambda: values(cluster, "repeated", read_committed=True) == sorted(VALUES), "all rows are there once")
    found = Counter(values(cluster, "repeated", read_committed=False))
    assert found == Counter(VALUES) + left, "readers of everything get what the dead driver's tasks had sent, too"


def sink_that_fails_with(value: bytes) -> type[writing.TopicSink]:
    """The task with that value fails, after it has sent it."""

    class FailingSink(writing.TopicSink):
        def write(self, blocks: Iterable[Any], ctx: Any) -> Any:
            blocks = list(blocks)
            sent = super().write(blocks, ctx)
            if any(value in block.column("value").to_pylist() for block in blocks):
                raise ValueError("this task always fails")
            return sent

    return FailingSink


@pytest.fixture
def errored_blocks_max() -> Any:
    context = ray.data.DataContext.get_current()
    before, context.max_errored_blocks = context.max_errored_blocks, 1
    yield 1
    context.max_errored_blocks = before


def test_a_block_that_fails_where_ray_data_allows_it_is_left_out_whole(
    cluster: raylog.Cluster, monkeypatch: pytest.MonkeyPatch, errored_blocks_max: int
) -> None:
    cluster.admin().create_topics([raylog.NewTopic("some", 2, 1)])
    monkeypatch.setattr(writing, "TopicSink", sink_that_fails_with(VALUES[-1]))
    summary = raylog.data.write_topic(dataset(), "some", cluster=cluster)
    assert (summary.records, summary.tasks) == (30, 3)
    assert values(cluster, "some", read_committed=True) == sorted(VALUES[:30])
    assert values(cluster, "some", read_committed=False) == sorted(VALUES)
