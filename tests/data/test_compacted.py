"""Training on a topic that is compacted meanwhile: from a checkpoint whose place is gone every worker goes on, and all end together."""

from __future__ import annotations

from typing import Any

import pytest
from compacted_topics import Cleaning, await_compacted, compact, create, eager_cleaner, fill

import raylog

pytestmark = pytest.mark.spark


def rows(batch: raylog.data.TopicBatch) -> list[tuple[int, bytes, bytes]]:
    table: Any = batch.table
    return [(row["offset"], row["key"], row["value"]) for row in table.to_pylist()]


@pytest.mark.parametrize("workers", [1, 3])
def test_no_latest_value_is_lost_and_the_epoch_is_done_at_the_same_step_everywhere(workers: int) -> None:
    with eager_cleaner() as kafka:
        create(kafka, "accounts", policy="delete")
        latest = fill(kafka, "accounts", 0, 150)
        whole = raylog.data.stream_topic(
            "accounts", cluster=kafka.address, batch_size=7, columns=["offset", "key", "value"]
        )
        with whole.batches() as batches:
            first = [row for _, batch in zip(range(3), batches) for row in rows(batch)]
            state = batches.state
        assert [offset for offset, _, _ in first] == list(range(21))

        compact(kafka, "accounts")
        await_compacted(kafka, "accounts", below=120)
        cleaning = Cleaning(kafka, "accounts")
        steps = []
        rest: list[tuple[int, bytes, bytes]] = []
        for rank in range(workers):
            batches = list(whole.batches(state, rank=rank, world_size=workers))
            rest += [row for batch in batches for row in rows(batch)]
            steps.append((len(batches), [batch.state.is_done for batch in batches].index(True)))
            assert list(whole.batches(batches[-1].state)) == []
        assert steps == [(steps[0][0], steps[0][0] - 1)] * workers
        assert cleaning.allows([offset for offset, _, _ in rest])
        assert {key: value for _, key, value in first + sorted(rest)} == latest
