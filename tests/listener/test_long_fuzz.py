"""Sessions at full speed, at every door (``long_fuzz.py``): nothing is found, what is held comes back to what it was, and a file of a
session is sent again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fast_feed
import pytest
from fast_feed import DOORS, Door, FastFeed, Lane, session_of
from fed_frames import split
from feed_doors import framed
from growth import Sample, growing
from inside_doors import private_requests
from long_results import name_of, page

from raylog.wire import private, private_quotas

pytestmark = pytest.mark.core

PROGRAM = Path(__file__).with_name("long_fuzz.py")


def ran(*arguments: str) -> str:
    """What the program prints. Fails with findings."""
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    return done.stdout


def sample(frames: int, **changed: int) -> Sample:
    tables = {"Owner.table": changed.pop("table", 0)}
    held = {"memory_bytes": 0, "requests": 0, "tasks": 5, "connections": 1, "descriptors": 9, "timers": 9, "objects": 9}
    return Sample(frames, tables=tables, **(held | changed))


def test_every_door_is_fed_and_nothing_is_found(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    printed = ran("--frames", "1500", "--check-each", "750", "--corpus", str(tmp_path), "--told", str(told))
    assert printed.rstrip().endswith("FINDINGS: none")
    found = json.loads(told.read_text())
    assert {door for door, _, _ in found["frames"]} == set(DOORS)
    assert sum(count for _, _, count in found["frames"]) >= 1_500 and len(found["samples"]) >= 2
    written = page(found, "make fuzz-long")
    assert "Findings: none." in written and all(f"| {door} |" in written for door in DOORS)
    assert "| HandshakeMessage |" in written and "| tasks |" in written


def test_every_request_of_the_inside_is_fed_and_has_a_name() -> None:
    everything: Any = SimpleNamespace(versions=private._requests)
    fed = private_requests(everything)
    assert {*map(type, fed)} == {*private._requests.values()} and private_quotas.LendQuotas in map(type, fed)
    assert all(map(framed, fed))
    assert {name_of(key) for key in private._requests} == {kind.__name__ for kind in private._requests.values()}


def test_a_saved_session_is_sent_again(tmp_path: Path) -> None:
    file = tmp_path / "open-seed1-1.bin"
    file.write_bytes(session_of("open", [b"\0\x12\0\0\0\0\0\x01\0\4fuzz", b"\0\x12"]))
    assert "2 frames at open: {'none': 1, 'the connection is closed': 1}" in ran("--replay", str(file))


def test_a_session_is_read_back_as_it_was_written() -> None:
    for door in DOORS:
        data = session_of(door, [b"one", b""])
        assert DOORS[data[0]] == door and split(data[1:])[0] == [b"one", b""]


@pytest.mark.parametrize("what", ["requests", "tasks", "connections", "descriptors", "timers", "memory_bytes"])
def test_what_does_not_come_back_is_told(what: str) -> None:
    still = [sample(number * 100_000) for number in range(4)]
    assert not growing(still)
    assert len(growing([*still, sample(400_000, **{what: 1 << 30})])) == 1


def test_a_table_that_grows_with_the_frames_is_told() -> None:
    filled = [sample(number * 100_000, table=min(number, 1) * 9_000) for number in range(10)]
    assert not growing(filled), "it has reached its bound"
    assert growing([sample(number * 100_000, table=number * 9_000) for number in range(10)])


def test_a_session_that_is_slow_a_second_time_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fed(lane: Lane, door: Door, frames: Iterable[bytes]) -> None: ...

    monkeypatch.setattr(fast_feed, "FRAME_CPU_S_MAX", -1.0)
    monkeypatch.setattr(Lane, "feed", fed)
    nowhere: Any = None
    door = Door("member at controller", nowhere, nowhere, [], [], share=1)
    findings: Counter[str] = Counter()
    feed = FastFeed([door], 5, findings, tmp_path)
    frame = b"\0\x25\0\3\0\0\0\0"
    feed.slow.append((door, 7, [frame]))
    asyncio.run(feed.run(0))
    assert list(findings) == ["a session of 00250003 at member at controller takes more than -1 s"]
    assert [each.name for each in feed.saved] == ["member-at-controller-seed5-7.bin"]
    assert feed.saved[0].read_bytes() == session_of(door.name, [frame])


@pytest.mark.parametrize("is_locked", [True, False])
def test_only_who_cannot_log_in_at_rest_either_is_a_finding(
    is_locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fed(lane: Lane, door: Door, frames: Iterable[bytes]) -> None:
        if is_locked:
            feed.locked_out[door.name] = door, "closed"

    monkeypatch.setattr(Lane, "feed", fed)
    nowhere: Any = None
    door = Door("login", nowhere, nowhere, [], [], share=1)
    feed = FastFeed([door], 5, Counter(), tmp_path)
    feed.locked_out[door.name] = door, "TimeoutError"
    asyncio.run(feed.run(0))
    assert list(feed.findings) == (["nobody can log in as login: closed"] if is_locked else [])
    assert not feed.locked_out


@pytest.mark.slow
def test_a_long_run_finds_nothing(tmp_path: Path) -> None:
    told = str(tmp_path / "told.json")
    printed = ran("--frames", "300000", "--seconds", "150", "--check-each", "25000", "--seed", "5", "--told", told)
    assert printed.rstrip().endswith("FINDINGS: none")
