"""A cluster in this environment, and a client in another one, without Ray: its Python is the
argument.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import raylog
from raylog.client.admin.admin import NewTopic

RECORDS = 1_000
PROGRAM = f"""
import sys
import raylog

for cluster in raylog.connect(folder=sys.argv[1]), raylog.connect(bootstrap_servers=sys.argv[2]):
    with cluster.producer() as producer:
        for number in range({RECORDS}):
            producer.send("smoke", b"%d" % number)
        producer.flush()
found = 0
with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["smoke"])
    while found < 2 * {RECORDS}:
        records = consumer.consume({RECORDS}, timeout=30)
        assert records, f"{{found}} records came back, then none for 30 s"
        found += len(records)
assert "ray" not in sys.modules, "a client has imported Ray"
print("%d.%d" % sys.version_info[:2])
"""


def main(python: str) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="rlm") as folder,
        raylog.init(Path(folder) / "data", brokers=3) as cluster,
    ):
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("smoke", 2, 3)])
        command = [python, "-c", PROGRAM, Path(folder) / "data", cluster.bootstrap_servers()]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    print(f"a client on Python {done.stdout.strip()} without Ray, by folder and by listener", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
