"""A process that has clients wait (``throttle_time``): its Broker says so to the client, does not read it meanwhile, and goes on itself."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest
from outside import Client, fetch, parts, produce
from raw_requests import batch

from raylog.server.apis import fetch as fetching
from raylog.server.apis import produce as producing

pytestmark = pytest.mark.core

Open = Callable[..., Client]
NewTopicOf = Callable[..., str]
WAIT = datetime.timedelta(milliseconds=400)


@pytest.mark.parametrize("assignment", [((0,),), ((0,), (0,))], ids=["forwarded", "merged"])
@pytest.mark.parametrize("api", ["fetch", "produce"])
def test_a_client_is_told_how_long_its_owner_wants_it_to_wait(
    client: Open,
    new_topic: NewTopicOf,
    monkeypatch: pytest.MonkeyPatch,
    assignment: tuple[tuple[int, ...], ...],
    api: str,
) -> None:
    topic = new_topic(*assignment)
    heedless, other = client(0), client(0)
    records = {number: batch(b"v") for number in range(len(assignment))}
    heedless.ask(produce(topic, records))
    module: Any = fetching if api == "fetch" else producing
    entity = module.entity

    def throttled(request: Any, reply: Any, version: int) -> Any:
        return dataclasses.replace(entity(request, reply, version), throttle_time=WAIT)

    offsets = dict.fromkeys(records, 0)

    def ask(by: Client) -> Any:
        return by.ask(fetch(topic, offsets) if api == "fetch" else produce(topic, records))

    with monkeypatch.context() as patch:
        patch.setattr(module, "entity", throttled)
        began = time.monotonic()
        told = ask(heedless)
    assert told.throttle_time == WAIT
    if api == "fetch":
        assert all(part.records for part in parts(told).values())
    assert not ask(other).throttle_time, "another client is served"
    assert not ask(heedless).throttle_time
    assert time.monotonic() - began >= WAIT.total_seconds() - 0.01, "it was not read before"
