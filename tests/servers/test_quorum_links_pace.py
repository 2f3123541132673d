"""A controller looks for the others often while something moves, and seldom while nothing does."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from raylog.disks.disk import encode_id, format_disk
from raylog.server import quorum_links
from raylog.server.quorum_links import ADDRESSES_INTERVAL_S, SETTLED_AFTER_S, SETTLED_INTERVAL_S, Pace, QuorumLinks
from raylog.types import Endpoint
from raylog.wire.handshake import Peer


def looks(pace: Pace, start_s: float, end_s: float) -> int:
    now_s, count = start_s, 0
    while now_s < end_s:
        now_s += pace.interval_s(now_s)
        count += 1
    return count


def test_addresses_are_read_twice_in_four_quiet_seconds_not_forty_times() -> None:
    pace = Pace(0.0)
    assert looks(pace, 0.0, SETTLED_AFTER_S) >= SETTLED_AFTER_S / ADDRESSES_INTERVAL_S
    assert looks(pace, 60.0, 64.0) == 4.0 / SETTLED_INTERVAL_S
    pace.moved(64.0)
    assert looks(pace, 64.0, 66.0) >= 2.0 / ADDRESSES_INTERVAL_S


def test_a_link_that_goes_ends_the_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither interval ends here: whatever is read after the first look, a moving link has caused."""
    directory_id = uuid.UUID(int=5)
    disk = tmp_path / "disk"
    format_disk(
        disk,
        cluster_id=encode_id(uuid.UUID(int=4)),
        broker_id=0,
        rack=None,
        controllers=[],
        secret="s",
        directory_id=directory_id,
    )
    monkeypatch.setattr(quorum_links, "SETTLED_AFTER_S", -1.0)
    monkeypatch.setattr(quorum_links, "SETTLED_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(quorum_links, "ADDRESSES_INTERVAL_S", 1_800.0)
    moves: list[float] = []
    monkeypatch.setattr(Pace, "moved", lambda self, now_s: moves.append(now_s))
    reads: list[Path] = []
    real = quorum_links.read_disk

    def counted(path: Path) -> Any:
        reads.append(path)
        return real(path)

    monkeypatch.setattr(quorum_links, "read_disk", counted)

    async def run() -> None:
        links = QuorumLinks(
            disk, directory_id, cluster_id="c", secret=b"s", identity=Peer(1, 1), on_event=lambda event: None
        )
        links.start(Endpoint("127.0.0.1", 1))
        for _ in range(100):
            await asyncio.sleep(0)
        assert (len(reads), len(moves)) == (1, 1)
        links._moved.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert (len(reads), len(moves)) == (2, 2), "it looks at once, and often for a while"
        await links.stop()

    asyncio.run(run())
