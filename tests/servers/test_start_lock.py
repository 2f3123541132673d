"""Two starts of one folder: the second waits for the first, or for its death."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raylog.disks.start_lock import only_start

HOLDER = """
import sys
from pathlib import Path
from raylog.disks.start_lock import only_start

with only_start(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", [subprocess.Popen.kill, lambda process: process.stdin.close()])
def test_the_second_says_whom_it_waits_for_and_goes_on_when_that_one_ends(tmp_path: Path, end: object) -> None:
    home = tmp_path / "data"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        end(process)  # type: ignore[operator]

    with process, only_start(home, tell):
        assert told == [f"another start of {home} is under way (process {process.pid}): waiting for it"]
    assert list(home.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_left_to_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    with only_start(tmp_path / "file" / "data", told.append):
        assert told == []
