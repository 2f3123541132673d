"""A source of Ray Data without Ray: what its tasks are told."""

from __future__ import annotations

from typing import Any

import pytest

import raylog.testing
from raylog.data.reading import TopicSource
from raylog.ranges.cut import take
from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # Ray Data warns of its own


def test_tasks_read_with_the_options_of_their_source() -> None:
    def blocks(**options: Any) -> list[int]:
        [task] = TopicSource(kafka.address, cut, ReadOptions(("value",), **options)).get_read_tasks(1)
        return [block.num_rows for block in task()]

    with raylog.testing.broker(topics={"t": 1}) as kafka:
        for _ in range(3):
            kafka.write("t", b"a", b"b")
        cut = take(kafka.address, "t", bound("starting"), bound("ending"))
        assert blocks() == [6]
        assert blocks(arrow_bytes=1) == [2, 2, 2], "one for each batch"
