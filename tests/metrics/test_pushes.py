"""A Broker's pushes: their configs, receivers that fail, and that two readers do not count anything twice."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

import pytest
from outside import Client, produce
from raw_requests import batch, eventually
from scraping import scraped

from raylog.configs.metrics_configs import METRICS_RAY_INTERVAL
from raylog.listener.metrics_pushes import MetricsPush, PushTarget
from raylog.metrics import table
from raylog.metrics.registry import Samples
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id

WITHIN_S = 60


class Receiver:
    """Takes pushes, or fails as it is told to."""

    def __init__(self) -> None:
        self.taken: list[Samples] = []
        self.tried = 0
        self.is_down = False

    def send(self, samples: Samples) -> None:
        assert threading.current_thread() is not threading.main_thread(), "the loop must not be held up"
        self.tried += 1
        if self.is_down:
            raise OSError("the receiver is down")
        self.taken.append(samples)


async def _samples() -> Samples:
    return Samples()


def pushed(work: Callable[[Receiver, MetricsPush], Awaitable[None]], *, interval_ms: int, config: str = "") -> Receiver:
    """What a receiver has got after this work on a running loop."""
    receiver = Receiver()

    async def run() -> None:
        push = MetricsPush(PushTarget("a receiver", receiver.send, interval_ms, config), _samples)
        try:
            await work(receiver, push)
        finally:
            await push.stop()

    asyncio.run(asyncio.wait_for(run(), WITHIN_S))
    return receiver


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_samples_are_pushed_again_and_again() -> None:
    async def work(receiver: Receiver, push: MetricsPush) -> None:
        push.follow({}, 0)
        assert push.is_on
        await until(lambda: len(receiver.taken) >= 3)

    pushed(work, interval_ms=1)


def test_an_interval_of_zero_pushes_nothing_and_the_config_says_otherwise_at_once() -> None:
    name = METRICS_RAY_INTERVAL

    async def work(receiver: Receiver, push: MetricsPush) -> None:
        push.follow({None: {name: "0"}}, 7)
        assert not push.is_on
        push.follow({None: {name: "0"}, 7: {name: "1"}}, 7)
        await until(lambda: len(receiver.taken) >= 2)
        push.follow({None: {name: "0"}}, 7)
        assert not push.is_on
        push.follow({}, 7)  # the interval is an hour again
        before = receiver.tried
        push.follow({None: {name: "1"}}, 7)  # and whoever waits for it waits no longer
        await until(lambda: receiver.tried > before)

    pushed(work, interval_ms=3_600_000, config=name)


def test_a_receiver_that_fails_is_named_once_and_pushed_to_again(caplog: pytest.LogCaptureFixture) -> None:
    async def work(receiver: Receiver, push: MetricsPush) -> None:
        receiver.is_down = True
        push.follow({}, 0)
        await until(lambda: receiver.tried >= 3)
        receiver.is_down = False
        await until(lambda: len(receiver.taken) >= 1)
        await until(lambda: len(caplog.messages) >= 2)

    with caplog.at_level(logging.INFO, "raylog.metrics"):
        pushed(work, interval_ms=1)
    assert caplog.messages == [
        "the metrics cannot be pushed to a receiver: the receiver is down",
        "the metrics are pushed to a receiver again",
    ]


@pytest.mark.core
def test_readers_that_come_together_share_a_collection_and_nothing_counts_twice(
    running: InProcessCluster,
    at: dict[int, Endpoint],
    client: Callable[..., Client],
    new_topic: Callable[..., str],
) -> None:
    topic, sent = new_topic((0, 1)), batch(b"v")
    metrics = running.launcher.servers[node_id(0, BROKER_SLOT)].metrics

    async def together() -> list[Samples]:
        return await asyncio.gather(*(metrics.collect() for _ in range(5)))

    for number in range(1, 6):
        client().ask(produce(topic, {0: sent}))
        found = running.run(together())
        assert all(each is found[0] for each in found)
        assert found[0].of(table.BYTES_IN)[(topic,)] == number * len(sent)
    eventually(lambda: scraped(at[0])[table.BYTES_IN.name][(topic,)] == 5 * len(sent), "a scrape to say the same")
