"""Tasks of one process share a link, and the last one's leaves with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from raw_requests import eventually
from scripted_cluster import ScriptedCluster

from raylog.client.background import background
from raylog.ranges import links

pytestmark = pytest.mark.spark

Scripted = Callable[..., ScriptedCluster]


def test_a_link_that_is_about_to_be_closed_is_kept_for_who_comes_in_time(scripted: Scripted) -> None:
    address = scripted().address

    async def released_and_acquired() -> tuple[object, object, asyncio.TimerHandle]:
        first = await links.acquire(address)
        await links.release(address)
        closing = next(each.closing for key, each in links._links.items() if key[1] == address)
        assert closing is not None
        return first, await links.acquire(address), closing

    first, second, closing = background().run(released_and_acquired())
    assert second is first and closing.cancelled()
    background().run(links.release(address))


def test_tasks_share_a_link_until_nobody_needs_it(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "IDLE_S", 0.01)
    address = scripted().address
    run = background().run
    first = run(links.acquire(address))
    assert run(links.acquire(address)) is first
    run(links.release(address))
    assert run(links.acquire(address)) is first
    run(links.release(address))
    run(links.release(address))
    eventually(lambda: all(key[1] != address for key in links._links), "the link is gone")
    assert run(links.acquire(address)) is not first
    run(links.release(address))
