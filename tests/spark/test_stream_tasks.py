"""What a task of a stream makes of an entry that names losses: the query fails, or goes on and they are told."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from raylog.client.links.address import ClusterAddress
from raylog.errors import OffsetOutOfRangeError
from raylog.ranges.entries import StreamEntry
from raylog.ranges.ledger import lines_of
from raylog.ranges.reading import ReadOptions
from raylog.spark.stream_tasks import StreamTasks
from raylog.types import Endpoint, TopicPartition

pytestmark = pytest.mark.spark

NOBODY = ClusterAddress("nobody", "nowhere", "id", (Endpoint("127.0.0.1", 1),), b"")
LOST = "the offsets 3 to 4 of t-0 were deleted before they were read"


def task() -> pa.RecordBatch:
    """Of an entry that lost something and has nothing to read, so that no cluster is asked."""
    _, line = lines_of(StreamEntry(3, {"t": "id"}, {TopicPartition("t", 0): 5}, (), (LOST,)), []).splitlines()
    return pa.RecordBatch.from_pydict({"task": [line]})


def test_an_entry_that_lost_something_fails_the_query() -> None:
    tasks = StreamTasks(NOBODY, ReadOptions(("offset",)))
    with pytest.raises(OffsetOutOfRangeError, match=f"{LOST}: start the query again with fail_on_data_loss=False"):
        list(tasks([task()]))


def test_or_it_is_told_and_the_query_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    tasks = StreamTasks(NOBODY, ReadOptions(("offset",), fail_on_data_loss=False))
    with caplog.at_level(logging.WARNING, "raylog.ranges"):
        assert list(tasks([task()])) == []
    assert caplog.messages == [LOST]
