"""Ranges of a topic that is really compacted: each ends, wherever it ends, and together they are the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from compacted_topics import await_compacted, create, eager_cleaner, fill

from raylog.ranges.places import bound
from raylog.ranges.reading import ReadOptions, read_range
from raylog.ranges.snapshot import take
from raylog.ranges.splitting import OffsetRange, split

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("where", ["in memory", "on disk"])
def test_ranges_that_end_among_compacted_records_end_and_are_the_table_together(where: str, tmp_path: Path) -> None:
    with eager_cleaner(tmp_path if where == "on disk" else None) as kafka:
        create(kafka, "accounts")
        expected = fill(kafka, "accounts", 0, 120)
        await_compacted(kafka, "accounts", below=80)
        snapshot = take(kafka.address, "accounts", bound("starting"), bound("ending"))
        rows = []
        for part in split(snapshot.ranges, parts_min=7, bytes_per_offset=snapshot.bytes_per_offset):
            for batch in read_range(kafka.address, part, ReadOptions(("key", "value", "offset"))):
                assert all(part.start <= offset < part.end for offset in batch.column("offset").to_pylist())
                rows += batch.to_pylist()
        assert {row["key"]: row["value"] for row in rows} == expected
        kept = sorted(row["offset"] for row in rows)
        assert len(kept) == len(set(kept)) <= 40
        for end in (
            1,
            50,
            kept[0] or 1,
            kept[-1],
            120,
        ):  # compaction goes on meanwhile: some of them may be gone by now
            tail = list(read_range(kafka.address, OffsetRange("accounts", 0, 0, end), ReadOptions(("offset",))))
            found = [offset for batch in tail for offset in batch.column("offset").to_pylist()]
            assert found == sorted(found) and set(found) <= {offset for offset in kept if offset < end}, end
