"""The kernel on hostile bytes, under the address and undefined-behaviour sanitizers.

``kernel_fuzz.c`` says what it does with them; here are the logs that it starts from. For longer hunts (rounds, first seed)::

    python tests/records/test_kernel_fuzz.py 10000000 1
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raylog.records import pure
from raylog.records.batch import stamp
from raylog.records.kernel import SOURCE

pytestmark = pytest.mark.core

FLAGS = (
    "-std=gnu11",
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
ROUNDS = 30_000


def built(folder: Path) -> Path:
    """The fuzzer. Skips where there is no compiler, or one without sanitizers."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no cc on this machine: the kernel is not fuzzed under sanitizers")
    program = folder / "kernel_fuzz"
    source = Path(__file__).with_name("kernel_fuzz.c")
    done = subprocess.run(
        [compiler, *FLAGS, f"-I{SOURCE.parent}", "-o", program, source], capture_output=True, text=True, check=False
    )
    if done.returncode and re.search(r"lib[au]bsan|lib[au]san|-fsanitize", done.stderr):
        pytest.skip(f"cc has no sanitizers here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return program


def corpus() -> bytes:
    """Logs that hold everything a record can have, each with its size before it."""
    headers = [("h", b"1"), ("", None), ("Grüße", b""), ("日本𝄞", bytes(70))]
    logs = [
        pure.encode([(1, None, b"value", [])]),
        pure.encode([(1000 + n, b"key-%d" % n, bytes(n * 7), headers[: n % 5]) for n in range(20)]),
        pure.encode([(2**62, b"", None, []), (-(2**62), None, b"", headers)], log_append_time_ms=5),
        pure.encode([(n, None, bytes(90), []) for n in range(70)], is_transactional=True, producer_id=3),
    ]
    batches = [bytearray(log) for log in logs]
    offset = 0
    for batch in batches:
        stamp(batch, offset, 1)
        offset += 11
    logs += [bytes(batches[1] + batches[2] + batches[3]), bytes(batches[0] * 9), b""]
    return b"".join(struct.pack("<I", len(log)) + log for log in logs)


def fuzz(program: Path, seed: int, rounds: int) -> str:
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [program, str(seed), str(rounds)], input=corpus(), capture_output=True, check=False, env=environment
    )
    assert done.returncode == 0, f"seed {seed}: exit {done.returncode}\n{done.stderr.decode(errors='replace')[-6000:]}"
    return done.stdout.decode()


def test_no_byte_outside_its_buffers_is_touched_whatever_the_bytes_say(tmp_path: Path) -> None:
    said = fuzz(built(tmp_path), 1, ROUNDS)
    counts = [int(number) for number in re.findall(r"(\d+) (?:whole|broken|changed|right|wrong|sound)", said)]
    assert len(counts) == 6 and min(counts) > ROUNDS // 20, said


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(fuzz(built(Path(scratch)), int(sys.argv[2]), int(sys.argv[1])), end="")
