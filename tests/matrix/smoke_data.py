"""A Dataset of Ray Data is written to a topic and read from it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ray.data

import raylog
import raylog.data
from raylog.client.admin.admin import NewTopic
from raylog.data.ray_versions import hands_over_results

ROWS = 1_000


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="rlm") as folder,
        raylog.init(Path(folder) / "data", brokers=1) as cluster,
    ):
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("rows", 2, 1)])
        rows = ray.data.from_items([{"key": b"%d" % (each % 50), "value": b"%d" % each} for each in range(ROWS)])
        summary = raylog.data.write_topic(rows, "rows", cluster=cluster, exactly_once=hands_over_results())
        assert summary.records == ROWS, summary
        read = raylog.data.read_topic("rows", cluster=cluster, columns=["value"])
        values = sorted(int(row["value"]) for row in read.take_all())
        assert values == list(range(ROWS)), f"{len(values)} rows came back"
    print(f"{ROWS} rows written and read", file=sys.stderr)


if __name__ == "__main__":
    main()
