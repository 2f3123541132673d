"""A process that reads ranges as a task does, and says how much memory each took at most above what it had before.

Takes a pickled list of (cluster address, range, options) on its standard input, prints a JSON list. Each range is read in a forked process
of its own that has read one record before: what a reader needs once, and what an allocator keeps, is not counted twice.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from raylog.client.links.address import ClusterAddress
from raylog.ranges.reading import ReadOptions, read_range
from raylog.ranges.splitting import OffsetRange

_STATUS = Path("/proc/self/status")
_FORGET_THE_PEAK = "5"


def resident_bytes(name: str) -> int:
    """``VmRSS``: now; ``VmHWM``: at most, since the peak was forgotten."""
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def growth_bytes(address: Any, wanted: OffsetRange, options: ReadOptions) -> int:
    """By how much the memory of this process grows at most while it reads."""
    for each in (replace(options, from_files=True), replace(options, from_files=False)):
        list(read_range(address, replace(wanted, end=wanted.start + 1), each))
    gc.collect()
    Path("/proc/self/clear_refs").write_text(_FORGET_THE_PEAK)
    before, rows = resident_bytes("VmRSS"), 0
    for batch in read_range(address, wanted, options):
        rows += batch.num_rows
    assert rows == len(wanted), f"{rows} rows of {wanted}"
    return resident_bytes("VmHWM") - before


def in_a_fork(case: Any) -> int:
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(writing, b"%d" % growth_bytes(*case))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        found = told.read()
    os.waitpid(pid, 0)
    assert found, f"nothing was measured of {case[1]}"
    return int(found)


def growths(cases: list[tuple[ClusterAddress, OffsetRange, ReadOptions]]) -> list[int]:
    """The growth of each, in bytes, measured by this script in a process of its own."""
    done = subprocess.run([sys.executable, __file__], input=pickle.dumps(cases), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [int(each) for each in json.loads(done.stdout)]


def main() -> None:
    print(json.dumps([in_a_fork(case) for case in pickle.load(sys.stdin.buffer)]))


if __name__ == "__main__":
    main()
