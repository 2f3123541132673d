"""``raylog up`` starts a Ray and a cluster; a program finds the cluster through that Ray, as a job
does, and ``raylog down`` ends both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDS = 1_000
PROGRAM = f"""
import raylog
from raylog.client.admin.admin import NewTopic

cluster = raylog.connect()
with cluster.admin() as admin:
    admin.create_topics([NewTopic("smoke", 2, 1)])
with cluster.producer() as producer:
    for number in range({RECORDS}):
        producer.send("smoke", b"%d" % number)
    producer.flush()
found = 0
with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["smoke"])
    while found < {RECORDS}:
        records = consumer.consume({RECORDS}, timeout=30)
        assert records, f"{{found}} records came back, then none for 30 s"
        found += len(records)
"""


def run(*command: str | Path, folder: Path) -> None:
    environment = os.environ | {"RAY_TMPDIR": str(folder / "ray")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[:3]} ended with {done.returncode}: {done.stdout}{done.stderr}"


def main() -> None:
    command = Path(sys.executable).with_name("raylog")
    with tempfile.TemporaryDirectory(prefix="rlm") as name:
        folder = Path(name)
        try:
            run(command, "up", "data", "--brokers", "1", folder=folder)
            run(sys.executable, "-c", PROGRAM, folder=folder)
        finally:
            run(command, "down", "data", folder=folder)
    print("up, a program that finds the cluster through Ray, down", file=sys.stderr)


if __name__ == "__main__":
    main()
