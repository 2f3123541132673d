"""Clients and the test broker where Python lacks what only Linux has, as on macOS.

This is Linux without those names, not macOS: what macOS has beside them is not tried here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

AS_ON_MACOS = """
import os, socket, sys

ABSENT = {
    os: ("copy_file_range", "eventfd", "fdatasync", "getrandom", "getxattr", "memfd_create", "pidfd_open", "pipe2",
         "posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "splice", "O_DIRECT", "O_TMPFILE",
         "POSIX_FADV_WILLNEED", "RWF_NOWAIT"),
    socket: ("TCP_QUICKACK", "TCP_USER_TIMEOUT"),
}
for module, names in ABSENT.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
socket.TCP_KEEPALIVE = socket.TCP_KEEPIDLE  # another name
del socket.TCP_KEEPIDLE

def without_proc(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith("/proc"):
        raise FileNotFoundError(2, "there is no /proc", arguments[0])

sys.addaudithook(without_proc)
"""

PROGRAM = """
import raylog, raylog.testing

folder = sys.argv[1]
for place in ({}, {"folder": folder}):
    with raylog.testing.broker(topics={"orders": 1}, **place) as broker:
        cluster = raylog.connect(broker.bootstrap)
        with cluster.producer(compression_type="zstd") as producer:
            producer.send_batch("orders", [b"42"] * 100).result()
        with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            print(consumer.consume(1, timeout=60)[0].value)
with raylog.testing.broker(folder=folder) as broker:
    print(len(broker.records("orders")))
"""


def test_clients_and_the_test_broker_need_nothing_that_only_linux_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_MACOS + PROGRAM, tmp_path / "data"],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.splitlines() == ["b'42'", "b'42'", "100"], done.stderr
